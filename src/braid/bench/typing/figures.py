"""What turns that were replayed in several ways come to: figures of each way, and what they are beside each other.

Tokens are counted where they are computed. *Waste* is what a way computed beyond `none`, which computes each token of
the committed turn once. *Revised* is the share of the tokens said in drafts that the draft did not hold any more when
the input was committed; a token that two drafts said counts twice.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from braid.bench.traces.file import Trace
from braid.bench.typing.turns import Turn, TypingRun, parts_of, whole_text
from braid.bench.typing.ways import EXACT_WAYS

__all__ = ["TARGETS", "Target", "figures_of", "is_right"]

SETTLED_S = 1.0
"""A turn whose last second before the commit changed nothing."""


class Target(NamedTuple):
    """What a figure should come to.

    Args:
        meaning: In words.
        bound: What it is compared with.
        is_most: Whether that is the most that it may be; else the least.
    """

    meaning: str
    bound: float
    is_most: bool = True

    def is_met(self, value: float) -> bool:
        """Whether a value comes to it."""
        return value <= self.bound if self.is_most else value >= self.bound


TARGETS: Mapping[str, Target] = {
    "ttft_over_none": Target("time from the commit to the first token, ahead over none (medians)", 0.25),
    "ttfat_over_none": Target("time from the commit to the first answer token, ahead over none (medians)", 0.5),
    "forwards_when_settled": Target(
        "forwards from the commit to the first answer token, where the last second changed nothing (median)", 1.2
    ),
    "same_answers": Target("answers of the exact ways that are those of none", 1.0, is_most=False),
    "decode_over_each_partial": Target(
        "output tokens computed for an answer, ahead over a call for each partial (extrapolated from fresh)", 0.5
    ),
    "decode_over_fresh": Target("output tokens computed for an answer, ahead over fresh", 0.5),
    "middle_repair_over_exact": Target(
        "input tokens computed after an edit in the middle, repair over exact (median)", 0.15
    ),
    "middle_inside_bound": Target("accepted repairs that are really inside their bound", 0.95, is_most=False),
    "middle_same_grade": Target(
        "edits in the middle after which repair is right where exact is, and wrong where exact is", 0.95,
        is_most=False,
    ),
    "middle_new_facts": Target(
        "changed facts that repair answers by the new fact, of those that exact does", 1.0, is_most=False
    ),
    "paying_with_over_without": Target(
        "ms of a paying session's row, with another one drafting over without", 1.05
    ),
}  # fmt: skip
"""Ratio → what it means, and what it should come to."""


def figures_of(run: TypingRun, paying: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All figures, as JSON has them.

    Args:
        run: What was measured.
        paying: What `bench_paying` found, where it was asked for.
    """
    ways = {way: _way_figures(run, way) for way in run.ways}
    middle = _middle(run)
    ratios = _ratios(run, ways, middle)
    if paying is not None:
        ratios["paying_with_over_without"] = paying["with_over_without"]
    return {
        "model": run.model,
        "topology": run.topology,
        "clock": run.clock,
        "answer_tokens": run.answer_tokens,
        "traces": len(run.traces),
        "kinds": dict(Counter(trace.kind for trace in run.traces)),
        "is_complete": run.is_complete,
        "failures": dict(run.failures),
        "ways": ways,
        "middle": middle,
        "paying": None if paying is None else dict(paying),
        "ratios": {name: ratios[name] for name in TARGETS if ratios.get(name) is not None},
        "targets": {
            name: {"bound": target.bound, "is_met": target.is_met(value)}
            for name, target in TARGETS.items()
            if (value := ratios.get(name)) is not None
        },
        "machine": dict(run.machine),
    }


# ---- each way


