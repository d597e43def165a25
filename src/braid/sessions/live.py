"""One live turn: input comes in time while the streams already run, and the figures at the end.

feeds ── write, end ──▶ session ── events ──▶ on_event
                           └── entries ──▶ the file, as they happen
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import anyio

from braid.errors import BraidError, EmptyInputError, SessionClosedError, TranscriptError
from braid.sessions.feeds import Feed
from braid.sessions.generate import ROWS_AFTER_INPUT, Result
from braid.sessions.session import Session
from braid.streams.events import ClosedEvent, ErrorEvent, Event, RowEvent, SummaryEvent
from braid.streams.transcript import Transcript, TranscriptWriter

__all__ = ["LiveResult", "run_live"]


@dataclass(frozen=True)
class LiveResult:
    """A live turn that is over.

    Args:
        result: Streams, transcript and figures.
        summary: The figures as an event.
        ended_by: The end of the turn, a limit on rows, or whoever stopped it.
    """

    result: Result
    summary: SummaryEvent
    ended_by: Literal["turn", "max_rows", "stop"]


async def run_live(
    session: Session,
    feeds: Mapping[str, Feed],
    *,
    max_rows: int | None = None,
    on_event: Callable[[Event], None] | None = None,
    stop: Callable[[], Awaitable[object]] | None = None,
    save: Path | None = None,
) -> LiveResult:
    """Run one turn of a session whose input is still coming.

    Args:
        session: Opened and not yet entered; it is closed at the end.
        feeds: The text of each input stream. Inputs end only after each has begun, so that a turn cannot be over
            before a slow input says its first word.
        max_rows: Rows after which the turn is cut short; None for `ROWS_AFTER_INPUT` more than the input takes.
        on_event: Called with every event as it happens.
        stop: Awaited beside the turn; when it returns, the turn is stopped where it is.
        save: A file that the transcript is written to as it happens; one that is there already is replaced.

    Raises:
        EmptyInputError: A feed ended without any text.
        InputError: A feed is not text.
        PoolFullError, PoolTooSmallError, ContextOverflowError: There was no room; what was said is in the file.
        TranscriptError: The file cannot be written.
    """
    async with session:
        run = _Run(session, feeds, max_rows)
        with ExitStack() as stack:
            keeper = stack.enter_context(_Keeper(save, session.transcript)) if save is not None else None
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.feed)
                if stop is not None:
                    tasks.start_soon(run.stop_when, stop)
                try:
                    await run.listen(keeper, on_event)
                except BaseException as error:  # raised below, outside the group, which would wrap it
                    if isinstance(error, anyio.get_cancelled_exc_class()):
                        raise
                    run.error = error
                tasks.cancel_scope.cancel()
            await session.close()
            if keeper is not None:
                keeper.catch_up()
    error = run.error or session.error
    if error is not None:
        raise error
    return run.result()


class _Run:
    """The state of a live turn."""

    def __init__(self, session: Session, feeds: Mapping[str, Feed], max_rows: int | None) -> None:
        self.clock = _Clock(session.transcript)
        self.error: BaseException | None = None
        self.closed_for = ""
        self._session = session
        self._feeds = feeds
        self._silent = set(feeds)
        """Inputs that have not begun."""
        self._open = set(feeds)
        """Inputs that have not ended."""
        self._all_have_begun = anyio.Event()
        self._has_own_limit = max_rows is not None
        session.max_rows = max_rows
        session.max_turns = 1

    async def listen(self, keeper: _Keeper | None, on_event: Callable[[Event], None] | None) -> None:
        """Hear all that happens, until the session is closed."""
        async for event in self._session:
            self.clock.saw(event)
            if keeper is not None:
                keeper.catch_up()
            if on_event is not None and not isinstance(event, ErrorEvent):  # errors are raised at the end
                on_event(event)
            if isinstance(event, ClosedEvent):
                self.closed_for = event.reason

    async def feed(self) -> None:
        """Feed all inputs side by side."""
        async with anyio.create_task_group() as tasks:
            for stream, feed in self._feeds.items():
                tasks.start_soon(self._feed_one, stream, feed)

    async def _feed_one(self, stream: str, feed: Feed) -> None:
        try:
            await self._pour(stream, feed)
        except SessionClosedError:
            return  # the turn is over, and the rest of the input with it
        except BraidError as error:
            self.error = error
            await self._session.close(error.code)

    async def _pour(self, stream: str, feed: Feed) -> None:
        async with aclosing(feed):
            async for piece in feed:
                if not piece:
                    continue
                await self._session.write(stream, piece)
                self._silent.discard(stream)
                if not self._silent:
                    self._all_have_begun.set()
        if stream in self._silent:
            raise EmptyInputError(f"{stream} is empty; give it some text, or leave it out")
        await self._all_have_begun.wait()
        self._open.discard(stream)
        if not self._open:
            self.clock.commit()
        await self._session.end(stream)  # what was held back until now is queued with it
        if not self._open and not self._has_own_limit:
            self._session.max_rows = self._session.rows_due + ROWS_AFTER_INPUT

    async def stop_when(self, stop: Callable[[], Awaitable[object]]) -> None:
        """Close the session when `stop` returns."""
        await stop()
        await self._session.close("stop")

    def result(self) -> LiveResult:
        """What came of it."""
        result = self._session.result()
        reasons: dict[str, Literal["max_rows", "stop"]] = {"max_rows": "max_rows", "stop": "stop"}
        return LiveResult(result, self.clock.summarise(result), reasons.get(self.closed_for, "turn"))


@dataclass
class _Clock:
    """When the input was complete, and when something was first said."""

    transcript: Transcript
    began: float = field(default_factory=time.perf_counter)
    committed: float | None = None
    first_token: float | None = None
    first_answer: float | None = None
    _answers: frozenset[str] = field(init=False)
    _outputs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        table = self.transcript.lanes
        outputs = {
            lane.label: table.spec(lane.index) for lane in table.lanes if table.spec(lane.index).is_output
        }
        self._outputs = frozenset(outputs)
        self._answers = frozenset(label for label, spec in outputs.items() if spec.visibility == "external")

    def commit(self) -> None:
        self.committed = time.perf_counter()

    def saw(self, event: Event) -> None:
        if not isinstance(event, RowEvent):
            return
        chosen = {label for label, cell in event.cells.items() if label in self._outputs and not cell.forced}
        if chosen and self.first_token is None:
            self.first_token = time.perf_counter()
        if chosen & self._answers and self.first_answer is None:
            self.first_answer = time.perf_counter()

    def summarise(self, result: Result) -> SummaryEvent:
        return SummaryEvent(
            rows=result.metrics.rows,
            tokens=result.metrics.tokens,
            kv_tokens=result.kv_tokens,
            kv_bytes=result.kv_bytes,
            seconds=round(time.perf_counter() - self.began, 4),
            tnft=result.metrics.tnft,
            msl=result.metrics.msl,
            ttft_s=self._since_commit(self.first_token),
            ttfat_s=self._since_commit(self.first_answer),
        )

    def _since_commit(self, moment: float | None) -> float | None:
        """Seconds from the end of input; 0 for what came before it, as for TNFT."""
        if moment is None or self.committed is None:
            return None
        return round(max(0.0, moment - self.committed), 4)


class _Keeper:
    """Keeps a file in step with a transcript that grows elsewhere."""

    def __init__(self, path: Path, transcript: Transcript) -> None:
        self._source = transcript
        self._num_written = 0
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TranscriptError(f"cannot replace {path} ({error.strerror}); choose another name") from error
        head = Transcript(transcript.topology, transcript.model, transcript.copies, transcript.meta)
        self._writer = TranscriptWriter(path, head)

    def catch_up(self) -> None:
        """Write what has happened since."""
        fresh = self._source.entries[self._num_written :]
        for entry in fresh:
            self._writer.append(entry)
        self._num_written += len(fresh)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
