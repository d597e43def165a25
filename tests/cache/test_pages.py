"""No page is leaked or shared wrongly, after any sequence of operations (invariant 7), and contents survive."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from braid.cache import KVCache, PageGroup, PageList, PagePool
from braid.cache.kv import LayerShape
from braid.errors import IntegrityError, PoolFullError, PoolTooSmallError

SHAPES = [LayerShape(2, 3, 5), LayerShape(1, 4, 4)]


class CacheMachine(RuleBasedStateMachine):
    """A real cache beside a model of it: each list is a plain Python list of the values that its slots must hold."""

    lists = Bundle("lists")

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache(SHAPES, 40, dtype=torch.float64, page_size=4)
        self.contents: dict[PageList, list[float]] = {}
        self.next_value = 0.0

    @rule(target=lists)
    def new_list(self) -> PageList:
        pages = self.cache.new_list()
        self.contents[pages] = []
        return pages

    @rule(pages=lists, count=st.integers(0, 9))
    def append(self, pages: PageList, count: int) -> None:
        needed = pages.pages_needed(count)
        before = (list(pages.pages), pages.length, self.cache.pool.num_free)
        if needed > self.cache.pool.num_free:
            with pytest.raises((PoolFullError, PoolTooSmallError)):
                pages.append(count)
            assert (list(pages.pages), pages.length, self.cache.pool.num_free) == before
            return
        slots = pages.append(count)
        assert before[2] - self.cache.pool.num_free == needed, "exactly the pages that were asked for"
        values = [self.next_value + i for i in range(count)]
        self.next_value += count
        for layer, shape in enumerate(SHAPES):
            column = torch.tensor(values, dtype=torch.float64)[None, :, None]
            keys = column.expand(shape.num_kv_heads, count, shape.key_dim)
            vals = -column.expand(shape.num_kv_heads, count, shape.value_dim)
            self.cache.write(layer, torch.from_numpy(slots), keys, vals)
        self.contents[pages] += values

    @rule(target=lists, pages=lists, share=st.floats(0, 1))
    def fork(self, pages: PageList, share: float) -> PageList:
        length = round(share * pages.length)
        twin = pages.fork(length)
        self.contents[twin] = self.contents[pages][:length]
        return twin

    @rule(target=lists, pages=lists, source=lists, share=st.floats(0, 1))
    def go_on_in_the_pages_of_another(self, pages: PageList, source: PageList, share: float) -> PageList:
        start = min(pages.length, source.length) // 4 * 4
        length = start + round(share * (source.length - start))
        twin = pages.fork(start)
        twin.borrow(source, length)
        self.contents[twin] = self.contents[pages][:start] + self.contents[source][start:length]
        return twin

    @rule(pages=lists, share=st.floats(0, 1))
    def trim(self, pages: PageList, share: float) -> None:
        length = round(share * pages.length)
        pages.trim(length)
        del self.contents[pages][length:]

    @rule(pages=consumes(lists))
    def release(self, pages: PageList) -> None:
        pages.release()
        del self.contents[pages]

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.pool.check_integrity()
        assert self.cache.num_tokens == sum(len(values) for values in self.contents.values())
        owned = {page for pages in self.contents for page in pages.pages}
        assert self.cache.pool.num_used == len(owned)
        assert self.cache.bytes_in_use == len(owned) * 4 * (2 * (3 + 5) + 1 * (4 + 4)) * 8

    @invariant()
    def every_list_holds_what_was_written(self) -> None:
        for pages, values in self.contents.items():
            found: list[float] = []
            for extent in pages.extents():
                assert extent.start == len(found)
                stop = extent.slot + extent.length
                found += self.cache.keys_KSD[0][0, extent.slot : stop, 0].tolist()
                assert (
                    self.cache.values_KSD[1][0, extent.slot : stop, 0]
                    == -self.cache.keys_KSD[1][0, extent.slot : stop, 0]
                ).all()
            assert found == values


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_list_that_grows_alone_is_one_extent() -> None:
    pool = PagePool(64, 4)
    lists = [pool.new_list() for _ in range(3)]
    for _ in range(12):
        for pages in lists:
            pages.append(2)
    assert [len(pages.extents()) for pages in lists] == [1, 1, 1]


def test_extents_of_a_range_cover_exactly_the_range() -> None:
    pool = PagePool(8, 4)
    first, second = pool.new_list(), pool.new_list()
    for _ in range(4):
        first.append(4)
        second.append(3)
    covered = [(e.start, e.length) for e in second.extents(2, 9)]
    assert covered[0][0] == 2 and sum(length for _, length in covered) == 7


def test_a_pool_that_is_too_small_says_what_would_work() -> None:
    pages = PagePool(2, 4).new_list()
    with pytest.raises(PoolTooSmallError, match="larger kv_tokens"):
        pages.append(9)
    with pytest.raises(PoolTooSmallError):
        PagePool(0)


def test_check_integrity_notices_a_stolen_reference() -> None:
    pool = PagePool(4, 4)
    pages = pool.new_list()
    pages.append(4)
    pool.release(pages.pages)
    with pytest.raises(IntegrityError, match="references"):
        pool.check_integrity()


def test_check_integrity_notices_a_list_that_lies_about_its_length() -> None:
    pool = PagePool(4, 4)
    pages = pool.new_list()
    pages.append(4)
    pages.length = 5
    with pytest.raises(IntegrityError, match="tokens owns"):
        pool.check_integrity()


def test_a_fork_lies_beside_the_lists_of_the_group_that_it_joins() -> None:
    pool = PagePool(64, 4)
    group = PageGroup()
    other = pool.new_list(group)
    shared = pool.new_list()
    shared.append(4)
    other.append(4)
    twin = shared.fork(group=group)
    twin.append(4)
    assert twin.pages[-1] == other.pages[-1] + 1


def test_another_lists_page_cannot_begin_in_the_middle_of_one() -> None:
    pool = PagePool(8, 4)
    first, second = pool.new_list(), pool.new_list()
    first.append(3)
    second.append(8)
    with pytest.raises(AssertionError, match="in the middle"):
        first.borrow(second, 8)


def test_reference_counts_are_for_reading() -> None:
    pool = PagePool(3, 4)
    pages = pool.new_list()
    pages.append(4)
    pages.fork()
    assert pool.reference_counts.tolist() == [2, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        pool.reference_counts[0] = 1


def test_slots_come_in_order() -> None:
    pages = PagePool(4, 4).new_list()
    assert np.array_equal(pages.append(6), np.arange(6))
