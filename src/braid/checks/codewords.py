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
from typing import Any, Literal

import torch
from torch import Tensor

from braid.checks.subject import with_specs
from braid.engine.conversation import Conversation
from braid.engine.core import EngineCore
from braid.engine.work import Work
from braid.errors import InputError
from braid.model.model import Model
from braid.model.plan import Plan
from braid.streams.topology import StreamSpec, Topology

__all__ = ["Case", "Place", "PlaceFigures", "code_words", "codeword_cases", "measure_codewords"]

Place = Literal["thought", "typed"]
PLACES: tuple[Place, ...] = ("thought", "typed")

WORDS = (
    "tiger", "banana", "violin", "copper", "planet", "lantern", "puzzle", "rocket", "saddle", "cactus", "pepper",
    "marble", "walnut", "falcon", "kettle", "anchor", "candle", "dragon", "castle", "diamond", "forest", "garden",
    "hammer", "island", "jacket", "ladder", "magnet", "needle", "pencil", "rabbit", "temple", "umbrella", "valley",
    "zebra", "camera", "feather", "guitar", "helmet", "lemon", "mirror", "piano", "tunnel", "velvet", "carpet",
)  # fmt: skip

NUM_FREE = 6
"""Tokens that the writer says by itself."""
BATCH = 20
"""Sessions that are stepped together."""


@dataclass(frozen=True)
class _Phrasing:
    """One way to ask; `{word}` stands in `reveal` alone."""

    question: str
    reveal: str
    answer: str
    """What is put into the writer's mouth: longer than the reveal, so that the word comes while it speaks."""


_PHRASINGS: dict[Place, tuple[_Phrasing, ...]] = {
    "thought": (
        _Phrasing(
            "A colleague thinks aloud next to you and will mention a secret code word. Answer with the code word.",
            "Let me note this: the secret code word is {word}. I must tell it.\n",
            "I am listening to what my colleague says, and I will tell you at once. The code word is",
        ),
        _Phrasing(
            "Someone beside you knows the password of the day. Listen, and then tell me the password.",
            "The password of the day is {word}. Everybody should know it.\n",
            "Of course. Just a moment, I have to listen to the person beside me first. The password of the day is",
        ),
        _Phrasing(
            "Your notes will contain the name of the hidden object. Tell me its name.",
            "Note: the hidden object is called {word}. Remember that.\n",
            "Sure, I can help you with that; my notes are being written just now. The hidden object is called",
        ),
        _Phrasing(
            "Which word did the teacher choose today? Look at the notes and tell me the word.",
            "Today the teacher chose the word {word}. That is the word.\n",
            "Good question! I have a look at the notes, so please wait a little. Today the teacher chose the word",
        ),
    ),
    "typed": (
        _Phrasing(
            "I will tell you a code word soon. Then answer with the code word.",
            " The code word is {word}. Thank you.",
            "Sure, I am listening, and I will repeat it as soon as I have heard it. The code word is",
        ),
        _Phrasing(
            "In a moment I will tell you today's password. Please repeat the password.",
            " Here it comes: the password is {word}.",
            "Of course. Take your time, I will repeat it as soon as you have told me. The password is",
        ),
        _Phrasing(
            "I am thinking of the name of an object. When I say its name, repeat the name.",
            " The object is called {word}, by the way.",
            "I am happy to do that for you, and I am all ears. The object is called",
        ),
        _Phrasing(
            "The teacher chooses a word every day. I will tell you the word of today; say it again.",
            " Today the teacher chose the word {word}.",
            "All right, let us do it like this, one thing after the other. Today the teacher chose the word",
        ),
    ),
}


