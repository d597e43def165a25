"""What a run begins with: its tokenizer and its network, from scratch or of a stock model."""

from __future__ import annotations

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from braid.data.stories import lexicon
from braid.data.tokens import DataTokenizer, train_tokenizer
from braid.errors import RecipeError
from braid.model.architecture import inspect_architecture
from braid.model.checkpoint import TrainedTopology
from braid.model.convert import quiet_transformers
from braid.model.loading import LoadedParts, load_parts, models_home
from braid.streams.whole_file import whole_file
from braid.train.examples import texts_of
from braid.train.folder import stock_tokenizer
from braid.train.network import StreamNetwork
from braid.train.recipe import Recipe, Stage

__all__ = ["build_network", "read_tokenizer", "weights_dtype"]


def weights_dtype(recipe: Recipe) -> torch.dtype:
    """Of the weights while they are trained."""
    return torch.float64 if recipe.dtype == "float64" else torch.float32


def build_network(recipe: Recipe, stage: Stage, tokenizer: DataTokenizer) -> StreamNetwork:
    """The network of a stage, with the recipe's seed where it is from scratch.

    Args:
        recipe, stage: What is asked for.
        tokenizer: Of the model.

    Raises:
        RecipeError: `transformers` or `peft` cannot build it, or it is another one than the recipe needs.
        UnsupportedModelError: It has layers that cannot be trained on streams.
    """
    torch.manual_seed(recipe.seed)
    parts = _stock_parts(recipe) if recipe.network.base is not None else None
    hf = _from_scratch(recipe, tokenizer) if parts is None else parts.hf
    inspect_architecture(hf)
    size = tokenizer.tokenizer.get_vocab_size()
    if hf.config.vocab_size < size:
        raise RecipeError(
            f"network.settings.vocab_size: {hf.config.vocab_size} are too few, the tokenizer has {size} tokens; leave "
            "it out"
        )
    if recipe.lora is not None:
        hf = _adapted(hf, recipe)
    if stage.form == "turns":
        return StreamNetwork(hf, 0, None)
    network = StreamNetwork(hf, len(recipe.topology.streams), tokenizer.silence_id)
    if parts is not None and parts.stream_embeddings is not None:
        assert parts.trained is not None
        if parts.trained.silence_token_id != tokenizer.silence_id:
            raise RecipeError(
                f"tokenizer.silence: token {tokenizer.silence_id} is not the one that {recipe.network.base} was "
                f"trained with, {parts.trained.silence_token_id}"
            )
        assert network.stream_embeddings is not None
        with torch.no_grad():
            network.stream_embeddings.copy_(parts.stream_embeddings)
    return network


def read_tokenizer(recipe: Recipe, out: Path | None) -> tuple[DataTokenizer, Any]:
    """The tokenizer of a run, for data and as `transformers` keeps it.

    Args:
        recipe: What is asked for.
        out: Folder of the run, where one that is trained is kept; None trains it without keeping it.

    Raises:
        RecipeError: There is none, or it lacks a token.
    """
    wish = recipe.tokenizer
    if recipe.network.base is not None:
        stock = _stock_parts(recipe).tokenizer
        with _named_tokens(f"two tokens that {recipe.network.base} has"):
            tokenizer = DataTokenizer(stock.backend_tokenizer, silence=wish.silence, end=wish.end)
        stock.eos_token = wish.end  # whoever loads what was trained asks it what ends a turn
        return tokenizer, stock
    with _named_tokens("two of its tokens"):
        tokenizer = DataTokenizer(_own_tokenizer(recipe, out), silence=wish.silence, end=wish.end)
    return tokenizer, stock_tokenizer(tokenizer, silence=wish.silence, end=wish.end)


@contextmanager
def _named_tokens(what: str) -> Generator[None]:
    try:
        yield
    except KeyError as error:
        raise RecipeError(
            f"tokenizer: {error.args[0]}; name {what} as tokenizer.silence and tokenizer.end"
        ) from None


def _own_tokenizer(recipe: Recipe, out: Path | None) -> Tokenizer:
    """The one that the recipe names, or that is kept in the folder of the run, or a new one."""
    wish = recipe.tokenizer
    if recipe.tokenizer_file is not None:
        return _read_tokenizer(recipe.tokenizer_file)
    kept = None if out is None else out / "tokenizer.json"
    if kept is not None and kept.is_file():
        return _read_tokenizer(kept)
    words = wish.words
    if words == "stories":
        words = (*lexicon.THINGS, *lexicon.SHE, *lexicon.HE, *lexicon.PLACES, *lexicon.NUMBER_WORDS)
    made = train_tokenizer(texts_of(recipe), size=wish.size, words=words)
    if kept is not None:
        with whole_file(kept) as file:
            file.write(made.to_str(pretty=True).encode())
    return made


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  (tokenizers raises a bare Exception for whatever is wrong)
        raise RecipeError(f"tokenizer: {path} cannot be read: {error}") from None


def _from_scratch(recipe: Recipe, tokenizer: DataTokenizer) -> Any:
    settings: dict[str, Any] = {
        "vocab_size": tokenizer.tokenizer.get_vocab_size(),
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.end_id,
        "pad_token_id": tokenizer.pad_id,
        **recipe.network.settings,
    }
    try:
        config = AutoConfig.for_model(recipe.network.model_type, **settings)
        return AutoModelForCausalLM.from_config(config, dtype=weights_dtype(recipe))
    except Exception as error:  # configurations raise what they like, from ValueError to ZeroDivisionError
        raise RecipeError(f"network: transformers cannot build it: {error}") from error


def _stock_parts(recipe: Recipe) -> LoadedParts:
    """Network and tokenizer of a stock model, on the CPU; the Trainer moves them."""
    parts = load_parts(recipe.base, dtype=weights_dtype(recipe), device="cpu", cache_dir=models_home())
    if parts.trained is not None and parts.trained.topology != TrainedTopology.of(recipe.topology):
        raise RecipeError(
            f"network.base: {recipe.network.base} was trained on other streams than those of the recipe's topology; "
            f"they are {', '.join(parts.trained.topology.streams)}"
        )
    return parts


def _adapted(hf: Any, recipe: Recipe) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RecipeError("lora needs peft: pip install 'braid-llm[train]'") from None
    lora = recipe.lora
    assert lora is not None
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # peft asks transformers by a name that it will drop
            adapted = get_peft_model(hf, config)
    except ValueError as error:
        raise RecipeError(f"lora.targets: {error}") from error
    others = [
        name
        for name, module in adapted.named_modules()
        if hasattr(module, "lora_A") and not isinstance(cast("Any", module).get_base_layer(), nn.Linear)
    ]
    if others or hasattr(adapted.get_output_embeddings(), "lora_A"):
        raise RecipeError(
            f"lora.targets: only matrices between the tables of tokens get adapters, not {(others or ['the head'])[0]}"
        )
    return adapted
