"""Sessions that are watched while they live: logits by session, and books that must balance after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import Phase
from torch import Tensor

from braid.checks.subject import RecordingBackend
from braid.engine.backend import PREAMBLE, Fork, ItemResult, Op
from braid.engine.core import EngineCore, StepReport
from braid.engine.journal import Journal
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.model.model import Model
from braid.sessions.generate import ALONE
from braid.streams.entries import Entry, LifeEvent
from braid.testing import NullBackend, ReferenceLogits, reference_logits
from tests.engine.harness import largest_difference

TOLERANCE = 1e-6

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
"""For properties of whole lives with a network: making a failing one smaller would take longer than a test may."""


class Witness(RecordingBackend):
    """Keeps the logits of every lane that was asked, by session; a fork remembers what its source was told."""

    def __init__(self, model: Model, **settings: Any) -> None:
        super().__init__(model, **settings)
        self.seen: dict[int, ReferenceLogits] = {}
        self.probed: dict[int, dict[tuple[int, str], frozenset[str]]] = {}
        """The probes among them, and which lanes were closed when they asked."""
        self._owners: list[int] = []

    def apply(self, ops: Sequence[Op]) -> list[int]:
        for op in ops:
            if isinstance(op, Fork):
                self.seen[op.twin] = dict(self.seen.get(op.session, {}))
                self.probed[op.twin] = dict(self.probed.get(op.session, {}))
        return super().apply(ops)

    def _compute(self, pairs: Any) -> Any:
        self._owners = [item.session for item, work in pairs for _ in work.feeds]
        return super()._compute(pairs)

    def _forward(self, plan: Any, feeds: Any) -> Tensor:
        logits_NV = super()._forward(plan, feeds)
        row = 0
        for owner, feed in zip(self._owners, feeds, strict=True):
            if feed.ask is None:
                continue
            row += len(feed.token_ids) if feed.asks_all else 1
            key = (int(feed.times[-1]), feed.label)
            self.seen.setdefault(owner, {})[key] = logits_NV[row - 1].clone()
            if feed.is_probe and feed.replays is None:
                spans = self.sessions[owner]
                gone = (lane.label for lane in spans.table.lanes if spans.lanes[lane.index] is None)
                self.probed.setdefault(owner, {})[key] = frozenset(gone)
        return logits_NV


class WitnessCore(EngineCore):
    """A core over a `Witness`."""

    def __init__(
        self,
        model: Model,
        *,
        policy: SchedulerPolicy = ALONE,
        journal: Journal | None = None,
        kv_tokens: int = 2000,
        page_size: int = 4,
        prefix_share: float = 0.0,
    ) -> None:
        self.witness = Witness(model, kv_tokens=kv_tokens, page_size=page_size, prefix_share=prefix_share)
        super().__init__(self.witness, policy=policy, journal=journal)
        self.model = model

    def _follow(self, conversation: Conversation, now: float) -> bool:
        is_released = super()._follow(conversation, now)
        self._unsee(conversation)
        return is_released

    def _advance(self, conversation: Conversation, result: ItemResult, now: float) -> int:
        num_ahead = super()._advance(conversation, result, now)
        self._unsee(conversation)
        return num_ahead

    def _forget(self, conversation: Conversation) -> None:
        super()._forget(conversation)
        self._unsee(conversation)  # of a session that is closed in a draft, all of that is taken back

    def _unsee(self, conversation: Conversation) -> None:
        """Rows that were taken back, or computed ahead and did not come, are in no transcript."""
        for seen in (self.witness.seen, self.witness.probed):
            rows: Any = seen.get(conversation.number, {})
            for key in [key for key in rows if key[0] >= conversation.record.t]:
                del rows[key]

    def difference(self, conversation: Conversation) -> float:
        """The largest difference of a logit of this session from the dense oracle's.

        Left out is a probe that asked once more in the place of a row, after a stream had been closed that this row
        could still read: the oracle answers for the row.
        """
        transcript = conversation.transcript
        closed_at = {e.lane: e.t for e in transcript.events if e.kind == "close" and e.lane is not None}
        found = dict(self.witness.seen[conversation.number])
        probes: list[tuple[int, str]] = []
        for (t, label), gone in sorted(self.witness.probed.get(conversation.number, {}).items()):
            if all(closed_at[lane] <= t for lane in gone):
                probes.append((t, label))
            else:
                del found[t, label]
        expected = reference_logits(self.model, conversation.topology, transcript, probes=probes)
        if conversation.counts is not None:  # what was drafted and taken back is in no transcript
            found = {key: logits for key, logits in found.items() if key in expected}
        return largest_difference(found, expected) if found else 0.0

    def was_asked(self, conversation: Conversation) -> bool:
        """Whether any logits were computed for this session."""
        return bool(self.witness.seen.get(conversation.number))


def held_tokens(core: EngineCore, conversation: Conversation) -> int:
    """Tokens that the backend holds for a session, by the backend's own books."""
    backend, number = core.backend, conversation.number
    if isinstance(backend, Witness):
        return len(backend.sessions[number]) if number in backend.sessions else 0
    assert isinstance(backend, NullBackend)
    session = backend._sessions.get(number)
    return 0 if session is None else sum(pages.length for pages in session.spans.values())


