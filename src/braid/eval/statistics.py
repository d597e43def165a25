"""Figures with their intervals; everything at 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "mean_of", "paired_difference", "share_of"]

_Z = 1.959964
_RESAMPLES = 2000


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


def share_of(hits: Sequence[bool]) -> Interval:
    """How often something holds, by Wilson's interval, which is right near 0 and 1, too.

    >>> share_of([True, True, True, False]).value
    0.75
    """
    n = len(hits)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    p = sum(hits) / n
    centre = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half), n)


def mean_of(values: Sequence[float]) -> Interval:
    """A mean, by the bootstrap (2,000 resamples with a fixed seed)."""
    return _bootstrapped(np.asarray(values, np.float64))


def paired_difference(ours: Sequence[float | bool], theirs: Sequence[float | bool]) -> Interval:
    """Mean of ours less theirs on the same examples, by the bootstrap over examples.

    Args:
        ours, theirs: One value an example, in the same order.
    """
    assert len(ours) == len(theirs), "pairs are of the same examples"
    return _bootstrapped(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))


def _bootstrapped(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval:
    n = len(values)
    if not n:
        return Interval(math.nan, math.nan, math.nan, 0)
    # Few different values occur: counts of them are resampled instead of the values, which is as exact and quick.
    levels, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, size=_RESAMPLES)
    means = drawn @ levels / n
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high), n)
