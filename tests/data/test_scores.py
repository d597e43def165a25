"""Scores in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from braid.data.builders.solve import solve_score
from braid.data.score import Score
from braid.data.scores import read_scores, score_from_json, score_to_json, write_scores
from braid.data.stories import tell
from braid.errors import DataCorruptError
from tests.data.strategies import scores


@given(score=scores())
def test_plain_data_and_back(score: Score) -> None:
    assert score_from_json(score_to_json(score)) == score


def test_a_file_and_back(tmp_path: Path) -> None:
    told = [solve_score(tell(1, i), f"s{i}") for i in range(20)]
    assert write_scores(tmp_path / "x.scores.jsonl", told) == 20
    assert list(read_scores(tmp_path / "x.scores.jsonl")) == told


@pytest.mark.parametrize(
    "bad", ["{", "[]", '{"id": "x"}', '{"id": "x", "parts": [{"direction": "sideways"}]}']
)
def test_a_line_that_is_no_score_is_named(bad: str, lines: Callable[..., Path]) -> None:
    good = score_to_json(solve_score(tell(1, 0), "s"))
    reading = read_scores(lines(good, bad))
    next(reading)
    with pytest.raises(DataCorruptError, match="line 2"):
        next(reading)
