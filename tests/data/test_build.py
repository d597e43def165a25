"""Builds: repeatable to the byte, with a manifest that says how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from braid import __version__
from braid.data.build import build, fit_tokenizer
from braid.data.check import check_file
from braid.data.convert import convert
from braid.data.files import sha256_of
from braid.data.manifest import manifest_path
from braid.data.scores import read_scores
from braid.data.sources import BUILDERS, Wish, find_builder
from braid.data.stories import SPLITS
from braid.data.tables import read_tables
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError

CHATS = [
    {"messages": [{"role": "user", "content": f"Mia has {n} pens. Tom has 4 pens. How many pens?"},
                  {"role": "assistant", "content": f"{n + 4}", "reasoning_content": f"{n} + 4 = {n + 4} pens."}]}
    for n in range(20, 30)
]  # fmt: skip
SOURCES = {
    "chats": CHATS,
    "solve": [
        {"question": "Mia has 3 pens. Tom has 4 pens. How many pens?", "answer": f"3+4=7 pens.\n#### {n}"}
        for n in range(4)
    ],
    "grid": [{"user": "Hi. What now?", "calm": "Wait. Think.", "output": "Breathe."}] * 4,
    "isolation": [{"instruction": f"Do {n}.", "input": "Some text.", "output": f"{n}"} for n in range(9)],
}


def _source(builder: str, lines: Callable[..., Path]) -> Path | None:
    return lines(*SOURCES[builder], name="source.jsonl") if builder in SOURCES else None


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "x.scores.jsonl"])
def test_the_same_wish_gives_the_same_bytes_and_passes_the_check(
    builder: str, name: str, tokenizer: DataTokenizer, tmp_path: Path, lines: Callable[..., Path]
) -> None:
    if builder in ("gsm_symbolic", "knights_knaves", "syllogism", "propositional_logic"):
        pytest.importorskip("reasoning_gym")
    wish = Wish(seed=4, source=_source(builder, lines))
    count = None if builder in SOURCES else 8
    tokens = None if "scores" in name else tokenizer
    out = tmp_path / name
    manifest = build(builder, out, tokenizer=tokens, count=count, wish=wish)
    first, told = out.read_bytes(), manifest_path(out).read_text()
    build(builder, out, tokenizer=tokens, count=count, wish=wish)
    assert (out.read_bytes(), manifest_path(out).read_text()) == (first, told)
    build(builder, out, tokenizer=tokens, count=count, wish=Wish(seed=5, source=wish.source))
    if builder not in ("chats", "grid", "solve") or "scores" not in name:
        assert out.read_bytes() != first
    out.write_bytes(first)
    assert manifest.count > 0
    if tokens is not None:
        assert list(check_file(out, tokens)) == []


def test_a_longer_file_begins_with_the_shorter_one(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    for count in (5, 9):
        build("audit", tmp_path / f"{count}.jsonl", tokenizer=tokenizer, count=count)
    assert (tmp_path / "9.jsonl").read_bytes().startswith((tmp_path / "5.jsonl").read_bytes())


def test_the_manifest_says_how_it_was_made(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    told: list[int] = []
    build(
        "stories",
        out,
        tokenizer=tokenizer,
        count=7,
        wish=Wish(seed=2, split="numbers"),
        on_progress=told.append,
    )
    data = json.loads(manifest_path(out).read_text())
    tables = list(read_tables(out))
    assert told == [1, 2, 3, 4, 5, 6, 7]
    assert data | {"left_out": 0, "moved": 0, "wait_k": 1, "source": None} == data
    assert (data["builder"], data["seed"], data["split"], data["count"]) == ("stories", 2, "numbers", 7)
    assert (data["splits"], data["arrival"]) == ({"numbers": 7}, "mixed")
    assert data["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert (data["tokenizer"], data["braid"]) == (tokenizer.fingerprint, __version__)
    assert data["num_rows"] == sum(table.num_rows for table in tables)
    assert data["num_tokens"] == sum(table.num_tokens for table in tables)
    assert data["num_asked"] == sum(lane.num_asked for table in tables for lane in table.lanes)


def test_the_manifest_has_every_choice(
    tokenizer: DataTokenizer, tmp_path: Path, lines: Callable[..., Path]
) -> None:
    out, source = tmp_path / "rows.jsonl", lines(*CHATS, name="chats.jsonl")
    judge = Wish(source=source, wait_k=2, is_strict=False, judge=lambda _past, _step: True, judge_model="m")
    build("chats", out, tokenizer=tokenizer, wish=judge, weights={"thought": 0.5})
    told = json.loads(manifest_path(out).read_text())
    wanted = {"wait_k": 2, "any_step": True, "judge": "m", "weights": {"thought": 0.5}}
    assert told | wanted == told
    grid = lines(*SOURCES["grid"], name="grid.jsonl")
    build("grid", out, tokenizer=tokenizer, wish=Wish(source=grid, inputs=("user", "calm")))
    told = json.loads(manifest_path(out).read_text())
    assert told | {"inputs": ["user", "calm"], "any_step": False, "judge": None, "weights": {}} == told


def test_a_folder_that_is_converted_is_known_by_its_files(tmp_path: Path) -> None:
    folder, out = tmp_path / "shards", tmp_path / "rows.jsonl"
    folder.mkdir()
    seen: list[str] = []
    for ids in ([1, 7], [2, 7]):
        places = [[0, 0], [1, 1]]
        np.savez(folder / "a.npz", input_ids=ids, labels=[-100, 7], position_ids=places)
        manifest = convert(folder, out, silence_id=9)
        assert (manifest.layout, manifest.count, manifest.seed) == ("npz", 1, None)
        assert manifest.source is not None and manifest.source["name"] == "shards"
        seen.append(manifest.source["sha256"])
    assert seen[0] != seen[1]


def test_no_path_of_a_machine_is_in_a_manifest(tmp_path: Path, lines: Callable[..., Path]) -> None:
    source = lines(*CHATS, name="chats.jsonl")
    build("chats", tmp_path / "x.scores.jsonl", wish=Wish(source=source))
    text = manifest_path(tmp_path / "x.scores.jsonl").read_text()
    assert str(tmp_path) not in text
    assert json.loads(text)["source"] == {"name": "chats.jsonl", "sha256": sha256_of(source)}


def test_arrivals_differ_in_rows_but_not_in_text(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    rows: dict[str, int] = {}
    said: list[list[str]] = []
    for arrival in ("paced", "typed", "paste"):
        out = tmp_path / f"{arrival}.jsonl"
        manifest = build("stories", out, tokenizer=tokenizer, count=5, arrival=arrival)
        rows[arrival] = manifest.num_rows
        said.append([tokenizer.decode(lane.ids) for table in read_tables(out) for lane in table.lanes])
    assert said[0] == said[1] == said[2]
    assert rows["paced"] < rows["typed"]


def test_weights_of_streams(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    build("stories", tmp_path / "x.jsonl", tokenizer=tokenizer, count=1, weights={"thought": 0.25})
    (table,) = read_tables(tmp_path / "x.jsonl")
    assert [lane.weight for lane in table.lanes] == [0.0, 0.25, 1.0]


@pytest.mark.parametrize("stream", ["thuoght", "user"])
def test_a_weight_of_a_stream_that_no_example_has_as_an_output(
    stream: str, tokenizer: DataTokenizer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"no example has an output '{stream}'"):
        build("stories", tmp_path / "x.jsonl", tokenizer=tokenizer, count=3, weights={stream: 0.5})
    assert list(tmp_path.iterdir()) == []


def test_steps_that_could_not_be_known_leave_an_example_out(
    tmp_path: Path, lines: Callable[..., Path]
) -> None:
    bad = {
        "messages": [
            CHATS[0]["messages"][0],
            {"role": "assistant", "content": "5", "reasoning_content": "99 it is."},
        ]
    }
    wish = Wish(source=lines(bad, *CHATS, name="chats.jsonl"))
    manifest = build("chats", tmp_path / "a.scores.jsonl", wish=wish)
    assert (manifest.count, manifest.left_out, manifest.moved) == (10, 1, 10)
    lax = Wish(source=wish.source, is_strict=False)
    assert build("chats", tmp_path / "b.scores.jsonl", wish=lax).count == 11
    first = next(read_scores(tmp_path / "a.scores.jsonl"))
    assert first.part("thought").segments[0].after == {"user": 2}


@pytest.mark.parametrize(
    ("builder", "wish", "count", "message"),
    [
        ("storys", Wish(), 1, "did you mean 'stories'"),
        ("stories", Wish(split="nope"), 1, "no split 'nope'"),
        ("stories", Wish(), None, "--count"),
        ("chats", Wish(), 1, "--source"),
        ("outside", Wish(source=Path(__file__)), 1, "reads no file"),
        ("chats", Wish(source=Path("nowhere.jsonl")), 1, "cannot read"),
        ("stories", Wish(wait_k=3), 1, "stories does nothing with --wait-k; it is for solve, chats"),
        ("audit", Wish(inputs=("user",)), 1, "--inputs; it is for grid"),
        ("syllogism", Wish(judge=lambda _past, _step: True), 1, "--judge; it is for solve, chats"),
        ("isolation", Wish(is_strict=False), 1, "--any-step; it is for solve, chats, gsm_symbolic"),
        ("stories", Wish(faults=("result",)), 1, "faults; it is for audit"),
    ],
)
def test_wishes_that_cannot_be(
    builder: str, wish: Wish, count: int | None, message: str, tokenizer: DataTokenizer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        build(builder, tmp_path / "x.jsonl", tokenizer=tokenizer, count=count, wish=wish)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_which_nothing_holds_is_given_up(tmp_path: Path, lines: Callable[..., Path]) -> None:
    bad = {"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "99"}]}
    wish = Wish(source=lines(*[bad] * 1001, name="bad.jsonl"))
    with pytest.raises(DataError, match="1000 examples in a row"):
        build("chats", tmp_path / "x.scores.jsonl", wish=wish)
    assert not (tmp_path / "x.scores.jsonl").exists()


def test_tables_need_a_tokenizer_and_a_known_arrival(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="need a tokenizer"):
        build("stories", tmp_path / "x.jsonl", count=1)
    with pytest.raises(DataError, match="no arrival 'pasted'"):
        build("stories", tmp_path / "x.jsonl", tokenizer=tokenizer, count=1, arrival="pasted")


def test_a_fitted_tokenizer_is_the_same_each_time() -> None:
    one, two = (fit_tokenizer("stories", Wish(seed=1), size=500, texts=50) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    assert one.decode(one.encode("ünïcödé 漢字 \n🙂")) == "ünïcödé 漢字 \n🙂"


def test_every_split_of_the_stories_can_be_built() -> None:
    for split in SPLITS:
        assert next(find_builder("stories").scores(Wish(split=split))) is not None


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("t.csv", "Hi there.,Wait.,What?", "line 3: it has more cells than the header's 2"),
        ("t.jsonl", '{"user": 5, "calm": "x"}', "line 3: t-1: the column 'user' is text"),
        ("t.jsonl", '{"user": "Hi", "calm": [1, 2]}', "line 3: t-1: the column 'calm' is text"),
        ("t.jsonl", '{"user": "Hi", "calm": "x", "meta": "y"}', "line 3: t-1: meta is an object"),
    ],
)
def test_a_line_of_a_table_that_is_no_grid_is_named(
    name: str, bad: str, message: str, tmp_path: Path, lines: Callable[..., Path]
) -> None:
    first = ["user,calm", "Hi.,Wait."] if name == "t.csv" else ["", '{"user": "Hi.", "calm": "Wait."}']
    with pytest.raises(DataCorruptError, match=message):
        build("grid", tmp_path / "x.scores.jsonl", wish=Wish(source=lines(*first, bad, name=name)))
    assert not (tmp_path / "x.scores.jsonl").exists()


def test_a_record_that_is_no_worked_question_is_named(tmp_path: Path, lines: Callable[..., Path]) -> None:
    source = lines(*SOURCES["solve"][:2], {"question": "3 + 4?", "answer": "7"}, name="t.jsonl")
    with pytest.raises(DataCorruptError, match=r"t\.jsonl, line 3: it has no steps"):
        build("solve", tmp_path / "x.scores.jsonl", wish=Wish(source=source))
