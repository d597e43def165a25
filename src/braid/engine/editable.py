"""A turn whose input may still change: read ahead, drafted ahead, and taken back wherever it changes.

    snapshot "Sally has 3"      the turn is run as if this were all      held: nobody hears of it
    snapshot "Sally has 34 …"   back to the first row that differs, and on from there
    commit                      what stands there is released; the turn goes on like any other

What a committed turn becomes is by construction what a session becomes that is told the committed text at once. A
draft is exactly that session, run early; taking it back means: a double of how the session stood before the turn is
told the new text, and led through the steps of the old run as long as they are the same; the cache forgets the rest.
What was said in a draft that was taken back is remembered as a guess, see `braid.engine.ahead`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from braid.engine.ahead import BooksOnly
from braid.engine.backend import Answer
from braid.engine.diff import common_prefix, common_suffix
from braid.engine.scheduler import Grant
from braid.streams.events import Reuse

if TYPE_CHECKING:
    from braid.engine.conversation import Conversation
    from braid.engine.lanes import InputLane
    from braid.engine.rowmaker import NextRows

__all__ = ["DRAFT_AFTER", "EDGE", "MOST_DRAFTED", "Counts", "EditableTurn", "Mode", "Taken", "shape_of"]

Mode = Literal["exact", "repair", "reuse"]
"""What may be kept of what stood behind an edit."""


MOST_DRAFTED = 256
"""Tokens that a draft may have where nobody says otherwise."""

DRAFT_AFTER = 0.15
"""Seconds without a newer snapshot before outputs are drafted, where nobody says otherwise."""

EDGE = 8
"""Tokens at the far end of a window that are compared with what they were."""

LEAST_SPLICE = 16
"""Fewer tokens than these are computed rather than taken over."""

_WINDOWS = {"repair": 32, "reuse": EDGE}
"""Tokens behind an edit that are computed anew before the rest is taken over."""

MOST_WIDENED = 2
"""How often a window whose far end has drifted too far is made longer before all of the rest is computed."""


class Part(NamedTuple):
    """Tokens of one input that are taken over: so many, from an index in what was put aside."""

    label: str
    start: int
    length: int


@dataclass
class Splicing:
    """What stood behind an edit, and is to be taken over behind what is computed anew.

    Args:
        before: Tokens that are still to be computed before it.
        window: How many of them, in all, stood behind the edit.
        rest: The tokens behind the window, but for the last one of the input: label, and index when put aside.
        edge: Label of the window's last token, and its index when it was put aside.
    """

    before: int
    window: int
    rest: list[tuple[str, int]]
    edge: tuple[str, int]
    num_widened: int = 0

    def parts(self) -> list[Part]:
        """What is taken over, input by input."""
        parts: list[Part] = []
        for label, index in self.rest:
            if parts and parts[-1].label == label:
                parts[-1] = parts[-1]._replace(length=parts[-1].length + 1)
            else:
                parts.append(Part(label, index, 1))
        return parts

    def widen(self) -> bool:
        """Compute twice as much before the rest is taken over; returns whether enough of it is left."""
        count = self.window
        if self.num_widened == MOST_WIDENED or len(self.rest) - count < LEAST_SPLICE:
            return False
        self.edge, self.rest = self.rest[count - 1], self.rest[count:]
        self.before, self.window, self.num_widened = count, 2 * count, self.num_widened + 1
        return True


class Shape(NamedTuple):
    """All of the next rows that does not follow from the rows before them."""

    inputs: tuple[tuple[str, int], ...]
    """Tokens that enter, in their order."""
    num_burst: int
    """How many of them in rows of their own."""
    has_outputs: bool
    woken: tuple[tuple[str, str], ...]
    """Outputs that begin their turn, and why."""
    curious: tuple[str, ...]
    aloud: tuple[str, ...]


def shape_of(coming: NextRows, conversation: Conversation) -> Shape:
    """What comes next, before it is taken from the queues."""
    inputs: list[tuple[str, int]] = []
    rows = coming.rows
    if rows is not None:
        taken = Counter[str]()
        for label, count in (*rows.burst, *((label, 1) for label in rows.row)):
            queue = conversation.stage.input(label).queue
            inputs += [(label, queue[taken[label] + i].token) for i in range(count)]
            taken[label] += count
    return Shape(
        tuple(inputs),
        0 if rows is None else rows.num_burst,
        rows is not None and rows.outputs,
        tuple((lane.label, why) for lane, why in coming.starters),
        tuple(lane.label for lane in coming.curious),
        tuple(lane.label for lane in coming.aloud),
    )


@dataclass
class Taken:
    """A step of the run.

    Args:
        shape: What it was.
        grant, now: Under which, and when.
        num_tokens: That were computed for it.
        answers: What the lanes that were asked were told.
        said: What they drew, by lane; of those that were asked only how sure the model is, nothing.
        drift: Of tokens that were taken over, how far they may be from what they should be; None of others.
    """

    shape: Shape
    grant: Grant
    now: float
    num_tokens: int
    answers: tuple[Answer, ...] = ()
    said: tuple[tuple[str, int], ...] = ()
    drift: float | None = None


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
    drift: float | None = None

    def told(self) -> Reuse:
        """As clients hear of it."""
        return Reuse(**asdict(self))


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
    is_committed: bool = False
    is_withdrawn: bool = False
    """Whether all of it is to be taken back."""
    is_outdated: bool = True
    """Whether the run is not yet of the newest snapshot."""
    has_no_room: bool = False
    """Whether the cache was full; drafting waits for the next snapshot then."""
    base: Conversation | None = None
    """The books as they were before the turn."""
    steps: list[Taken] = field(default_factory=list[Taken])
    mode: Mode = "exact"
    splicing: Splicing | None = None
    _stashed: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """All input of the run that was put aside: label and token, in the order in which it entered."""
    _stashed_drift: float = 0.0
    _must_be_exact: bool = False
    """Whether what was taken over before has drifted so far that all is computed."""
    _is_counted: bool = False

    def want(self, texts: Mapping[str, str], mode: Mode = "exact", now: float = 0.0) -> None:
        """A newer snapshot has come; streams that it does not name are as before."""
        merged = {**self.texts, **texts}
        is_stricter = mode == "exact" and self.drift > 0
        if merged != self.texts:
            self.quiet_at = now + self.draft_after
        self.is_outdated = self.is_outdated or is_stricter or merged != self.texts
        self.texts, self.has_no_room, self.is_withdrawn = merged, False, False
        self.mode = self.counts.mode = mode
        self._must_be_exact = False

    def leave_out(self, stream: str) -> None:
        """A stream is closed; where nothing else was said, the turn is taken back."""
        self.texts.pop(stream, None)
        self.is_withdrawn = self.is_withdrawn or (self.is_committed and not any(self.texts.values()))

    @property
    def drift(self) -> float:
        """How far what the run has taken over may be from what it should be."""
        return sum(step.drift or 0.0 for step in self.steps)

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
        if self.splicing is not None:
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
        counts.reused += 0 if self.splicing is None else len(self.splicing.rest)
        counts.recomputed = counts.read - counts.reused
        counts.kept = self.num_drafted

    def restart(self) -> None:
        """Go back to before the turn; the newest snapshot is followed anew."""
        conversation, base = self.conversation, self.base
        if base is not None:
            self._remember_run()
            self._become(base.double(), [])
            conversation.forget_stashed()
            conversation.record.release()
        self.base, self.splicing, self.is_outdated = None, None, True

    def _rewind(self, now: float) -> None:
        conversation = self.conversation
        assert self.base is not None, "it stands on something"
        self._remember_run()
        books = BooksOnly()
        twin = self.base.double(books)
        twin.read_guesses(conversation)
        twin.holds_turn = True
        if conversation.ledger is not None:
            twin.ledger = conversation.ledger.of(twin)
            twin.ledger.released()
        is_open = {lane.label for lane in twin.stage.inputs if not lane.is_closed}
        told = {stream: text for stream, text in self.texts.items() if text and stream in is_open}
        if told:
            _do(twin, "tell", (told,), now)
        may_drift = self.mode != "exact" and not self._must_be_exact
        steps = _lead(twin, self.steps, now, may_drift=may_drift)
        self.splicing = self._plan_splicing(twin, steps, now) if may_drift else None
        self._become(twin, steps)
        self.followed = dict(self.texts)
        self.is_outdated = False
        self.counts.snapshots += 1

    def _become(self, twin: Conversation, steps: list[Taken]) -> None:
        """Stand where the double stands; the cache forgets what it has not."""
        conversation = self.conversation
        before = conversation.held_by_span()
        self.counts.wasted += sum(step.num_tokens for step in self.steps) - sum(s.num_tokens for s in steps)
        conversation.become(twin)
        self.steps = steps
        if not conversation.is_evicted:
            after = conversation.held_by_span()
            conversation.forget({span: after[span] for span, count in before.items() if after[span] < count})

    # ---- taking over what stands behind an edit

    def _plan_splicing(self, twin: Conversation, led: Sequence[Taken], now: float) -> Splicing | None:
        """What of the rest can be taken over, if that is worth it; it is put aside."""
        conversation = self.conversation
        coming = twin.coming(Grant(twin.number, 1 << 30, True), now)
        if not conversation.can_splice or coming.rows is None or not coming.rows.burst:
            return None
        new = list(shape_of(coming, twin).inputs)
        done = [token for step in led for token in step.shape.inputs]
        fresh = self.splicing is None
        if fresh:
            self._stashed = [token for step in self.steps for token in step.shape.inputs]
            self._stashed_drift = self.drift
        old = self._stashed
        common = min(common_suffix(old, new), max(0, len(old) - len(done)))
        window = _WINDOWS[self.mode]
        if common - window - 1 < LEAST_SPLICE:
            return None
        seen = Counter[str]()
        indices: list[tuple[str, int]] = []
        kept = {lane.label: lane.num_kept for lane in self._base_inputs()}
        for label, _ in old:
            indices.append((label, kept[label] + seen[label]))
            seen[label] += 1
        behind = indices[len(old) - common :]
        if fresh:
            conversation.stash(list(dict.fromkeys(label for label, _ in behind)))
        return Splicing(len(new) - common + window, window, behind[window:-1], behind[window - 1])

    def _base_inputs(self) -> Sequence[InputLane]:
        assert self.base is not None, "it stands on something"
        return self.base.stage.inputs

    def takes_over(self, drift: float, bound: float) -> bool:
        """Whether the rest is taken over now that its drift can be told; else more is computed first.

        Args:
            drift: At the far end of the window.
            bound: The most that is allowed.
        """
        splicing = self.splicing
        assert splicing is not None, "there is something to take over"
        if drift + self._stashed_drift <= bound:
            self.counts.repaired += splicing.window
            self.counts.drift = max(self.counts.drift or 0.0, drift + self._stashed_drift)
            return True
        if not splicing.widen():
            self.counts.fallbacks += 1
            self.splicing = None
            if self.drift > 0:
                self._must_be_exact = self.is_outdated = True
        return False

    def _remember_run(self) -> None:
        """What the outputs said in this run is a guess for the next one."""
        said: dict[str, list[int]] = {}
        for step in self.steps:
            for label, token in step.said:
                said.setdefault(label, []).append(token)
        for label, tokens in said.items():
            self.conversation.guess_from(label, tokens)

    # ---- the run

    def took(self, step: Taken) -> None:
        """A step was prepared."""
        self.steps.append(step)
        self.counts.computed += step.num_tokens
        if self.splicing is not None:
            self.splicing.before -= len(step.shape.inputs)

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
