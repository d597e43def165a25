"""Tapes: all that one session asks of a backend, recorded once, and played to any backend as often as needed.

    Conversation ──▶ EngineCore ──▶ _Recorder            a real session, on a backend that computes nothing
                                       │  asks are answered by `Voice`s, never by a model
                                       ▼
    Tape   Item  Item  Trim  Item  Close  Item …         alone, in a batch, after a fork, into a full pool, …
              └ every ask wants the likeliest classes, the entropy and the confidence as well

What is said is on the tape, whatever the backend under test would have drawn. So two runs never drift apart, a tie
of two logits decides nothing, and every single answer can be compared with the oracle's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from braid.engine.backend import (
    Answer,
    Ask,
    Capabilities,
    Close,
    Draw,
    Entry,
    Item,
    ItemResult,
    Keep,
    Op,
    Open,
    Recall,
    Trim,
    Usage,
    closer_of,
)
from braid.engine.core import EngineCore
from braid.engine.scheduler import SchedulerPolicy
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["NUM_NAMED", "Key", "Line", "Scene", "Tape", "Voice", "record"]

NUM_NAMED = 5
"""Of the likeliest classes, how many are to be named in every answer."""

NUM_SHARED = 4
"""Tokens after which a voice turns to its other text."""

Key = tuple[int, str]
"""Who was asked when: row and lane."""

Line = Op | Item


class Voice(NamedTuple):
    """What a lane answers when it is asked."""

    text: str
    """Said token by token, from the beginning again where it ends."""
    rhythm: str = "+"
    """`+` for an answer with a token, `-` for silence, from the beginning again; silence needs a silence class."""
    then: str = ""
    """Another text, to which the lane turns after its first words."""

    def ids(self, codec: TokenizerCodec) -> list[int]:
        """Its tokens."""
        ids = codec.encode(self.text)[0]
        return ids[:NUM_SHARED] + codec.encode(self.then)[0] if self.then else ids


@dataclass(frozen=True, eq=False)
class Tape:
    """One session, line by line, as it is played to a backend after its `Open`."""

    model: Model
    """What it was recorded for."""
    topology: Topology
    lines: tuple[Line, ...]
    """Session 0 stands for whichever it will be."""
    marks: tuple[int, ...]
    """How many entries the transcript had when each line was written."""
    transcript: Transcript
    probes: frozenset[Key]
    """Who was asked by a probe, of which nothing is kept."""
    origins: Mapping[Key, Key]
    """Of a probe that asked once more in another token's place: whose."""

    def held(self, at: int) -> Counter[str]:
        """Tokens that each span holds before line `at`."""
        lengths: Counter[str] = Counter()
        for line in self.lines[:at]:
            match line:
                case Item(entries=entries):
                    lengths.update({entry.span: 0 for entry in entries})
                    for entry in entries:
                        lengths[entry.span] += len(entry.token_ids) if entry.keep else 0
                case Trim(span=span, length=length):
                    lengths[span] = length
                case Close(lane=lane) if lane is not None:
                    lengths.pop(lane, None)
                    lengths.pop(closer_of(lane), None)
                case _:
                    raise AssertionError(f"a tape has no {line!r}")
        return lengths

    @property
    def opening(self) -> int:
        """How many of the first lines fill spans and ask nothing."""
        return next(
            (
                i
                for i, line in enumerate(self.lines)
                if not (isinstance(line, Item) and line.kind == "prefill")
            ),
            len(self.lines),
        )

    def past(self, at: int) -> Transcript:
        """The transcript as it was before line `at`."""
        whole = self.transcript
        return Transcript(whole.topology, whole.model, whole.copies, {}, whole.entries[: self.marks[at - 1]])

    def parts_from(self, other: Tape) -> int:
        """The first line in which two tapes differ."""
        pairs = enumerate(zip(self.lines, other.lines, strict=False))
        return next(at for at, (mine, theirs) in pairs if mine != theirs)

    def disguised(self, spans: Sequence[str] | None = None) -> Tape:
        """The same tape with other tokens, as many, in these spans; None for all."""

        def other(entry: Entry) -> Entry:
            if (spans is not None and entry.span not in spans) or not entry.keep:
                return entry
            return entry._replace(token_ids=tuple(self._another(token) for token in entry.token_ids))

        lines = tuple(
            line._replace(entries=tuple(map(other, line.entries))) if isinstance(line, Item) else line
            for line in self.lines
        )
        return replace(self, lines=lines)

    def _another(self, token: int) -> int:
        """Another token that is no control token, the same for the same token always."""
        taken = self.model.codec.control_ids | set(self.model.codec.end_ids) | {self.model.silence_token_id}
        size = self.model.vocab_size
        return next(
            t for step in range(1, size) if (t := (token * 31 + 7 + step) % size) not in {*taken, token}
        )


