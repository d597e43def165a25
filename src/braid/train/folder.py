"""The folder of a trained network: what `transformers` loads, and beside it what makes it a model of streams.

Checkpoints of a run and finished models have the same files, so that each checkpoint can be loaded, too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from braid.data.tokens import PAD, THINK, THINK_END, DataTokenizer
from braid.errors import TrainingError
from braid.model.checkpoint import TrainedStreams, TrainedTopology, write_streams
from braid.model.convert import quiet_transformers
from braid.streams.topology import Topology
from braid.train.network import StreamNetwork

__all__ = ["is_adapted", "load_weights", "stock_tokenizer", "write_network"]

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
    state: dict[str, Tensor] | None = None,
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
    with quiet_transformers():
        weights = _merged(network, state) if is_adapted(network) else network.settled(state)
        _stock(network).save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
    if is_adapted(network):
        save_file(
            {name: each.contiguous() for name, each in state.items() if "lora_" in name or not name.startswith("hf.")},
            folder / _ADAPTER,
        )
    if network.silence_id is not None:
        trained = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=network.silence_id)
        write_streams(folder, trained, state["stream_embeddings"])


def load_weights(folder: Path, network: StreamNetwork) -> None:
    """Put the weights of a folder that `write_network` wrote into a network.

    Raises:
        TrainingError: They do not fit.
    """
    try:
        if is_adapted(network):
            network.load_state_dict(load_file(folder / _ADAPTER), strict=False)
            return
        _take(network, _stock_weights(folder), folder)
        streams = folder / "braid.safetensors"
        with torch.no_grad():
            if network.stream_embeddings is not None and streams.is_file():
                network.stream_embeddings.copy_(load_file(streams)["stream_embeddings"])
            _take_silence(network)
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise TrainingError(f"{folder} cannot be gone on from: {error}") from error


def _stock_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return load_file(folder / "model.safetensors")
    files = sorted(set(cast("dict[str, str]", json.loads(index.read_text())["weight_map"]).values()))
    return {name: each for file in files for name, each in load_file(folder / file).items()}


def _take(network: StreamNetwork, weights: dict[str, Tensor], folder: Path) -> None:
    told = network.hf.load_state_dict(weights, strict=False)
    tied = {
        name
        for name, each in network.hf.state_dict(keep_vars=True).items()
        if each is network.hf.get_input_embeddings().weight
    }
    missing = [name for name in told.missing_keys if name not in tied]
    if missing or told.unexpected_keys:
        raise TrainingError(
            f"{folder} has other weights than the network: {', '.join([*missing, *told.unexpected_keys][:4])}"
        )


def _take_silence(network: StreamNetwork) -> None:
    """Of the tables, where `settled` put it."""
    if network.silence is None or network.silence_id is None:
        return
    table, head = network.hf.get_input_embeddings(), network.hf.get_output_embeddings()
    network.silence.copy_(table.weight[network.silence_id])
    if network.silence_head is not None:
        network.silence_head.copy_(head.weight[network.silence_id])


def _stock(network: StreamNetwork) -> PreTrainedModel:
    """The network without adapters around it."""
    return network.hf.get_base_model() if is_adapted(network) else network.hf  # type: ignore[operator, return-value]


def _merged(network: StreamNetwork, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of the stock network with the adapters merged in, and silence in its tables."""
    weights: dict[str, Tensor] = {}
    prefix = "hf.base_model.model."
    config = network.hf.peft_config["default"]  # type: ignore[index]
    for name, each in network.settled(state).items():
        name = f"hf.{name}"
        if "lora_" in name:
            continue
        plain = name.removeprefix(prefix).replace(".base_layer", "")
        if ".base_layer.weight" in name:
            stem = name.removesuffix(".base_layer.weight")
            down, up = state[f"{stem}.lora_A.default.weight"], state[f"{stem}.lora_B.default.weight"]
            each = each + (config.lora_alpha / config.r) * (up @ down)
        weights[plain] = each
    return weights


def remove(folder: Path) -> None:
    """A folder that is no use, such as a checkpoint that was cut off."""
    shutil.rmtree(folder, ignore_errors=True)
