"""Figures of transcripts small enough to count by hand."""

from __future__ import annotations

import pytest

from braid.streams.metrics import measure
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Cell, LifeEvent, Row, Transcript

TOPOLOGY = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "document": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", max_streams=2),
        "output": StreamSpec(direction="output"),
    }
)


def table(**lanes: str) -> Transcript:
    """A transcript drawn as a string a lane: a letter is a token, `!` a forced one, `.` silence; `|` starts a turn."""
    transcript = Transcript(TOPOLOGY, "tiny", {"thought": 2})
    t = 0
    for column in zip(*lanes.values(), strict=True):
        if column[0] == "|":
            transcript.append(LifeEvent(t, "turn"))
            continue
        cells = {
            label.replace("_", "#"): Cell(ord(char), char, forced=char == "!")
            for label, char in zip(lanes, column, strict=True)
            if char != "."
        }
        if cells:
            transcript.append(Row(t, cells))
        t += 1  # rows that nobody was in leave gaps in t, as a squeezed table does
    return transcript


@pytest.mark.parametrize(
    ("user", "thought", "output", "tnft"),
    [
        ("uuu....", ".......", "...ooo.", 0),  # plain: the row after the last input token
        ("uuu....", "...ttt.", "......o", 3),  # thinks first
        ("uuu....", "..ttttt", "....ooo", 1),  # thinks along
        ("uuu....", "ttttt..", "..ooo..", 0),  # answers in the last input row
        ("uuu....", "ttttt..", ".oooo..", 0),  # answers before input has ended
        ("u.u....", "ttttt..", "....ooo", 1),
        ("uuu....", "......t", "....o..", 0),  # the empty row does not exist
        ("uuu....", "...tt..", "...!!oo", 2),  # a forced prefix is no answer
        ("uuu....", "...tt..", ".......", None),
        (".......", "...tt..", "...oo..", None),
    ],
)
def test_tnft(user: str, thought: str, output: str, tnft: int | None) -> None:
    metrics = measure(table(user=user, thought=thought, output=output))
    assert metrics.tnft == tnft
    assert [turn.tnft for turn in metrics.turns] == [tnft]


def test_tnft_waits_for_every_input() -> None:
    assert measure(table(user="uu....", document="dddd..", output=".....o")).tnft == 0
    assert measure(table(user="uu....", document="d.....", thought="..ttt.", output=".....o")).tnft == 3


def test_tokens_and_the_longest_lane() -> None:
    metrics = measure(table(user="uuu...", thought="ttttt.", thought_1=".ttt..", output="....oo"))
    assert metrics.tokens == {"user": 3, "document": 0, "thought": 8, "output": 2}
    assert metrics.msl == 5
    assert metrics.rows == 6


def test_each_turn_has_its_own() -> None:
    metrics = measure(table(user="|uu...|uu...", thought="|..tt.|.....", output="|....o|..o.."))
    assert [turn.tnft for turn in metrics.turns] == [2, 0]
    assert [turn.first_t for turn in metrics.turns] == [0, 5]
    assert metrics.turns[0].last_input_t == 1
    assert metrics.turns[1].first_answer_t == 7
    assert metrics.tnft == 0


def test_a_turn_under_way_has_none_yet() -> None:
    metrics = measure(table(user="|uu...|uu", thought="|..tt.|..", output="|....o|.."))
    assert [turn.tnft for turn in metrics.turns] == [2, None]
    assert metrics.tnft == 2


def test_an_empty_transcript() -> None:
    metrics = measure(Transcript(TOPOLOGY, "tiny"))
    assert (metrics.rows, metrics.msl, metrics.tnft, metrics.turns) == (0, 0, None, ())
    assert set(metrics.tokens.values()) == {0}