class Scene:
    """A session while it is recorded.

    Args:
        core: Over the recorder.
        topology: The streams.
    """

    def __init__(self, core: EngineCore, topology: Topology) -> None:
        self._core = core
        self.conversation = core.open(topology, forces_answers=False)

    def write(self, stream: str, text: str) -> None:
        """Write text, all of it at once; what comes later does not merge with it."""
        self.conversation.write(stream, text)
        self.conversation.flush(stream)

    def end(self) -> None:
        """Say that all inputs are complete."""
        self.conversation.end()

    def force(self, stream: str, text: str) -> None:
        """Put words into an output's mouth."""
        self.conversation.force(stream, text)

    def close(self, stream: str) -> None:
        """Close one stream."""
        self.conversation.close_stream(stream)

    def rows(self, count: int) -> None:
        """Make so many rows beyond those in which a burst enters, or fewer when everybody is silent before."""
        bursting = [lane for lane in self.conversation.stage.inputs if lane.feed == "burst"]
        stop = self.conversation.t + count + sum(len(lane.queue) for lane in bursting)
        while self.conversation.t < stop:
            report = self._core.step([self.conversation])
            for _, error in report.failures:
                raise error
            if not report.worked:
                return


def record(
    model: Model,
    topology: Topology,
    voices: Mapping[str, Voice],
    act: Callable[[Scene], None],
    *,
    chunk: int = 512,
) -> Tape:
    """Record what a session asks of its backend.

    Args:
        model: Whose tokens it speaks; the network is not run.
        topology: The streams.
        voices: What each lane answers.
        act: What happens in the session.
        chunk: Tokens of an input that enter in one forward at most.
    """
    recorder = _Recorder(model, _Dictation(model.codec, voices, model.silence_token_id))
    policy = SchedulerPolicy(step_tokens=chunk, chunk_tokens=chunk, min_chunk_tokens=1)
    scene = Scene(EngineCore(recorder, policy=policy), topology)
    recorder.transcript = scene.conversation.transcript
    act(scene)
    asking = [
        entry for line in recorder.lines if isinstance(line, Item) for entry in line.entries if entry.ask
    ]
    return Tape(
        model,
        scene.conversation.topology,
        tuple(recorder.lines),
        tuple(recorder.marks),
        scene.conversation.transcript,
        frozenset(_key(entry) for entry in asking if not entry.keep and entry.replays is None),
        {_key(entry): (entry.times[-1], entry.replays) for entry in asking if entry.replays is not None},
    )


def _key(entry: Entry) -> Key:
    return entry.times[-1], entry.lane


class _Dictation:
    """Answers asks with what voices say."""

    def __init__(self, codec: TokenizerCodec, voices: Mapping[str, Voice], silence: int | None) -> None:
        self._ids = {lane: voice.ids(codec) for lane, voice in voices.items()}
        self._rhythms = {lane: voice.rhythm for lane, voice in voices.items()}
        self._silence = silence
        self._num_asked: Counter[str] = Counter()

    def __call__(self, draw: Draw) -> int:
        rhythm, ids = self._rhythms[draw.lane], self._ids[draw.lane]
        is_silent = rhythm[self._num_asked[draw.lane] % len(rhythm)] == "-"
        self._num_asked[draw.lane] += 1
        return self._silence if is_silent and self._silence is not None else ids[draw.index % len(ids)]


class _Recorder:
    """A backend that computes nothing and writes down what it was asked."""

    def __init__(self, model: Model, dictation: _Dictation) -> None:
        self.model = model
        self.lines: list[Line] = []
        self.marks: list[int] = []
        self.transcript: Transcript | None = None
        self._dictation = dictation

    def _write(self, line: Line) -> None:
        assert self.transcript is not None, "what a session says before it is open is not on the tape"
        self.lines.append(line)
        self.marks.append(len(self.transcript.entries))

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def settle(self, topology: Topology) -> Topology:
        return topology

    def apply(self, ops: Sequence[Op]) -> list[int]:
        for op in ops:
            if not isinstance(op, Open | Recall | Keep):  # how a session begins is for each check to say
                self._write(op)
        return [0] * len(ops)

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        pass

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        return [self._answer(item) for item in items]

    def _answer(self, item: Item) -> ItemResult:
        entries = [entry._replace(ask=entry.ask and _thorough(entry.ask)) for entry in item.entries]
        self._write(item._replace(entries=tuple(entries)))
        asked = [entry.ask.draws[-1] for entry in item.entries if entry.ask is not None]
        return ItemResult(tuple(Answer(self._dictation(draw)) for draw in asked))

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        """Never asked."""
        raise AssertionError("a tape has no keys, and edits nothing")

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> object:
        """Never asked."""
        raise AssertionError("a tape has no keys, and edits nothing")

    def deviation_between(self, found: object, right: object) -> float:
        """Never asked."""
        raise AssertionError("a tape has no keys, and edits nothing")

    def usage(self) -> Usage:
        return Usage()

    def release_prefixes(self, num_pages: int) -> int:
        return 0

    def close(self) -> None:
        pass


def _thorough(ask: Ask) -> Ask:
    """The same ask, for all statistics; what a lane has said so far is copied, since it grows."""
    draws = tuple(replace(draw, counts=dict(draw.counts)) for draw in ask.draws)
    return Ask(draws, logprobs=NUM_NAMED, entropy=True, confidence=True)
