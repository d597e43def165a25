"""Reproduce the figures of the packaged model: train both branches from an empty folder, evaluate, compare.

    python recipes/reproduce.py                        # hours; goes on where it was stopped
    python recipes/reproduce.py --skip-training --n 400

    recipe ──▶ model of the last stage, and of its baseline ──▶ OUT/eval-solve.json, OUT/eval-audit.json
                                                                              │ beside
                                          bench/results/eval-solve-braid-stories.json, …-audit-…

A run on another machine rounds otherwise, and so ends with other weights. A figure counts as reproduced unless it is
surely worse than the shipped one by more than a margin: 2 points of a share, 1 row of a mean. Surely means that the
whole 95 % interval of the difference lies beyond the margin; it is made from both figures' own intervals (Newcombe's
way), as if they were of different problems, which makes it wider than it need be. A better figure is reproduced, too.
The exit code is 1 where a figure is not reproduced, and their names are told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from braid.data.files import write_text
from braid.errors import BraidError
from braid.eval.report import Table, to_markdown
from braid.model.convert import quiet_transformers

ROOT = Path(__file__).parents[1]
RECIPE = Path(__file__).with_name("braid-stories.yaml")
SHIPPED = ROOT / "bench" / "results"
OWN_WORDS = ROOT / "tests" / "eval" / "own_words.jsonl"

TASKS = ("solve", "audit")

HIGHER_IS_BETTER = {
    "accuracy": True, "flagged": True, "named": True, "verdict": True,
    "of_sound_solutions": False, "tnft": False, "rows_after_question": False,
}  # fmt: skip
"""The figures that are compared, by the last part of their names."""

MARGIN_SHARE, MARGIN_ROWS = 0.02, 1.0
IN_ROWS = ("tnft", "rows_after_question")

LEFT_OUT = ("difference", "by_kind", "by_length")
"""What is made of the other figures, or of a few examples of theirs."""


@dataclass(frozen=True)
class Compared:
    """A figure of two runs.

    Args:
        name: Where it stands in a report.
        shipped, found: Its values; None where nothing was found.
        surely: How much worse it is at the least, by the interval of the difference; below 0 it may be better.
        margin: How much worse it may be.
    """

    name: str
    shipped: float
    found: float | None
    surely: float
    margin: float

    @property
    def is_reproduced(self) -> bool:
        """Whether it is there, and not surely worse by more than the margin."""
        return self.found is not None and self.surely <= self.margin


def compared(shipped: Mapping[str, Any], found: Mapping[str, Any]) -> list[Compared]:
    """Every figure of a shipped report beside the same one of another run.

    Args:
        shipped, found: Reports of one task, as `braid eval` writes them.
    """
    ours = dict(figures_of(found["splits"]))
    told: list[Compared] = []
    for name, there in figures_of(shipped["splits"]):
        kind = name.rpartition(".")[2]
        here = ours.get(name)
        surely = math.inf if here is None else _worse_by(there, here, HIGHER_IS_BETTER[kind])
        margin = MARGIN_ROWS if kind in IN_ROWS else MARGIN_SHARE
        told.append(Compared(name, there["value"], here and here["value"], surely, margin))
    return told


def figures_of(
    report: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, dict[str, float]]]:
    """All figures with an interval that are compared, by name; one that was made from nothing is none."""
    for name, each in report.items():
        if name in LEFT_OUT or not isinstance(each, dict):
            continue
        if name not in HIGHER_IS_BETTER:
            yield from figures_of(each, (*path, name))
        elif each["n"] and each["value"] is not None:
            yield ".".join((*path, name)), each


def _worse_by(there: Mapping[str, float], here: Mapping[str, float], higher_is_better: bool) -> float:
    """The least by which the second of two figures is worse, at 95 %."""
    if higher_is_better:
        return (
            there["value"]
            - here["value"]
            - math.hypot(there["value"] - there["low"], here["high"] - here["value"])
        )
    return (
        here["value"]
        - there["value"]
        - math.hypot(here["value"] - here["low"], there["high"] - there["value"])
    )


def table_of(compared: list[Compared]) -> str:
    """All figures, those that are not reproduced marked."""
    rows = [
        (each.name, f"{each.shipped:.4g}", "–" if each.found is None else f"{each.found:.4g}",
         "" if each.is_reproduced else "worse" if each.found is not None else "missing")
        for each in compared
    ]  # fmt: skip
    return to_markdown([Table(("figure", "shipped", "found", ""), rows)])


def train_both(path: Path, out: Path) -> None:
    """Train both branches of a recipe into one folder; what is done already is left as it is."""
    from braid.train.recipe import Recipe
    from braid.train.run import train

    def told(stage: str, step: int, of: int, line: Mapping[str, float]) -> None:
        if "loss" in line and step % 500 == 0:
            typer.echo(f"{stage}: step {step} of {of}, loss {line['loss']:.4f}", err=True)

    recipe = Recipe.read(path)
    for each in (recipe, recipe.as_baseline()):
        train(each, out, on_progress=told)


def evaluated(
    path: Path, out: Path, sizes: Mapping[str, int], shipped: Mapping[str, Any], threads: int | None = None
) -> dict[str, Any]:
    """Evaluate both branches of a run on what the shipped figures were made from, and keep the reports beside it.

    Args:
        path: The recipe.
        out: Folder of the run.
        sizes: Problems of each task.
        shipped: The shipped reports, by task.
        threads: Of the CPU; None for as many as there are cores.
    """
    from braid.eval.baseline import Baseline
    from braid.eval.tasks import Contenders, evaluate_audit, evaluate_solve
    from braid.model.loading import load
    from braid.streams.presets import topology
    from braid.train.recipe import Recipe
    from braid.train.run import stage_folders

    recipe = Recipe.read(path)
    streams, turns = (stage_folders(each, out)[-1].model for each in (recipe, recipe.as_baseline()))
    with quiet_transformers():
        who = Contenders(load(streams, threads=threads), topology("stories"), Baseline(turns))
    told = _Told()
    sets = shipped["solve"]["splits"]
    found = {
        "solve": evaluate_solve(
            who,
            n=sizes["solve"],
            seed=shipped["solve"]["seed"],
            files=[OWN_WORDS] if OWN_WORDS.stem in sets else [],
            gsm="gsm_symbolic" in sets,
            waits=(),
            timed=0,
            on_progress=told,
        ),
        "audit": evaluate_audit(
            who, n=sizes["audit"], seed=shipped["audit"]["seed"], timed=0, on_progress=told
        ),
    }
    for task, report in found.items():
        write_text(
            out / f"eval-{task}.json", json.dumps(_finite(report), indent=2, ensure_ascii=False) + "\n"
        )
    return found


class _Told:
    """Says once what is being done."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, what: str, done: int, of: int) -> None:
        if what != self._last:
            self._last = what
            typer.echo(f"{what} ({of})", err=True)


