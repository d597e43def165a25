"""The page on training: its recipe is one, and it tells every key."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from braid.train.recipe import Lora, Network, Recipe, Source, Stage, TokenizerWish

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)


def test_its_recipe_is_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "little.yaml"
    path.write_text(BLOCKS[0])
    assert Recipe.read(path).name == "little"


def test_its_pieces_fit_into_the_recipe(tmp_path: Path) -> None:
    whole = yaml.safe_load(BLOCKS[0])
    assert len(BLOCKS) == 4
    for block in BLOCKS[1:]:
        path = tmp_path / "piece.yaml"
        path.write_text(yaml.safe_dump({**whole, **yaml.safe_load(block)}))
        assert Recipe.read(path).name == "little"


def test_every_key_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", PAGE))
    for kind in (Recipe, Stage, Source, TokenizerWish, Network, Lora):
        assert set(kind.model_fields) - {"folder"} <= told, kind
