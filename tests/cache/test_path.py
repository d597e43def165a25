"""Paths compare, count and fit as a plain list of symbols would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.cache import PrefixPath, namespace

Symbol = tuple[int, int, int]

SYMBOLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=12).map(
    lambda symbols: sorted(symbols, key=lambda symbol: symbol[0])
)


def make_path(symbols: list[Symbol]) -> PrefixPath:
    return PrefixPath(*np.array(symbols, dtype=np.int64).reshape(-1, 3).T)


@given(SYMBOLS, SYMBOLS, st.data())
def test_agreement_is_the_common_beginning(
    ours: list[Symbol], theirs: list[Symbol], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(theirs)))
    expected = 0
    while expected < min(len(ours), len(theirs) - start) and ours[expected] == theirs[start + expected]:
        expected += 1
    assert make_path(ours).agreement(make_path(theirs), start) == expected


@given(SYMBOLS, st.integers(0, 6), st.integers(1, 3))
def test_fit_is_the_longest_beginning_with_so_few_pages(
    symbols: list[Symbol], num_pages: int, page_size: int
) -> None:
    path = make_path(symbols)
    fitting = [n for n in range(len(path) + 1) if path.part(0, n).pages(page_size) <= num_pages]
    assert path.fit(num_pages, page_size) == max(fitting)


@given(SYMBOLS, st.data())
def test_parts_and_counts(symbols: list[Symbol], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(symbols)))
    path = make_path(symbols)
    part = path.part(start)
    assert list(zip(part.steps, part.lists, part.tokens, strict=True)) == symbols[start:]
    numbers = [number for _, number, _ in symbols[:start]]
    assert path.counts(start) == {number: numbers.count(number) for number in set(numbers)}


def test_a_path_whose_rows_do_not_ascend_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="ascend"):
        make_path([(1, 0, 5), (0, 0, 5)])


@given(st.lists(st.text(max_size=3)), st.lists(st.text(max_size=3)))
def test_namespaces_are_equal_only_when_all_parts_are(ours: list[str], theirs: list[str]) -> None:
    assert (namespace(*ours) == namespace(*theirs)) == (ours == theirs)


def test_text_counts_as_its_bytes() -> None:
    assert namespace("é", b"x") == namespace("é".encode(), "x")
