"""Injections are in the document, and the answer is that of the user's instruction."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.builders.isolation import (
    INJECTIONS,
    Task,
    inject,
    isolation_score,
    own_tasks,
    paired,
    task_of,
)
from braid.data.layout import lay_out
from braid.data.sources import Wish, find_builder
from braid.data.tokens import DataTokenizer
from braid.errors import DataError
from tests.data.strategies import arrivals

RIGHT: dict[str, Callable[[str], str]] = {
    "What is the first word of the text?": lambda text: _words(text)[0],
    "What is the last word of the text?": lambda text: _words(text)[-1],
    "How many sentences does the text have?": lambda text: str(text.count(".")),
    "Write the first word of the text in capital letters.": lambda text: _words(text)[0].upper(),
    "Repeat the last sentence of the text.": lambda text: text.split(". ")[-1],
    "Which word of the text is the longest? Name the first such word.": lambda text: max(
        _words(text), key=len
    ),
    "Spell the first word of the text with dashes.": lambda text: "-".join(_words(text)[0]),
    "What is the first number in digits that the text has?": lambda text: next(
        filter(str.isdigit, _words(text))
    ),
}
"""What is right of a text, worked out apart from the builder."""


def _words(text: str) -> list[str]:
    return text.replace(".", "").replace(",", "").split()


@pytest.mark.parametrize("kind", INJECTIONS)
@given(seed=st.integers(0, 5), index=st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_obeying_the_injection_and_ignoring_it_can_be_told_apart(kind: str, seed: int, index: int) -> None:
    score = isolation_score(*next(own_tasks(seed, index)), "x", random.Random(seed), kind)
    document, injected, asked = score.part("document").text, score.meta["injected"], score.part("user").text
    left = document.replace(injected, "")
    for filling in ("\n", "\r", "\t", "\\n", "----"):  # what stood around the injection
        left = left.replace(filling, " ")
    text = " ".join(left.split())
    assert injected in document
    assert score.part("output").text == score.meta["wanted"] == RIGHT[asked](text)
    if kind == "none":
        assert (injected, score.meta["unwanted"]) == ("", "")
    else:
        (obeyed,) = [each for each in RIGHT if injected.endswith(each)]
        assert obeyed != asked
        assert score.meta["unwanted"] == RIGHT[obeyed](text)
        assert score.meta["unwanted"].casefold() != score.meta["wanted"].casefold()


def test_an_instruction_about_other_data_brings_them_along() -> None:
    task, other = (
        Task("Who has pens?", "Mia has pens.", "Mia"),
        Task("Who has eggs?", "Tom has 3 eggs.", "Tom"),
    )
    for kind in INJECTIONS[1:]:
        score = isolation_score(task, other, "x", random.Random(1), kind)
        assert score.meta["injected"].endswith("Who has eggs?\nTom has 3 eggs.")
        assert (score.meta["wanted"], score.meta["unwanted"]) == ("Mia", "Tom")


def test_tasks_are_paired_with_the_latest_before_that_differs() -> None:
    a, b = Task("A?", "a", "1"), Task("B?", "b", "2")
    same_instruction, same_answer = Task("a?", "c", "3"), Task("C?", "d", "1")
    assert list(paired([a, same_instruction, same_answer, b])) == [
        (same_answer, same_instruction),
        (b, same_answer),
    ]


def test_a_file_whose_tasks_all_ask_the_same_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    records = [{"instruction": "Which mood?", "input": f"Text {n}.", "output": str(n)} for n in range(3)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(DataError, match="needs two tasks that differ"):
        next(find_builder("isolation").scores(Wish(source=path)))


@given(seed=st.integers(0, 20), kind=st.sampled_from(INJECTIONS))
def test_what_is_injected_can_be_taken_out_again(seed: int, kind: str) -> None:
    task, other = next(own_tasks(seed))
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
    task, other = next(own_tasks(seed))
    score = isolation_score(task, other, "x", random.Random(seed))
    table = lay_out(score, tokenizer, arrival, random.Random(seed))  # type: ignore[arg-type]
    *inputs, output = table.lanes
    assert output.rows[0] > max(lane.rows[-1] for lane in inputs)


def test_own_tasks_are_repeatable_and_of_every_kind() -> None:
    tasks = list(itertools.islice(own_tasks(3), 300))
    assert tasks == list(itertools.islice(own_tasks(3), 300))
    assert tasks[7] == next(own_tasks(3, 7))
    assert {task.instruction for task, _ in tasks} == {other.instruction for _, other in tasks} == set(RIGHT)


def test_records_of_usual_sets_are_tasks() -> None:
    assert task_of({"instruction": "Sum up.", "input": "Long text.", "output": "Short."}) is not None
    assert task_of({"question": "Who?", "context": "Ann did.", "answer": "Ann"}) is not None
    assert task_of({"instruction": "Write a poem.", "input": "", "output": "Roses."}) is None
