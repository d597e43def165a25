"""The figures of `braid bench typing`, for people: Markdown, to be read on a terminal or pasted into a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from braid.bench.typing.figures import TARGETS

__all__ = ["typing_markdown"]

_HEADS = (
    "way", "answers", "TTFT ms", "p90", "TTFAT ms", "p90", "forwards", "prefill", "decode", "wasted", "revised",
    "accepted", "fall-backs", "drift", "as none",
)  # fmt: skip


def _rows(figures: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, way in figures["ways"].items():
        ttft, ttfat = way["ttft_ms"], way["ttfat_ms"]
        rows.append(
            [
                name,
                str(way["turns"]),
                *(_number(each) for each in (ttft["median"], ttft["p90"], ttfat["median"], ttfat["p90"])),
                _number(way["forwards"], 1),
                *(_number(way[f"{what}_tokens"]) for what in ("prefill", "decode")),
                _percent(way["waste"]),
                _percent(way["revised"]),
                _number(way["accepted_tokens"], 1),
                str(way["fallbacks"]),
                _number(way["drift"], 3),
                f"{way['same_answers']}/{way['turns']}",
            ]
        )
    return rows


def _targets(figures: Mapping[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name, value in figures["ratios"].items():
        target = TARGETS[name]
        sign = "≤" if target.is_most else "≥"
        met = "yes" if figures["targets"][name]["is_met"] else "no"
        rows.append([target.meaning, f"{value:.3f}", f"{sign} {target.bound:g}", met])
    return rows


def _title(figures: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in figures["kinds"].items())
    rest = "" if figures["is_complete"] else "; interrupted"
    if failures := figures["failures"]:
        rest += f"; {len(failures)} more failed: {next(iter(failures.values()))}"
    return (
        f"{figures['model']}, {figures['topology']}: {figures['traces']} traces ({kinds}), answers of at most "
        f"{figures['answer_tokens']} tokens, {clock_of(figures['clock'])}{rest}"
    )


def clock_of(clock: str) -> str:
    """What the clock was, in words."""
    if clock == "simulated":
        return "simulated clock: forwards take what they really take, idle time is skipped"
    return f"real time, {clock}"


def _differing(figures: Mapping[str, Any]) -> list[str]:
    told: list[str] = []
    for name, way in figures["ways"].items():
        if way["differing"]:
            shown = ", ".join(way["differing"][:5])
            more = len(way["differing"]) - 5
            told.append(f"{name} differs from none in {shown}{f' and {more} more' if more > 0 else ''}")
    return told


def typing_markdown(figures: Mapping[str, Any]) -> str:
    """What `braid bench typing` found.

    Args:
        figures: Of `figures_of`.
    """
    lines = [_title(figures), "", *_markdown(_HEADS, _rows(figures)), ""]
    lines += _markdown(("", "found", "wanted", "met"), _targets(figures))
    notes = [*_differing(figures), *_told_of_middle(figures), _where(figures["machine"])]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes)])


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns stand below each other in the source, too."""
    widths = [max(3, *(len(row[place]) for row in (heads, *rows))) for place in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths)]
    return [line(heads), line(rule), *map(line, rows)]


def _told_of_middle(figures: Mapping[str, Any]) -> list[str]:
    middle = figures["middle"]
    if middle is None:
        return []
    facts, wording = middle["changed_facts"], middle["rewordings"]
    return [
        (
            f"Edits in the middle, {middle['way']} over exact: {middle['turns']} of a text of "
            f"{_number(middle['input_tokens'])} tokens; {middle['accepted']} taken over, "
            f"{middle['fallbacks']} fall-backs; drift estimated {_number(middle['drift_estimated'], 3)}, "
            f"real {_number(middle['drift_real'], 3)}, bound {middle['bound']:g}; the same answer in "
            f"{middle['same_answers']}, graded alike in {middle['same_grade']}."
        ),
        (
            f"Changed facts: {facts['turns']}; answered by the new fact {facts['exact_right']} exactly, of them "
            f"{facts['repair_right']} repaired; by the old one {facts['repair_stale']} repaired. Rewordings: "
            f"{wording['turns']}; right {wording['exact_right']} exactly, of them {wording['repair_right']} repaired."
        ),
    ]


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _where(machine: Mapping[str, Any]) -> str:
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load']}, "
        f"torch {machine['torch']}, transformers {machine['transformers']}"
    )
