"""What sessions of one tenant were answered, as guesses for its other sessions: similar requests have similar answers.

    session 1   "The capital of France is Paris."   ── its turn is over ──▶   one automaton a salt
    session 2   "The capital of Italy is"           ◀── where its own drafts have no guess ──┘

A guess changes what is computed and never what is said, but whoever is quick has been guessed right: sessions that
share a salt may learn from the time that they take what others were answered. So it is for sessions that ask for it,
which alone give their answers to it, too; and nothing of one salt is ever a guess for another.
"""

from __future__ import annotations

from collections.abc import Sequence

from braid.engine.guessing.guesses import Cursor, LaneDrafts, Reader, SuffixAutomaton

__all__ = ["LEAST_SHARED", "MOST_SALTS", "MOST_TOKENS", "MOST_TOKENS_IN_ALL", "SharedGuesses"]

MOST_TOKENS = 16_384
"""Of the answers that are kept of one salt; a token takes about half a kilobyte."""

MOST_TOKENS_IN_ALL = 65_536
"""Of all salts; beyond it those that were used longest ago are forgotten."""

MOST_SALTS = 1024

LEAST_SHARED = 3
"""Tokens that a run has at least before an answer to somebody else is believed; shorter ones are too often chance."""


class SharedGuesses:
    """The newest answers, salt by salt.

    Args:
        most_tokens: Of one salt; the oldest answers are forgotten beyond it, down to a half.
        most_in_all: Of all salts together.
        most_salts: That are known at once.

    >>> shared = SharedGuesses()
    >>> shared.add("tenant", [1, 2, 3, 4, 5])
    >>> cursor, other = shared.cursor("tenant"), shared.cursor("another")
    >>> for token in [9, 2, 3, 4]:
    ...     cursor.push(token), other.push(token)
    (None, None)
    (None, None)
    (None, None)
    (None, None)
    >>> cursor.guess(), other.guess()
    (5, None)
    """

    def __init__(
        self,
        most_tokens: int = MOST_TOKENS,
        most_in_all: int = MOST_TOKENS_IN_ALL,
        most_salts: int = MOST_SALTS,
    ) -> None:
        self._most_tokens = most_tokens
        self._most_in_all = most_in_all
        self._most_salts = most_salts
        self._salts: dict[str, LaneDrafts] = {}
        """Those that were used last come last."""

    @property
    def num_tokens(self) -> int:
        """Of all answers that are kept."""
        return sum(answers.automaton.num_tokens for answers in self._salts.values())

    def add(self, salt: str, tokens: Sequence[int]) -> None:
        """Take an answer that somebody was given.

        Args:
            salt: Whose.
            tokens: Of the answer, in order.
        """
        self._of(salt).add(tokens)
        while len(self._salts) > 1 and self.num_tokens > self._most_in_all:
            self._forget_oldest()

    def cursor(self, salt: str, other: Reader | None = None) -> Cursor:
        """A reader at the beginning of an answer.

        Args:
            salt: Whose.
            other: Asked where these answers have no guess.
        """
        return Cursor(self._of(salt), LEAST_SHARED, other)

    def _of(self, salt: str) -> LaneDrafts:
        answers = self._salts.pop(salt, None) or LaneDrafts(SuffixAutomaton(self._most_tokens))
        self._salts[salt] = answers
        while len(self._salts) > self._most_salts:
            self._forget_oldest()
        return answers

    def _forget_oldest(self) -> None:
        self._salts.pop(next(iter(self._salts))).forget()
