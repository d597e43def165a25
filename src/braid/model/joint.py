"""Attention of a few queries over all that they read at once, under one softmax.

The queries of a row read most of what the others read, and so do the queries of sessions that share a prompt. Then one
matrix product a stretch of columns, one softmax over all columns, and one more product a stretch cost less than a
flash-attention call a span and the merge of what these return. What each session reads alone is gathered, and goes
through one batched product. What a query must not read is masked; it adds exactly zero.

Letters of shapes, besides the usual: a block has `C` clusters of `M` queries, `R = C * M` rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from braid.model.architecture import Architecture, LayerKind
from braid.model.blocks import Block
from braid.model.layercall import LayerCall, Rotations, Scratch, additive_mask, rotations_of
from braid.model.reads import Bools

__all__ = ["JOINT_AREA", "JointPlan", "attend_jointly", "plan_jointly"]

JOINT_AREA = 1 << 17
"""The queries of a session are not attended jointly when they have more scores than this a head."""


@dataclass(frozen=True)
class _Source:
    """Where the keys and values of some columns come from."""

    turn: int
    width: int
    """Columns, in slots."""
    slot: int
    """The first one in the pool, when they are read in place."""
    pages_P: Tensor | None
    """The pages, when they are gathered; those of one cluster after another when each has its own."""

    def read(self, pool_KSD: Tensor, page_size: int, scratch: Scratch) -> Tensor:
        """The columns' keys or values, `[K, T, D]`; `[K * C, T, D]` when each cluster has its own."""
        if self.pages_P is None:
            return pool_KSD[:, self.slot : self.slot + self.width]
        num_kv_heads, _, head_dim = pool_KSD.shape
        pages = pool_KSD.view(num_kv_heads, -1, page_size * head_dim)
        shape = (num_kv_heads, self.pages_P.shape[0], page_size * head_dim)
        room = scratch.room("gathered", shape, pool_KSD.dtype)
        return torch.index_select(pages, 1, self.pages_P, out=room).view(-1, self.width, head_dim)


@dataclass(frozen=True)
class JointPlan:
    """What layers of one kind need to attend a block jointly."""

    num_clusters: int
    rotations: Rotations
    sources: tuple[_Source, ...]
    mask: Tensor | None
    """Added to the scores, `[C, 1, M, T]`; None where every query reads everything."""
    has_probes: bool
    """Whether a query reads itself from the forward."""
    own_mask: Tensor | None
    """Added to each query's score with itself, `[C, 1, M, 1]`: 0 for probes; None where all are probes, or none."""


def plan_jointly(
    block: Block, architecture: Architecture, kind: LayerKind, is_probe: Bools, page_size: int, like: Tensor
) -> JointPlan:
    """A joint plan of a block.

    Args:
        block: Who reads what.
        architecture, kind, like: As for `build_plan`.
        is_probe: Of each query, `[C, M]`.
        page_size: Slots a page.
    """
    mask = additive_mask(block.allowed, like)
    sources = (
        _Source(
            turn=columns.turn,
            width=columns.pages.shape[-1] * page_size,
            slot=int(columns.pages.flat[0]) * page_size,
            pages_P=None if columns.in_place else torch.from_numpy(columns.pages.ravel()).to(like.device),
        )
        for columns in block.columns
    )
    return JointPlan(
        num_clusters=len(block.queries),
        rotations=rotations_of(block, architecture, kind, like),
        sources=tuple(sources),
        mask=None if mask is None else mask[:, None],
        has_probes=bool(is_probe.any()),
        own_mask=additive_mask(is_probe[:, None, :, None], like) if is_probe.any() else None,
    )


