"""Questions with worked steps: placed along the question, wherever the steps stand."""

from __future__ import annotations

from typing import Any

import pytest

from braid.data.builders.solve import worked_score
from braid.data.check import check_table
from braid.data.layout import lay_out
from braid.data.tokens import DataTokenizer
from braid.errors import DataError

QUESTION = "Natalia sold 48 clips in April. In May she sold half as many. How many did she sell altogether?"
STEPS = ["Natalia sold 48/2 = 24 clips in May.", "Altogether she sold 48+24 = 72 clips."]
GSM8K = {
    "question": QUESTION,
    "answer": "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\n"
    "Altogether she sold 48+24 = <<48+24=72>>72 clips.\n#### 72",
}


@pytest.mark.parametrize(
    "record",
    [
        {"question": QUESTION, "steps": STEPS, "answer": "72"},
        {"question": QUESTION, "steps": "\n".join(STEPS), "answer": 72},
        GSM8K,
    ],
)
def test_steps_follow_the_question_wherever_they_stand(
    record: dict[str, Any], tokenizer: DataTokenizer
) -> None:
    verdict = worked_score(record, "x")
    score = verdict.score
    assert verdict.holds
    assert [part.text for part in score.parts] == [QUESTION, "\n".join(STEPS), "72"]
    # The first step names May, of which only the second sentence tells; wait-k alone would say it after the first.
    assert [each.after["user"] for each in score.part("thought").segments] == [2, 2]
    assert [(each.segment, each.before) for each in verdict.moved] == [(0, {"user": 1})]
    assert score.part("output").segments[0].after == {"user": 3, "thought": 2}
    assert score.meta == {"answer": "72", "wait_k": 1, "num_steps": 2}
    assert list(check_table(lay_out(score, tokenizer), 1, tokenizer)) == []


def test_wait_k_is_a_distance_and_a_judge_decides() -> None:
    late = worked_score(GSM8K, "x", wait_k=3).score
    assert [each.after["user"] for each in late.part("thought").segments] == [3, 3]
    assert not worked_score(GSM8K, "x", judge=lambda _past, _step: False).holds


def test_a_step_that_could_not_be_known_does_not_hold() -> None:
    assert not worked_score({"question": QUESTION, "steps": ["48+25 = 72"], "answer": "72"}, "x").holds


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"steps": STEPS, "answer": "72"}, "no question, but steps, answer"),
        ({"question": QUESTION, "steps": STEPS, "answer": " "}, "no answer"),
        ({"question": QUESTION, "answer": "72"}, "no steps"),
        ({"question": QUESTION, "steps": [3], "answer": "72"}, "no steps"),
    ],
)
def test_records_that_are_no_worked_question(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        worked_score(record, "x")
