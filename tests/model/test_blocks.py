"""Blocks hold what was asked for: every query reads each slot once, with its shift, however reads are grouped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.cache import PageGroup, PageList, PagePool
from braid.model import blocks as blocks_module
from braid.model import clusters as clusters_module
from braid.model.blocks import Block, lay_out
from braid.model.clusters import families
from braid.model.reads import ReadTable, SpanRead

PAGE = 4
Seen = Counter[tuple[int, int, int]]
"""How often a query reads a slot with a shift."""


def asked(reads: Sequence[SpanRead], positions: np.ndarray, window: int | None) -> Seen:
    """What reads ask for, written out token by token."""
    seen: set[tuple[int, int, int]] = set()
    for read in reads:
        for query, start, stop, shift in zip(read.queries, read.start, read.stop, read.shifts, strict=True):
            at = positions[query] + shift
            slots = read.pages.slots(0, read.pages.length)
            for token in range(start, stop):
                distance = at - read.positions[token]
                on_stripe = (
                    read.stride == 1 or distance % read.stride == read.offset or (read.own and distance == 0)
                )
                if on_stripe and (window is None or distance < window):
                    seen.add((int(query), int(slots[token]), int(shift)))
    return Counter(seen)


def held(blocks: Sequence[Block]) -> Seen:
    """What blocks hold."""
    seen: Seen = Counter()
    for block in blocks:
        for cluster, queries in enumerate(block.queries):
            for member, query in enumerate(queries):
                if member and query == queries[0]:
                    assert (block.allowed[cluster, member] == block.allowed[cluster, 0]).all()
                    continue
                column = 0
                for columns in block.columns:
                    pages = columns.pages if columns.pages.ndim == 1 else columns.pages[cluster]
                    if columns.in_place:
                        assert (np.diff(columns.pages) == 1).all()
                    slots = (pages[:, None] * PAGE + np.arange(PAGE)).ravel()
                    allowed = block.allowed[cluster, member, column : column + len(slots)]
                    shift = int(block.shifts[columns.turn, cluster, member])
                    seen.update((int(query), int(slot), shift) for slot in slots[allowed])
                    column += len(slots)
                assert column == block.allowed.shape[2]
    return seen


@st.composite
def forwards(draw: st.DrawFn) -> tuple[list[SpanRead], np.ndarray]:
    """Sessions over shared and own lists, with lanes that read ranges of them."""
    pool = PagePool(400, PAGE)
    root = pool.new_list()
    root.append(draw(st.integers(0, 40)))
    reads: list[SpanRead] = []
    positions: list[int] = []
    for _ in range(draw(st.integers(1, 5))):
        group = PageGroup()
        lists: list[PageList] = [root.fork(draw(st.integers(0, root.length)))]
        lists += [pool.new_list(group) for _ in range(draw(st.integers(0, 3)))]
        for _ in range(draw(st.integers(0, 3))):  # appended in turn, so that their pages lie in turn
            for pages in lists:
                pages.append(draw(st.integers(0, 9)))
        for _ in range(draw(st.integers(1, 3))):
            queries = len(positions) + np.arange(draw(st.integers(1, 6)))
            positions += draw(
                st.lists(st.integers(0, 60), min_size=len(queries), max_size=len(queries)).map(sorted)
            )
            ranged = st.lists(st.integers(0, 45), min_size=len(queries), max_size=len(queries))
            for pages in draw(st.lists(st.sampled_from(lists), max_size=4)):
                split = draw(st.integers(0, pages.length))
                shift = draw(st.sampled_from([0, 0, 3, -2]))
                first, stop = (np.array(draw(ranged)) for _ in range(2))
                stride = draw(st.sampled_from([1, 1, 3]))
                for low, high, more in ((0, split, 0), (split, pages.length, draw(st.sampled_from([0, 5])))):
                    reads.append(
                        SpanRead(
                            queries=queries,
                            pages=pages,
                            positions=np.arange(pages.length) * 2,
                            start=np.clip(first, low, high),
                            stop=np.clip(stop, low, high),
                            shifts=np.full(len(queries), shift + more),
                            stride=stride,
                            offset=draw(st.integers(0, stride - 1)),
                            own=draw(st.booleans()),
                        )
                    )
    return reads, np.array(positions)


@settings(max_examples=100)
@given(
    forwards(),
    st.sampled_from([None, 1, 9, 30]),
    st.sampled_from([0, 40, 1 << 17]),
    st.sampled_from([1, 100, 1 << 16]),
    st.sampled_from([1, 16]),
    st.sampled_from([(2, 256, 8), (0, 3, 1)]),
)
def test_every_query_reads_each_slot_once(
    forward: tuple[list[SpanRead], np.ndarray],
    window: int | None,
    joint_area: int,
    block_area: int,
    worth: int,
    small: tuple[int, int, int],
) -> None:
    reads, positions = forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters_module, "WORTH_SHARING", worth)
        patch.setattr(blocks_module, "BLOCK_AREA", block_area)
        for name, value in zip(("SHORT_RUNS", "MAX_QUERIES", "LONG_RUN"), small, strict=True):
            patch.setattr(blocks_module, name, value)
        if small[0] == 0:
            patch.setattr(blocks_module, "SPARSE_AREA", 0)
        blocks = lay_out(ReadTable(reads, positions, PAGE), window, joint_area)
    assert held(blocks) == asked(reads, positions, window)
    everyone = np.concatenate([block.queries.ravel() for block in blocks])
    assert set(everyone.tolist()) == set(range(len(positions)))
    assert all(len(block.queries) == 1 for block in blocks if not block.is_joint)


# ---- what is grouped how


def sessions(
    count: int, lanes: int = 1, prefix: int = 128, own: int = 40
) -> tuple[list[SpanRead], np.ndarray]:
    """Sessions over one prefix, whose lanes read their session's own list."""
    pool = PagePool(2000, PAGE)
    root = pool.new_list()
    root.append(prefix)
    reads: list[SpanRead] = []
    for session in range(count):
        mine = pool.new_list()
        mine.append(own)
        for pages in (root.fork(), mine):
            n = pages.length
            reads.append(
                SpanRead(
                    queries=session * lanes + np.arange(lanes),
                    pages=pages,
                    positions=np.arange(n) + (prefix if pages is mine else 0),
                    start=np.zeros(lanes, dtype=np.int64),
                    stop=np.full(lanes, n),
                    shifts=np.zeros(lanes, dtype=np.int64),
                )
            )
    return reads, np.full(count * lanes, prefix + own)


