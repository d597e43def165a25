"""What the outputs of one session may say next, while they say it.

    drafts of the session ──▶ Guesses ──────┐
    what an application suggests ──▶        ├──▶  a cursor an output, which reads along with what it says
    answers to others of its salt ──▶ SharedGuesses (if it was asked to)
                          ◀── its own answers, once a turn is over
    what the output has read ──▶ ReadText (in a turn whose whole input is known)

Nothing is followed before there is anything to guess from, so that a session without drafts pays nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING

from braid.engine.guessing.guesses import Cursor, Guesses, Reader

if TYPE_CHECKING:
    from braid.engine.guessing.read_text import ReadText
    from braid.engine.guessing.shared_guesses import SharedGuesses

__all__ = ["Asked", "SessionGuesses"]

Asked = tuple[str, bool]
"""Who is asked by a forward, and whether only how sure the model is."""


class SessionGuesses:
    """The guesses of one session, and how far each output has come in its turn.

    Args:
        labels: Of the outputs.
        salt: Answers are shared with sessions of the same salt only.

    >>> guesses = SessionGuesses(["output"], salt="")
    >>> guesses.add("output", [1, 2, 3])
    >>> guesses.begin_turn()
    >>> guesses.said("output", 1)
    >>> guesses.expected([("output", False)])
    (2,)
    """

    def __init__(self, labels: Sequence[str], salt: str) -> None:
        self.shared: SharedGuesses | None = None
        """Where it gives its answers, and finds guesses where it has none of its own, if it was asked to."""
        self._labels = tuple(labels)
        self._salt = salt
        self.learns = True
        """Whether what it drafts and reads is a guess, too, besides what is suggested."""
        self._drafts = Guesses()
        self._may_come = False
        """Whether anything was ever added, be it nothing yet."""
        self._cursors: dict[str, Cursor] = {}
        self._answered: list[list[int]] = []
        """What the outputs said in a turn that is over, until it is shared."""

    @property
    def is_followed(self) -> bool:
        """Whether there is, or may be, anything to guess from."""
        return bool(self._cursors)

    # ---- where guesses come from

    def add(self, label: str, tokens: Sequence[int]) -> None:
        """Take what an output has said in a draft, or may say, as a guess of what it says next time."""
        self._may_come = True
        self._drafts.add(label, tokens)

    def only(self, said: Mapping[str, Sequence[int]]) -> None:
        """Guess that the outputs say this, and nothing else."""
        self._drafts = Guesses()
        for label, tokens in said.items():
            self.add(label, tokens)

    def read_along(self, other: SessionGuesses) -> None:
        """Guess what another session guesses, from the beginning of a turn."""
        self._drafts, self._may_come = other._drafts, other._may_come
        self.begin_turn()

    # ---- what is said

    def begin_turn(self, read: Mapping[str, ReadText] | None = None) -> None:
        """Follow the outputs from the beginning of what they say.

        Args:
            read: What they have read before, by label, where that is known.
        """
        self._cursors = {}
        if self._may_come or self.shared is not None or read:
            self._cursors = {label: self._cursor(label, (read or {}).get(label)) for label in self._labels}

    def _cursor(self, label: str, read: ReadText | None) -> Cursor:
        """A reader of all there is, the likeliest first."""
        other: Reader | None = None if read is None else read.cursor()
        if self.shared is not None:
            other = self.shared.cursor(self._salt, other)
        return self._drafts.cursor(label, other)

    def follows(self, label: str) -> bool:
        """Whether what an output says is followed."""
        return label in self._cursors

    def said(self, label: str, token: int) -> None:
        """An output says a token."""
        cursor = self._cursors.get(label)
        if cursor is not None:
            cursor.push(token)

    def end_turn(self) -> None:
        """What was said in this turn may be a guess for sessions of the same salt."""
        self._answered = [] if self.shared is None else [cursor.said for cursor in self._cursors.values()]
        self._cursors = {}

    def take_answered(self) -> list[list[int]]:
        """What is to be shared of a turn that is over."""
        answered, self._answered = self._answered, []
        return answered

    # ---- what is guessed

    def expected(self, asked: Sequence[Asked]) -> tuple[int, ...] | None:
        """What those who are asked will say, as far as anybody can guess; None if not."""
        found: list[int] = []
        for label, is_wait in asked:
            token = None if is_wait or label not in self._cursors else self._cursors[label].guess()
            if token is None:
                return None
            found.append(token)
        return tuple(found)

    def reach(self, asked: Sequence[Asked], most: int) -> int:
        """Steps ahead that are worth their tokens: the longer the run that led to a guess, the more may follow."""
        followed = [label for label, is_wait in asked if not is_wait and label in self._cursors]
        return min((len(self._cursors[label].ahead(most)) for label in followed), default=most)

    # ---- doubles

    def fork(self) -> SessionGuesses:
        """A second one that follows by itself what is said; the drafts are the same ones."""
        twin = copy(self)
        twin._cursors = {label: cursor.copy() for label, cursor in self._cursors.items()}  # noqa: SLF001 (of its own class)
        twin._answered = []  # noqa: SLF001 (of its own class)
        return twin

    def become(self, twin: SessionGuesses) -> None:
        """Stand in the turn where another one stands; the guesses are its own still."""
        self._cursors = twin._cursors
