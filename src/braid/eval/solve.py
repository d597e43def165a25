"""`braid eval solve`: word problems, answered while they arrive, beside the single-stream baseline on the same ones.

TNFT counts the rows that lie strictly between the last token of the question and the first of the answer. The labels of
the training data have a TNFT, too: it is the least with which the thought can be had that they teach, the bound. An
answer that begins before the question has been read counts as wrong, whatever it says.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from braid.data.layout import ARRIVALS, lay_out
from braid.data.tokens import DataTokenizer
from braid.eval.baseline import Baseline, Turned
from braid.eval.clock import Waited, wait_for
from braid.eval.play import Pace, Played, play
from braid.eval.problems import Problem
from braid.eval.statistics import Interval, mean_of, paired_difference, paired_shares, ratio_of, share_of
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = [
    "Answered",
    "OnProgress",
    "answer_in_streams",
    "answer_in_turns",
    "by_length",
    "compare",
    "figures_of",
    "grade",
    "label_bounds",
    "seconds_of",
    "sweep_waits",
]

OnProgress = Callable[[str, int, int], None]
"""Is told what is being done, how many of it are, and of how many."""

ANSWER = "output"

_LENGTHS = (0, 5, 15, 30, 50, 1000)
"""Tokens of the baseline's thought."""


@dataclass(frozen=True)
class Answered:
    """One problem and what became of it.

    Args:
        id: Of the problem.
        answer: What was said.
        is_right: Whether it is graded right, which an early answer never is.
        is_early: Whether it began before the question had been read.
        tnft: Rows between the question and the answer; None without an answer, or where it was early.
        rows_after: Rows from the last token of the question to the last one of the answer; None likewise.
        num_rows, num_tokens, msl, kv_tokens: In all.
    """

    id: str
    answer: str
    is_right: bool
    is_early: bool
    tnft: int | None
    rows_after: int | None
    num_rows: int
    num_tokens: int
    msl: int
    kv_tokens: int


def answer_in_streams(
    model: Model, topology: Topology, problems: Sequence[Problem], pace: Pace, on_progress: OnProgress
) -> list[Answered]:
    """Play problems to a model of streams."""
    told = _told(f"streams, {pace}", len(problems), on_progress)
    played = play(model, topology, (problem.score for problem in problems), pace, on_progress=told)
    return [grade(problem, said) for problem, (_, said) in zip(problems, played, strict=True)]


def answer_in_turns(
    baseline: Baseline, problems: Sequence[Problem], on_progress: OnProgress
) -> list[Answered]:
    """Ask the baseline the same."""
    told = _told("baseline", len(problems), on_progress)
    turned = baseline.play([problem.score for problem in problems], on_progress=told)
    return [_graded_turn(problem, said) for problem, (_, said) in zip(problems, turned, strict=True)]


def label_bounds(problems: Sequence[Problem], pace: Pace, tokenizer: DataTokenizer) -> dict[str, int]:
    """TNFT of the labels themselves by the problem's id, of problems that have some."""
    bounds: dict[str, int] = {}
    for problem in problems:
        if problem.has_labels:
            table = lay_out(problem.score, tokenizer, ARRIVALS[pace], random.Random(0))
            user, output = table.lane("user"), table.lane(ANSWER)
            assert user is not None, "stories have a user"
            assert output is not None, "and an answer"
            last = max(t for t, token in zip(user.rows, user.ids, strict=True) if token != tokenizer.end_id)
            bounds[problem.id] = max(0, output.rows[0] - last - 1)
    return bounds


