"""Cached tokens at another place: keys rotated further, values as they are.

A key is stored rotated at its position, so a token that has moved by `d` positions has the same key, rotated by `d`
more. What it read before is still in its key and value; how much that matters where something before it has changed
is what `deviation` estimates, from tokens that were computed anew beside what they were before.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import KVCache
from braid.model.architecture import Architecture, rope_tables, rotate

__all__ = ["deviation", "move_tokens", "moved_tokens"]

Ints = NDArray[np.int64]


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
    total, count = 0.0, 0
    new = torch.from_numpy(new_L).to(cache.keys_KSD[0].device)
    for layer in range(len(architecture.layers)):
        old_kv = moved_tokens(architecture, cache, layer, old_L, distance)
        new_kv = (cache.keys_KSD[layer][:, new], cache.values_KSD[layer][:, new])
        for old_KLD, new_KLD in zip(old_kv, new_kv, strict=True):
            size = float(new_KLD.double().square().sum())
            total += float((new_KLD.double() - old_KLD.double()).square().sum()) / max(size, 1e-30)
            count += 1
    return (total / count) ** 0.5


def moved_tokens(
    architecture: Architecture, cache: KVCache, layer: int, source_L: Ints, distance: int
) -> tuple[Tensor, Tensor]:
    """Keys, rotated further, and values of some slots in one layer, `[K, L, D]` each; copies."""
    source = torch.from_numpy(source_L).to(cache.keys_KSD[layer].device)
    keys_KLD, values_KLD = cache.keys_KSD[layer][:, source], cache.values_KSD[layer][:, source]
    return _turned(architecture, layer, keys_KLD, distance), values_KLD


def _turned(architecture: Architecture, layer: int, keys_KLD: Tensor, distance: int) -> Tensor:
    """Keys of one layer as they are so many positions further on."""
    rope = architecture.layers[layer].rope
    if not distance or rope is None:
        return keys_KLD
    assert architecture.rotary is not None, "shifts were required"
    assert architecture.apply_rotary is not None, "shifts were required"
    distances = torch.full((keys_KLD.shape[1],), distance, dtype=torch.long)
    cos, sin = rope_tables(architecture.rotary, rope, distances, keys_KLD)
    return rotate(architecture.apply_rotary, keys_KLD[None].transpose(1, 2), cos, sin).transpose(1, 2)[0]
