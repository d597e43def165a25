"""Solve while reading: the thought follows the question sentence by sentence, the answer follows both.

Of our own stories it is known after which sentence each step can be said. The steps of others were written with the
whole question in sight: they are placed by wait-k, and moved on by the validator until they could be known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from braid.data.builders.chats import place_by_wait_k
from braid.data.causality import Judge, Verdict, validate
from braid.data.score import Part, Score, Segment
from braid.data.sentences import split_sentences
from braid.data.stories.story import Story
from braid.errors import DataError
from braid.streams.strict import shown

__all__ = ["solve_score", "solving_score", "worked_score"]

_RESULT = re.compile(r"^####\s*(.+?)\s*$", re.MULTILINE)
"""How GSM8K marks the result below the steps."""
_CALCULATION = re.compile(r"<<[^<>]*>>")
"""GSM8K's notes for a calculator, which say what stands beside them."""


def solve_score(story: Story, name: str) -> Score:
    """The score of a story: user, thought, output.

    Args:
        story: A word problem.
        name: Of the example.
    """
    user = [Segment(sentence.text) for sentence in story.sentences]
    thought = [
        Segment(step, {"user": place})
        for place, sentence in enumerate(story.sentences, start=1)
        for step in sentence.steps
    ]
    output = Segment(story.answer, {"user": len(user), "thought": len(thought)})
    meta = {
        "answer": story.answer,
        "split": story.split,
        "structure": story.structure,
        "num_steps": len(thought),
    }
    return solving_score(name, user, thought, output, meta)


def solving_score(
    name: str, user: Sequence[Segment], thought: Sequence[Segment], output: Segment, meta: Mapping[str, Any]
) -> Score:
    """The score of a question, a thought that follows it, and an answer.

    Args:
        name: Of the example.
        user, thought, output: What they say, and what each waits for.
        meta: Of the example.
    """
    reads = ("user",)
    return Score(
        name,
        (
            Part("user", "input", tuple(user)),
            Part("thought", "output", tuple(thought), reads=reads),
            Part("output", "output", (output,), reads=reads),
        ),
        meta,
    )


def worked_score(
    record: Mapping[str, Any], name: str, wait_k: int = 1, judge: Judge | None = None
) -> Verdict:
    """The score of a record with `question`, `steps` and `answer`, and whether its steps hold.

    Args:
        record: Its steps are a list of text, or a text with a line a step. As in GSM8K they may also stand in the
            answer, above a line with `####` and the result.
        name: Of the example.
        wait_k: Segments of the question that have been read when the thought begins.
        judge: For free text, where the rules see too little.

    Raises:
        DataError: It has no question, no answer or no steps.
    """
    question, answer = (_text(record, key) for key in ("question", "answer"))
    steps = record.get("steps")
    found = _RESULT.search(answer)
    if steps is None and found is not None:
        steps, answer = _CALCULATION.sub("", answer[: found.start()]), found[1]
    lines = [line.strip() for line in _lines(steps) if line.strip()]
    if not lines:
        raise DataError(
            f"it has no steps: `steps` is a list of text, or a text with a line a step, not {shown(steps)}"
        )
    user = [Segment(text) for text in split_sentences(question)]
    thought = Part(
        "thought",
        "output",
        tuple(Segment(f"\n{line}" if place else line) for place, line in enumerate(lines)),
    )
    placed = place_by_wait_k(thought, {"user": len(user)}, "user", wait_k).segments
    output = Segment(answer, {"user": len(user), "thought": len(lines)})
    meta = {"answer": answer, "wait_k": wait_k, "num_steps": len(lines)}
    return validate(solving_score(name, user, placed, output, meta), judge=judge)


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    text = str(value) if isinstance(value, (int, float)) else value
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"it has no {key}, but {', '.join(record) or 'nothing'}; a column has to be called so"
        )
    return text.strip()


def _lines(steps: object) -> list[str]:
    if isinstance(steps, str):
        return steps.splitlines()
    if isinstance(steps, list) and all(isinstance(each, str) for each in cast("list[object]", steps)):
        return cast("list[str]", steps)
    return []
