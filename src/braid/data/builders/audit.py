"""Audit while solving: a solution with planted faults, and an auditor that flags each as soon as it can be known.

A solution is written down step by step while the problem is read, as a person or another model would. Some steps are
wrong, and what follows goes on from what was written, so that one fault is one fault. The auditor reads the problem and
the solution alone. It says nothing while all is well; at a fault it names the kind; at
the end it says `ok` or `not ok`.

A fault can be known with the first token that differs from what is right. A flag before that is a false alarm.

What is written for a training story, right or wrong, holds no pair of numbers that training leaves out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from braid.data.score import Part, Score, Segment
from braid.data.stories.story import LARGEST, OPERATIONS, Story, is_held_out_pair

__all__ = ["FAULTS", "UNSEEN_FAULTS", "Fault", "audit_score", "plant"]

FAULTS = ("result", "number", "operation")
"""Kinds that are trained on: a wrong result, a number that the problem does not say, a wrong operation."""

UNSEEN_FAULTS = ("swap", "stale", "extra zero")
"""Kinds that are only evaluated: two digits exchanged, an earlier value used again, a digit too many."""

FLAG = {"result": " wrong result;", "number": " wrong number;", "operation": " wrong operation;"}

_STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+);")
_TRIES = 50
"""Plans of faults that are drawn before a story is written down without any."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a solution.

    Args:
        step: Its place among the steps.
        kind: One of `FAULTS` or `UNSEEN_FAULTS`.
        at: Characters of the step up to and with the first one that is wrong.
    """

    step: int
    kind: str
    at: int


def audit_score(story: Story, name: str, rng: random.Random, kinds: Sequence[str] = FAULTS) -> Score:
    """The score of a story with a solution that somebody else writes: user, solution, audit.

    Args:
        story: A word problem.
        name: Of the example.
        rng: Decides what goes wrong.
        kinds: Of faults that may be planted.
    """
    written, faults = plant(story, rng, kinds)
    by_step = {fault.step: fault for fault in faults}
    solution: list[Segment] = []
    audit: list[Segment] = []
    place = 0
    for number, sentence in enumerate(story.sentences, start=1):
        for _ in sentence.steps:
            step, fault = written[place], by_step.get(place)
            if fault is None:
                solution.append(Segment(step, {"user": number}))
            else:
                solution.append(Segment(step[: fault.at], {"user": number}))
                audit.append(Segment(FLAG.get(fault.kind, " wrong;"), {"solution": len(solution)}))
                if step[fault.at :]:
                    solution.append(Segment(step[fault.at :]))
            place += 1
    verdict = " not ok" if faults else " ok"
    audit.append(Segment(verdict, {"user": len(story.sentences), "solution": len(solution) + 1}))
    meta = {
        "answer": story.answer,
        "split": story.split,
        "structure": story.structure,
        "faults": [{"step": f.step, "kind": f.kind} for f in faults],
        "num_steps": len(written),
    }
    return Score(
        name,
        (
            Part("user", "input", tuple(Segment(sentence.text) for sentence in story.sentences)),
            Part("solution", "input", tuple(solution)),
            Part("audit", "output", tuple(audit), reads=("solution",)),
        ),
        meta,
    )


def plant(story: Story, rng: random.Random, kinds: Sequence[str] = FAULTS) -> tuple[list[str], list[Fault]]:
    """Write the steps of a story down, some of them wrong.

    Returns:
        The steps as written, and what is wrong with them.
    """
    wanted = rng.choice((0, 0, 1, 1, 1, 2))
    for _ in range(_TRIES):
        attempt = _write(story.steps, wanted, rng, kinds)
        if attempt is not None and (story.split != "train" or not any(map(_is_held_out, attempt[0]))):
            return attempt
    return story.steps, []


def _write(
    steps: Sequence[str], wanted: int, rng: random.Random, kinds: Sequence[str]
) -> tuple[list[str], list[Fault]] | None:
    """One attempt at it, with so many faults at most; None where a fault leaves nothing sensible to go on with."""
    marked = set(rng.sample(range(len(steps)), min(wanted, len(steps))))
    written: list[str] = []
    faults: list[Fault] = []
    values: dict[str, str] = {}
    """What was rightly worked out → what was written for it."""
    for place, right in enumerate(steps):
        carried = _carry_on(right, values)
        if carried is None:
            return None  # the right step would be one more fault: it does not follow from what was written
        wrong = _spoil(carried, rng, kinds, written) if place in marked else None
        if wrong is None:
            written.append(carried)
        else:
            step, kind = wrong
            written.append(step)
            faults.append(Fault(place, kind, _first_difference(step, carried)))
        values[_result(right)] = _result(written[-1])
    return written, faults


def _is_held_out(step: str) -> bool:
    parsed = _STEP.fullmatch(step)
    return parsed is not None and is_held_out_pair(int(parsed[1]), parsed[2], int(parsed[3]))


def _carry_on(step: str, values: Mapping[str, str]) -> str | None:
    """The step, worked out from what was written before; None where that has no whole result."""
    parsed = _STEP.fullmatch(step)
    if parsed is None:
        return f"{values.get(step[:-1], step[:-1])};"
    a, sign, b, _ = parsed.groups()
    return _worked(values.get(a, a), sign, b)


def _spoil(
    step: str, rng: random.Random, kinds: Sequence[str], written: Sequence[str]
) -> tuple[str, str] | None:
    """A wrong form of a step, and the kind of fault; None where it has none."""
    parsed = _STEP.fullmatch(step)
    fitting = [kind for kind in kinds if parsed is not None or kind in ("number", "swap", "extra zero")]
    if not fitting:
        return None
    kind = rng.choice(fitting)
    if parsed is None:
        wrong = _other_number(step[:-1], rng, kind)
        spoiled = None if wrong is None else f"{wrong};"
    else:
        spoiled = _spoiled(parsed.groups(), rng, kind, written)
    return None if spoiled is None else (spoiled, kind)


def _spoiled(parts: Sequence[str], rng: random.Random, kind: str, written: Sequence[str]) -> str | None:
    """A wrong form of a step that works something out; None where it has none of that kind."""
    a, sign, b, result = parts
    match kind:
        case "result":
            wrong = _other_number(result, rng, kind)
            return None if wrong is None else f"{a}{sign}{b}={wrong};"
        case "operation":
            return _worked(a, rng.choice([each for each in "+-*" if each != sign]), b)
        case "stale":
            earlier = [_result(each) for each in written[:-1] if _result(each) != a]
            return _worked(rng.choice(earlier), sign, b) if earlier else None
        case "number" | "swap" | "extra zero":
            wrong = _other_number(b, rng, kind)
            return None if wrong is None else _worked(a, sign, wrong)
        case _:
            return None


def _worked(a: str, sign: str, b: str) -> str | None:
    """A step with its result; None where that is no whole number from 0 to 999."""
    x, y = int(a), int(b)
    if sign == "/" and (y == 0 or x % y):
        return None
    value = OPERATIONS[sign](x, y)
    return f"{a}{sign}{b}={value};" if 0 <= value <= LARGEST else None


def _other_number(number: str, rng: random.Random, kind: str) -> str | None:
    if kind == "swap":
        swapped = number[::-1]
        return swapped if swapped != number and swapped[0] != "0" else None
    if kind == "extra zero":
        return f"{number}0" if len(number) < 3 and number != "0" else None
    value = int(number)
    near = [value + d for d in (-10, -2, -1, 1, 2, 10) if 0 <= value + d <= LARGEST]
    return str(rng.choice(near))


def _result(step: str) -> str:
    return step[:-1].rpartition("=")[2]


def _first_difference(wrong: str, right: str) -> int:
    for place, (a, b) in enumerate(zip(wrong, right, strict=False), start=1):
        if a != b:
            return place
    return min(len(wrong), len(right)) + 1
