"""Figures with their intervals; everything at 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = [
    "Interval",
    "difference_of_shares",
    "mean_of",
    "paired_difference",
    "paired_shares",
    "ratio_of",
    "share_of",
]

_Z = 1.959964
_RESAMPLES = 2000
_RESAMPLES_OF_PAIRS = 1000


@dataclass(frozen=True)
class Interval:
    """A figure and where it probably lies.

    Args:
        value: The estimate.
        low, high: Ends of its 95 % interval.
        n: Examples that it was made from.
    """

    value: float
    low: float
    high: float
    n: int

    def to_json(self, digits: int = 4) -> dict[str, float | int]:
        """Plain data."""
        return {
            "value": round(self.value, digits),
            "low": round(self.low, digits),
            "high": round(self.high, digits),
            "n": self.n,
        }

    @property
    def complement(self) -> Interval:
        """1 less the figure: of a ratio, the share that is saved."""
        return Interval(1 - self.value, 1 - self.high, 1 - self.low, self.n)


_NOTHING = Interval(math.nan, math.nan, math.nan, 0)


def share_of(hits: Sequence[bool]) -> Interval:
    """How often something holds, by Wilson's interval, which is right near 0 and 1, too.

    >>> share_of([True, True, True, False]).value
    0.75
    """
    n = len(hits)
    if not n:
        return _NOTHING
    p = sum(hits) / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half), n)


def mean_of(values: Sequence[float]) -> Interval:
    """A mean, by the bootstrap (2,000 resamples with a fixed seed)."""
    return _bootstrapped(np.asarray(values, np.float64))


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of ours less theirs on the same examples, by the bootstrap over examples.

    Args:
        ours, theirs: One value an example, in the same order; for what is right or wrong there is `paired_shares`.
    """
    assert len(ours) == len(theirs), "pairs are of the same examples"
    return _bootstrapped(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))


def paired_shares(ours: Sequence[bool], theirs: Sequence[bool]) -> Interval:
    """How much more often something holds of ours than of theirs on the same examples, by Newcombe's paired method 10.

    The bootstrap would be sure of no difference where no pair differs, and too sure where few do.

    Args:
        ours, theirs: One an example, in the same order.
    """
    n = len(ours)
    both = sum(a and b for a, b in zip(ours, theirs, strict=True))
    neither = sum(not (a or b) for a, b in zip(ours, theirs, strict=True))
    hits, others = sum(ours), sum(theirs)
    spread = math.sqrt(hits * (n - hits) * others * (n - others))
    excess = both * neither - (hits - both) * (others - both)
    # Less than none is kept; of more than none, n / 2 is taken off for continuity.
    correlation = (max(0.0, excess - n / 2) if excess > 0 else excess) / spread if spread else 0.0
    return difference_of_shares(share_of(ours), share_of(theirs), correlation)


def difference_of_shares(ours: Interval, theirs: Interval, correlation: float = 0.0) -> Interval:
    """The difference of two shares from their own intervals, by Newcombe's method 10.

    Args:
        ours, theirs: As `share_of` gives them.
        correlation: Of the two, where they are of the same examples.
    """
    if not ours.n or not theirs.n:
        return _NOTHING

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a**2 - 2 * correlation * a * b + b**2))

    value = ours.value - theirs.value
    low = value - reach(ours.value - ours.low, theirs.high - theirs.value)
    high = value + reach(ours.high - ours.value, theirs.value - theirs.low)
    return Interval(value, low, high, min(ours.n, theirs.n))


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """The sum of ours over the sum of theirs, by the bootstrap over examples (1,000 resamples with a fixed seed).

    Args:
        ours, theirs: One value an example, none below 0, in the same order; a ratio to nothing is no figure.
    """
    assert len(ours) == len(theirs), "pairs are of the same examples"
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    n = len(a)
    if not b.sum():
        return _NOTHING
    drawn = np.random.default_rng(0).integers(n, size=(_RESAMPLES_OF_PAIRS, n))
    below = b[drawn].sum(axis=1)
    held = below > 0
    low, high = np.quantile(a[drawn].sum(axis=1)[held] / below[held], (0.025, 0.975))
    return Interval(float(a.sum() / b.sum()), float(low), float(high), n)


def _bootstrapped(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval:
    n = len(values)
    if not n:
        return _NOTHING
    # Few different values occur: counts of them are resampled instead of the values, which is as exact and quick.
    levels, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, size=_RESAMPLES)
    means = drawn @ levels / n
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high), n)
