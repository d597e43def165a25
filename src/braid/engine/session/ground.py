"""What a session stands on: whether the cache has what the transcript says, and what brings it back if not.

    evicted ──▶ refilled, piece by piece ──▶ [what a killed process had prepared is computed] ──▶ whole

A session that was evicted rests until it has something to do. Of one that comes from another process, the last forward
may not have been answered: its rows are in the transcript, so that everything before them is refilled first, and then
they are computed as they were to be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from braid.engine.backend import Close, Drop, Entry, Item, Op, Trim, closer_of
from braid.engine.guessing.session_guesses import Asked
from braid.engine.session.preamble import Preamble
from braid.engine.session.restore import Refilling
from braid.engine.session.stage import Stage
from braid.streams.entries import LifeEvent
from braid.streams.transcript import Transcript

__all__ = ["Ground", "Unanswered"]

REFILL_CHUNK = 128
"""Tokens of an evicted session that are computed again in one piece."""

Apply = Callable[[Sequence[Op]], object]


@dataclass(frozen=True)
class Unanswered:
    """What a process had prepared when it was killed, before the forward answered."""

    item: Item
    num_entries: int
    """Entries of the transcript before it."""
    asked: Sequence[Asked] = ()
    """Who was asked by it."""

    @property
    def needs(self) -> list[tuple[str, int]]:
        """Tokens that will be kept, by span."""
        needs = Counter[str]()
        for entry in self.item.entries:
            needs[entry.span] += len(entry.token_ids) if entry.keep else 0
        return list((+needs).items())


class Ground:
    """How much of one session is in the cache."""

    def __init__(self) -> None:
        self.is_evicted = False
        """Whether its spans were dropped from the cache, and are refilled before it goes on."""
        self.unanswered: Unanswered | None = None
        """What is computed, once all before it is there, in the place of a forward that never answered."""
        self._refilling: Refilling | None = None
        """Once an evicted session has something to do: how far its spans are filled again."""

    @property
    def is_whole(self) -> bool:
        """Whether the cache has all that the transcript says."""
        return not self.is_evicted and self.unanswered is None

    @property
    def num_refilled(self) -> int:
        """Tokens that are there again."""
        return 0 if self._refilling is None else self._refilling.held.total()

    def lose(self) -> None:
        """The cache has nothing of it."""
        self.is_evicted = True
        self._refilling = None

    # ---- refilling

    def begin_anew(self, number: int, apply: Apply) -> None:
        """What the spans of an evicted session have to hold is another thing now: begin again, if it has begun."""
        if self._refilling is not None:
            apply([Drop(number)])
            self._refilling = None

    def next_piece(
        self, number: int, transcript: Transcript, preamble: Preamble | None, apply: Apply
    ) -> list[Entry] | None:
        """What refilling takes next; None when everything is there that was answered.

        Args:
            number: The session's.
            transcript: What happened.
            preamble: What the preamble held.
            apply: Takes what comes before the piece.
        """
        if self._refilling is None:
            ids = None if preamble is None else preamble.cached_ids
            counting = None if self.unanswered is None else self.unanswered.num_entries
            self._refilling = Refilling(number, transcript, ids, chunk=REFILL_CHUNK, num_entries=counting)
        return self._refilling.next_piece(apply)

    @property
    def piece(self) -> list[Entry] | None:
        """What `next_piece` has said, until it is taken."""
        return None if self._refilling is None else self._refilling.piece

    def take(self) -> list[Entry]:
        """The piece, which is computed now."""
        assert self._refilling is not None, "next_piece was asked before"
        return self._refilling.take()

    def refilled(self, number: int, stage: Stage, apply: Apply) -> None:
        """Everything is there; `next_piece` said so.

        Args:
            number: The session's.
            stage: What its lanes should hold.
            apply: Takes what has to go again.
        """
        assert self._refilling is not None, "next_piece was asked before"
        for lane in stage.outputs:  # a closer of a start that came to nothing is in the transcript, too
            if self._refilling.held[closer_of(lane.label)] > lane.closer_len:
                apply([Trim(number, closer_of(lane.label), 0)])
        self.is_evicted = False
        if self.unanswered is None:
            self._refilling = None

    # ---- what was not answered

    def answered(self, number: int, transcript: Transcript, apply: Apply) -> None:
        """The forward that never answered was made once more, and has.

        Args:
            number: The session's.
            transcript: Which tells what was closed while it was under way, and was read by it still.
            apply: Takes what closes it.
        """
        assert self.unanswered is not None, "it was computed"
        for entry in transcript.entries[self.unanswered.num_entries :]:
            if isinstance(entry, LifeEvent) and entry.kind == "close" and entry.lane is not None:
                apply([Close(number, entry.lane)])
        self.unanswered = self._refilling = None

    # ---- doubles

    def fork(self, number: int) -> Ground:
        """The ground of another session that holds the same; of one that is evicted, it is refilled by itself."""
        twin = copy(self)
        if self.unanswered is not None:
            twin.unanswered = replace(self.unanswered, item=self.unanswered.item._replace(session=number))
        if self.is_evicted:
            twin._refilling = None  # noqa: SLF001 (of its own class)
        return twin
