"""The grid for the terminal: it fits, it shows everything, and nothing in it moves the cursor."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from braid.streams.render import render_grid
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Cell, LifeEvent, Row, Transcript
from braid.streams.visible import cell_text, fit
from tests.streams.test_transcript import TOPOLOGY, transcripts


def small() -> Transcript:
    transcript = Transcript(TOPOLOGY, "tiny")
    transcript.append(LifeEvent(0, "open", "user"))
    transcript.append(Row(0, {"user": Cell(1, "How")}))
    transcript.append(Row(1, {"user": Cell(2, " many"), "thought": Cell(3, "你好")}))
    transcript.append(LifeEvent(4, "end", "user", tokens=(2,), reason="client left\x1b[2J"))
    transcript.append(Row(4, {"thought": Cell(4, "12"), "output": Cell(257, "")}))
    transcript.append(LifeEvent(5, "close"))
    return transcript


GRID = """\
t       0   1     4
user    How ·many
thought     你好  12
output            #257
  before 0: user open
  before 4: user end, 1 tokens (client left␛[2J)
  before 5: close"""


def test_a_small_grid() -> None:
    assert render_grid(small()) == GRID


def test_long_transcripts_wrap() -> None:
    transcript = Transcript(TOPOLOGY, "tiny")
    for t in range(40):
        transcript.append(Row(t, {"user": Cell(t, f"word{t}")}))
    grid = render_grid(transcript, 50)
    blocks = grid.split("\n\n")
    assert len(blocks) == 7
    shown = " ".join(line for line in grid.splitlines() if line.startswith("user"))
    assert [word for word in shown.split() if word != "user"] == [f"word{t}" for t in range(40)]


@given(transcript=transcripts(), width=st.integers(0, 120), color=st.booleans())
def test_every_line_fits_and_is_safe(transcript: Transcript, width: int, color: bool) -> None:
    grid = render_grid(transcript, width, color=color)
    lines = grid.splitlines()
    if not color:
        assert all(cell_len(line) <= max(width, 32) for line in lines)
        assert {unicodedata.category(char) for line in lines for char in line} <= _shown_categories()
        assert all(line == line.rstrip() for line in lines)
    assert sum("  before " in line for line in lines) == len(transcript.events)


def _shown_categories() -> set[str]:
    every = {unicodedata.category(chr(code)) for code in range(0x3000)}
    return {name for name in every if name[0] not in "CZ"} | {"Zs"}


def test_columns_line_up() -> None:
    lines = render_grid(small()).splitlines()[:4]
    at = [
        cell_len(line[: line.index(word)])
        for line, word in zip(lines, ("4", "", "12", "#257"), strict=True)
        if word
    ]
    assert len(set(at)) == 1


def test_colours_only_when_asked() -> None:
    assert "\x1b" not in render_grid(small())
    colored = render_grid(small(), color=True)
    assert "\x1b[36mHow" in colored
    plain = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", colored).splitlines())
    assert plain == GRID


def test_an_empty_transcript_with_events_only() -> None:
    transcript = Transcript(TOPOLOGY, "tiny")
    assert render_grid(transcript) == ""
    transcript.append(LifeEvent(0, "open", "user"))
    assert render_grid(transcript) == "  before 0: user open"


def test_long_labels_leave_room() -> None:
    topology = Topology(
        streams={"a" * 200: StreamSpec(direction="input"), "output": StreamSpec(direction="output")}
    )
    transcript = Transcript(topology, "tiny", entries=[Row(0, {"output": Cell(0, "x" * 99)})])
    lines = render_grid(transcript, 40).splitlines()
    assert max(map(cell_len, lines)) <= 40
    assert lines[1].startswith("aaaa")
    assert "…" in lines[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b\n", "a·b⏎"),
        ("\x1b[31m", "␛[31m"),
        ("\u202eabc", "\\u202eabc"),
        ("\u200b", "\\u200b"),
        ("\x85", "\\u0085"),
        ("\u2028", "\\u2028"),
        ("\u0301", "◌\u0301"),
        ("\ud800", "\\ud800"),
        ("", "#7"),
    ],
)
def test_cells_show_what_is_in_them(text: str, shown: str) -> None:
    assert cell_text(text, 7) == shown


def test_cutting_counts_columns() -> None:
    assert fit("你好世界", 8) == "你好世界"
    assert fit("你好世界", 7) == "你好世…"
    assert fit("你好世界", 6) == "你好…"
    assert fit("abc", 1) == "…"
