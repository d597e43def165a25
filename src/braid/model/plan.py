"""From who reads what to tensors: the plan of one forward pass.

    SpanRead (numpy)                          Plan (tensors), one part a layer kind
    queries 2,3 of a batch read tokens  ──▶   pairs    (query, read) with the extra rotation of each pair
    0…17 of one page list, shifted by 5       reads    extent → the rows of pairs that read it, mask if ragged
                                              merge    which pairs belong to which query

A forward of few queries, such as a row, is attended jointly instead: all extents under one softmax, see `joint.py`.

A new token's key and value are written to the pool before anything is read, so a span may end with tokens of this
very forward. A probe is never written: it reads itself from the forward, as one more pair. A span that several
lanes read is attended once, for the queries of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import KVCache
from braid.model.architecture import Architecture, LayerKind, rope_tables, rotate
from braid.model.joint import JointPlan, attend_jointly, plan_jointly
from braid.model.kernels import Kernel
from braid.model.reads import ExtentRead, Ints, Run, SpanRead, additive_mask, runs_of

__all__ = ["Plan", "SpanRead", "build_plan"]

BRIDGED_AREA = 1 << 21
"""Extents that lie side by side are read as one, masked, unless that mask would have more entries than this."""
MASKED_AREA = 1 << 16
"""A ragged read is split into a plain part and a masked rest when its mask would have more entries than this."""


@dataclass(frozen=True)
class _Read:
    """One extent and the rows of `pairs` that read it."""

    slot: int
    length: int
    first: int
    last: int
    mask: Tensor | None


@dataclass(frozen=True)
class _KindPlan:
    """The part of a plan that layers of one kind share."""

    pair_queries_P: Tensor | None
    """The query of each pair; None when the pairs are the queries in their order."""
    cos: Tensor | None
    sin: Tensor | None
    reads: tuple[_Read, ...]
    merge_NM: Tensor | None
    """The pairs of each query, padded with the number of pairs; None when each query has the pair of its index."""
    padded: bool
    joint: JointPlan | None = None
    """Instead of all that, where the forward is small."""


@dataclass(frozen=True)
class Plan:
    """All that the attention function needs in one forward; built once, used by every layer.

    Args:
        cache: Where keys and values go and come from.
        kernel: What computes a read.
    """

    cache: KVCache
    kernel: Kernel
    layers: tuple[LayerKind, ...]
    kinds: dict[LayerKind, _KindPlan]
    slots_L: Tensor
    """Slots of the kept tokens."""
    kept_L: Tensor | None
    """Indices of the kept tokens; None when all are."""
    probes_L: Tensor | None
    """Indices of the probes; None when there are none."""
    architecture: Architecture

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        softcap: float | None = None,
        sinks_A: Tensor | None = None,
    ) -> Tensor:
        """Write the new keys and values, then attend.

        Args:
            layer: Index of the layer.
            query: `[1, A, N, D]`, rotated at the stored positions.
            key, value: `[1, K, N, D]`.
            scaling: Of the scores.
            softcap: Soft limit of the scores, for models that have one.
            sinks_A: A learned score a head that takes weight and gives nothing.

        Returns:
            `[1, N, A, D]`.
        """
        keys_KND, values_KND = key[0], value[0]
        if self.kept_L is None:
            self.cache.write(layer, self.slots_L, keys_KND, values_KND)
        elif len(self.kept_L):
            self.cache.write(
                layer,
                self.slots_L,
                keys_KND.index_select(1, self.kept_L),
                values_KND.index_select(1, self.kept_L),
            )
        kind = self.kinds[self.layers[layer]]
        num_kv_heads, num_new, _ = keys_KND.shape
        queries_KNGD = query[0].unflatten(0, (num_kv_heads, -1)).transpose(1, 2)
        if kind.joint is not None:
            cached = (self.cache.keys_KSD[layer], self.cache.values_KSD[layer])
            rotated = self.architecture.apply_rotary
            out_KNGD = attend_jointly(
                kind.joint, rotated, queries_KNGD, keys_KND, values_KND, cached, scaling, softcap, sinks_A
            )
            return out_KNGD.transpose(0, 1).flatten(1, 2)[None]
        out, lse = self._read(kind, layer, queries_KNGD, scaling, softcap)
        if self.probes_L is not None:
            own_out, own_lse = self._read_themselves(queries_KNGD, keys_KND, values_KND, scaling, softcap)
            out, lse = torch.cat((out, own_out), 1), torch.cat((lse, own_lse.to(lse.dtype)), 1)
        merged_KNGD = _merge(kind, out, lse, num_new, sinks_A)
        return merged_KNGD.transpose(0, 1).flatten(1, 2)[None]

    def _read(
        self, kind: _KindPlan, layer: int, queries_KNGD: Tensor, scaling: float, softcap: float | None
    ) -> tuple[Tensor, Tensor]:
        """Every read of the plan: outputs `[K, P, G, D]` and log-sum-exps `[K, P, G]`."""
        pairs_KPGD = (
            queries_KNGD.contiguous()
            if kind.pair_queries_P is None
            else queries_KNGD.index_select(1, kind.pair_queries_P)
        )
        if kind.cos is not None and kind.sin is not None:
            assert self.architecture.apply_rotary is not None
            pairs_KPGD = rotate(self.architecture.apply_rotary, pairs_KPGD, kind.cos, kind.sin)
        keys_KSD, values_KSD = self.cache.keys_KSD[layer], self.cache.values_KSD[layer]
        num_kv_heads, _, group, head_dim = pairs_KPGD.shape
        outs: list[Tensor] = []
        lses: list[Tensor] = []
        for read in kind.reads:
            stop = read.slot + read.length
            out, lse = self.kernel(
                pairs_KPGD[:, read.first : read.last].reshape(1, num_kv_heads, -1, head_dim),
                keys_KSD[None, :, read.slot : stop],
                values_KSD[None, :, read.slot : stop],
                read.mask,
                scaling,
                softcap,
            )
            outs.append(out.reshape(num_kv_heads, -1, group, out.shape[-1]))
            lses.append(lse.reshape(num_kv_heads, -1, group))
        if len(outs) == 1:
            return outs[0], lses[0]
        if not outs:  # probes that read nothing but themselves
            empty = pairs_KPGD.new_empty(num_kv_heads, 0, group, values_KSD.shape[-1])
            return empty, empty[..., 0]
        return torch.cat(outs, 1), torch.cat(lses, 1)

    def _read_themselves(
        self,
        queries_KNGD: Tensor,
        keys_KND: Tensor,
        values_KND: Tensor,
        scaling: float,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Each probe's one look at itself: its value, and its own score as log-sum-exp."""
        assert self.probes_L is not None
        own_KLGD = queries_KNGD.index_select(1, self.probes_L)
        scores = (own_KLGD * keys_KND.index_select(1, self.probes_L)[:, :, None]).sum(-1) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        out = values_KND.index_select(1, self.probes_L)[:, :, None].expand(-1, -1, own_KLGD.shape[2], -1)
        return out, scores