def attend_jointly(
    plan: JointPlan, call: LayerCall, queries_RAD: Tensor, new: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Attend.

    Args:
        plan: From `plan_jointly`.
        call: The layer's.
        queries_RAD: The block's queries, rotated at their stored positions.
        new: Their own keys and values, `[R, K, D]`, which probes read from here; None where there is no probe.

    Returns:
        `[R, A, D]`.
    """
    num_rows, num_heads, head_dim = queries_RAD.shape
    num_kv_heads = call.keys_KSD.shape[0]
    shape = (num_kv_heads, plan.num_clusters, num_heads // num_kv_heads, num_rows // plan.num_clusters)
    rotated: list[Tensor] = []
    for index, queries in enumerate(plan.rotations.apply(call.apply_rotary, queries_RAD)):
        room = call.scratch.room(f"queries {index}", (*shape, head_dim), queries.dtype)
        rotated.append(torch.mul(_by_cluster(queries, shape), call.scaling, out=room))
    scores: list[Tensor] = []
    for index, source in enumerate(plan.sources):
        keys = source.read(call.keys_KSD, call.page_size, call.scratch)
        batch = keys.shape[0]
        rows = rotated[plan.rotations.of_turn[source.turn]].view(batch, -1, head_dim)
        room = call.scratch.room(f"scores {index}", (batch, rows.shape[1], source.width), rows.dtype)
        scores.append(torch.bmm(rows, keys.transpose(1, 2), out=room).view(num_kv_heads, -1, source.width))
    if new is not None:
        own = (rotated[0] * _by_cluster(new[0], shape)).sum(-1)
        scores.append(own.view(num_kv_heads, -1, 1))
    weights = _weights(plan, call, scores, shape)
    out: Tensor | None = None
    column = 0
    for source in plan.sources:
        values = source.read(call.values_KSD, call.page_size, call.scratch)
        batch = values.shape[0]
        rows = weights.narrow(2, column, source.width).view(batch, -1, source.width)
        before = None if out is None else out.view(batch, rows.shape[1], -1)
        out = torch.bmm(rows, values) if before is None else torch.baddbmm(before, rows, values)
        column += source.width
    if new is not None:
        own = weights.narrow(2, column, 1).view(*shape, 1) * _by_cluster(new[1], shape)
        out = own if out is None else out.view(own.shape) + own
    assert out is not None, "a query reads something, if only itself"
    return out.view(*shape, -1).permute(1, 3, 0, 2, 4).reshape(num_rows, num_heads, -1)


def _weights(
    plan: JointPlan, call: LayerCall, scores: list[Tensor], shape: tuple[int, int, int, int]
) -> Tensor:
    """From the scores of each source's columns to the weights of all, `[K, C * G * M, T]`."""
    dtype, num_rows = scores[0].dtype, scores[0].shape[1]
    width = sum(part.shape[2] for part in scores)
    if len(scores) == 1:
        joined = scores[0]
    else:
        room = call.scratch.room("scores", (shape[0], num_rows, width), dtype)
        joined = torch.cat(scores, 2, out=room)
    joined_KCGMT = call.capped(joined).view(*shape, width)
    if plan.mask is not None:
        joined_KCGMT.narrow(4, 0, plan.mask.shape[3]).add_(plan.mask)
    if plan.own_mask is not None:
        joined_KCGMT.narrow(4, width - 1, 1).add_(plan.own_mask)
    if call.sinks_A is not None:
        sinks = call.sinks_A.view(shape[0], 1, -1, 1, 1).expand(*shape, 1)
        joined_KCGMT = torch.cat((joined_KCGMT, sinks.to(dtype)), -1)
    accurate = torch.promote_types(dtype, torch.float32)
    room = call.scratch.room("weights", joined_KCGMT.shape, accurate)
    return torch.softmax(joined_KCGMT, -1, dtype=accurate, out=room).to(dtype).flatten(1, 3)


def _by_cluster(states_RAD: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """`[R, A or K, D]` as `[K, C, G, M, D]`."""
    num_kv_heads, num_clusters, group, members = shape
    states = states_RAD.view(num_clusters, members, num_kv_heads, -1, states_RAD.shape[-1])
    return states.permute(2, 0, 3, 1, 4).expand(-1, -1, group, -1, -1)
