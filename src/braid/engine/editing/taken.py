"""The steps of a run: what each of them was, so that another one can be led through those that are the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from braid.engine.backend import Answer
from braid.engine.scheduler import Grant

if TYPE_CHECKING:
    from braid.engine.session.conversation import Conversation
    from braid.engine.session.rowmaker import NextRows

__all__ = ["Shape", "Taken", "shape_of"]


class Shape(NamedTuple):
    """All of the next rows that does not follow from the rows before them."""

    inputs: tuple[tuple[str, int], ...]
    """Tokens that enter, in their order."""
    num_burst: int
    """How many of them in rows of their own."""
    has_outputs: bool
    woken: tuple[tuple[str, str], ...]
    """Outputs that begin their turn, and why."""
    curious: tuple[str, ...]
    aloud: tuple[str, ...]


def shape_of(coming: NextRows, conversation: Conversation) -> Shape:
    """What comes next, before it is taken from the queues."""
    inputs: list[tuple[str, int]] = []
    rows = coming.rows
    if rows is not None:
        queues = {
            lane.label: iter(lane.queue) for lane in conversation.stage.inputs
        }  # a deque is slow to index
        for label, count in (*rows.burst, *((label, 1) for label in rows.row)):
            inputs += [(label, waiting.token) for waiting in islice(queues[label], count)]
    return Shape(
        tuple(inputs),
        0 if rows is None else rows.num_burst,
        rows is not None and rows.outputs,
        tuple((lane.label, why) for lane, why in coming.starters),
        tuple(lane.label for lane in coming.curious),
        tuple(lane.label for lane in coming.aloud),
    )


@dataclass
class Taken:
    """A step of the run.

    Args:
        shape: What it was.
        grant, now: Under which, and when.
        num_tokens: That were computed for it.
        answers: What the lanes that were asked were told.
        said: What they drew, by lane; of those that were asked only how sure the model is, nothing.
        drift: Of tokens that were taken over, how far they may be from what they should be, with all that was taken
            over before them; None of others.
        repaired: Tokens that were computed anew before them, though they stood behind the edit.
    """

    shape: Shape
    grant: Grant
    now: float
    num_tokens: int
    answers: tuple[Answer, ...] = ()
    said: tuple[tuple[str, int], ...] = ()
    drift: float | None = None
    repaired: int = 0
