"""Intervals hold what they should, as often as they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from braid.eval.statistics import (
    difference_of_shares,
    mean_of,
    paired_difference,
    paired_shares,
    ratio_of,
    share_of,
)


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
    assert math.isnan(ratio_of([], []).value)
    assert math.isnan(ratio_of([1], [0]).value)
    assert math.isnan(paired_shares([], []).low)


def test_pairs_are_narrower_than_their_parts() -> None:
    rng = np.random.default_rng(1)
    hard = rng.random(1000)
    ours, theirs = list(hard < 0.80), list(hard < 0.81)
    found = paired_shares(ours, theirs)
    assert found.value == pytest.approx(-0.01, abs=0.01)
    assert found.high - found.low < (share_of(ours).high - share_of(ours).low) / 2


def test_measured_pairs_are_narrower_than_their_parts() -> None:
    rng = np.random.default_rng(5)
    hard = rng.exponential(10, 200)
    ours, theirs = list(hard + rng.random(200)), list(hard)
    found = paired_difference(ours, theirs)
    assert found.low < 0.5 < found.high
    assert found.high - found.low < (mean_of(ours).high - mean_of(ours).low) / 10


def test_an_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        found = mean_of(list(rng.poisson(3, 80)))
        covered += found.low <= 3 <= found.high
    assert 180 <= covered <= 199


def test_an_interval_of_pairs_covers_their_difference_as_often_as_it_says() -> None:
    rng = np.random.default_rng(3)
    for n, only_ours, only_theirs in ((266, 0.004, 0.002), (60, 0.05, 0.05), (40, 0.2, 0.05)):
        both = 0.9 - only_ours - only_theirs
        covered, widths = 0, []
        for counts in rng.multinomial(n, (both, only_ours, only_theirs, 0.1), size=400):
            ours = np.repeat((True, True, False, False), counts).tolist()
            theirs = np.repeat((True, False, True, False), counts).tolist()
            found = paired_shares(ours, theirs)
            covered += found.low <= only_ours - only_theirs <= found.high
            widths.append(found.high - found.low)
        assert covered >= 370
        known = 2 * 1.96 * math.sqrt((only_ours + only_theirs) / n)
        assert np.mean(widths) < 1.8 * known, "it is not merely wide"


def test_pairs_that_all_agree_are_not_certain_to() -> None:
    for agreed in ([True] * 250 + [False] * 16, [True] * 266):
        found = paired_shares(agreed, agreed)
        assert found.value == 0
        assert found.low == pytest.approx(-found.high)
        assert 0.01 < found.high < 0.02  # Tango's score interval reaches 0.014, too


def test_paired_shares_are_newcombes() -> None:
    """By his method 10 worked out by hand: 36 of 50 and 38 of 50 hold, 34 of both and 10 of neither."""
    counts = (34, 2, 4, 10)
    ours = np.repeat((True, True, False, False), counts).tolist()
    theirs = np.repeat((True, False, True, False), counts).tolist()
    found = paired_shares(ours, theirs)
    a, b = share_of(ours), share_of(theirs)
    correlation = (34 * 10 - 2 * 4 - 25) / math.sqrt(36 * 14 * 38 * 12)
    down, up = a.value - a.low, b.high - b.value
    assert found.low == pytest.approx(-0.04 - math.sqrt(down**2 - 2 * correlation * down * up + up**2))
    assert (found.value, found.n) == (pytest.approx(-0.04), 50)
    turned = paired_shares(theirs, ours)
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_shares_of_different_examples_differ_by_less_for_sure() -> None:
    ours, theirs = share_of([True] * 56 + [False] * 14), share_of([True] * 48 + [False] * 32)
    found = difference_of_shares(ours, theirs)  # Newcombe's own example: 56 of 70 beside 48 of 80
    assert (found.value, found.low, found.high) == (
        pytest.approx(0.2), pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4),
    )  # fmt: skip


def test_an_interval_of_a_ratio_covers_it_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(200):
        theirs = rng.poisson(30, 80) + 1
        ours = rng.binomial(theirs, 0.25)
        found = ratio_of(ours.tolist(), theirs.tolist())
        covered += found.low <= 0.25 <= found.high
        assert found.value == pytest.approx(ours.sum() / theirs.sum())
    assert 180 <= covered <= 199


def test_what_is_saved_is_the_rest_of_the_ratio() -> None:
    ratio = ratio_of([1, 2, 3], [10, 10, 20])
    saved = ratio.complement
    assert (saved.value, saved.n) == (pytest.approx(1 - ratio.value), 3)
    assert (saved.low, saved.high) == (1 - ratio.high, 1 - ratio.low)
    assert saved.low < saved.value < saved.high