def test_sessions_over_one_prompt_are_one_block() -> None:
    reads, positions = sessions(16)
    (block,) = lay_out(ReadTable(reads, positions, PAGE), None, 1 << 17)
    shared, own = block.columns
    assert shared.pages.shape == (32,)
    assert shared.in_place
    assert own.pages.shape == (16, 10)
    assert block.queries.ravel().tolist() == list(range(16))
    assert block.allowed.all()


def test_a_long_input_does_not_join_the_rows_of_others() -> None:
    reads, positions = sessions(8)
    pages = reads[0].pages.fork()
    pages.append(300)
    queries = 8 + np.arange(300)
    new = SpanRead(
        queries,
        pages,
        np.arange(428),
        np.zeros(300, dtype=np.int64),
        129 + np.arange(300),
        np.zeros(300, dtype=np.int64),
    )
    blocks = lay_out(
        ReadTable([*reads, new], np.append(positions, 128 + np.arange(300)), PAGE), None, 1 << 10
    )
    assert [(block.queries.shape, block.is_joint) for block in blocks] == [
        ((1, 256), False),
        ((1, 44), False),
        ((8, 1), True),
    ]


def test_families_of_two_prompts_are_told_apart() -> None:
    clusters, keys = np.divmod(np.arange(8 * 30), 30)
    keys = np.where(keys < 20, keys + 100 * (clusters % 2), 1000 + 30 * clusters + keys)
    found = {tuple(f.clusters.tolist()): len(f.common) for f in families(np.arange(8), clusters, keys)}
    assert found == {(0, 2, 4, 6): 20, (1, 3, 5, 7): 20}


def test_lanes_that_read_little_in_common_are_told_apart() -> None:
    pool = PagePool(4000, PAGE)
    first = pool.new_list()
    first.append(8)
    lists = [pool.new_list() for _ in range(8)]
    reads: list[SpanRead] = []
    for lane, own in enumerate(lists):
        own.append(1000)
        for pages in (first, own):
            n = pages.length
            reads.append(
                SpanRead(np.array([lane]), pages, np.arange(n), np.array([0]), np.array([n]), np.array([0]))
            )
    blocks = lay_out(ReadTable(reads, np.full(8, 1008), PAGE), None, 1 << 17)
    assert all(block.allowed.mean() > 0.9 for block in blocks)
