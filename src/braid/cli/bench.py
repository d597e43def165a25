"""`braid bench`: measurements, each in one go, ending with a line of JSON."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from braid.cli.machine import DEFAULT_MODEL, DtypeOption, ModelOption, ThreadsOption, load_model
from braid.cli.report import JsonOption

__all__ = ["app", "codewords", "rows"]

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Measure, on this machine. Each measurement ends with a line of JSON; with --json that is all of "
    "standard output.",
)

_ROWS_EXAMPLES = """[bold]Examples[/]

braid bench rows

braid bench rows --model ./my-model --cached 2048 --repeat 50 --json"""

_CODEWORDS_EXAMPLES = """[bold]Examples[/]

braid bench codewords

braid bench codewords --cases 20 --json"""


@app.command(epilog=_ROWS_EXAMPLES)
def rows(
    model: ModelOption = DEFAULT_MODEL,
    cached: Annotated[int, typer.Option(min=16, help="Tokens in the cache before every step.")] = 512,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; every case is timed once a round.")] = 30,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time a row of 1, 2, 4 and 8 streams, and of four probes, beside the stock forward of `transformers`.

    Ours is the full step: plan, forward, sampling. The stock forward runs in a process of its own that Braid has not
    touched; the two take turns, so that noise hits both alike. Median milliseconds; the machine should be idle.
    """
    from braid.bench.rows import bench_rows
    from braid.bench.table import print_figures, rows_table

    loaded = load_model(model, dtype=dtype, device="cpu", threads=threads)
    with _progress("rounds") as advance:
        figures = bench_rows(loaded, cached=cached, repeat=repeat, on_round=advance).to_dict()
    print_figures(rows_table(figures), to_stderr=json)
    _print_json(figures)


@app.command(epilog=_CODEWORDS_EXAMPLES)
def codewords(
    model: ModelOption = DEFAULT_MODEL,
    cases: Annotated[int, typer.Option(min=1, help="Words × phrasings, for each place of the word.")] = 100,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Count how often a writer repeats a code word that only another stream holds; several minutes.

    The word is forced into the thinker, or typed by the user in the middle of the answer. Compared with the same
    texts in one ordinary prompt, and with the writer's `reads` blocked, where nothing may come through.
    """
    from braid.bench.table import codewords_table, print_figures
    from braid.checks.codewords import measure_codewords

    loaded = load_model(model, dtype=dtype, threads=threads)
    with _progress("sessions") as advance:
        found = measure_codewords(loaded, cases=cases, on_progress=advance)
    figures: dict[str, Any] = {place: row.to_dict() for place, row in found.items()}
    print_figures(codewords_table(figures), to_stderr=json)
    _print_json({**figures, "model": loaded.name})


@contextmanager
def _progress(what: str) -> Generator[Callable[[int, int], None]]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _print_json(data: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(data, ensure_ascii=False))
