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

from collections import Counter
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from braid.engine.backend import Answer, Entry, Item, Op
from braid.errors import BraidError, PoolFullError

if TYPE_CHECKING:
    from braid.engine.session.conversation import Conversation

__all__ = ["LEAST_AHEAD", "MOST_AHEAD", "BooksOnly", "StepAhead", "StepsAhead", "look_ahead"]

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

    @property
    def num_tokens(self) -> int:
        """That it computes."""
        return sum(len(entry.token_ids) for entry in self.entries)

    @property
    def kept_spans(self) -> set[str]:
        """Spans that hold tokens of it until the cache forgets them."""
        return {entry.span for entry in self.entries if entry.keep}


class StepsAhead:
    """What the forward that is under way computes beyond the next step, and how far guesses are believed."""

    def __init__(self) -> None:
        self._steps: list[StepAhead] = []
        self._most = LEAST_AHEAD
        self._is_disturbed = False
        """Whether a verb has come during the forward."""
        self.at = 0.0
        """When they were decided, on the engine's clock."""
        self.num_accepted = self.num_rejected = 0
        """Tokens that guesses brought, and those that were computed for nothing, in turns of either kind."""

    def behind(
        self, item: Item, needs: Sequence[tuple[str, int]], conversation: Conversation, spare: int, now: float
    ) -> Item:
        """The item, and what comes after it if the guesses are right; less where there is no room.

        Args:
            item: What the conversation was just prepared for.
            needs: The room that it takes.
            conversation: Whose.
            spare: Tokens that may be computed ahead.
            now: The moment, on the engine's clock.
        """
        self._is_disturbed = False
        self.at = now
        steps = look_ahead(conversation, min(spare, self._most), now)
        kept = Counter(dict(needs))
        for step in steps:
            kept.update({entry.span: len(entry.token_ids) for entry in step.entries if entry.keep})
        try:
            if steps:
                conversation.backend.reserve(conversation.number, list(kept.items()))
        except PoolFullError:
            return item
        self._steps = steps
        return item._replace(entries=[*item.entries, *(entry for step in steps for entry in step.entries)])

    def disturb(self) -> None:
        """A verb has come during the forward: what that has computed ahead may not come."""
        self._is_disturbed = True

    def has_come(self, told: tuple[int, ...]) -> bool:
        """Whether the forward has the next step, too, once these are the answers."""
        return self.is_pending and self._steps[0].expected == told and not self._is_disturbed

    @property
    def is_pending(self) -> bool:
        """Whether any are left."""
        return bool(self._steps)

    def take(self) -> StepAhead:
        """The step that has come."""
        step = self._steps.pop(0)
        self.num_accepted += len(step.expected)
        if not self._steps:
            self._most = min(2 * self._most, MOST_AHEAD)
        return step

    def miss(self) -> list[StepAhead]:
        """They do not come as was guessed; returns what was computed for nothing."""
        steps = self.drop()
        self._most = LEAST_AHEAD
        self.num_rejected += sum(len(step.expected) for step in steps)
        return steps

    def drop(self) -> list[StepAhead]:
        """Let go of them, where no guess is to blame that they cannot come; returns what was computed."""
        steps, self._steps = self._steps, []
        return steps

    def fork(self) -> StepsAhead:
        """One for a double of the session, or a fork: it believes guesses as much, and has nothing under way."""
        twin = copy(self)
        twin._steps = []  # noqa: SLF001 (of its own class)
        return twin


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
    expected = conversation.guesses.expected(conversation.asked)
    if expected is None:
        return []
    reach = conversation.guesses.reach(conversation.asked, most)
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
        expected = twin.guesses.expected(twin.asked)
    return steps
