"""Who may use the next step: many sessions, one token budget. Pure Python, without tensors, clocks or chance.

Each session with something to do hands in one `Demand` a step and gets at most one `Grant`. Two things cost tokens: a
*burst*, queued input that enters in chunks, and the *row* behind it, which is made only when its burst has entered
whole. The budget of a step is given out in this order:

    1  the starved     whoever waited longest, once ageing has lifted it past high: its row, or one small chunk
    2  heads           of every high-priority burst at least one token, at most half of the budget
    3  urgent rows     overdue rows, then rows of high priority
    4  urgent bursts   overdue ones
    5  by rank         high, medium, low, each with ageing: rows, then bursts in fair shares, then rows they completed

    within a line: the session that was served longest ago first, then by id (or permuted by the seed)

Why this order. Rows are small and somebody waits for each, so they go before bursts of their rank. A step serves at
most one starved demand out of turn, so that nothing starves and yet lower work never takes more than a row or a small
chunk from what is high. With N sessions, a demand of priority p is served within `age_steps × (p + 1) + N` steps. A
token at the head of a high-priority burst is granted in the very next step, whatever else waits, as long as the
largest row, `min_chunk_tokens` and one token for each such burst fit into the budget, and these tokens into half of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from braid.errors import InputError

__all__ = ["Demand", "Grant", "Scheduler", "SchedulerPolicy"]

# Levels of urgency, lines 3 to 5 above; what is ranked r by priority and ageing is at level `_RANKED + r`.
_OVERDUE_ROWS, _HIGH_ROWS, _OVERDUE_BURSTS, _RANKED = range(4)
_NUM_PRIORITIES = 3
_NUM_LEVELS = _RANKED + _NUM_PRIORITIES


class Demand(NamedTuple):
    """What one session could do in the next step."""

    session: int
    """Its id; ids ascend by opening."""
    row_tokens: int
    """Tokens and probes of its next row if that were made now; 0 when nobody speaks and nothing is probed."""
    input_tokens: int
    """Queued tokens that enter before that row, in a burst."""
    row_priority: int
    """0 high, 1 medium, 2 low: the best among the streams that would be in the row."""
    input_priority: int
    """The same, of the stream whose tokens come next in the burst."""
    overdue_at: float = float("inf")
    """When the oldest waiting input token will have waited too long, in seconds of the caller's clock."""
    tenant: str = ""
    """Whose session it is. Sessions are treated alike, whoever owns them."""


class Grant(NamedTuple):
    """What one session may do in this step."""

    session: int
    input_tokens: int
    """Tokens of its burst that enter."""
    makes_row: bool
    """Whether its row is made after them."""


@dataclass(frozen=True)
class SchedulerPolicy:
    """How a step is divided.

    Args:
        step_tokens: Tokens and probes of one step, all sessions together. A row that is larger goes alone.
        chunk_tokens: The most that one session's burst takes of a step in which others make rows.
        min_chunk_tokens: A burst is not divided into chunks smaller than this, unless no more is left.
        age_steps: Steps of waiting that lift a demand by one priority.
        seed: Permutes sessions that are otherwise equal; 0 orders them by id.
        draft_tokens: Tokens and probes of a step of drafts alone.
        draft_share: Of the time in which nobody pays, how much drafts may compute, above 0; see `braid.engine.pace`.

    Raises:
        InputError: A number is out of range, or two contradict each other.
    """

    step_tokens: int = 256
    chunk_tokens: int = 128
    min_chunk_tokens: int = 32
    age_steps: int = 8
    seed: int = 0
    draft_tokens: int = 128
    draft_share: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "seed" else 1
            value: object = getattr(self, field.name)
            if field.name == "draft_share":
                _require_share(value)
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(f"{field.name} is {value!r}; give a whole number of at least {least}")
        if self.min_chunk_tokens > self.chunk_tokens:
            raise InputError(
                f"min_chunk_tokens is {self.min_chunk_tokens} and chunk_tokens {self.chunk_tokens}, "
                "but the smallest chunk cannot be larger than the largest; lower the one or raise the other"
            )

    def for_drafts(self) -> SchedulerPolicy:
        """Of steps in which nobody waits for an answer: smaller ones, since whoever comes meanwhile has to wait."""
        tokens = min(self.step_tokens, self.draft_tokens)
        return replace(
            self,
            step_tokens=tokens,
            chunk_tokens=min(self.chunk_tokens, tokens),
            min_chunk_tokens=min(self.min_chunk_tokens, tokens),
        )


