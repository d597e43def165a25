"""Who reads what: span reads, and what becomes of them at each extent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import PageList

__all__ = ["ExtentRead", "Ints", "Run", "SpanRead", "additive_mask", "runs_of"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SpanRead:
    """Queries of one lane read one span, each its own range of it."""

    queries: Ints
    """Indices of new tokens in the batch, `[n]`."""
    pages: PageList
    """The list that the span lies in."""
    positions: Ints
    """Stored positions of the list's tokens, ascending; new ones included."""
    start: Ints
    """First token that each query reads, an index in the list, `[n]`."""
    stop: Ints
    """One past the last, `[n]`; a query with `stop <= start` reads nothing here."""
    shifts: Ints
    """Shift of each query's own span less the shift of this one, in its view: how far it is rotated to read, `[n]`."""
    stride: int = 1
    """With `stride > 1`, only the tokens whose distance in position leaves `offset` are read."""
    offset: int = 0
    own: bool = False
    """The span is the queries' own stream's, where a token reads itself whatever the pattern."""

    def first(self, positions: Ints, window: int | None) -> Ints:
        """First token that each query reads on a layer with this window, `[n]`."""
        if window is None:
            return self.start
        oldest = positions[self.queries] + self.shifts - window
        return np.maximum(self.start, np.searchsorted(self.positions, oldest, side="right"))

    def on_stripe(self, positions: Ints, start: int, stop: int) -> NDArray[np.bool_]:
        """Which of the tokens `start … stop` lie on each query's stripe, `[n, stop - start]`."""
        distance = (positions[self.queries] + self.shifts)[:, None] - self.positions[start:stop]
        keep = distance % self.stride == self.offset
        return keep | (distance == 0) if self.own else keep


@dataclass(frozen=True)
class ExtentRead:
    """The part of a span read that falls into one extent."""

    queries: Ints
    """Indices of new tokens in the batch, `[n]`."""
    shifts: Ints
    first: Ints
    """First token of the extent that each query reads, `[n]`."""
    last: Ints
    """One past the last, `[n]`."""
    read: SpanRead
    start: int
    """Index in the page list of the extent's first token."""

    def allowed(self, low: int, high: int, positions: Ints) -> NDArray[np.bool_]:
        """Which tokens `low … high` of the extent each query reads, `[n, high - low]`.

        Args:
            low, high: A range of the extent; it may reach beyond this list, where another shares the slots.
            positions: Stored position of each new token of the batch.
        """
        index = np.arange(low, high)
        allowed = (index >= self.first[:, None]) & (index < self.last[:, None])
        if self.read.stride > 1:
            keep = self.read.on_stripe(positions, self.start + low, self.start + high)
            some = np.isin(self.read.queries, self.queries)
            allowed[:, : keep.shape[1]] &= keep[some]
        return allowed


@dataclass(frozen=True)
class Run:
    """Neighbouring slots, and the extents in them that are read; slots between extents are read by nobody."""

    slot: int
    length: int
    extents: tuple[tuple[int, ExtentRead], ...]
    """Where each extent begins in the run, and who reads it."""
    shifts: Ints
    """Shift of each new token before this run, `[N]`; 0 for those that read nothing in it."""

    def allowed(self, num_new: int, positions: Ints) -> NDArray[np.bool_]:
        """Which slots of the run each new token reads, `[N, length]`."""
        allowed = np.zeros((num_new, self.length), dtype=bool)
        for offset, extent in self.extents:
            low, high = int(extent.first.min()), int(extent.last.max())
            columns = slice(offset + low, offset + high)
            allowed[extent.queries, columns] |= extent.allowed(low, high, positions)
        return allowed


def runs_of(by_slot: Mapping[int, Sequence[ExtentRead]], num_new: int, max_gap: int) -> list[Run]:
    """Join extents that lie side by side and are read with the same shifts.

    Args:
        by_slot: Extents by their first slot.
        num_new: New tokens of the batch.
        max_gap: Extents are joined when fewer slots than this lie between them: the unfilled end of a page, not a
            page of somebody else.
    """
    runs: list[Run] = []
    parts: list[tuple[int, ExtentRead]] = []
    begin = end = 0
    shifts, known = np.zeros(num_new, dtype=np.int64), np.zeros(num_new, dtype=bool)
    for slot in sorted(by_slot):
        extents = by_slot[slot]
        low = slot + min(int(e.first.min()) for e in extents)
        high = slot + max(int(e.last.max()) for e in extents)
        own, own_known = np.zeros(num_new, dtype=np.int64), np.zeros(num_new, dtype=bool)
        for extent in extents:
            own[extent.queries], own_known[extent.queries] = extent.shifts, True
        joins = parts and low - end < max_gap and not (known & own_known & (shifts != own)).any()
        if not joins:
            if parts:
                runs.append(Run(begin, end - begin, tuple((at - begin, e) for at, e in parts), shifts))
            parts, begin, end = [], low, low
            shifts, known = np.zeros(num_new, dtype=np.int64), np.zeros(num_new, dtype=bool)
        parts += [(slot, extent) for extent in extents]
        shifts, known = np.where(own_known, own, shifts), known | own_known
        end = max(end, high)
    if parts:
        runs.append(Run(begin, end - begin, tuple((at - begin, e) for at, e in parts), shifts))
    return runs


def additive_mask(allowed: NDArray[np.bool_], group: int, like: Tensor) -> Tensor:
    """A mask to add to the scores, `[1, 1, n * G, T]`."""
    mask = torch.from_numpy(allowed).to(like.device).repeat_interleave(group, 0)
    return like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)[None, None]
