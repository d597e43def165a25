"""Folders of adapted networks, and of networks that begin from what is there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import braid
from braid.errors import RecipeError, TrainingError
from braid.train.build import build_network, read_tokenizer
from braid.train.examples import reading_of
from braid.train.folder import is_adapted, load_weights
from braid.train.network import StreamNetwork
from braid.train.packing import pack
from braid.train.recipe import Recipe
from braid.train.run import examples_of, train
from tests.model.folders import save_tiny
from tests.train.tiny import STREAMS, are_equal, read_recipe, turns_then_streams, weights_of

_BYTES = {"silence": "<|endoftext|>", "end": "<|im_end|>"}
_LORA: dict[str, Any] = {"rank": 4, "alpha": 8, "dropout": 0.1}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Adapters on a stock network that lies beside the recipe."""
    folder = tmp_path_factory.mktemp("adapted")
    save_tiny(folder / "base", tie_word_embeddings=request.param)
    return read_recipe(
        folder,
        network={"base": "base"},
        tokenizer=_BYTES,
        lora=_LORA,
        dtype="float64",
        stages=turns_then_streams(learning_rate=1e-2),
    )


@pytest.fixture(scope="module")
def run(recipe: Recipe) -> Path:
    torch.set_num_threads(1)
    train(recipe, recipe.folder / "run")
    return recipe.folder / "run"


def _logits(recipe: Recipe, network: StreamNetwork) -> torch.Tensor:
    stage = recipe.stages[1]
    examples = examples_of(recipe, stage, read_tokenizer(recipe, None)[0], count=2)
    packed = pack([examples[0], examples[1]], reading_of(recipe.topology, stage.form))
    with torch.no_grad():
        return network.eval().logits(*(packed[key] for key in ("ids", "streams", "rows", "plan", "asked")))


def test_merged_weights_give_the_logits_of_the_adapters(recipe: Recipe, run: Path) -> None:
    folder = run / "2-streams" / "model"
    tokenizer, _ = read_tokenizer(recipe, None)
    adapted = build_network(recipe, recipe.stages[1], tokenizer)
    assert is_adapted(adapted)
    untrained = _logits(recipe, adapted)
    load_weights(folder, adapted)
    expected = _logits(recipe, adapted)
    assert float((expected - untrained).abs().max()) > 1e-2

    plain = StreamNetwork(AutoModelForCausalLM.from_pretrained(folder), len(STREAMS), tokenizer.silence_id)
    assert plain.stream_embeddings is not None
    plain.stream_embeddings.data.copy_(weights_of(folder)["stream_embeddings"])
    assert float((_logits(recipe, plain) - expected).abs().max()) < 1e-10


def test_only_adapters_and_silence_differ_from_the_base(recipe: Recipe, run: Path) -> None:
    base, trained = weights_of(recipe.folder / "base"), weights_of(run / "2-streams" / "model")
    silence_id = read_tokenizer(recipe, None)[0].silence_id
    changed = {name for name in base if not torch.equal(base[name].double(), trained[name])}
    assert {name for name in changed if not name.endswith("proj.weight")} == {
        name for name in ("model.embed_tokens.weight", "lm_head.weight") if name in base
    }
    for name in changed & {"model.embed_tokens.weight", "lm_head.weight"}:
        differs = (base[name].double() != trained[name]).any(1)
        assert differs.nonzero().flatten().tolist() == [silence_id]


def test_an_adapted_model_loads_and_goes_on(recipe: Recipe, run: Path, tmp_path: Path) -> None:
    assert braid.load(run / "2-streams" / "model", threads=1).trained is not None
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "2-streams" / "model")
    shutil.rmtree(tmp_path / "run" / "2-streams" / "checkpoint-5")
    assert are_equal(train(recipe, tmp_path / "run"), run / "2-streams" / "model"), "dropout goes on, too"


def test_adapters_take_turns_after_streams(recipe: Recipe, tmp_path: Path) -> None:
    """The adapters go on; what only streams have is left behind."""
    shutil.copytree(recipe.folder / "base", tmp_path / "base")
    common = {"batch": 1, "warmup": 0}
    stages = [{"steps": 1, **common}, {"form": "turns", "steps": 1, "learning_rate": 1e-12, **common}]
    onwards = read_recipe(
        tmp_path, network={"base": "base"}, tokenizer=_BYTES, lora=_LORA, dtype="float64", stages=stages
    )
    model = train(onwards, tmp_path / "run")
    assert model == tmp_path / "run" / "2-turns-after-streams" / "model"
    first, second = (
        load_file(folder / "adapter.safetensors")
        for folder in (model.parents[1] / "1-streams" / "model", model)
    )
    assert {name for name in first if "lora_" not in name} >= {"stream_embeddings", "silence"}
    assert second.keys() == {name for name in first if "lora_" in name}
    assert max(float((second[name] - first[name]).abs().max()) for name in second) < 1e-10
    assert max(float(each.abs().max()) for name, each in first.items() if "lora_B" in name) > 1e-4
    assert braid.load(model, threads=1).trained is None


def test_a_trained_model_is_a_base_for_the_same_streams_only(
    recipe: Recipe, run: Path, tmp_path: Path
) -> None:
    base = str(run / "2-streams" / "model")
    stages = [{"steps": 1, "batch": 1, "warmup": 0}]
    onwards = read_recipe(tmp_path, network={"base": base}, tokenizer=_BYTES, stages=stages)
    network = build_network(onwards, onwards.stages[0], read_tokenizer(onwards, None)[0])
    assert network.stream_embeddings is not None
    assert torch.allclose(network.stream_embeddings.double(), weights_of(Path(base))["stream_embeddings"])

    streams = {"user": {"direction": "input"}, "output": {"direction": "output"}}
    other = read_recipe(
        tmp_path, network={"base": base}, tokenizer=_BYTES, topology={"streams": streams}, stages=stages
    )
    with pytest.raises(RecipeError, match=r"network\.base: .* was trained on other streams"):
        train(other, tmp_path / "run")


def test_weights_of_another_shape_are_refused(recipe: Recipe, run: Path, tmp_path: Path) -> None:
    smaller = read_recipe(tmp_path, lora=None)
    tokenizer, _ = read_tokenizer(smaller, None)
    network = build_network(smaller, smaller.stages[0], tokenizer)
    with pytest.raises(TrainingError, match="cannot be gone on from"):
        load_weights(run / "2-streams" / "model", network)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"targets": ["nowhere"]}}, r"lora\.targets: "),
        ({"lora": {"targets": ["embed_tokens"]}}, r"lora\.targets: only matrices between the tables"),
        ({"lora": {"targets": ["lm_head"]}}, r"lora\.targets: only matrices between the tables"),
        ({"tokenizer": {}}, "tokenizer: .*name two tokens that base has"),
        ({"tokenizer": {**_BYTES, "silence": "<hush>"}}, "'<hush>'"),
    ],
    ids=["nowhere", "table", "head", "tokens", "silence"],
)
def test_what_a_stock_model_cannot_give_is_told(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_tiny(tmp_path / "base")
    recipe = read_recipe(
        tmp_path, **{"network": {"base": "base"}, "tokenizer": _BYTES, "lora": _LORA, **changes}
    )
    with pytest.raises(RecipeError, match=message):
        train(recipe, tmp_path / "run")
