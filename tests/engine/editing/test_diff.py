"""Differences of token lists: applying them gives the other list, and they are few."""

from __future__ import annotations

import difflib
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.engine.editing.diff import Edit, apply, common_prefix, common_suffix, edits, matching_blocks

tokens = st.lists(st.integers(0, 3), max_size=40)


@given(tokens, tokens, st.integers(0, 12), st.integers(1, 4))
def test_applying_the_edits_gives_the_other_list(a: list[int], b: list[int], most: int, least: int) -> None:
    found = edits(a, b, most_changes=most, least_kept=least)
    assert apply(a, found) == b
    assert all(edit.new or edit.stop > edit.start for edit in found)
    assert all(later.start - earlier.stop >= least for earlier, later in pairwise(found))


def fewest_changes(a: list[int], b: list[int]) -> int:
    """Tokens that are deleted and inserted at the least, by the textbook table."""
    row = list(range(len(b) + 1))
    for token in a:
        above, row = row, [row[0] + 1]
        for at, other in enumerate(b):
            row.append(above[at] if token == other else 1 + min(above[at + 1], row[at]))
    return row[-1]


def changes(found: list[Edit]) -> int:
    return sum(edit.stop - edit.start + len(edit.new) for edit in found)


@given(tokens, tokens)
def test_no_fewer_tokens_could_have_changed(a: list[int], b: list[int]) -> None:
    assert changes(edits(a, b)) == fewest_changes(a, b)


@given(tokens, tokens)
def test_a_prefix_and_a_suffix_are_as_long_as_they_can_be(a: list[int], b: list[int]) -> None:
    prefix = common_prefix(a, b)
    assert a[:prefix] == b[:prefix]
    assert a[prefix : prefix + 1] != b[prefix : prefix + 1] or prefix == len(a) == len(b)
    suffix = common_suffix(a, b, prefix)
    assert prefix + suffix <= min(len(a), len(b))
    assert a[len(a) - suffix :] == b[len(b) - suffix :]
    if prefix + suffix < min(len(a), len(b)):
        assert a[len(a) - suffix - 1] != b[len(b) - suffix - 1]


@pytest.mark.parametrize("at", [0, 1, 255, 256, 257, 511, 512, 999])
def test_a_change_is_found_wherever_the_blocks_of_the_comparison_end(at: int) -> None:
    a = list(range(1_000))
    b = [*a[:at], -1, *a[at + 1 :]]
    assert common_prefix(a, b) == at
    assert common_suffix(a, b, at) == 999 - at
    assert edits(a, b) == [Edit(at, at + 1, (-1,))]


def test_nothing_is_said_about_lists_that_are_equal() -> None:
    assert edits([], []) == []
    assert edits([1, 2], [1, 2]) == []
    assert edits([], [1]) == [Edit(0, 0, (1,))]
    assert edits([1], []) == [Edit(0, 1, ())]


def test_short_runs_between_two_changes_are_given_up() -> None:
    a, b = [1, 2, 3, 4, 5, 6], [1, 9, 3, 8, 5, 6]
    assert edits(a, b) == [Edit(1, 2, (9,)), Edit(3, 4, (8,))]
    assert edits(a, b, least_kept=2) == [Edit(1, 4, (9, 3, 8))]


def test_a_middle_with_too_many_changes_is_one_replacement() -> None:
    a, b = [0, *range(1_000), 0], [0, *range(5_000, 6_000), 0]
    assert edits(a, b) == [Edit(1, 1_001, tuple(range(5_000, 6_000)))]


class _Counted(int):
    """A token that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_two_edits_far_apart_in_a_long_document_take_a_few_comparisons_a_token() -> None:
    rng = random.Random(3)
    a = [_Counted(int(rng.paretovariate(0.8))) for _ in range(20_000)]
    b = [*a[:50], 77_777, *a[52:19_900], 77_778, 77_779, *a[19_900:]]
    _Counted.compared = 0
    found = edits(a, b)
    assert apply(a, found) == b
    assert changes(found) == 5
    assert _Counted.compared < 4 * len(a)


def test_edits_of_english_are_no_more_than_those_of_the_standard_library() -> None:
    rng = random.Random(5)
    for _ in range(30):
        a = [int(rng.paretovariate(0.7)) for _ in range(300)]
        b = list(a)
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(b))
            b[at : at + rng.randint(0, 4)] = [rng.randrange(50) for _ in range(rng.randint(0, 4))]
        matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
        theirs = len(a) + len(b) - 2 * sum(block.size for block in matcher.get_matching_blocks())
        assert changes(edits(a, b)) <= theirs


# ---- long runs


@given(st.lists(st.integers(0, 3), max_size=80), st.lists(st.integers(0, 3), max_size=80), st.integers(0, 6))
def test_long_runs_are_in_both_in_one_order(a: list[int], b: list[int], least: int) -> None:
    at_old = at_new = 0
    for old, new, length in matching_blocks(a, b, least):
        assert length >= max(1, least)
        assert old >= at_old
        assert new >= at_new
        assert a[old : old + length] == b[new : new + length]
        at_old, at_new = old + length, new + length


def test_long_runs_are_found_around_what_was_pasted_and_cut() -> None:
    rng = random.Random(7)
    a = [rng.randrange(5000) for _ in range(4000)]
    pasted = [rng.randrange(5000) for _ in range(700)]
    b = [*a[:500], *pasted, *a[500:2800], *a[3100:3500], 1, *a[3502:]]
    found = matching_blocks(a, b, 24)
    assert [old for old, _, _ in found] == [0, 500, 3100, 3502]
    assert [length for _, _, length in found] == [500, 2300, 400, 498]


def test_all_of_a_run_is_found_where_its_beginning_could_be_kept_elsewhere() -> None:
    kept = list(range(10, 60))
    a, b = [*range(100, 140), 10, 11, *kept, 7], [*range(100, 140), 5, *kept, 8]
    assert matching_blocks(a, b, 24)[1] == (42, 41, 50)


def test_a_megabyte_that_is_pasted_and_text_that_repeats_itself_take_a_few_comparisons_a_token() -> None:
    rng = random.Random(8)
    text = [_Counted(rng.randrange(5000)) for _ in range(4000)]
    pasted = [_Counted(rng.randrange(5000)) for _ in range(100_000)]
    alike = [_Counted(1)] * 10_000
    for a, b in (
        (text, [*text[:1000], *pasted, *text[1000:]]),
        (text, pasted),
        ([*alike, _Counted(2)], [_Counted(3), *alike[:9000], _Counted(4), *alike[:500]]),
    ):
        _Counted.compared = 0
        matching_blocks(a, b, 24)
        assert _Counted.compared < 12 * (len(a) + len(b))