def _merge(kind: _KindPlan, out: Tensor, lse: Tensor, num_new: int, sinks_A: Tensor | None) -> Tensor:
    """Weigh the pairs of each query by their log-sum-exp: `[K, P, G, D]` to `[K, N, G, D]`."""
    if kind.merge_NM is None and sinks_A is None:
        return out
    num_kv_heads, _, group, head_dim = out.shape
    if kind.merge_NM is None:
        out_KNMGD, lse_KNMG = out[:, :, None], lse[:, :, None]
    else:
        if kind.padded:
            out = torch.cat((out, out.new_zeros(num_kv_heads, 1, group, head_dim)), 1)
            lse = torch.cat((lse, lse.new_full((num_kv_heads, 1, group), -torch.inf)), 1)
        chosen = kind.merge_NM.flatten()
        out_KNMGD = out.index_select(1, chosen).unflatten(1, (num_new, -1))
        lse_KNMG = lse.index_select(1, chosen).unflatten(1, (num_new, -1))
    if sinks_A is not None:
        sinks = sinks_A.to(lse_KNMG.dtype).view(num_kv_heads, 1, 1, group).expand(-1, num_new, -1, -1)
        lse_KNMG = torch.cat((lse_KNMG, sinks), 2)
    weights = torch.softmax(lse_KNMG, dim=2)[:, :, : out_KNMGD.shape[2], :, None].to(out.dtype)
    return (weights * out_KNMGD).sum(2)


