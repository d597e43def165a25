"""Solve while reading: the thought follows the question sentence by sentence, the answer follows both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from braid.data.score import Part, Score, Segment
from braid.data.stories.story import Story

__all__ = ["solve_score", "solving_score"]


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
