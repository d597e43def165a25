"""Runs in processes of their own, to be killed. A server forks them, which has imported everything once.

start(train_and_die, …)      ends by SIGKILL, where it is told
start(train_in, …)           one of several processes that train together
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from braid.errors import BraidError
from braid.train.processes import leave
from braid.train.recipe import Recipe
from braid.train.run import train

_SECONDS = 200
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


def start(job: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a job."""
    process = _CONTEXT.Process(target=_quietly, args=(job, arguments))
    process.start()
    return process


def wait_for(process: BaseProcess) -> int:
    """Its exit code; minus the signal that ended it."""
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"the job did not end within {_SECONDS} seconds")
    return process.exitcode


def _quietly(job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    job(*arguments)


def die() -> None:
    """As `kill -9` does it."""
    os.kill(os.getpid(), signal.SIGKILL)


def train_and_die(recipe: Path, out: Path, stage: str, step: int) -> None:
    """Train, and die after a step."""

    def watch(name: str, done: int, of: int, line: Mapping[str, float]) -> None:
        if (name, done) == (stage, step) and line:
            die()

    train(Recipe.read(recipe), out, on_progress=watch)


def train_and_die_writing(recipe: Path, out: Path, checkpoint: str) -> None:
    """Train, and die in the middle of a checkpoint, with half a file written."""
    save = torch.save

    def save_half(data: object, path: str) -> None:
        if checkpoint in str(path):
            Path(path).write_bytes(b"half of it")
            die()
        save(data, path)

    torch.save = save_half  # type: ignore[assignment]
    train(Recipe.read(recipe), out)


def train_together(
    recipe: Path, out: Path, processes: int = 2, *, dying: int | None = None, watching: bool = False
) -> list[int]:
    """Train in several processes.

    Args:
        recipe, out: As `train` takes them.
        processes: How many.
        dying: The one that dies in the third step of the first stage, if one is to.
        watching: Whether the first one writes to `modules` beside the run which modules processes share.

    Returns:
        Their exit codes; what a process refuses stands in `error-N` beside the run.
    """
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = [
        start(train_in, recipe, out, rank, processes, port, rank == dying, watching and rank == 0)
        for rank in range(processes)
    ]
    return [wait_for(each) for each in started]


def train_in(
    recipe: Path, out: Path, rank: int, processes: int, port: int, is_dying: bool, is_watching: bool
) -> None:
    """What one of several processes does."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    if is_dying:
        _die_in_step(3)
    if is_watching:
        _note_modules(out.parent / "modules")
    try:
        train(Recipe.read(recipe), out)
        leave()
    except BraidError as error:
        (out.parent / f"error-{rank}").write_text(str(error))
        raise SystemExit(error.exit_code) from None


def _die_in_step(step: int) -> None:
    """Die before the batches of a step are computed."""
    from braid.train.trainer import StreamTrainer

    training_step = StreamTrainer.training_step

    def step_or_die(self: StreamTrainer, *arguments: Any, **more: Any) -> Any:
        if self.state.global_step == step - 1:
            die()
        return training_step(self, *arguments, **more)

    StreamTrainer.training_step = step_or_die  # type: ignore[method-assign]


def _note_modules(path: Path) -> None:
    """Write down the modules that processes share."""
    from braid.train.trainer import StreamTrainer

    gathered_state = StreamTrainer.gathered_state

    def note(self: StreamTrainer) -> dict[str, torch.Tensor]:
        kinds = {type(module).__name__ for module in self.model.modules() if isinstance(module, FSDPModule)}
        path.write_text(" ".join(sorted(kinds)))
        return gathered_state(self)

    StreamTrainer.gathered_state = note  # type: ignore[method-assign]