def build_plan(
    architecture: Architecture,
    cache: KVCache,
    kernel: Kernel,
    *,
    positions: Ints,
    slots: Ints,
    reads: Sequence[SpanRead],
    like: Tensor,
    jointly: bool = True,
) -> Plan:
    """Turn span reads into the tensors of one forward.

    Args:
        architecture, cache, kernel: What the plan is for.
        positions: Stored position of each new token, `[N]`.
        slots: Slot of each new token, -1 for a probe, `[N]`.
        reads: Who reads what. A kept token's own key is read like any other; a probe reads itself besides.
        like: A tensor of the dtype and device of the forward.
        jointly: Let small forwards be attended jointly; False for a comparison of the two ways.

    Raises:
        UnsupportedModelError: A read is shifted and the model cannot shift.
    """
    if any(read.shifts.any() for read in reads):
        architecture.require_shifts()
    device = like.device
    kept = np.flatnonzero(slots >= 0)
    probes = np.flatnonzero(slots < 0)
    kinds: dict[LayerKind, _KindPlan] = {}
    group = architecture.num_heads // architecture.shapes[0].num_kv_heads
    for kind in architecture.kinds:
        size = cache.pool.page_size
        joint = plan_jointly(architecture, kind, reads, positions, probes, size, like) if jointly else None
        if joint is not None:
            kinds[kind] = _KindPlan(None, None, None, (), None, padded=False, joint=joint)
            continue
        runs = runs_of(_by_slot(reads, positions, kind.window), len(positions), size)
        pieces = [piece for run in runs for piece in _pieces(run, positions)]
        kinds[kind] = _tensors(architecture, kind, pieces, probes, len(positions), group, like)
    return Plan(
        cache=cache,
        kernel=kernel,
        layers=architecture.layers,
        kinds=kinds,
        slots_L=torch.from_numpy(slots[kept]).to(device),
        kept_L=None if len(kept) == len(positions) else torch.from_numpy(kept).to(device),
        probes_L=torch.from_numpy(probes).to(device) if len(probes) else None,
        architecture=architecture,
    )


@dataclass(frozen=True)
class _Piece:
    """Queries that read one extent: `allowed` is None where each of them reads all of it."""

    slot: int
    length: int
    queries: Ints
    shifts: Ints
    allowed: NDArray[np.bool_] | None


def _by_slot(reads: Sequence[SpanRead], positions: Ints, window: int | None) -> dict[int, list[ExtentRead]]:
    """Cut span reads into extents, and gather the queries that read the same one."""
    by_slot: dict[int, list[ExtentRead]] = {}
    for read in reads:
        start = read.first(positions, window)
        wanted = read.stop > start
        if not wanted.any():
            continue
        queries, start, stop = read.queries[wanted], start[wanted], read.stop[wanted]
        shifts = read.shifts[wanted]
        # Extents are cut from the list's beginning, so that lists which share pages meet at the same slots.
        for extent in read.pages.extents(0, int(stop.max())):
            first = np.clip(start - extent.start, 0, extent.length)
            last = np.clip(stop - extent.start, 0, extent.length)
            here = last > first
            if here.any():
                entry = ExtentRead(queries[here], shifts[here], first[here], last[here], read, extent.start)
                by_slot.setdefault(extent.slot, []).append(entry)
    return by_slot


