"""What is read, in pages: which pages each cluster reads, and which slots of them each query reads.

a list         pages 7 8 9 3 4 …        what a cluster reads of it in one turn is taken for one range of pages
its columns    2 3 4 0 1 …              where each page is among the columns of a block (`blocks.py`)
stretches      [7 8 9] [3 4]            pages that are neighbours in both, so that a read of them is one stroke
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from braid.model.reads import Bools, Entries, Ints, ReadTable, starts_of

__all__ = ["PageReads", "paint", "read_pages"]


@dataclass(frozen=True)
class PageReads:
    """Pages that clusters read.

    Lists share pages, so a page may lie in several ranges of a cluster; it is one pair of the cluster and the page.
    """

    range_of_entry: Ints
    """`[E]`"""
    low: Ints
    """First page of each range, an index in its list, `[ranges]`."""
    begin: Ints
    """Where its pages begin when those of all ranges lie one after another, `[ranges]`."""
    pair_of_page: Ints
    """Which pair each of these pages is."""
    clusters: Ints
    """The cluster of each pair, `[R]`; pairs ascend by cluster, turn and page."""
    turns: Ints
    pages: Ints
    keys: Ints
    """A number for the pair's turn and page."""


def read_pages(table: ReadTable, entries: Entries, turns: Ints, clusters: Ints) -> PageReads:
    """Cut what is read into pages.

    Args:
        table: Of the forward.
        entries: Its entries, as the layers in question have them.
        turns: Of each entry.
        clusters: Of each query.
    """
    num_turns, num_pages = int(turns.max(initial=0)) + 1, int(table.pages.max(initial=0)) + 1
    group_of_entry = clusters[entries.queries] * num_turns + turns
    names, range_of_entry = np.unique(group_of_entry * table.num_lists + entries.lists, return_inverse=True)
    low, high = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), dtype=np.int64)
    np.minimum.at(low, range_of_entry, entries.start // table.page_size)
    np.maximum.at(high, range_of_entry, -(-entries.stop // table.page_size))
    begin, range_of_page = starts_of(high - low), np.repeat(np.arange(len(names)), high - low)
    groups, lists = np.divmod(names, max(table.num_lists, 1))
    place = np.arange(len(range_of_page)) + (table.first_page[lists] + low - begin)[range_of_page]
    pairs, pair_of_page = np.unique(
        groups[range_of_page] * num_pages + table.pages[place], return_inverse=True
    )
    return PageReads(
        range_of_entry=range_of_entry,
        low=low,
        begin=begin,
        pair_of_page=pair_of_page,
        clusters=pairs // (num_turns * num_pages),
        turns=pairs // num_pages % num_turns,
        pages=pairs % num_pages,
        keys=pairs % (num_turns * num_pages),
    )


def paint(
    table: ReadTable, entries: Entries, reads: PageReads, column_of_pair: Ints, row_of_query: Ints, size: int
) -> Bools:
    """Which slots are read, for all queries in one array, `[size]`.

    Args:
        table, entries: As for `read_pages`.
        reads: What that returned.
        column_of_pair: Where the page of each pair is among the columns of its cluster, in pages.
        row_of_query: Where in the array the columns of each query begin; between two rows there is a slot more.
        size: Of the array.
    """
    strokes = _strokes(table.page_size, entries, reads, column_of_pair)
    begin = row_of_query[entries.queries[strokes.entries]] + strokes.columns
    striped = (table.strides > 1)[entries.reads[strokes.entries]]
    edges = np.zeros(size, dtype=np.int16)
    np.add.at(edges, (begin + strokes.low)[~striped], 1)
    np.add.at(edges, (begin + strokes.high)[~striped], -1)
    allowed = np.cumsum(edges, dtype=np.int16) > 0
    if striped.any():
        slots, keep = _stripes(table, entries, strokes.where(striped), begin[striped])
        allowed[slots[keep]] = True
    return allowed


@dataclass(frozen=True)
class _Strokes:
    """What an entry reads of one stretch of pages."""

    entries: Ints
    columns: Ints
    """The stretch's first column, in slots."""
    tokens: Ints
    """What is there, an index in the entry's list."""
    low: Ints
    """First slot of the stretch that is read."""
    high: Ints
    """One past the last."""

    def where(self, keep: Bools) -> _Strokes:
        """Some of them."""
        return _Strokes(*(getattr(self, field.name)[keep] for field in fields(self)))


def _strokes(page_size: int, entries: Entries, reads: PageReads, column_of_pair: Ints) -> _Strokes:
    """All strokes of all entries."""
    column = column_of_pair[reads.pair_of_page]
    is_new = np.diff(column, prepend=-2) != 1
    is_new[reads.begin] = True
    stretch_of_page, first_page = np.cumsum(is_new) - 1, np.flatnonzero(is_new)
    num_pages = np.diff(first_page, append=len(column))
    place = (reads.begin - reads.low)[reads.range_of_entry]  # of a list's first page, were it in the range
    first = stretch_of_page[entries.start // page_size + place]
    counts = stretch_of_page[(entries.stop - 1) // page_size + place] - first + 1
    entry = np.repeat(np.arange(len(counts)), counts)
    stretch = np.arange(len(entry)) + (first - starts_of(counts))[entry]
    tokens = (first_page[stretch] - place[entry]) * page_size
    return _Strokes(
        entries=entry,
        columns=column[first_page[stretch]] * page_size,
        tokens=tokens,
        low=np.maximum(entries.start[entry] - tokens, 0),
        high=np.minimum(entries.stop[entry] - tokens, num_pages[stretch] * page_size),
    )


def _stripes(table: ReadTable, entries: Entries, strokes: _Strokes, begin: Ints) -> tuple[Ints, Bools]:
    """Strokes with a stride, slot by slot: where in the array, and whether it is on the stripe."""
    counts = strokes.high - strokes.low
    stroke = np.repeat(np.arange(len(counts)), counts)
    slot = np.arange(len(stroke)) + (strokes.low - starts_of(counts))[stroke]
    entry = strokes.entries[stroke]
    read = entries.reads[entry]
    positions, first = table.list_positions
    stored = positions[first[entries.lists[entry]] + strokes.tokens[stroke] + slot]
    distance = table.positions[entries.queries[entry]] + entries.shifts[entry] - stored
    offset = np.array([read.offset for read in table.reads])[read]
    is_own = np.array([read.own for read in table.reads])[read]
    return begin[stroke] + slot, (distance % table.strides[read] == offset) | (is_own & (distance == 0))
