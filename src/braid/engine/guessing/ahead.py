"""Steps that are computed before it is known whether they come.

    forward k      row t                    as always
                   row t+1, t+2, …          as they will be if the model says what is guessed
    afterwards     answers of row t, t+1, … in order: as long as they are what was guessed, the next row is entered too,
                   and nothing is computed for it; of the rest the cache forgets all tokens

Nothing is drawn otherwise than row by row, because what a step computes follows from what was said before it alone,
and the noise of a token from its place. So a guess decides how many rows one forward makes, and never what is said.

The steps that may come are those of a double of the session, which has its books and no cache, and is told the guesses
as if they were answers. Whatever a session can do is thereby looked ahead upon: several lanes, grammars, stop texts,
streams that wake or end; but not what changes more than rows, such as the end of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from braid.engine.backend import Answer, Entry, Op
from braid.errors import BraidError

if TYPE_CHECKING:
    from braid.engine.conversation import Conversation

__all__ = ["LEAST_AHEAD", "MOST_AHEAD", "BooksOnly", "StepAhead", "look_ahead"]

LEAST_AHEAD = 4
MOST_AHEAD = 64
"""Tokens ahead of one forward: more after guesses that were right, fewer after others."""


class StepAhead(NamedTuple):
    """A step that may come.

    Args:
        expected: The tokens that the step before must be answered with.
        entries: What it computes.
    """

    expected: tuple[int, ...]
    entries: tuple[Entry, ...]


class BooksOnly:
    """In the place of a backend where a session is led through what may come: nothing is computed, nothing kept."""

    def __init__(self) -> None:
        self.is_touched = False
        """Whether more was to be changed than what rows add."""

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        """There is room."""

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Note that there was something."""
        self.is_touched = self.is_touched or bool(ops)
        return [0] * len(ops)


def look_ahead(conversation: Conversation, most: int, now: float) -> list[StepAhead]:
    """The steps that come next if what is guessed is said.

    Args:
        conversation: Just prepared for a forward; not changed.
        most: Tokens of all of them, about: the last one may pass it.
        now: The moment, on the engine's clock.
    """
    expected = conversation.guessed()
    reach = conversation.num_guessable(most)
    if expected is None:
        return []
    books = BooksOnly()
    twin = conversation.double(books)
    steps: list[StepAhead] = []
    while expected is not None and most > 0 and len(steps) < reach:
        try:
            twin.advance([Answer(token) for token in expected])
            twin.demand(now)
            made = None if books.is_touched else twin.prepare(now=now)
        except BraidError:  # it will be raised when it really comes to that
            break
        if made is None or books.is_touched or made[0].kind != "decode":
            break
        steps.append(StepAhead(expected, tuple(made[0].entries)))
        most -= made[0].num_tokens
        expected = twin.guessed()
    return steps
