"""A span's storage: one page list, and the position and row time of each token in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from braid.cache import KVCache, PageGroup, PageList

__all__ = ["Span", "new_span"]

Ints = NDArray[np.int64]


class Span:
    """Cached tokens of one stream, or of one piece of template text, that views read as a unit.

    Args:
        pages: Where the keys and values lie; this span owns the list.
        stream: Index of the stream embedding that the tokens carry.
    """

    def __init__(self, pages: PageList, stream: int) -> None:
        self.pages = pages
        self.stream = stream
        self.base = 0
        """What the first token's stored position would be; views count their shifts from it."""
        self._positions: Ints = np.empty(32, dtype=np.int64)
        self._times: Ints = np.empty(32, dtype=np.int64)

    def __len__(self) -> int:
        return self.pages.length

    @property
    def positions(self) -> Ints:
        """Stored positions, ascending, `[len]`."""
        return self._positions[: len(self)]

    @property
    def times(self) -> Ints:
        """Row times, ascending, `[len]`."""
        return self._times[: len(self)]

    def append(self, positions: Ints, times: Ints) -> Ints:
        """Make room for tokens.

        Args:
            positions, times: Stored position and row time of each, `[n]`.

        Returns:
            The slots to write to, `[n]`.

        Raises:
            PoolFullError: Nothing was changed.
        """
        start = len(self)
        slots = self.pages.append(len(positions))
        if len(self) > len(self._positions):
            room = max(len(self), 2 * len(self._positions))
            self._positions = np.resize(self._positions, room)
            self._times = np.resize(self._times, room)
        self._positions[start : len(self)] = positions
        self._times[start : len(self)] = times
        return slots

    def trim(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        self.pages.trim(length)

    def become(self, other: Span, group: PageGroup, length: int | None = None) -> None:
        """Hold what another span holds, or its first `length` tokens; the pages are shared until one is written to."""
        length = len(other) if length is None else length
        self.adopt(other.pages.fork(length, group), other.positions[:length], other.times[:length])
        self.base = other.base

    def adopt(self, pages: PageList, positions: Ints, times: Ints) -> None:
        """Hold the tokens of a page list, which is this span's from now on, and let go of what it held."""
        assert pages.length == len(positions) == len(times), "one position and one time a token"
        self.pages.release()
        self.pages = pages
        self._positions = np.concatenate((positions, np.empty(32, dtype=np.int64)))
        self._times = np.concatenate((times, np.empty(32, dtype=np.int64)))

    def release(self) -> None:
        """Give the pages back; the span is gone afterwards."""
        self.pages.release()


def new_span(cache: KVCache, stream: int, group: PageGroup) -> Span:
    """An empty span in the cache, near the others of its session."""
    return Span(cache.new_list(group), stream)
