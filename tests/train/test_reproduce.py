"""`recipes/reproduce.py`: what counts as reproduced; and, in hours, that the recipe reproduces the shipped figures."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.eval.statistics import share_of
from braid.train.recipe import Recipe
from tests.train.tiny import turns_then_streams, write_recipe

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes" / "reproduce.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reproduce", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


reproduce = _loaded()
SHIPPED = {
    task: json.loads((reproduce.SHIPPED / f"eval-{task}-braid-stories.json").read_text())
    for task in reproduce.TASKS
}


def share(hits: int, n: int) -> dict[str, Any]:
    return share_of([True] * hits + [False] * (n - hits)).to_json()


def report(**figures: dict[str, Any]) -> dict[str, Any]:
    return {"splits": {"numbers": {"what": "unseen numbers", "streams": figures}}}


def missed(shipped: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [each.name for each in reproduce.compared(shipped, found) if not each.is_reproduced]


@pytest.mark.parametrize("task", reproduce.TASKS)
def test_the_shipped_figures_reproduce_themselves(task: str) -> None:
    told = reproduce.compared(SHIPPED[task], SHIPPED[task])
    assert all(each.is_reproduced for each in told)
    names = {each.name for each in told}
    expected = {
        "solve": {
            "numbers.streams.typed.accuracy",
            "wording.baseline.accuracy",
            "outside.streams.paced.tnft",
        },
        "audit": {
            "faults.streams.flagged",
            "numbers.streams.false_alarms.of_sound_solutions",
            "wording.baseline.verdict",
        },
    }[task]
    assert expected <= names
    assert not [name for name in names if "difference" in name or "by_kind" in name]


@pytest.mark.parametrize(
    ("task", "path", "change"),
    [
        ("solve", ("numbers", "streams", "typed", "accuracy"), -0.09),
        ("solve", ("numbers", "streams", "paced", "tnft"), 2.0),
        ("solve", ("structure", "baseline", "accuracy"), -0.12),
        ("audit", ("numbers", "streams", "flagged"), -0.15),
        ("audit", ("faults", "streams", "false_alarms", "of_sound_solutions"), 0.2),
    ],
)
def test_a_worse_figure_is_found(task: str, path: tuple[str, ...], change: float) -> None:
    found = copy.deepcopy(SHIPPED[task])
    figure = found["splits"]
    for name in path:
        figure = figure[name]
    for name in ("value", "low", "high"):
        figure[name] += change
    assert missed(SHIPPED[task], found) == [".".join(path)]
    assert missed(found, SHIPPED[task]) == [], "the other way round it is a better one"


def test_a_figure_that_is_missing_or_made_from_nothing_is_found() -> None:
    shipped = report(accuracy=share(80, 100), named=share(9, 10))
    nothing = {"value": None, "low": None, "high": None, "n": 0}
    assert missed(shipped, report(accuracy=share(80, 100))) == ["numbers.streams.named"]
    assert missed(shipped, report(accuracy=nothing, named=share(9, 10))) == ["numbers.streams.accuracy"]
    assert missed(report(named=nothing), report()) == [], "there was nothing to reproduce"
    assert "missing" in reproduce.table_of(reproduce.compared(shipped, report(accuracy=share(80, 100))))


@given(st.integers(0, 400), st.integers(0, 400))
def test_what_is_found_is_a_difference_beyond_the_margin(before: int, after: int) -> None:
    found = missed(report(accuracy=share(before, 400)), report(accuracy=share(after, 400)))
    alarms = missed(
        report(of_sound_solutions=share(400 - before, 400)),
        report(of_sound_solutions=share(400 - after, 400)),
    )
    assert bool(found) == bool(alarms), "a share of mistakes is judged as the share of what is right"
    if after >= before - 8:  # 2 points
        assert not found
    if before - after > 8 + 45:  # and beyond any interval of 400
        assert found


def test_small_runs_are_given_more_room() -> None:
    assert missed(report(accuracy=share(8000, 10000)), report(accuracy=share(7600, 10000)))
    assert not missed(report(accuracy=share(8000, 10000)), report(accuracy=share(38, 50)))


@pytest.mark.slow
def test_it_runs_from_an_empty_folder_and_tells_what_is_not_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a recipe that learns nothing in four steps."""
    torch.set_num_threads(1)
    monkeypatch.setattr(reproduce, "OWN_WORDS", tmp_path / "nothing.jsonl")
    monkeypatch.setattr("braid.eval.play._PATIENCE", 4)  # it never falls silent by itself
    monkeypatch.setattr("braid.eval.baseline._MOST", 4)
    topology = Recipe.read(reproduce.RECIPE).topology.model_dump(mode="json", exclude_defaults=True)
    stages = [*turns_then_streams(), {"steps": 1, "batch": 2, "examples": [{"builder": "audit"}]}]
    path = write_recipe(tmp_path, topology=topology, stages=stages)
    reproduce.train_both(path, tmp_path / "run")
    assert {each.name for each in (tmp_path / "run").glob("*-*")} == {
        "1-turns", "2-streams", "3-streams", "2-turns", "3-turns",
    }  # fmt: skip
    shipped = {
        task: {**SHIPPED[task], "splits": {"numbers": SHIPPED[task]["splits"]["numbers"]}}
        for task in reproduce.TASKS
    }
    found = reproduce.evaluated(path, tmp_path / "run", {"solve": 3, "audit": 4}, shipped, threads=1)
    names = missed(shipped["solve"], found["solve"])
    assert "numbers.streams.typed.accuracy" in names
    assert "numbers.baseline.accuracy" in names
    kept = json.loads((tmp_path / "run" / "eval-audit.json").read_text())
    assert set(kept["splits"]) == set(SHIPPED["audit"]["splits"])


@pytest.mark.slow
@pytest.mark.timeout(24 * 3600)  # some five hours of a quiet core, and an hour of evaluation
def test_the_recipe_reproduces_the_shipped_figures(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path / "run")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
