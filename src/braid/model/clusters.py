"""Which queries are attended together: clusters, and families of clusters that share pages.

    cluster   queries that read from the same page lists, such as the lanes of one session
    family    clusters of different sessions whose lists share pages, such as those of a system prompt

Nothing here decides what a query reads, only what is computed in one go: any grouping gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from braid.model.reads import Entries, Ints

__all__ = ["Family", "assign_turns", "break_up", "cluster_queries", "families", "numbered", "rank_within"]

WORTH_SHARING = 16
"""Clusters are attended as a family if that saves reading a page so many times."""

_NOTHING = np.iinfo(np.int64).min
"""In place of a shift, where a query reads nothing."""


class Family(NamedTuple):
    """Clusters, and what they read in common."""

    clusters: Ints
    common: Ints
    """Keys of pages that most of the clusters read; what else they read is each one's own."""


def cluster_queries(entries: Entries, num_new: int) -> Ints:
    """The cluster of each query, numbered in the order of first queries, `[N]`.

    Sessions share pages, never lists; so queries that read one list belong together.
    """
    return numbered(_components(entries.queries, entries.lists, num_new))


def break_up(clusters: Ints, sparse: Ints, entries: Entries, max_queries: int) -> Ints:
    """The cluster of each query when some are made smaller, `[N]`.

    Args:
        clusters: The cluster of each query now.
        sparse: Clusters to take apart into their lanes, since these read little in common.
        entries: Who reads what.
        max_queries: A cluster of more is cut, in the order of its queries.
    """
    num_new = len(clusters)
    lanes = np.full(num_new, len(entries.reads) + 1, dtype=np.int64)
    np.minimum.at(lanes, entries.queries, entries.reads)
    lanes[~np.isin(clusters, sparse)] = 0
    clusters = numbered(clusters * (int(lanes.max()) + 1) + lanes)
    return numbered(clusters * num_new + rank_within(clusters) // max_queries)


def assign_turns(entries: Entries, clusters: Ints) -> Ints:
    """The turn of each entry, `[E]`: in one turn, a query of a cluster reads with one shift.

    So what a cluster reads in one turn is read with queries that were rotated once. A read joins the first turn of its
    cluster that it agrees with.

    Args:
        entries: Who reads what.
        clusters: The cluster of each query.
    """
    turns = np.zeros(len(entries.queries), dtype=np.int64)
    moved = np.isin(clusters[entries.queries], clusters[entries.queries[entries.shifts != 0]])
    if not moved.any():
        return turns
    queries, shifts = entries.queries[moved], entries.shifts[moved]
    _, first, read = np.unique(entries.reads[moved], return_index=True, return_inverse=True)
    cluster_of_query = numbered(clusters[queries])
    member = _members(queries, cluster_of_query)
    cluster_of_read = cluster_of_query[first]
    rank_of_read = rank_within(cluster_of_read)
    # How each read, by its rank in its cluster, shifts each member of the cluster: [R, C, M]
    shape = (int(rank_of_read.max()) + 1, int(cluster_of_query.max()) + 1, int(member.max()) + 1)
    wanted = np.full(shape, _NOTHING)
    wanted[rank_of_read[read], cluster_of_query, member] = shifts
    turn_of_read = np.empty(shape[:2], dtype=np.int64)
    taken = np.full((1, *shape[1:]), _NOTHING)  # by the turns so far: [J, C, M]
    each = np.arange(shape[1])
    for rank, read_CM in enumerate(wanted):  # all clusters at once
        agrees = ((taken == read_CM) | (taken == _NOTHING) | (read_CM == _NOTHING)).all(2)
        if not agrees.any(0).all():
            taken = np.concatenate((taken, np.full((1, *shape[1:]), _NOTHING)))
            agrees = np.concatenate((agrees, np.ones((1, shape[1]), dtype=bool)))
        chosen = agrees.argmax(0)
        turn_of_read[rank] = chosen
        taken[chosen, each] = np.where(read_CM == _NOTHING, taken[chosen, each], read_CM)
    turns[moved] = turn_of_read[rank_of_read, cluster_of_read][read]
    return turns


def families(names: Ints, clusters: Ints, keys: Ints) -> Iterator[Family]:
    """Group clusters by the pages that most of them read.

    Args:
        names: The clusters to group.
        clusters, keys: Pairs of one of them and the key of a page that it reads, `[R]` each; no pair twice.
    """
    return _split(names, clusters, keys, np.empty(0, dtype=np.int64))


def _split(names: Ints, clusters: Ints, keys: Ints, common: Ints) -> Iterator[Family]:
    """Families among clusters that read the common pages all, and these others."""
    cluster = np.searchsorted(names, clusters)
    pages, page = np.unique(keys, return_inverse=True)
    component = numbered(_components(cluster, page, len(names)))
    sizes = np.bincount(component)
    alone = sizes[component] == 1
    for index in np.flatnonzero(sizes > 1):
        members, inside = component == index, component[cluster] == index
        readers = np.bincount(page[inside], minlength=len(pages))
        shared = 2 * readers > sizes[index]
        if (readers[shared] - 1).sum() < WORTH_SHARING:
            alone |= members
        else:
            rest = inside & ~shared[page]
            yield from _split(names[members], clusters[rest], keys[rest], np.union1d(common, pages[shared]))
    if alone.any():
        yield Family(names[alone], common)


def numbered(labels: Ints) -> Ints:
    """The same groups, numbered from 0 in the order of their labels."""
    return np.unique(labels, return_inverse=True)[1]


def rank_within(groups: Ints) -> Ints:
    """How many members of the same group come before each; groups are numbered from 0."""
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    ranks = np.empty_like(groups)
    ranks[order] = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def _members(queries: Ints, clusters: Ints) -> Ints:
    """The rank of each entry's query among the queries of its cluster, `[E]`."""
    _, first, query = np.unique(queries, return_index=True, return_inverse=True)
    return rank_within(clusters[first])[query]


def _components(left: Ints, right: Ints, num_left: int) -> Ints:
    """Connected components of a graph between two sorts of nodes: the lowest left node of each one's, `[num_left]`."""
    lowest = np.arange(num_left)
    while True:
        reached = np.full(int(right.max(initial=-1)) + 1, num_left)
        np.minimum.at(reached, right, lowest[left])
        lower = lowest.copy()
        np.minimum.at(lower, left, reached[right])
        if (lower == lowest).all():
            return lowest
        lowest = lower
