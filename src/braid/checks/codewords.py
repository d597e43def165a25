"""`braid bench codewords`: does a writer read what another stream holds?

A code word is said where only another stream holds it; the writer, in the middle of a sentence, comes to the words
"the code word is", and goes on by itself, greedily.

    thought   the word is forced into the thinker, a token a row, while the writer is speaking
    typed     the user types it while the writer is speaking

    sequential   the same texts in one ordinary prompt: what the model can do at all
    views        think-aloud's views, over shared spans
    blocked      the same with that `reads` taken away: the writer cannot know the word
    changed      blocked, with another word of as many tokens: the writer's logits must not change by one bit

Only words that the model repeats from the sequential prompt say anything about views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from braid.checks.phrasings import PHRASINGS, PLACES, WORDS, Phrasing, Place
from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.local.work import Feed
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.model.model import Model
from braid.model.plan import Plan
from braid.streams.topology import StreamSpec, Topology

__all__ = ["PLACES", "Case", "Place", "PlaceFigures", "code_words", "codeword_cases", "measure_codewords"]

NUM_FREE = 6
"""Tokens that the writer says by itself."""
BATCH = 20
"""Sessions that are stepped together."""
TOGETHER = SchedulerPolicy(step_tokens=1 << 20, chunk_tokens=1 << 20)
"""All sessions of a batch make every row together, so that runs can be compared step by step."""
MAX_TOKENS = 640
"""Tokens that one session takes at most, even where a token is a byte."""


@dataclass(frozen=True)
class Case:
    """One code word, in one phrasing, and the word that it is exchanged for."""

    place: Place
    word: str
    other: str
    phrasing: Phrasing

    def reveal(self, word: str) -> str:
        """The sentence that has the word."""
        return self.phrasing.reveal.format(word=word)


@dataclass(frozen=True)
class PlaceFigures:
    """What came out where the word stood in one place."""

    cases: int
    sequential: int
    """Cases in which the model repeats the word from the sequential prompt."""
    views: int
    """Of these, how many times the writer does."""
    blocked: int
    """Of all cases, how many times the writer does without reading the stream."""
    chance: float
    """The rate of a writer that picks one of the words blindly."""
    max_abs_diff: float
    """By how much the blocked writer's logits change when the word does."""

    @property
    def rate(self) -> float:
        """Of the cases that the model can do, the part that the writer does."""
        return self.views / self.sequential if self.sequential else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "cases": self.cases,
            "sequential": self.sequential,
            "views": self.views,
            "rate": round(self.rate, 4),
            "blocked": self.blocked,
            "blocked_rate": round(self.blocked / self.cases, 4),
            "chance": round(self.chance, 4),
            "max_abs_diff": self.max_abs_diff,
        }


def code_words(model: Model) -> list[str]:
    """Words that are all one number of tokens to the model, so that one can be exchanged for another unseen."""
    lengths = {word: len(model.codec.encode(" " + word)[0]) for word in WORDS}
    usual = max(set(lengths.values()), key=list(lengths.values()).count)
    return [word for word, length in lengths.items() if length == usual]


def codeword_cases(model: Model, place: Place, count: int) -> list[Case]:
    """Words × phrasings, the phrasings in turn.

    Raises:
        InputError: There are not so many.
    """
    words = code_words(model)

    def every() -> Iterator[Case]:
        for at, word in enumerate(words):
            for phrasing in PHRASINGS[place]:
                yield Case(place, word, words[at - 1], phrasing)

    cases = list(islice(every(), count))
    if len(cases) < count or count < 1:
        raise InputError(f"{count} cases are asked for; give 1 to {len(words) * len(PHRASINGS[place])}")
    return cases


def measure_codewords(
    model: Model, *, cases: int = 100, on_progress: Callable[[int, int], None] | None = None
) -> dict[Place, PlaceFigures]:
    """Run all cases, in both places.

    Args:
        model: An instruction-tuned model with stock weights.
        cases: How many, in each place.
        on_progress: Called with the runs done, and how many there are.

    Raises:
        InputError: More cases than there are words × phrasings.
        UnsupportedModelError: The model's positions cannot be shifted.
        CheckpointConflictError: The model was trained with streams; views are for stock weights.
    """
    done, total = 0, 4 * cases * len(PLACES)

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    backend = _Listening(model, kv_tokens=BATCH * MAX_TOKENS)
    return {place: _measure(backend, codeword_cases(model, place, cases), progress) for place in PLACES}


def _measure(backend: _Listening, cases: Sequence[Case], progress: Callable[[int], None]) -> PlaceFigures:
    sequential = views = blocked = 0
    difference = 0.0

    def run(scripts: Sequence[_Script]) -> _Heard:
        heard = _run(backend, scripts)
        progress(len(scripts))
        return heard

    for start in range(0, len(cases), BATCH):
        batch = cases[start : start + BATCH]
        can = _repeats(run([_sequential(case) for case in batch]), batch)
        does = _repeats(run([_concurrent(case) for case in batch]), batch)
        kept = run([_concurrent(case, is_blocked=True) for case in batch])
        changed = run([_concurrent(case, is_blocked=True, word=case.other) for case in batch])
        sequential += sum(can)
        views += sum(a and b for a, b in zip(can, does, strict=True))
        blocked += sum(_repeats(kept, batch))
        difference = max(difference, _difference(kept.logits, changed.logits))
    return PlaceFigures(
        len(cases), sequential, views, blocked, 1 / len(code_words(backend.model)), difference
    )


