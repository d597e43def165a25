"""`braid train`: a run, its baseline, a dry run, and Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from braid.errors import RecipeError, TrainingError
from tests.cli.conftest import Braid
from tests.train.tiny import turns_then_streams, write_recipe


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path, stages=turns_then_streams())


def test_help_has_an_example(braid: Braid) -> None:
    result = braid("train", "--help")
    assert result.exit_code == 0
    assert "braid train recipe.yaml --dry-run" in result.stdout.split("Examples")[1]


def test_a_run_and_its_baseline(
    recipe: Path, braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = braid("train", recipe)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(Path("runs/tiny/2-streams/model"))
    assert "2-streams  step 5 of 5  loss " in result.stderr
    result = braid("train", recipe, "--baseline", "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["stage"] for line in lines if line["event"] == "log"} == {"2-turns"}, "the first is done"
    assert lines[-1] == {"event": "finished", "model": str(Path("runs/tiny/2-turns/model"))}
    again = braid("train", recipe)
    assert (again.exit_code, again.stdout) == (0, "runs/tiny/2-streams/model\n")


def test_a_dry_run_tells_what_it_would_cost_and_writes_nothing(
    recipe: Path, braid: Braid, tmp_path: Path
) -> None:
    result = braid("train", recipe, "--out", tmp_path / "run", "--dry-run")
    assert result.exit_code == 0, result.stderr
    for words in (
        "1-turns · 3 steps",
        "2-streams · 5 steps",
        "probes",
        "trained",
        "activations",
        "ms a step",
    ):
        assert words in result.stdout
    result = braid("train", recipe, "--out", tmp_path / "run", "--dry-run", "--json")
    data = json.loads(result.stdout)
    assert [stage["examples"] for stage in data["stages"]] == [6, 10]
    assert data["stages"][1]["memory"]["total"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_ctrl_c_says_how_to_go_on(
    recipe: Path, braid: Braid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from braid.train import run

    train = run.train

    def interrupted(*arguments: Any, on_progress: Any, **more: Any) -> Path:
        def watch(stage: str, step: int, steps: int, line: Mapping[str, float]) -> None:
            on_progress(stage, step, steps, line)
            if (stage, step) == ("2-streams", 3):
                raise KeyboardInterrupt

        return train(*arguments, on_progress=watch, **more)

    with monkeypatch.context() as patch:
        patch.setattr(run, "train", interrupted)
        result = braid("train", recipe, "--out", tmp_path / "run")
    assert result.exit_code == 130
    assert "Stopped in 2-streams, after step 3 of 5." in result.stderr
    assert "the same command goes on from it" in result.stderr
    result = braid("train", recipe, "--out", tmp_path / "run")
    assert result.exit_code == 0
    assert "Going on with 2-streams after step 2." in result.stderr


def test_what_cannot_be_is_told(recipe: Path, braid: Braid, tmp_path: Path) -> None:
    result = braid("train", tmp_path / "nowhere.yaml")
    assert result.exit_code == RecipeError.exit_code
    assert "cannot read" in result.stderr
    (tmp_path / "file").touch()
    result = braid("train", recipe, "--out", tmp_path / "file")
    assert result.exit_code == TrainingError.exit_code
    assert "file" in result.stderr