def check_books(core: EngineCore) -> None:
    """The pool, the prefix tree, the backend's spans and the conversations agree with each other."""
    backend = core.backend
    if isinstance(backend, Witness):
        backend.cache.pool.check_integrity()
        if backend.prefixes is not None:
            backend.prefixes.check_integrity()
    else:
        assert isinstance(backend, NullBackend)
        backend.pool.check_integrity()
    for conversation in core.conversations.values():
        assert conversation.kv_tokens == held_tokens(core, conversation), conversation.number
        rows = conversation.transcript.rows
        assert conversation.t == (rows[-1].t + 1 if rows else 0)


def step(core: EngineCore, *conversations: Conversation, now: float = 0.0) -> StepReport:
    """One step, with the books checked; whoever cannot go on raises."""
    report = core.step(conversations, now=now)
    check_books(core)
    for _, error in report.failures:
        raise error
    return report


def drive(core: EngineCore, *conversations: Conversation, rows: int = 400) -> None:
    """Step until nobody has anything to do, or each has made about so many more rows."""
    stops = {conversation.number: conversation.t + rows for conversation in conversations}
    for _ in range(4000):
        busy = [c for c in conversations if not c.is_closed and c.t < stops[c.number]]
        before = [(c.t, c.turn_is_over) for c in busy]
        report = step(core, *busy)
        if report.worked or any(c.has_work for c in busy):
            continue
        if before == [(c.t, c.turn_is_over) for c in busy]:
            return
    raise AssertionError("the sessions never came to rest")


def state_of(core: EngineCore, conversation: Conversation) -> tuple[Any, ...]:
    """All of a session that an error must leave as it was."""
    stage = conversation.stage
    inputs = [
        (lane.label, tuple(lane.queue), lane.text, lane.has_ended, lane.is_closed, lane.held_over)
        for lane in stage.inputs
    ]
    outputs = [
        (lane.label, lane.phase, lane.pending, tuple(lane.forced), lane.must_speak, lane.force_start)
        for lane in stage.outputs
    ]
    return (
        tuple(conversation.transcript.entries),
        conversation.kv_tokens,
        held_tokens(core, conversation),
        inputs,
        outputs,
        conversation.turn,
        conversation.turn_is_over,
        conversation.is_closed,
        conversation.is_evicted,
        conversation.num_awaited,
    )


def told(conversation: Conversation) -> tuple[list[Entry], list[Entry]]:
    """A transcript in which it does not matter when, before its rows, and in how many pieces a preamble was computed.

    Returns:
        Everything else; and the preambles that rows have read, each whole and in one event.
    """
    others: list[Entry] = []
    preambles: dict[int, Entry] = {}
    whole: tuple[int, ...] = ()
    for entry in conversation.transcript.entries:
        if not (isinstance(entry, LifeEvent) and entry.lane == PREAMBLE):
            others.append(entry)
            continue
        whole = whole[: int(entry.reason.removeprefix("after "))] + entry.tokens
        preambles[entry.t] = replace(entry, tokens=whole, reason="")
    return others, [entry for t, entry in preambles.items() if t < conversation.t]
