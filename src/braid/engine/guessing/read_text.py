"""What an output has read, as guesses of what it says: names, numbers and whole sentences are often said again.

    read     List the facts  :  Sally  has  3  apples  and  buys  4  more
    said     Facts  :  Sally  has  3  ?
                       └─ the last two tokens, found in what was read: it goes on with `apples`

No answer has been drafted yet where this is of use, so that it finds the last two tokens by a table, which is made only
once something is to be guessed, and costs a fraction of a microsecond a token. From there on it reads along.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from braid.engine.session.stage import Stage

__all__ = ["LEAST_READ", "MOST_READ", "ReadCursor", "ReadText", "to_be_read"]

LEAST_READ = 2
"""Tokens that were said and read before what comes next is believed to follow."""

MOST_READ = 4096
"""Tokens that are looked through, the newest."""


class ReadText:
    """What an output has read before it says anything.

    Args:
        tokens: In order; the last `MOST_READ` are looked through.

    >>> cursor = ReadText([5, 6, 7, 8, 9]).cursor()
    >>> for token in [1, 6, 7]:
    ...     cursor.push(token)
    >>> cursor.guess(), cursor.ahead(10)
    (8, [8, 9])
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens[-MOST_READ:])

    @cached_property
    def after(self) -> dict[tuple[int, int], int]:
        """By two tokens the place behind their last occurrence; where nothing follows, there is none."""
        tokens = self.tokens
        return {pair: at + LEAST_READ for at, pair in enumerate(pairwise(tokens[:-1]))}

    def cursor(self) -> ReadCursor:
        """A reader at the beginning of an answer."""
        return ReadCursor(self)


class ReadCursor:
    """What one lane has said, as far as it stands in what it has read. `ReadText.cursor` makes it.

    Args:
        text: What it has read.
    """

    __slots__ = ("_at", "_last", "_run", "_text")

    def __init__(self, text: ReadText) -> None:
        self._text = text
        self._last: int | None = None
        self._at = 0
        """The place behind the run that was said."""
        self._run = 0
        """Tokens of that run; 0 where there is none."""

    def push(self, token: int) -> None:
        """Add a token that the lane says."""
        tokens, last = self._text.tokens, self._last
        self._last = token
        if self._run and self._at < len(tokens) and tokens[self._at] == token:
            self._at, self._run = self._at + 1, self._run + 1
            return
        self._at = 0 if last is None else self._text.after.get((last, token), 0)
        self._run = LEAST_READ if self._at else 0

    def guess(self) -> int | None:
        """The next token, or None where what was said last is nothing that was read."""
        tokens = self._text.tokens
        return tokens[self._at] if self._run and self._at < len(tokens) else None

    def ahead(self, most: int) -> list[int]:
        """The next tokens, no more than twice as many as the run that speaks for them has.

        Args:
            most: How many.
        """
        most = min(most, 2 * self._run)
        return list(self._text.tokens[self._at : self._at + most])

    def copy(self) -> ReadCursor:
        """Another one at the same place."""
        copy = ReadCursor(self._text)
        copy._last, copy._at, copy._run = self._last, self._at, self._run
        return copy


def to_be_read(stage: Stage) -> dict[str, ReadText]:
    """By output, what a turn gives it to read of whose inputs all is known, behind the conversation before.

    Args:
        stage: At the beginning of the turn.
    """
    before = [] if stage.preamble is None else stage.preamble.wanted_ids[-MOST_READ:]
    texts: dict[tuple[str, ...], ReadText] = {}
    found: dict[str, ReadText] = {}
    for lane in stage.outputs:
        read = [other for other in stage.inputs if stage.table.reads(lane.lane.index, other.lane.index)]
        labels = tuple(other.label for other in read)
        if labels not in texts:
            texts[labels] = ReadText([*before, *(waiting.token for other in read for waiting in other.queue)])
        found[lane.label] = texts[labels]
    return found
