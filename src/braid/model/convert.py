"""From a GGUF file to a transformers folder that loads in a moment.

Quantised weights are stored as float32: neither bfloat16 nor float16 holds every dequantised value exactly.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from braid.errors import TokenizerError, UnsupportedModelError, WeightsCorruptError, WeightsMissingError
from braid.model.progress import Progress, Report

__all__ = ["convert_gguf", "fingerprint", "quiet_transformers"]

_STEPS = 4

# How byte-level BPE cuts text before merging, by GGUF's name for it. transformers knows some names and cuts as
# GPT-2 does for all others; that is right for these …
_CUT_LIKE_GPT2 = frozenset({"default", "gpt-2", "gpt2", "jais", "mpt", "olmo", "phi-2", "trillion"})
# … these set every digit apart first …
_CUT_WITH_SINGLE_DIGITS = frozenset(
    {"codeshell", "command-r", "exaone", "minerva-7b", "refact", "smollm", "starcoder"}
)
# … and for the rest it would tokenise otherwise than the model was trained, so they are refused.

_SAMPLE_BYTES = 1 << 20


def convert_gguf(gguf: Path, folder: Path, report: Report) -> None:
    """Convert a GGUF file to configuration, tokenizer and float32 safetensors.

    Args:
        gguf: The file.
        folder: An existing folder for what comes out.
        report: Told after each step.

    Raises:
        WeightsCorruptError: The file is truncated or no GGUF file.
        WeightsMissingError: It lacks tensors that its architecture needs.
        UnsupportedModelError: transformers cannot read its architecture, or it is one part of several.
        TokenizerError: Its tokenizer cannot be rebuilt faithfully.
    """
    report(Progress("convert", "Checking the GGUF file", 0, _STEPS))
    pre_tokenizer = _check_gguf(gguf)
    with quiet_transformers():
        report(Progress("convert", "Converting the weights", 1, _STEPS))
        model = _read_weights(gguf)
        report(Progress("convert", "Converting the tokenizer", 2, _STEPS))
        tokenizer = _read_tokenizer(gguf, pre_tokenizer)
        report(Progress("convert", "Storing it for quick loading", 3, _STEPS))
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
    report(Progress("convert", "Converted and stored", _STEPS, _STEPS))


def fingerprint(path: Path) -> str:
    """Tell one file from another without reading gigabytes: size, time of change, start, middle and end.

    Args:
        path: The file.

    Returns:
        16 hexadecimal digits.
    """
    status = path.stat()
    digest = hashlib.sha256(f"{status.st_size} {status.st_mtime_ns}".encode())
    with path.open("rb") as file:
        for start in (0, status.st_size // 2, max(0, status.st_size - _SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


@contextmanager
def quiet_transformers() -> Generator[None]:
    """Keep transformers' progress bars and warnings off the terminal inside the block."""
    from transformers.utils import logging

    gguf_utils: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    had_bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    gguf_bars = getattr(gguf_utils, "tqdm", None)  # one bar that the switch above does not reach
    if gguf_bars is not None:
        gguf_utils.tqdm = partial(gguf_bars, disable=True)
    try:
        yield
    finally:
        if gguf_bars is not None:
            gguf_utils.tqdm = gguf_bars
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def _check_gguf(path: Path) -> str | None:
    """Walk the file's header and the extent of every tensor.

    Returns:
        How the tokenizer cuts text before merging, if it is byte-level BPE; else None.
    """
    from gguf import GGUFReader

    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise WeightsCorruptError(f"{path} does not start as a GGUF file does; fetch it again")
    try:
        reader = GGUFReader(path)
        split = _field(reader, "split.count", 1)
        model = _field(reader, "tokenizer.ggml.model", None)
        cut = _field(reader, "tokenizer.ggml.pre", "default")
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        size = path.stat().st_size
        raise WeightsCorruptError(
            f"{path} is damaged or ends too early ({size:,} bytes; {error}); fetch it again"
        ) from error
    if split > 1:
        raise UnsupportedModelError(
            f"{path} is one of {split} parts; join them with `gguf-split --merge` and give the whole file"
        )
    return cut if model == "gpt2" else None


def _field(reader: Any, key: str, default: Any) -> Any:
    field = reader.get_field(key)
    return default if field is None else field.contents()


def _read_tokenizer(gguf: Path, cut: str | None) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    except (ValueError, KeyError, TypeError, ImportError) as error:
        raise TokenizerError(f"the tokenizer of {gguf.name} cannot be rebuilt ({error!r})") from error
    backend = tokenizer.backend_tokenizer
    if cut is None or not isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
        return tokenizer
    if cut in _CUT_WITH_SINGLE_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif cut not in _CUT_LIKE_GPT2:
        raise TokenizerError(
            f"{gguf.name} cuts text by the rule {cut!r}, which cannot be rebuilt from the file, so the model would "
            "read other tokens than it was trained on; use the model's own folder or hub id instead"
        )
    return tokenizer


def _read_weights(gguf: Path) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedModelError(f"transformers cannot read {gguf.name}: {error}") from error
    model, report = cast("tuple[Any, dict[str, Any]]", loaded)
    if report["missing_keys"]:
        names = ", ".join(sorted(report["missing_keys"])[:3])
        raise WeightsMissingError(
            f"{gguf.name} lacks {len(report['missing_keys'])} weights, among them {names}"
        )
    # The weights are plain float32 now, but transformers still takes the model for a quantised one and would
    # refuse to save it.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model
