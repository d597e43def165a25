"""`braid bench training`: kinds are timed at equal queries, and queries are those that a run computes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braid.bench.training import TrainingFigures, bench_training
from braid.cli import app
from braid.errors import InputError
from braid.train.build import read_tokenizer
from braid.train.recipe import Recipe
from braid.train.run import examples_of
from tests.train.tiny import read_recipe, turns_then_streams, write_recipe

QUERIES, ROUNDS = 600, 4


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    stages = turns_then_streams(batch=4, probe_share=0.5, optimizer="muon")
    return read_recipe(tmp_path_factory.mktemp("bench"), stages=stages)


@pytest.fixture(scope="module")
def found(recipe: Recipe) -> TrainingFigures:
    told: list[tuple[int, int]] = []
    figures = bench_training(recipe, queries=QUERIES, rounds=ROUNDS, on_round=lambda *done: told.append(done))
    assert told == [(number, ROUNDS + 1) for number in range(ROUNDS + 1)]
    assert [path.name for path in recipe.folder.iterdir()] == ["recipe.yaml"], "nothing is written"
    return figures


def test_queries_of_an_example_are_those_that_are_computed(recipe: Recipe, found: TrainingFigures) -> None:
    tokenizer, _ = read_tokenizer(recipe, None)
    stage = recipe.stages[1]
    whole = stage.model_copy(update={"probe_share": 1.0})
    drawn = [examples_of(recipe, stage, tokenizer, count=200)[index] for index in range(200)]
    all_of = [examples_of(recipe, whole, tokenizer, count=200)[index] for index in range(200)]
    kind = found.to_dict()["kinds"]["streams"]
    assert kind["kept"] == pytest.approx(sum(int(each.kept.sum()) for each in drawn) / 200, abs=0.01)
    assert kind["queries_per_example"] == pytest.approx(sum(map(len, drawn)) / 200, abs=0.02)
    assert kind["all_probes"] == pytest.approx(
        sum(int((~each.kept).sum()) for each in all_of) / 200, abs=0.01
    )
    assert kind["kept"] < kind["queries_per_example"] < kind["kept"] + kind["all_probes"]


def test_kinds_are_timed_at_equal_queries(found: TrainingFigures) -> None:
    kinds = found.kinds
    assert set(kinds) == {"streams", "dense", "turns"}
    assert all(len(kind.seconds) == ROUNDS and min(kind.seconds) > 0 for kind in kinds.values())
    longest = 250
    for kind in kinds.values():
        assert abs(sum(kind.step_queries) - ROUNDS * QUERIES) < longest
        assert all(count >= 1 for count in kind.step_examples)
    # One stream has no probes, so more examples make as many queries; who reads whom changes none of them.
    assert kinds["turns"].probes == kinds["turns"].all_probes == 0
    assert kinds["turns"].kept == kinds["streams"].kept == kinds["dense"].kept
    assert sum(kinds["turns"].step_examples) > sum(kinds["streams"].step_examples)
    assert kinds["dense"].step_queries == kinds["streams"].step_queries


def test_ratios_are_of_the_medians(found: TrainingFigures) -> None:
    data = found.to_dict()
    kinds = data["kinds"]
    for name in ("streams", "dense"):
        ratio = kinds[name]["step_ms"] / kinds["turns"]["step_ms"]
        assert data[f"{name}_over_turns"] == pytest.approx(ratio, abs=0.01)


def test_what_cannot_be_compared_is_refused(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(InputError, match="no stage of streams"):
        bench_training(recipe.as_baseline())
    with pytest.raises(InputError, match="at least one round"):
        bench_training(recipe, rounds=0)
    with pytest.raises(InputError, match="a query or more"):
        bench_training(recipe, queries=0)


def test_the_command(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    done = CliRunner().invoke(app, ["bench", "training", str(path), "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout.splitlines()[-1])
    assert data["recipe"] == "tiny"
    assert data["kinds"]["turns"]["probes"] == 0
