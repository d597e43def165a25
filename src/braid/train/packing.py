"""Many examples in one flat batch, none of which can read another, and the plan of who reads whom.

The queries of a batch lie one after another, without padding, so that all that is not attention is computed once a
query. Attention is planned by *readers*: streams that read the same streams. Kept tokens that one reader may read are
sorted by row and stream; then each of its queries reads a prefix of them, and itself. So a plan is, for every reader, a
padded list of queries, one of keys, and how many keys each query reads: a staircase. No mask of the batch's queries by
the batch's queries is made, but one of each example's own.

    reader {user}            u u u u u                 keys: u u u u u
    reader {user, thought}   t t, probes p p p         keys: u u t u u t u

Interleaved (by row) and sequential (by stream) order of the queries give the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from braid.model.reads import Bools, Ints
from braid.streams.patterns import Dense
from braid.streams.topology import Topology
from braid.train.queries import IGNORED, Queries

__all__ = ["Order", "Reading", "pack"]

Order = Literal["interleaved", "sequential"]


@dataclass(frozen=True)
class Reading:
    """Who reads whom, for packing.

    Args:
        streams: In the order of the topology.
        reads: `[H, H]`, reader by read; the diagonal is true.
        is_earlier: Whether a token sees the earlier streams of its row.
        patterns: Reader, read and the pattern, where it is not dense.
    """

    streams: tuple[str, ...]
    reads: Bools
    is_earlier: bool
    patterns: tuple[tuple[int, int, Any], ...] = ()

    @classmethod
    def of(cls, topology: Topology) -> Reading:
        """Of a topology."""
        streams = tuple(topology.streams)
        reads = np.eye(len(streams), dtype=bool)
        patterns: list[tuple[int, int, Any]] = []
        for h, reader in enumerate(streams):
            for read in topology.readable(reader):
                reads[h, streams.index(read)] = True
            for read, pattern in topology.patterns.get(reader, {}).items():
                if pattern != Dense():
                    patterns.append((h, streams.index(read), pattern))
        return cls(streams, reads, topology.same_row == "earlier", tuple(patterns))

    def readers(self) -> list[tuple[Ints, Ints]]:
        """Streams that read alike, and what they read."""
        sparse = {reader for reader, _, _ in self.patterns}
        groups: dict[tuple[bytes, int | None], list[int]] = {}
        for h in range(len(self.streams)):
            groups.setdefault((self.reads[h].tobytes(), h if h in sparse else None), []).append(h)
        return [(np.array(members), np.flatnonzero(self.reads[members[0]])) for members in groups.values()]


def pack(examples: Sequence[Queries], reading: Reading, *, order: Order = "interleaved") -> dict[str, Any]:
    """A batch.

    Args:
        examples: One after another; they do not read each other.
        reading: Who reads whom.
        order: Of the queries of an example.

    Returns:
        What `StreamNetwork.forward` takes: `ids`, `streams`, `rows` `[S]`; `plan`; of the queries that are asked,
        `asked` `[n]` (where they are), `targets` and `weights` `[n]`; and `total`, the weights of all of them and of
        the probes that were left out.
    """
    joined = Queries.joined(examples)
    documents = np.repeat(np.arange(len(examples)), [len(each) for each in examples])
    first, second = (joined.rows, joined.streams) if order == "interleaved" else (joined.streams, joined.rows)
    queries = joined[np.lexsort((second, first, documents))]
    asked = np.flatnonzero(queries.targets != IGNORED)
    return {
        "ids": torch.from_numpy(queries.ids),
        "streams": torch.from_numpy(queries.streams),
        "rows": torch.from_numpy(queries.rows),
        "plan": _plan(queries, documents, reading),
        "asked": torch.from_numpy(asked),
        "targets": torch.from_numpy(queries.targets[asked]),
        "weights": torch.from_numpy(queries.weights[asked]),
        "total": queries.total,
    }


def _plan(packed: Queries, documents: Ints, reading: Reading) -> dict[str, Any]:
    """Who reads whom; `documents` says which example each query belongs to, and rises."""
    streams, rows = packed.streams, packed.rows
    readers: list[dict[str, torch.Tensor]] = []
    order: list[Ints] = []
    num_streams = len(reading.streams)
    reach = int(rows.max(initial=0)) + 2
    for members, read in reading.readers():
        queries = np.flatnonzero(np.isin(streams, members))
        if not len(queries):
            continue
        # A reader is often silent in most examples (nobody audits a problem without a solution): those are left out.
        present, of_query = np.unique(documents[queries], return_inverse=True)
        keys = np.flatnonzero(packed.kept & np.isin(streams, read) & np.isin(documents, present))
        codes = (documents[keys] * reach + rows[keys]) * num_streams + streams[keys]
        sorting = np.argsort(codes, kind="stable")
        keys, codes = keys[sorting], codes[sorting]
        of_key = np.searchsorted(present, documents[keys])
        own = streams[queries] if reading.is_earlier else 0
        wanted = (documents[queries] * reach + rows[queries]) * num_streams + own
        starts = np.searchsorted(of_key, np.arange(len(present)))
        counts = np.searchsorted(codes, wanted) - starts[of_query]
        query_grid, query_valid = _padded(queries, of_query, len(present))
        key_grid, _ = _padded(keys, of_key, len(present))
        count_grid = np.zeros(query_grid.shape, np.int64)
        count_grid[query_valid] = counts
        reader = {
            "queries": torch.from_numpy(query_grid),
            "keys": torch.from_numpy(key_grid),
            "counts": torch.from_numpy(count_grid),
            "valid": torch.from_numpy(np.flatnonzero(query_valid)),
        }
        hidden = _hidden_by_patterns(reading, members, streams, rows, query_grid, key_grid)
        if hidden is not None:
            reader["hidden"] = torch.from_numpy(hidden)
        readers.append(reader)
        order.append(queries)
    inverse = np.empty(len(streams), np.int64)
    inverse[np.concatenate(order)] = np.arange(len(streams))
    return {"readers": readers, "inverse": torch.from_numpy(inverse), "rows": torch.from_numpy(rows)}


def _padded(items: Ints, documents: Ints, count: int) -> tuple[Ints, Bools]:
    """Items by document, `[documents, longest]`, and where they are; documents rise."""
    lengths = np.bincount(documents, minlength=count)
    longest = max(1, int(lengths.max(initial=0)))
    valid = np.arange(longest)[None] < lengths[:, None]
    grid = np.zeros(valid.shape, np.int64)
    grid[valid] = items
    return grid, valid


def _hidden_by_patterns(
    reading: Reading, members: Ints, streams: Ints, rows: Ints, queries: Ints, keys: Ints
) -> Bools | None:
    """What patterns hide, `[documents, queries, keys]`; None where all is dense."""
    patterns = [each for each in reading.patterns if each[0] in members]
    if not patterns:
        return None
    farthest = int(rows.max())
    hidden = np.zeros((*queries.shape, keys.shape[1]), bool)
    for reader, read, pattern in patterns:
        # By distance from `-farthest` on; a key of a later row is hidden by the staircase, too.
        conceals = np.array([not pattern.allows(distance) for distance in range(-farthest, farthest + 1)])
        for document, (own, others) in enumerate(zip(queries, keys, strict=True)):
            distance = rows[own][:, None] - rows[others][None]
            is_pair = (streams[own] == reader)[:, None] & (streams[others] == read)[None]
            hidden[document] |= is_pair & conceals[distance + farthest]
    return hidden
