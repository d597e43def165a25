"""Looking over a transformers folder before it is loaded, so that what is wrong with it has a name.

transformers itself would fill in missing weights at random, and fail on damaged files with errors of many kinds.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, cast

from braid.errors import ModelNotFoundError, UnsupportedModelError, WeightsCorruptError, WeightsMissingError

__all__ = ["check_folder", "check_safetensors", "read_config"]

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit


def check_folder(folder: Path) -> None:
    """Check that a folder holds a model that transformers knows, with all its weights, whole.

    Only headers and sizes are read.

    Args:
        folder: A transformers folder.

    Raises:
        ModelNotFoundError: It has no `config.json`.
        UnsupportedModelError: transformers does not know the model type, or the weights are pickles.
        WeightsMissingError: A weight file is not there.
        WeightsCorruptError: A file is truncated or damaged.
    """
    config = read_config(folder)
    _check_model_type(folder, config)
    for name in _weight_files(folder):
        path = folder / name
        if not path.is_file():
            raise WeightsMissingError(f"{folder} lacks {name}, which {_INDEX} names; fetch the model again")
        check_safetensors(path)


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's `config.json`.

    Args:
        folder: A transformers folder.

    Returns:
        Its contents.

    Raises:
        ModelNotFoundError: There is none.
        WeightsCorruptError: It is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFoundError(f"the folder {folder} has no config.json, so it is no transformers model")
    return _read_json(path)


def check_safetensors(path: Path) -> tuple[str, ...]:
    """Check a safetensors file's header and length.

    Args:
        path: The file.

    Returns:
        The names of its tensors.

    Raises:
        WeightsCorruptError: It is truncated or damaged.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LONGEST_HEADER + 1
        if length > _LONGEST_HEADER or 8 + length > size:
            raise WeightsCorruptError(
                f"{path} ends within its header, or is no safetensors file; fetch it again"
            )
        try:
            header = cast("dict[str, Any]", json.loads(file.read(length)))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            stop = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise WeightsCorruptError(f"the header of {path} is damaged ({error}); fetch it again") from error
    expected = 8 + length + stop
    if size != expected:
        raise WeightsCorruptError(
            f"{path} has {size:,} bytes where its header says {expected:,}; fetch it again"
        )
    return tuple(tensors)


def _weight_files(folder: Path) -> list[str]:
    """The names of the weight files, by the index or the single file."""
    if (folder / _SINGLE).is_file():  # transformers prefers it to an index
        return [_SINGLE]
    if (folder / _INDEX).is_file():
        index = _read_json(folder / _INDEX)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise WeightsCorruptError(f"{folder / _INDEX} has no weight_map; fetch it again")
        return sorted({str(name) for name in cast("dict[str, Any]", weight_map).values()})
    if any((folder / name).exists() for name in _PICKLES):
        raise UnsupportedModelError(
            f"{folder} has its weights as pickles, which can run code when they are read; convert them once, with "
            "AutoModelForCausalLM.from_pretrained(…).save_pretrained(…), where you trust them"
        )
    raise WeightsMissingError(f"{folder} has neither {_SINGLE} nor {_INDEX}; fetch the model's weights")


def _check_model_type(folder: Path, config: dict[str, Any]) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedModelError(f"{folder / 'config.json'} names no model_type")
    if model_type not in CONFIG_MAPPING:
        import transformers

        own_code = " It comes with code of its own, which Braid never runs." if "auto_map" in config else ""
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} does not know the model type {model_type!r} of {folder}."
            f"{own_code} A newer transformers may"
        )
    if model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedModelError(
            f"the model type {model_type!r} of {folder} is no decoder that predicts the next token; use a causal "
            "language model"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsCorruptError(f"{path} cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise WeightsCorruptError(f"{path} holds no JSON object; fetch it again")
    return cast("dict[str, Any]", found)
