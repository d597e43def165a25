"""Guesses: what a lane may say next, as far as its earlier drafts tell.

A draft answers a snapshot that was edited since. Much of it is often said again: from the beginning, until the edit
shows, and afterwards in runs. Both are guessed here, and verified elsewhere; a wrong guess costs a place in a forward,
never a wrong token.

    newest draft    The  cat  sat  on   the  mat  .
    really said     The  dog  sat  on   ?
                     │    │   └───┬──┘
               agrees│    │no more│ the longest run of what was said that is in a draft: "sat on", so `the` is next
                     └ guessed as the draft's next token

The runs are found by a suffix automaton: a state for each set of strings that end in the same places of the drafts,
so that one step a token follows the longest run, however long it is. Drafts share states, and nothing matches across
the border of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, Self

from braid.errors import InputError

__all__ = ["Cursor", "Guesses", "LaneDrafts", "Place", "Reader", "SuffixAutomaton"]

Place = tuple[int, int]
"""Where a reader of an automaton stands: a state, and how many of the last tokens it stands for."""

START: Place = (0, 0)
"""Where nothing has been read, or nothing of it is in a draft."""

MAX_TOKENS = 16_384
"""Of one draft, and of all that are kept of a lane."""

USUAL_TOKENS = 2_048
"""Of all that are kept of a lane whose drafts are ordinary ones; a token takes about half a kilobyte."""

LEAST = 2

_Said = tuple[int, "_Said"] | None
"""What was said, the last token first; shared by copies, so that a copy costs nothing."""


class SuffixAutomaton:
    """Finds the longest run of tokens, up to the last one read, that is in a draft, and what followed it there.

    Adding makes at most two states a token, and marks each state that the draft comes by once: a few a token, more
    only where very many drafts differ in one token each, and never more than there are. `steps` counts both.

    Args:
        max_tokens: Of all drafts that are kept, above 0. Beyond it the oldest are forgotten, down to a half, so that
            what is built anew was paid for by as many tokens that came in; of a longer draft its beginning is kept.
        usual_tokens: Of all drafts that are kept while none is longer than a half of it; else they are twice the
            longest, and `max_tokens` at most. None for `max_tokens` in any case.

    Raises:
        InputError: `max_tokens` is not above 0.

    >>> automaton = SuffixAutomaton()
    >>> automaton.add([5, 6, 7, 8])
    >>> place = START
    >>> for token in [9, 6, 7]:
    ...     place = automaton.step(place, token)
    >>> automaton.follow(place)
    (2, 8)
    """

    def __init__(self, max_tokens: int = MAX_TOKENS, usual_tokens: int | None = None) -> None:
        if max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}; it takes at least one to guess by")
        self.max_tokens = max_tokens
        self.usual_tokens = max_tokens if usual_tokens is None else usual_tokens
        self.num_tokens = 0
        """Of the drafts that are kept."""
        self.longest = 0
        """Tokens of the longest of them; no run is longer."""
        self.version = 0
        """Rises with each draft; a place is good for one version."""
        self.steps = 0
        """Elementary steps so far: states made, links followed, states marked."""
        self._drafts: deque[tuple[int, ...]] = deque()
        self._clear()

    @property
    def num_states(self) -> int:
        """At most twice the tokens, and one."""
        return len(self._next)

    def add(self, tokens: Sequence[int]) -> None:
        """Add a draft; it is newer than all before.

        Args:
            tokens: In order.
        """
        draft = tuple(tokens[: self.max_tokens])
        self.version += 1
        self._drafts.append(draft)
        self.num_tokens += len(draft)
        most = min(self.max_tokens, max(self.usual_tokens, 2 * self.longest, 2 * len(draft)))
        if self.num_tokens <= most:
            self._build(draft)
            return
        while len(self._drafts) > 1 and self.num_tokens > most // 2:
            self.num_tokens -= len(self._drafts.popleft())
        self._clear()
        for kept in self._drafts:
            self._build(kept)

    def forget(self) -> None:
        """Forget all drafts."""
        self.version += 1
        self._drafts.clear()
        self.num_tokens = 0
        self._clear()

    def step(self, place: Place, token: int) -> Place:
        """Where a reader stands after one more token."""
        state, length = place
        while token not in self._next[state]:
            if not state:
                return START
            self.steps += 1
            state = self._link[state]
            length = self._length[state]
        return self._next[state][token], length + 1

    def follow(self, place: Place) -> tuple[int, int] | None:
        """How long the longest run is that a token follows, and the token after its most recent occurrence.

        Returns:
            Tokens of the run, at least 1, and what followed; None if none did.
        """
        state, length = place
        while state and not self._seen[state]:  # it stands at the ends of drafts only
            self.steps += 1
            state = self._link[state]
            length = self._length[state]
        return (length, self._follower[state]) if state else None

    def _clear(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._seen = [0]
        """The newest draft in which a token follows the state, counted from 1; 0 if none does."""
        self._follower = [-1]
        self._num_built = 0
        self.longest = 0

    def _build(self, draft: tuple[int, ...]) -> None:
        self._num_built += 1
        self.longest = max(self.longest, len(draft))
        prefixes: list[int] = []
        state = 0
        for token in draft:
            state = self._extend(state, token)
            prefixes.append(state)
        # The last occurrence marks its state first, and with it all shorter runs that end there. A state that is
        # marked has had its shorter ones marked too, so each is marked once a draft.
        for at in range(len(draft) - 2, -1, -1):
            state = prefixes[at]
            while state and self._seen[state] != self._num_built:
                self.steps += 1
                self._seen[state], self._follower[state] = self._num_built, draft[at + 1]
                state = self._link[state]

    def _extend(self, last: int, token: int) -> int:
        """The state of a draft's beginning, one token longer than that of `last`."""
        known = self._next[last].get(token)
        if known is not None:  # an earlier draft has this run
            return self._exact(last, token, known)
        state = self._new(self._length[last] + 1, 0)
        at = last
        while at >= 0 and token not in self._next[at]:
            self.steps += 1
            self._next[at][token] = state
            at = self._link[at]
        if at >= 0:
            self._link[state] = self._exact(at, token, self._next[at][token])
        return state

    def _exact(self, before: int, token: int, after: int) -> int:
        """The state whose longest run is that of `before` and the token; `after` is split if it has longer ones."""
        length = self._length[before] + 1
        if self._length[after] == length:
            return after
        copy = self._new(length, self._link[after])
        self._next[copy] = dict(self._next[after])
        self._seen[copy], self._follower[copy] = self._seen[after], self._follower[after]
        self._link[after] = copy
        at = before
        while at >= 0 and self._next[at].get(token) == after:
            self.steps += 1
            self._next[at][token] = copy
            at = self._link[at]
        return copy

    def _new(self, length: int, link: int) -> int:
        self.steps += 1
        self._next.append({})
        self._link.append(link)
        self._length.append(length)
        self._seen.append(0)
        self._follower.append(-1)
        return len(self._next) - 1


