"""The step: schedule → build plan → forward → sample → emit.

Conversation.prepare()      which tokens enter which spans, and what each reads (no tensors)
plan_works()                the sights of all sessions as one plan
Model.forward()             one pass over all new tokens
sample()                    one draw a lane
Conversation.advance()      the drawn tokens become the next row
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from torch import Tensor

from braid.cache import KVCache
from braid.engine.conversation import Conversation
from braid.engine.sampler import sample
from braid.engine.work import Sight, Work
from braid.errors import BraidError
from braid.model.model import Model
from braid.model.plan import Plan
from braid.model.reads import SpanRead
from braid.streams.events import Event
from braid.streams.patterns import Striped

__all__ = ["EngineCore", "plan_works"]


class EngineCore:
    """Runs conversations on one model and one cache. Synchronous; to be called from one thread at a time.

    Args:
        model: The network.
        kv_tokens: Tokens that the cache must hold; None takes what the model's context allows, at most 16,384.
        page_size: Tokens a page.
    """

    def __init__(self, model: Model, *, kv_tokens: int | None = None, page_size: int = 16) -> None:
        self.model = model
        if kv_tokens is None:
            kv_tokens = min(model.architecture.max_positions, 16_384)
        self.cache: KVCache = model.new_cache(kv_tokens, page_size)
        self.lock = threading.RLock()
        """Held while queues and books are read or changed; not during a forward."""

    def step(self, conversations: Sequence[Conversation]) -> Iterator[list[Event]]:
        """Make the next rows of the conversations, in one forward.

        Events are yielded as soon as they are known: those of the rows about to be computed before the forward,
        what the forward decided (streams that fall silent or asleep) after it. Nothing is yielded when no
        conversation has anything to do. A conversation that cannot go on, for a full pool for example, raises after the
        others have made their rows. Exhaust the iterator: the forward runs when the second batch is asked for.
        """
        failure: BraidError | None = None
        ready: list[tuple[Conversation, Work]] = []
        with self.lock:
            for conversation in conversations:
                try:
                    work = conversation.prepare()
                except BraidError as error:  # the others have entered their rows, and go on
                    failure = failure or error
                    continue
                if work is not None:
                    ready.append((conversation, work))
            works = [work for _, work in ready]
            with self._closing_on_failure(ready):
                # Before the lock is open again: a verb that releases pages would pull them from under the plan.
                plan = plan_works(self.model, self.cache, works) if works else None
            events = [event for c in conversations for event in c.take_events()]
        with self._closing_on_failure(ready):
            if events:
                yield events
            if plan is None:
                if failure is not None:
                    raise failure
                return
            logits_NV = self._forward(plan, works)
            with self.lock:
                tokens = sample(logits_NV, [draw for c, work in ready for draw in c.draws(work)])
        row = 0
        with self.lock:
            for conversation, work in ready:
                count = len(work.predicted)
                conversation.advance(work, tokens[row : row + count], logits_NV[row : row + count])
                row += count
            events = [event for c, _ in ready for event in c.take_events()]
        if events:
            yield events
        if failure is not None:
            raise failure

    @contextmanager
    def _closing_on_failure(self, ready: Sequence[tuple[Conversation, Work]]) -> Generator[None]:
        """Close the conversations if what is inside fails: the cache would lack keys that the books have."""
        try:
            yield
        except BaseException:
            with self.lock:
                for conversation, _ in ready:
                    conversation.close("a forward pass failed")
            raise

    def _forward(self, plan: Plan, works: Sequence[Work]) -> Tensor:
        feeds = [feed for work in works for feed in work.feeds]
        ends = np.cumsum([len(feed.token_ids) for feed in feeds]) - 1
        return self.model.forward(
            plan,
            token_ids=np.concatenate([feed.token_ids for feed in feeds]),
            positions=np.concatenate([feed.positions for feed in feeds]),
            streams=np.concatenate([np.full(len(feed.token_ids), feed.span.stream) for feed in feeds]),
            predict=ends[[feed.predict for feed in feeds]],
        )


def plan_works(model: Model, cache: KVCache, works: Sequence[Work]) -> Plan:
    """One plan for the works of any number of sessions."""
    feeds = [feed for work in works for feed in work.feeds]
    starts = np.cumsum([0, *(len(feed.token_ids) for feed in feeds)])
    first = {id(feed): int(start) for feed, start in zip(feeds, starts, strict=False)}
    return model.plan(
        cache,
        positions=np.concatenate([feed.positions for feed in feeds]),
        slots=np.concatenate([feed.slots for feed in feeds]),
        reads=[_span_read(sight, first[id(sight.feed)]) for work in works for sight in work.sights],
    )


def _span_read(sight: Sight, first: int) -> SpanRead:
    return SpanRead(
        queries=first + np.arange(len(sight.stop), dtype=np.int64),
        pages=sight.span.pages,
        positions=sight.span.positions,
        start=sight.start,
        stop=sight.stop,
        shifts=sight.shifts,
        stride=sight.pattern.stride if isinstance(sight.pattern, Striped) else 1,
        offset=sight.pattern.offset if isinstance(sight.pattern, Striped) else 0,
        own=sight.span is sight.feed.span and not sight.feed.is_probe,
    )
