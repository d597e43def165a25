"""`braid eval audit`: faults flagged while a solution is written, beside a baseline that audits when it is finished.

A fault can be known with the first token that differs from what is right. A flag that begins in the row of that token,
or before, cannot know it and is a false alarm; one that comes while the fault is the latest that is known is its flag,
with a delay of so many rows. A second flag for the same fault is a false alarm, too, and so is whatever else ends in a
`;` and is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from braid.data.score import Score
from braid.data.sources import Wish
from braid.eval.baseline import Baseline
from braid.eval.clock import time_alone
from braid.eval.play import Pace, Played, pieces_of, play
from braid.eval.problems import scores_of
from braid.eval.solve import OnProgress
from braid.eval.statistics import mean_of, ratio_of, share_of
from braid.model.model import Model
from braid.streams.topology import Topology

__all__ = [
    "SPLITS",
    "Audited",
    "Fault",
    "audit_figures",
    "audit_in_streams",
    "audit_in_turns",
    "audit_scores",
    "efficiency",
    "flag_seconds",
    "grade_audit",
]

SPLITS: Mapping[str, str] = {
    "numbers": "unseen numbers",
    "structure": "unseen operation structures",
    "wording": "unseen wording",
    "faults": "unseen kinds of fault",
}

_FLAG = "wrong"
_VERDICTS = ("ok", "not ok")

_OWED = 8
"""Rows in which a flag may still be for a fault before the latest: an auditor says one flag after another."""


@dataclass(frozen=True)
class Fault:
    """A planted fault and what became of it.

    Args:
        kind: Of the fault.
        delay: Rows from the token that gives it away to its flag; None where it was missed, or there are no rows.
        is_flagged: Whether it was.
        is_named: Whether the flag names its kind.
    """

    kind: str
    delay: int | None
    is_flagged: bool
    is_named: bool


@dataclass(frozen=True)
class Audited:
    """One solution, audited.

    Args:
        id: Of the example.
        faults: Planted ones.
        false_alarms: Flags that belong to none.
        num_steps: Steps of the solution, each of which might have been flagged.
        verdict: Whether the last word (`ok` or `not ok`) is right.
        num_rows, msl: To the audit's last token.
    """

    id: str
    faults: tuple[Fault, ...]
    false_alarms: int
    num_steps: int
    verdict: bool
    num_rows: int
    msl: int


@dataclass
class _Open:
    kind: str
    known: int
    flag: tuple[int, str] | None = None


def audit_scores(split: str, count: int, seed: int) -> list[Score]:
    """Solutions with planted faults."""
    return scores_of("audit", count, Wish(seed, split))


def audit_in_streams(
    model: Model, topology: Topology, scores: Sequence[Score], pace: Pace, on_progress: OnProgress
) -> list[Audited]:
    """Let a model of streams audit solutions while they are written."""
    played = play(
        model,
        topology,
        scores,
        pace,
        on_progress=lambda done: on_progress(f"audit, {pace}", done, len(scores)),
    )
    return [grade_audit(model, score, said) for score, said in played]


def audit_in_turns(baseline: Baseline, scores: Sequence[Score], on_progress: OnProgress) -> list[Audited]:
    """Let the baseline audit them when they are finished.

    It has no rows to know anything in, so there are no delays, and its false alarms are at least what is said: a flag
    is taken for a fault of its kind, or else for the next one.
    """
    found: list[Audited] = []
    told = baseline.play(scores, on_progress=lambda done: on_progress("audit, baseline", done, len(scores)))
    for score, said in told:
        *whole, rest = (each.strip() for each in said.answer.split(";"))
        whole += [rest] if rest.startswith(_FLAG) else []  # it was cut off
        flags = [each for each in whole if each not in _VERDICTS]
        faults, alarms = _matched([each["kind"] for each in score.meta["faults"]], flags)
        found.append(
            Audited(
                score.id,
                faults,
                alarms,
                int(score.meta["num_steps"]),
                _verdict(said.answer) == _right_verdict(score),
                said.num_tokens,
                said.num_tokens,
            )
        )
    return found


def _matched(kinds: Sequence[str], flags: Sequence[str]) -> tuple[tuple[Fault, ...], int]:
    """Faults and their flags, by the kind that is named and then by order; and how many flags are nobody's."""
    left = [flag for flag in flags if flag.startswith(_FLAG)]
    taken: dict[int, str] = {}
    for by_name in (True, False):
        for place, kind in enumerate(kinds):
            flag = next((each for each in left if kind in each or not by_name), None)
            if place not in taken and flag is not None:
                taken[place] = flag
                left.remove(flag)
    faults = tuple(
        Fault(kind, None, place in taken, kind in taken.get(place, "")) for place, kind in enumerate(kinds)
    )
    return faults, len(flags) - len(taken)


