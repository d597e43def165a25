"""`braid train`: a recipe in, a model out; from wherever it stopped."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli.machine import ThreadsOption
from braid.cli.progress import progress_bar
from braid.cli.report import INTERRUPTED, JsonOption, print_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from braid.train.estimate import Estimate, StageEstimate
    from braid.train.recipe import Recipe

    Progress = Callable[[str, int, int, Mapping[str, float]], None]

__all__ = ["app", "train"]

_EXAMPLES = """[bold]Examples[/]

braid train recipe.yaml --dry-run

braid train recipe.yaml --out runs/first

braid train recipe.yaml --out runs/first --baseline

torchrun --nproc-per-node 2 -m braid train recipe.yaml"""

app = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(epilog=_EXAMPLES)
def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe, in YAML.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the run; runs/NAME by default.", show_default=False),
    ] = None,
    baseline: Annotated[
        bool,
        typer.Option("--baseline", help="Train the single-stream baseline on the same examples instead."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count and measure what it would cost; write nothing."),
    ] = False,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Train a model from a recipe, or go on where the same command was stopped.

    The finished model is a folder that `braid run --model` and `transformers` load.
    """
    from braid.model.convert import quiet_transformers
    from braid.model.machine import choose
    from braid.train.processes import is_first_process, leave
    from braid.train.recipe import Recipe
    from braid.train.run import train

    if threads is not None:
        import torch

        torch.set_num_threads(choose(threads=threads).threads)
    wanted = Recipe.read(recipe)
    wanted = wanted.as_baseline() if baseline else wanted
    folder = out or Path("runs") / wanted.name
    try:
        with quiet_transformers():
            if dry_run:
                _estimate(wanted, folder, json)
                return
            with _watched(json) as (on_progress, where):
                try:
                    model = train(wanted, folder, on_progress=on_progress)
                except KeyboardInterrupt:
                    raise typer.Exit(_stopped(folder, where)) from None
        if is_first_process():
            if json:
                print_json({"event": "finished", "model": str(model)})
            else:
                typer.echo(model)
    finally:
        leave()


def _stopped(folder: Path, where: list[str]) -> int:
    """Say how to go on, and return the exit code."""
    place = f" in {where[-1]}" if where else ""
    typer.echo(
        f"\nStopped{place}. The last checkpoint in {folder} is intact; the same command goes on from it.",
        err=True,
    )
    return INTERRUPTED


def _estimate(recipe: Recipe, folder: Path, json: bool) -> None:
    from braid.train.estimate import estimate
    from braid.train.processes import is_first_process

    with progress_bar("stages measured", len(recipe.stages)) as advance:
        found = estimate(recipe, folder, on_progress=advance)
    if not is_first_process():
        return
    if json:
        print_json(found.to_json())
    else:
        _print_estimate(found)


@contextmanager
def _watched(json: bool) -> Generator[tuple[Progress, list[str]]]:
    """A bar with the loss in a terminal, lines elsewhere; and where the run is, for who stops it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    where: list[str] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=json or not console.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, step: int, steps: int, line: Mapping[str, float]) -> None:
            where.append(f"{stage}, after step {step:,} of {steps:,}")
            del where[:-1]
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=steps, completed=step, loss="")
                if step:
                    _say(console, f"Going on with {stage} after step {step:,}.")
            loss = f"loss {line['loss']:.4f}" if "loss" in line else ""
            progress.update(tasks[stage], completed=step)
            if loss:
                progress.update(tasks[stage], loss=loss)
            if json and line:
                print_json({"event": "log", "stage": stage, "steps": steps, **line})
            elif loss and not console.is_terminal:
                _say(console, f"{stage}  step {step:,} of {steps:,}  {loss}")

        yield tell, where


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, soft_wrap=True)


def _print_estimate(found: Estimate) -> None:
    processes = f"{found.processes} processes" if found.processes > 1 else "one process"
    typer.echo(f"{found.name}: about {_duration(found.seconds)} in {processes} on {found.device}\n")
    for stage in found.stages:
        for name, value in _lines(stage):
            typer.echo(f"  {name:<12} {value}" if name else value)
        typer.echo()
    typer.echo(
        "Counted on the first examples. Memory is of one device, without what the libraries take for themselves:\n"
        "activations are what autograd keeps of one batch. Times are of a few steps on this machine, just now."
    )


def _lines(stage: StageEstimate) -> list[tuple[str, str]]:
    memory = stage.memory
    queries = f"{stage.queries:,.1f} an example ({stage.tokens:,.1f} tokens + {stage.probes:,.1f} probes)"
    parts = [
        f"{_size(memory.weights)} weights",
        f"{_size(memory.gradients)} gradients",
        f"{_size(memory.optimizer)} optimiser",
        f"{_size(memory.activations)} activations",
    ]
    return [
        ("", f"{stage.name} · {stage.steps:,} steps"),
        ("examples", f"{stage.examples:,}"),
        ("tokens", f"{stage.tokens:,.1f} an example, {stage.examples * stage.tokens:,.0f} in all"),
        ("queries", f"{queries}, {stage.examples * stage.queries:,.0f} in all"),
        ("asked", f"{stage.asked:,.1f} queries an example have a label that counts"),
        ("parameters", f"{stage.parameters:,}, {stage.trained:,} of them trained"),
        ("memory", f"{_size(memory.total)}: {' + '.join(parts)}"),
        ("time", f"{_duration(stage.seconds)}: {stage.seconds_a_step * 1000:,.0f} ms a step"),
    ]


def _size(num_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:,.0f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} GB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:,.0f} s"
    minutes = seconds / 60
    return f"{minutes:,.0f} min" if minutes < 90 else f"{minutes / 60:,.1f} h"
