"""The parts of an optimiser's step, for whoever measures one by hand; a run has them in its Trainer."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from braid.train.network import StreamNetwork
from braid.train.processes import device
from braid.train.recipe import Recipe

__all__ = ["backward", "moved", "now"]


def backward(recipe: Recipe, network: StreamNetwork, batch: dict[str, Any]) -> None:
    """Forward and backward of a batch, computed in what the recipe asks for.

    Args:
        recipe, network: What is trained.
        batch: Of `packing.pack`, on the device.
    """
    with torch.autocast(device().type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
        loss = network(**batch)["loss"]
    loss.backward()


def moved(batch: Any) -> Any:
    """A batch on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device())
    if isinstance(batch, dict):
        return {name: moved(each) for name, each in batch.items()}
    return [moved(each) for each in batch] if isinstance(batch, list) else batch


def now() -> float:
    """Seconds of a clock, once the device has done all that it was given."""
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
