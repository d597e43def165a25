"""The state of each lane of a session: what waits to be read, what is about to be said."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from braid.engine.span import Span
from braid.engine.stops import StopMatcher
from braid.model.codec import TokenizerCodec
from braid.streams.events import DeltaBuffer
from braid.streams.lanes import Lane
from braid.streams.stream_spec import StreamSpec, Trigger
from braid.streams.text import IncrementalDetokenizer, IncrementalTokenizer

__all__ = ["InputLane", "OutputLane", "Phase"]

Phase = Literal["waiting", "speaking", "silent", "asleep", "closed"]
"""`waiting` for its turn to begin; `speaking`, with a token for the next row; awake but `silent`, and probed;
`asleep` until the next turn, and not probed; `closed` for good."""


@dataclass
class InputLane:
    """One stream that is fed from outside."""

    lane: Lane
    spec: StreamSpec
    span: Span
    codec: TokenizerCodec
    feed: Literal["paced", "burst"]
    tokenizer: IncrementalTokenizer = field(init=False)
    queue: deque[tuple[int, str]] = field(default_factory=deque[tuple[int, str]])
    """Tokens that have not entered a row yet, with the text that each covers."""
    text: str = ""
    """All that was written in this turn."""
    has_ended: bool = False
    is_closed: bool = False
    held_over: str = ""
    """Text that the last turn held back and never read."""
    num_read: int = 0
    """Tokens that entered rows in this turn."""
    last_token: int = 0
    """The token that entered last."""

    def __post_init__(self) -> None:
        self.tokenizer = IncrementalTokenizer(self.codec)

    @property
    def label(self) -> str:
        """Name of the lane."""
        return self.lane.label

    def read(self) -> tuple[int, str]:
        """The next token, with the text that it covers, as it enters a row."""
        self.num_read += 1
        token, text = self.queue.popleft()
        self.last_token = token
        return token, text

    def begin_turn(self, before: str) -> None:
        """Forget the last turn's text; what it held back unread is the beginning of this one's.

        Args:
            before: Template text that stands directly before the input.
        """
        self.text, self.held_over = self.held_over, ""
        self.num_read, self.has_ended = 0, False
        self.tokenizer = IncrementalTokenizer(self.codec, before)
        self.queue.extend(self.tokenizer.write(self.text))

    def close(self) -> None:
        """Forget all that was written and not made history."""
        self.is_closed = True
        self.queue.clear()
        self.text = self.held_over = ""

    def end_turn(self) -> None:
        """The answers are complete; text that is still held back was not part of the question."""
        self.held_over = self.tokenizer.held
        self.text = self.text.removesuffix(self.held_over)
        self.has_ended = True

    def ends_with(self, entering: int) -> bool:
        """Whether, once so many more tokens have entered a row, it has nothing more to say in this turn."""
        return self.is_closed or ((self.has_ended or not self.text) and len(self.queue) <= entering)

    @property
    def is_drained(self) -> bool:
        """Whether no more comes in this turn, and all that came was read."""
        return self.ends_with(0)


@dataclass
class OutputLane:
    """One stream that the model speaks."""

    lane: Lane
    spec: StreamSpec
    span: Span
    codec: TokenizerCodec
    closer: Span | None = None
    """In views: turn closer, instructions and assistant header, read by this lane alone."""
    phase: Phase = "waiting"
    pending: tuple[int, bool] | None = None
    """The token for the next row, and whether it was forced."""
    forced: deque[int] = field(default_factory=deque[int])
    """Tokens that will be said whatever the model thinks."""
    force_start: bool = False
    """Start at the next chance, whatever the wait."""
    last_logits_V: Tensor | None = None
    """Logits after which the lane chose silence; what `force` draws from."""
    index: int = 0
    """Tokens drawn or forced in this turn."""
    counts: Counter[int] = field(default_factory=Counter[int])
    turn_text: str = ""
    detokenizer: IncrementalDetokenizer = field(init=False)
    stops: StopMatcher = field(init=False)
    deltas: DeltaBuffer = field(init=False)

    def __post_init__(self) -> None:
        self.deltas = DeltaBuffer(self.label, self.spec)
        self._fresh()

    @property
    def label(self) -> str:
        """Name of the lane."""
        return self.lane.label

    @property
    def is_awake(self) -> bool:
        """Whether it speaks, or is asked in every row whether it will."""
        return self.phase in ("speaking", "silent")

    def say(self, token: int) -> tuple[str, str | None]:
        """Take a token as said.

        Returns:
            The text that it completes, and why the lane's turn is over with it (`end`, `stop`, `length`), or None.
        """
        self.index += 1
        self.counts[token] += 1
        text, is_stopped = self.stops.push(self.detokenizer.push(token))
        finish = "stop" if is_stopped else "end" if token in self.codec.end_ids else None
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
        return self.phase == "waiting" and isinstance(self.spec.trigger, Trigger)

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
        self.force_start = False
        self.last_logits_V = None
        self.index = 0
        self.turn_text = ""
        self._fresh()

    def _fresh(self) -> None:
        self.detokenizer = IncrementalDetokenizer(self.codec)
        self.stops = StopMatcher(self.spec.stop)
