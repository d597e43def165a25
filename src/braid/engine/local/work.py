"""What one item becomes in one forward pass: feeds, and the sights of their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from braid.engine.backend import Ask
from braid.engine.local.span import Span
from braid.streams.patterns import Dense, Pattern

__all__ = ["Feed", "Sight", "Work"]

Ints = NDArray[np.int64]
DENSE = Dense()


@dataclass(eq=False, slots=True)
class Feed:
    """Tokens that enter one span in this forward; or one probe of its lane."""

    label: str
    """The lane that the tokens belong to, and that the logits are for."""
    span: Span
    token_ids: Ints
    positions: Ints
    times: Ints
    start: int
    """Tokens that the span held before; later feeds of the same forward may follow in it."""
    slots: Ints
    """Where the keys and values go; -1 for a probe, of which nothing is kept and which only it itself reads."""
    ask: Ask | None = None
    """What is to be known of the token that follows."""
    asks_all: bool = False
    """Whether the logits of every token are needed, and not of the last one alone."""
    replays: Span | None = None
    """A probe that stands in the place of this span's last token, and asks what would follow it."""

    @property
    def is_probe(self) -> bool:
        """Whether nothing of it is kept."""
        return bool(self.slots[0] < 0)


@dataclass(eq=False, slots=True)
class Sight:
    """What the tokens of one feed read of one span."""

    feed: Feed
    span: Span
    start: Ints
    """First token that each query reads, `[n]`."""
    stop: Ints
    """One past the last, `[n]`."""
    shifts: Ints
    """Shift of the queries' span less that of this one, `[n]`."""
    pattern: Pattern = DENSE


@dataclass(frozen=True, eq=False)
class Work:
    """The feeds of one item in one forward, and what each reads."""

    feeds: tuple[Feed, ...]
    sights: tuple[Sight, ...]