def audit_figures(audited: Sequence[Audited]) -> dict[str, Any]:
    """Figures of many audits, as JSON."""
    faults = [fault for each in audited for fault in each.faults]
    delays = [fault.delay for fault in faults if fault.delay is not None]
    kinds = sorted({fault.kind for fault in faults})
    alarms = sum(each.false_alarms for each in audited)
    flags = alarms + sum(fault.is_flagged for fault in faults)
    sound = [each for each in audited if not each.faults]
    sound_steps = sum(each.num_steps - len(each.faults) for each in audited)
    return {
        "flagged": share_of([fault.is_flagged for fault in faults]).to_json(),
        "named": share_of([fault.is_named for fault in faults if fault.is_flagged]).to_json(),
        "by_kind": {
            kind: share_of([fault.is_flagged for fault in faults if fault.kind == kind]).to_json()
            for kind in kinds
        },
        "false_alarms": {
            "of_flags": share_of([True] * alarms + [False] * (flags - alarms)).to_json(),
            # one that says more false alarms than there are sound steps has not left one of them alone
            "of_sound_steps": share_of([place < alarms for place in range(sound_steps)]).to_json(),
            "of_sound_solutions": share_of([each.false_alarms > 0 for each in sound]).to_json(),
        },
        "delay_rows": {
            **mean_of(delays).to_json(),
            "median": float(np.median(delays)) if delays else math.nan,
        },
        "verdict": share_of([each.verdict for each in audited]).to_json(),
        "rows": round(float(np.mean([each.num_rows for each in audited])), 2) if audited else None,
        "msl": round(float(np.mean([each.msl for each in audited])), 2) if audited else None,
    }


def efficiency(ours: Sequence[Audited], theirs: Sequence[Audited]) -> dict[str, Any]:
    """Length and rows beside the baseline's: the sums over the same examples, in the same order."""
    return {
        "msl_ratio": ratio_of([a.msl for a in ours], [b.msl for b in theirs]).to_json(),
        "rows_ratio": ratio_of([a.num_rows for a in ours], [b.num_rows for b in theirs]).to_json(),
    }


def flag_seconds(
    model: Model, topology: Topology, scores: Sequence[Score], per_second: float, on_progress: OnProgress
) -> dict[str, Any]:
    """How long somebody who types a solution waits for the flag of a fault, one session alone.

    The question is typed first. Each delay runs from the moment at which the token comes that gives the fault away to
    the one at which the first token of its flag is known.

    Args:
        model, topology: Of streams.
        scores: Solutions, at least one.
        per_second: Tokens a second.
        on_progress: Is told how far it is.
    """
    time_alone(model, topology, scores[0], per_second)  # the first run of a shape is slower
    delays: list[float] = []
    flagged: list[bool] = []
    compute, rows = 0.0, 0
    for number, score in enumerate(scores, start=1):
        timed = time_alone(model, topology, score, per_second)
        compute, rows = compute + timed.compute, rows + len(timed.done)
        faults = grade_audit(model, score, timed.played, "typed").faults
        known = _known_rows(model, score, timed.played, "typed")
        for fault, row, came in zip(faults, known, _typed_before(score), strict=True):
            flagged.append(fault.is_flagged)
            if fault.delay is not None:
                delays.append(timed.known_at(row + fault.delay) - came / per_second)
        on_progress("seconds, typed", number, len(scores))
    return {
        "tokens_per_second": per_second,
        "flagged": share_of(flagged).to_json(),
        "delay_s": {
            **mean_of(delays).to_json(),
            "median": round(float(np.median(delays)), 4) if delays else math.nan,
        },
        "ms_per_row": round(1000 * compute / max(1, rows), 3),
    }


