"""The path of a closed prefix: what the prefix tree is asked with, and all that a node of it compares."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["PrefixPath", "namespace"]

Ints = NDArray[np.int64]

COLUMNS = 3
"""Step, list and token."""
SYMBOL_BYTES = COLUMNS * np.dtype(np.int64).itemsize


def namespace(*parts: str | bytes) -> bytes:
    """Whatever else decides keys and values, as one short key; prefixes are shared under equal keys only.

    Args:
        parts: Such as a hash of the weights, the rules of reading, and a tenant's salt. Text counts as its UTF-8
            bytes. Where one part ends and the next begins makes a difference.

    >>> namespace("ab", "c") == namespace("a", "bc")
    False
    """
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.digest()


class PrefixPath:
    """The tokens of a closed prefix, row by row: a sequence of symbols (step, list, token).

    Args:
        steps: Row time of each token since the prefix began, ascending, `[n]`.
        lists: Number of the page list that each token lies in, `[n]`. The tokens of one list come in its own order.
        tokens: Token ids, `[n]`.
    """

    __slots__ = ("_data", "_table")

    def __init__(self, steps: Ints, lists: Ints, tokens: Ints) -> None:
        assert len(steps) == len(lists) == len(tokens), "a symbol is a step, a list and a token"
        table = np.empty((len(steps), COLUMNS), dtype=np.int64)
        table[:, 0], table[:, 1], table[:, 2] = steps, lists, tokens
        assert (table[1:, 0] >= table[:-1, 0]).all(), "the rows of a prefix ascend"
        assert (table[:, 1] >= 0).all(), "page lists are numbered from 0"
        self._hold(table.tobytes())

    def _hold(self, data: bytes) -> None:
        # The bytes are compared and looked up at the speed of memory; the table over them is for all else.
        self._data = data
        self._table: Ints = np.frombuffer(data, dtype=np.int64).reshape(-1, COLUMNS)

    def __len__(self) -> int:
        return len(self._data) // SYMBOL_BYTES

    @property
    def steps(self) -> Ints:
        """Row time of each token since the prefix began, `[n]`."""
        return self._table[:, 0]

    @property
    def lists(self) -> Ints:
        """Number of the page list that each token lies in, `[n]`."""
        return self._table[:, 1]

    @property
    def tokens(self) -> Ints:
        """Token ids, `[n]`."""
        return self._table[:, 2]

    def part(self, start: int, stop: int | None = None) -> PrefixPath:
        """The symbols `start … stop`."""
        stop = len(self) if stop is None else stop
        part = PrefixPath.__new__(PrefixPath)
        part._hold(self._data[start * SYMBOL_BYTES : stop * SYMBOL_BYTES])  # noqa: SLF001
        return part

    def symbol(self, index: int) -> bytes:
        """One symbol, as a key."""
        return self._data[index * SYMBOL_BYTES : (index + 1) * SYMBOL_BYTES]

    def counts(self, stop: int | None = None) -> dict[int, int]:
        """How many of the first `stop` symbols, or of all, lie in each list; only lists that have some."""
        counts = np.bincount(self.lists[:stop])
        return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}

    def agreement(self, other: PrefixPath, start: int) -> int:
        """How many symbols, from the first on, are the same as those of another path from `start` on."""
        if other._data.startswith(self._data, start * SYMBOL_BYTES):
            return len(self)
        count = min(len(self), len(other) - start)
        differs = (self._table[:count] != other._table[start : start + count]).any(axis=1)
        return int(differs.argmax()) if differs.any() else count

    def pages(self, page_size: int) -> int:
        """Pages that the tokens fill when each list begins with a page of its own."""
        return sum(-(-count // page_size) for count in self.counts().values())

    def fit(self, num_pages: int, page_size: int) -> int:
        """How many symbols, from the first on, fit into so many pages."""
        if self.pages(page_size) <= num_pages:
            return len(self)
        # A token opens a page where its list has filled those before; the path ends at the first page too many.
        opening = [np.flatnonzero(self.lists == number)[::page_size] for number in self.counts()]
        return int(np.sort(np.concatenate(opening))[num_pages])
