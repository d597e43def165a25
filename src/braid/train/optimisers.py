"""Optimisers: AdamW, and Muon for the matrices with AdamW for all else, each with a pace for what only streams have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from braid.train.muon import Muon
from braid.train.network import StreamNetwork, token_tables
from braid.train.recipe import Stage

__all__ = ["Joined", "optimiser_of"]

_STREAM_PACE = 5.0
"""Stream vectors and silence are few and begin at nothing: by default they learn this much faster."""

_MATRIX_PACE = 2.0


class Joined(Optimizer):
    """Several optimisers as one, for whoever drives them.

    Args:
        parts: Each with parameters of its own.
    """

    def __init__(self, parts: Iterable[Optimizer]) -> None:
        self.parts = tuple(parts)
        self.defaults: dict[str, Any] = {}
        super().__init__([{"params": [nn.Parameter(torch.zeros(()))]}], {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of each."""
        told = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return told

    def state_dict(self) -> dict[str, Any]:
        """Of each."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into each."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def optimiser_of(network: StreamNetwork, stage: Stage) -> Optimizer:
    """What a stage asks for.

    Matrices decay; norms, biases, stream vectors and silence do not.
    """
    own = set(network.own_parameters)
    trained = {name: each for name, each in network.named_parameters() if each.requires_grad}
    tables = {id(table.weight) for table in token_tables(network.hf)}
    matrices, decayed, others, streams = [], [], [], []
    for name, each in trained.items():
        if name in own:
            streams.append(each)
        elif each.ndim < 2:
            others.append(each)
        elif stage.optimizer == "muon" and each.ndim == 2 and id(each) not in tables:
            matrices.append(each)
        else:
            decayed.append(each)
    rate = stage.learning_rate
    groups = [
        {"params": decayed, "weight_decay": stage.weight_decay},
        {"params": others, "weight_decay": 0.0},
        {"params": streams, "weight_decay": 0.0, "lr": stage.stream_learning_rate or rate * _STREAM_PACE},
    ]
    adam = AdamW(
        [group for group in groups if group["params"]],
        lr=rate,
        betas=(0.9, stage.beta2),
        eps=1e-8,
        foreach=True,
    )
    if stage.optimizer == "adamw" or not matrices:
        return adam
    muon = Muon(
        matrices,
        lr=stage.matrix_learning_rate or rate * _MATRIX_PACE,
        weight_decay=stage.weight_decay,
    )
    return Joined([muon, adam])
