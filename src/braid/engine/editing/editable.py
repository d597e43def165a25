"""A turn whose input may still change: read ahead, drafted ahead, and taken back wherever it changes.

    snapshot "Sally has 3"      the turn is run as if this were all      held: nobody hears of it
    snapshot "Sally has 34 …"   back to the first row that differs, and on from there
    commit                      what stands there is released; the turn goes on like any other

What a committed turn becomes is by construction what a session becomes that is told the committed text at once. A
draft is exactly that session, run early; taking it back means: a double of how the session stood before the turn is
told the new text, and led through the steps of the old run as long as they are the same; the cache forgets the rest.
What was said in a draft that was taken back is remembered as a guess, see `braid.engine.guessing.ahead`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

from braid.engine.backend import Answer
from braid.engine.editing.diff import common_prefix
from braid.engine.editing.history import History, Standing, stand_on
from braid.engine.editing.splicing import Splicer
from braid.engine.editing.taken import Shape, Taken, shape_of
from braid.engine.guessing.ahead import BooksOnly
from braid.engine.guessing.read_text import to_be_read
from braid.engine.scheduler import Grant
from braid.streams.events import Reuse

if TYPE_CHECKING:
    from braid.engine.session.conversation import Conversation
    from braid.engine.session.rowmaker import NextRows

__all__ = ["DRAFT_AFTER", "DRIFT_BOUND", "MOST_DRAFTED", "Counts", "EditableTurn", "Mode"]

Mode = Literal["exact", "repair", "reuse"]
"""What may be kept of what stood behind an edit."""


MOST_DRAFTED = 256
"""Tokens that a draft may have where nobody says otherwise."""

DRAFT_AFTER = 0.15
"""Seconds without a newer snapshot before outputs are drafted, where nobody says otherwise."""

DRIFT_BOUND = 0.05
"""How far keys and values may be from what they should be, by the estimate of `Backend.deviation`, likewise."""


@dataclass
class Counts:
    """Tokens of a turn so far; see `braid.streams.events.Reuse`, which is told of it."""

    mode: Mode = "exact"
    read: int = 0
    reused: int = 0
    repaired: int = 0
    recomputed: int = 0
    drafted: int = 0
    kept: int = 0
    accepted: int = 0
    computed: int = 0
    wasted: int = 0
    snapshots: int = 0
    fallbacks: int = 0
    changed_fact: str | None = None
    drift: float | None = None

    def told(self) -> Reuse:
        """As clients hear of it."""
        return Reuse(**asdict(self))

    def in_vain(self) -> Reuse:
        """Of a turn that was taken back: nothing is read or kept of it."""
        return Reuse(
            mode=self.mode,
            drafted=self.drafted,
            accepted=self.accepted,
            computed=self.computed,
            wasted=self.wasted,
            snapshots=self.snapshots,
            fallbacks=self.fallbacks,
        )


@dataclass
class EditableTurn:
    """The turn of one conversation until it is committed.

    Args:
        conversation: Whose.
        most_drafted: Tokens that the outputs may say in a draft of one snapshot.
        draft_after: Seconds without a newer snapshot before they say anything; it is read at once.
    """

    conversation: Conversation
    most_drafted: int
    draft_after: float = 0.0
    quiet_at: float = 0.0
    """When the outputs may begin to say something, if no newer snapshot comes."""
    texts: dict[str, str] = field(default_factory=dict[str, str])
    """The newest snapshot."""
    followed: dict[str, str] = field(default_factory=dict[str, str])
    """The one that the run is of."""
    counts: Counts = field(default_factory=Counts)
    history: History | None = None
    """What the newest snapshot says of the conversation before; None where it says nothing."""
    prefilled: set[int] = field(default_factory=set[int])
    """Places of the preamble that were computed in this turn, and are held."""
    is_committed: bool = False
    committed_at: float = 0.0
    """When, on the engine's clock."""
    is_outdated: bool = True
    """Whether the run is not yet of the newest snapshot."""
    is_new: bool = True
    """Whether no run has been of it."""
    has_no_room: bool = False
    """Whether the cache was full; drafting waits for the next snapshot then."""
    base: Conversation | None = None
    """The books as they were before the turn."""
    steps: list[Taken] = field(default_factory=list[Taken])
    mode: Mode = "exact"
    splicing: Splicer = field(init=False)
    """What is taken over behind edits."""
    _must_be_exact: bool = False
    """Whether what was taken over before has drifted so far that all is computed."""
    _is_counted: bool = False

    def __post_init__(self) -> None:
        self.splicing = Splicer(self)

    def want(
        self,
        texts: Mapping[str, str],
        mode: Mode = "exact",
        history: History | None = None,
        now: float = 0.0,
    ) -> None:
        """A newer snapshot has come; what it does not name is as before."""
        merged = {**self.texts, **texts}
        is_stricter = mode == "exact" and (self.has_taken_over or self.splicing.is_pending)
        if history is not None:
            is_stricter = is_stricter or self.history is None or self.history.preamble is not history.preamble
            self.history = history
        if merged != self.texts or is_stricter:
            self.quiet_at = now + self.draft_after
        self.is_new = self.is_new or is_stricter or merged != self.texts
        self.is_outdated = self.is_outdated or self.is_new
        self.texts, self.has_no_room = merged, False
        self.mode = self.counts.mode = mode
        self._must_be_exact = False

    @property
    def drift(self) -> float:
        """How far what the run has taken over may be from what it should be."""
        return max((step.drift or 0.0 for step in self.steps), default=0.0)

    @property
    def has_taken_over(self) -> bool:
        """Whether anything of the run was not computed in its place."""
        return any(step.drift is not None for step in self.steps)

    @property
    def is_settled(self) -> bool:
        """Whether it is committed and the run is of that, all of it computed in its place."""
        is_followed = self.base is not None and not self.is_outdated
        return self.is_committed and is_followed and not self.has_taken_over and not self.splicing.is_pending

    @property
    def num_drafted(self) -> int:
        """Tokens that were drawn in this run."""
        return sum(len(step.said) for step in self.steps)

    @property
    def may_say_more(self) -> bool:
        """Whether its budget and the room in the cache allow more tokens of a draft."""
        return not self.has_no_room and self.num_drafted < self.most_drafted

    def may_go_on(self, coming: NextRows, now: float) -> bool:
        """Whether a draft may take these steps: reading always, speaking within the budget, once it has been quiet."""
        if self.is_committed:
            return True
        reads = coming.rows is not None and bool(coming.rows.burst or coming.rows.row)
        return not self.has_no_room if reads else self.may_say_more and now >= self.quiet_at

    # ---- following the snapshots

    def follow(self, now: float) -> bool:
        """Bring the run to the newest snapshot, and release it if that is committed; between two forwards.

        Returns:
            Whether it was released; the conversation is as any other from then on.
        """
        conversation = self.conversation
        if self.base is None:
            if not conversation.has_ground:
                return False
            self.base = conversation.double()
            conversation.record.hold()
        if self.is_outdated:
            self._rewind(now)
        if not self.is_committed:
            return False
        self._count_commit()
        if self.splicing.is_pending:
            return False
        conversation.forget_stashed()
        conversation.record.release()
        return True

    def _count_commit(self) -> None:
        """Note, once, what there was when the input was committed."""
        if self._is_counted:
            return
        self._is_counted = True
        inputs, counts = self.conversation.stage.inputs, self.counts
        counts.read = sum(lane.num_read + len(lane.queue) for lane in inputs)
        counts.reused = sum(lane.num_read for lane in inputs)
        counts.reused += self.splicing.num_pending
        counts.recomputed = counts.read - counts.reused
        counts.kept = self.num_drafted

    def restart(self) -> None:
        """Go back to before the turn; the newest snapshot is followed anew."""
        conversation, base = self.conversation, self.base
        if base is not None:
            self._remember_run()
            twin = base.double()
            standing = self._stand_on(twin, None)
            self._become(twin, [])
            self.splicing.forget()
            conversation.record.release()
            if conversation.ledger is not None and not standing.holds:
                conversation.ledger.held(standing.num_held)
        self.base, self.is_outdated = None, True
        self._is_counted = False  # what was there at the commit is there no more

    def _rewind(self, now: float) -> None:
        conversation = self.conversation
        assert self.base is not None, "it stands on something"
        self._remember_run()
        books = BooksOnly()
        twin = self.base.double(books)
        twin.guesses.read_along(conversation.guesses)
        twin.holds_turn = True
        standing = self._stand_on(twin, self.history)
        if not standing.holds and self.steps and self.mode != "exact":
            self.counts.fallbacks += 1
        if conversation.ledger is not None:
            twin.ledger = conversation.ledger.of(twin)
            if self.history is not None:
                twin.ledger.history(standing.num_held)
            elif not standing.holds:
                twin.ledger.held(standing.num_held)
            twin.ledger.released()
        is_open = {lane.label for lane in twin.stage.inputs if not lane.is_closed}
        told = {stream: text for stream, text in self.texts.items() if text and stream in is_open}
        if told:
            _do(twin, "tell", (told,), now)
            if twin.guesses.learns:
                twin.guesses.begin_turn(to_be_read(twin.stage))
        may_drift = self.mode != "exact" and not self._must_be_exact and standing.holds
        steps = _lead(twin, self.steps if standing.holds else [], now, may_drift=may_drift)
        if may_drift:
            self.splicing.plan(twin, steps, now)
        else:
            self.splicing.forget()
        self._become(twin, steps)
        self.followed = dict(self.texts)
        self.counts.snapshots += self.is_new
        self.is_outdated = self.is_new = False

    def _stand_on(self, twin: Conversation, history: History | None) -> Standing:
        """Let a double begin where a history ends; what of the preamble is lost was computed in vain."""
        standing = stand_on(twin, self.conversation, history)
        lost = {place for place in self.prefilled if place >= standing.num_held}
        self.prefilled -= lost
        self.counts.wasted += len(lost)
        return standing

    def _become(self, twin: Conversation, steps: list[Taken]) -> None:
        """Stand where the double stands; the cache forgets what it has not."""
        conversation = self.conversation
        before = conversation.stage.held_by_span()
        self.counts.wasted += sum(step.num_tokens for step in self.steps) - sum(s.num_tokens for s in steps)
        conversation.become(twin)
        self.steps = steps
        self._count_taken_over()
        if not conversation.is_evicted:
            after = conversation.stage.held_by_span()
            conversation.forget({span: after[span] for span, count in before.items() if after[span] < count})

    # ---- what was taken over

    def _count_taken_over(self) -> None:
        """Tell of the run as it is now."""
        over = [step for step in self.steps if step.drift is not None]
        self.counts.repaired = sum(step.repaired for step in over)
        self.counts.drift = self.drift if over else None

    def places_taken_over(self) -> list[tuple[str, int]]:
        """Input and index of each token that was taken over."""
        assert self.base is not None, "it stands on something"
        next_index = {lane.label: lane.num_kept for lane in self.base.stage.inputs}
        places: list[tuple[str, int]] = []
        for step in self.steps:
            for label, _ in step.shape.inputs:
                if step.drift is not None:
                    places.append((label, next_index[label]))
                next_index[label] += 1
        return places

    def is_not_reused(self, num_tokens: int) -> None:
        """So many tokens that were to be taken over are computed instead."""
        if self._is_counted:
            self.counts.reused -= num_tokens
            self.counts.recomputed += num_tokens

    def compute_all(self) -> None:
        """What was taken over before has drifted so far that all is computed anew."""
        self._must_be_exact = self.is_outdated = True
        self._is_counted = False  # what was there at the commit is not what is used

    def _remember_run(self) -> None:
        """What the outputs said in this run is a guess for the next one."""
        if not self.conversation.guesses.learns:
            return
        said: dict[str, list[int]] = {}
        for step in self.steps:
            for label, token in step.said:
                said.setdefault(label, []).append(token)
        for label, tokens in said.items():
            self.conversation.guesses.add(label, tokens)

    # ---- the run

    def prefills(self, start: int, count: int) -> None:
        """Tokens of the preamble are computed, from a place on."""
        if self.base is not None:  # before, it is the preamble of the turns before
            self.prefilled |= set(range(start, start + count))
            self.counts.computed += count

    def took(self, step: Taken, *, over: bool = False) -> None:
        """A step was prepared, or its tokens were taken over."""
        self.steps.append(step)
        self.counts.computed += step.num_tokens
        if over:
            self._count_taken_over()
        else:
            self.splicing.entered(len(step.shape.inputs))

    def told(self, answers: Sequence[Answer], said: Sequence[tuple[str, int]]) -> None:
        """And answered."""
        self.steps[-1].answers, self.steps[-1].said = tuple(answers), tuple(said)
        self.counts.drafted += len(said)


