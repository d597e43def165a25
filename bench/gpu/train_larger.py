"""Train `recipes/braid-stories-large.yaml` on one GPU within a time, evaluate it, and write what was measured.

    PYTHONPATH=src python bench/gpu/train_larger.py --minutes 9
    PYTHONPATH=src python bench/gpu/train_larger.py --miniature          # seconds, on the CPU

    20 steps of each stage, timed ──▶ steps cut to what fits ──▶ trained ──▶ a few audits and problems, timed
                                                              └▶ JSON        ──▶ as many as fit ──▶ JSON

It goes on where it was stopped: how the steps were cut is kept in the folder of the run. The figures lie in the folder
that $OUT names, or else in `out`; those of the training are written before the evaluation begins.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "braid-stories-large.yaml"
BROUGHT_ALONG = "bench/gpu/README.md says how to bring along what a machine without a network lacks"

try:
    import torch

    from braid.bench.machine import describe_machine
    from braid.data.tokens import DataTokenizer
    from braid.errors import BraidError
    from braid.eval.tasks import Contenders, evaluate_audit, evaluate_solve
    from braid.model.convert import quiet_transformers
    from braid.model.loading import load
    from braid.streams.presets import topology
    from braid.train.recipe import Recipe, Stage, TokenizerWish
    from braid.train.run import examples_of, stage_folders, train
except ImportError as missing:
    sys.exit(f"{missing}; run it as PYTHONPATH=src python {sys.argv[0]}, and {BROUGHT_ALONG}")

PROBED = 20
"""Steps of each stage that are timed, of which the second half counts."""

SPARE = 0.9
"""Share of the time that is planned for; the rest is for starts, checkpoints, and what was timed too short."""

COUNTED = 64
"""Examples of a stage of which tokens are counted."""

NUM_PROBED = 96
"""Problems, and audits, that are timed before it is decided how many fit."""


@dataclass
class Clock:
    """Notes when a run was at which step.

    Args:
        shows: Whether it says so, too.
    """

    shows: bool = True
    seen: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def __call__(self, stage: str, step: int, of: int, line: Mapping[str, float]) -> None:
        """Be told of a line of the log."""
        if "loss" not in line:
            return
        self.seen.setdefault(stage, []).append((step, time.perf_counter()))
        self.losses[stage] = line["loss"]
        if self.shows:
            print(f"{stage}: step {step} of {of}, loss {line['loss']:.4f}", flush=True)

    def seconds_a_step(self, stage: str) -> float | None:
        """From the first line of its log to the last; None where there are not two."""
        seen = self.seen.get(stage, [])
        if len(seen) < 2:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def miniature(recipe: Recipe) -> Recipe:
    """The same in every way but size, for a CPU and seconds."""
    settings = {
        **recipe.network.settings,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    stages = tuple(stage.model_copy(update={"steps": 6, "batch": 4, "warmup": 1}) for stage in recipe.stages)
    changes = {
        "network": recipe.network.model_copy(update={"settings": settings}),
        "tokenizer": TokenizerWish(size=900, texts=100, words="stories"),
        "stages": stages,
        "workers": 0,
        "log_every": 2,
    }
    return recipe.model_copy(update=changes)


def with_steps(recipe: Recipe, steps: list[int]) -> Recipe:
    """A recipe with other numbers of steps, the warm-up at most a tenth of them."""
    stages = tuple(
        stage.model_copy(update={"steps": count, "warmup": min(stage.warmup, max(1, count // 10))})
        for stage, count in zip(recipe.stages, steps, strict=True)
    )
    return recipe.model_copy(update={"stages": stages})


def cut(steps: list[int], seconds_a_step: list[float], seconds: float) -> list[int]:
    """Steps of each stage that fit into a time, all stages cut alike; never more than wanted, and at least one."""
    wanted = sum(count * each for count, each in zip(steps, seconds_a_step, strict=True))
    share = min(1.0, max(0.0, seconds) / wanted)
    return [max(1, int(count * share)) for count in steps]


def time_stages(recipe: Recipe, folder: Path, num_steps: int) -> list[float]:
    """Seconds of a step of each stage, measured in a run of a few steps that is thrown away."""
    few = with_steps(recipe, [num_steps] * len(recipe.stages))
    few = few.model_copy(update={"log_every": max(1, num_steps // 2), "save_every": 10**6})
    clock = Clock(shows=False)
    shutil.rmtree(folder, ignore_errors=True)
    train(few, folder, on_progress=clock)
    shutil.rmtree(folder)
    times = [clock.seconds_a_step(place.name) for place in stage_folders(few, folder)]
    assert None not in times, "each stage logs twice"
    return [each for each in times if each is not None]


def fitted(recipe: Recipe, run: Path, deadline: float, num_probed: int) -> Recipe:
    """The recipe with the steps that fit before a deadline, or that a run that goes on was begun with."""
    kept = run / "steps.json"
    if not kept.is_file():
        times = time_stages(recipe, run.with_name(f"{run.name}-timed"), num_probed)
        wanted = [stage.steps for stage in recipe.stages]
        steps = cut(wanted, times, SPARE * (deadline - time.perf_counter()))
        for stage, count, each, before in zip(recipe.stages, steps, times, wanted, strict=True):
            print(f"{stage.form}: {each * 1e3:.1f} ms a step, {count} of {before} steps", flush=True)
        run.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(steps))
    return with_steps(recipe, json.loads(kept.read_text()))


def tokens_of(recipe: Recipe, stage: Stage, tokenizer: DataTokenizer) -> float:
    """Kept tokens of an example, about."""
    examples = examples_of(recipe, stage, tokenizer, count=COUNTED)
    return sum(int(examples[index].kept.sum()) for index in range(COUNTED)) / COUNTED


def trained_figures(recipe: Recipe, wanted: Recipe, run: Path, clock: Clock) -> dict[str, Any]:
    """What a stage's steps took; of stages that were trained before, only what they are."""
    places = stage_folders(recipe, run)
    tokenizer = DataTokenizer.read(run)
    told: list[dict[str, Any]] = []
    for place, whole in zip(places, wanted.stages, strict=True):
        stage, seconds = place.stage, clock.seconds_a_step(place.name)
        figures: dict[str, Any] = {"name": place.name, "steps": stage.steps, "wanted_steps": whole.steps}
        figures |= {"batch": stage.batch, "loss": clock.losses.get(place.name)}
        figures |= {"tokens_an_example": round(tokens_of(recipe, stage, tokenizer), 1)}
        if seconds is not None:
            rate = stage.batch * stage.accumulate / seconds
            figures |= {"ms_a_step": round(seconds * 1e3, 2), "examples_a_second": round(rate, 1)}
            figures |= {"tokens_a_second": round(rate * figures["tokens_an_example"])}
            print(
                f"{place.name}: {figures['ms_a_step']} ms a step, {figures['tokens_a_second']:,} tokens/s",
                flush=True,
            )
        told.append(figures)
    return {"recipe": recipe.name, "dtype": recipe.dtype, "stages": told}


