"""What a split holds out is in no training story, and in each story of the split."""

from __future__ import annotations

import pytest

from braid.data.stories import SPLITS, tell
from braid.data.stories.story import is_held_out_pair, is_held_out_structure
from tests.data.written import held_out_steps

SEEDS, COUNT = range(3), 400


def test_a_sum_is_held_out_in_both_orders() -> None:
    pairs = [(a, b) for a in range(10, 60) for b in range(10, 60)]
    assert all(is_held_out_pair(a, "+", b) == is_held_out_pair(b, "+", a) for a, b in pairs)
    held_out = sum(is_held_out_pair(a, "+", b) for a, b in pairs)
    assert len(pairs) / 12 < held_out < len(pairs) / 6
    assert not any(is_held_out_pair(a, "+", 9) or is_held_out_pair(a, "*", a) for a in range(60))


@pytest.mark.parametrize("seed", SEEDS)
def test_training_stories_have_no_held_out_pair_and_those_of_numbers_have_one(seed: int) -> None:
    for index in range(COUNT):
        assert held_out_steps(tell(seed, index).steps) == []
        assert held_out_steps(tell(seed, index, "numbers").steps)
        assert held_out_steps(tell(seed, index, "structure").steps) == []


def test_only_stories_of_structure_have_a_held_out_sequence_of_operations() -> None:
    for split in SPLITS:
        found = {is_held_out_structure(tell(0, index, split).structure) for index in range(100)}
        assert found == {split == "structure"}


def test_stories_of_wording_may_have_held_out_pairs() -> None:
    found = [bool(held_out_steps(tell(0, index, "wording").steps)) for index in range(COUNT)]
    assert any(found) and not all(found)
