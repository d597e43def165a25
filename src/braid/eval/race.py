"""Two models, one typed question, two clocks: what the demo shows.

The model of streams reads along while somebody types; its baseline is given the question when it is finished. Each
clock runs from the last token of the question while that model alone computes, so that neither is slowed by the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from braid.data.score import Part, Score, Segment
from braid.data.sentences import split_sentences
from braid.data.tokens import place_after
from braid.engine.core import EngineCore
from braid.engine.session.conversation import Conversation
from braid.eval.play import Arriving, alone, step_alone, with_feed
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = ["Frame", "Racer", "audit_along", "race"]

_LONGEST = 600


@dataclass(frozen=True)
class Racer:
    """A model and how it is run.

    Args:
        model, topology: Of it.
        thought_end: The tokens after which it answers, where one stream holds the thought and the answer.
    """

    model: Model
    topology: Topology
    thought_end: tuple[int, ...] = ()


@dataclass
class Frame:
    """What can be seen at one moment.

    Args:
        typed: Of the question.
        streams: What the outputs of the first model hold.
        thought, answer: What the baseline says.
        waited: Milliseconds on the clock of the first model; None while the question is typed.
        first: Milliseconds to the first token of its answer.
        turns_waited, turns_first: The same of the baseline.
    """

    typed: str = ""
    streams: dict[str, str] = field(default_factory=dict[str, str])
    thought: str = ""
    answer: str = ""
    waited: float | None = None
    first: float | None = None
    turns_waited: float | None = None
    turns_first: float | None = None


Show = Callable[[Frame], None]


def race(ours: Racer, theirs: Racer | None, question: str, *, per_second: float, show: Show) -> Frame:
    """Type a question, and let both answer.

    Args:
        ours: Of streams.
        theirs: The baseline.
        question: What is typed.
        per_second: Tokens a second.
        show: Is given every moment.

    Returns:
        The last moment.
    """
    score = Score(
        "demo", (Part("user", "input", tuple(Segment(text) for text in split_sentences(question))),)
    )
    frame = Frame()
    with alone(ours.model, with_feed(ours.topology, "paced")) as (core, conversation):
        _type(core, conversation, Arriving(score, conversation, "typed"), frame, per_second, show)
    if theirs is not None:
        _take_turn(theirs, question, frame, show)
    return frame


def audit_along(ours: Racer, question: str, solution: str, *, per_second: float, show: Show) -> Frame:
    """Let the auditor read a solution while it is typed, the question being there already."""
    frame = Frame()
    steps = tuple(Segment(f"{step};") for step in solution.split(";") if step)
    score = Score("demo", (Part("solution", "input", steps),))
    with alone(ours.model, with_feed(ours.topology, "paced")) as (core, conversation):
        conversation.write("user", question)
        conversation.end("user")
        _compute(core, conversation, lambda _: None)
        _type(core, conversation, Arriving(score, conversation, "typed"), frame, per_second, show)
    return frame


def _type(
    core: EngineCore,
    conversation: Conversation,
    arriving: Arriving,
    frame: Frame,
    per_second: float,
    show: Show,
) -> None:
    gap, began, count = 1 / per_second, time.perf_counter(), 0
    has_ended, waited = False, 0.0

    def look(taken: float) -> None:
        nonlocal waited
        before = frame.streams
        frame.streams = {
            lane.label: conversation.transcript.text(lane.label)
            for lane in conversation.transcript.lanes.lanes
            if conversation.topology.streams[lane.stream].is_output
        }
        if has_ended:
            waited += 1000 * taken
            if frame.streams != before or frame.waited is None:
                frame.waited = waited
            if frame.first is None and frame.streams.get("output"):
                frame.first = waited
        show(frame)

    while not arriving.is_over:
        time.sleep(max(0.0, began + count * gap - time.perf_counter()))
        frame.typed += arriving.advance() or ""
        count += 1
        if arriving.has_given_all:
            has_ended = True
            arriving.give_next()  # who has typed the last word presses Enter
        _compute(core, conversation, look)


def _compute(core: EngineCore, conversation: Conversation, look: Callable[[float], None]) -> None:
    """Rows until there is nothing to do; `look` is told how long each took, what it shows itself left out."""
    for _ in range(_LONGEST):
        if not conversation.has_work:
            return
        look(step_alone(core, conversation))


def _take_turn(theirs: Racer, question: str, frame: Frame, show: Show) -> None:
    waited = 0.0
    decode = theirs.model.codec.decode
    with alone(theirs.model, theirs.topology) as (core, conversation):

        def look(taken: float) -> None:
            nonlocal waited
            waited += 1000 * taken
            ids = [token for _, token in conversation.transcript.tokens("output")]
            place = place_after(theirs.thought_end, ids)
            place = len(ids) if place is None else place
            before = frame.thought, frame.answer
            frame.thought, frame.answer = decode(ids[:place]), decode(ids[place:])
            if (frame.thought, frame.answer) != before:
                frame.turns_waited = waited
            if frame.turns_first is None and frame.answer:
                frame.turns_first = waited
            show(frame)

        conversation.write("user", question)
        conversation.end("user")
        _compute(core, conversation, look)
