"""How far off are the estimates? A share of turns that took something over is computed again, when nobody waits.

    released        a draw decides; a few keys and values of what was taken over are kept     at most 8 tokens
    over            what was said is kept: the session goes on, or is closed
    nobody waits    a session that nobody hears is told the committed text at once            exact
                    its keys and values beside those that were kept, its answer beside what was said

The answer is generated again: the noise of a token follows from its place, so a session that is told the text at once
says the same unless what was taken over has led elsewhere. What was said serves as a guess, so that this takes few
forwards, and it ends at the first token that differs.

Such a session has a number below zero. It is in no journal, no ledger and no list of sessions, it shares no prefixes,
and nothing of what it says leaves this module but figures. It is computed in steps in which no session has anything to
do, drafts included, and is dropped as soon as anybody needs its room.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from braid.engine.backend import Backend, Close, Item, ItemResult, Keep, Op, Recall
from braid.engine.editing.history import standing_on
from braid.engine.scheduler import Grant
from braid.errors import InputError

if TYPE_CHECKING:
    from braid.engine.editing.editable import EditableTurn
    from braid.engine.metrics import EngineMetrics
    from braid.engine.session.conversation import Apply, Conversation

__all__ = ["CHECK_SHARE", "Checks"]

CHECK_SHARE = 0.02
"""Of committed turns that took something over, those that are computed again."""

MOST_COMPARED = 8
"""Tokens of a turn whose keys and values are kept."""

MOST_WAITING = 16
"""Turns that wait to be computed again; beyond that none is kept."""

HARMLESS = frozenset({"await_result", "result_came", "suggest"})
"""Verbs that do not change what a session goes on to say."""


@dataclass
class _Check:
    """One turn.

    Args:
        base: The books of the session before it.
        texts: What was committed.
        places: Tokens whose keys and values were kept, by input and index.
        excerpt: These keys and values.
        estimate: Of how far they are from what they should be.
        bound: How far they may be.
        answers: What the outputs said; None as long as they go on.
        drift: How far they are.
    """

    base: Conversation
    texts: Mapping[str, str]
    places: Sequence[tuple[str, int]]
    excerpt: object
    estimate: float
    bound: float
    answers: dict[str, list[int]] | None = None
    drift: float | None = None


@dataclass
class Checks:
    """The checks of one engine; its lock is held whenever they are called.

    Args:
        backend: What computes.
        apply: Takes operations for it.
        share: Of turns that took something over.
        seed: Of the draw.
        metrics: Where figures go.

    Raises:
        InputError: The share is none.
    """

    backend: Backend
    apply: Apply
    share: float = CHECK_SHARE
    seed: int = 0
    metrics: EngineMetrics | None = None
    _speaking: dict[int, _Check] = field(default_factory=dict[int, _Check])
    """Those whose turns go on, by session."""
    _waiting: deque[_Check] = field(default_factory=deque[_Check])
    _now: _Check | None = None
    """The one that is under way."""
    _hidden: Conversation | None = None
    """Its session."""
    _num_begun: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise InputError(f"check_share is {self.share}; give a share between 0 (none) and 1 (all)")

    # ---- turns

    def consider(self, conversation: Conversation, turn: EditableTurn) -> None:
        """A committed turn was released just now."""
        assert turn.base is not None, "it stands on something"
        if not turn.has_taken_over or self.draw(conversation.number, conversation.turn) >= self.share:
            return
        if len(self._waiting) + len(self._speaking) >= MOST_WAITING:
            self._count_dropped()
            return
        places = _spread(turn.places_taken_over(), MOST_COMPARED)
        texts = {stream: text for stream, text in turn.texts.items() if text}
        try:
            excerpt = self.backend.excerpt(conversation.number, places)
        except Exception:  # noqa: BLE001 (the session must not end of it)
            self._count_dropped()
            return
        self._speaking[conversation.number] = _Check(
            standing_on(turn.base, turn.history),
            texts,
            places,
            excerpt,
            turn.drift,
            conversation.drift_bound,
        )

    def draw(self, session: int, turn: int) -> float:
        """A number from 0 to 1 that follows from the seed, the session and its turn."""
        text = f"{self.seed}\x1f{session}\x1f{turn}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"check").digest(), "big") / 2**64

    def turn_changes(self, conversation: Conversation) -> None:
        """A turn is over, or something comes in between: up to here its answer follows from what was committed."""
        check = self._speaking.pop(conversation.number, None)
        if check is not None:
            check.answers = _said(conversation, check.base.t)
            self._waiting.append(check)

    # ---- computing them again

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute when nobody waits."""
        return self._now is not None or bool(self._waiting)

    def prepare(self, num_tokens: int, now: float) -> Item | None:
        """What is computed next.

        Args:
            num_tokens: That it may have, about.
            now: The moment, on the engine's clock.
        """
        while self.has_work:
            try:
                item = self._prepare(num_tokens, now)
            except Exception:  # noqa: BLE001 (whatever it is: it concerns nobody)
                self.drop()
                continue
            if item is not None:
                return item
        return None

    def _prepare(self, num_tokens: int, now: float) -> Item | None:
        if self._hidden is None:
            self._begin(now)
        assert self._hidden is not None, "it has begun"
        if self._hidden.demand(now) is None:
            self._finish()
            return None
        made = self._hidden.prepare(Grant(self._hidden.number, num_tokens, True), now, spare=num_tokens)
        if made is None:
            self.drop()
            return None
        if self.metrics is not None:
            self.metrics.checking(made[0].num_tokens)
        return made[0]

    def _begin(self, now: float) -> None:
        check = self._now = self._waiting.popleft()
        assert check.answers is not None, "its turn is over"
        self._num_begun += 1
        hidden = self._hidden = check.base.double()
        hidden.number = -self._num_begun
        hidden.go_on(self.backend, self._apply, None, now)
        hidden.guesses.only(check.answers)
        hidden.tell(check.texts, now=now)

    def advance(self, result: ItemResult) -> None:
        """What was prepared is computed; maybe it was dropped meanwhile."""
        if self._hidden is None:
            return
        if result.error is not None:
            self.drop()
            return
        try:
            self._advance(self._hidden, result)
        except Exception:  # noqa: BLE001 (whatever it is: it concerns nobody)
            self.drop()

    def _advance(self, hidden: Conversation, result: ItemResult) -> None:
        check, answers = self._now, result.answers
        assert check is not None, "it is under way"
        is_ahead = True
        while is_ahead:
            told, answers = answers[: hidden.num_asked], answers[hidden.num_asked :]
            hidden.advance(told)
            is_ahead = hidden.step_ahead()
        hidden.take_news()
        if hidden.is_evicted or any(lane.queue for lane in hidden.stage.inputs):
            return
        if check.drift is None:
            right = self.backend.excerpt(hidden.number, check.places)
            check.drift = self.backend.deviation_between(check.excerpt, right)
        if self._is_same(check, hidden) is not None:
            self._finish()

    @staticmethod
    def _is_same(check: _Check, hidden: Conversation, *, is_over: bool = False) -> bool | None:
        """Whether it says the same; None as long as that is open."""
        assert check.answers is not None, "its turn is over"
        said = _said(hidden, check.base.t)
        is_whole = True
        for label, expected in check.answers.items():
            found = said[label][: len(expected)]
            if found != expected[: len(found)]:
                return False
            is_whole = is_whole and len(found) == len(expected)
        return is_whole if is_whole or is_over else None

    def _finish(self) -> None:
        check, hidden = self._now, self._hidden
        assert check is not None, "it is under way"
        assert hidden is not None, "it is under way"
        if check.drift is None:
            self.drop()
            return
        if self.metrics is not None:
            has_answer = any((check.answers or {}).values())
            is_same = self._is_same(check, hidden, is_over=True) if has_answer else None
            self.metrics.checked(check.estimate, check.drift, check.drift <= check.bound, is_same)
        self._leave()

    # ---- giving way

    def drop(self) -> bool:
        """Give up the check that is under way, and its room; returns whether there was one."""
        if self._now is None:
            return False
        self._count_dropped()
        self._leave()
        return True

    def close(self) -> None:
        """Give up all."""
        self.drop()
        for _ in (*self._waiting, *self._speaking):
            self._count_dropped()
        self._waiting.clear()
        self._speaking.clear()

    def _leave(self) -> None:
        if self._hidden is not None:
            self._apply([Close(self._hidden.number)])
        self._now = self._hidden = None

    def _count_dropped(self) -> None:
        if self.metrics is not None:
            self.metrics.check_dropped()

    def _apply(self, ops: Sequence[Op]) -> list[int]:
        """Operations of the hidden session: it neither takes nor gives what sessions share."""
        own = [op for op in ops if not isinstance(op, Recall | Keep)]
        self.apply(own)
        return [0] * len(ops)


def _said(conversation: Conversation, since: int) -> dict[str, list[int]]:
    """The tokens of each output from a row on."""
    transcript = conversation.record.transcript
    return {
        lane.label: [token for t, token in transcript.tokens(lane.label) if t >= since]
        for lane in conversation.stage.outputs
    }


def _spread(places: Sequence[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    """So many of them at most, as far apart as can be."""
    count = min(most, len(places))
    return [places[(2 * number + 1) * len(places) // (2 * count)] for number in range(count)]
