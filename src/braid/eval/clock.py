"""Seconds, for one session alone: how long somebody who types waits for an answer, or for a flag.

Typing takes real time, so the clock is moved on where the model waits for the next token, and runs where it computes:
the figures are those of a live session, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from braid.data.score import Score
from braid.data.tokens import place_after
from braid.eval.play import Arriving, Pace, Played, alone, pieces_of, played_of, step_alone, with_feed
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = ["TYPED_PER_SECOND", "Timed", "Waited", "time_alone", "wait_for"]

TYPED_PER_SECOND = 5.0
"""Tokens a second of somebody who types, where nobody says another pace."""

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


@dataclass(frozen=True)
class Timed:
    """One session alone, on a clock that starts with the first token of its input.

    Args:
        played: What was said.
        done: Seconds at which each row was done.
        ended_at: Seconds at which the last token of the input came.
        compute: Seconds that were computed in all.
    """

    played: Played
    done: Mapping[int, float]
    ended_at: float
    compute: float

    def known_at(self, row: int) -> float:
        """Seconds at which the token of a row was known: at the end of the row before it, where it was drawn."""
        return max((at for t, at in self.done.items() if t < row), default=self.ended_at)


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
        model, topology, score, per_second: As for `time_alone`.
        output: The stream that answers.
        thought_end: The tokens after which the answer begins, where the same stream holds the thought before it.
    """
    timed = time_alone(model, topology, score, per_second)
    spoken = timed.played.streams[output]
    said = _answer(list(zip(spoken.rows, spoken.ids, strict=True)), model.turn_end_id, thought_end)
    first, last = (said[0], said[-1]) if said else (None, None)
    return Waited(_after(timed, first), _after(timed, last), timed.compute, len(timed.done))


def time_alone(model: Model, topology: Topology, score: Score, per_second: float | None) -> Timed:
    """Type the inputs of a score to a model, one after another, and time all that it says.

    Args:
        model: Answers.
        topology: Of its streams; one of views (`plain`) begins when all has been typed.
        score: Its input parts are typed.
        per_second: Tokens a second; None gives everything at once. An end takes no time.
    """
    reads_along = topology.decoding == "rows" and per_second is not None
    pace: Pace = "typed" if reads_along else "paste"
    if topology.decoding == "rows":
        topology = with_feed(topology, "paced" if reads_along else "burst")
    count = sum(len(pieces_of(part, "typed")) for part in score.parts if part.direction == "input")
    gap = 0.0 if per_second is None else 1 / per_second
    ended_at = (count - 1) * gap
    now = 0.0 if reads_along else ended_at
    compute, done, given = 0.0, dict[int, float](), 0
    with alone(model, topology) as (core, conversation):
        arriving = Arriving(score, conversation, pace)
        while len(done) < _LONGEST:
            while not arriving.is_over and (not reads_along or given * gap <= now or arriving.has_given_all):
                given += bool(arriving.give_next())
            if conversation.has_work:
                taken = step_alone(core, conversation)
                now, compute = now + taken, compute + taken
                done[conversation.t - 1] = now
            elif arriving.is_over:
                break
            else:
                now = max(now, given * gap)
            if arriving.is_over and conversation.turn_is_over:
                break
        return Timed(played_of(model, conversation), done, ended_at, compute)


def _answer(tokens: list[tuple[int, int]], end: int | None, thought_end: tuple[int, ...]) -> list[int]:
    """Rows of an answer's tokens; a thought that does not end has none after it."""
    start = place_after(thought_end, [token for _, token in tokens])
    start = len(tokens) if start is None else start
    return [t for t, token in tokens[start:] if token != end]


def _after(timed: Timed, row: int | None) -> float | None:
    """How long after the question a token was known; None without one, and for one known before it had ended."""
    if row is None:
        return None
    known = timed.known_at(row)
    return known - timed.ended_at if known >= timed.ended_at else None
