"""Play scores to the engine as they would arrive, many at once, and note in which row everything was said.

`paced` gives a token a row, however busy the model is. `typed` gives the next token when nobody speaks any more, as to
a model that is much faster than a typist. `paste` gives all at once. Where a part waits for another (a solution that is
written while its problem is read), it waits here, too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from braid.data.score import Part, Score
from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = [
    "AT_ONCE",
    "Arriving",
    "Pace",
    "Played",
    "Said",
    "alone",
    "pieces_of",
    "play",
    "played_of",
    "step_alone",
    "trained_topology",
    "with_feed",
]

Pace = Literal["paced", "typed", "paste"]

AT_ONCE = 32
"""Sessions that are played at the same time."""

_PATIENCE = 256
"""Rows after the last input token, after which a session that still speaks is given up."""


@dataclass(frozen=True)
class Said:
    """What one stream held.

    Args:
        rows, ids: Of each token, its end among them.
        text: Without the end.
    """

    rows: tuple[int, ...]
    ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Played:
    """One score, played.

    Args:
        streams: What each stream held, inputs too.
        last_input: Row of the last token of any input, its end left out.
        num_rows: In all.
        kv_tokens: The most that the cache held.
        is_over: False when the session was given up.
        end_id: The token that ends a turn.
    """

    streams: Mapping[str, Said]
    last_input: int
    num_rows: int
    kv_tokens: int
    is_over: bool
    end_id: int | None

    def words(self, stream: str) -> tuple[tuple[int, int], ...]:
        """Row and token of what a stream said, its end left out."""
        said = self.streams[stream]
        return tuple((t, token) for t, token in zip(said.rows, said.ids, strict=True) if token != self.end_id)

    @property
    def num_tokens(self) -> int:
        """Of all streams."""
        return sum(len(said.ids) for said in self.streams.values())

    @property
    def msl(self) -> int:
        """Tokens of the longest stream."""
        return max((len(said.ids) for said in self.streams.values()), default=0)


def trained_topology(model: Model) -> Topology:
    """The topology that a model was trained with.

    Raises:
        InputError: It was not trained on streams.
    """
    if model.trained is None:
        raise InputError(
            f"{model.name} was not trained on streams; name a model that was, or evaluate it as the baseline alone"
        )
    return model.trained.topology.to_topology()


def play(
    model: Model,
    topology: Topology,
    scores: Iterable[Score],
    pace: Pace,
    *,
    at_once: int = AT_ONCE,
    kv_tokens: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[Score, Played]]:
    """Play scores, and yield each with what was said, in their order.

    Args:
        model: What listens and speaks.
        topology: Of its streams.
        scores: Their input parts are played; what else is in them is not looked at.
        pace: How they arrive.
        at_once: Sessions at the same time.
        kv_tokens: Size of the cache; None chooses.
        on_progress: Is told how many are done.
    """
    if pace == "paste":
        topology = with_feed(topology, "burst")
    elif topology.decoding == "rows":
        topology = with_feed(topology, "paced")
    policy = SchedulerPolicy(step_tokens=4096, chunk_tokens=2048)
    core = EngineCore(LocalBackend(model, kv_tokens=kv_tokens, prefix_share=0.0), policy=policy)
    coming = enumerate(scores)
    live: dict[int, _Sitting] = {}
    done: dict[int, tuple[Score, Played]] = {}
    told = 0
    try:
        while True:
            for number, score in itertools.islice(coming, at_once - len(live)):
                conversation = core.open(topology)
                live[number] = _Sitting(score, conversation, Arriving(score, conversation, pace))
            if not live:
                break
            for sitting in live.values():
                sitting.arriving.advance()
            report = core.step([sitting.conversation for sitting in live.values()])
            for _, error in report.failures:
                raise error
            for number, sitting in list(live.items()):
                sitting.conversation.take_news()
                if sitting.is_over:
                    done[number] = (sitting.score, played_of(model, sitting.conversation))
                    sitting.conversation.close()
                    del live[number]
            while told in done:
                yield done.pop(told)
                told += 1
                if on_progress is not None:
                    on_progress(told)
    finally:
        for sitting in live.values():
            sitting.conversation.close()


class Arriving:
    """Gives a conversation the inputs of a score, as they come.

    Args:
        score: What comes.
        conversation: To whom.
        pace: How.
    """

    def __init__(self, score: Score, conversation: Conversation, pace: Pace) -> None:
        self._conversation, self._pace = conversation, pace
        self._parts = [
            _Coming(part, pieces_of(part, pace)) for part in score.parts if part.direction == "input"
        ]
        self._by_name = {coming.part.stream: coming for coming in self._parts}

    @property
    def is_over(self) -> bool:
        """Whether all has been given."""
        return all(coming.is_over for coming in self._parts)

    @property
    def has_given_all(self) -> bool:
        """Whether only ends are left."""
        return all(coming.is_said for coming in self._parts)

    def advance(self) -> str | None:
        """Give what comes now; to be called before every row.

        Returns:
            The text that was given; None if nothing was, and the empty text for an end.
        """
        if self._pace == "typed" and self._conversation.has_work:
            return None
        given: str | None = None
        for coming in self._parts:
            while not coming.is_over and self._may_come(coming):
                given = (given or "") + coming.give(self._conversation)
                if self._pace != "paste":
                    break
        return given

    def give_next(self) -> str | None:
        """Give the next piece of the first input that may have one, however busy the model is.

        Returns:
            The text that was given; None if nothing was, and the empty text for an end.
        """
        for coming in self._parts:
            if not coming.is_over and all(
                self._by_name[name].num_given >= n for name, n in coming.after.items()
            ):
                return coming.give(self._conversation)
        return None

    def _may_come(self, coming: _Coming) -> bool:
        if self._pace != "paste" and self._conversation.num_queued_of(coming.part.stream):
            return False
        return all(self._num_read(name) >= count for name, count in coming.after.items())

    def _num_read(self, stream: str) -> int:
        """Segments of an input that the model has read whole."""
        is_read = self._pace == "paste" or not self._conversation.num_queued_of(stream)
        return self._by_name[stream].num_given - (not is_read)


class _Coming:
    """One input of a score, on its way."""

    def __init__(self, part: Part, pieces: Sequence[tuple[str, int]]) -> None:
        self.part = part
        self._pieces = pieces
        self._place = 0
        self.is_over = False

    @property
    def num_given(self) -> int:
        """Segments that were given whole; the end counts as one more."""
        return len(self.part.segments) + 1 if self.is_over else self._segments_before(self._place)

    @property
    def is_said(self) -> bool:
        """Whether only its end is left."""
        return self._place >= len(self._pieces)

    @property
    def after(self) -> Mapping[str, int]:
        """What must have come before the next piece."""
        if self.is_said:
            return {}
        segment = self._pieces[self._place][1]
        begins = self._place == 0 or self._pieces[self._place - 1][1] != segment
        return self.part.segments[segment].after if begins else {}

    def give(self, conversation: Conversation) -> str:
        if self.is_said:
            conversation.end(self.part.stream)
            self.is_over = True
            return ""
        text, _ = self._pieces[self._place]
        conversation.write(self.part.stream, text)
        conversation.flush(self.part.stream)
        self._place += 1
        return text

    def _segments_before(self, place: int) -> int:
        return len(self.part.segments) if place >= len(self._pieces) else self._pieces[place][1]


@dataclass
class _Sitting:
    score: Score
    conversation: Conversation
    arriving: Arriving
    end_t: int | None = None

    @property
    def is_over(self) -> bool:
        if not self.arriving.is_over:
            return False
        if self.end_t is None:
            self.end_t = self.conversation.t
        if not self.conversation.has_work:
            self.conversation.demand()  # an answer that ended in the last row is complete, and the turn over
            return True
        is_late = self.conversation.t - self.end_t > _PATIENCE + self.conversation.num_queued
        return self.conversation.turn_is_over or is_late


def pieces_of(part: Part, pace: Pace) -> list[tuple[str, int]]:
    """Texts that come at once, each with its segment; typed, that is a word or a sign."""
    if pace != "typed":
        return [(segment.text, place) for place, segment in enumerate(part.segments)]
    return [(text, place) for place, segment in enumerate(part.segments) for text in _split(segment.text)]


def _split(text: str) -> list[str]:
    """Words with the space before them, and signs and digits one by one."""
    pieces: list[str] = []
    for sign in text:
        is_word = sign.isalpha() and pieces and (pieces[-1][-1].isalpha() or pieces[-1] == " ")
        is_after_space = bool(pieces) and pieces[-1] == " "
        if is_word or is_after_space:
            pieces[-1] += sign
        else:
            pieces.append(sign)
    return pieces


@contextmanager
def alone(model: Model, topology: Topology) -> Generator[tuple[EngineCore, Conversation]]:
    """An engine with one session, which is closed at the end of the block."""
    core = EngineCore(LocalBackend(model, prefix_share=0.0))
    conversation = core.open(topology)
    try:
        yield core, conversation
    finally:
        conversation.close()


def step_alone(core: EngineCore, conversation: Conversation) -> float:
    """Make the next rows of the only session of an engine.

    Returns:
        Seconds that it took.

    Raises:
        BraidError: What ended the session.
    """
    began = time.perf_counter()
    report = core.step([conversation])
    taken = time.perf_counter() - began
    for _, error in report.failures:
        raise error
    conversation.take_news()
    return taken


def with_feed(topology: Topology, feed: Literal["paced", "burst"]) -> Topology:
    """A topology whose inputs are read a token a row, or all at once."""
    inputs = {name: topology.streams[name] for name in topology.input_names}
    return topology.with_specs(
        {name: spec.model_copy(update={"feed": feed}) for name, spec in inputs.items()}
    )


def played_of(model: Model, conversation: Conversation) -> Played:
    """What was said in a conversation."""
    transcript = conversation.transcript
    end_id = model.turn_end_id
    streams: dict[str, Said] = {}
    last_input = -1
    for lane in transcript.lanes.lanes:
        tokens = transcript.tokens(lane.label)
        streams[lane.label] = Said(
            tuple(t for t, _ in tokens), tuple(token for _, token in tokens), transcript.text(lane.label)
        )
        if transcript.topology.streams[lane.stream].is_input:
            words = [t for t, token in tokens if token != end_id]
            last_input = max(last_input, *words) if words else last_input
    num_rows = transcript.rows[-1].t + 1 if transcript.rows else 0
    return Played(
        streams,
        last_input,
        num_rows,
        conversation.peak_kv_tokens,
        conversation.turn_is_over,
        end_id,
    )
