"""A machine for replays: it computes as fast as it really does, and skips the time in which it has nothing to do.

    trace       e   e e     e                    c                     events and the commit, in seconds of the trace
    machine     ███ █████   ███████······        ███████████           forwards, as long as they really took
    skipped                              ········                      nothing to do: the clock jumps to what comes next

The engine is stepped synchronously. Its clock goes on by the measured time of each step and verb, and jumps over what
is idle, so that a trace costs what was computed for it, however long somebody thought. What comes during a forward
takes effect after it, but for a commit, which the engine hears at once: whoever replays is asked, at the end of a
forward, what has come meanwhile. One thing is not shown: in the real engine any verb that comes during a forward makes
it forget what that forward has computed ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from braid.engine.backend import PREAMBLE, Item, ItemResult
from braid.engine.core import EngineCore
from braid.engine.editing.editable import DRIFT_BOUND
from braid.engine.local import LocalBackend
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import News
from braid.errors import EngineError
from braid.model.model import Model

__all__ = ["CountingBackend", "Forward", "Machine", "deviation_of"]


class Forward(NamedTuple):
    """One forward.

    Args:
        began, ended: Seconds, on the clock of whoever holds it.
        prefill: Tokens of inputs, and of template text behind them, that it computed.
        decode: Tokens of outputs, those that were only guessed included.
        preamble: What stands before the input, the turns that are over included. It is computed when a turn has ended,
            before anything is typed, and once in all ways, so that no turn is charged with it.
    """

    began: float
    ended: float
    prefill: int
    decode: int
    preamble: int = 0


class CountingBackend(LocalBackend):
    """Notes what each forward computed; takes what `LocalBackend` takes."""

    def __init__(self, model: Model, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.forwards: list[Forward] = []
        """By the clock of `time.perf_counter`."""
        self.meanwhile: Callable[[float], None] | None = None
        """Is called at the end of a forward, before its answers are told, with the time on that clock."""

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        """One forward for all items."""
        prefill = decode = preamble = 0
        for item in items:
            table = self.sessions[item.session].table
            outputs = {lane.label for lane in table.lanes if table.spec(lane.index).is_output}
            for entry in item.entries:
                if entry.span in outputs:
                    decode += len(entry.token_ids)
                elif entry.span == PREAMBLE:
                    preamble += len(entry.token_ids)
                else:
                    prefill += len(entry.token_ids)
        began = time.perf_counter()
        results = super().step(items)
        ended = time.perf_counter()
        self.forwards.append(Forward(began, ended, prefill, decode, preamble))
        if self.meanwhile is not None:
            self.meanwhile(ended)
        return results

    def held(self, session: int, span: str) -> list[Tensor]:
        """Keys and values that the cache holds of a span, layer by layer, `[K, L, D]` each; copies."""
        pages = self.sessions[session].named[span].pages
        slots = torch.from_numpy(pages.slots(0, pages.length)).to(self.cache.keys_KSD[0].device)
        layers = zip(self.cache.keys_KSD, self.cache.values_KSD, strict=True)
        return [tensor[:, slots] for layer in layers for tensor in layer]


@dataclass
class _Clock:
    """Where a step began: on the machine's clock, and on the real one."""

    base: float
    began: float

    def at(self, real: float) -> float:
        return self.base + real - self.began


class Machine:
    """One engine with one session at a time, on a clock that runs only while something is done.

    Args:
        model: The network.
        kv_tokens: Tokens that its cache must hold.
        policy: Of its scheduler.
        drift_bound: Of its sessions, the most that what is taken over behind an edit may have drifted.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_tokens: int | None = None,
        policy: SchedulerPolicy | None = None,
        drift_bound: float = DRIFT_BOUND,
    ) -> None:
        self._drift_bound = drift_bound
        self.backend = CountingBackend(model, kv_tokens=kv_tokens)
        self.core = EngineCore(self.backend, policy=policy, check_share=0.0)
        self.now = 0.0
        self.forwards: list[Forward] = []
        """Since `reset`, by this machine's clock."""
        self.news: list[tuple[float, News]] = []
        """Since `reset`: what was told, and when."""

    def reset(self) -> None:
        """Begin at second 0; prefixes that are cached stay."""
        self.now = 0.0
        self.forwards, self.news = [], []
        self.backend.forwards.clear()

    def do(self, conversation: Conversation, verb: str, *arguments: Any) -> None:
        """Apply a verb; it takes the time that it takes."""
        began = time.perf_counter()
        self.core.do(conversation, verb, *arguments, now=self.now)
        self.now += time.perf_counter() - began
        self._hear([conversation], self.now)

    def open(self, topology: Any, **settings: Any) -> Conversation:
        """Open a session, see `EngineCore.open`; it takes the time that it takes."""
        began = time.perf_counter()
        conversation = self.core.open(topology, now=self.now, drift_bound=self._drift_bound, **settings)
        self.now += time.perf_counter() - began
        return conversation

    def step(self, conversation: Conversation, meanwhile: Callable[[float], None] | None = None) -> bool:
        """Make the next rows of a session.

        Args:
            conversation: The session.
            meanwhile: Is called at the end of the forward, before its answers are told, with this machine's time; what
                it does may turn back the clock.

        Returns:
            Whether there was a forward.

        Raises:
            BraidError: What ended the session.
        """
        clock = _Clock(self.now, time.perf_counter())

        def hear(conversations: Sequence[Conversation]) -> None:
            self._hear(conversations, clock.at(time.perf_counter()))

        self.backend.meanwhile = None if meanwhile is None else lambda real: meanwhile(clock.at(real))
        report = self.core.step([conversation], now=self.now, publish=hear)
        hear([conversation])
        self.now = clock.at(time.perf_counter())
        self.forwards += [
            forward._replace(began=clock.at(forward.began), ended=clock.at(forward.ended))
            for forward in self.backend.forwards
        ]
        self.backend.forwards.clear()
        for _, error in report.failures:
            raise error
        return report.worked

    def _hear(self, conversations: Sequence[Conversation], at: float) -> None:
        self.news += [(at, news) for each in conversations for news in each.take_news()]

    def settle(self, conversation: Conversation, *, patience: int = 10_000) -> None:
        """Step until there is nothing to do.

        Raises:
            EngineError: There is still something after `patience` steps.
        """
        for _ in range(patience):
            if not conversation.has_work:
                return
            self.step(conversation)
        raise EngineError(f"a session still has something to do after {patience} steps")


def deviation_of(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """How far keys and values of one input are from the exact ones, from the first token on that differs.

    Args:
        found, exact: What `CountingBackend.held` gave of two sessions that have read the same tokens.

    Returns:
        On the scale of `braid.model.moving.deviation`; 0 where nothing differs by more than rounding.
    """
    squared = [
        ((a.double() - b.double()).square().sum((0, 2)), b.double().square().sum((0, 2)))
        for a, b in zip(found, exact, strict=True)
    ]
    shares_L = torch.stack([difference / size.clamp(min=1e-30) for difference, size in squared]).mean(0)
    differing = torch.nonzero(shares_L > _ROUNDING)
    if not len(differing):
        return 0.0
    first = int(differing[0])
    shares = [float(d[first:].sum() / s[first:].sum().clamp(min=1e-30)) for d, s in squared]
    return (sum(shares) / len(shares)) ** 0.5


_ROUNDING = 1e-4
"""Mean squared relative distance of a token below which it counts as the same: the order of sums differs."""