def _way_figures(run: TypingRun, way: str) -> dict[str, Any]:
    pairs = list(_pairs(run, way, "none"))
    turns = [turn for _, turn, _ in pairs]
    wasted = [turn.computed - reference.computed for _, turn, reference in pairs]
    reuses = [turn.reuse for turn in turns if turn.reuse is not None]
    drafted = sum(reuse.drafted for reuse in reuses)
    differing = [name for name, turn, reference in pairs if _differs(turn, reference)]
    return {
        "turns": len(turns),
        "ttft_ms": _spread([turn.ttft_s for turn in turns]),
        "ttfat_ms": _spread([turn.ttfat_s for turn in turns]),
        "done_ms": _spread([turn.done_s for turn in turns]),
        "forwards": _median(turn.forwards for turn in turns),
        "prefill_tokens": _mean(turn.prefill for turn in turns),
        "decode_tokens": _mean(turn.decode for turn in turns),
        "wasted_tokens": _mean(wasted),
        "waste": _share(sum(wasted), sum(turn.computed for turn in turns)),
        "drafted_tokens": _mean(reuse.drafted for reuse in reuses),
        "revised": _share(drafted - sum(reuse.kept for reuse in reuses), drafted),
        "accepted_tokens": _mean(reuse.accepted for reuse in reuses),
        "fallbacks": sum(reuse.fallbacks for reuse in reuses),
        "drift": max((reuse.drift for reuse in reuses if reuse.drift is not None), default=None),
        "same_answers": len(turns) - len(differing),
        "differing": differing,
    }


def _differs(turn: Turn, reference: Turn) -> bool:
    """Whether two answers differ: in tokens, or in text where another program has answered."""
    if turn.tokens:
        return turn.tokens != reference.tokens
    return turn.answer.strip() != reference.answer.strip()


def _pairs(run: TypingRun, way: str, other: str) -> Iterator[tuple[str, Turn, Turn]]:
    """Name of a turn, what became of it in one way, and in another; turns that only one of them had are left out."""
    for trace, turns, others in zip(
        run.traces, run.turns.get(way, ()), run.turns.get(other, ()), strict=True
    ):
        if turns is None or others is None:
            continue
        for number, (turn, reference) in enumerate(zip(turns, others, strict=True)):
            yield f"{trace.id}, turn {number}" if number else trace.id, turn, reference


# ---- ways beside each other


def _ratios(
    run: TypingRun, ways: Mapping[str, Mapping[str, Any]], middle: Mapping[str, Any] | None
) -> dict[str, float | None]:
    ratios: dict[str, float | None] = {}
    if "ahead" in ways:
        ahead, none = ways["ahead"], ways["none"]
        for name in ("ttft", "ttfat"):
            ratios[f"{name}_over_none"] = _share(ahead[f"{name}_ms"]["median"], none[f"{name}_ms"]["median"])
        settled = [turn for _, turn, _ in _pairs(run, "ahead", "none") if turn.pause_s >= SETTLED_S]
        ratios["forwards_when_settled"] = _median(turn.forwards for turn in settled)
        if "fresh" in ways:
            ratios["decode_over_fresh"] = _share(ahead["decode_tokens"], ways["fresh"]["decode_tokens"])
            ratios["decode_over_each_partial"] = _share(ahead["decode_tokens"], _each_partial(run))
    exact = [ways[way] for way in EXACT_WAYS if way in ways]
    ratios["same_answers"] = _share(
        sum(way["same_answers"] for way in exact), sum(way["turns"] for way in exact)
    )
    if middle is not None:
        ratios["middle_repair_over_exact"] = middle["input_over_exact"]
        ratios["middle_inside_bound"] = _share(middle["inside_bound"], middle["accepted"])
        ratios["middle_same_grade"] = _share(middle["same_grade"], middle["turns"])
        changed = middle["changed_facts"]
        ratios["middle_new_facts"] = _share(changed["repair_right"], changed["exact_right"])
    return ratios


def _each_partial(run: TypingRun) -> float | None:
    """Output tokens of a call for each partial text, if a call takes as many as those that `fresh` made."""
    counts: list[float] = []
    for trace, turns in zip(run.traces, run.turns["fresh"], strict=True):
        for part, turn in zip(parts_of(trace), turns or (), strict=False):
            partials = len({text for _, text in part.events if text.strip()})
            calls = max(1, 1 if turn.reuse is None else turn.reuse.snapshots)
            counts.append(max(partials, calls) * turn.decode / calls)
    return _mean(counts)