def figures_of(answers: Sequence[Answered], bounds: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Figures of many answers, as JSON.

    Args:
        answers: Of one model, at one pace.
        bounds: TNFT of the labels by the problem's id; the problems whose own TNFT is known make the figure.
    """
    waits = [each.tnft for each in answers if each.tnft is not None]
    after = [each.rows_after for each in answers if each.rows_after is not None]
    figures: dict[str, Any] = {
        "accuracy": share_of([each.is_right for each in answers]).to_json(),
        "early": sum(each.is_early for each in answers),
        "unanswered": sum(each.tnft is None and not each.is_early for each in answers),
        "tnft": {**mean_of(waits).to_json(), "median": _median(waits)},
        "rows_after_question": {**mean_of(after).to_json(), "median": _median(after)},
        "rows": _mean([each.num_rows for each in answers]),
        "tokens": _mean([each.num_tokens for each in answers]),
        "tokens_per_row": _ratio(
            sum(each.num_tokens for each in answers), sum(each.num_rows for each in answers)
        ),
        "msl": _mean([each.msl for each in answers]),
        "kv_tokens": _mean([each.kv_tokens for each in answers]),
    }
    if bounds:
        known = [bounds[each.id] for each in answers if each.tnft is not None and each.id in bounds]
        figures["tnft"]["label_bound"] = _mean(known)
        figures["tnft"]["label_bound_median"] = _median(known)
    return figures


def compare(ours: Sequence[Answered], theirs: Sequence[Answered]) -> dict[str, Any]:
    """What streams changed, problem by problem.

    Args:
        ours, theirs: Of the same problems in the same order.
    """
    pairs = [
        (a.rows_after, b.rows_after)
        for a, b in zip(ours, theirs, strict=True)
        if a.rows_after is not None and b.rows_after is not None
    ]
    return {
        "accuracy": paired_shares([a.is_right for a in ours], [b.is_right for b in theirs]).to_json(),
        "rows_after_question_cut": _cut(pairs).to_json(),
        "msl_ratio": ratio_of([a.msl for a in ours], [b.msl for b in theirs]).to_json(),
        "rows_ratio": ratio_of([a.num_rows for a in ours], [b.num_rows for b in theirs]).to_json(),
        "kv_ratio": ratio_of([a.kv_tokens for a in ours], [b.kv_tokens for b in theirs]).to_json(),
    }


def by_length(ours: Sequence[Answered], theirs: Sequence[Answered]) -> list[dict[str, Any]]:
    """Rows after the question by how long the baseline thinks, where streams should pay the more the longer that is.

    Args:
        ours, theirs: Of the same problems in the same order.
    """
    pairs = [
        (b.tnft, a.rows_after, b.rows_after)
        for a, b in zip(ours, theirs, strict=True)
        if a.rows_after is not None and b.rows_after is not None and b.tnft is not None
    ]
    found: list[dict[str, Any]] = []
    for low, high in itertools.pairwise(_LENGTHS):
        chosen = [(a, b) for length, a, b in pairs if low <= length < high]
        if chosen:
            streams, turns = _mean([a for a, _ in chosen]), _mean([b for _, b in chosen])
            found.append({"from": low, "to": high, "n": len(chosen), "streams": streams, "baseline": turns})
    return found


def sweep_waits(
    model: Model,
    topology: Topology,
    problems: Sequence[Problem],
    waits: Sequence[int],
    on_progress: OnProgress,
) -> dict[str, Any]:
    """Accuracy by how many tokens of the question the outputs wait for, paced.

    The spread is the best wait's accuracy less the worst one's, on the same problems; that the two were chosen for it
    is not in its interval.
    """
    found: dict[str, Any] = {}
    right: list[list[bool]] = []
    for wait in waits:
        speaking = {name: spec for name, spec in topology.streams.items() if name in ("thought", ANSWER)}
        answers = answer_in_streams(
            model,
            topology.with_specs(
                {name: spec.model_copy(update={"wait_k": wait}) for name, spec in speaking.items()}
            ),
            problems,
            "paced",
            lambda what, done, of, k=wait: on_progress(f"wait-{k}", done, of),
        )
        right.append([each.is_right for each in answers])
        found[str(wait)] = {
            "accuracy": share_of(right[-1]).to_json(),
            "tnft": _mean([each.tnft for each in answers if each.tnft is not None]),
        }
    apart = paired_shares(max(right, key=sum), min(right, key=sum))
    spread = Interval(apart.value, max(0.0, apart.low), apart.high, apart.n)
    return {"by_wait": found, "spread": spread.to_json()}


def seconds_of(
    model: Model,
    topology: Topology,
    turns: tuple[Model, Topology, tuple[int, ...]] | None,
    problems: Sequence[Problem],
    typed_per_second: float,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """How long somebody waits who types, and somebody who pastes, one session alone; both models on the same engine.

    Args:
        model, topology: Of streams.
        turns: The baseline, the topology it is run with, and the tokens that end its thought.
        problems: They take turns, so that a busy moment of the machine hits both.
        typed_per_second: Tokens a second of who types.
        on_progress: Is told how far it is.
    """
    found: dict[str, Any] = {}
    for pace, per_second in (("typed", typed_per_second), ("paste", None)):
        told = _told(f"seconds, {pace}", len(problems), on_progress)
        ours: list[Waited] = []
        theirs: list[Waited] = []
        sides = [((model, topology, ()), ours), *([] if turns is None else [(turns, theirs)])]

        def time_it(
            who: tuple[Model, Topology, tuple[int, ...]], problem: Problem, pace: float | None
        ) -> Waited:
            runs, streams, closing = who
            return wait_for(runs, streams, problem.score, output=ANSWER, per_second=pace, thought_end=closing)

        for who, _ in sides:
            time_it(who, problems[0], per_second)  # the first run of a shape is slower
        for number, problem in enumerate(problems, start=1):
            for who, into in sides if number % 2 else sides[::-1]:
                into.append(time_it(who, problem, per_second))
            told(number)
        found[pace] = {"tokens_per_second": per_second, "streams": _seconds(ours)}
        if turns is not None:
            pairs = [
                (a.whole, b.whole)
                for a, b in zip(ours, theirs, strict=True)
                if a.whole is not None and b.whole is not None
            ]
            found[pace]["baseline"] = _seconds(theirs)
            found[pace]["whole_answer_cut"] = _cut(pairs).to_json()
            found[pace]["whole_answer_difference_s"] = (
                paired_difference(*zip(*pairs, strict=True)).to_json() if pairs else None
            )
    return found


def _seconds(waited: Sequence[Waited]) -> dict[str, Any]:
    first = [each.first for each in waited if each.first is not None]
    return {
        "ttfat_s": {**mean_of(first).to_json(), "median": _median(first)},
        "whole_answer_s": {**mean_of(_whole(waited)).to_json(), "median": _median(_whole(waited))},
        "ms_per_row": round(
            1000 * sum(each.compute for each in waited) / max(1, sum(each.rows for each in waited)), 3
        ),
    }


def _whole(waited: Sequence[Waited]) -> list[float]:
    return [each.whole for each in waited if each.whole is not None]


def grade(problem: Problem, played: Played) -> Answered:
    """What became of a problem that was played to a model of streams."""
    words = played.words(ANSWER)
    text = played.streams[ANSWER].text
    is_early = bool(words) and words[0][0] <= played.last_input
    return Answered(
        problem.id,
        text,
        problem.is_right(text) and not is_early and played.is_over,
        is_early,
        words[0][0] - played.last_input - 1 if words and not is_early else None,
        words[-1][0] - played.last_input if words and not is_early else None,
        played.num_rows,
        played.num_tokens,
        played.msl,
        played.kv_tokens,
    )


def _graded_turn(problem: Problem, said: Turned) -> Answered:
    # It is given the answer stream alone, as a reader of it would be: the thought's marks and its text are not graded.
    waits = said.num_answer > 0
    return Answered(
        problem.id,
        said.answer,
        problem.is_right(said.answer) and said.is_over,
        False,
        said.num_thought if waits else None,
        said.num_thought + said.num_answer if waits else None,
        said.num_tokens,
        said.num_tokens,
        said.num_tokens,
        said.num_tokens,
    )


def _told(what: str, total: int, on_progress: OnProgress) -> Callable[[int], None]:
    return lambda done: on_progress(what, done, total)


def _cut(pairs: Sequence[tuple[float, float]]) -> Interval:
    """Share of the baseline's that is saved, of pairs of ours and its own."""
    return ratio_of([a for a, _ in pairs], [b for _, b in pairs]).complement


def _mean(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 3) if values else math.nan


def _median(values: Sequence[float]) -> float:
    return round(float(np.median(values)), 4) if values else math.nan


def _ratio(a: float, b: float) -> float | None:
    return round(a / b, 4) if b else None
