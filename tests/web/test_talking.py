"""A person at the playground: types, is read, is answered, interrupts, compares, loses the line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from braid.client import protocol as wire
from braid.streams.events import Reuse
from tests.web.conftest import Watch
from tests.web.scripted import Scripted

QUESTION = "Sally has three apples and gives one to Tom."
SAID = "Sally has two apples left . She had three and gave one to Tom , so two remain ."


def expect(thing: Any) -> Any:
    """Playwright's, which waits until it holds; imported late, since it may not be installed."""
    from playwright.sync_api import expect as holds

    return holds(thing)


def ask(page: Any, text: str = QUESTION) -> None:
    """Type, end the turn, and wait for its figures."""
    page.locator("#words").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator('[data-figure="rows"]')).not_to_have_text("–")


def kinds(scripted: Scripted, kind: type[Any]) -> list[Any]:
    """Commands of a kind that the page has sent."""
    return [command for command in scripted.commands if isinstance(command, kind)]


def test_the_thought_moves_before_the_input_ends(page: Any, scripted: Scripted) -> None:
    page.locator("#words").press_sequentially("Sally has three apples and gives on", delay=40)
    expect(page.locator("#inner .thinking")).to_contain_text("They ask")
    assert not kinds(scripted, wire.End)
    expect(page.locator("#log .answer")).to_have_count(0)
    # whole words alone are sent: the last one may still become another
    assert (
        "".join(command.text for command in kinds(scripted, wire.Write))
        == "Sally has three apples and gives "
    )
    assert len(kinds(scripted, wire.Write)) >= 3
    expect(page.locator("#ink mark")).to_have_text("Sally has three apples and gives ")
    page.locator("#words").press_sequentially("e to Tom.", delay=20)
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_have_text(SAID)
    assert "".join(command.text for command in kinds(scripted, wire.Write)) == QUESTION
    assert len(kinds(scripted, wire.End)) == 1
    expect(page.locator("#words")).to_have_value("")


def test_an_example_types_itself_until_somebody_types(page: Any, scripted: Scripted) -> None:
    page.locator("#tries button").first.click()
    expect(page.locator("#inner .thinking")).to_contain_text("They")
    assert not kinds(scripted, wire.End)
    page.locator("#words").press_sequentially("!")
    value = page.locator("#words").input_value()
    page.wait_for_timeout(200)
    assert page.locator("#words").input_value() == value
    assert not kinds(scripted, wire.End)
    expect(page.locator("#welcome")).to_be_hidden()


def test_what_was_sent_cannot_be_unsent_and_that_is_said_gently(page: Any, scripted: Scripted) -> None:
    box = page.locator("#words")
    box.press_sequentially("Hello big world ", delay=20)
    expect(page.locator("#ink mark")).to_have_text("Hello big world ")
    for _ in range(6):
        page.keyboard.press("Backspace")
    expect(box).to_have_value("Hello big world ")
    expect(page.locator("#hint")).to_contain_text("already read")
    box.press_sequentially("again")
    page.keyboard.press("Backspace")  # what was not sent yet goes as ever
    expect(box).to_have_value("Hello big world agai")
    page.keyboard.press("Enter")
    expect(page.locator("#log .said")).to_have_text("Hello big world agai")
    deadline = time.monotonic() + 5
    while len(kinds(scripted, wire.End)) < 1 and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    assert "".join(command.text for command in kinds(scripted, wire.Write)) == "Hello big world agai"


def test_an_interrupt_cuts_the_answer(page: Any, scripted: Scripted) -> None:
    scripted.answer = lambda _question: " word" * 400
    page.locator("#words").fill("Talk for a long time please")
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_contain_text("word word")
    page.keyboard.press("Escape")
    expect(page.locator('[data-figure="rows"]')).not_to_have_text("–")
    assert len(kinds(scripted, wire.Interrupt)) == 1
    assert len(page.locator("#log .answer").inner_text().split()) < 300
    expect(page.locator("#names")).to_contain_text("asleep · interrupt")


def test_lanes_tell_states_and_rows_in_words(page: Any) -> None:
    expect(page.locator("#names li")).to_have_count(4)
    expect(page.locator("#names")).to_contain_text("waiting for the end of input")
    ask(page)
    expect(page.locator("#names")).to_contain_text("asleep · end")
    page.locator("#scroll").focus()
    page.keyboard.press("Home")
    expect(page.locator("#row-words")).to_have_text("Row 0: user “Sally”.")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#row-words")).to_contain_text("thought “They”")
    expect(page.locator("#row-words")).to_contain_text("ms after the one before")
    page.keyboard.press("t")
    expect(page.locator("#transcript")).to_contain_text(f"output: {SAID}")
    expect(page.locator("#transcript")).to_contain_text("thought: They ask about apples")


