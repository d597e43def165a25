"""The processes of a run, started by `torchrun` or `accelerate launch`; one where nothing started several."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import PartialState

__all__ = ["are_on_cpu", "device", "is_first_process", "leave", "num_processes", "wait_for_all"]


def are_on_cpu() -> bool:
    """Whether there is nothing but CPUs; `accelerate` connects several processes on them only when it is told."""
    return not torch.accelerator.is_available()


def num_processes() -> int:
    """How many train together."""
    return _state().num_processes


def device() -> torch.device:
    """Where this process computes."""
    return _state().device


def is_first_process() -> bool:
    """Whether this is the one that writes."""
    return _state().is_main_process


def wait_for_all() -> None:
    """Go on when all have come here."""
    _state().wait_for_everyone()


def leave() -> None:
    """End what connects them; harmless where nothing does."""
    _state().destroy_process_group()


def _state() -> Any:
    return PartialState(cpu=are_on_cpu())
