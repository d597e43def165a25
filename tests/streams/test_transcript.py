"""Transcripts: what may follow what, and that files give back what was put into them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.errors import (
    InputError,
    TranscriptCorruptError,
    TranscriptError,
    TranscriptVersionError,
    UnknownStreamError,
)
from braid.streams.entries import LIFE_KINDS
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Cell, Entry, LifeEvent, Row, Transcript, TranscriptWriter

TOPOLOGY = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", max_streams=3),
        "output": StreamSpec(direction="output"),
    }
)
LABELS = ["user", "thought", "thought#1", "output"]

texts = st.text(st.characters(exclude_categories=[]), max_size=6)  # lone surrogates too
cells = st.builds(Cell, st.integers(0, 300_000), texts, st.booleans())


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    meta = draw(
        st.dictionaries(texts, st.none() | st.integers() | texts | st.lists(st.booleans()), max_size=2)
    )
    transcript = Transcript(TOPOLOGY, draw(texts), {"thought": 2}, meta)
    t = 0
    for is_row in draw(st.lists(st.booleans(), max_size=12)):
        t += draw(st.integers(0, 3))
        if is_row:
            chosen = draw(st.dictionaries(st.sampled_from(LABELS), cells, min_size=1))
            transcript.append(Row(t, chosen))
            t += 1
        else:
            kind = draw(st.sampled_from(sorted(LIFE_KINDS - {"close"})))
            lane = draw(st.none() | st.sampled_from([*LABELS, *(["closer:output"] * (kind == "prefill"))]))
            tokens = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
            transcript.append(LifeEvent(t, kind, lane, tokens, draw(texts), draw(texts)))
    return transcript


def row(t: int, **words: str) -> Row:
    return Row(t, {label.replace("_", "#"): Cell(7, word) for label, word in words.items()})


def small() -> Transcript:
    entries: list[Entry] = [
        LifeEvent(0, "open", "user"),
        row(0, user="How"),
        row(1, user=" many", thought="c"),
        LifeEvent(4, "end", "user", tokens=(2,), reason="client"),
        row(4, thought="1", output="Two"),
    ]
    return Transcript(TOPOLOGY, "tiny", meta={"seed": 1}, entries=entries)


@given(transcript=transcripts())
def test_files_give_back_what_was_saved(
    transcript: Transcript, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("t") / "session.jsonl"
    transcript.save(path)
    loaded = Transcript.load(path)
    assert loaded == transcript
    assert loaded.entries == transcript.entries
    assert loaded.damage is None


@given(transcript=transcripts(), data=st.data())
def test_a_torn_file_gives_back_all_whole_lines(
    transcript: Transcript, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = list(transcript.lines_of_file())
    whole = b"".join(lines)
    stop = data.draw(st.integers(len(lines[0]), len(whole)))
    path = tmp_path_factory.mktemp("t") / "session.jsonl"
    path.write_bytes(whole[:stop])
    kept = whole[:stop].count(b"\n") - 1
    is_torn = whole[stop - 1 : stop] != b"\n"
    if is_torn and whole[stop : stop + 1] == b"\n":  # all but the line end is there
        kept, is_torn = kept + 1, False
    loaded = Transcript.load(path)
    assert loaded.entries == transcript.entries[:kept]
    assert (loaded.damage is not None) == is_torn
    with TranscriptWriter.resume(path) as writer:
        for entry in transcript.entries[kept:]:
            writer.append(entry)
    assert path.read_bytes() == whole


def test_texts_and_tokens_by_lane() -> None:
    transcript = small()
    assert transcript.text("user") == "How many"
    assert transcript.text("thought") == "c1"
    assert transcript.tokens("output") == [(4, 7)]
    assert [type(entry).__name__ for entry in transcript.entries] == [
        "LifeEvent",
        "Row",
        "Row",
        "LifeEvent",
        "Row",
    ]
    assert [r.t for r in transcript.rows] == [0, 1, 4]
    assert [event.kind for event in transcript.events] == ["open", "end"]
    with pytest.raises(UnknownStreamError, match="did you mean 'thought'"):
        transcript.text("thougt")
    with pytest.raises(UnknownStreamError):
        transcript.tokens("thought#1")  # there is one copy only


def test_turns_are_split_at_their_events() -> None:
    transcript = Transcript(TOPOLOGY, "tiny")
    for entry in (
        LifeEvent(0, "turn"),
        row(0, user="a"),
        row(1, output="b"),
        LifeEvent(2, "turn"),
        row(2, user="c"),
    ):
        transcript.append(entry)
    assert [[r.t for r in rows] for rows in transcript.turns()] == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (Row(5, {}), "no cells"),
        (row(4, user="x"), "after row 4"),
        (row(3, user="x"), "after row 4"),
        (LifeEvent(4, "sleep", "output"), "row 4 is there already"),
        (LifeEvent(-1, "sleep", "output"), "row 4 is there already"),
    ],
)
def test_what_cannot_follow_is_refused_and_changes_nothing(entry: Entry, problem: str) -> None:
    transcript = small()
    with pytest.raises(TranscriptError, match=problem):
        transcript.append(entry)
    assert transcript == small()


def test_rows_do_not_overtake_events() -> None:
    transcript = small()
    transcript.append(LifeEvent(9, "wake", "output"))
    with pytest.raises(TranscriptError, match="takes effect at 9"):
        transcript.append(row(8, user="x"))


@pytest.mark.parametrize("entry", [row(5, usr="x"), row(5, thought_1="x"), LifeEvent(5, "open", "preamble")])
def test_unknown_lanes_are_refused(entry: Entry) -> None:
    with pytest.raises(UnknownStreamError):
        small().append(entry)


def test_closed_is_for_good() -> None:
    transcript = small()
    transcript.append(LifeEvent(5, "close", "user"))
    transcript.append(row(5, output="x"))
    with pytest.raises(TranscriptError, match="'user', closed at 5"):
        transcript.append(row(6, user="x"))
    with pytest.raises(TranscriptError, match="for good"):
        transcript.append(LifeEvent(6, "open", "user"))
    transcript.append(LifeEvent(6, "close"))
    with pytest.raises(TranscriptError, match="'output', closed at 6"):
        transcript.append(row(6, output="x"))


def test_copies_are_checked() -> None:
    with pytest.raises(InputError, match="max_streams"):
        Transcript(TOPOLOGY, "tiny", {"thought": 4})
    assert [lane.label for lane in Transcript(TOPOLOGY, "tiny", {"thought": 2}).lanes.lanes] == LABELS


@pytest.mark.parametrize("meta", [{"x": object()}, {"x": float("nan")}])
def test_meta_is_plain_json(meta: dict[str, Any]) -> None:
    with pytest.raises(TranscriptError, match="plain JSON"):
        Transcript(TOPOLOGY, "tiny", meta=meta)
    assert Transcript(TOPOLOGY, "tiny", meta={"a": (1,)}).meta == {"a": [1]}


def test_the_file_is_one_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    small().save(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["format"] == "braid-transcript"
    assert list(lines[0]["topology"]["streams"]) == ["user", "thought", "output"]
    assert lines[3] == {"t": 1, "cells": {"user": [7, " many"], "thought": [7, "c"]}}
    assert lines[4] == {"event": "end", "t": 4, "lane": "user", "tokens": [2], "reason": "client"}


def test_saving_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    small().save(path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TranscriptError, match="No space left"):
        Transcript(TOPOLOGY, "other").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _damage(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("number", "line", "problem"),
    [
        (3, '{"t": 0, "cel', "line 3: this is not JSON"),
        (3, "", "line 3: this is not JSON"),
        (3, "[]", "line 3: an entry is a JSON object"),
        (3, '{"t": true, "cells": {"user": [1, "a"]}}', "line 3: t is a row number"),
        (3, '{"t": 0, "cells": {"user": [1, "a", 2]}}', "line 3: the cell of 'user'"),
        (3, '{"t": 0, "cells": {"user": [-1, "a"]}}', "line 3: the cell of 'user'"),
        (3, '{"t": 0, "cells": {}}', "line 3: row 0 has no cells"),
        (3, '{"t": 0, "cells": {"usr": [1, "a"]}}', "line 3: there is no stream 'usr'"),
        (3, '{"t": 0, "cells": {"user": [1, "a"]}, "x": 1}', "line 3: unknown keys: x"),
        (4, '{"t": 0, "cells": {"user": [1, "a"]}}', "line 4: row 0 comes after row 0"),
        (5, '{"event": "nap", "t": 4}', "line 5: unknown event 'nap'"),
        (5, '{"event": "end", "t": 4, "tokens": ["a"]}', "line 5: tokens is a list of ids"),
        (5, '{"event": "end", "t": 4, "lane": 3}', "line 5: lane, text and reason are text"),
        (1, "{}", "is no transcript"),
        (1, "hello", "line 1: this is not JSON"),
        (1, '{"format": "braid-transcript", "version": 1}', "a header has the keys"),
    ],
)
def test_damage_before_the_end_is_an_error(tmp_path: Path, number: int, line: str, problem: str) -> None:
    path = tmp_path / "t.jsonl"
    small().save(path)
    _damage(path, number, line)
    with pytest.raises(TranscriptCorruptError, match=problem):
        Transcript.load(path)


def test_headers_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    small().save(path)
    header = json.loads(path.read_text().splitlines()[0])
    for change, problem in (
        ({"topology": {"streams": {}}}, "line 1"),
        ({"copies": {"thought": 9}}, "line 1: 9 copies"),
        ({"copies": {"thought": True}}, "whole numbers"),
        ({"meta": []}, "meta is no dict"),
    ):
        _damage(path, 1, json.dumps(header | change))
        with pytest.raises(TranscriptCorruptError, match=problem):
            Transcript.load(path)
    _damage(path, 1, json.dumps(header | {"version": 2}))
    with pytest.raises(TranscriptVersionError, match="version 2"):
        Transcript.load(path)


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot read"):
        Transcript.load(tmp_path / "none.jsonl")
    with pytest.raises(TranscriptError, match="cannot write"):
        small().save(tmp_path / "none" / "t.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TranscriptCorruptError, match="is empty"):
        Transcript.load(tmp_path / "empty.jsonl")


def test_the_writer_has_each_entry_on_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    transcript = Transcript(TOPOLOGY, "tiny", meta={"seed": 1})
    with TranscriptWriter(path, transcript, sync=True) as writer:
        for number, entry in enumerate(small().entries):
            writer.append(entry)
            assert len(Transcript.load(path).entries) == number + 1
        with pytest.raises(TranscriptError):
            writer.append(row(0, user="x"))
    assert Transcript.load(path) == transcript == small()
    with pytest.raises(TranscriptError, match="is closed"):
        writer.append(row(5, user="x"))
    assert transcript == small()
    with pytest.raises(TranscriptError, match="is there already"):
        TranscriptWriter(path, transcript)


def test_the_writer_goes_on_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    small().save(path)
    path.write_bytes(path.read_bytes() + b'{"t": 5, "cells": {"us')
    assert "line 7 is torn" in (Transcript.load(path).damage or "")
    with TranscriptWriter.resume(path) as writer:
        writer.append(row(5, output="!"))
    loaded = Transcript.load(path)
    assert loaded.text("output") == "Two!"
    assert loaded.damage is None