def _pieces(run: Run, positions: Ints) -> list[_Piece]:
    """A run as one masked read, where it holds several extents and that is not too large; else extent by extent."""
    by_slot: dict[int, list[ExtentRead]] = {}
    for offset, extent in run.extents:
        by_slot.setdefault(run.slot + offset, []).append(extent)
    queries = np.unique(np.concatenate([extent.queries for _, extent in run.extents]))
    if len(by_slot) > 1 and len(queries) * run.length <= BRIDGED_AREA:
        allowed = run.allowed(len(positions), positions)[queries]
        some = allowed.any(1)
        return [_Piece(run.slot, run.length, queries[some], run.shifts[queries[some]], allowed[some])]
    return [piece for slot, entries in by_slot.items() for piece in _split(slot, entries, positions)]


def _split(slot: int, entries: list[ExtentRead], positions: Ints) -> list[_Piece]:
    """One extent, all its queries: as one plain read, one masked read, or a plain read and masked edges."""
    queries = np.concatenate([e.queries for e in entries])
    shifts = np.concatenate([e.shifts for e in entries])
    first = np.concatenate([e.first for e in entries])
    last = np.concatenate([e.last for e in entries])
    low, high = int(first.min()), int(last.max())
    inner_low, inner_high = int(first.max()), int(last.min())
    striped = any(e.read.stride > 1 for e in entries)
    if not striped and inner_low == low and inner_high == high:
        return [_Piece(slot + low, high - low, queries, shifts, None)]
    if striped or len(queries) * (high - low) <= MASKED_AREA or inner_high <= inner_low:
        allowed = np.concatenate([e.allowed(low, high, positions) for e in entries])
        some = allowed.any(1)
        return (
            [_Piece(slot + low, high - low, queries[some], shifts[some], allowed[some])] if some.any() else []
        )
    parts = [_Piece(slot + inner_low, inner_high - inner_low, queries, shifts, None)]
    for edge_low, edge_high in ((low, inner_low), (inner_high, high)):
        edge_first, edge_last = np.maximum(first, edge_low), np.minimum(last, edge_high)
        some = edge_last > edge_first
        if some.any():
            index = np.arange(edge_low, edge_high)
            allowed = (index >= edge_first[some, None]) & (index < edge_last[some, None])
            parts.append(_Piece(slot + edge_low, edge_high - edge_low, queries[some], shifts[some], allowed))
    return parts


def _tensors(
    architecture: Architecture,
    kind: LayerKind,
    pieces: list[_Piece],
    probes: Ints,
    num_new: int,
    group: int,
    like: Tensor,
) -> _KindPlan:
    """Lay pieces out as rows of pairs, and say which pairs make up each query."""
    nothing = np.empty(0, dtype=np.int64)
    queries = np.concatenate([p.queries for p in pieces] or [nothing])
    shifts = np.concatenate([p.shifts for p in pieces] or [nothing])
    reads: list[_Read] = []
    row = 0
    for piece in pieces:
        mask = None if piece.allowed is None else additive_mask(piece.allowed, group, like)
        reads.append(_Read(piece.slot, piece.length, row, row + len(piece.queries), mask))
        row += len(piece.queries)
    cos = sin = None
    if kind.rope is not None and shifts.any():
        assert architecture.rotary is not None
        cos, sin = rope_tables(architecture.rotary, kind.rope, torch.from_numpy(shifts), like)
    owners = np.concatenate((queries, probes))
    identity = len(owners) == num_new and bool((owners == np.arange(num_new)).all())
    in_order = len(queries) == num_new and bool((queries == np.arange(num_new)).all())
    merge, padded = (None, False) if identity else _merge_table(owners, num_new)
    return _KindPlan(
        pair_queries_P=None if in_order else torch.from_numpy(queries).to(like.device),
        cos=cos,
        sin=sin,
        reads=tuple(reads),
        merge_NM=None if merge is None else torch.from_numpy(merge).to(like.device),
        padded=padded,
    )


def _merge_table(owners: Ints, num_new: int) -> tuple[Ints, bool]:
    """The pairs of each query, `[N, M]`, padded with the number of pairs."""
    counts = np.bincount(owners, minlength=num_new)
    assert counts.min() > 0, "a query reads nothing, not even itself"
    order = np.argsort(owners, kind="stable")
    column = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((num_new, int(counts.max())), len(owners), dtype=np.int64)
    table[owners[order], column] = order
    return table, bool((counts != counts.max()).any())
