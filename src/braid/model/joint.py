"""Attention of a few queries over all their extents at once, under one softmax.

A row has a handful of queries, and each of them reads most of what the others read. Then one matrix product an
extent, one softmax over all of them, and one more product an extent cost less than a flash-attention call an extent
and the merge of what these return. What a query must not read is masked; it adds exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from braid.model.architecture import Architecture, LayerKind, rope_tables, rotate
from braid.model.reads import ExtentRead, Ints, additive_mask

__all__ = ["JointPlan", "attend_jointly", "plan_jointly"]

JOINT_AREA = 1 << 17
"""Forwards with more scores than this a head are not attended jointly."""
JOINT_SHARE = 0.3
"""Nor are those in which a smaller share of the scores is of use, such as a batch of many sessions."""


@dataclass(frozen=True)
class JointPlan:
    """What layers of one kind need to attend jointly."""

    extents: tuple[tuple[int, int], ...]
    """First slot and number of tokens of each."""
    mask: Tensor | None
    """Added to the scores, `[1, N * G, T]`; None where every query reads everything."""
    cos: Tensor | None
    """The extra rotation of each query before each extent, `[1, R * N, D]`; None where nothing is shifted."""
    sin: Tensor | None
    own_mask: Tensor | None
    """Added to each query's score with itself, `[1, N * G, 1]`: 0 for probes; None where there is no probe."""


def plan_jointly(
    architecture: Architecture,
    kind: LayerKind,
    by_slot: Mapping[int, Sequence[ExtentRead]],
    positions: Ints,
    probes: Ints,
    like: Tensor,
) -> JointPlan | None:
    """A joint plan, or None where the forward is too large or too scattered for one."""
    num_new = len(positions)
    ranges = {
        slot: (min(int(e.first.min()) for e in entries), max(int(e.last.max()) for e in entries))
        for slot, entries in by_slot.items()
    }
    width = sum(high - low for low, high in ranges.values())
    if num_new * width > JOINT_AREA or not width:
        return None
    allowed = np.zeros((num_new, width), dtype=bool)
    shifts = np.zeros((len(ranges), num_new), dtype=np.int64)
    extents: list[tuple[int, int]] = []
    column = 0
    for row, (slot, (low, high)) in enumerate(ranges.items()):
        for entry in by_slot[slot]:
            allowed[entry.queries, column : column + high - low] |= entry.allowed(low, high, positions)
            shifts[row, entry.queries] = entry.shifts
        extents.append((slot + low, high - low))
        column += high - low
    if allowed.mean() < JOINT_SHARE:
        return None
    group = architecture.num_heads // architecture.shapes[0].num_kv_heads
    cos = sin = None
    if kind.rope is not None and shifts.any():
        assert architecture.rotary is not None
        cos, sin = rope_tables(architecture.rotary, kind.rope, torch.from_numpy(shifts.reshape(-1)), like)
    is_probe = np.zeros((num_new, 1), dtype=bool)
    is_probe[probes] = True
    assert (allowed.any(1) | is_probe[:, 0]).all(), "a query reads nothing, not even itself"
    return JointPlan(
        extents=tuple(extents),
        mask=None if allowed.all() else additive_mask(allowed, group, like)[0],
        cos=cos,
        sin=sin,
        own_mask=additive_mask(is_probe, group, like)[0] if len(probes) else None,
    )


def attend_jointly(
    plan: JointPlan,
    apply_rotary: Callable[..., tuple[Tensor, Tensor]] | None,
    queries_KNGD: Tensor,
    keys_KND: Tensor,
    values_KND: Tensor,
    cached: tuple[Tensor, Tensor],
    scaling: float,
    softcap: float | None,
    sinks_A: Tensor | None,
) -> Tensor:
    """Attend.

    Args:
        plan: From `plan_jointly`.
        apply_rotary: The model's rotation.
        queries_KNGD: New queries, rotated at their stored positions.
        keys_KND, values_KND: New keys and values, for probes, which read themselves from here.
        cached: Keys and values of the layer in the pool, `[K, S, D]` each; the kept new ones are in them.
        scaling, softcap, sinks_A: As the layer has them.

    Returns:
        `[K, N, G, D]`.
    """
    num_kv_heads, num_new, group, _ = queries_KNGD.shape
    keys_KSD, values_KSD = cached
    scaled_KNGD = queries_KNGD * scaling
    plain = scaled_KNGD.flatten(1, 2)
    turned = [plain] * len(plan.extents)
    if plan.cos is not None and plan.sin is not None:
        assert apply_rotary is not None
        pairs = scaled_KNGD.repeat(1, len(plan.extents), 1, 1)
        turned = list(
            rotate(apply_rotary, pairs, plan.cos, plan.sin).flatten(1, 2).chunk(len(plan.extents), 1)
        )
    scores = [
        torch.bmm(queries, keys_KSD[:, slot : slot + length].transpose(1, 2))
        for queries, (slot, length) in zip(turned, plan.extents, strict=True)
    ]
    if plan.own_mask is not None:
        scores.append((plain * keys_KND.repeat_interleave(group, 1)).sum(-1, keepdim=True))
    joined = scores[0] if len(scores) == 1 else torch.cat(scores, 2)
    if softcap is not None:
        joined = torch.tanh(joined / softcap) * softcap
    if plan.mask is not None:
        joined[:, :, : plan.mask.shape[2]] += plan.mask
    if plan.own_mask is not None:
        joined[:, :, -1:] += plan.own_mask
    if sinks_A is not None:
        column = sinks_A.view(num_kv_heads, 1, group, 1).expand(-1, num_new, -1, -1).flatten(1, 2)
        joined = torch.cat((joined, column.to(joined.dtype)), 2)
    weights = torch.softmax(joined, -1, dtype=torch.promote_types(joined.dtype, torch.float32)).to(
        plain.dtype
    )
    out: Tensor | None = None
    column = 0
    for slot, length in plan.extents:
        part, values = weights[:, :, column : column + length], values_KSD[:, slot : slot + length]
        out = torch.bmm(part, values) if out is None else torch.baddbmm(out, part, values)
        column += length
    assert out is not None, "a joint plan has an extent"
    if plan.own_mask is not None:
        out += weights[:, :, column : column + 1] * values_KND.repeat_interleave(group, 1)
    return out.unflatten(1, (num_new, group))
