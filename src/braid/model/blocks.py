"""What is computed in one go: blocks of queries against columns of pages.

    the pool                 … [s s s s] … [a a] … [b b b] …      both sessions read s
                                  ▼          ▼        ▼
    the columns of a block     s s s s      a a ·       for the queries of session a; · is masked
                               s s s s      b b b       for the queries of session b

A block is clusters of about as many queries, and of about the same length. Its columns are whole pages: first those
that most of the clusters read, then those that each cluster reads alone, which are aligned. `allowed` says which slots
of them a query reads. A page that several lists of a cluster share is one column, so that it is read once.

Columns belong to a turn (`clusters.assign_turns`), which says how the queries are rotated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from braid.model.clusters import assign_turns, break_up, cluster_queries, families, rank_within
from braid.model.pagereads import PageReads, paint, read_pages
from braid.model.reads import Bools, Entries, Ints, ReadTable, starts_of

__all__ = ["Block", "Columns", "lay_out"]

JOINT_SHARE = 0.3
"""The lanes of a session are told apart when a smaller share of their scores would be of use."""
SPARSE_AREA = 1 << 13
"""But not when the scores are fewer than this a head."""
MAX_QUERIES = 256
"""A cluster of more is cut: early queries of a long input would only mask what the later ones read."""
BLOCK_AREA = 1 << 16
"""Scores a head in a block of several clusters: about what a processor's caches hold."""
LENGTH_SPREAD = 2, 8
"""The longest cluster of a block has at most so many times the own pages of the shortest, and so many besides."""
LONG_RUN = 8
"""So many neighbouring pages or more are read where they lie."""
SHORT_RUNS = 2
"""So are fewer, when they are no more runs than this; else they are gathered."""


@dataclass(frozen=True)
class Columns:
    """Some pages of a block, read in one turn."""

    turn: int
    pages: Ints
    """`[P]`, for all clusters; or `[C, P]`, each cluster's own."""
    in_place: bool
    """The pages are neighbours in the pool."""


@dataclass(frozen=True)
class Block:
    """Queries, and all that they read."""

    queries: Ints
    """`[C, M]`; a cluster of fewer repeats its first."""
    columns: tuple[Columns, ...]
    shifts: Ints
    """Of each query in each turn, `[J, C, M]`."""
    allowed: Bools
    """Which slots of the columns each query reads, `[C, M, T]`."""
    is_joint: bool
    """Small enough for one softmax over all columns."""


@dataclass(frozen=True)
class _Outline:
    """A block of which it is not yet known who reads which slot."""

    queries: Ints
    columns: tuple[Columns, ...]
    num_pages: int
    is_joint: bool


def lay_out(table: ReadTable, window: int | None, joint_area: int) -> list[Block]:
    """Blocks that hold every new token once, with all that it reads.

    Args:
        table: Who reads what.
        window: Of the layers that this is for.
        joint_area: A cluster with more scores than this a head is a block by itself, and not joint.
    """
    entries, num_new = table.within(window), len(table.positions)
    clusters = cluster_queries(entries, num_new)
    turns = assign_turns(entries, clusters)
    reads = read_pages(table, entries, turns, clusters)
    sparse = _sparse(table.page_size, entries, reads, clusters)
    if len(sparse) or np.bincount(clusters).max() > MAX_QUERIES:
        clusters = break_up(clusters, sparse, entries, MAX_QUERIES)
        reads = read_pages(table, entries, turns, clusters)
    column_of_pair = np.empty(len(reads.clusters), dtype=np.int64)
    outlines = list(_outlines(table.page_size, reads, clusters, joint_area, column_of_pair))
    shifts = np.zeros((int(turns.max(initial=0)) + 1, num_new), dtype=np.int64)
    shifts[turns, entries.queries] = entries.shifts
    allowed = _allowed(table, entries, reads, outlines, column_of_pair)
    blocks = [
        Block(outline.queries, outline.columns, shifts[:, outline.queries], slots, outline.is_joint)
        for outline, slots in zip(outlines, allowed, strict=True)
    ]
    if len(shifts) > 1:
        for block in blocks:
            _read_once(block)
    return blocks


def _sparse(page_size: int, entries: Entries, reads: PageReads, clusters: Ints) -> Ints:
    """Clusters of which too few scores would be of use."""
    members = np.bincount(clusters)
    area = members * np.bincount(reads.clusters, minlength=len(members)) * page_size
    useful = np.bincount(clusters[entries.queries], entries.stop - entries.start, minlength=len(members))
    return np.flatnonzero((members > 1) & (area > SPARSE_AREA) & (useful < JOINT_SHARE * area))


def _outlines(
    page_size: int, reads: PageReads, clusters: Ints, joint_area: int, column_of_pair: Ints
) -> Iterator[_Outline]:
    """Group the clusters; `column_of_pair` is filled in."""
    members = np.bincount(clusters)
    areas = members * np.bincount(reads.clusters, minlength=len(members)) * page_size
    is_large = areas > joint_area
    for cluster in np.flatnonzero(is_large):
        yield _outline(reads, clusters, np.array([cluster]), None, False, column_of_pair)
    magnitude = np.frexp(members - 1)[1]  # the same for 1; for 2; for 3 and 4; for 5 to 8; …
    for size in np.unique(magnitude[~is_large]):
        names = np.flatnonzero((magnitude == size) & ~is_large)
        inside = np.isin(reads.clusters, names)
        for family in families(names, reads.clusters[inside], reads.keys[inside]):
            own = reads.clusters[~np.isin(reads.keys, family.common)]
            lengths = np.bincount(own, minlength=len(members))[family.clusters]
            widths = (len(family.common) + lengths) * page_size * int(members[names].max())
            for group in _alike(lengths, widths):
                chosen = family.clusters[group]
                common = family.common if len(chosen) > 1 else None
                yield _outline(reads, clusters, chosen, common, True, column_of_pair)


