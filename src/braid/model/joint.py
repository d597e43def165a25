"""Attention of a few queries over all that they read at once, under one softmax.

A row has a handful of queries, and each of them reads most of what the others read. Then one matrix product a run of
slots, one softmax over all of them, and one more product a run cost less than a flash-attention call an extent and
the merge of what these return. What a query must not read is masked; it adds exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import PageList
from braid.model.architecture import Architecture, LayerKind, rope_tables, rotate
from braid.model.reads import Ints, SpanRead, additive_mask

__all__ = ["JointPlan", "attend_jointly", "plan_jointly"]

JOINT_AREA = 1 << 17
"""Forwards with more scores than this a head are not attended jointly."""
JOINT_SHARE = 0.3
"""Nor are those in which a smaller share of the scores is of use, such as a batch of many sessions."""


@dataclass(frozen=True)
class JointPlan:
    """What layers of one kind need to attend jointly."""

    runs: tuple[tuple[int, int], ...]
    """First slot and number of slots of each."""
    mask: Tensor | None
    """Added to the scores, `[1, N * G, T]`; None where every query reads everything."""
    cos: Tensor | None
    """The extra rotation of each query before each run, `[1, R * N, D]`; None where nothing is shifted."""
    sin: Tensor | None
    own_mask: Tensor | None
    """Added to each query's score with itself, `[1, N * G, 1]`: 0 for probes; None where there is no probe."""


@dataclass(frozen=True)
class _ListRead:
    """All that is read of one page list, by all queries."""

    slots: Ints
    """`[T]`"""
    allowed: NDArray[np.bool_]
    """`[N, T]`"""
    shifts: Ints
    """Of each query before this list, `[N]`; 0 for those that read nothing of it."""

    def agrees(self, other: _ListRead) -> bool:
        """Whether no query comes to the two lists with different shifts."""
        both = self.allowed.any(1) & other.allowed.any(1)
        return bool((self.shifts == other.shifts)[both].all())


def plan_jointly(
    architecture: Architecture,
    kind: LayerKind,
    reads: Sequence[SpanRead],
    positions: Ints,
    probes: Ints,
    page_size: int,
    like: Tensor,
) -> JointPlan | None:
    """A joint plan, or None where the forward is too large or too scattered for one.

    Args:
        architecture, kind, like: As for `build_plan`.
        reads: Who reads what.
        positions: Stored position of each new token, `[N]`.
        probes: Indices of the probes.
        page_size: Slots a page. A run may cover the unfilled end of a page, but not a page of somebody else.
    """
    num_new = len(positions)
    if num_new * num_new > JOINT_AREA:
        return None
    lists = _list_reads(reads, positions, kind.window)
    if num_new * sum(len(part.slots) for part in lists) > JOINT_AREA or not lists:
        return None
    runs = [run for part in _joined(lists) for run in _runs(part, page_size)]
    allowed = np.concatenate([run.allowed for run in runs], 1)
    if allowed.mean() < JOINT_SHARE:
        return None
    shifts = np.stack([run.shifts for run in runs])
    group = architecture.num_heads // architecture.shapes[0].num_kv_heads
    cos = sin = None
    if kind.rope is not None and shifts.any():
        assert architecture.rotary is not None
        cos, sin = rope_tables(architecture.rotary, kind.rope, torch.from_numpy(shifts.reshape(-1)), like)
    is_probe = np.zeros((num_new, 1), dtype=bool)
    is_probe[probes] = True
    assert (allowed.any(1) | is_probe[:, 0]).all(), "a query reads nothing, not even itself"
    return JointPlan(
        runs=tuple((int(run.slots[0]), len(run.slots)) for run in runs),
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
    turned = [plain] * len(plan.runs)
    if plan.cos is not None and plan.sin is not None:
        assert apply_rotary is not None
        pairs = scaled_KNGD.repeat(1, len(plan.runs), 1, 1)
        turned = list(rotate(apply_rotary, pairs, plan.cos, plan.sin).flatten(1, 2).chunk(len(plan.runs), 1))
    scores = [
        torch.bmm(queries, keys_KSD[:, slot : slot + length].transpose(1, 2))
        for queries, (slot, length) in zip(turned, plan.runs, strict=True)
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
    for slot, length in plan.runs:
        part, values = weights[:, :, column : column + length], values_KSD[:, slot : slot + length]
        out = torch.bmm(part, values) if out is None else torch.baddbmm(out, part, values)
        column += length
    assert out is not None, "a joint plan has a run"
    if plan.own_mask is not None:
        out += weights[:, :, column : column + 1] * values_KND.repeat_interleave(group, 1)
    return out.unflatten(1, (num_new, group))


def _list_reads(reads: Sequence[SpanRead], positions: Ints, window: int | None) -> list[_ListRead]:
    """Gather the reads of each page list."""
    by_list: dict[PageList, list[tuple[SpanRead, Ints]]] = {}
    for read in reads:
        start = read.first(positions, window)
        if (read.stop > start).any():
            by_list.setdefault(read.pages, []).append((read, start))
    found: list[_ListRead] = []
    for pages, entries in by_list.items():
        low = min(int(start[read.stop > start].min()) for read, start in entries)
        high = max(int(read.stop.max()) for read, _ in entries)
        index = np.arange(low, high)
        allowed = np.zeros((len(positions), high - low), dtype=bool)
        shifts = np.zeros(len(positions), dtype=np.int64)
        for read, start in entries:
            part = (index >= start[:, None]) & (index < read.stop[:, None])
            if read.stride > 1:
                part &= read.on_stripe(positions, low, high)
            allowed[read.queries] |= part
            shifts[read.queries] = read.shifts
        found.append(_ListRead(pages.slots(low, high), allowed, shifts))
    return found


def _joined(lists: Sequence[_ListRead]) -> list[_ListRead]:
    """Merge lists that are read with the same shifts, so that their slots can be read together."""
    merged: list[list[_ListRead]] = []
    for part in lists:
        home = next((group for group in merged if all(part.agrees(other) for other in group)), None)
        if home is None:
            merged.append([part])
        else:
            home.append(part)
    return [_merged(group) for group in merged]


def _merged(group: Sequence[_ListRead]) -> _ListRead:
    """Several lists as one, its slots ascending and each once, though lists may share pages."""
    slots = np.concatenate([part.slots for part in group])
    allowed = np.concatenate([part.allowed for part in group], 1)
    unique, first, inverse = np.unique(slots, return_index=True, return_inverse=True)
    joined = allowed[:, first]
    again = np.setdiff1d(np.arange(len(slots)), first, assume_unique=True)
    for column in again:  # a page that several lists share
        joined[:, inverse[column]] |= allowed[:, column]
    shifts = np.zeros_like(group[0].shifts)
    for part in group:
        shifts = np.where(part.allowed.any(1), part.shifts, shifts)
    return _ListRead(unique, joined, shifts)


def _runs(part: _ListRead, page_size: int) -> list[_ListRead]:
    """Cut ascending slots where a page or more lies between them; fill smaller gaps with slots that nobody reads."""
    edges = np.flatnonzero(np.diff(part.slots) >= page_size) + 1
    runs: list[_ListRead] = []
    for index in np.split(np.arange(len(part.slots)), edges):
        start, stop = int(part.slots[index[0]]), int(part.slots[index[-1]]) + 1
        allowed = np.zeros((len(part.allowed), stop - start), dtype=bool)
        allowed[:, part.slots[index] - start] = part.allowed[:, index]
        runs.append(_ListRead(np.arange(start, stop), allowed, part.shifts))
    return runs