def _finite(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with a mean of nothing, for which JSON has no word, as null."""
    return json.loads(json.dumps(report), parse_constant=lambda _: None)


def main(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("runs/reproduced"),
    n: Annotated[
        int | None,
        typer.Option(
            "--n", "-n", min=12, help="Problems, and half as many audits; the shipped numbers by default."
        ),
    ] = None,
    skip_training: Annotated[
        bool, typer.Option("--skip-training", help="Evaluate what the folder has.")
    ] = False,
    recipe: Annotated[Path, typer.Option(help="Of the run.")] = RECIPE,
    threads: Annotated[int | None, typer.Option(help="Of the CPU; all cores by default.", min=1)] = None,
) -> None:
    """Train the packaged model anew, and compare its figures with the shipped ones."""
    shipped = {task: json.loads((SHIPPED / f"eval-{task}-braid-stories.json").read_text()) for task in TASKS}
    sizes = (
        {task: shipped[task]["n"] for task in TASKS} if n is None else {"solve": n, "audit": max(4, n // 2)}
    )
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        if not skip_training:
            train_both(recipe, out)
        found = evaluated(recipe, out, sizes, shipped, threads)
    except BraidError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    missed: list[str] = []
    for task in TASKS:
        figures = compared(shipped[task], found[task])
        missed += [f"{task}: {each.name}" for each in figures if not each.is_reproduced]
        typer.echo(f"\n{task} (n {sizes[task]})\n\n{table_of(figures)}")
    if missed:
        typer.echo("not reproduced:\n  " + "\n  ".join(missed))
        raise typer.Exit(1)
    typer.echo("all figures are reproduced")


if __name__ == "__main__":
    typer.run(main)