def _require_share(value: object) -> None:
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(
            f"draft_share is {value!r}; give a share of idle time above 0 and at most 1 "
            "(most_drafted=0 drafts nothing)"
        )


class Scheduler:
    """Divides steps among sessions; the same demands in the same order of steps give the same grants.

    Args:
        policy: How a step is divided; the defaults when None.

    >>> scheduler = Scheduler()
    >>> speaking, prompt = Demand(1, 3, 0, 0, 0), Demand(2, 2, 500, 0, 1)
    >>> scheduler.schedule([speaking, prompt], now=0.0)
    [Grant(session=1, input_tokens=0, makes_row=True), Grant(session=2, input_tokens=128, makes_row=False)]
    """

    def __init__(self, policy: SchedulerPolicy | None = None) -> None:
        self.policy = SchedulerPolicy() if policy is None else policy
        self._num_steps = 0
        self._places: dict[int, tuple[int, int, int]] = {}
        """By session with something to do: its place in the queue, see `_place_of_newcomer` and `_place_behind`."""

    def schedule(self, demands: Sequence[Demand], now: float) -> list[Grant]:
        """Divide one step.

        Args:
            demands: One of each session that has something to do, in any order. A session that is not among them has
                stopped waiting, and nothing is remembered of it.
            now: The moment that `overdue_at` is compared with, in seconds. The expected end of the step is a good
                choice: what would be late by then is served now.

        Returns:
            What is granted, in the order served; a session that gets nothing is not named.
        """
        queue = sorted(
            (self._places.get(demand.session) or self._place_of_newcomer(demand.session), demand)
            for demand in demands
            if demand.row_tokens or demand.input_tokens
        )
        waited = [self._num_steps - begun // 2 for (begun, *_), _ in queue]
        step = _Step([demand for _, demand in queue], self.policy)
        claims = _Claims(step.demands, waited, self.policy.age_steps, now)
        if claims.starved is not None:
            step.serve_starved(claims.starved)
        step.serve_heads(claims.heads)
        step.serve_levels(claims)
        grants = step.grants()
        self._places = {demand.session: place for place, demand in queue}
        assert len(self._places) == len(queue), "a session hands in one demand a step"
        for rank, (index, grant) in enumerate(zip(step.order, grants, strict=True)):
            if step.was_served(index):
                self._places[grant.session] = self._place_behind(grant, rank)
        self._num_steps += 1
        return grants

    def _place_of_newcomer(self, session: int) -> tuple[int, int, int]:
        """The place of a session that begins to wait: behind all who wait, before those that were just served.

        A place begins with twice the step in which the wait began, and one more after service; it orders the queue.
        """
        tie = session
        if self.policy.seed:
            digest = hashlib.blake2b(b"%d:%d" % (self.policy.seed, session), digest_size=8).digest()
            tie = int.from_bytes(digest, "big")
        return 2 * self._num_steps, tie, session

    def _place_behind(self, grant: Grant, rank: int) -> tuple[int, int, int]:
        """The place of a session that was just served: last, and among those of this step the largest burst last."""
        return 2 * (self._num_steps + 1) + 1, grant.input_tokens, rank


class _Claims:
    """Demands by how urgent they are; indices into the queue, each list in the order of the queue.

    Args:
        demands: The queue, longest wait first.
        waited: Steps that each has waited.
        age_steps: Steps of waiting that lift a demand by one priority.
        now: The moment that decides what is overdue, in seconds.
    """

    def __init__(self, demands: Sequence[Demand], waited: Sequence[int], age_steps: int, now: float) -> None:
        self.rows: list[list[int]] = [[] for _ in range(_NUM_LEVELS)]
        self.bursts: list[list[int]] = [[] for _ in range(_NUM_LEVELS)]
        self.heads: list[int] = []
        self.starved: int | None = None
        for index, (demand, wait) in enumerate(zip(demands, waited, strict=True)):
            _, row_tokens, input_tokens, row_priority, input_priority, overdue_at, _ = demand
            lifted = wait // age_steps
            is_overdue = overdue_at <= now
            if input_tokens:
                level = _OVERDUE_BURSTS if is_overdue else _RANKED + max(0, input_priority - lifted)
                self.bursts[level].append(index)
                if input_priority == 0:
                    self.heads.append(index)
            if row_tokens:
                if is_overdue:
                    level = _OVERDUE_ROWS
                elif row_priority == 0:
                    level = _HIGH_ROWS
                else:
                    level = _RANKED + max(0, row_priority - lifted)
                self.rows[level].append(index)
            if self.starved is None and lifted > (input_priority if input_tokens else row_priority):
                self.starved = index


class _Step:
    """The budget of one step while it is given out.

    Args:
        demands: The queue, longest wait first.
        policy: How a step is divided.
    """

    def __init__(self, demands: list[Demand], policy: SchedulerPolicy) -> None:
        self.demands = demands
        self._budget = self._left = policy.step_tokens
        self._min_chunk = policy.min_chunk_tokens
        others_speak = any(demand.row_tokens and not demand.input_tokens for demand in demands)
        most = policy.chunk_tokens if others_speak else policy.step_tokens
        self._wanted = [min(demand.input_tokens, most) for demand in demands]
        self._entered = [0] * len(demands)
        self._has_row = [False] * len(demands)
        self._starved: int | None = None
        self.order: dict[int, None] = {}
        """Who got something, in the order served; indices into the queue."""

    def serve_starved(self, index: int) -> None:
        """Serve one demand before all others, with as little as is progress."""
        self._starved = index
        self._feed(index, self._min_chunk)
        self._make_row(index)
        assert index in self.order, "the first of a step always gets something"

    def serve_heads(self, heads: Sequence[int]) -> None:
        """Let the first tokens of each of these bursts in, as many as half of the budget allows each."""
        room = min(self._left, max(1, self._budget // 2))
        quota = max(1, min(self._min_chunk, room // max(1, len(heads))))
        for index in heads:
            room -= self._feed(index, min(quota, room))

    def serve_levels(self, claims: _Claims) -> None:
        """Serve the rest by urgency, one level after another."""
        held: list[int] = []  # rows that found no room, or wait for their burst
        for rows, bursts in zip(claims.rows, claims.bursts, strict=True):
            held += [index for index in rows if not self._make_row(index)]
            if bursts:
                self._share(bursts)
                held = [index for index in held if not self._make_row(index)]
            if not self._left:
                break

    def was_served(self, index: int) -> bool:
        """Whether the wait of a demand that got something is over, and a new one begins.

        It is not where a burst entered whole and the row behind it found no room: else a trickle of input could put
        off its own row for ever.
        """
        demand = self.demands[index]
        row_is_due = demand.row_tokens > 0 and self._entered[index] == demand.input_tokens
        return self._has_row[index] or not row_is_due or index == self._starved

    def grants(self) -> list[Grant]:
        """What was given out, in the order served."""
        demands, entered, has_row = self.demands, self._entered, self._has_row
        return [Grant(demands[index].session, entered[index], has_row[index]) for index in self.order]

    def _share(self, bursts: Sequence[int]) -> None:
        """Divide what is left: equal shares, and what one does not want goes to the others.

        As many take part as can have a chunk worth its while, those served longest ago first.
        """
        waiting = [index for index in bursts if self._wanted[index]]
        num_sharing, floor = 0, 0
        for index in waiting:
            floor += min(self._wanted[index], self._min_chunk)
            if num_sharing and floor > self._left:
                break
            num_sharing += 1
        smallest_first = sorted(waiting[:num_sharing], key=self._wanted.__getitem__)
        for taken, index in enumerate(smallest_first):
            self._feed(index, -(-self._left // (num_sharing - taken)))
        for index in waiting[num_sharing:]:
            self._feed(index, self._left)

    def _feed(self, index: int, most: int) -> int:
        """Let tokens of a burst in, as many as it wants, as there is room for, and as are allowed."""
        count = min(most, self._wanted[index], self._left)
        if count:
            self._wanted[index] -= count
            self._entered[index] += count
            self._left -= count
            self.order[index] = None
        return count

    def _make_row(self, index: int) -> bool:
        """Make a row if its burst has entered and there is room; whether it is made now."""
        if self._has_row[index]:
            return True
        _, row_tokens, input_tokens, *_ = self.demands[index]
        entered = self._entered[index]
        if not row_tokens or entered < input_tokens:
            return False
        is_alone = self._left + entered == self._budget
        if row_tokens > self._left and not (is_alone and row_tokens > self._budget):
            return False
        self._left = max(0, self._left - row_tokens)
        self._has_row[index] = True
        self.order[index] = None
        return True
