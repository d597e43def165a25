"""Who reads what: span reads, and what becomes of them at each extent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import PageList

__all__ = ["ExtentRead", "Ints", "SpanRead", "additive_mask"]

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
            own = (positions[self.queries] + self.shifts)[:, None]
            distance = own - self.read.positions[self.start + low : self.start + high]
            keep = distance % self.read.stride == self.read.offset
            if self.read.own:
                keep |= distance == 0
            allowed[:, : keep.shape[1]] &= keep
        return allowed


def additive_mask(allowed: NDArray[np.bool_], group: int, like: Tensor) -> Tensor:
    """A mask to add to the scores, `[1, 1, n * G, T]`."""
    mask = torch.from_numpy(allowed).to(like.device).repeat_interleave(group, 0)
    return like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)[None, None]
