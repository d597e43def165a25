"""Recipes so small that a step takes milliseconds."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from braid.train.recipe import Recipe

STREAMS: dict[str, Any] = {
    "user": {"direction": "input"},
    "thought": {"direction": "output"},
    "output": {"direction": "output"},
}
SETTINGS: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
}
_TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 3,
    "topology": {"streams": STREAMS, "reads": {"thought": ["user"]}},
    "examples": [{"builder": "stories", "seed": 1}],
    "tokenizer": {"size": 400, "texts": 40},
    "network": {"settings": SETTINGS},
    "stages": [{"steps": 6, "batch": 2, "warmup": 1}],
    "save_every": 2,
    "log_every": 1,
}


def turns_then_streams(**changes: Any) -> list[dict[str, Any]]:
    """Two stages of three and five steps."""
    common = {"batch": 2, "warmup": 1, **changes}
    return [{"form": "turns", "steps": 3, **common}, {"form": "streams", "steps": 5, **common}]


def tiny_dict(**changes: Any) -> dict[str, Any]:
    """A tiny recipe as plain data, some of its fields changed."""
    return {**copy.deepcopy(_TINY), **changes}


def write_recipe(folder: Path, **changes: Any) -> Path:
    """A tiny recipe as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_dict(**changes), sort_keys=False))
    return path


def read_recipe(folder: Path, **changes: Any) -> Recipe:
    """A tiny recipe that lies in a folder."""
    return Recipe.read(write_recipe(folder, **changes))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a model's folder, its stream embeddings among them."""
    return {
        name: each for path in sorted(folder.glob("*.safetensors")) for name, each in load_file(path).items()
    }


def are_equal(left: Path, right: Path) -> bool:
    """Whether two folders have the same weights, to the bit."""
    ours, theirs = weights_of(left), weights_of(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def largest_difference(left: Path, right: Path) -> float:
    """Of any weight of two folders."""
    ours, theirs = weights_of(left), weights_of(right)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
