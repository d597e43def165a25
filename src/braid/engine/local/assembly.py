"""From an item's entries — which tokens enter which span — to the work of one forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from braid.engine.backend import Entry
from braid.engine.local.layout import Layout
from braid.engine.local.span import Span
from braid.engine.local.work import Feed, Sight, Work

__all__ = ["assemble"]


def assemble(
    layout: Layout, span_of: Callable[[str], Span], entries: Sequence[Entry], *, asks_all: bool = False
) -> Work:
    """Place tokens one entry after another, then see what each reads.

    Entries come in the order in which views are built: inputs, closers, outputs; those of later rows, if there are
    any, behind. What is placed later counts what was placed before it, as the same-row rule allows.

    Args:
        layout: Of the session.
        span_of: The span of a name.
        entries: What enters.
        asks_all: Ask after every token of an entry that asks, as `verify` and `score` do.

    Raises:
        PoolFullError: Room was not reserved.
    """
    feeds: list[Feed] = []
    for entry in entries:
        span = span_of(entry.span)
        replays = None if entry.replays is None else span_of(entry.replays)
        times = np.asarray(entry.times, dtype=np.int64)
        positions = layout.place(entry.lane, span, times, replays)
        start = len(span)
        slots = span.append(positions, times) if entry.keep else np.full(len(times), -1, dtype=np.int64)
        ids = np.asarray(entry.token_ids, dtype=np.int64)
        all_of_it = asks_all and entry.ask is not None
        feeds.append(
            Feed(entry.lane, span, ids, positions, times, start, slots, entry.ask, all_of_it, replays)
        )
    sights: list[Sight] = [sight for feed in feeds for sight in layout.sights(feed)]
    return Work(tuple(feeds), tuple(sights))
