"""Cached tokens at another place: keys rotated further, values as they are.

A key is stored rotated at its position, so a token that has moved by `d` positions has the same key, rotated by `d`
more. What it read before is still in its key and value; how much that matters where something before it has changed
is what `deviation` estimates, from tokens that were computed anew beside what they were before. An `Excerpt` keeps a
few tokens as they are, to be compared with others when their slots have long been written to again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import KVCache
from braid.model.architecture import Architecture, rope_tables, rotate

__all__ = ["Excerpt", "deviation", "excerpt", "move_tokens", "moved_tokens"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Excerpt:
    """Keys and values of a few tokens, and where they stood.

    Args:
        keys, values: Of each layer, `[K, L, D]`.
        positions_L: Stored positions.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    positions_L: Ints

    def deviation(self, architecture: Architecture, other: Excerpt) -> float:
        """How far the same tokens are from these in another excerpt, which counts as right; see `deviation`."""
        distance_L = other.positions_L - self.positions_L
        pairs: list[tuple[Tensor, Tensor]] = []
        for layer, keys_KLD in enumerate(self.keys):
            pairs.append((_turned(architecture, layer, keys_KLD, distance_L), other.keys[layer]))
            pairs.append((self.values[layer], other.values[layer]))
        return _distance(pairs)


def move_tokens(
    architecture: Architecture, cache: KVCache, source_L: Ints, target_L: Ints, distance: int
) -> None:
    """Copy tokens to other slots, as they are so many positions further on.

    Args:
        architecture: Of the network.
        cache: Where they are.
        source_L, target_L: Slots, `[L]`; the two have none in common.
        distance: Positions that they move by, negative ones towards the beginning.

    Raises:
        UnsupportedModelError: The model's positions cannot be shifted.
    """
    if distance:
        architecture.require_shifts()
    target = torch.from_numpy(target_L).to(cache.keys_KSD[0].device)
    for layer in range(len(architecture.layers)):
        keys_KLD, values_KLD = moved_tokens(architecture, cache, layer, source_L, distance)
        cache.keys_KSD[layer].index_copy_(1, target, keys_KLD)
        cache.values_KSD[layer].index_copy_(1, target, values_KLD)


def deviation(architecture: Architecture, cache: KVCache, old_L: Ints, new_L: Ints, distance: int) -> float:
    """How far keys and values that were computed anew are from those that the same tokens had before.

    Args:
        architecture, cache, distance: As for `move_tokens`.
        old_L, new_L: Slots, `[L]`.

    Returns:
        The root of the mean over the layers of the squared relative distance: 0 where nothing has changed, about 1.4
        for tokens that have nothing to do with each other.
    """
    pairs: list[tuple[Tensor, Tensor]] = []
    for layer in range(len(architecture.layers)):
        old_kv = moved_tokens(architecture, cache, layer, old_L, distance)
        pairs += zip(old_kv, moved_tokens(architecture, cache, layer, new_L, 0), strict=True)
    return _distance(pairs)


def excerpt(architecture: Architecture, cache: KVCache, slots_L: Ints, positions_L: Ints) -> Excerpt:
    """Copies of what some slots hold.

    Args:
        architecture, cache: As for `move_tokens`.
        slots_L, positions_L: Slots, and the stored positions of what they hold, `[L]`.
    """
    layers = [
        moved_tokens(architecture, cache, layer, slots_L, 0) for layer in range(len(architecture.layers))
    ]
    return Excerpt(tuple(keys for keys, _ in layers), tuple(values for _, values in layers), positions_L)


def _distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Of pairs of what was found and what is right: the root of the mean of the squared relative distances."""
    shares: list[float] = []
    for found_KLD, right_KLD in pairs:
        size = float(right_KLD.double().square().sum())
        shares.append(float((right_KLD.double() - found_KLD.double()).square().sum()) / max(size, 1e-30))
    return (sum(shares) / len(shares)) ** 0.5


def moved_tokens(
    architecture: Architecture, cache: KVCache, layer: int, source_L: Ints, distance: int
) -> tuple[Tensor, Tensor]:
    """Keys, rotated further, and values of some slots in one layer, `[K, L, D]` each; copies."""
    source = torch.from_numpy(source_L).to(cache.keys_KSD[layer].device)
    keys_KLD, values_KLD = cache.keys_KSD[layer][:, source], cache.values_KSD[layer][:, source]
    return _turned(
        architecture, layer, keys_KLD, np.full(len(source_L), distance, dtype=np.int64)
    ), values_KLD


def _turned(architecture: Architecture, layer: int, keys_KLD: Tensor, distance_L: Ints) -> Tensor:
    """Keys of one layer as they are so many positions further on."""
    rope = architecture.layers[layer].rope
    if rope is None or not distance_L.any():
        return keys_KLD
    assert architecture.rotary is not None, "shifts were required"
    assert architecture.apply_rotary is not None, "shifts were required"
    cos, sin = rope_tables(architecture.rotary, rope, torch.from_numpy(distance_L), keys_KLD)
    return rotate(architecture.apply_rotary, keys_KLD[None].transpose(1, 2), cos, sin).transpose(1, 2)[0]
