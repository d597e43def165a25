"""Figures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["codewords_table", "print_figures", "rows_table"]

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
    machine = figures["machine"]
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, load {machine['load']}, "
        f"torch {machine['torch']}, transformers {machine['transformers']}"
    )
    return Group(table, rest, Text(where, style="dim"))


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


def print_figures(table: RenderableType, *, to_stderr: bool) -> None:
    """Print for people, on standard error where standard output is a program's."""
    Console(stderr=to_stderr, highlight=False).print(table)
