"""Sampling noise as a function of (seed, stream, turn, token index), and of nothing else.

Gumbel noise for class `v` is a hash of those four and of `v`. So a sampled run is the same in any batch, on any
rank, with and without drafts; and two distributions that differ little mostly choose the same token, which is what
lets a draft survive. Hash: the finaliser of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom
number generators"), chained over the parts of the key.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

__all__ = ["gumbel", "noise_key"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_key(seed: int, stream: str, turn: int, index: int) -> int:
    """The 64-bit key of one token's noise.

    Args:
        seed: Of the session.
        stream: Label of the lane.
        turn: Turn of the conversation, from 0.
        index: How many tokens of the lane came before in this turn.
    """
    text = f"{seed}\x1f{stream}\x1f{turn}\x1f{index}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def gumbel(key: int, classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise for each class id, the same for the same key and id always.

    >>> bool((gumbel(7, np.arange(9))[[2, 5]] == gumbel(7, np.array([2, 5]))).all())
    True
    """
    with np.errstate(over="ignore"):
        state = classes.astype(np.uint64) * _GOLDEN + np.uint64(key)
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        state ^= state >> np.uint64(31)
    uniform = ((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(-np.log(uniform))
