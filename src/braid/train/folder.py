"""The folder of a trained network: what `transformers` loads, and beside it what makes it a model of streams.

Checkpoints of a run and finished models have the same files, so that each checkpoint can be loaded, too.

    config.json, model.safetensors, tokenizer.json, …   as `transformers` has them; silence is a row of the tables
    braid.json, braid.safetensors                       streams and their embeddings, of a network that has them
    adapter.safetensors                                 of an adapted network: what a run goes on from
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from braid.data.tokens import PAD, THINK, THINK_END, DataTokenizer
from braid.errors import TrainingError
from braid.model.checkpoint import TrainedStreams, TrainedTopology, write_streams
from braid.model.convert import quiet_transformers
from braid.streams.topology import Topology
from braid.train.network import StreamNetwork, token_tables

__all__ = ["is_adapted", "load_weights", "remove", "stock_tokenizer", "sync", "write_network"]

_ADAPTER = "adapter.safetensors"
"""Weights of adapters alone, from which a run goes on; the network beside it has them merged in."""

_CHAT_TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + THINK + "{% endif %}"
)
"""How a model from scratch that takes turns is asked: as `serialise` lays its examples out."""


def stock_tokenizer(tokenizer: DataTokenizer, *, silence: str, end: str) -> PreTrainedTokenizerFast:
    """The tokenizer as `transformers` keeps it."""
    stock = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.tokenizer,
        eos_token=end,
        pad_token=PAD,
        extra_special_tokens=[silence, THINK, THINK_END],
        clean_up_tokenization_spaces=False,
    )
    stock.chat_template = _CHAT_TEMPLATE
    return stock


def is_adapted(network: StreamNetwork) -> bool:
    """Whether it has adapters of `peft`."""
    return hasattr(network.hf, "peft_config")


def write_network(
    folder: Path,
    network: StreamNetwork,
    tokenizer: Any,
    topology: Topology,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a network, its tokenizer and, where it has streams, what they are.

    Args:
        folder: Exists already, or is made.
        network: What was trained.
        tokenizer: Of `transformers`.
        topology: Of the streams.
        state: The network's weights, where they had to be gathered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = network.state_dict() if state is None else state
    weights = network.settled(state)
    with quiet_transformers():
        if is_adapted(network):
            _stock(network).save_pretrained(folder, state_dict=_merged(network, weights))
        else:
            _stock(network).save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
    if is_adapted(network):
        save_file(_trained_alone(state), folder / _ADAPTER)
    if network.silence_id is not None:
        trained = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=network.silence_id)
        write_streams(folder, trained, state["stream_embeddings"])


def load_weights(folder: Path, network: StreamNetwork) -> None:
    """Put the weights of a folder that `write_network` wrote into a network.

    Args:
        folder: A checkpoint, or the model of the stage before; what it has not, such as the streams of a network that
            took turns, stays as it is, and what only streams have is left behind by a network that takes turns.
        network: Of the same shape.

    Raises:
        TrainingError: They do not fit, or a file is damaged.
    """
    try:
        if is_adapted(network):
            weights = load_file(folder / _ADAPTER)
            if network.silence_id is None:
                weights = {name: each for name, each in weights.items() if "lora_" in name}
            told = network.load_state_dict(weights, strict=False)
            _refuse_others(
                folder, [name for name in told.missing_keys if "lora_" in name], told.unexpected_keys
            )
            return
        told = network.hf.load_state_dict(_stock_weights(folder), strict=False)
        _refuse_others(folder, _untied(network, told.missing_keys), told.unexpected_keys)
        streams = folder / "braid.safetensors"
        with torch.no_grad():
            if network.stream_embeddings is not None and streams.is_file():
                network.stream_embeddings.copy_(load_file(streams)["stream_embeddings"])
            network.take_silence()
    except (OSError, KeyError, RuntimeError, ValueError, SafetensorError) as error:
        raise TrainingError(
            f"{folder} cannot be gone on from ({error}); remove it to go on from what was before"
        ) from error


def sync(folder: Path) -> None:
    """Have all files of a folder on the disk, so that what is said about them holds after a power cut, too."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def remove(folder: Path) -> None:
    """A folder that is no use, such as a checkpoint that was cut off."""
    shutil.rmtree(folder, ignore_errors=True)


def _stock_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return load_file(folder / "model.safetensors")
    files = sorted(set(cast("dict[str, str]", json.loads(index.read_text())["weight_map"]).values()))
    return {name: each for file in files for name, each in load_file(folder / file).items()}


def _refuse_others(folder: Path, missing: list[str], unexpected: list[str]) -> None:
    if missing or unexpected:
        raise TrainingError(
            f"{folder} has other weights than the network: {', '.join([*missing, *unexpected][:4])}"
        )


def _untied(network: StreamNetwork, names: list[str]) -> list[str]:
    """Those that are not the table of the tokens under another name, which is written once."""
    table, _ = token_tables(network.hf)
    weights = network.hf.state_dict(keep_vars=True)
    return [name for name in names if weights[name] is not table.weight]


def _stock(network: StreamNetwork) -> PreTrainedModel:
    """The network without adapters around it."""
    hf: Any = network.hf
    return hf.get_base_model() if is_adapted(network) else hf


def _trained_alone(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adapters, and what only streams have."""
    return {
        name: each.contiguous()
        for name, each in state.items()
        if "lora_" in name or not name.startswith("hf.")
    }


def _merged(network: StreamNetwork, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the stock network with the adapters merged in.

    Not by `peft`, whose modules have no weights of their own where processes share them.
    """
    merged = {name: each for name, each in weights.items() if "lora_" not in name}
    for name, module in network.hf.named_modules():
        if f"{name}.lora_A.default.weight" in weights:
            down, up = weights[f"{name}.lora_A.default.weight"], weights[f"{name}.lora_B.default.weight"]
            added = cast("Any", module).scaling["default"] * (up @ down)
            key = f"{name}.base_layer.weight"
            merged[key] = merged[key] + (added.T if getattr(module, "fan_in_fan_out", False) else added)
    return {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): each
        for name, each in merged.items()
    }
