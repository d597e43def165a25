"""What every block of a layer needs besides its queries: the layer's keys and values, rotations, room to work in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from braid.model.architecture import Architecture, LayerKind, rope_tables, rotate
from braid.model.blocks import Block
from braid.model.reads import Bools

__all__ = ["LayerCall", "Rotations", "Scratch", "additive_mask", "rotations_of"]

ApplyRotary = Callable[..., tuple[Tensor, Tensor]]


class Scratch:
    """Room for what a layer computes on the way, which the next layer uses again.

    A new tensor of a megabyte is new memory, which a CPU gets page by page, and that takes longer than filling it.

    Args:
        like: A tensor of the device that the room is on.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._stores: dict[tuple[str, torch.dtype], Tensor] = {}
        self._rooms: dict[tuple[str, tuple[int, ...], torch.dtype], Tensor] = {}

    def room(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The room of this name, with whatever is in it; who asks for it next writes over it."""
        room = self._rooms.get((name, shape, dtype))
        if room is None:
            size, store = math.prod(shape), self._stores.get((name, dtype))
            if store is None or store.shape[0] < size:
                store = self._stores[name, dtype] = self._like.new_empty(size, dtype=dtype)
            room = self._rooms[name, shape, dtype] = store[:size].view(shape)
        return room


@dataclass(frozen=True)
class LayerCall:
    """What all blocks have in common when a layer attends."""

    keys_KSD: Tensor
    """The layer's keys in the pool; the kept new ones are in them."""
    values_KSD: Tensor
    page_size: int
    scratch: Scratch
    apply_rotary: ApplyRotary | None
    """The model's rotation."""
    scaling: float
    softcap: float | None
    """Soft limit of the scores."""
    sinks_A: Tensor | None
    """A learned score a head that takes weight and gives nothing."""

    def capped(self, scores: Tensor) -> Tensor:
        """Scores within the soft limit."""
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap


@dataclass(frozen=True)
class Rotations:
    """How the queries of a block are rotated to read."""

    of_turn: tuple[int, ...]
    """The rotation for each turn; 0 is none."""
    cos: Tensor | None
    """Of each query in each rotation but 0, one rotation after another, `[1, count * R, D]`."""
    sin: Tensor | None

    def apply(self, apply_rotary: ApplyRotary | None, queries_RAD: Tensor) -> list[Tensor]:
        """The queries after each rotation, `[R, A, D]` each."""
        if self.cos is None or self.sin is None:
            return [queries_RAD]
        assert apply_rotary is not None, "a model that cannot rotate has no shifts"
        count = max(self.of_turn)
        repeated = queries_RAD.repeat(count, 1, 1)[None]
        return [queries_RAD, *rotate(apply_rotary, repeated, self.cos, self.sin)[0].chunk(count)]


def rotations_of(block: Block, architecture: Architecture, kind: LayerKind, like: Tensor) -> Rotations:
    """The rotations of a block on layers of one kind."""
    is_rotated = block.shifts.any((1, 2)) & (kind.rope is not None)
    of_turn = tuple(np.where(is_rotated, np.cumsum(is_rotated), 0).tolist())
    if not is_rotated.any():
        return Rotations(of_turn, None, None)
    assert architecture.rotary is not None, "a model that cannot rotate has no shifts"
    assert kind.rope is not None, "layers without RoPE rotate nothing"
    shifts = torch.from_numpy(block.shifts[is_rotated].ravel())
    return Rotations(of_turn, *rope_tables(architecture.rotary, kind.rope, shifts, like))


def additive_mask(allowed: Bools, like: Tensor) -> Tensor | None:
    """A mask to add to scores, 0 or -inf, of the same shape; None where everything is allowed."""
    if allowed.all():
        return None
    mask = torch.from_numpy(allowed).to(like.device)
    return like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
