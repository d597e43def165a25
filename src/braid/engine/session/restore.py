"""What refills a session's spans after it was dropped from the cache: a pure function of its transcript.

A token's keys and values are computed in the view of its moment, and visibility goes by row times, not by the order
of forwards. So many rows can be computed at once, with the same result; what cannot be joined is what changes the
spans besides adding to them: a lane that closes, a closer that is written again.

    rows 0 … 40   │ close note │ rows 41 … 57        (rows: everything)
    preamble │ rows since the last turn, closers     (views: the turns before are in the preamble)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from braid.engine.backend import PREAMBLE, Close, Entry, Op, Trim, closer_of
from braid.streams.entries import Entry as Happening
from braid.streams.entries import LifeEvent, Row
from braid.streams.transcript import Transcript

__all__ = ["Refill", "Refilling", "refills"]

Refill = Op | list[Entry]
"""An operation, or entries that one forward can compute together."""


class Refilling:
    """A session that is being filled again: what it holds by now, and what is computed next.

    Args:
        session: Its number; its spans are empty.
        transcript: What happened; whoever changes what it says of the spans begins anew.
        preamble_ids: In views, what the preamble held.
        chunk: Tokens that one piece may have, about.
        num_entries: Entries of the transcript that count; None for all.
    """

    def __init__(
        self,
        session: int,
        transcript: Transcript,
        preamble_ids: Sequence[int] | None,
        *,
        chunk: int,
        num_entries: int | None = None,
    ) -> None:
        self.held: Counter[str] = Counter()
        """Tokens that are there again, by span."""
        self._piece: list[Entry] | None = None
        self._rest = refills(session, transcript, preamble_ids, chunk=chunk, num_entries=num_entries)

    def next_piece(self, apply: Callable[[Sequence[Op]], object]) -> list[Entry] | None:
        """What is computed next, after the operations that stand before it; None when everything is there.

        Args:
            apply: Takes the operations.
        """
        while self._piece is None:
            refill = next(self._rest, None)
            if refill is None:
                return None
            if isinstance(refill, list):
                self._piece = refill
                break
            apply([refill])
            if isinstance(refill, Trim):
                del self.held[refill.span]
            elif isinstance(refill, Close) and refill.lane is not None:
                del self.held[refill.lane], self.held[closer_of(refill.lane)]
        return self._piece

    @property
    def piece(self) -> list[Entry] | None:
        """What `next_piece` has said, until it is taken."""
        return self._piece

    def take(self) -> list[Entry]:
        """The piece, which is computed now."""
        piece, self._piece = self._piece, None
        assert piece is not None, "next_piece was asked before"
        for entry in piece:
            self.held[entry.span] += len(entry.token_ids)
        return piece


def refills(
    session: int,
    transcript: Transcript,
    preamble_ids: Sequence[int] | None,
    *,
    chunk: int,
    num_entries: int | None = None,
) -> Iterator[Refill]:
    """What fills empty spans with all that the transcript says they hold.

    Args:
        session: Its number.
        transcript: What happened.
        preamble_ids: In views, what the preamble holds now.
        chunk: Tokens that one piece may have, about.
        num_entries: Entries of the transcript that count; None for all.
    """
    entries: Sequence[Happening] = transcript.entries[:num_entries]
    if preamble_ids is not None:
        for start in range(0, len(preamble_ids), chunk):
            ids = list(preamble_ids[start : start + chunk])
            yield [Entry("", PREAMBLE, ids, [-1] * len(ids))]
        turns = [index for index, entry in enumerate(entries) if _is(entry, "turn")]
        past = entries[: turns[-1] + 1] if turns else []
        entries = entries[len(past) :]
        for entry in past:
            if isinstance(entry, LifeEvent) and entry.kind == "close" and entry.lane is not None:
                yield Close(session, entry.lane)
    written: set[str] = set()
    piece = _Piece()
    for entry in entries:
        if isinstance(entry, Row):
            for label in transcript.lanes.ordered(entry.cells):
                piece.add(label, label, (entry.cells[label].token,), entry.t)
        elif entry.kind == "close" and entry.lane is not None:
            yield from piece.take()
            yield Close(session, entry.lane)
        elif entry.kind == "prefill" and entry.tokens and entry.lane not in (None, PREAMBLE):
            assert entry.lane is not None
            if entry.lane in written:
                yield from piece.take()
                yield Trim(session, entry.lane, 0)
            written.add(entry.lane)
            piece.add(entry.lane.removeprefix("closer:"), entry.lane, entry.tokens, entry.t - 1)
        if piece.num_tokens >= chunk:
            yield from piece.take()
    yield from piece.take()


class _Piece:
    """Entries that one forward computes: each span's tokens together, spans in order of appearance."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._spans: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def add(self, lane: str, span: str, tokens: Sequence[int], t: int) -> None:
        ids, times = self._spans.setdefault((lane, span), ([], []))
        ids += tokens
        times += [t] * len(tokens)
        self.num_tokens += len(tokens)

    def take(self) -> Iterator[list[Entry]]:
        if self.num_tokens:
            yield [Entry(lane, span, *tokens) for (lane, span), tokens in self._spans.items()]
        self.num_tokens, self._spans = 0, {}


def _is(entry: Happening, kind: str) -> bool:
    return isinstance(entry, LifeEvent) and entry.kind == kind
