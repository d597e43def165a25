"""Attention of many queries, such as a chunk of a long input, by a kernel.

A kernel does not write the scores down, as so many queries want. It is called once or twice a turn: on what all queries
read, and on what some of them do, under a mask. The results, and those of probes with themselves, are weighed by their
log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from braid.model.architecture import Architecture, LayerKind
from braid.model.blocks import Block
from braid.model.kernels import Kernel
from braid.model.layercall import LayerCall, Rotations, Scratch, additive_mask, rotations_of
from braid.model.reads import Bools, Ints

__all__ = ["LargePlan", "attend_by_kernel", "plan_for_kernel"]

WORTH_A_CALL = 512
"""So many slots that all queries read, or more, are attended apart, without a mask."""


@dataclass(frozen=True)
class _Call:
    """One call of the kernel."""

    turn: int
    slot: int
    """The first slot that is read."""
    length: int
    slots_T: Tensor | None
    """The slots, when they are not neighbours and must be gathered."""
    mask: Tensor | None
    """Added to the scores, `[R, T]`; None where every query reads everything."""
    idle_R: Tensor | None
    """Whether a query reads nothing here; None where all read something."""

    def read(self, pool_KSD: Tensor, scratch: Scratch, room: str) -> Tensor:
        """Keys or values, `[K, T, D]`."""
        if self.slots_T is None:
            return pool_KSD[:, self.slot : self.slot + self.length]
        num_kv_heads, _, head_dim = pool_KSD.shape
        gathered = scratch.room(room, (num_kv_heads, self.length, head_dim), pool_KSD.dtype)
        return torch.index_select(pool_KSD, 1, self.slots_T, out=gathered)


@dataclass(frozen=True)
class LargePlan:
    """What layers of one kind need to attend a block by a kernel."""

    rotations: Rotations
    calls: tuple[_Call, ...]
    has_probes: bool
    """Whether a query reads itself from the forward."""
    no_probe_R: Tensor | None
    """Whether a query does not; None where all do, or none."""


def plan_for_kernel(
    block: Block, architecture: Architecture, kind: LayerKind, is_probe: Bools, page_size: int, like: Tensor
) -> LargePlan:
    """A plan of a block of one cluster.

    Args:
        block: Who reads what.
        architecture, kind, like: As for `build_plan`.
        is_probe: Of each query, `[1, R]`.
        page_size: Slots a page.
    """
    (allowed_RT,) = block.allowed
    calls: list[_Call] = []
    column = 0
    for columns in block.columns:
        slots = (columns.pages[:, None] * page_size + np.arange(page_size)).ravel()
        allowed = allowed_RT[:, column : column + len(slots)]
        calls += [_call(columns.turn, slots[some], allowed[:, some], like) for some in _told_apart(allowed)]
        column += len(slots)
    return LargePlan(
        rotations=rotations_of(block, architecture, kind, like),
        calls=tuple(calls),
        has_probes=bool(is_probe.any()),
        no_probe_R=_flags(~is_probe[0], like) if is_probe.any() else None,
    )


def _told_apart(allowed: Bools) -> Iterator[Ints]:
    """Columns that all queries read, and those that some read; as one where that is hardly worth a call."""
    readers = allowed.sum(0)
    by_all = readers == len(allowed)
    if by_all.sum() < WORTH_A_CALL:
        by_all[:] = False
    for columns in (np.flatnonzero(by_all), np.flatnonzero((readers > 0) & ~by_all)):
        if len(columns):
            yield columns


def _call(turn: int, slots: Ints, allowed: Bools, like: Tensor) -> _Call:
    are_neighbours = int(slots[-1] - slots[0]) == len(slots) - 1
    return _Call(
        turn=turn,
        slot=int(slots[0]),
        length=len(slots),
        slots_T=None if are_neighbours else torch.from_numpy(slots).to(like.device),
        mask=additive_mask(allowed, like),
        idle_R=_flags(allowed.sum(1) == 0, like),
    )


def _flags(flags: Bools, like: Tensor) -> Tensor | None:
    """Flags as a tensor; None where none is set."""
    return torch.from_numpy(flags).to(like.device) if flags.any() else None


def attend_by_kernel(
    plan: LargePlan, kernel: Kernel, call: LayerCall, queries_RAD: Tensor, new: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Attend; arguments and result are those of `attend_jointly`, and the kernel."""
    num_rows, num_heads, _ = queries_RAD.shape
    num_kv_heads = len(call.keys_KSD)
    shape = (num_kv_heads, num_heads // num_kv_heads, -1, -1)
    rotated = [_by_head(queries, shape) for queries in plan.rotations.apply(call.apply_rotary, queries_RAD)]
    outs: list[Tensor] = []
    lses: list[Tensor] = []
    for read in plan.calls:
        keys, values = (
            read.read(pool_KSD, call.scratch, room)
            for pool_KSD, room in ((call.keys_KSD, "keys"), (call.values_KSD, "values"))
        )
        queries = rotated[plan.rotations.of_turn[read.turn]]
        out, lse = kernel(queries, keys, values, read.mask, call.scaling, call.softcap)
        if read.idle_R is not None:  # what a kernel returns where nothing is read is its own affair
            out, lse = out.masked_fill(read.idle_R[:, None], 0.0), lse.masked_fill(read.idle_R, -torch.inf)
        outs.append(out)
        lses.append(lse)
    if new is not None:
        keys, values = (_by_head(states, shape) for states in new)
        scores = call.capped((rotated[0] * keys).sum(-1) * call.scaling)
        outs.append(values)
        lses.append(scores if plan.no_probe_R is None else scores.masked_fill(plan.no_probe_R, -torch.inf))
    return _weigh(outs, lses, call.sinks_A).permute(2, 0, 1, 3).reshape(num_rows, num_heads, -1)


def _by_head(states_RAD: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """`[R, A or K, D]` as `[K, G, R, D]`."""
    return states_RAD.unflatten(1, (shape[0], -1)).permute(1, 2, 0, 3).expand(shape)


def _weigh(outs: list[Tensor], lses: list[Tensor], sinks_A: Tensor | None) -> Tensor:
    """Add up results, `[K, G, R, D]` each, by their log-sum-exp, `[K, G, R]` each."""
    if len(outs) == 1 and sinks_A is None:
        return outs[0]
    if sinks_A is not None:
        lses = [*lses, sinks_A.view(*lses[0].shape[:2], 1).expand_as(lses[0])]
    accurate = torch.promote_types(outs[0].dtype, torch.float32)
    weights = torch.softmax(torch.stack([lse.to(accurate) for lse in lses]), 0).to(outs[0].dtype)
    total = weights[0][..., None] * outs[0]
    for weight, out in zip(weights[1:], outs[1:], strict=False):
        total.addcmul_(weight[..., None], out)
    return total
