"""Seconds, for one session alone: how long somebody who types waits for the answer.

Typing takes real time, so the clock is moved on where the model waits for the next token, and runs where it computes:
the figures are those of a live session, in a fraction of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from braid.data.score import Score
from braid.data.tokens import place_after
from braid.eval.play import Arriving, Pace, alone, pieces_of, step_alone, with_feed
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = ["TYPED_PER_SECOND", "Waited", "wait_for"]

TYPED_PER_SECOND = 5.0
"""Tokens a second of somebody who types; the pace at which figures in seconds are given."""

_LONGEST = 600
"""Rows after which it is given up."""


@dataclass(frozen=True)
class Waited:
    """From the last token of the question, in seconds.

    Args:
        first: To the first token of the answer; None without one.
        whole: To its last token.
        compute: Seconds that were computed in all.
        rows: How many.
    """

    first: float | None
    whole: float | None
    compute: float
    rows: int


def wait_for(
    model: Model,
    topology: Topology,
    score: Score,
    *,
    output: str,
    per_second: float | None,
    thought_end: tuple[int, ...] = (),
) -> Waited:
    """Type a question to a model, and time its answer.

    Args:
        model: Answers.
        topology: Of its streams; one of views (`plain`) begins when all has been typed.
        score: Its input parts are typed.
        output: The stream that answers.
        per_second: Tokens a second; None gives everything at once.
        thought_end: The tokens after which the answer begins, where the same stream holds the thought before it.
    """
    reads_along = topology.decoding == "rows" and per_second is not None
    pace: Pace = "typed" if reads_along else "paste"
    if topology.decoding == "rows":
        topology = with_feed(topology, "paced" if reads_along else "burst")
    count = sum(len(pieces_of(part, "typed")) for part in score.parts if part.direction == "input")
    gap = 0.0 if per_second is None else 1 / per_second
    ended_at = (count - 1) * gap
    now = 0.0 if reads_along else ended_at
    compute, done, rows, given = 0.0, dict[int, float](), 0, 0
    with alone(model, topology) as (core, conversation):
        arriving = Arriving(score, conversation, pace)
        while rows < _LONGEST:
            while not arriving.is_over and (not reads_along or given * gap <= now or given >= count):
                arriving.give_next()
                given += 1
            if conversation.has_work:
                taken = step_alone(core, conversation)
                now, compute, rows = now + taken, compute + taken, rows + 1
                done[conversation.t - 1] = now
            elif arriving.is_over:
                break
            else:
                now = max(now, given * gap)
            if conversation.turn_is_over:
                break
        said = _answer(conversation.transcript.tokens(output), model.turn_end_id, thought_end)
    first, last = (said[0], said[-1]) if said else (None, None)
    return Waited(_after(done, first, ended_at), _after(done, last, ended_at), compute, rows)


def _answer(tokens: list[tuple[int, int]], end: int | None, thought_end: tuple[int, ...]) -> list[int]:
    """Rows of an answer's tokens; a thought that does not end has none after it."""
    start = place_after(thought_end, [token for _, token in tokens])
    start = len(tokens) if start is None else start
    return [t for t, token in tokens[start:] if token != end]


def _after(done: dict[int, float], row: int | None, since: float) -> float | None:
    """How long after the question a token was known: at the end of the row before it, where it was drawn.

    None without a token, and for one that was known before the question had ended.
    """
    if row is None:
        return None
    known = max((at for t, at in done.items() if t < row), default=since)
    return known - since if known >= since else None