def evaluate(who: Contenders, n: int, seconds: float, num_probed: int) -> dict[str, Any]:
    """Both evaluations, of as many problems as fit.

    Args:
        who: Is evaluated; `gsm_symbolic`, waits and seconds are left out, which are not what this is for.
        n: Problems, and audits, at most.
        seconds: That both together may take.
        num_probed: Problems, and audits, that are timed first.
    """
    began = time.perf_counter()
    found = {"solve": _solved(who, num_probed), "audit": evaluate_audit(who, n=num_probed)}
    taken = time.perf_counter() - began
    fits = min(n, int(num_probed * (SPARE * seconds - taken) / taken))
    print(f"{num_probed} problems and audits took {taken:.1f} s: {max(fits, num_probed)} fit", flush=True)
    if fits > num_probed:
        found = {"solve": _solved(who, fits), "audit": evaluate_audit(who, n=fits)}
    return found


def _solved(who: Contenders, n: int) -> dict[str, Any]:
    return evaluate_solve(who, n=n, gsm=False, waits=(), timed=0)


def machine() -> dict[str, Any]:
    """What it was measured on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    peak = torch.cuda.max_memory_allocated() if gpu else None
    return {**describe_machine(), "gpu": gpu, "cores": os.cpu_count(), "peak_bytes": peak}


def options(arguments: list[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description="Train and evaluate a larger braid-stories on one GPU.")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it (9)")
    parser.add_argument(
        "--evaluation-minutes", type=float, default=3.0, help="of these, for the evaluation (3)"
    )
    parser.add_argument("--n", type=int, default=1000, help="problems, and audits, at most (1000)")
    parser.add_argument("--run", type=Path, help="folder of the run (runs/braid-stories-large)")
    parser.add_argument("--out", type=Path, help="folder of the figures ($OUT, or else out)")
    parser.add_argument(
        "--evaluation-device", default="auto", help="what evaluates, as torch calls it (auto)"
    )
    parser.add_argument("--miniature", action="store_true", help="a tiny network, a few steps, on the CPU")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """All of it."""
    asked = options(arguments)
    began = time.perf_counter()
    if not asked.miniature and not torch.cuda.is_available():
        sys.exit(
            "there is no CUDA device that torch sees here; run it on a machine with one (and a torch with CUDA), or "
            "try it on the CPU with --miniature"
        )
    name = "braid-stories-large-miniature" if asked.miniature else "braid-stories-large"
    run = asked.run or ROOT / "runs" / name
    out = asked.out or Path(os.environ.get("OUT", "out"))
    out.mkdir(parents=True, exist_ok=True)
    wanted = Recipe.read(RECIPE)
    wanted = miniature(wanted) if asked.miniature else wanted
    n, probed, num_probed = (4, 4, 4) if asked.miniature else (asked.n, PROBED, min(asked.n, NUM_PROBED))
    training = 60 * (asked.minutes - asked.evaluation_minutes)
    clock = Clock()
    _allow_files()
    try:
        with quiet_transformers():
            recipe = fitted(wanted, run, began + training, probed)
            model = train(recipe, run, on_progress=clock)
            figures = trained_figures(recipe, wanted, run, clock)
            figures |= {"machine": machine(), "seconds": round(time.perf_counter() - began, 1)}
            write(out / "training.json", figures)
            device = "cpu" if asked.miniature else asked.evaluation_device
            loaded = load(model, dtype="float32", device=device, threads=1 if asked.miniature else None)
            left = 60 * asked.minutes - (time.perf_counter() - began)
            who = Contenders(loaded, topology("stories"))
            for task, found in evaluate(who, n, left, num_probed).items():
                write(out / f"eval-{task}.json", {**found, "machine": machine()})
    except BraidError as error:
        sys.exit(f"error: {error}")
    print(f"{time.perf_counter() - began:.0f} s in all; figures in {out}")


def _allow_files() -> None:
    """Let the process open as many files as it may: each tensor that a worker hands over takes one for a while."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures; a mean of nothing, for which JSON has no word, as null."""
    finite = json.loads(json.dumps(figures), parse_constant=lambda _: None)
    path.write_text(json.dumps(finite, indent=2) + "\n")


if __name__ == "__main__":
    main()
