"""Several processes on CPUs train as one does, each with a whole network or all sharing one (FSDP2)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import braid
from braid.errors import TrainingError
from braid.train import trainer
from braid.train.run import train
from tests.train import jobs
from tests.train.tiny import are_equal, largest_difference, read_recipe, turns_then_streams, write_recipe

ROOT = Path(__file__).parents[2]
STAGES = ("1-turns", "2-streams")
_MUON = {"optimizer": "muon", "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process that gathers four batches a step, in float64."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("alone")
    stages = turns_then_streams(accumulate=4, **_MUON)
    train(read_recipe(folder, dtype="float64", stages=stages), folder / "run")
    return folder / "run"


def _two(folder: Path, *, fsdp: bool) -> Path:
    """A recipe for two processes that gather two batches each."""
    stages = turns_then_streams(accumulate=2, **_MUON)
    return write_recipe(folder, dtype="float64", fsdp=fsdp, stages=stages)


@pytest.fixture(scope="module", params=[False, True], ids=["ddp", "fsdp2"])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes."""
    folder = tmp_path_factory.mktemp("together")
    assert jobs.train_together(_two(folder, fsdp=request.param), folder / "run") == [0, 0]
    return folder


def test_two_processes_end_with_the_weights_of_one(together: Path, alone: Path) -> None:
    for stage in STAGES:
        assert largest_difference(together / "run" / stage / "model", alone / stage / "model") < 1e-10
    assert largest_difference(alone / STAGES[0] / "checkpoint-2", alone / STAGES[0] / "model") > 1e-4
    assert braid.load(together / "run" / STAGES[1] / "checkpoint-4", threads=1).trained is not None


def test_two_processes_go_on_where_they_stopped(together: Path, tmp_path: Path) -> None:
    shutil.copytree(together, tmp_path / "x")
    stage = tmp_path / "x" / "run" / STAGES[1]
    shutil.rmtree(stage / "model")
    shutil.rmtree(stage / "checkpoint-5")
    assert jobs.train_together(tmp_path / "x" / "recipe.yaml", tmp_path / "x" / "run") == [0, 0]
    assert are_equal(stage / "model", together / "run" / STAGES[1] / "model")


def test_a_process_that_dies_ends_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    path = _two(tmp_path, fsdp=False)
    codes = jobs.train_together(path, tmp_path / "run", dying=1)
    assert codes == [TrainingError.exit_code, -signal.SIGKILL]
    assert (tmp_path / "error-0").read_text().startswith("a process of the run has ended: ")
    first = tmp_path / "run" / STAGES[0]
    assert trainer.last_checkpoint(first) == first / "checkpoint-2"


def test_fsdp_shares_the_network(tmp_path: Path) -> None:
    """Else the comparison above would compare one thing with itself."""
    path = _two(tmp_path, fsdp=True)
    assert jobs.train_together(path, tmp_path / "run", watching=True) == [0, 0]
    assert (tmp_path / "modules").read_text().split() == ["FSDPLlamaDecoderLayer", "FSDPStreamNetwork"]


@pytest.mark.slow
def test_torchrun_launches_the_command(tmp_path: Path, alone: Path) -> None:
    path = _two(tmp_path, fsdp=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "braid", "train"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, str(path), "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(str(tmp_path / "run" / STAGES[1] / "model"))
    assert largest_difference(tmp_path / "run" / STAGES[1] / "model", alone / STAGES[1] / "model") < 1e-10
