"""Sources of reasoning-gym: what the thought says is true, and said as soon as it can be."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import pytest

from braid.data.arithmetic import equations
from braid.data.builders.reasoning import SOURCES, reasoning_items, reasoning_score
from braid.data.check import check_table
from braid.data.layout import draw_arrival, lay_out
from braid.data.tokens import DataTokenizer
from braid.errors import DataError


def _items(source: str, count: int = 40) -> list[dict[str, Any]]:
    pytest.importorskip("reasoning_gym")
    return list(itertools.islice(reasoning_items(source, 5), count))


@pytest.mark.parametrize("source", SOURCES)
def test_every_item_can_be_laid_out(source: str, tokenizer: DataTokenizer) -> None:
    for number, item in enumerate(_items(source)):
        verdict = reasoning_score(source, item, f"x{number}")
        score = verdict.score
        assert score.part("user").text in item["question"]
        assert score.part("output").text == score.meta["answer"]
        rng = random.Random(number)
        assert list(check_table(lay_out(score, tokenizer, draw_arrival(rng), rng), 1, tokenizer)) == []


def test_a_series_is_repeatable_and_may_begin_anywhere() -> None:
    items = _items("syllogism", 70)
    assert items == _items("syllogism", 70)
    assert next(reasoning_items("syllogism", 5, 66)) == items[66]


def test_worked_steps_are_right_and_most_hold() -> None:
    verdicts = [reasoning_score("gsm_symbolic", item, "x") for item in _items("gsm_symbolic", 150)]
    held = [verdict for verdict in verdicts if verdict.holds]
    assert len(held) >= 0.7 * len(verdicts)
    for verdict in held:
        for segment in verdict.score.part("thought").segments:
            assert all(equation.is_right for equation in equations(segment.text))
    assert any(
        each.after["user"] < len(v.score.part("user").segments)
        for v in held
        for each in v.score.part("thought").segments
    )


def test_worlds_that_are_left_at_the_end_are_the_solution() -> None:
    for item in _items("knights_knaves"):
        meta = item["metadata"]
        terms = meta["knight_knave_terms"]
        told = reasoning_score("knights_knaves", item, "x").score.part("thought").segments[-1].text
        solution = zip(meta["names"], meta["solution"], strict=True)
        wanted = " ".join(
            f"{name} {terms['knight' if is_knight else 'knave']}" for name, is_knight in solution
        )
        assert told.strip() == f"{wanted}."


def test_verdicts_agree_with_the_answer() -> None:
    for item in _items("syllogism"):
        score = reasoning_score("syllogism", item, "x").score
        told = score.part("thought").segments[-1].text
        assert told.endswith(": follows;" if item["answer"] == "Yes" else ": does not follow;")
        assert item["metadata"]["premise1"] in "".join(score.part("user").text)


def test_premises_leave_fewer_and_fewer_worlds_in_which_the_answer_holds() -> None:
    for item in _items("propositional_logic"):
        score = reasoning_score("propositional_logic", item, "x").score
        counts = [len(segment.text.split()) for segment in score.part("thought").segments]
        assert counts == sorted(counts, reverse=True)
        reads = [segment.after["user"] for segment in score.part("thought").segments]
        assert reads == sorted(reads)


def test_unknown_sources_and_a_missing_package_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="there is no source 'chess'"):
        reasoning_score("chess", {}, "x")
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match="pip install reasoning-gym"):
        next(reasoning_items("gsm_symbolic", 1))
