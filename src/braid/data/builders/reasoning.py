"""Verifiable problems that nobody here wrote: the sources of `reasoning-gym`, with a thought that follows the question.

gsm_symbolic         the worked steps, as terse equations, placed by the causality validator
knights_knaves       after each statement, which worlds are left
syllogism            each premise as it is read, then whether the conclusion follows
propositional_logic  after each premise, how the variables may still stand
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from braid.data.arithmetic import equations
from braid.data.builders.solve import solving_score
from braid.data.causality import Verdict, validate
from braid.data.score import Score, Segment
from braid.data.sentences import split_sentences
from braid.errors import DataError

__all__ = ["GSM_FORMAT", "SOURCES", "reasoning_items", "reasoning_score"]

GSM_FORMAT = " Give the result as your final answer. Do not include units."
"""What every question of `gsm_symbolic` ends with; it says nothing about the problem."""
_CHUNK = 64
"""Items that are asked for at once; each depends only on the seed and its place."""


def reasoning_items(source: str, seed: int, start: int = 0) -> Iterator[dict[str, Any]]:
    """The items of a source, without end.

    Args:
        source: One of `SOURCES`.
        seed: Of the series.
        start: Place of the first.

    Raises:
        DataError: `reasoning-gym` is not installed.
    """
    try:
        import reasoning_gym  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise DataError(f"{source} needs reasoning-gym: pip install reasoning-gym") from None
    gym: Any = reasoning_gym
    for chunk in itertools.count(start // _CHUNK):
        size = (chunk + 1) * _CHUNK
        dataset = gym.create_dataset(source, seed=seed, size=size)
        for place in range(max(start, chunk * _CHUNK), size):
            yield cast("dict[str, Any]", dataset[place])


def reasoning_score(source: str, item: Mapping[str, Any], name: str) -> Verdict:
    """The score of an item, and whether its steps hold.

    Args:
        source: One of `SOURCES`.
        item: As `reasoning-gym` gives it.
        name: Of the example.

    Raises:
        DataError: There is no such source.
    """
    make = _MAKERS.get(source)
    if make is None:
        raise DataError(f"there is no source {source!r}; there are {', '.join(SOURCES)}")
    return make(item, name)


# ---- word problems


def _gsm_symbolic(item: Mapping[str, Any], name: str) -> Verdict:
    user = split_sentences(str(item["question"]).removesuffix(GSM_FORMAT))
    *lines, _ = str(item["metadata"]["answer_cot"]).split("\n")
    steps = [step for line in lines for step in _terse(line)]
    thought = [Segment(step, {"user": 1}) for step in steps]
    score = _score(name, item, user, thought, str(item["answer"]))
    return validate(score)


def _terse(line: str) -> list[str]:
    """The equations of a line; the line itself where it states none."""
    found = [f"{equation.text};" for equation in equations(line)]
    return found or ([f"{line.strip()};"] if line.strip() else [])


# ---- logic


def _knights_knaves(item: Mapping[str, Any], name: str) -> Verdict:
    meta = item["metadata"]
    names, statements = cast("list[str]", meta["names"]), cast("list[Any]", meta["statements"])
    terms = meta["knight_knave_terms"]
    user = split_sentences(str(item["question"]))
    quotes = [
        place for place, text in enumerate(user, start=1) if '"' in text and "Format your answer" not in text
    ]
    worlds = list(itertools.product((True, False), repeat=len(names)))
    thought: list[Segment] = []
    for speaker, statement in enumerate(statements):
        worlds = [world for world in worlds if _is_true(statement, world) == world[speaker]]
        read = quotes[speaker] if speaker < len(quotes) else len(user)
        told = "; ".join(
            " ".join(
                f"{who} {terms['knight' if is_knight else 'knave']}"
                for who, is_knight in zip(names, world, strict=True)
            )
            for world in worlds
        )
        thought.append(Segment(f"{' ' if thought else ''}{told}.", {"user": read}))
    return Verdict(_score(name, item, user, thought, str(item["answer"])), (), ())


def _is_true(statement: Sequence[Any], world: Sequence[bool]) -> bool:
    kind, *parts = statement
    match kind:
        case "telling-truth":
            return world[parts[0]]
        case "lying":
            return not world[parts[0]]
        case "not":
            return not _is_true(parts[0], world)
        case "and":
            return all(_is_true(part, world) for part in parts)
        case "or":
            return any(_is_true(part, world) for part in parts)
        case "->":
            return not _is_true(parts[0], world) or _is_true(parts[1], world)
        case "<=>":
            return _is_true(parts[0], world) == _is_true(parts[1], world)
        case _:
            raise DataError(f"knights_knaves has the statement {kind!r}, which is not known here")


def _syllogism(item: Mapping[str, Any], name: str) -> Verdict:
    meta = item["metadata"]
    user = split_sentences(str(item["question"]))
    thought = [
        Segment(f"{' ' if number else ''}{premise};", {"user": _first_with(user, premise)})
        for number, premise in enumerate((meta["premise1"], meta["premise2"]))
    ]
    read = _first_with(user, meta["conclusion"], after=max(segment.after["user"] for segment in thought))
    verdict = "follows" if meta["is_valid"] else "does not follow"
    thought.append(Segment(f" {meta['conclusion']}: {verdict};", {"user": read}))
    return Verdict(_score(name, item, user, thought, str(item["answer"])), (), ())


def _propositional_logic(item: Mapping[str, Any], name: str) -> Verdict:
    meta = item["metadata"]
    names, premises = cast("list[str]", meta["variables"]), cast("list[str]", meta["premises"])
    _, found, given = str(item["question"]).partition("Given:")
    user = split_sentences(f"{found}{given}")
    worlds = list(itertools.product((True, False), repeat=len(names)))
    thought: list[Segment] = []
    read = 0
    for premise in premises:
        worlds = [
            world for world in worlds if _Formula(premise, dict(zip(names, world, strict=True))).value()
        ]
        read = _first_with(user, premise, after=read)
        told = " ".join(
            "".join(n if is_true else f"¬{n}" for n, is_true in zip(names, w, strict=True)) for w in worlds
        )
        thought.append(Segment(f"{' ' if thought else ''}{told or 'none'};", {"user": read}))
    return Verdict(_score(name, item, user, thought, str(meta["example_answer"])), (), ())


class _Formula:
    """A formula of propositional logic, read from left to right: `¬`, and pairs in brackets."""

    def __init__(self, text: str, world: Mapping[str, bool]) -> None:
        self._signs = [sign for sign in text if not sign.isspace()]
        self._world = world
        self._place = 0

    def value(self) -> bool:
        value = self._term()
        while self._place < len(self._signs) and self._signs[self._place] != ")":
            sign = self._signs[self._place]
            self._place += 1
            other = self._term()
            value = _joined(sign, value, other)
        return value

    def _term(self) -> bool:
        sign = self._signs[self._place]
        self._place += 1
        if sign == "¬":
            return not self._term()
        if sign == "(":
            value = self.value()
            self._place += 1
            return value
        return self._world[sign]


def _joined(sign: str, a: bool, b: bool) -> bool:
    match sign:
        case "∧":
            return a and b
        case "∨":
            return a or b
        case "→":
            return not a or b
        case "↔":
            return a == b
        case _:
            raise DataError(f"propositional_logic has the sign {sign!r}, which is not known here")


# ---- together


def _first_with(user: Sequence[str], text: str, after: int = 0) -> int:
    """How many segments have been read when a text stands there; all, where it never does."""
    for count in range(after + 1, len(user) + 1):
        if text in user[count - 1]:
            return count
    for count in range(1, len(user) + 1):
        if text in "".join(user[:count]):
            return max(count, after)
    return len(user)


def _score(
    name: str, item: Mapping[str, Any], user: Sequence[str], thought: Sequence[Segment], answer: str
) -> Score:
    output = Segment(answer, {"user": len(user), **({"thought": len(thought)} if thought else {})})
    meta = item["metadata"]
    kept = {
        "answer": answer,
        "source": meta["source_dataset"],
        "index": meta["source_index"],
        "num_steps": len(thought),
    }
    return solving_score(name, [Segment(text) for text in user], thought, output, kept)


_MAKERS = {
    "gsm_symbolic": _gsm_symbolic,
    "knights_knaves": _knights_knaves,
    "syllogism": _syllogism,
    "propositional_logic": _propositional_logic,
}
SOURCES = tuple(_MAKERS)
"""The sources that are known."""
