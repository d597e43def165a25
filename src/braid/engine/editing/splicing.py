"""What stands behind edits is taken over, moved to where it stands now.

    old   The cat sat on the mat, and slept there for most of the afternoon. Then the dog came home, and …
    new   The dog sat on the mat, and slept there for most of the afternoon. At last the dog came home, and …
              └─ computed ────────┘ └─ taken over, and moved ────────────┘ └─ computed ───────┘ └─ taken over
                 change, window ▲                                             change, window ▲
                                └ how far is it from what it was?                            └ and here?

Each region is a change and a window behind it. When it is computed, the keys and values at the far end of the window
are compared with what they were. If they have drifted little, the tokens up to the next change are taken over; else
the window is made longer, and at last they are computed. What was taken over before, in this run or in the older one,
has drifted already: the estimate adds that up.

What the older run held is put aside when the input changes, and stays there until the turn is released or a run takes
nothing over: newer snapshots are compared with what was put aside, not with what was taken over from it. So the drift
of a word that is changed key by key is that of one change, and not of as many as there were keys.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from braid.engine.editing.diff import Block, matching_blocks
from braid.engine.editing.taken import Taken, shape_of
from braid.engine.scheduler import Grant

if TYPE_CHECKING:
    from braid.engine.editing.editable import EditableTurn
    from braid.engine.session.conversation import Conversation
    from braid.engine.session.lanes import Waiting

__all__ = ["EDGE", "LEAST_SPLICE", "WINDOWS", "Part", "Region", "Splicer", "regions_of"]

EDGE = 8
"""Tokens at the far end of a window that are compared with what they were."""

LEAST_SPLICE = 16
"""Fewer tokens than these are computed rather than taken over."""

WINDOWS = {"repair": 32, "reuse": EDGE}
"""Tokens behind an edit that are computed anew before the rest is taken over, by mode."""

MOST_WIDENED = 2
"""How often a window whose far end has drifted too far is made longer before all of the region is computed."""


class Place(NamedTuple):
    """Where a token was when it was put aside."""

    label: str
    at: int


class Part(NamedTuple):
    """Tokens of one input that are taken over: so many, from an index in what was put aside."""

    label: str
    start: int
    length: int


@dataclass
class Region:
    """A change, the window behind it, and what is taken over then.

    Args:
        before: Tokens that are still to be computed before it.
        window: How many of them, in all, stood behind the change.
        edge: Where the last tokens of the window were, all of one input.
        rest: Where those behind the window were, up to the next change.
    """

    before: int
    window: int
    edge: Part
    rest: Sequence[Place]
    num_widened: int = 0

    def parts(self) -> list[Part]:
        """What is taken over, input by input."""
        return _parts_of(self.rest)

    def widen(self) -> bool:
        """Compute twice as much before the rest is taken over; returns whether enough of it is left."""
        count = self.window
        if self.num_widened == MOST_WIDENED or len(self.rest) - count < LEAST_SPLICE:
            return False
        self.edge, self.rest = _edge_of(self.rest[:count]), self.rest[count:]
        self.before, self.window, self.num_widened = count, 2 * count, self.num_widened + 1
        return True


def regions_of(
    places: Sequence[Place], blocks: Sequence[Block], done: int, stop: int, window: int
) -> list[Region]:
    """What is to be computed and what is taken over, in order; what follows the last region is computed.

    Args:
        places: Where each token of the old input was.
        blocks: What old and new input have in common.
        done: Tokens of the new input that are there already.
        stop: How many of its tokens may be taken over at most.
        window: Tokens behind a change that are computed.
    """
    regions: list[Region] = []
    for block in blocks:
        start, end = max(block.new, done), min(block.new + block.length, stop)
        if end - start < window + LEAST_SPLICE:
            continue
        kept = places[block.old + start - block.new : block.old + end - block.new]
        regions.append(Region(start + window - done, window, _edge_of(kept[:window]), kept[window:]))
        done = end
    return regions


class Splicer:
    """Takes over what an older run of an editable turn had computed.

    Args:
        turn: The turn.
    """

    def __init__(self, turn: EditableTurn) -> None:
        self._turn = turn
        self._regions: deque[Region] = deque()
        """Those that are not done; the first one is under way."""
        self._stashed: list[tuple[str, int]] = []
        """All input of the run that was put aside: label and token, in the order in which it entered."""
        self.stashed_texts: Mapping[str, str] = {}
        """What its inputs held, by stream."""
        self._stashed_drift = 0.0
        self._led_drift = 0.0
        """Of what the run had taken over when the regions were planned."""

    @property
    def _conversation(self) -> Conversation:
        return self._turn.conversation

    @property
    def is_pending(self) -> bool:
        """Whether there is something to take over."""
        return bool(self._regions)

    @property
    def num_pending(self) -> int:
        """Tokens that are to be taken over, as far as it is known by now."""
        return sum(len(region.rest) for region in self._regions)

    def forget(self) -> None:
        """Take nothing over any more, and let go of what was put aside."""
        self._regions.clear()
        self._conversation.forget_stashed()

    # ---- what can be taken over

    def plan(self, twin: Conversation, led: Sequence[Taken], now: float) -> None:
        """See what can be taken over behind the steps that are the same; it is put aside.

        Args:
            twin: Stands behind these steps, and has been told the new input.
            led: The steps.
            now: The moment, on the engine's clock.
        """
        turn, conversation = self._turn, self._conversation
        coming = twin.coming(Grant(twin.number, 1 << 30, True), now)
        if not conversation.can_splice or coming.rows is None or not coming.rows.burst:
            self._regions.clear()
            return
        # Of a run that has taken something over, the one that it was taken from is closer to what is right.
        is_fresh = not self.is_pending and not (conversation.has_stash and turn.has_taken_over)
        if is_fresh:
            conversation.forget_stashed()
            self._stashed = [token for step in turn.steps for token in step.shape.inputs]
            self.stashed_texts = turn.followed
            self._stashed_drift = turn.drift
        done = [token for step in led for token in step.shape.inputs]
        rest = shape_of(coming, twin).inputs
        window = WINDOWS[turn.mode]
        blocks = matching_blocks(self._stashed, [*done, *rest], window + LEAST_SPLICE)
        # In the last row outputs are asked, so that its tokens are computed.
        stop = len(done) + coming.rows.num_burst
        regions = regions_of(self._places(), blocks, len(done), stop, window)
        if regions and is_fresh:
            conversation.stash(list(dict.fromkeys(label for label, _ in self._stashed)))
        self._regions = deque(regions)
        self._led_drift = max((step.drift or 0.0 for step in led), default=0.0)

    def _places(self) -> list[Place]:
        base = self._turn.base
        assert base is not None, "it stands on something"
        next_index = {lane.label: lane.num_kept for lane in base.stage.inputs}
        places: list[Place] = []
        for label, _ in self._stashed:
            places.append(Place(label, next_index[label]))
            next_index[label] += 1
        return places

    # ---- taking it over

    def entered(self, num_tokens: int) -> None:
        """So many tokens are computed with the step that was just prepared."""
        if self._regions:
            self._regions[0].before -= num_tokens
            assert self._regions[0].before >= 0, "no more is granted than what stands before it"

    def up_to(self, grant: Grant) -> Grant:
        """What may be computed before something is taken over."""
        if not self._regions:
            return grant
        return Grant(grant.session, min(grant.input_tokens, self._regions[0].before), False)

    def take_over(self, now: float) -> list[Waiting]:
        """Take over what stands behind the window, once that is computed and if it has not drifted too far.

        Raises:
            PoolFullError, PoolTooSmallError: There is no room; nothing was changed.
        """
        conversation = self._conversation
        if not self._regions or self._regions[0].before:
            return []
        region = self._regions[0]
        label, old, count = region.edge
        held = conversation.stage.input(label).num_kept
        found = conversation.backend.deviation(conversation.number, label, held - count, held, old)
        # Rows are entered only once there is room for them; until then it is asked again.
        carried = max(self._stashed_drift, self._turn.drift)
        if carried + found > conversation.drift_bound:
            self._compute_more(region, is_carried=found <= conversation.drift_bound)
            return []
        shape, read = conversation.take_over(region.parts())
        grant = Grant(conversation.number, len(region.rest), False)
        self._regions.popleft()
        self._turn.took(Taken(shape, grant, now, 0, drift=carried + found, repaired=region.window), over=True)
        if conversation.ledger is not None:  # to whoever follows it, these are rows as any others
            conversation.ledger.spliced(grant)
        return read

    def _compute_more(self, region: Region, *, is_carried: bool) -> None:
        """The far end of a window has drifted too far.

        Args:
            region: The first one.
            is_carried: Whether it would not have without what was taken over before.
        """
        turn, num_rest = self._turn, len(region.rest)
        if region.widen():
            turn.is_not_reused(num_rest - len(region.rest))
            return
        self._regions.popleft()
        turn.counts.fallbacks += 1
        turn.is_not_reused(num_rest)
        if self._regions:
            self._regions[0].before += num_rest
        if is_carried and self._led_drift > 0:
            turn.compute_all()

    def give_up(self) -> bool:
        """Compute all that is still to be taken over, and let go of what was put aside; returns whether it was any."""
        if not self._regions and not self._conversation.has_stash:
            return False
        self._turn.counts.fallbacks += len(self._regions)
        self._turn.is_not_reused(self.num_pending)
        self.forget()
        return True


def _parts_of(places: Sequence[Place]) -> list[Part]:
    parts: list[Part] = []
    for label, at in places:
        last = parts[-1] if parts else None
        if last is not None and last.label == label and last.start + last.length == at:
            parts[-1] = last._replace(length=last.length + 1)
        else:
            parts.append(Part(label, at, 1))
    return parts


def _edge_of(window: Sequence[Place]) -> Part:
    """The last tokens of a window, as many as are of one input, and no more than are compared."""
    return _parts_of(window[-EDGE:])[-1]


def needs_of(parts: Sequence[Part]) -> list[tuple[str, int]]:
    """Tokens by input, each named once."""
    needs = Counter[str]()
    for part in parts:
        needs[part.label] += part.length
    return list(needs.items())
