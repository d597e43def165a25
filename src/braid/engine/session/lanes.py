"""The state of each lane of a session: what waits to be read, what is about to be said."""

from __future__ import annotations

import math
from collections import Counter, deque
from copy import copy, deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from braid.engine.session.stops import StopMatcher
from braid.streams.events import DeltaBuffer, TokenOdds
from braid.streams.lanes import Lane
from braid.streams.stream_spec import StreamSpec, Trigger
from braid.streams.text import IncrementalDetokenizer, IncrementalTokenizer

if TYPE_CHECKING:
    from braid.model.codec import TokenizerCodec
    from braid.model.grammar import Matcher

__all__ = ["RANKS", "InputLane", "OutputLane", "Phase", "Waiting"]

Phase = Literal["waiting", "speaking", "silent", "asleep", "closed"]
"""`waiting` for its turn to begin; `speaking`, with a token for the next row; awake but `silent`, and probed;
`asleep` until the next turn, and not probed; `closed` for good."""

RANKS = {"high": 0, "medium": 1, "low": 2}
"""Priorities as numbers; the lower goes first."""


class Waiting(NamedTuple):
    """An input token that has not entered a row yet."""

    token: int
    text: str
    """The text that it covers."""
    at: float
    """When it was written, on the engine's clock, in seconds."""
    t: int
    """The row that was next when it was written."""


@dataclass
class InputLane:
    """One stream that is fed from outside."""

    lane: Lane
    spec: StreamSpec
    codec: TokenizerCodec
    feed: Literal["paced", "burst"]
    label: str = field(init=False)
    rank: int = field(init=False)
    tokenizer: IncrementalTokenizer = field(init=False)
    queue: deque[Waiting] = field(default_factory=deque[Waiting])
    text: str = ""
    """All that was written in this turn."""
    read_text: str = ""
    """All of it that has entered rows."""
    has_ended: bool = False
    is_closed: bool = False
    held_over: str = ""
    """Text that the last turn held back and never read."""
    num_read: int = 0
    """Tokens that entered rows in this turn."""
    num_kept: int = 0
    """Tokens in the cache."""
    last_token: int = 0
    """The token that entered last."""

    def __post_init__(self) -> None:
        self.label = self.lane.label
        self.rank = RANKS[self.spec.priority]
        self.tokenizer = IncrementalTokenizer(self.codec)

    @property
    def overdue_at(self) -> float:
        """The moment at which the oldest waiting token has waited as long as it may; infinity without a limit."""
        if self.spec.max_latency_ms is None or not self.queue:
            return math.inf
        return self.queue[0].at + self.spec.max_latency_ms / 1000

    def add(self, tokens: list[tuple[int, str]], now: float, t: int) -> None:
        """Queue tokens behind those that wait already."""
        self.queue.extend(Waiting(token, text, now, t) for token, text in tokens)

    def read(self) -> Waiting:
        """The next token, as it enters a row."""
        self.num_read += 1
        self.num_kept += 1
        waiting = self.queue.popleft()
        self.read_text += waiting.text
        self.last_token = waiting.token
        return waiting

    def begin_turn(self, before: str, now: float, t: int) -> None:
        """Forget the last turn's text; what it held back unread is the beginning of this one's.

        Args:
            before: Template text that stands directly before the input.
            now, t: The moment and the next row.
        """
        self.text, self.held_over = self.held_over, ""
        self.read_text, self.num_read, self.has_ended = "", 0, False
        self.tokenizer = IncrementalTokenizer(self.codec, before)
        self.add(self.tokenizer.write(self.text), now, t)

    def close(self) -> None:
        """Forget all that was written and not made history."""
        self.is_closed = True
        self.queue.clear()
        self.tokenizer = IncrementalTokenizer(self.codec)
        self.text = self.held_over = ""
        self.num_kept = 0

    def end_turn(self) -> None:
        """The answers are complete; text that is still held back was not part of the question."""
        self.held_over = self.tokenizer.held
        self.text = self.text.removesuffix(self.held_over)
        self.has_ended = True

    def text_with(self, entering: int) -> str:
        """What it says once so many more tokens have entered a row."""
        return self.read_text + "".join(waiting.text for waiting in islice(self.queue, entering))

    def ends_with(self, entering: int) -> bool:
        """Whether, once so many more tokens have entered a row, it has nothing more to say in this turn."""
        return self.is_closed or ((self.has_ended or not self.text) and len(self.queue) <= entering)

    @property
    def is_drained(self) -> bool:
        """Whether no more comes in this turn, and all that came was read."""
        return self.ends_with(0)

    def fork(self) -> InputLane:
        """A second lane that goes on by itself."""
        twin = copy(self)
        twin.queue = deque(self.queue)
        twin.tokenizer = deepcopy(self.tokenizer, {id(self.codec): self.codec})
        return twin