def _lead(twin: Conversation, steps: Sequence[Taken], now: float, *, may_drift: bool) -> list[Taken]:
    """Lead a double through the steps of an older run, as long as they would be the same; returns those that were.

    Args:
        twin: The double.
        steps: Of the older run.
        now: The moment, on the engine's clock.
        may_drift: Whether what was taken over counts as the same.
    """
    led: list[Taken] = []
    for step in steps:
        if step.drift is not None and not may_drift:
            break
        if twin.ledger is not None:
            twin.ledger.begin_step(step.now)
        twin.demand(step.now)
        coming = twin.coming(step.grant, step.now)
        shape = shape_of(coming, twin)
        if shape == step.shape:
            _take(twin, step)
            led.append(step)
            continue
        common = _num_common(shape, step.shape)
        if common:
            part = Taken(
                Shape(shape.inputs[:common], common, False, (), (), ()),
                Grant(twin.number, common, False),
                step.now,
                0 if step.drift is not None else common,
                drift=step.drift,
                repaired=step.repaired,
            )
            _take(twin, part)
            led.append(part)
        break
    if twin.ledger is not None:
        twin.ledger.end_step()
    return led


def _num_common(new: Shape, old: Shape) -> int:
    """How many tokens of a burst enter in both; the last one of the new is in the row that asks, which differs."""
    return min(common_prefix(new.inputs[: new.num_burst], old.inputs), old.num_burst + 1)


def _take(twin: Conversation, step: Taken) -> None:
    ledger = twin.ledger
    made = twin.prepare(step.grant, step.now)
    assert made is not None, "it was found to be the same"
    if ledger is not None:
        ledger.prepared(step.grant, True)
    mark = twin.record.mark()
    twin.advance(step.answers)
    if ledger is not None:
        ledger.told(mark, step.answers)


def _do(twin: Conversation, verb: str, arguments: tuple[object, ...], now: float) -> None:
    """A verb on a double, with its line in the ledger."""
    mark = twin.record.mark()
    getattr(twin, verb)(*arguments, now=now)
    if twin.ledger is not None:
        twin.ledger.did(mark, verb, arguments, now)
