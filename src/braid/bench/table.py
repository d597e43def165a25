"""Figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = [
    "codewords_table",
    "fallback_table",
    "overhead_table",
    "print_figures",
    "rows_table",
    "serving_table",
    "sessions_table",
    "training_table",
]

RATIOS = {
    "row4_over_row1": "a row of four over a row of one",
    "row4_over_hf1": "a row of four over the stock forward of one token",
    "probes4_over_row1": "four probes over a row of one",
    "probes4_over_hf1": "four probes over the stock forward of one token",
    "row4_over_weights_read": "a row of four over reading the weights",
}
"""Ratio → what it compares."""


def rows_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench rows` found.

    Args:
        figures: `RowFigures.to_dict()`.
    """
    counts = list(figures["ms_per_row"])
    title = f"{figures['model']}, {figures['cached']} tokens cached: median milliseconds of {figures['repeat']} rounds"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for count in counts:
        table.add_column(count, justify="right")
    table.add_row("our row of so many streams", *(f"{figures['ms_per_row'][count]:.1f}" for count in counts))
    table.add_row("stock forward of so many tokens", *(f"{figures['hf_ms'][count]:.1f}" for count in counts))
    rest = Table.grid(padding=(0, 2))
    rest.add_column()
    rest.add_column(justify="right")
    rest.add_row("four probes, ms", f"{figures['ms_probes']:.1f}")
    rest.add_row("reading the weights once, ms", f"{figures['weights_read_ms']:.1f}")
    for name, meaning in RATIOS.items():
        if figures[name] is not None:
            rest.add_row(meaning, f"{figures[name]:.2f} ×")
    return Group(table, rest, _where(figures["machine"]))


