"""Estimates: what is counted is what a run uses, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from braid.train.build import build_network, read_tokenizer
from braid.train.estimate import Estimate, estimate
from braid.train.optimisers import optimiser_of
from braid.train.recipe import Recipe
from braid.train.run import examples_of
from tests.train.tiny import read_recipe, turns_then_streams


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    stages = turns_then_streams(accumulate=2, optimizer="adamw", probe_share=0.5)
    return read_recipe(tmp_path_factory.mktemp("estimate"), stages=stages)


@pytest.fixture(scope="module")
def found(recipe: Recipe) -> Estimate:
    return estimate(recipe, recipe.folder / "run")


def test_nothing_is_written(recipe: Recipe, found: Estimate) -> None:
    assert [path.name for path in recipe.folder.iterdir()] == ["recipe.yaml"]


def test_examples_tokens_and_queries_are_counted(recipe: Recipe, found: Estimate) -> None:
    turns, streams = found.stages
    assert [stage.name for stage in found.stages] == ["1-turns", "2-streams"]
    assert (turns.examples, streams.examples) == (3 * 2 * 2, 5 * 2 * 2)
    assert turns.probes == 0
    tokenizer, _ = read_tokenizer(recipe, None)
    # A stage begins where the one before it ended.
    examples = examples_of(recipe, recipe.stages[1], tokenizer, start=turns.examples, count=64)
    drawn = [examples[index] for index in range(64)]
    assert streams.tokens == sum(int(each.kept.sum()) for each in drawn) / 64
    assert streams.queries == pytest.approx(sum(len(each) for each in drawn) / 64)
    data = found.to_json()["stages"][1]
    assert data["all_queries"] == round(streams.examples * streams.queries)


def test_memory_is_that_of_the_tensors(recipe: Recipe, found: Estimate) -> None:
    tokenizer, _ = read_tokenizer(recipe, None)
    network = build_network(recipe, recipe.stages[1], tokenizer)
    stage = found.stages[1]
    count = sum(each.numel() for each in network.parameters())
    assert (stage.parameters, stage.trained) == (count, count)
    assert stage.memory.weights == stage.memory.gradients == 4 * count
    num_steps = sum(len(group["params"]) for group in optimiser_of(network, recipe.stages[1]).param_groups)
    assert stage.memory.optimizer == 8 * count + 4 * num_steps, "two moments, and a number a parameter"
    # At the least what each of the two layers takes in, for every query of a batch of two.
    assert stage.memory.activations > 2 * 4 * 16 * 2 * stage.queries


def test_time_is_measured(found: Estimate) -> None:
    assert found.seconds == pytest.approx(sum(stage.steps * stage.seconds_a_step for stage in found.stages))
    assert all(1e-4 < stage.seconds_a_step < 60 for stage in found.stages)


def test_a_stages_own_examples_are_counted(tmp_path: Path) -> None:
    own = {"builder": "outside", "seed": 4}
    stages = [{"steps": 3, "batch": 2, "warmup": 1}, {"steps": 3, "batch": 2, "warmup": 1, "examples": [own]}]
    recipe = read_recipe(tmp_path, stages=stages)
    tokenizer, _ = read_tokenizer(recipe, None)
    _, second = estimate(recipe).stages
    examples = examples_of(recipe, recipe.stages[1], tokenizer, start=6, count=64)
    assert all(examples.table(index).id.startswith("outside") for index in range(64))
    assert second.tokens == sum(int(examples[index].kept.sum()) for index in range(64)) / 64
