"""Events: one union, read back as written, unknown things refused."""

from __future__ import annotations

import json

import pytest

from braid.errors import InputError
from braid.streams import events
from braid.streams.events import (
    CellData,
    ClosedEvent,
    DeltaBuffer,
    DeltaEvent,
    ErrorEvent,
    Event,
    NoticeEvent,
    QuiescentEvent,
    RowEvent,
    StateEvent,
    SummaryEvent,
    TurnEvent,
    event_schema,
    parse_event,
)
from braid.streams.topology import StreamSpec

SUMMARY = SummaryEvent(
    rows=3, tokens={"user": 2, "output": 1}, kv_tokens=3, kv_bytes=96, seconds=0.5, tnft=0, msl=2
)
SAMPLES: list[Event] = [
    RowEvent(t=0, cells={"user": CellData(token=5, text="é\n", forced=True)}),
    DeltaEvent(t=1, stream="output", text="Hi", tokens=[1, 2]),
    StateEvent(t=1, stream="output", state="active"),
    QuiescentEvent(t=2),
    NoticeEvent(t=2, stream="user", code="flush.deadline", message="held text was tokenised early"),
    NoticeEvent(t=2, code="x", message="y"),
    TurnEvent(t=3, turn=1),
    ClosedEvent(t=4, reason="client"),
    ErrorEvent(code="cache.full", message="no page is free"),
    SUMMARY,
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.event)
def test_events_are_read_back_as_written(event: Event) -> None:
    line = event.to_json()
    assert "\n" not in line
    assert parse_event(line) == event
    assert parse_event(line.encode()) == event
    assert parse_event(event.model_dump()) == event


def test_every_kind_is_in_the_samples_and_the_schema() -> None:
    kinds = {event.event for event in SAMPLES}
    classes = {name for name in events.__all__ if name.endswith("Event") and name != "Event"}
    schema = event_schema()
    assert len(kinds) == len(classes)
    assert set(schema["discriminator"]["mapping"]) == kinds
    json.dumps(schema)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"event": "nap", "t": 0}, "'nap'"),
        ({"t": 0}, "discriminator"),
        ({"event": "turn", "t": 0, "turn": 0, "x": 1}, "turn.x"),
        ({"event": "turn", "t": -1, "turn": 0}, "turn.t"),
        ({"event": "row", "t": 0, "cells": {}}, "row.cells"),
        ({"event": "state", "t": 0, "stream": "a", "state": "tired"}, "state.state"),
        ("{", "not JSON"),
        ("[]", "no event"),
    ],
)
def test_what_is_no_event_is_refused(data: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        parse_event(data)  # type: ignore[arg-type]


def test_deltas_gather_chunks() -> None:
    buffer = DeltaBuffer("output", StreamSpec(direction="output", chunk_size=2))
    assert buffer.push(3, 10, "a") is None
    assert buffer.push(4, 11, "b") == DeltaEvent(t=4, stream="output", text="ab", tokens=[10, 11])
    assert buffer.push(5, 12, "") is None
    assert buffer.flush("\ufffd") == DeltaEvent(t=5, stream="output", text="\ufffd", tokens=[12])
    assert buffer.flush() is None


def test_streams_that_do_not_stream_come_at_once() -> None:
    buffer = DeltaBuffer("output", StreamSpec(direction="output", streaming=False))
    assert [buffer.push(t, t, str(t)) for t in range(5)] == [None] * 5
    assert buffer.flush() == DeltaEvent(t=4, stream="output", text="01234", tokens=[0, 1, 2, 3, 4])
