"""A session without a model: it does what a test says, and writes down what was asked of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from braid.engine.editing.editable import Mode
from braid.errors import BraidError, SessionClosedError
from braid.streams.entries import Cell, Row
from braid.streams.events import (
    CellData,
    ClosedEvent,
    DeltaEvent,
    ErrorEvent,
    Event,
    Reuse,
    RowEvent,
    StateEvent,
    TurnEvent,
)
from braid.streams.presets import topology
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript


class ScriptedSession:
    """Reads what is written at once, a row for each piece, as long as `reads_at_once`; the rest is up to the test."""

    def __init__(self, chosen: Topology | None = None) -> None:
        self.transcript = Transcript(chosen or topology("think-aloud"), "scripted")
        self.lanes = self.transcript.lanes
        self.error: BraidError | None = None
        self.is_closed = False
        self.kv_tokens = 0
        self.asked: list[str] = []
        """The verbs, as `write:text`, `end` and so on."""
        self.refusal: BraidError | None = None
        """Raised by the next verb."""
        self.reads_at_once = True
        self.turn = 0
        self.snapshots: dict[str, str] = {}
        self.mode: Mode = "exact"
        """Of the last snapshot."""
        self._events: list[Event] = []
        self._news = anyio.Event()

    # ---- the script

    def happen(self, *events: Event) -> None:
        """Let the client see events."""
        self._events += events
        news, self._news = self._news, anyio.Event()
        news.set()

    def row(self, forced: bool = False, **texts: str) -> None:
        """A row with a token for each stream."""
        t = len(self.transcript.rows)
        cells = {label: Cell(7, text, forced) for label, text in texts.items()}
        self.transcript.append(Row(t, cells))
        self.kv_tokens += len(cells)
        shown = {label: CellData(token=7, text=text, forced=forced) for label, text in texts.items()}
        self.happen(RowEvent(t=t, cells=shown))

    def wake(self, *labels: str) -> None:
        """Outputs begin to speak, or inputs to be read."""
        self.happen(*(StateEvent(t=0, stream=label, state="active") for label in labels))

    def sleep(self, *labels: str) -> None:
        """Streams are done."""
        self.happen(*(StateEvent(t=0, stream=label, state="asleep") for label in labels))

    def delta(self, label: str, text: str) -> None:
        """Text of an output, in a piece of its own."""
        self.happen(DeltaEvent(t=0, stream=label, text=text, tokens=[]))

    def end_turn(self, reuse: Reuse | None = None) -> None:
        """The answers are complete."""
        self.happen(TurnEvent(t=len(self.transcript.rows), turn=self.turn, reuse=reuse))
        self.turn += 1

    def say(self, text: str, label: str = "output") -> None:
        """An output says something, word by word, and falls asleep."""
        self.wake(label)
        for index, word in enumerate(text.split(" ")):
            self.row(**{label: f" {word}" if index else word})
        self.sleep(label)

    def fail(self, error: BraidError) -> None:
        """The session cannot go on."""
        self.error = error
        self.happen(ErrorEvent(code=error.code, message=str(error)))
        self._end(error.code)

    # ---- the session

    async def write(self, stream: str, text: str) -> None:
        await self._do(f"write:{text}")
        if self.reads_at_once:
            self.row(**{stream: text})

    async def end(self, stream: str | None = None) -> None:
        await self._do("end")

    async def snapshot(self, texts: Mapping[str, str], *, mode: Mode = "exact") -> None:
        await self._do(f"snapshot:{''.join(texts.values())}")
        self.mode = mode
        self.snapshots = {**self.snapshots, **texts}

    async def commit(self) -> None:
        await self._do("commit")
        if self.reads_at_once:
            self.row(**self.snapshots)
        self.snapshots = {}

    async def interrupt(self, stream: str | None = None) -> None:
        await self._do("interrupt")

    async def cancel(self, stream: str | None = None) -> None:
        await self._do("cancel")

    async def close(self, reason: str = "closed") -> None:
        if not self.is_closed:
            self._end(reason)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._iterate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _iterate(self) -> AsyncIterator[Event]:
        while True:
            while self._events:
                yield self._events.pop(0)
            if self.is_closed:
                return
            await self._news.wait()

    async def _do(self, verb: str) -> None:
        if self.is_closed:
            raise SessionClosedError("the session is closed")
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        self.asked.append(verb)
        await anyio.lowlevel.checkpoint()

    def _end(self, reason: str) -> None:
        self.is_closed = True
        self.happen(ClosedEvent(t=len(self.transcript.rows), reason=reason))