class Reader(Protocol):
    """Reads along with what a lane says, and guesses what comes next."""

    def push(self, token: int) -> None:
        """Add a token that the lane says."""
        ...

    def guess(self) -> int | None:
        """The next token, or None."""
        ...

    def ahead(self, most: int) -> list[int]:
        """The next tokens that are worth computing, so many at most; the reader stays where it is."""
        ...

    def copy(self) -> Self:
        """Another one at the same place."""
        ...


class Guesses:
    """The drafts of a session, lane by lane, and what they make of its next words.

    Args:
        least: Tokens that a run has at least, above 0, if it does not begin with the answer: shorter ones are too
            often chance.
        max_tokens, usual_tokens: Kept of each lane; see `SuffixAutomaton`.

    Raises:
        InputError: A number is not above 0.

    >>> guesses = Guesses()
    >>> guesses.add("output", [1, 2, 3, 4])
    >>> cursor = guesses.cursor("output")
    >>> cursor.guess()
    1
    >>> for token in [9, 2, 3]:
    ...     cursor.push(token)
    >>> cursor.guess()
    4
    """

    def __init__(
        self, least: int = LEAST, max_tokens: int = MAX_TOKENS, usual_tokens: int = USUAL_TOKENS
    ) -> None:
        if least < 1:
            raise InputError(f"least is {least}; a guess is made by at least one token")
        self.least = least
        self._max_tokens, self._usual_tokens = max_tokens, usual_tokens
        self._lanes: dict[str, LaneDrafts] = {}
        SuffixAutomaton(max_tokens)  # refuses a wrong number at once

    @property
    def num_tokens(self) -> int:
        """Of all drafts that are kept."""
        return sum(lane.automaton.num_tokens for lane in self._lanes.values())

    def add(self, label: str, tokens: Sequence[int]) -> None:
        """Add what a lane said in a draft; an empty one, and the newest once more, tell nothing new.

        Args:
            label: The lane.
            tokens: In order, silences included if the lane is to guess them.
        """
        self._lane(label).add(tokens)

    def cursor(self, label: str, other: Reader | None = None) -> Cursor:
        """A reader at the beginning of a lane's answer; the lane need have no draft yet.

        Args:
            label: The lane.
            other: Asked where these drafts have no guess.
        """
        return Cursor(self._lane(label), self.least, other)

    def clear(self) -> None:
        """Forget all drafts; cursors that are out keep theirs."""
        self._lanes.clear()

    def _lane(self, label: str) -> LaneDrafts:
        return self._lanes.setdefault(
            label, LaneDrafts(SuffixAutomaton(self._max_tokens, self._usual_tokens))
        )