def grade_audit(model: Model, score: Score, played: Played, pace: Pace = "paced") -> Audited:
    """What became of the faults of a solution that was played to a model of streams."""
    known = _known_rows(model, score, played, pace)
    flags, verdict = _flags_of(model, played)
    faults = [_Open(meta["kind"], row) for meta, row in zip(score.meta["faults"], known, strict=True)]
    alarms = 0
    for row, text in flags:
        latest = max((fault.known for fault in faults if fault.known < row), default=-1)
        owed = [
            fault
            for fault in faults
            if fault.flag is None
            and text.startswith(_FLAG)
            and fault.known < row
            and (fault.known == latest or row - fault.known <= _OWED)
        ]
        named = [fault for fault in owed if fault.kind in text]
        if owed:
            (named or owed)[0].flag = (row, text)
        else:
            alarms += 1
    last = max((t for t, _ in played.words("audit")), default=played.num_rows - 1)
    return Audited(
        score.id,
        tuple(
            Fault(f.kind, f.flag[0] - f.known, True, f.kind in f.flag[1])
            if f.flag
            else Fault(f.kind, None, False, False)
            for f in faults
        ),
        alarms,
        int(score.meta["num_steps"]),
        verdict == _right_verdict(score),
        last + 1,
        played.msl,
    )


def _known_rows(model: Model, score: Score, played: Played, pace: Pace) -> list[int]:
    """Row of the token that gives each planted fault away: the last one of the segment that ends with it."""
    rows = [t for t, _ in played.words("solution")]
    ends: dict[int, int] = {}
    count = 0
    for text, segment in pieces_of(score.part("solution"), pace):
        count += len(model.codec.encode(text)[0])
        ends[segment] = count
    return [rows[min(ends[segment], len(rows)) - 1] for segment in _faulty_segments(score)]


def _typed_before(score: Score) -> list[int]:
    """How many tokens somebody has typed before the one that gives each planted fault away."""
    question, solution = (pieces_of(score.part(name), "typed") for name in ("user", "solution"))
    last = {segment: place for place, (_, segment) in enumerate(solution)}
    return [len(question) + last[segment] for segment in _faulty_segments(score)]


def _faulty_segments(score: Score) -> list[int]:
    """The segment of the solution that ends with the token that gives each planted fault away."""
    return [
        segment.after["solution"] - 1 for segment in score.part("audit").segments if _FLAG in segment.text
    ]


def _flags_of(model: Model, played: Played) -> tuple[list[tuple[int, str]], str]:
    """Row and text of each flag, garbled ones among them, and the verdict after them."""
    flags: list[tuple[int, str]] = []
    start: int | None = None
    text = ""
    for row, token in played.words("audit"):
        piece = model.codec.decode([token])
        start = row if start is None else start
        text += piece
        if text.endswith(";"):
            flags.append((start, text.strip(" ;")))
            start, text = None, ""
    rest = text.strip()
    if start is not None and rest.startswith(_FLAG):  # it was cut off
        flags.append((start, rest))
    return [flag for flag in flags if flag[1] not in _VERDICTS], rest


def _verdict(answer: str) -> str:
    return answer.rpartition(";")[2].strip()


def _right_verdict(score: Score) -> str:
    return "not ok" if score.meta["faults"] else "ok"
