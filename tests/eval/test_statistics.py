"""Intervals hold what they should, as often as they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from braid.eval.statistics import mean_of, paired_difference, share_of


def test_a_share_lies_inside_its_interval() -> None:
    found = share_of([True] * 90 + [False] * 10)
    assert found.value == 0.9
    assert 0.82 < found.low < 0.9 < found.high < 0.95  # Wilson: 0.826 to 0.945


def test_a_share_of_all_is_not_certain() -> None:
    found = share_of([True] * 20)
    assert found.value == found.high == 1
    assert 0.8 < found.low < 0.9


def test_nothing_has_no_figure() -> None:
    assert math.isnan(share_of([]).value)
    assert math.isnan(mean_of([]).value)


def test_pairs_are_narrower_than_their_parts() -> None:
    rng = np.random.default_rng(1)
    hard = rng.random(1000)
    ours, theirs = list(hard < 0.80), list(hard < 0.81)
    found = paired_difference(ours, theirs)
    assert found.value == pytest.approx(-0.01, abs=0.01)
    assert found.high - found.low < (share_of(ours).high - share_of(ours).low) / 2


def test_an_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        found = mean_of(list(rng.poisson(3, 80)))
        covered += found.low <= 3 <= found.high
    assert 180 <= covered <= 199
