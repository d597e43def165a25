"""From entries — which tokens enter which span — to the work of one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from braid.cache import KVCache
from braid.engine.layout import Layout
from braid.engine.span import Span
from braid.engine.work import Feed, Sight, Work

__all__ = ["Entry", "assemble", "require_pages"]


@dataclass(frozen=True)
class Entry:
    """Tokens that are about to enter a span, or a probe that is about to ask."""

    label: str
    span: Span
    token_ids: Sequence[int]
    times: Sequence[int]
    is_probe: bool = False
    predict: bool = False
    replays: Span | None = None


def require_pages(cache: KVCache, needs: Sequence[tuple[Span, int]]) -> None:
    """Raise unless so many tokens fit into their spans; changes nothing.

    Raises:
        PoolFullError, PoolTooSmallError
    """
    cache.pool.require(sum(span.pages.pages_needed(count) for span, count in needs))


def assemble(layout: Layout, entries: Sequence[Entry]) -> Work:
    """Place tokens one entry after another, then see what each reads.

    Entries come in the order in which views are built: inputs, closers, outputs. What is placed later counts what
    was placed before it, as the same-row rule allows.
    """
    feeds: list[Feed] = []
    for entry in entries:
        times = np.asarray(entry.times, dtype=np.int64)
        positions = layout.place(entry.label, entry.span, times, entry.replays)
        nowhere = np.full(len(times), -1, dtype=np.int64)
        slots = nowhere if entry.is_probe else entry.span.append(positions, times)
        ids = np.asarray(entry.token_ids, dtype=np.int64)
        feeds.append(
            Feed(entry.label, entry.span, ids, positions, times, slots, entry.predict, entry.replays)
        )
    sights: list[Sight] = [sight for feed in feeds for sight in layout.sights(feed)]
    return Work(tuple(feeds), tuple(sights))