@dataclass
class OutputLane:
    """One stream that the model speaks."""

    lane: Lane
    spec: StreamSpec
    codec: TokenizerCodec
    label: str = field(init=False)
    rank: int = field(init=False)
    phase: Phase = "waiting"
    pending: tuple[int, bool] | None = None
    """The token for the next row, and whether it was forced."""
    odds: TokenOdds | None = None
    """How likely it was, where that is asked for and it was drawn."""
    forced: deque[int] = field(default_factory=deque[int])
    """Tokens that will be said whatever the model thinks."""
    force_start: bool = False
    """Start at the next chance, whatever the wait."""
    must_speak: bool = False
    """The next time it is asked, silence is no answer."""
    asked_after: int = 0
    """In an adaptive wait: input tokens that had been read when it was last asked whether it is sure."""
    sureness: deque[float] = field(default_factory=lambda: deque[float](maxlen=4))
    """In an adaptive wait: how sure the model was of what comes next, at the last few tokens."""
    ready_because: str = ""
    """In an adaptive wait: why the wait is over."""
    index: int = 0
    """Tokens drawn or forced in this turn."""
    num_said: int = 0
    """Tokens drawn or forced in all turns."""
    has_chosen: bool = False
    """Whether the model has chosen a token of it in this turn."""
    num_kept: int = 0
    """Tokens in the cache."""
    last_token: int = 0
    """The token that entered last, silence where it is kept."""
    last_t: int = -1
    """The row in which it entered."""
    closer_len: int = 0
    """Tokens of its closer in the cache."""
    counts: Counter[int] = field(default_factory=Counter[int])
    turn_text: str = ""
    matcher: Matcher | None = None
    """Where its grammar stands; None where it is free."""
    detokenizer: IncrementalDetokenizer = field(init=False)
    stops: StopMatcher = field(init=False)
    deltas: DeltaBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.label = self.lane.label
        self.rank = RANKS[self.spec.priority]
        self.deltas = DeltaBuffer(self.label, self.spec)
        self.end_ids = frozenset(self.codec.end_ids)
        """Tokens that end a turn of it; a benchmark takes them away, so that all answers have one length."""
        self._counts_tokens = self.spec.sampling.repetition_penalty != 1.0
        self._fresh()

    @property
    def is_awake(self) -> bool:
        """Whether it speaks, or is asked in every row whether it will."""
        return self.phase in ("speaking", "silent")

    def say(self, token: int, t: int) -> tuple[str, str | None]:
        """Take a token as said in row `t`.

        Returns:
            The text that it completes, and why the lane's turn is over with it (`end`, `stop`, `length`), or None.
        """
        self.index += 1
        self.num_said += 1
        self.num_kept += 1
        self.last_token, self.last_t = token, t
        if self._counts_tokens:
            self.counts[token] += 1
        text, finish = self.detokenizer.push(token), None
        if self.spec.stop:
            text, is_stopped = self.stops.push(text)
            finish = "stop" if is_stopped else None
        if finish is None and token in self.end_ids:
            finish = "end"
        if finish is None and self.spec.max_tokens is not None and self.index >= self.spec.max_tokens:
            finish = "length"
        if finish in ("end", "length"):
            text += self._rest()
        self.turn_text += text
        self.pending = (self.forced.popleft(), True) if self.forced and finish is None else None
        return text, finish

    def rest(self) -> str:
        """The text that is still held back, when no more comes."""
        rest = self._rest()
        self.turn_text += rest
        return rest

    def _rest(self) -> str:
        text, is_stopped = self.stops.push(self.detokenizer.flush())
        return text if is_stopped else text + self.stops.flush()

    @property
    def may_never_start(self) -> bool:
        """Whether it waits for a trigger that need not come."""
        return self.phase == "waiting" and isinstance(self.spec.trigger, Trigger) and not self.force_start

    @property
    def knows_next(self) -> bool:
        """Whether its next token is decided, so that the model need not be asked."""
        return self.pending is not None

    @property
    def has_answered(self) -> bool:
        """Whether it has said anything in this turn."""
        return self.index > 0

    def begin_turn(self) -> None:
        """Forget the last turn and wait for the start of the next."""
        if self.phase != "closed":
            self.phase = "waiting"
        self.pending = None
        self.forced.clear()
        self.sureness.clear()
        self.force_start = self.must_speak = self.has_chosen = False
        self.ready_because = ""
        self.asked_after = 0
        self.index = 0
        self.turn_text = ""
        self.matcher = None
        self._fresh()

    def fork(self) -> OutputLane:
        """A second lane that goes on by itself."""
        twin = copy(self)
        twin.forced, twin.sureness = deque(self.forced), deque(self.sureness, maxlen=self.sureness.maxlen)
        twin.counts = Counter(self.counts)
        twin.detokenizer = deepcopy(self.detokenizer, {id(self.codec): self.codec})
        twin.stops = copy(self.stops)
        twin.deltas = self.deltas.fork()
        twin.matcher = None if self.matcher is None else self.matcher.copy()
        return twin

    def _fresh(self) -> None:
        self.detokenizer = IncrementalDetokenizer(self.codec)
        self.stops = StopMatcher(self.spec.stop)