def test_turns_go_on_in_one_session(page: Any, scripted: Scripted) -> None:
    ask(page)
    page.locator("#words").fill("And Tom?")
    page.keyboard.press("Enter")
    expect(page.locator("#figures-title")).to_have_text("Turn 2")
    expect(page.locator("#log .said")).to_have_text([QUESTION, "And Tom?"])
    expect(page.locator("#log .answer")).to_have_text([SAID, SAID])
    assert len(scripted.sessions) == 1


def test_compare_asks_one_stream_the_same(page: Any, scripted: Scripted) -> None:
    ask(page)
    page.locator("#compare").click()
    expect(page.locator("#compare-words")).to_contain_text("one stream")
    expect(page.locator('[data-compared="ttfat"]')).not_to_have_text("–")
    expect(page.locator('[data-compared="tnft"]')).to_have_text("0")
    expect(page.locator("#compare-answer")).to_have_text(SAID)
    topology = scripted.newest.opened.topology
    assert isinstance(topology, dict) and topology["name"] == "plain"
    assert topology["streams"]["output"]["max_tokens"] == 48
    assert scripted.newest.opened.seed == next(iter(scripted.sessions.values())).opened.seed
    asked = kinds(scripted, wire.Write)[-1]
    assert asked.text == QUESTION
    # a second turn is compared with what was said before it
    page.locator("#words").fill("And Tom?")
    page.keyboard.press("Enter")
    expect(page.locator("#figures-title")).to_have_text("Turn 2")
    expect(page.locator('[data-compared="ttfat"]')).to_have_text("–")  # what was compared was another turn
    page.locator("#compare").click()
    expect(page.locator("#compare-words")).to_contain_text("The same question")
    assert [message["role"] for message in scripted.newest.opened.history] == ["user", "assistant"]


def test_editable_input_sends_snapshots_and_commits(page: Any, scripted: Scripted) -> None:
    page.locator("#open-setup").click()
    page.locator("#input-kind").select_option("editable")
    page.locator("#setup-apply").click()
    expect(page.locator("#hint")).to_contain_text("still change")
    box = page.locator("#words")
    box.press_sequentially("Sally has three", delay=60)
    for _ in range(5):
        page.keyboard.press("Backspace")
    expect(box).to_have_value("Sally has ")  # here it may go
    box.press_sequentially("four apples", delay=20)
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_have_text(SAID)
    assert kinds(scripted, wire.Snapshot)[-1].streams == {"user": "Sally has four apples"}
    assert len(kinds(scripted, wire.Commit)) == 1
    assert not kinds(scripted, wire.Write)
    expect(page.locator("#log .said")).to_have_text("Sally has four apples")


def test_what_may_be_kept_behind_an_edit_is_chosen_and_told(page: Any, scripted: Scripted) -> None:
    scripted.reuse = Reuse(mode="repair", read=90, reused=80, repaired=32, fallbacks=1, drift=0.0625)
    page.locator("#open-setup").click()
    page.locator("#topology").select_option("plain")
    page.locator("#input-kind").select_option("live")
    expect(page.locator("#mode")).to_be_hidden()
    page.locator("#input-kind").select_option("editable")
    page.locator("#mode").select_option("repair")
    page.locator("#setup-apply").click()
    page.locator("#words").fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator("#reuse")).to_contain_text("32 repaired, 1 fell back, drift 0.063, 0 guessed right")
    assert {snapshot.mode for snapshot in kinds(scripted, wire.Snapshot)} == {"repair"}
    page.locator("#open-setup").click()
    expect(page.locator("#mode")).to_have_value("repair")