@dataclass(frozen=True)
class Case:
    """One code word, in one phrasing, and the word that it is exchanged for."""

    place: Place
    word: str
    other: str
    phrasing: _Phrasing

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
            for phrasing in _PHRASINGS[place]:
                yield Case(place, word, words[at - 1], phrasing)

    cases = list(islice(every(), count))
    if len(cases) < count or count < 1:
        raise InputError(f"{count} cases are asked for; give 1 to {len(words) * len(_PHRASINGS[place])}")
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
    found: dict[Place, PlaceFigures] = {}
    done, total = 0, 4 * cases * len(PLACES)

    def progress(count: int) -> None:
        nonlocal done
        done += count
        if on_progress is not None:
            on_progress(done, total)

    for place in PLACES:
        listed = codeword_cases(model, place, cases)
        sequential = views = blocked = 0
        difference = 0.0
        for start in range(0, len(listed), BATCH):
            batch = listed[start : start + BATCH]
            can = _repeats(_run(model, [_sequential(case) for case in batch]), batch)
            progress(len(batch))
            does = _repeats(_run(model, [_concurrent(case) for case in batch]), batch)
            progress(len(batch))
            kept = _run(model, [_concurrent(case, is_blocked=True) for case in batch])
            progress(len(batch))
            changed = _run(model, [_concurrent(case, is_blocked=True, word=case.other) for case in batch])
            progress(len(batch))
            sequential += sum(can)
            views += sum(a and b for a, b in zip(can, does, strict=True))
            blocked += sum(_repeats(kept, batch))
            difference = max(difference, _difference(kept.logits, changed.logits))
        chance = 1 / len(code_words(model))
        found[place] = PlaceFigures(len(listed), sequential, views, blocked, chance, difference)
    return found


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


class _ListeningCore(EngineCore):
    """Keeps the logits that writers drew from."""

    def __init__(self, model: Model, *, kv_tokens: int) -> None:
        super().__init__(model, kv_tokens=kv_tokens)
        self.heard: list[Tensor] = []

    def _forward(self, plan: Plan, works: Sequence[Work]) -> Tensor:
        logits_NV = super()._forward(plan, works)
        labels = [label for work in works for label in work.predicted]
        rows = [row for row, label in enumerate(labels) if label == "output"]
        if rows:
            self.heard.append(logits_NV[rows].clone())
        return logits_NV


def _run(model: Model, scripts: Sequence[_Script]) -> _Heard:
    core = _ListeningCore(model, kv_tokens=len(scripts) * 512)
    sessions = [Conversation(model, core.cache, _limited(model, script)) for script in scripts]
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
        for _ in core.step([session for session in sessions if not session.turn_is_over]):
            pass
    texts = [s.transcript.text("output") for s in sessions]
    for session in sessions:
        session.close()
    return _Heard(
        [text[len(script.answer) :] for text, script in zip(texts, scripts, strict=True)], core.heard
    )


def _limited(model: Model, script: _Script) -> Topology:
    """The thinker says what it is told and no more; the writer a few tokens of its own."""
    spoken = {"output": script.answer, "thought": script.thought or ""}
    specs: dict[str, StreamSpec] = {}
    for name in script.topology.output_names:
        length = len(model.codec.encode(spoken[name])[0])
        limit = length + (NUM_FREE if name == "output" else 0)
        specs[name] = script.topology.streams[name].model_copy(update={"max_tokens": limit})
    return with_specs(script.topology, specs)


def _say_some(core: EngineCore, sessions: Sequence[Conversation], rows: int = 5) -> None:
    """Step until every writer is a few words into its sentence."""
    while any(len(session.transcript.tokens("output")) < rows for session in sessions):
        for _ in core.step([s for s in sessions if len(s.transcript.tokens("output")) < rows]):
            pass


def _repeats(heard: _Heard, cases: Sequence[Case]) -> list[bool]:
    return [case.word in text.lower() for text, case in zip(heard.texts, cases, strict=True)]


def _difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """The largest difference between two runs that were made in the same steps."""
    assert len(first) == len(second), "words of as many tokens are said in as many steps"
    pairs = zip(first, second, strict=True)
    return max(0.0 if torch.equal(a, b) else float((a.double() - b.double()).abs().max()) for a, b in pairs)