def _middle(run: TypingRun) -> dict[str, Any] | None:
    """Edits in the middle of a long text, repaired and computed exactly; None where there are none."""
    way = next((name for name in ("repair", "reuse") if name in run.ways), None)
    if way is None or "ahead" not in run.ways:
        return None
    found: list[tuple[Trace, Turn, Turn]] = []
    for trace, turns, others in zip(run.traces, run.turns[way], run.turns["ahead"], strict=True):
        if trace.kind == "middle" and turns and others:
            found.append((trace, turns[0], others[0]))
    if not found:
        return None
    reuses = [turn.reuse for _, turn, _ in found if turn.reuse is not None]
    accepted = [turn for _, turn, _ in found if turn.reuse is not None and turn.reuse.drift is not None]
    drifts = [(turn.reuse.drift, turn.drift) for turn in accepted if turn.reuse is not None]
    return {
        "way": way,
        "turns": len(found),
        "input_tokens": _median(exact.reuse.read for _, _, exact in found if exact.reuse is not None),
        "input_over_exact": _median(
            turn.prefill_after_edit / max(1, exact.prefill_after_edit) for _, turn, exact in found
        ),
        "all_over_exact": _median(turn.computed / max(1, exact.computed) for _, turn, exact in found),
        "fallbacks": sum(reuse.fallbacks for reuse in reuses),
        "accepted": sum(turn.drift is not None for turn in accepted),
        "inside_bound": sum(turn.drift is not None and turn.drift <= run.drift_bound for turn in accepted),
        "bound": run.drift_bound,
        "drift_estimated": _median(estimate for estimate, real in drifts if real is not None),
        "drift_real": _median(real for _, real in drifts),
        "same_answers": sum(turn.tokens == exact.tokens for _, turn, exact in found),
        "same_grade": sum(is_right(trace, turn) == is_right(trace, exact) for trace, turn, exact in found),
        "changed_facts": _graded([each for each in found if each[0].meta.changed_fact]),
        "rewordings": _graded([each for each in found if not each[0].meta.changed_fact]),
    }


def _graded(found: Sequence[tuple[Trace, Turn, Turn]]) -> dict[str, int]:
    """How many answers are right, of both; `repair_right` counts those alone that exact gets right, too."""
    exact = [is_right(trace, turn) for trace, _, turn in found]
    repaired = [is_right(trace, turn) for trace, turn, _ in found]
    return {
        "turns": len(found),
        "exact_right": sum(exact),
        "repair_right": sum(a and b for a, b in zip(exact, repaired, strict=True)),
        "repair_stale": sum(
            not is_right(trace, turn) and _says(turn.answer, trace.meta.stale_answers)
            for trace, turn, _ in found
        ),
    }


def is_right(trace: Trace, turn: Turn) -> bool:
    """Whether an answer to a trace's question has one of the right words; also where the question was steered since."""
    return turn.text == whole_text(trace.question) and _says(turn.answer, trace.meta.answers)


def _says(answer: str, words: Iterable[str]) -> bool:
    return any(word.casefold() in answer.casefold() for word in words)


# ---- numbers


def _spread(seconds: Iterable[float | None]) -> dict[str, float | None]:
    """Median and the value below which nine of ten lie, in milliseconds."""
    values = sorted(1e3 * value for value in seconds if value is not None)
    if not values:
        return {"median": None, "p90": None}
    place = min(len(values) - 1, -(-9 * len(values) // 10) - 1)
    return {"median": round(statistics.median(values), 2), "p90": round(values[place], 2)}


def _rounded(values: Iterable[float | None], how: Callable[[Sequence[float]], float]) -> float | None:
    known = [value for value in values if value is not None]
    return round(how(known), 4) if known else None


def _median(values: Iterable[float | None]) -> float | None:
    return _rounded(values, statistics.median)


def _mean(values: Iterable[float | None]) -> float | None:
    return _rounded(values, statistics.fmean)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole, 4)