def test_what_is_typed_during_a_committed_answer_is_sent_after_it(page: Any, scripted: Scripted) -> None:
    scripted.answer = lambda _question: " word" * 200
    page.locator("#open-setup").click()
    page.locator("#topology").select_option("plain")
    expect(page.locator("#input-kind")).to_have_value("editable")  # nobody speaks before Enter
    page.locator("#setup-apply").click()
    box = page.locator("#words")
    box.fill("Talk")
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_contain_text("word word")
    box.press_sequentially("And then?", delay=30)
    page.wait_for_timeout(200)
    assert kinds(scripted, wire.Snapshot)[-1].streams == {"user": "Talk"}
    page.keyboard.press("Enter")
    expect(page.locator("#hint")).to_contain_text("when the answer is complete")
    expect(page.locator("#figures-title")).to_have_text("Turn 2", timeout=30_000)
    expect(page.locator("#log .said")).to_have_text(["Talk", "And then?"])
    commits = [index for index, each in enumerate(scripted.commands) if isinstance(each, wire.Commit)]
    assert len(commits) == 2
    assert kinds(scripted, wire.Snapshot)[-1].streams == {"user": "And then?"}
    expect(page.locator("#reuse")).to_have_text(
        "Ahead of Enter: 3 of 4 input tokens read, 2 of the answer drafted, 5 guessed right, 6 of 20 computed in vain."
    )


def test_the_setup_reaches_the_session(page: Any, scripted: Scripted) -> None:
    page.keyboard.press("Tab")
    page.locator("#open-setup").click()
    page.locator('[data-stream="thought"] .wait').fill("3")
    page.locator('[data-stream="thought"] .seen').select_option("external")
    page.locator("#seed").fill("7")
    page.locator("#temperature").fill("0.5")
    page.locator("#setup-apply").click()
    expect(page.locator("#setup")).to_be_hidden()
    expect(page.locator('#connection[data-state="open"]')).to_be_visible()
    opened = scripted.newest.opened
    assert isinstance(opened.topology, dict)
    assert opened.topology["streams"]["thought"]["wait_k"] == 3
    assert opened.topology["streams"]["thought"]["visibility"] == "external"
    assert opened.seed == 7
    assert opened.sampling == {"thought": {"temperature": 0.5}, "output": {"temperature": 0.5}}
    assert opened.show == "all" and opened.rows


@pytest.mark.parametrize(
    ("field", "value", "words"), [("wait", "0", "no wait for output"), ("seed", "-1", "whole number")]
)
def test_a_setup_that_means_nothing_is_told_at_once(page: Any, field: str, value: str, words: str) -> None:
    page.locator("#open-setup").click()
    if field == "wait":
        page.locator('[data-stream="output"] .wait').fill(value)
    else:
        page.locator("#seed").evaluate("(box) => { box.form.noValidate = true; }")
        page.locator("#seed").fill(value)
    page.locator("#setup-apply").click()
    expect(page.locator("#setup-problem")).to_contain_text(words)
    expect(page.locator("#setup")).to_be_visible()


def test_a_topology_of_ones_own(page: Any, scripted: Scripted, watch: Watch) -> None:
    watch.expected.append("400")
    page.locator("#open-setup").click()
    page.locator("#topology").select_option("(your own)")
    assert "think-aloud" in page.locator("#own").input_value()
    page.locator("#own").fill("streams:\n  user: {direction: input}\n  output: {direction: outptu}\n")
    page.locator("#setup-apply").click()
    expect(page.locator("#setup-problem")).to_contain_text("direction")
    streams = "{user: {direction: input}, reply: {direction: output, wait_k: end}}"
    own = f"name: mine\ndecoding: views\nstreams: {streams}\n"
    page.locator("#own").fill(own)
    page.locator("#setup-apply").click()
    expect(page.locator("#names")).to_contain_text("reply")
    expect(page.locator("#shape")).to_have_text("mine")
    opened = scripted.newest.opened
    assert isinstance(opened.topology, dict) and list(opened.topology["streams"]) == ["user", "reply"]


def test_a_topology_that_the_model_cannot_run_is_told_with_what_would_work(page: Any) -> None:
    page.locator("#open-setup").click()
    page.locator("#topology").select_option("solve")
    page.locator("#setup-apply").click()
    expect(page.locator("#banner")).to_contain_text("was not trained on streams, which solve needs")
    page.get_by_role("button", name="Use think-aloud").click()
    expect(page.locator("#banner")).to_be_hidden()
    expect(page.locator("#names")).to_contain_text("thought")


