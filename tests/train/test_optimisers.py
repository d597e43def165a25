"""Optimisers: who is in which group, and that several are one for who saves them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from braid.train.muon import Muon
from braid.train.network import StreamNetwork
from braid.train.optimisers import Joined, optimiser_of
from braid.train.recipe import Stage
from tests.train.networks import stream_network


@pytest.fixture
def network() -> StreamNetwork:
    return stream_network("llama")


def _groups(
    network: StreamNetwork, optimiser: torch.optim.Optimizer
) -> list[tuple[set[str], dict[str, Any]]]:
    names = {id(each): name for name, each in network.named_parameters()}
    return [({names[id(each)] for each in group["params"]}, group) for group in optimiser.param_groups]


def test_each_parameter_is_in_one_group(network: StreamNetwork) -> None:
    for kind in ("adamw", "muon"):
        groups = _groups(network, optimiser_of(network, Stage(steps=1, optimizer=kind)))  # type: ignore[arg-type]
        names = [name for members, _ in groups for name in members]
        assert sorted(names) == sorted(name for name, _ in network.named_parameters())


def test_matrices_decay_and_streams_have_a_pace_of_their_own(network: StreamNetwork) -> None:
    stage = Stage(steps=1, learning_rate=1e-3, weight_decay=0.1)
    decayed, others, streams = _groups(network, optimiser_of(network, stage))
    assert "hf.model.embed_tokens.weight" in decayed[0]
    assert all(name.endswith("norm.weight") for name in others[0])
    assert streams[0] == {"stream_embeddings", "silence", "silence_head"}
    assert [group["weight_decay"] for _, group in (decayed, others, streams)] == [0.1, 0.0, 0.0]
    assert [group["lr"] for _, group in (decayed, others, streams)] == [1e-3, 1e-3, 5e-3]
    told = stage.model_copy(update={"stream_learning_rate": 7e-3})
    assert _groups(network, optimiser_of(network, told))[2][1]["lr"] == 7e-3


def test_muon_takes_the_matrices_between_the_tables(network: StreamNetwork) -> None:
    optimiser = optimiser_of(network, Stage(steps=1, optimizer="muon", learning_rate=1e-3))
    assert isinstance(optimiser, Joined)
    matrices, tables = _groups(network, optimiser)[:2]
    assert all(".layers." in name and name.endswith("proj.weight") for name in matrices[0])
    assert matrices[1]["lr"] == 2e-3
    assert tables[0] == {"hf.model.embed_tokens.weight", "hf.lm_head.weight"}


def test_what_is_frozen_is_in_no_group(network: StreamNetwork) -> None:
    network.hf.requires_grad_(False)
    (streams,) = _groups(network, optimiser_of(network, Stage(steps=1, optimizer="muon")))
    assert streams[0] == {"stream_embeddings", "silence", "silence_head"}


def _joined(seed: int) -> tuple[nn.Linear, Joined]:
    torch.manual_seed(seed)
    layer = nn.Linear(4, 4)
    parts = [Muon([layer.weight], lr=0.1), torch.optim.AdamW([layer.bias], lr=0.1)]
    return layer, Joined(parts)


def _steps(layer: nn.Linear, optimiser: Joined, seeds: range) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        optimiser.zero_grad()
        layer(torch.randn(3, 4)).square().sum().backward()
        optimiser.step()


def test_joined_optimisers_go_on_from_their_state() -> None:
    layer, optimiser = _joined(0)
    _steps(layer, optimiser, range(3))
    other, copy = _joined(1)
    other.load_state_dict(layer.state_dict())
    copy.load_state_dict(deepcopy(optimiser.state_dict()))
    _steps(layer, optimiser, range(3, 6))
    _steps(other, copy, range(3, 6))
    assert torch.equal(layer.weight, other.weight)
    assert torch.equal(layer.bias, other.bias)


def test_a_pace_that_is_set_from_outside_reaches_the_parts() -> None:
    layer, optimiser = _joined(0)
    optimiser.load_state_dict(optimiser.state_dict())
    for group in optimiser.param_groups:
        group["lr"] = 0.0
    before = layer.weight.clone(), layer.bias.clone()
    _steps(layer, optimiser, range(2))
    assert torch.equal(layer.weight, before[0])
    assert torch.equal(layer.bias, before[1])
