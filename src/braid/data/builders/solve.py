"""Solve while reading: the thought follows the question sentence by sentence, the answer follows both."""

from __future__ import annotations

from braid.data.score import Part, Score, Segment
from braid.data.stories.story import Story

__all__ = ["solve_score"]


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
    output = [Segment(story.answer, {"user": len(user), "thought": len(thought)})]
    meta = {
        "answer": story.answer,
        "split": story.split,
        "structure": story.structure,
        "num_steps": len(thought),
    }
    reads = ("user",)
    return Score(
        name,
        (
            Part("user", "input", tuple(user)),
            Part("thought", "output", tuple(thought), reads=reads),
            Part("output", "output", tuple(output), reads=reads),
        ),
        meta,
    )
