"""From chats: wait-k over the question, then the validator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.data.builders.chats import chat_score
from braid.data.score import Part, Score, Segment

QUESTION = "Mia has 3 pens. Tom has 4 pens. How many pens are there?"
THOUGHT = "Mia has 3 pens. With Tom's 4 pens that makes 3 + 4 = 7 pens. So there are 7."


def _chat(question: str = QUESTION, thought: str | None = THOUGHT, answer: str = "7") -> Score:
    parts = [Part("user", "input", (Segment(question),))]
    if thought is not None:
        parts.append(Part("thought", "output", (Segment(thought, {"user": 1}),), reads=("user",)))
    parts.append(Part("output", "output", (Segment(answer, {"user": 1}),), reads=("user",)))
    return Score("c", tuple(parts), {"answer": answer})


def test_sentences_follow_sentences_and_the_answer_comes_last() -> None:
    verdict = chat_score(_chat())
    assert [dict(each.after) for each in verdict.score.part("thought").segments] == [
        {"user": n} for n in (1, 2, 3)
    ]
    assert verdict.score.part("output").segments[0].after == {"user": 3, "thought": 3}
    assert (verdict.holds, verdict.moved) == (True, ())
    assert verdict.score.meta == {"answer": "7", "wait_k": 1, "num_steps": 3}


def test_the_validator_moves_what_wait_k_puts_too_early() -> None:
    verdict = chat_score(_chat(thought="3 + 4 = 7."))
    assert verdict.score.part("thought").segments[0].after == {"user": 2}
    assert [moved.before for moved in verdict.moved] == [{"user": 1}]


@given(wait_k=st.integers(1, 8))
def test_wait_k_is_a_distance_and_text_stays(wait_k: int) -> None:
    score = chat_score(_chat(), wait_k).score
    assert [each.after["user"] for each in score.part("thought").segments] == [
        min(n + wait_k, 3) for n in range(3)
    ]
    assert [part.text for part in score.parts] == [QUESTION, THOUGHT, "7"]


def test_other_inputs_are_read_before_the_thought_begins() -> None:
    chat = _chat()
    system = Part("system", "input", (Segment("Be brief. Be kind."),))
    score = chat_score(Score("c", (system, *chat.parts))).score
    assert all(each.after["system"] == 2 for each in score.part("thought").segments)


def test_a_chat_without_reasoning_has_only_its_answer() -> None:
    verdict = chat_score(_chat(thought=None, answer="Sure. I will."))
    assert verdict.score.streams == ["user", "output"]
    assert verdict.score.meta["num_steps"] == 0


@pytest.mark.parametrize("is_fine", [True, False])
def test_a_judge_decides_about_free_text(is_fine: bool) -> None:
    verdict = chat_score(_chat(), judge=lambda _past, _step: is_fine)
    assert verdict.holds is is_fine