def _alike(lengths: Ints, areas: Ints) -> Iterator[Ints]:
    """Indices of clusters of about the same length, no more than a block should hold."""
    times, more = LENGTH_SPREAD
    order = np.argsort(lengths, kind="stable")
    while len(order):
        ascending = lengths[order]
        count = int(np.searchsorted(ascending, times * ascending[0] + more, side="right"))
        num_blocks = -(-count * int(areas[order[count - 1]]) // BLOCK_AREA)
        yield from np.array_split(np.sort(order[:count]), min(max(num_blocks, 1), count))
        order = order[count:]


def _outline(
    reads: PageReads, clusters: Ints, names: Ints, common: Ints | None, is_joint: bool, column_of_pair: Ints
) -> _Outline:
    """The outline of a block of the clusters with these names; without `common`, they read all in common."""
    pairs = np.flatnonzero(np.isin(reads.clusters, names))
    is_common = np.ones(len(pairs), dtype=bool) if common is None else np.isin(reads.keys[pairs], common)
    columns: list[Columns] = []
    num_pages = 0
    for turn in np.unique(reads.turns[pairs]):
        here = reads.turns[pairs] == turn
        of_all, own = pairs[here & is_common], pairs[here & ~is_common]
        pages, which = np.unique(reads.pages[of_all], return_inverse=True)
        place = np.empty(len(pages), dtype=np.int64)
        for run, in_place in _runs(pages, is_joint):
            columns.append(Columns(int(turn), pages[run], in_place))
            place[run] = num_pages + np.arange(len(run))
            num_pages += len(run)
        column_of_pair[of_all] = place[which]
        if len(own):
            cluster = np.searchsorted(names, reads.clusters[own])
            rank = rank_within(cluster)
            table = np.full((len(names), int(rank.max()) + 1), reads.pages[own[0]])
            table[cluster, rank] = reads.pages[own]
            columns.append(Columns(int(turn), table, in_place=False))
            column_of_pair[own] = num_pages + rank
            num_pages += table.shape[1]
    return _Outline(_members(clusters, names), tuple(columns), num_pages, is_joint)


def _members(clusters: Ints, names: Ints) -> Ints:
    """The queries of each of the clusters, `[C, M]`; a cluster of fewer repeats its first."""
    order = np.argsort(clusters, kind="stable")
    counts = np.bincount(clusters)
    first, counts = starts_of(counts)[names, None], counts[names, None]
    rank = np.arange(int(counts.max()))
    return order[first + np.where(rank < counts, rank, 0)]


def _runs(pages: Ints, is_joint: bool) -> Iterator[tuple[Ints, bool]]:
    """Cut ascending pages into columns: indices, and whether they are read in place."""
    if not len(pages):
        return
    runs = np.split(np.arange(len(pages)), np.flatnonzero(np.diff(pages) != 1) + 1)
    short = [run for run in runs if len(run) < LONG_RUN]
    if not is_joint:  # a kernel wants them in one piece
        yield np.arange(len(pages)), False
    elif len(short) <= SHORT_RUNS:
        yield from ((run, True) for run in runs)
    else:
        yield from ((run, True) for run in runs if len(run) >= LONG_RUN)
        yield np.concatenate(short), False


def _allowed(
    table: ReadTable, entries: Entries, reads: PageReads, outlines: Sequence[_Outline], column_of_pair: Ints
) -> Iterator[Bools]:
    """Which slots each query reads, block by block, `[C, M, T]`; painted for all blocks at once."""
    row_of_query = np.empty(len(table.positions), dtype=np.int64)
    edges = [0]
    for outline in outlines:
        width = outline.num_pages * table.page_size + 1
        rows = edges[-1] + np.arange(outline.queries.size) * width
        row_of_query[outline.queries.ravel()[::-1]] = rows[
            ::-1
        ]  # a repeated query is painted where it is first
        edges.append(edges[-1] + outline.queries.size * width)
    painted = paint(table, entries, reads, column_of_pair, row_of_query, edges[-1])
    for outline, start, stop in zip(outlines, edges, edges[1:], strict=False):
        allowed = painted[start:stop].reshape(*outline.queries.shape, -1)[:, :, :-1]
        repeated = outline.queries == outline.queries[:, :1]
        repeated[:, 0] = False
        yield np.where(repeated[:, :, None], allowed[:, :1], allowed) if repeated.any() else allowed


def _read_once(block: Block) -> None:
    """Mask a slot that a query reads with one shift in two turns, in the later one.

    That may be where lists share pages, and lanes of the cluster differ in how they shift these lists.
    """
    if not block.columns:
        return
    pages_CP = np.concatenate(
        [np.broadcast_to(c.pages, (len(block.queries), c.pages.shape[-1])) for c in block.columns], 1
    )
    turn_P = np.repeat([c.turn for c in block.columns], [c.pages.shape[-1] for c in block.columns])
    slots_CMPS = block.allowed.reshape(*block.queries.shape, len(turn_P), -1)
    for later in range(1, len(block.shifts)):
        for earlier in range(later):
            here, there = np.flatnonzero(turn_P == later), np.flatnonzero(turn_P == earlier)
            c, to, of = np.nonzero(pages_CP[:, here, None] == pages_CP[:, None, there])
            is_read = slots_CMPS[c, :, there[of]].any((1, 2))  # not there as padding
            c, to, of = c[is_read], here[to[is_read]], there[of[is_read]]
            same = (block.shifts[later] == block.shifts[earlier])[c, :, None]
            slots_CMPS[c, :, to] &= ~(slots_CMPS[c, :, of] & same)
