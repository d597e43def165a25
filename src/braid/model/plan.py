"""From who reads what to tensors: the plan of one forward pass.

    SpanRead (numpy)                     blocks (numpy)                        Plan (tensors), one part a layer kind
    queries 2, 3 of a batch read    ──▶  queries that are attended in   ──▶    JointPlan   one softmax, joint.py
    tokens 0 … 17 of one page            one go, and the pages that            LargePlan   a kernel, large.py
    list, shifted by 5                   these read, blocks.py

A new token's key and value are written to the pool before anything is read, so a span may end with tokens of this
very forward. A probe is never written: it reads itself from the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from braid.cache import KVCache
from braid.model import joint
from braid.model.architecture import Architecture, LayerKind
from braid.model.blocks import Block, lay_out
from braid.model.joint import JointPlan, attend_jointly, plan_jointly
from braid.model.kernels import Kernel
from braid.model.large import LargePlan, attend_by_kernel, plan_for_kernel
from braid.model.layercall import LayerCall, Scratch
from braid.model.reads import Bools, Ints, ReadTable, SpanRead

__all__ = ["Plan", "SpanRead", "build_plan"]


@dataclass(frozen=True)
class _Part:
    """A block, and how it is attended."""

    queries_R: Tensor | None
    """Its queries; None where it has all of them, in their order."""
    way: JointPlan | LargePlan


@dataclass(frozen=True)
class _KindPlan:
    """The part of a plan that layers of one kind share."""

    parts: tuple[_Part, ...]
    rows_N: Tensor | None
    """Where each query is among the rows of all parts, one after another; None where these are the queries."""


@dataclass(frozen=True)
class Plan:
    """All that the attention function needs in one forward; built once, used by every layer.

    Args:
        cache: Where keys and values go and come from.
        kernel: What attends large blocks.
    """

    cache: KVCache
    kernel: Kernel
    layers: tuple[LayerKind, ...]
    kinds: dict[LayerKind, _KindPlan]
    slots_L: Tensor
    """Slots of the kept tokens."""
    kept_L: Tensor | None
    """Indices of the kept tokens; None when all are."""
    scratch: Scratch
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
        self._write(layer, key[0], value[0])
        call = LayerCall(
            keys_KSD=self.cache.keys_KSD[layer],
            values_KSD=self.cache.values_KSD[layer],
            page_size=self.cache.pool.page_size,
            scratch=self.scratch,
            apply_rotary=self.architecture.apply_rotary,
            scaling=scaling,
            softcap=softcap,
            sinks_A=sinks_A,
        )
        kind = self.kinds[self.layers[layer]]
        outs: list[Tensor] = []
        for part in kind.parts:
            queries = _rows(query[0], part.queries_R)
            # Only probes read new keys from here; what is kept is read from the pool.
            new = (
                (_rows(key[0], part.queries_R), _rows(value[0], part.queries_R))
                if part.way.has_probes
                else None
            )
            if isinstance(part.way, JointPlan):
                outs.append(attend_jointly(part.way, call, queries, new))
            else:
                outs.append(attend_by_kernel(part.way, self.kernel, call, queries, new))
        out_RAD = outs[0] if len(outs) == 1 else torch.cat(outs)
        return (out_RAD if kind.rows_N is None else out_RAD.index_select(0, kind.rows_N))[None]

    def _write(self, layer: int, keys_KND: Tensor, values_KND: Tensor) -> None:
        if self.kept_L is None:
            self.cache.write(layer, self.slots_L, keys_KND, values_KND)
        elif len(self.kept_L):
            kept = (states.index_select(1, self.kept_L) for states in (keys_KND, values_KND))
            self.cache.write(layer, self.slots_L, *kept)


def _rows(states_AND: Tensor, queries_R: Tensor | None) -> Tensor:
    """`[A or K, N, D]` as `[R, A or K, D]`."""
    states_NAD = states_AND.transpose(0, 1)
    return states_NAD if queries_R is None else states_NAD.index_select(0, queries_R)


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
        jointly: Attend small blocks jointly; False for a comparison of the two ways.

    Raises:
        UnsupportedModelError: A read is shifted and the model cannot shift.
    """
    table = ReadTable(reads, positions, cache.pool.page_size)
    if table.entries.shifts.any():
        architecture.require_shifts()
    kept, is_probe = np.flatnonzero(slots >= 0), slots < 0
    blocks = {
        window: lay_out(table, window, joint.JOINT_AREA if jointly else 0)
        for window in {kind.window for kind in architecture.kinds}
    }
    kinds = {
        kind: _plan_kind(architecture, kind, blocks[kind.window], is_probe, table.page_size, like)
        for kind in architecture.kinds
    }
    return Plan(
        cache=cache,
        kernel=kernel,
        layers=architecture.layers,
        kinds=kinds,
        slots_L=torch.from_numpy(slots[kept]).to(like.device),
        kept_L=None if len(kept) == len(positions) else torch.from_numpy(kept).to(like.device),
        scratch=Scratch(like),
        architecture=architecture,
    )


def _plan_kind(
    architecture: Architecture,
    kind: LayerKind,
    blocks: Sequence[Block],
    is_probe: Bools,
    page_size: int,
    like: Tensor,
) -> _KindPlan:
    """The plan of the layers of one kind."""
    rows = np.concatenate([block.queries.ravel() for block in blocks])
    in_order = np.array_equal(rows, np.arange(len(is_probe)))
    parts: list[_Part] = []
    for block in blocks:
        probes = is_probe[block.queries]
        assert (block.allowed.any(2) | probes).all(), "a query reads nothing, not even itself"
        make = plan_jointly if block.is_joint else plan_for_kernel
        way = make(block, architecture, kind, probes, page_size, like)
        is_all = in_order and len(blocks) == 1
        parts.append(_Part(None if is_all else torch.from_numpy(block.queries.ravel()).to(like.device), way))
    first_row = np.unique(rows, return_index=True)[1]
    return _KindPlan(tuple(parts), None if in_order else torch.from_numpy(first_row).to(like.device))
