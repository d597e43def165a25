"""The picture of a transcript: well-formed, complete, and accessible."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from braid.streams.timeline import MARKS, timeline_svg
from braid.streams.transcript import Cell, LifeEvent, Row, Transcript
from tests.streams.test_transcript import TOPOLOGY, transcripts

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def words(root: ElementTree.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{SVG}text")]


def small() -> Transcript:
    transcript = Transcript(TOPOLOGY, "tiny")
    transcript.append(LifeEvent(0, "turn"))
    transcript.append(LifeEvent(0, "open", "user"))
    transcript.append(Row(0, {"user": Cell(1, "<b>&\"'")}))
    transcript.append(Row(1, {"user": Cell(2, "\x1b"), "output": Cell(3, " you", forced=True)}))
    transcript.append(LifeEvent(2, "close", reason="a < b"))
    return transcript


def test_text_is_escaped_and_complete() -> None:
    root = parsed(timeline_svg(small(), title="<Title>"))
    assert {"<b>&\"'", "␛", "·you", "user", "thought", "output", "<Title>", "0", "1"} <= set(words(root))


def test_it_says_what_it_shows() -> None:
    root = parsed(timeline_svg(small()))
    ids = (root.get("aria-labelledby") or "").split()
    found = {node.get("id"): node.text for node in root if node.get("id")}
    assert root.get("role") == "img"
    assert [found[name] for name in ids] == [
        "tiny: streams over time",
        "2 of 2 rows. Tokens by stream: user 2, thought 0, output 1.",
    ]
    titles = {node.text for node in root.iter(f"{SVG}title")}
    assert {"t=1, token 3, forced", "user open before row 0", "close before row 2 (a < b)"} <= titles


def test_life_is_marked_and_explained() -> None:
    shown = words(parsed(timeline_svg(small())))
    assert MARKS["close"] in shown
    assert f"{MARKS['open']} open, {MARKS['close']} close, {MARKS['turn']} turn" in shown
    assert "sleep" not in shown[-1]


def test_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in timeline_svg(small())


def test_only_the_rows_asked_for() -> None:
    transcript = Transcript(TOPOLOGY, "tiny")
    for t in range(30):
        transcript.append(Row(t, {"user": Cell(t, f"word{t}")}))
    shown = words(parsed(timeline_svg(transcript, start=10, stop=13)))
    assert [word for word in shown if word.startswith("word")] == ["word10", "word11", "word12"]


@given(transcript=transcripts(), width=st.integers(0, 1500))
def test_any_transcript_is_well_formed_and_inside_the_picture(transcript: Transcript, width: int) -> None:
    root = parsed(timeline_svg(transcript, width=width))
    tokens = [node for node in root.iter(f"{SVG}rect") if "token" in (node.get("class") or "")]
    assert len(tokens) == sum(len(row.cells) for row in transcript.rows)
    right = float(root.get("width") or 0)
    bottom = float(root.get("height") or 0)
    for node in tokens:
        assert float(node.get("y") or 0) + float(node.get("height") or 0) < bottom
        assert float(node.get("x") or 0) + float(node.get("width") or 0) <= max(right, 320)
    marks = [node for node in root.iter(f"{SVG}text") if node.get("class") == "mark"]
    assert sum(len(node.text or "") for node in marks) == len(transcript.events)


def test_tokens_do_not_overlap() -> None:
    transcript = Transcript(TOPOLOGY, "tiny")
    for t in range(60):
        transcript.append(Row(t, {"user": Cell(t, "x" * (t % 7)), "output": Cell(t, "y" * (t % 11))}))
    root = parsed(timeline_svg(transcript, width=600))
    places: dict[str, list[tuple[float, float]]] = {}
    for node in root.iter(f"{SVG}rect"):
        if "token" in (node.get("class") or ""):
            x = float(node.get("x") or 0)
            places.setdefault(node.get("y") or "", []).append((x, x + float(node.get("width") or 0)))
    assert len(places) > 4  # several systems of two lanes
    for spans in places.values():
        assert all(left[1] < right[0] for left, right in pairwise(spans))
