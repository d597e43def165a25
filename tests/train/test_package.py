"""`recipes/package.py`: what it puts into the package, and what it refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

import braid
from braid.data.tables import to_line
from braid.data.tokens import DataTokenizer
from braid.train.recipe import Recipe
from braid.train.run import examples_of, train
from tests.train.tiny import turns_then_streams, weights_of, write_recipe

THIRD = {"steps": 4, "batch": 2, "warmup": 1, "examples": [{"builder": "outside", "seed": 9}]}


@pytest.fixture(scope="module")
def package() -> ModuleType:
    path = Path(__file__).parents[2] / "recipes" / "package.py"
    spec = importlib.util.spec_from_file_location("package", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run of both branches beside it."""
    torch.set_num_threads(1)
    path = write_recipe(tmp_path_factory.mktemp("package"), stages=[*turns_then_streams(), THIRD])
    train(Recipe.read(path), path.parent / "run")
    train(Recipe.read(path).as_baseline(), path.parent / "run")
    return path


def test_both_branches_of_one_folder_are_packaged(package: ModuleType, recipe: Path, tmp_path: Path) -> None:
    run = recipe.parent / "run"
    for form, last in (("streams", "3-streams"), ("turns", "3-turns")):
        target = tmp_path / form
        target.mkdir()
        (target / "README.md").write_text("the card")
        (target / "old").touch()
        size = package.package(recipe, run, form, target)
        assert size == sum(file.stat().st_size for file in target.iterdir())
        assert (target / "README.md").read_text() == "the card"
        assert not (target / "old").exists()
        ours, theirs = weights_of(target), weights_of(run / last / "model")
        assert torch.equal(ours["model.norm.weight"], theirs["model.norm.weight"].half())
        assert (braid.load(target, threads=1).trained is not None) == (form == "streams")
        stages = {json.loads(line)["stage"] for line in (target / "training.jsonl").read_text().splitlines()}
        assert stages == {"1-turns", f"2-{form}", last}


def test_the_manifest_tells_each_stages_sources_and_first_examples(
    package: ModuleType, recipe: Path, tmp_path: Path
) -> None:
    package.package(recipe, recipe.parent / "run", "streams", tmp_path / "model")
    told = json.loads((tmp_path / "model" / "data.json").read_text())
    wanted, tokenizer = Recipe.read(recipe), DataTokenizer.read(tmp_path / "model")
    assert told["tokenizer"] == tokenizer.fingerprint
    assert list(told["stages"]) == ["1-turns", "2-streams", "3-streams"]
    starts = {"1-turns": 0, "2-streams": 6, "3-streams": 16}
    builders = {"1-turns": "stories", "2-streams": "stories", "3-streams": "outside"}
    for stage, (name, each) in zip(wanted.stages, told["stages"].items(), strict=True):
        assert [source["builder"] for source in each["sources"]] == [builders[name]]
        assert (each["first"], each["examples"]) == (starts[name], stage.num_examples)
        examples = examples_of(wanted, stage, tokenizer, start=starts[name])
        lines = [to_line(examples.table(index).to_json()) for index in range(stage.num_examples)]
        assert each["sha256"] == hashlib.sha256(b"".join(lines)).hexdigest()
        assert each["hashed"] == len(lines)


def test_what_is_refused_leaves_the_old_one(
    package: ModuleType, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(SystemExit, match=r"not complete: there is no .*3-streams"):
        package.package(recipe, tmp_path / "nothing", "streams", target)
    other = write_recipe(tmp_path / "other", seed=4, stages=[*turns_then_streams(), THIRD])
    with pytest.raises(SystemExit, match="begun with another recipe"):
        package.package(other, recipe.parent / "run", "streams", target)
    monkeypatch.setattr(package, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit, match="the package takes 1,000"):
        package.package(recipe, recipe.parent / "run", "streams", target)
    assert [path.name for path in tmp_path.iterdir() if path != other.parent] == ["model"]
    assert [path.name for path in target.iterdir()] == ["old"]