# ---- running a batch


@dataclass(frozen=True)
class _Script:
    """What happens in one session."""

    topology: Topology
    question: str
    answer: str
    thought: str | None = None
    late: str | None = None


@dataclass(frozen=True)
class _Heard:
    """What the writers of a batch said by themselves, and all logits that they drew from, step by step."""

    texts: list[str]
    logits: list[Tensor]


def _sequential(case: Case) -> _Script:
    """Everything in one prompt, in the order of reading."""
    streams = {"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output", wait_k="end")}
    topology = Topology(streams=streams, decoding="views")
    reveal, phrasing = case.reveal(case.word), case.phrasing
    if case.place == "typed":
        return _Script(topology, phrasing.question + reveal, phrasing.answer)
    return _Script(topology, phrasing.question, reveal + phrasing.answer)


def _concurrent(case: Case, *, is_blocked: bool = False, word: str | None = None) -> _Script:
    """The writer, beside a thinker or a user who reveals the word."""
    reveal, phrasing = case.reveal(word or case.word), case.phrasing
    streams = {"user": StreamSpec(direction="input")}
    if case.place == "typed":
        streams["output"] = StreamSpec(direction="output")
        reads: dict[str, tuple[str, ...]] = {"output": ()}
        topology = Topology(streams=streams, decoding="views", reads=reads if is_blocked else {})
        return _Script(topology, phrasing.question, phrasing.answer, late=reveal)
    streams["thought"] = StreamSpec(direction="output", visibility="internal")
    streams["output"] = StreamSpec(direction="output")
    reads = {"output": ("user",)}
    topology = Topology(streams=streams, decoding="views", reads=reads if is_blocked else {})
    return _Script(topology, phrasing.question, phrasing.answer, thought=reveal)


class _Listening(LocalBackend):
    """Keeps the logits that writers drew from."""

    def __init__(self, model: Model, *, kv_tokens: int) -> None:
        super().__init__(model, kv_tokens=kv_tokens, prefix_share=0.0)
        self.heard: list[Tensor] = []

    def _forward(self, plan: Plan, feeds: Sequence[Feed]) -> Tensor:
        logits_NV = super()._forward(plan, feeds)
        labels = [feed.label for feed in feeds if feed.ask is not None]
        rows = [row for row, label in enumerate(labels) if label == "output"]
        if rows:
            self.heard.append(logits_NV[rows].clone())
        return logits_NV


def _run(backend: _Listening, scripts: Sequence[_Script]) -> _Heard:
    model, backend.heard = backend.model, []
    core = EngineCore(backend, policy=TOGETHER)
    sessions = [core.open(_limited(model, script)) for script in scripts]
    for session, script in zip(sessions, scripts, strict=True):
        session.write("user", script.question)
        if script.late is None:
            session.end()
        else:
            session.flush("user")
        session.force("output", script.answer)
        if script.thought is not None:
            session.force("thought", script.thought)
    _say_some(core, sessions)
    for session, script in zip(sessions, scripts, strict=True):
        if script.late is not None:
            session.write("user", script.late)
            session.end()
    while any(not session.turn_is_over for session in sessions):
        _step(core, [session for session in sessions if not session.turn_is_over])
    texts = [s.transcript.text("output") for s in sessions]
    for session in sessions:
        session.close()
    return _Heard(
        [text[len(script.answer) :] for text, script in zip(texts, scripts, strict=True)], backend.heard
    )


def _limited(model: Model, script: _Script) -> Topology:
    """The thinker says what it is told and no more; the writer a few tokens of its own."""
    spoken = {"output": script.answer, "thought": script.thought or ""}
    specs: dict[str, StreamSpec] = {}
    for name in script.topology.output_names:
        length = len(model.codec.encode(spoken[name])[0])
        limit = length + (NUM_FREE if name == "output" else 0)
        specs[name] = script.topology.streams[name].model_copy(update={"max_tokens": limit})
    return script.topology.with_specs(specs)


def _say_some(core: EngineCore, sessions: Sequence[Conversation], rows: int = 5) -> None:
    """Step until every writer is a few words into its sentence."""
    while any(len(session.transcript.tokens("output")) < rows for session in sessions):
        _step(core, [s for s in sessions if len(s.transcript.tokens("output")) < rows])


def _step(core: EngineCore, sessions: Sequence[Conversation]) -> None:
    for _, error in core.step(sessions).failures:
        raise error


def _repeats(heard: _Heard, cases: Sequence[Case]) -> list[bool]:
    return [case.word in text.lower() for text, case in zip(heard.texts, cases, strict=True)]


def _difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """The largest difference between two runs that were made in the same steps."""
    assert len(first) == len(second), "words of as many tokens are said in as many steps"
    pairs = zip(first, second, strict=True)
    return max(0.0 if torch.equal(a, b) else float((a.double() - b.double()).abs().max()) for a, b in pairs)
