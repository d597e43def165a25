"""Recipes: what they may say, and that each mistake is told by its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from braid.errors import RecipeError
from braid.streams.presets import topology
from braid.train.recipe import Recipe
from tests.train.tiny import STREAMS, read_recipe, turns_then_streams

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_recipes_that_are_shipped_are_recipes(path: Path) -> None:
    assert Recipe.read(path).name == path.stem


def test_what_is_left_out_has_defaults(tmp_path: Path) -> None:
    recipe = read_recipe(tmp_path)
    assert (recipe.dtype, recipe.workers, recipe.fsdp, recipe.lora) == ("float32", 0, False, None)
    assert recipe.stages[0].form == "streams"
    assert recipe.stages[0].num_examples == 12


def test_a_topology_may_be_a_preset(tmp_path: Path) -> None:
    assert read_recipe(tmp_path, topology="solve").topology == topology("solve")


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    recipe = read_recipe(tmp_path, network={"base": "base"}, examples=[{"file": "data/x.jsonl"}])
    assert recipe.base == str(tmp_path / "base")
    file = recipe.examples[0].file
    assert file is not None
    assert recipe.at(file) == tmp_path / "data/x.jsonl"
    assert recipe.at(Path("/data/x.jsonl")) == Path("/data/x.jsonl")
    assert read_recipe(tmp_path, network={"base": "smollm2-135m"}).base == "smollm2-135m"


def test_the_baseline_takes_turns_in_every_stage(tmp_path: Path) -> None:
    recipe = read_recipe(tmp_path, stages=turns_then_streams())
    baseline = recipe.as_baseline()
    assert [stage.form for stage in baseline.stages] == ["turns", "turns"]
    assert [stage.steps for stage in baseline.stages] == [stage.steps for stage in recipe.stages]
    assert baseline.examples == recipe.examples


def test_an_output_may_count_nothing(tmp_path: Path) -> None:
    for weights in ({"thought": 0}, {"thought": 0, "output": 0, "user": 1}):
        assert read_recipe(tmp_path, stages=[{"steps": 1, "weights": weights}]).stages[0].weights == weights
    # Turns have no streams to weigh.
    weights = {"thought": 0, "output": 0}
    assert read_recipe(tmp_path, stages=[{"form": "turns", "steps": 1, "weights": weights}]).stages


def test_a_limit_that_is_not_set_is_not_told(tmp_path: Path) -> None:
    """So a run that was begun by a version without it goes on."""
    recipe = read_recipe(tmp_path, examples=[{"builder": "stories"}, {"builder": "audit", "most_steps": 2}])
    without, limited = recipe.model_dump(mode="json")["examples"]
    assert without.keys().isdisjoint({"most_steps", "largest", "faults"})
    assert limited["most_steps"] == 2


def test_a_stage_may_have_its_own_examples(tmp_path: Path) -> None:
    stages = turns_then_streams()
    stages[1]["examples"] = [{"file": "data/own.jsonl", "share": 2.0}]
    recipe = read_recipe(tmp_path, stages=stages)
    file = recipe.stages[1].examples[0].file
    assert file is not None
    assert recipe.at(file) == tmp_path / "data/own.jsonl"
    assert recipe.stages[0].examples == ()
    assert recipe.as_baseline().stages[1].examples == recipe.stages[1].examples
    # A stage with the recipe's says nothing of them, so a run that was begun by a version without them goes on.
    without, own = recipe.model_dump(mode="json")["stages"]
    assert "examples" not in without
    assert [source["file"] for source in own["examples"]] == ["data/own.jsonl"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {"stage": []}, "stage: unknown key; did you mean 'stages'?"),
    ("deep", {"stages": [{"steps": 1, "learnin_rate": 1}]}, "stages[0].learnin_rate: unknown key; did you mean"),
    ("none", {"stages": []}, "stages: "),
    ("type", {"stages": [{"steps": "many"}]}, "stages[0].steps: must be a valid integer"),
    ("range", {"stages": [{"steps": 1}, {"steps": 0}]}, "stages[1].steps: must be greater than or equal to 1, not 0"),
    ("share", {"stages": [{"steps": 1, "probe_share": 0}]}, "stages[0].probe_share: "),
    ("form", {"stages": [{"steps": 1, "form": "rows"}]}, "stages[0].form: must be 'streams' or 'turns'"),
    ("name", {"name": "a/b"}, "name: "),
    ("dtype", {"dtype": "float16"}, "dtype: must be 'float32', 'bfloat16' or 'float64'"),
    ("two sources", {"examples": [{"builder": "stories", "file": "x.jsonl"}]}, "examples[0]: a source"),
    ("no source", {"examples": [{}]}, "examples[0]: a source"),
    ("builder", {"examples": [{"builder": "storys"}]}, "examples[0].builder: "),
    ("places", {"examples": [{"builder": "isolation"}]}, "examples[0].builder: isolation cannot give"),
    ("split", {"examples": [{"builder": "stories", "split": "faults"}]}, "examples[0].split: stories has no"),
    ("file", {"examples": [{"file": "x.txt"}]}, "examples[0].file: x.txt is neither"),
    ("arrival", {"examples": [{"builder": "stories", "arrival": "pace"}]}, "did you mean 'paced'?"),
    ("most", {"examples": [{"builder": "stories", "most_steps": -1}]}, "examples[0].most_steps: "),
    ("faults", {"examples": [{"builder": "audit", "faults": ["typo"]}]}, "examples[0].faults: there is no kind"),
    ("faults of", {"examples": [{"builder": "stories", "faults": ["result"]}]}, "examples[0].faults: only the builder"),
    ("most of a file", {"examples": [{"file": "x.jsonl", "most_steps": 2}]}, "examples[0].most_steps: only a builder"),
    ("largest of a file", {"examples": [{"file": "x.jsonl", "largest": 9}]}, "examples[0].largest: only a builder"),
    ("weights", {"stages": [{"steps": 1, "weights": {"thougt": 1}}]}, "stages[0].weights: there is no stream"),
    ("seed", {"seed": -1}, "seed: must be greater than or equal to 0, not -1"),
    ("large seed", {"seed": 1 << 32}, "seed: must be less than 4294967296, not 4294967296"),
    ("negative", {"stages": [{"steps": 1, "weights": {"thought": -1}}]},
     "stages[0].weights.thought: must be greater than or equal to 0, not -1"),
    ("no number", {"stages": [{"steps": 1, "weights": {"thought": float("nan")}}]},
     "stages[0].weights.thought: must be a finite number"),
    ("nothing counts", {"stages": [{"steps": 1}, {"steps": 1, "weights": {"thought": 0, "output": 0}}]},
     "stages[1].weights: all outputs count 0"),
    ("own builder", {"stages": [{"steps": 1, "examples": [{"builder": "storys"}]}]}, "stages[0].examples[0].builder: "),
    ("own source", {"stages": [{"steps": 1, "examples": [{}]}]}, "stages[0].examples[0]: a source"),
    ("own file", {"stages": [{"steps": 1, "examples": [{"file": "x.txt"}]}]}, "stages[0].examples[0].file: x.txt is"),
    ("own limit", {"stages": [{"steps": 1, "examples": [{"file": "x.jsonl", "largest": 9}]}]},
     "stages[0].examples[0].largest: only a builder"),
    ("lora", {"lora": {}}, "lora: adapters need a stock network"),
    ("settings", {"network": {"base": "x", "settings": {"a": 1}}}, "network.settings: a stock model"),
    ("preset", {"topology": "solv"}, "did you mean 'solve'?"),
    ("decoding", {"topology": {"streams": STREAMS, "decoding": "views"}}, "topology.decoding: "),
    ("silence", {"topology": {"streams": STREAMS, "silence": "kept"}}, "topology.silence: "),
    ("streams", {"topology": {"streams": {"user": {"direction": "in"}}}}, "topology.streams.user.direction: must be"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_each_mistake_is_told(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as refusal:
        read_recipe(tmp_path, **changes)
    assert str(refusal.value).startswith(f"{tmp_path / 'recipe.yaml'}: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("- a\n- b\n", "recipe.yaml: "),
        ("name: x\nname: y\n", "the key 'name' stands here twice"),
        ("name: [\n", "recipe.yaml: "),
        ("\xff", "recipe.yaml: "),
    ],
    ids=["missing", "list", "twice", "torn", "no-mapping"],
)
def test_a_file_that_is_no_recipe_is_told(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"recipe\.yaml") as refusal:
        Recipe.read(path)
    assert message in str(refusal.value)