def test_nothing_is_lost_when_the_line_drops(page: Any, scripted: Scripted, watch: Watch) -> None:
    watch.expected.append("WebSocket connection")  # the browser says itself when one is turned away
    scripted.answer = lambda _question: "".join(f" n{i}" for i in range(90))
    page.locator("#words").press_sequentially("Count for me please ", delay=20)
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_contain_text("n5")
    scripted.is_down = True
    scripted.drop()
    expect(page.locator("#connection")).to_have_attribute("data-state", "reconnecting")
    page.locator("#words").press_sequentially("More than that ", delay=10)  # said while nobody hears it
    scripted.is_down = False
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    expect(page.locator("#log .answer").first).to_have_text(" ".join(f"n{i}" for i in range(90)))
    assert scripted.num_connections == 2 and len(scripted.sessions) == 1
    page.wait_for_timeout(300)
    written = "".join({command.id: command.text for command in kinds(scripted, wire.Write)}.values())
    assert written == "Count for me please More than that "
    rows = [
        json.loads(message)["t"] for message in scripted.newest.told if json.loads(message)["type"] == "row"
    ]
    assert f"{len(rows)} rows" in page.locator("#lanes-count").inner_text()


def test_a_session_that_is_gone_is_told(page: Any, scripted: Scripted) -> None:
    scripted.sessions.clear()
    scripted.drop()
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost")
    expect(page.locator("#banner")).to_contain_text("no such session")
    page.locator("#words").press_sequentially("Hello again, model ", delay=10)  # begins another
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    expect(page.locator("#ink mark")).to_have_text("Hello again, model ")
    page.wait_for_timeout(200)
    assert "".join(command.text for command in kinds(scripted, wire.Write)) == "Hello again, model "


def test_text_never_becomes_markup(page: Any, scripted: Scripted) -> None:
    evil = "<img src=x onerror=alert(1)><script>window.bad=1</script>"
    scripted.answer = lambda _question: f" {evil} &amp; {evil}"
    ask(page, f"Say {evil}")
    expect(page.locator("#log .answer")).to_have_text(f"{evil} &amp; {evil}")
    page.locator("#as-text").click()
    assert page.locator("#log img, #log script, #transcript img, #inner img").count() == 0
    assert page.evaluate("window.bad") is None


def test_answers_are_read_out_by_the_sentence(page: Any, scripted: Scripted) -> None:
    page.evaluate(
        """() => {
            window.heardParts = [];
            new MutationObserver((changes) => {
                for (const change of changes) for (const node of change.addedNodes) heardParts.push(node.textContent);
            }).observe(document.getElementById("heard"), {childList: true});
        }"""
    )
    scripted.row_s = 0.08
    scripted.answer = lambda _question: " Two are left. That is all! Bye for now"
    ask(page)
    expect(page.locator("#heard")).to_contain_text("Bye")
    parts = [part.strip() for part in page.evaluate("heardParts")]
    assert parts == ["Two are left.", "That is all!", "Bye for now"]


def test_by_keyboard_alone(page: Any, scripted: Scripted) -> None:
    for _ in range(30):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.className") == "skip":
            break
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "words"
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    expect(page.locator("#log .answer")).to_have_text(SAID)
    page.keyboard.press("Tab")  # out of the box, then letters are shortcuts
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    expect(page.locator("#keys")).to_contain_text("interrupt the model")
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    page.keyboard.press("s")
    expect(page.locator("#setup")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    page.keyboard.press("l")
    assert page.evaluate("document.activeElement.id") == "scroll"
    page.keyboard.press("End")
    expect(page.locator("#row-words")).to_contain_text("output")
    page.keyboard.press("c")
    expect(page.locator("#compare-words")).to_contain_text("The same question")
    page.keyboard.press("n")
    expect(page.locator("#lanes-count")).to_have_text("no rows yet")
    expect(page.locator("#connection")).to_have_attribute("data-state", "open")
    assert len(scripted.sessions) == 3


def test_every_control_can_be_reached_and_shows_focus(page: Any) -> None:
    ask(page)
    reached: dict[str, str] = {}
    for _ in range(60):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "() => [document.activeElement.id || document.activeElement.className || document.activeElement.tagName,"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        reached.setdefault(name, outline)
    wanted = {
        "skip", "open-setup", "new-session", "theme", "open-help", "as-text", "follow", "scroll", "play", "scrub",
        "save", "open-file", "export-svg", "export-png", "log", "words", "send", "SUMMARY", "inner", "compare",
    }  # fmt: skip
    assert wanted <= reached.keys()
    assert {name for name in wanted if reached[name] == "none"} == set()


def test_without_inner_streams_for_this_caller(
    open_page: Callable[..., Any], serving: Any, scripted: Scripted
) -> None:
    serving.service.gate._anybody.sees_internal = False
    open_page()
    assert scripted.newest.opened.show == "external"