class LaneDrafts:
    """The drafts of one lane, and the newest of them.

    Args:
        automaton: Which finds runs in them.
    """

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self.automaton = automaton
        self.newest: tuple[int, ...] = ()

    def add(self, tokens: Sequence[int]) -> None:
        """Add a draft; an empty one, and the newest once more, tell nothing new."""
        draft = tuple(tokens)
        if draft and draft != self.newest:
            self.newest = draft
            self.automaton.add(draft)

    def forget(self) -> None:
        """Forget all of them; cursors that are out have no guess any more."""
        self.newest = ()
        self.automaton.forget()


class Cursor:
    """What one lane has said, or is guessed to have said, and the guess that follows from it.

    Drafts may be added while it is in use. `Guesses.cursor` makes it.

    Args:
        lane: The drafts.
        least: Tokens of a run that is believed.
        other: A reader of other drafts, asked where these have no guess.
    """

    __slots__ = ("_agrees", "_lane", "_least", "_num_said", "_other", "_place", "_said", "_version")

    def __init__(self, lane: LaneDrafts, least: int, other: Reader | None = None) -> None:
        self._lane = lane
        self._least = least
        self._other = other
        self._said: _Said = None
        self._num_said = 0
        self._agrees = True
        self._place = START
        self._version = lane.automaton.version

    def push(self, token: int) -> None:
        """Add a token that the lane says."""
        self._refresh()
        newest = self._lane.newest
        at = self._num_said
        self._agrees = self._agrees and at < len(newest) and newest[at] == token
        self._place = self._lane.automaton.step(self._place, token)
        self._said = (token, self._said)
        self._num_said += 1
        if self._other is not None:
            self._other.push(token)

    @property
    def said(self) -> list[int]:
        """All that was pushed."""
        return self._last(self._num_said)

    def guess(self) -> int | None:
        """The next token, or None where no draft has a word on it."""
        own = self._own_guess()
        return self._other.guess() if own is None and self._other is not None else own

    def _own_guess(self) -> int | None:
        self._refresh()
        newest = self._lane.newest
        if self._agrees and self._num_said < len(newest):
            return newest[self._num_said]
        found = self._lane.automaton.follow(self._place)
        return found[1] if found is not None and found[0] >= self._least else None

    def ahead(self, most: int) -> list[int]:
        """The next tokens, as far as there are guesses; the cursor stays where it is.

        While the newest draft agrees, all of them; after that no more than twice as many as the run that speaks for
        them has tokens. On answers of a small model that saved more than half of what would have been wasted, and
        cost no forward.

        Args:
            most: How many.
        """
        if self._other is not None and self._own_guess() is None:
            return self._other.ahead(most)
        self._refresh()
        if not (self._agrees and self._num_said < len(self._lane.newest)):
            found = self._lane.automaton.follow(self._place)
            most = min(most, 2 * found[0]) if found is not None else 0
        reader, tokens = self.copy(), list[int]()
        while len(tokens) < most and (token := reader.guess()) is not None:
            tokens.append(token)
            reader.push(token)
        return tokens

    def copy(self) -> Cursor:
        """Another one at the same place, in constant time: guessing runs ahead on it."""
        copy = Cursor(self._lane, self._least, None if self._other is None else self._other.copy())
        copy._said, copy._num_said = self._said, self._num_said
        copy._agrees, copy._place, copy._version = self._agrees, self._place, self._version
        return copy

    def _refresh(self) -> None:
        """Find the place again if a draft has come in, which may hold longer runs; none is longer than a draft."""
        automaton = self._lane.automaton
        if self._version == automaton.version:
            return
        newest = self._lane.newest
        said = self._last(max(automaton.longest, len(newest)))
        self._agrees = self._num_said <= len(newest) and tuple(said) == newest[: self._num_said]
        self._place = START
        for token in said[-automaton.longest :] if automaton.longest else ():
            self._place = automaton.step(self._place, token)
        self._version = automaton.version

    def _last(self, most: int) -> list[int]:
        """The last tokens that were said, so many at most, in order."""
        tokens: list[int] = []
        node = self._said
        while node is not None and len(tokens) < most:
            tokens.append(node[0])
            node = node[1]
        return tokens[::-1]
