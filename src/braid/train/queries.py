"""What the network computes for one example: its kept tokens, and the probes that are asked.

A silent, awake output is asked in every row, and mostly answers with silence. Since nothing reads a probe, leaving some
out changes nothing else: of those whose answer is silence, a share is drawn, and each counts for the ones left out
(reweighted by its inverse probability). What the loss is divided by is the weights of all, drawn or not, so that the
expected gradient is exactly that of all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from braid.data.row_table import RowTable
from braid.model.reads import Bools, Ints

__all__ = ["IGNORED", "Queries", "Weighing", "queries_of"]

IGNORED = -100
"""The label of a query that is not asked."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Weighing:
    """How much each answer counts.

    Args:
        silence: Of an answer that is silence, beside a token's 1.
        probe_share: Share of the probes with a silent answer that are computed.
        streams: Factors by stream, beside the lanes' own weights. An input that is named here is learned, too: it is
            asked for each token that follows in the next row, so that who reads it can tell what was to be expected.
    """

    silence: float = 0.3
    probe_share: float = 1.0
    streams: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Queries:
    """One example, flat; in no particular order.

    Args:
        ids, streams, rows: Of each query, `[n]`.
        kept: Whether it is a token that others read; the rest are probes.
        targets: What it is to say next, or `IGNORED`.
        weights: Of each answer; 0 where there is none.
        total: Sum of the weights of all answers of the example, those of probes that were left out among them.
    """

    ids: Ints
    streams: Ints
    rows: Ints
    kept: Bools
    targets: Ints
    weights: Floats
    total: float

    @classmethod
    def joined(cls, parts: Sequence[Queries]) -> Queries:
        """Several, one after another."""
        arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS)
        return cls(*arrays, total=sum(part.total for part in parts))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, chosen: Ints | Bools) -> Queries:
        """Some of them, in another order; what is left out still counts in the total."""
        return Queries(*(getattr(self, name)[chosen] for name in _ARRAYS), total=self.total)


_ARRAYS = tuple(name for name in Queries.__slots__ if name != "total")


def queries_of(
    table: RowTable,
    streams: Sequence[str],
    silence_id: int,
    weighing: Weighing,
    rng: np.random.Generator | None = None,
) -> Queries:
    """The queries of an example.

    Args:
        table: The example.
        streams: Of the model, in their order.
        silence_id: The class that means silence, and what a probe embeds.
        weighing: What counts how much.
        rng: Draws the probes; without it all are kept.

    Raises:
        KeyError: The model has no such stream.
    """
    parts: list[Queries] = []
    place = {name: index for index, name in enumerate(streams)}
    for lane in table.lanes:
        rows, ids = np.asarray(lane.rows, np.int64), np.asarray(lane.ids, np.int64)
        stream, factors = place[lane.stream], weighing.streams or {}
        if not lane.asked:
            parts.append(_foreseen(ids, stream, rows, factors.get(lane.stream, 0.0)))
            continue
        factor = lane.weight * factors.get(lane.stream, 1.0)
        said = np.full(table.num_rows + 1, silence_id, np.int64)
        said[rows] = ids
        is_asked = np.zeros(table.num_rows, bool)
        for start, stop in lane.asked:
            is_asked[start:stop] = True
        is_said = np.zeros(table.num_rows, bool)
        is_said[rows] = True
        targets = np.where(is_asked[rows], said[rows + 1], IGNORED)
        weights = _weights(targets, silence_id, factor, weighing)
        parts.append(_queries(ids, stream, rows, True, targets, weights))
        probes = np.flatnonzero(is_asked & ~is_said)
        if len(probes):
            answers = said[probes + 1]
            weights = _weights(answers, silence_id, factor, weighing)
            silence = np.full(len(probes), silence_id, np.int64)
            asked = _queries(silence, stream, probes, False, answers, weights)
            if rng is not None and weighing.probe_share < 1:
                is_silent = answers == silence_id
                chosen = ~is_silent | (rng.random(len(probes)) < weighing.probe_share)
                reweighted = np.where(is_silent, weights / np.float32(weighing.probe_share), weights)
                asked = replace(asked, weights=reweighted)[chosen]
            parts.append(asked)
    return Queries.joined(parts)


def _foreseen(ids: Ints, stream: int, rows: Ints, factor: float) -> Queries:
    """An input, asked for its next token where that comes at once, or not at all."""
    targets = np.full(len(ids), IGNORED)
    if factor:
        follows = rows[1:] == rows[:-1] + 1
        targets[:-1][follows] = ids[1:][follows]
    weights = np.where(targets == IGNORED, 0.0, factor).astype(np.float32)
    return _queries(ids, stream, rows, True, targets, weights)


def _queries(ids: Ints, stream: int, rows: Ints, kept: bool, targets: Ints, weights: Floats) -> Queries:
    """Queries of one stream, either tokens or probes."""
    total = float(weights.sum(dtype=np.float64))
    return Queries(ids, np.full(len(ids), stream), rows, np.full(len(ids), kept), targets, weights, total)


def _weights(targets: Ints, silence_id: int, factor: float, weighing: Weighing) -> Floats:
    weights = np.where(targets == silence_id, factor * weighing.silence, factor)
    return np.where(targets == IGNORED, 0.0, weights).astype(np.float32)
