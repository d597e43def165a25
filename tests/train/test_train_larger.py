"""`bench/gpu/train_larger.py` on the CPU, in miniature: from an empty folder to its figures, and on again."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.train.build import build_network, read_tokenizer
from braid.train.recipe import Recipe


def _loaded() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "gpu" / "train_larger.py"
    spec = importlib.util.spec_from_file_location("train_larger", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_larger"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


larger = _loaded()


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-3, 10)), min_size=1, max_size=4),
    st.floats(0, 1e5),
)
def test_steps_are_cut_to_what_fits(stages: list[tuple[int, float]], seconds: float) -> None:
    wanted, times = [count for count, _ in stages], [each for _, each in stages]
    steps = larger.cut(wanted, times, seconds)
    assert all(1 <= count <= most for count, most in zip(steps, wanted, strict=True))
    taken = sum(count * each for count, each in zip(steps, times, strict=True))
    assert taken <= seconds + sum(times) + 1e-6, "but for the one step that each stage takes at the least"
    if sum(count * each for count, each in stages) <= seconds:
        assert steps == wanted


def test_the_recipe_is_the_default_one_but_larger() -> None:
    recipe, small = Recipe.read(larger.RECIPE), Recipe.read(larger.RECIPE.with_name("braid-stories.yaml"))
    assert (recipe.topology, recipe.examples, recipe.tokenizer) == (
        small.topology,
        small.examples,
        small.tokenizer,
    )
    # The small one comes back to the last.
    for ours, theirs in zip(recipe.stages, small.stages, strict=False):
        assert (ours.form, ours.examples, ours.weights) == (theirs.form, theirs.examples, theirs.weights)
        assert ours.num_examples > theirs.num_examples
    assert sum(s.num_examples for s in recipe.stages) > sum(s.num_examples for s in small.stages)
    few = recipe.model_copy(update={"tokenizer": recipe.tokenizer.model_copy(update={"texts": 20})})
    tokenizer, _ = read_tokenizer(few, None)
    count = sum(each.numel() for each in build_network(recipe, recipe.stages[1], tokenizer).parameters())
    assert 12e6 < count < 25e6


@pytest.mark.slow
def test_it_trains_evaluates_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(
        "braid.eval.play._PATIENCE", 4
    )  # it has learned nothing, and never falls silent by itself
    monkeypatch.setenv("OUT", str(tmp_path / "figures"))
    command = ["--miniature", "--run", str(tmp_path / "run")]
    larger.main(command)
    assert {each.name for each in tmp_path.iterdir()} == {"run", "figures"}
    told = json.loads((tmp_path / "figures" / "training.json").read_text())
    assert [stage["name"] for stage in told["stages"]] == ["1-turns", "2-streams", "3-streams"]
    assert all(stage["steps"] == stage["wanted_steps"] == 6 for stage in told["stages"])
    for stage in told["stages"]:
        assert stage["tokens_a_second"] > stage["examples_a_second"] > 0
        assert stage["ms_a_step"] > 0
    for task in ("solve", "audit"):
        found = json.loads((tmp_path / "figures" / f"eval-{task}.json").read_text())
        assert found["n"] == 4
        assert "numbers" in found["splits"]
    assert "ms a step" in capsys.readouterr().out
    recipe = larger.fitted(larger.miniature(Recipe.read(larger.RECIPE)), tmp_path / "run", 0.0, 4)
    assert [stage.steps for stage in recipe.stages] == [6, 6, 6], "a run that goes on is cut as it was begun"


def test_without_a_gpu_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"no CUDA device .* --miniature"):
        larger.main(["--run", str(tmp_path / "run")])
    assert list(tmp_path.iterdir()) == []
