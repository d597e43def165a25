"""One thread that writes, and commits for all who wait at once.

    do(job) ──┐
    do(job) ──┼──▶ queue ──▶ thread: all that waits, one transaction ── commit ──▶ whoever waits goes on
    do(job) ──┘                       └── it failed: each job once more, in a transaction of its own

What comes while a commit is under way waits for the next one, so a hundred sessions cost hardly more than one.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, Executable

from braid.errors import ServerError

__all__ = ["Job", "Rows", "Writer"]

Value = TypeVar("Value")

Job = Callable[[Connection], Any]
"""Reads or writes within a transaction that it does not end; it may be run twice."""


@dataclass(frozen=True)
class Rows:
    """A job that only writes rows: those of several jobs that stand together are written together.

    Args:
        written: Statements, each the same object every time, and their parameters.
    """

    written: Sequence[tuple[Executable, Sequence[Mapping[str, Any]]]]


MOST = 512
"""Jobs of one transaction."""


@dataclass(eq=False)
class _Ticket(Generic[Value]):
    """A job, and who waits for it."""

    job: Callable[[Connection], Value] | Rows
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Value]
    value: Any = None
    error: Exception | None = None

    def settle(self) -> None:
        """Wake whoever waits; called on their event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


class Writer:
    """Runs jobs one after another.

    Args:
        engine: The database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue: queue.SimpleQueue[_Ticket[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self.num_commits = 0
        """For tests and figures."""
        self._thread = threading.Thread(target=self._run, name="braid-store", daemon=True)
        self._thread.start()

    async def do(self, job: Callable[[Connection], Value] | Rows) -> Value:
        """Run a job, and return once what it wrote is committed; where it is cancelled, it may be run or not.

        Raises:
            ServerError: The writer is closed.
        """
        return await self.submit(job)

    def submit(self, job: Callable[[Connection], Value] | Rows) -> asyncio.Future[Value]:
        """Have a job run; the future is done once what it wrote is committed.

        Raises:
            ServerError: The writer is closed.
        """
        loop = asyncio.get_running_loop()
        ticket = _Ticket(job, loop, loop.create_future())
        with self._lock:
            if self._is_closed:
                raise ServerError("the store is closed")
            self._queue.put(ticket)
        return ticket.future

    def close(self) -> None:
        """Finish what waits, and end the thread; harmless when repeated."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        has_more = True
        while has_more:
            group: list[_Ticket[Any]] = []
            first = self._queue.get()
            has_more = first is not None
            if first is not None:
                group.append(first)
            while has_more and len(group) < MOST and not self._queue.empty():
                ticket = self._queue.get()
                if ticket is None:
                    has_more = False
                else:
                    group.append(ticket)
            self._commit(group)

    def _commit(self, group: Sequence[_Ticket[Any]]) -> None:
        if not group:
            return
        try:
            self._transact(group)
        except Exception as error:  # noqa: BLE001 (told to whoever waits)
            if len(group) == 1:
                group[0].error = error
            else:  # one of them is at fault, and the others are not to suffer for it
                for ticket in group:
                    self._commit_alone(ticket)
        for loop in {ticket.loop for ticket in group}:
            _wake(loop, [ticket for ticket in group if ticket.loop is loop])

    def _commit_alone(self, ticket: _Ticket[Any]) -> None:
        try:
            self._transact([ticket])
        except Exception as error:  # noqa: BLE001 (told to whoever waits)
            ticket.error = error

    def _transact(self, group: Sequence[_Ticket[Any]]) -> None:
        gathered: dict[Executable, list[Mapping[str, Any]]] = {}
        with self._engine.begin() as connection:
            for ticket in group:
                if isinstance(ticket.job, Rows):
                    for statement, rows in ticket.job.written:
                        gathered.setdefault(statement, []).extend(rows)
                    continue
                _execute(connection, gathered)
                ticket.value = ticket.job(connection)
            _execute(connection, gathered)
        self.num_commits += 1


def _execute(connection: Connection, gathered: dict[Executable, list[Mapping[str, Any]]]) -> None:
    for statement, rows in gathered.items():
        connection.execute(statement, rows)
    gathered.clear()


def _wake(loop: asyncio.AbstractEventLoop, tickets: Sequence[_Ticket[Any]]) -> None:
    def settle() -> None:
        for ticket in tickets:
            ticket.settle()

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended, and nobody waits any more
        return
