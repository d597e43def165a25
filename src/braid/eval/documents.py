"""What an evaluation found, in words, tables and plots; also where streams did not pay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from braid.eval.report import Bars, Block, Curve, Heading, Table, Text

__all__ = ["audit_document", "solve_document"]

_PAYS = 0.05
"""Cut of rows or seconds below which streams are said not to pay."""

Json = Mapping[str, Any]


def solve_document(found: Json) -> list[Block]:
    """The report of `braid eval solve`."""
    splits: Json = found["splits"]
    blocks: list[Block] = [
        Heading(f"Solving while reading: {found['model']}", 1),
        Text(_about(found)),
        Heading("Accuracy"),
        Bars(
            "Share of right answers, with 95 % intervals.",
            {n: _accuracies(s) for n, s in splits.items()},
            1.0,
        ),
        Table(
            [
                "problems",
                "n",
                "streams, paced",
                "streams, typed",
                "streams, paste",
                "baseline",
                "paired difference (paced)",
            ],
            [_accuracy_row(name, split) for name, split in splits.items()],
        ),
        Text("An answer that begins before its question has been read counts as wrong."),
        *_gap_text(found),
        Heading("Waiting for the answer"),
        Table(
            [
                "problems",
                "pace",
                "TNFT mean",
                "TNFT median",
                "label bound",
                "rows to the whole answer",
                "baseline",
                "cut",
            ],
            [row for name, split in splits.items() for row in _waiting_rows(name, split)],
        ),
        Heading("Size"),
        Table(
            ["problems", "pace", "rows", "tokens a row", "MSL", "KV tokens", "MSL, baseline", "ratio"],
            [row for name, split in splits.items() for row in _size_rows(name, split)],
        ),
    ]
    blocks += _wait_blocks(found)
    blocks += _second_blocks(found)
    return [*blocks, Heading("Where streams do not pay"), *_losses(found)]


def audit_document(found: Json) -> list[Block]:
    """The report of `braid eval audit`."""
    splits: Json = found["splits"]
    return [
        Heading(f"Auditing while it is written: {found['model']}", 1),
        Text(_about(found)),
        Bars(
            "Share of planted faults that were flagged, with 95 % intervals.",
            {
                name: {
                    who: _interval(split[who]["flagged"])
                    for who in ("streams", "baseline")
                    if who in split and split[who]["flagged"]["value"] is not None
                }
                for name, split in splits.items()
            },
            1.0,
        ),
        Table(
            ["solutions", "who", "flagged", "kind named", "false alarms of flags", "of sound steps", "delay in rows",
             "verdict right"],
            [_audit_row(split["what"], who, split[who]) for split in splits.values() for who in ("streams", "baseline")
             if who in split],
        ),
        Table(
            ["solutions", "kind of fault", "flagged"],
            [
                [split["what"], kind, _share(value)]
                for split in splits.values()
                for kind, value in split["streams"]["by_kind"].items()
            ],
        ),
        Table(
            ["solutions", "rows", "MSL", "rows beside the baseline", "MSL beside the baseline"],
            [
                [
                    split["what"],
                    str(split["streams"]["rows"]),
                    str(split["streams"]["msl"]),
                    *(_ratio(split.get("difference", {}).get(name)) for name in ("rows_ratio", "msl_ratio")),
                ]
                for split in splits.values()
            ],
        ),
        *_flag_blocks(found),
    ]  # fmt: skip


def _gap_text(found: Json) -> list[Block]:
    gap = found.get("wording_gap")
    if not gap:
        return []
    ours, theirs = _points(gap["streams"]), _points(gap["baseline"])
    return [Text(f"Unseen wording costs streams {ours} points beside unseen numbers, the baseline {theirs}.")]


def _about(found: Json) -> str:
    beside = f", beside {found['baseline']}" if found["baseline"] else ""
    return f"{found['n']} examples, seed {found['seed']}, topology {found['topology']}{beside}; Braid {found['braid']}."


def _accuracies(split: Json) -> dict[str, tuple[float, float, float]]:
    bars = {f"streams, {pace}": _interval(figures["accuracy"]) for pace, figures in split["streams"].items()}
    if "baseline" in split:
        bars["baseline"] = _interval(split["baseline"]["accuracy"])
    return bars


def _accuracy_row(name: str, split: Json) -> list[str]:
    baseline = split.get("baseline", {}).get("accuracy")
    difference = split.get("difference", {}).get("paced", {}).get("accuracy")
    return [
        split["what"] if split["what"] != name else name,
        str(split["streams"]["paced"]["accuracy"]["n"]),
        *(_share(split["streams"][pace]["accuracy"]) for pace in ("paced", "typed", "paste")),
        _share(baseline) if baseline else "",
        _points(difference) if difference else "",
    ]


def _waiting_rows(name: str, split: Json) -> list[list[str]]:
    rows: list[list[str]] = []
    for pace, figures in split["streams"].items():
        tnft, after = figures["tnft"], figures["rows_after_question"]
        cut = split.get("difference", {}).get(pace, {}).get("rows_after_question_cut")
        rows.append(
            [
                name,
                pace,
                _figure(tnft["value"]),
                _figure(tnft["median"]),
                _figure(tnft.get("label_bound")),
                _figure(after["value"]),
                _figure(split["baseline"]["rows_after_question"]["value"]) if "baseline" in split else "",
                _share(cut),
            ]
        )
    return rows


def _size_rows(name: str, split: Json) -> list[list[str]]:
    return [
        [
            name,
            pace,
            f"{figures['rows']:.1f}",
            str(figures["tokens_per_row"]),
            f"{figures['msl']:.1f}",
            f"{figures['kv_tokens']:.1f}",
            f"{split['baseline']['msl']:.1f}" if "baseline" in split else "",
            _ratio(split.get("difference", {}).get(pace, {}).get("msl_ratio")),
        ]
        for pace, figures in split["streams"].items()
    ]


def _wait_blocks(found: Json) -> list[Block]:
    sweep = found.get("wait_k")
    if not sweep:
        return []
    points = [(float(wait), *_interval(figures["accuracy"])) for wait, figures in sweep["by_wait"].items()]
    return [
        Heading("Waiting for so many tokens first"),
        Curve("Share of right answers by wait-k, paced.", "tokens of the question", points, 1.0),
        Text(f"The best and the worst wait lie {_points(sweep['spread'])} points apart."),
    ]


def _second_blocks(found: Json) -> list[Block]:
    seconds = found.get("seconds")
    if not seconds:
        return []
    typed = seconds.get("typed")
    rows: list[list[str]] = []
    for pace, figures in seconds.items():
        for who in ("streams", "baseline"):
            if who in figures:
                of = figures[who]
                rows.append(
                    [
                        pace,
                        who,
                        _milliseconds(of["ttfat_s"]["value"]),
                        _milliseconds(of["whole_answer_s"]["value"]),
                        f"{of['ms_per_row']:.1f}",
                    ]
                )
    return [
        Heading("Seconds, one session alone"),
        Table(["pace", "who", "first answer token (ms)", "whole answer (ms)", "ms a row"], rows),
        Text(
            "From the last token of the question; "
            + ("" if typed is None else f"typed is {typed['tokens_per_second']:g} tokens a second, ")
            + "paste is all at once."
        ),
    ]


def _flag_blocks(found: Json) -> list[Block]:
    seconds = found.get("seconds")
    if not seconds or seconds["delay_s"]["value"] is None:
        return []
    delay = {name: _milliseconds(seconds["delay_s"][name]) for name in ("value", "low", "high", "median")}
    return [
        Heading("Seconds, one session alone"),
        Text(
            f"Typed at {seconds['tokens_per_second']:g} tokens a second, {_share(seconds['flagged'])} of the faults "
            f"are flagged, {delay['value']} ms ({delay['low']} to {delay['high']}; median {delay['median']}) after the "
            f"token came that gives them away, at {seconds['ms_per_row']:.1f} ms a row."
        ),
    ]


def _losses(found: Json) -> list[Block]:
    """What did not pay, from the figures themselves."""
    said: list[str] = []
    for pace, figures in found.get("seconds", {}).items():
        cut = figures.get("whole_answer_cut", {}).get("value")
        if cut is not None and cut < _PAYS:
            when = f"{_percent(-cut)} later than" if cut < 0 else "hardly earlier than"
            said.append(f"{pace}: the whole answer comes {when} the baseline's.{_why(pace)}")
    said += _rows_not_saved(found["splits"])
    for name, split in found["splits"].items():
        said += [
            f"{name}, thoughts of {of['from']} to {of['to'] - 1} tokens ({of['n']} problems): "
            f"{of['streams']:.1f} rows after the question, the baseline {of['baseline']:.1f}."
            for of in split.get("by_length", ())
            if of["baseline"] and 1 - of["streams"] / of["baseline"] < _PAYS
        ]
        for pace, compared in split.get("difference", {}).items():
            difference = compared["accuracy"]
            if difference["high"] is not None and difference["high"] < 0:
                said.append(f"{name}, {pace}: accuracy is {_points(difference)} points from the baseline's.")
    return [Text(text) for text in said] or [Text("Nowhere in what was measured here.")]


def _rows_not_saved(splits: Json) -> list[str]:
    """Paces at which the whole answer takes about as many rows as the baseline's, or more."""
    lost: dict[str, list[str]] = {}
    for name, split in splits.items():
        for pace, compared in split.get("difference", {}).items():
            cut = compared["rows_after_question_cut"]
            if cut["value"] is not None and cut["value"] < _PAYS:
                lost.setdefault(pace, []).append(f"{name} {_share(cut)}")
    return [
        f"{pace}: hardly a row to the whole answer is saved of the baseline's: {', '.join(cuts)}.{_why(pace)}"
        for pace, cuts in lost.items()
    ]