def codewords_table(figures: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    """What `braid bench codewords` found.

    Args:
        figures: `PlaceFigures.to_dict()` by place.
    """
    table = Table(title="The writer repeats a code word that another stream holds", title_style="bold")
    for head in (
        "where",
        "cases",
        "sequential prompt",
        "views",
        "rate",
        "blocked",
        "chance",
        "logits changed by",
    ):
        table.add_column(head, justify="left" if head == "where" else "right")
    for place, row in figures.items():
        table.add_row(
            place,
            str(row["cases"]),
            str(row["sequential"]),
            str(row["views"]),
            f"{row['rate']:.0%}",
            f"{row['blocked_rate']:.0%}",
            f"{row['chance']:.0%}",
            f"{row['max_abs_diff']:g}",
        )
    return table


CONTENDERS = {
    "ours": "braid",
    "one_by_one": "transformers, one by one (a)",
    "batched": "transformers, batched (b)",
    "vllm": "vLLM, measured apart (c)",
}
SESSION_RATIOS = {
    "total_over_one_by_one": "tokens a second over (a)",
    "total_over_batched": "tokens a second over (b)",
    "decode_over_batched": "decode alone over (b)",
    "decode_over_vllm": "decode alone over (c)",
    "total_over_vllm": "tokens a second over (c)",
    "kv_over_batched": "peak KV bytes over (b)",
}


def sessions_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench sessions` found.

    Args:
        figures: `SessionsFigures.to_dict()`.
    """
    parts: list[RenderableType] = []
    for count, row in figures["sessions"].items():
        title = f"{figures['model']}: {count} session{'' if count == '1' else 's'}"
        table = Table(title=title, title_justify="left", title_style="bold")
        for head in ("", "prefill s", "decode s", "tokens/s", "decode tokens/s", "prefilled", "peak KV MiB"):
            table.add_column(head, justify="left" if not head else "right")
        for key, name in CONTENDERS.items():
            found = row[key]
            if found is not None:
                table.add_row(
                    name,
                    f"{found['prefill_s']:.2f}",
                    f"{found['decode_s']:.2f}",
                    f"{found['tokens_per_s']:.1f}",
                    f"{found['decode_tokens_per_s']:.1f}",
                    str(found["prefill_tokens"]),
                    f"{found['peak_kv_bytes'] / 2**20:.1f}",
                )
        ratios = Table.grid(padding=(0, 2))
        ratios.add_column()
        ratios.add_column(justify="right")
        for key, name in SESSION_RATIOS.items():
            if row[key] is not None:
                ratios.add_row(name, f"{row[key]:.2f} ×")
        ratios.add_row("outside the forward, ms a decode step", f"{row['ours']['overhead_ms']:.2f}")
        if row["same_answers_as_batched"]:
            ratios.add_row("answers that are those of (b), token by token", row["same_answers_as_batched"])
        parts += [table, ratios]
    turns = figures["ten_turns_prefill"]
    said = f"A conversation of ten turns prefills {turns['ours']} tokens; (b) {turns['batched']} ({turns['ratio']} ×)."
    return Group(*parts, Text(said), _where(figures["machine"]))


def overhead_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench overhead` found.

    Args:
        figures: `OverheadFigures.to_dict()`.
    """
    title = (
        f"{figures['sessions']} sessions × {figures['streams']} streams, on a backend that computes nothing"
    )
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("a step, median ms", f"{figures['median_ms']:.2f}")
    table.add_row("fastest, ms", f"{figures['min_ms']:.2f}")
    table.add_row("95 of 100 are below, ms", f"{figures['p95_ms']:.2f}")
    table.add_row("of the median, in the backend", f"{figures['backend_median_ms']:.2f}")
    table.add_row("tokens a step", str(figures["tokens_per_step"]))
    return Group(table, _where(figures["machine"]))


def serving_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench serve` found.

    Args:
        figures: `ServingFigures.to_dict()`.
    """
    how = f"{figures['output_tokens']} tokens each, best of {figures['rounds']} rounds"
    title = f"{figures['sessions']} sessions, {how}"
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("the engine alone, tokens/s", f"{figures['engine_tokens_per_s']:.1f}")
    table.add_row("over HTTP, streamed, tokens/s", f"{figures['http_tokens_per_s']:.1f}")
    table.add_row("HTTP over engine", f"{figures['http_over_engine']:.2f} ×")
    median = figures["event_to_socket_p50_ms"]
    table.add_row(
        "live: from event to socket, median ms", "not measured" if median is None else f"{median:.2f}"
    )
    return Group(table, _where(figures["machine"]))


def fallback_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench fallback` found.

    Args:
        figures: `FallbackFigures.to_dict()`.
    """
    title = f"{figures['model']}: {figures['input_tokens']} tokens given at once, {figures['answer_tokens']} to answer"
    table = Table(title=title, title_justify="left", title_style="bold")
    for head in ("", "seconds", "estimated", "rows"):
        table.add_column(head, justify="left" if not head else "right")
    for key, name in (("asked", figures["topology"]), ("plain", "one stream")):
        table.add_row(
            name,
            f"{figures[f'{key}_s']:.3f}",
            f"{figures[f'{key}_estimated_s']:.3f}",
            str(figures[f"{key}_rows"]),
        )
    return Group(table, Text(f"Chosen: {figures['reason']}."), _where(figures["machine"]))


_TRAINED = {
    "streams": "streams, as the recipe has them",
    "dense": "streams, each reads every other",
    "turns": "one stream, the baseline",
}


def training_table(figures: Mapping[str, Any]) -> RenderableType:
    """What `braid bench training` found.

    Args:
        figures: `TrainingFigures.to_dict()`.
    """
    title = f"{figures['recipe']}: an optimiser's step at equal queries, median of {figures['rounds']} rounds"
    table = Table(title=title, title_justify="left", title_style="bold")
    heads = (
        "",
        "kept",
        "probes",
        "of all probes",
        "queries an example",
        "queries a step",
        "ms a step",
        "over the baseline",
    )
    for head in heads:
        table.add_column(head, justify="left" if not head else "right")
    baseline = figures["kinds"]["turns"]["step_ms"]
    for name, meaning in _TRAINED.items():
        kind = figures["kinds"][name]
        table.add_row(
            meaning,
            *(f"{kind[key]:.1f}" for key in ("kept", "probes", "all_probes", "queries_per_example")),
            f"{kind['queries_per_step']:.0f}",
            f"{kind['step_ms']:.1f}",
            f"{kind['step_ms'] / baseline:.2f} ×",
        )
    return Group(table, _where(figures["machine"]))


def _where(machine: Mapping[str, Any]) -> Text:
    """What it was measured on."""
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load']}, "
        f"torch {machine['torch']}, transformers {machine['transformers']}"
    )
    return Text(where, style="dim")


def print_figures(table: RenderableType, *, to_stderr: bool) -> None:
    """Print for people, on standard error where standard output is a program's."""
    Console(stderr=to_stderr, highlight=False).print(table)
