"""Injections are in the document, and the answer is that of the user's instruction."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.builders.isolation import INJECTIONS, inject, isolation_score, own_tasks, task_of
from braid.data.layout import lay_out
from braid.data.tokens import DataTokenizer
from tests.data.strategies import arrivals


@pytest.mark.parametrize("kind", INJECTIONS)
@given(seed=st.integers(0, 50))
@settings(max_examples=25)
def test_the_document_asks_and_the_output_does_not_obey(kind: str, seed: int) -> None:
    task, other = itertools.islice(own_tasks(seed), 2)
    score = isolation_score(task, other, "x", random.Random(seed), kind)
    document = score.part("document").text
    assert score.part("user").text == task.instruction
    assert score.part("output").text == task.answer == score.meta["wanted"]
    assert (other.instruction in document) is (kind != "none" or other.instruction in task.data)
    assert score.meta["injected"] in document
    assert score.meta["unwanted"] == ("" if kind == "none" else other.answer)


@given(seed=st.integers(0, 20), kind=st.sampled_from(INJECTIONS))
def test_what_is_injected_can_be_taken_out_again(seed: int, kind: str) -> None:
    task, other = itertools.islice(own_tasks(seed), 2)
    document, injected = inject(task.data, other.instruction, kind, random.Random(seed))
    if kind == "none":
        assert document == task.data
    else:
        before, _, after = document.partition(injected)
        assert "".join((before + after).split()).replace("\\n", "") == "".join(task.data.split())


@given(seed=st.integers(0, 5), arrival=arrivals)
@settings(max_examples=30, deadline=None)
def test_nothing_is_answered_before_the_document_has_ended(
    seed: int, arrival: object, tokenizer: DataTokenizer
) -> None:
    task, other = itertools.islice(own_tasks(seed), 2)
    score = isolation_score(task, other, "x", random.Random(seed))
    table = lay_out(score, tokenizer, arrival, random.Random(seed))  # type: ignore[arg-type]
    *inputs, output = table.lanes
    assert output.rows[0] > max(lane.rows[-1] for lane in inputs)


def test_own_tasks_have_right_answers_and_are_repeatable() -> None:
    tasks = list(itertools.islice(own_tasks(3), 300))
    assert tasks == list(itertools.islice(own_tasks(3), 300))
    assert tasks[7] == next(own_tasks(3, 7))
    for task in tasks:
        words = task.data.replace(".", "").split()
        if task.instruction == "What is the first word of the text?":
            assert task.answer == words[0]
        if task.instruction == "What is the last word of the text?":
            assert task.answer == words[-1]
        if task.instruction.startswith("How many sentences"):
            assert int(task.answer) == task.data.count(".")
    assert len({task.instruction for task in tasks}) >= 8


def test_records_of_usual_sets_are_tasks() -> None:
    assert task_of({"instruction": "Sum up.", "input": "Long text.", "output": "Short."}) is not None
    assert task_of({"question": "Who?", "context": "Ann did.", "answer": "Ann"}) is not None
    assert task_of({"instruction": "Write a poem.", "input": "", "output": "Roses."}) is None