def _why(pace: str) -> str:
    return " With everything there at once there is nothing to read along with." if pace == "paste" else ""


def _audit_row(name: str, who: str, figures: Json) -> list[str]:
    alarms, delay = figures["false_alarms"], figures["delay_rows"]["median"]
    return [
        name,
        who,
        _share(figures["flagged"]),
        _share(figures["named"]),
        _share(alarms["of_flags"]),
        _share(alarms["of_sound_steps"]),
        _figure(delay),
        _share(figures["verdict"]),
    ]


def _figure(value: float | None) -> str:
    """Two digits; nothing for a figure of nothing."""
    return "" if value is None else f"{value:.2f}".removesuffix(".00")


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.0f}"


def _interval(value: Json) -> tuple[float, float, float]:
    return value["value"], value["low"], value["high"]


def _share(value: Json | None) -> str:
    if value is None or value["value"] is None:
        return ""  # a share of nothing
    return f"{100 * value['value']:.1f} % ({100 * value['low']:.1f} to {100 * value['high']:.1f})"


def _ratio(value: Json | None) -> str:
    if value is None or value["value"] is None:
        return ""
    return f"{value['value']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def _points(value: Json) -> str:
    return f"{100 * value['value']:+.1f} ({100 * value['low']:+.1f} to {100 * value['high']:+.1f})"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"
