"""The page's pure modules, asked in the browser itself: text that is being typed, columns, the fold."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import as_file, files
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ASK = """async ([name, call, many]) => {
    const module = await import(`/playground/${name}.js`);
    return many.map((arguments_) => module[call](...arguments_));
}"""


@pytest.fixture(scope="module")
def module_page(browser: Any) -> Any:
    """One page for all questions."""
    from tests.web.scripted import Scripted, serve_scripted

    with serve_scripted(Scripted()) as server:
        page = browser.new_page()
        page.goto(f"{server.base_url}/")
        yield page
        page.close()


def ask(page: Any, name: str, call: str, *many: list[Any]) -> list[Any]:
    """What a function of a module returns for each list of arguments."""
    return page.evaluate(ASK, [name, call, list(many)])


def test_whole_words(module_page: Any) -> None:
    texts = ["", "Hel", "Hello ", "Hello wor", "a\nb", "two  spaces x", " lead"]
    assert ask(module_page, "words", "wholeWords", *[[text] for text in texts]) == [0, 0, 6, 6, 2, 12, 1]


def test_mend(module_page: Any) -> None:
    cases = {
        ("Hello big ", "Hello big world", "Hello big worl"): "Hello big worl",
        ("Hello big ", "Hello big ", "Hello big"): "Hello big ",
        ("Hello big ", "Hello big world", "Hello world"): "Hello big world",
        ("Hello big ", "Hello big world", "X"): "Hello big X",
        ("Hello big ", "Hello big world", ""): "Hello big ",
        ("Hello big ", "Hello big world", "Hello very big world"): "Hello big very world",
        ("", "abc", "xyz"): "xyz",
    }
    assert ask(module_page, "words", "mend", *map(list, cases)) == list(cases.values())


words = st.text(st.sampled_from("ab "), max_size=8)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(words, words, words), min_size=20, max_size=40))
def test_what_was_sent_always_stays_in_front(module_page: Any, triples: list[tuple[str, str, str]]) -> None:
    asked = [[sent, sent + tail, after] for sent, tail, after in triples]
    for (sent, _before, after), mended in zip(asked, ask(module_page, "words", "mend", *asked), strict=True):
        assert mended.startswith(sent)
        assert len(mended) <= len(sent) + len(after)
        if after.startswith(sent):
            assert mended == after


def test_sentences(module_page: Any) -> None:
    cases = [
        ["One. Two! Thr", 0],
        ["One. Two! Thr", 10],
        ["3.5 is", 0],
        ["Line\nmore", 0],
        ["Say “Hi.” then", 0],
        ["你好。再", 0],
    ]
    found = ask(module_page, "words", "wholeSentences", *cases)
    assert [each["sentences"] for each in found] == ["One. Two!", "", "", "Line", "Say “Hi.”", "你好。"]
    assert [each["to"] for each in found] == [9, 10, 0, 5, 9, 3]


def test_cells_are_shown_on_one_line_with_nothing_hidden(module_page: Any) -> None:
    cells = [" how", "how", "\n", " ", "", "a\u202eb", "\x1b[2J", "a b", "x" * 40]
    shown = ask(module_page, "columns", "visibleText", *[[{"text": text, "token": 7}] for text in cells])
    assert shown == ["how", "how", "⏎", "␣", "#7", "a▯b", "▯[2J", "a b", "x" * 27 + "…"]


def test_columns(module_page: Any) -> None:
    found = module_page.evaluate(
        """async () => {
            const { Columns } = await import("/playground/columns.js");
            const columns = new Columns((text) => text.length * 10);
            const rows = ["a", "abcdefgh", "abc", "x"].map((text, t) => ({t, at: t, cells: {u: {text, token: 1}}}));
            columns.grow(rows.slice(0, 2));
            columns.grow(rows);
            const places = [-5, 0, 25, 26, 117, 118, 9999].map((x) => columns.at(x));
            return [columns.edges, places, columns.lines(0, 4, 150), columns.lines(0, 4, 10)];
        }"""
    )
    edges, places, lines, narrow = found
    assert edges == [0, 26, 122, 168, 194]
    assert places == [0, 0, 0, 1, 1, 1, 3]
    assert lines == [[0, 2], [2, 4]]
    assert narrow == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_messages_that_nobody_knows_are_left_alone(module_page: Any) -> None:
    found = module_page.evaluate(
        """async () => {
            const { fold } = await import("/playground/run.js");
            const types = ["constructor", "__defineGetter__", "__proto__", "toString", "from the future"];
            const run = fold(types.map((type) => ({sent: false, at: 0, message: {type}})));
            fold([{sent: true, at: 0, message: {type: "write", stream: "__proto__", text: "x"}}]);
            return [run.rows.length, run.turns.length, ({}).x === undefined];
        }"""
    )
    assert found == [0, 0, True]


def test_scripts_parse_where_node_is() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here; the browser reads the same scripts in the other tests")
    with as_file(files("braid").joinpath("web")) as folder:
        for script in sorted(folder.glob("*.js")):
            subprocess.run([node, "--check", script], check=True, capture_output=True)
