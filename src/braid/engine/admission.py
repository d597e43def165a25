"""Who gets a seat: an engine takes on so many sessions, so many more may wait, the rest is turned away at once.

    enter() ── a seat is free ─────────────▶ promised ── take() ──▶ taken
       │                                     ▲     └── give_back() ──┐ └── leave() ──┐
       └── waits, first come, first served ──┴───────────────────────┴──────────────┘

A seat is promised before the session is made, so that making it never has to wait.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

import anyio

from braid.engine.mailbox import Bell
from braid.errors import EngineBusyError, EngineClosedError, InputError

__all__ = ["Admission", "EngineLimits"]


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine takes on.

    Args:
        max_sessions: Sessions that are open at once.
        max_waiting: Sessions that may wait for a seat; more are turned away at once.
        admission_timeout_s: How long a session waits for a seat.
        max_queued: Input tokens of a session that may wait to be read.
        max_events: Events of a session that may wait for a listener; one that has more to say pauses.
        evict_idle_after_s: Seconds without work after which a session gives its cache back; None leaves it until
            somebody needs the room.

    Raises:
        InputError: A number is out of range.
    """

    max_sessions: int = 256
    max_waiting: int = 64
    admission_timeout_s: float = 30.0
    max_queued: int = 65_536
    max_events: int = 4096
    evict_idle_after_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_queued", "max_events"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.max_waiting < 0 or self.admission_timeout_s < 0:
            raise InputError("max_waiting and admission_timeout_s must be 0 or more")


@dataclass(eq=False)
class _Waiter:
    """A session on the waiting list."""

    has_seat: bool = False
    bell: Bell = field(default_factory=Bell)


class Admission:
    """Gives seats out; from any thread and any event loop.

    Args:
        limits: How many there are, and how many may wait for how long.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self._num_taken = 0
        self._num_promised = 0
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Sessions that wait for a seat."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait until a seat is promised.

        Raises:
            EngineBusyError: Too many wait already, or none came free in time.
            EngineClosedError: The engine is shut down.
        """
        timeout_s = self._limits.admission_timeout_s
        await anyio.lowlevel.checkpoint_if_cancelled()
        waiter = self._promise_or_queue()
        if waiter is None:
            return
        try:
            with anyio.move_on_after(timeout_s):
                await waiter.bell.until(lambda: True if waiter.has_seat or self._is_closed else None)
        except BaseException:  # cancelled
            if self._withdraw(waiter):
                self.give_back()
            raise
        if not self._withdraw(waiter):
            self.require_open()
            raise EngineBusyError(
                f"no session ended within {timeout_s:g} s; try again later", retry_after_s=timeout_s
            )

    def _promise_or_queue(self) -> _Waiter | None:
        with self._lock:
            self.require_open()
            if not self._waiting and self._has_room:
                self._num_promised += 1
                return None
            if len(self._waiting) >= self._limits.max_waiting:
                raise EngineBusyError(
                    f"{self._num_taken} sessions are open and {len(self._waiting)} wait; try again later, "
                    "or raise the engine's max_sessions",
                    retry_after_s=1.0,
                )
            waiter = _Waiter()
            self._waiting.append(waiter)
            return waiter

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Take a session off the waiting list; returns whether it has been promised a seat."""
        with self._lock:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            return waiter.has_seat

    def give_back(self) -> None:
        """Give back a seat that was promised."""
        with self._lock:
            self._num_promised = max(0, self._num_promised - 1)
        self._seat_the_first()

    def require_seat(self) -> None:
        """See to it that a session can be seated now.

        Raises:
            EngineBusyError: No seat was promised, and none is free.
            EngineClosedError: The engine is shut down.
        """
        self.require_open()
        if not self._num_promised and not self._has_room:
            raise EngineBusyError(
                f"{self._num_taken} sessions are open; close one, or raise the engine's max_sessions"
            )

    def take(self) -> None:
        """Seat a session, on a seat that was promised where there is one."""
        with self._lock:
            self._num_promised = max(0, self._num_promised - 1)
            self._num_taken += 1

    def leave(self) -> None:
        """A session's seat is free."""
        with self._lock:
            self._num_taken -= 1
            assert self._num_taken >= 0, "more sessions have left than came"
        self._seat_the_first()

    def close(self) -> None:
        """Admit nobody any more; those who wait are turned away."""
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.bell.ring()

    def require_open(self) -> None:
        """Refuse whoever comes after the engine was shut down.

        Raises:
            EngineClosedError
        """
        if self._is_closed:
            raise EngineClosedError("the engine is shut down; make a new one")

    @property
    def _has_room(self) -> bool:
        return self._num_taken + self._num_promised < self._limits.max_sessions

    def _seat_the_first(self) -> None:
        """Promise what is free to those who have waited longest."""
        seated: list[_Waiter] = []
        with self._lock:
            while self._waiting and self._has_room and not self._is_closed:
                waiter = self._waiting.popleft()
                waiter.has_seat = True
                self._num_promised += 1
                seated.append(waiter)
        for waiter in seated:
            waiter.bell.ring()
