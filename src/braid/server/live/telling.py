"""What a client is told of a session's events: only streams that it may see, and the figures of each turn.

A pure function of the events so far, apart from the clock: whoever reads all events again, after a restart, stands
where the one before stood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from braid.client import protocol
from braid.errors import BraidError, CacheError, ContextOverflowError, EngineClosedError
from braid.streams.entries import Row
from braid.streams.events import (
    CellData,
    ClosedEvent,
    DeltaEvent,
    ErrorEvent,
    Event,
    NoticeEvent,
    QuiescentEvent,
    StateEvent,
    TurnEvent,
)
from braid.streams.metrics import measure
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["Teller", "Telling", "visible_lanes"]

_HARMLESS = (CacheError, ContextOverflowError, EngineClosedError)
"""Errors whose messages are made of numbers and names of ours; others may quote what a stream said."""


@dataclass(frozen=True, slots=True)
class Telling:
    """A message that has no id yet."""

    kind: type[Any]
    fields: Mapping[str, Any]


def visible_lanes(topology: Topology, copies: Mapping[str, int], *, shows_all: bool) -> list[str]:
    """Labels of the lanes that a client may see, in the order of rows."""
    lanes = topology.lanes(copies)
    return [
        lane.label
        for lane in lanes.lanes
        if shows_all or topology.streams[lane.stream].visibility == "external"
    ]


class Teller:
    """Makes messages of one session's events.

    Args:
        topology, copies: Of the session.
        shows_all: Whether inner streams are shown, too.
        wants_rows: Whether rows are told.
        num_cached: Says how many tokens the session has taken from other sessions' computations.
        cached_before: The same, when the turn began.
        clock: For the figures of a turn, in seconds.
    """

    def __init__(
        self,
        topology: Topology,
        copies: Mapping[str, int],
        *,
        shows_all: bool,
        wants_rows: bool,
        num_cached: Callable[[], int],
        cached_before: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._topology = topology
        self._copies = dict(copies)
        self._visible = frozenset(visible_lanes(topology, copies, shows_all=shows_all))
        self._shown_streams = [name for name in topology.streams if name in self._visible]
        self._wants_rows = wants_rows
        self._num_cached = num_cached
        self.cached_before = cached_before
        self._clock = clock
        self._rows: list[Row] = []
        self._ended_at: float | None = None
        self._first_at: float | None = None
        self._answer_at: float | None = None

    def input_ended(self) -> None:
        """The client has said that its input is complete."""
        self._ended_at = self._clock()

    def again(self, event: Event | Row) -> None:
        """Take note of an event that was told before."""
        if isinstance(event, Row):
            self._rows.append(event)
        elif isinstance(event, TurnEvent):
            self._begin_turn()

    def tell(self, event: Event | Row) -> Telling | None:
        """What the client is told of the next event; None for nothing."""
        match event:
            case DeltaEvent():
                return self._if_visible(
                    event.stream,
                    protocol.Delta,
                    t=event.t,
                    text=event.text,
                    tokens=event.tokens,
                    odds=event.odds,
                )
            case StateEvent():
                return self._if_visible(
                    event.stream, protocol.State, t=event.t, state=event.state, reason=event.reason
                )
            case Row():
                return self._tell_row(event)
            case QuiescentEvent():
                return Telling(protocol.Quiescent, {"t": event.t})
            case NoticeEvent():
                return self._if_visible(
                    event.stream, protocol.Notice, t=event.t, code=event.code, message=event.message
                )
            case TurnEvent():
                return self._tell_turn(event)
            case ErrorEvent():
                return Telling(protocol.Problem, {"code": event.code, "message": _shown_message(event)})
            case ClosedEvent():
                return Telling(protocol.Closed, {"t": event.t, "reason": event.reason})
            case _:
                return None

    def _if_visible(self, lane: str | None, kind: type[Any], **fields: Any) -> Telling | None:
        if lane is not None and lane not in self._visible:
            return None
        return Telling(kind, {"stream": lane, **fields})

    def _tell_row(self, row: Row) -> Telling | None:
        self._rows.append(row)
        self._note_time(row)
        if not self._wants_rows:
            return None
        cells = {
            label: CellData(token=cell.token, text=cell.text, forced=cell.forced)
            for label, cell in row.cells.items()
            if label in self._visible
        }
        return Telling(protocol.RowMade, {"t": row.t, "cells": cells}) if cells else None

    def _note_time(self, row: Row) -> None:
        if self._answer_at is not None:
            return
        for label, cell in row.cells.items():
            spec = self._topology.streams[label.partition("#")[0]]
            if spec.is_input or cell.forced:
                continue
            now = self._clock()
            self._first_at = now if self._first_at is None else self._first_at
            if spec.visibility == "external":
                self._answer_at = now

    def _tell_turn(self, event: TurnEvent) -> Telling:
        cached = self._num_cached()
        figures = measure(Transcript(self._topology, "", self._copies, entries=self._rows))
        fields: dict[str, Any] = {
            "t": event.t,
            "turn": event.turn,
            "rows": figures.rows,
            "tokens": {name: figures.tokens[name] for name in self._shown_streams},
            "cached_tokens": max(0, cached - self.cached_before),
            "tnft": figures.tnft,
            "ttft_s": self._since_end(self._first_at),
            "ttfat_s": self._since_end(self._answer_at),
            "reuse": event.reuse,
        }
        self.cached_before = cached
        self._begin_turn()
        return Telling(protocol.Turn, fields)

    def _since_end(self, moment: float | None) -> float | None:
        if self._ended_at is None or moment is None:
            return None
        return max(0.0, moment - self._ended_at)

    def _begin_turn(self) -> None:
        self._rows = []
        self._ended_at = self._first_at = self._answer_at = None


def _shown_message(event: ErrorEvent) -> str:
    if isinstance(BraidError.of(event.code, ""), _HARMLESS):
        return event.message
    return f"the session cannot go on ({event.code}); the server's log says more"
