"""What a run will cost, before it is begun: counted on its first examples, measured on a copy that is thrown away.

For each stage a few batches are laid out and counted, and a network of the stage takes a few real steps with them.
Nothing is written. How each figure comes about:

    examples, tokens, queries   of the first batches, times the number of examples
    weights, gradients          their bytes
    optimiser                   bytes of its state after a step
    activations                 bytes that autograd keeps from forward to backward for one batch, counted one by one
    seconds                     of a step, the laying out of its examples included, times the number of steps
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import set_seed

from braid.data.tokens import DataTokenizer
from braid.train.build import build_network, read_tokenizer
from braid.train.examples import reading_of
from braid.train.network import StreamNetwork
from braid.train.optimisers import optimiser_of
from braid.train.packing import pack
from braid.train.processes import device, num_processes
from braid.train.queries import Queries
from braid.train.recipe import Recipe, Stage
from braid.train.run import examples_of, stage_folders
from braid.train.step import backward, moved, now

__all__ = ["Estimate", "Memory", "StageEstimate", "estimate"]

_FEWEST_EXAMPLES = 64
"""That are counted, so that the figures of small batches say something."""

_TIMED = 3
"""Batches that are timed, after one that is not."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Args:
        weights, gradients, optimizer: While a step is taken.
        activations: Of one batch.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class StageEstimate:
    """A stage.

    Args:
        name: Of its folder.
        form: What its examples are trained as.
        steps: Optimiser steps.
        examples: Of all processes.
        tokens, probes: Kept tokens and probes of an example; together they are its queries.
        asked: Queries of an example that are asked for a label.
        parameters, trained: Of the network.
        memory: On each device, where processes do not share the network.
        seconds_a_step: Of this machine.
    """

    name: str
    form: str
    steps: int
    examples: int
    tokens: float
    probes: float
    asked: float
    parameters: int
    trained: int
    memory: Memory
    seconds_a_step: float

    @property
    def queries(self) -> float:
        """Of an example."""
        return self.tokens + self.probes

    @property
    def seconds(self) -> float:
        """Of the stage."""
        return self.steps * self.seconds_a_step

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            **asdict(self),
            "queries": self.queries,
            "all_tokens": round(self.examples * self.tokens),
            "all_queries": round(self.examples * self.queries),
            "memory": {**asdict(self.memory), "total": self.memory.total},
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Estimate:
    """A run.

    Args:
        name: Of the recipe.
        processes: That train together.
        device: Where it was measured.
        stages: One after another.
    """

    name: str
    processes: int
    device: str
    stages: tuple[StageEstimate, ...]

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "processes": self.processes,
            "device": self.device,
            "seconds": self.seconds,
            "stages": [stage.to_json() for stage in self.stages],
        }


def estimate(
    recipe: Recipe, out: Path | None = None, *, on_progress: Callable[[int, int], None] | None = None
) -> Estimate:
    """Count and measure a run without beginning it.

    Args:
        recipe: What is to be trained.
        out: Folder of the run, whose tokenizer is used if it is there already; nothing is written.
        on_progress: Is told how many stages are done, and of how many.

    Raises:
        TrainingError: It could not begin.
        DataError: An example cannot be used.
    """
    kept = out if out is not None and (out / "tokenizer.json").is_file() else None
    tokenizer, _ = read_tokenizer(recipe, kept)
    stages: list[StageEstimate] = []
    start = 0
    for folder in stage_folders(recipe, Path()):
        stages.append(_of_stage(recipe, folder.stage, folder.name, tokenizer, start))
        start += folder.stage.num_examples * num_processes()
        if on_progress is not None:
            on_progress(len(stages), len(recipe.stages))
    return Estimate(recipe.name, num_processes(), str(device()), tuple(stages))


def _of_stage(recipe: Recipe, stage: Stage, name: str, tokenizer: DataTokenizer, start: int) -> StageEstimate:
    set_seed(recipe.seed)
    network = build_network(recipe, stage, tokenizer).to(device()).train()
    num_batches = max(1 + _TIMED, math.ceil(_FEWEST_EXAMPLES / stage.batch))
    examples = examples_of(
        recipe,
        stage,
        tokenizer,
        start=start,
        count=num_batches * stage.batch,
        max_positions=network.max_positions,
    )
    began = time.perf_counter()
    drawn = [examples[index] for index in range(len(examples))]
    laying_out = (time.perf_counter() - began) / num_batches
    counted = Queries.joined(drawn)
    memory, computing, stepping = _measured(recipe, stage, network, drawn)
    trained = [each for each in network.parameters() if each.requires_grad]
    # Workers lay out while the network computes, several at once.
    apart = laying_out if not recipe.workers else max(0.0, laying_out / recipe.workers - computing)
    return StageEstimate(
        name=name,
        form=stage.form,
        steps=stage.steps,
        examples=stage.num_examples * num_processes(),
        tokens=float(counted.kept.sum()) / len(drawn),
        probes=float((~counted.kept).sum()) / len(drawn),
        asked=float((counted.weights > 0).sum()) / len(drawn),
        parameters=sum(each.numel() for each in network.parameters()),
        trained=sum(each.numel() for each in trained),
        memory=memory,
        seconds_a_step=stage.accumulate * (computing + apart) + stepping,
    )


def _measured(
    recipe: Recipe, stage: Stage, network: StreamNetwork, drawn: list[Queries]
) -> tuple[Memory, float, float]:
    """Memory, seconds of a batch and seconds of an optimiser's step."""
    optimiser = optimiser_of(network, stage)
    reading = reading_of(recipe.topology, stage.form)
    batches = [
        moved(pack(drawn[first : first + stage.batch], reading, order=stage.order))
        for first in range(0, (1 + _TIMED) * stage.batch, stage.batch)
    ]
    activations = _Kept(network)
    with activations:
        backward(recipe, network, batches[0])
    optimiser.step()
    computing = stepping = 0.0
    for batch in batches[1:]:
        began = now()
        backward(recipe, network, batch)
        middle = now()
        optimiser.step()
        optimiser.zero_grad()
        computing, stepping = computing + middle - began, stepping + now() - middle
    trained = [each for each in network.parameters() if each.requires_grad]
    memory = Memory(
        weights=_num_bytes(network.parameters()),
        gradients=_num_bytes(trained),
        optimizer=_num_bytes(_tensors(optimiser.state_dict())),
        activations=activations.num_bytes,
    )
    return memory, computing / _TIMED, stepping / _TIMED


class _Kept(torch.autograd.graph.saved_tensors_hooks):
    """Counts what autograd keeps for the backward pass, each storage once, the weights left out.

    Args:
        network: Whose weights they are.
    """

    def __init__(self, network: StreamNetwork) -> None:
        self.num_bytes = 0
        self._seen = {each.untyped_storage().data_ptr() for each in network.parameters()}
        self._held: list[Tensor] = []
        super().__init__(self._keep, lambda kept: kept)

    def __exit__(self, *failure: object) -> None:
        super().__exit__(*failure)  # type: ignore[arg-type]
        self._held.clear()

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self._held.append(tensor)  # so that no other tensor gets the same place
            self.num_bytes += storage.nbytes()
        return tensor


def _tensors(state: Any) -> list[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        return [state]
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for each in inner for tensor in _tensors(each)]


def _num_bytes(tensors: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
