"""Put a finished run of `recipes/braid-stories.yaml` into the package: weights in half precision, how they came to be.

    braid train recipes/braid-stories.yaml --out runs/braid-stories
    braid train recipes/braid-stories.yaml --out runs/braid-stories --baseline
    python recipes/package.py runs/braid-stories

    RUN/1-turns ─┬─ 2-streams ── … ── 5-streams/model ──▶ braid-stories
                 └─ 2-turns ──── … ── 5-turns/model ────▶ braid-stories-turns

Beside the weights go the recipe, the log of every stage, and a manifest of the data: of each stage its sources, the
place of its first example, and the hash of its first examples as they are trained on; and of the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import typer
from safetensors.torch import load_file, save_file

from braid._version import __version__
from braid.data.tables import to_line
from braid.data.tokens import DataTokenizer
from braid.errors import BraidError
from braid.model.sources import PACKAGED
from braid.train.recipe import Form, Recipe
from braid.train.run import StageFolder, examples_of, stage_folders, train

RECIPE = Path(__file__).with_name("braid-stories.yaml")
HASHED = 1000
"""Examples of each stage that the manifest has the hash of."""

MOST_BYTES = 5_000_000
"""Of a packaged model, which everybody who installs Braid gets."""

_KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
         "braid.json", "braid.safetensors")  # fmt: skip


def package(path: Path, run: Path, form: Form, target: Path) -> int:
    """Package what the last stage of a form became; whatever goes wrong leaves the old one as it was.

    Args:
        path: The recipe.
        run: Folder of the run.
        form: `streams`, or `turns` for the baseline.
        target: Folder of the packaged model; its card stays.

    Returns:
        Bytes of all its files.
    """
    recipe = Recipe.read(path) if form == "streams" else Recipe.read(path).as_baseline()
    stages = stage_folders(recipe, run)
    _refuse_unfinished(recipe, run, stages)
    draft = target.with_name(f"{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    _halve(stages[-1].model, draft)
    shutil.copy(path, draft / "recipe.yaml")
    with (draft / "training.jsonl").open("w") as log:
        for stage in stages:
            for line in (stage.path / "log.jsonl").read_text().splitlines():
                log.write(json.dumps({"stage": stage.name, **json.loads(line)}) + "\n")
    (draft / "data.json").write_text(json.dumps(manifest(recipe, draft), indent=2) + "\n")
    if (target / "README.md").is_file():
        shutil.copy(target / "README.md", draft / "README.md")
    for file in draft.iterdir():
        file.chmod(0o644)
    num_bytes = sum(file.stat().st_size for file in draft.iterdir())
    if num_bytes > MOST_BYTES:
        shutil.rmtree(draft)
        sys.exit(f"{target.name} would have {num_bytes:,} bytes, and the package takes {MOST_BYTES:,}")
    shutil.rmtree(target, ignore_errors=True)
    draft.replace(target)
    return num_bytes


def _refuse_unfinished(recipe: Recipe, run: Path, stages: list[StageFolder]) -> None:
    """End where a stage is not done, or was another recipe's."""
    needed = [
        file
        for stage in stages
        for file in (stage.model / "model.safetensors", stage.path / "recipe.json", stage.path / "log.jsonl")
    ]
    missing = [str(file) for file in needed if not file.is_file()]
    if missing:
        sys.exit(f"the run is not complete: there is no {', '.join(missing)}")
    try:
        train(recipe, run)  # nothing is left to do, but another recipe's stages are refused
    except BraidError as error:
        sys.exit(str(error))


def _halve(source: Path, target: Path) -> None:
    """Copy a model's folder, its weights in half precision."""
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    weights = {name: each.half() for name, each in load_file(source / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": "float16"}, indent=2) + "\n")


def manifest(recipe: Recipe, folder: Path) -> dict[str, object]:
    """What it was trained on.

    Args:
        recipe: With its stages.
        folder: Of the model, whose tokenizer it is.
    """
    tokenizer = DataTokenizer.read(folder)
    told: dict[str, object] = {}
    start = 0
    for place in stage_folders(recipe, Path()):
        stage = place.stage
        hashed = min(HASHED, stage.num_examples)
        examples = examples_of(recipe, stage, tokenizer, start=start, count=hashed)
        digest = hashlib.sha256()
        for index in range(hashed):
            digest.update(to_line(examples.table(index).to_json()))
        told[place.name] = {
            "sources": [
                source.model_dump(mode="json", exclude_none=True)
                for source in stage.examples or recipe.examples
            ],
            "first": start,
            "examples": stage.num_examples,
            "hashed": hashed,
            "sha256": digest.hexdigest(),
        }
        start += stage.num_examples
    return {
        "seed": recipe.seed,
        "tokenizer": tokenizer.fingerprint,
        "stages": told,
        "braid": __version__,
    }


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python recipes/package.py RUN")
    forms: tuple[Form, ...] = ("streams", "turns")
    for each, target in zip(forms, PACKAGED.values(), strict=True):
        size = package(RECIPE, Path(sys.argv[1]), each, target)
        names = ", ".join(json.loads((target / "data.json").read_text())["stages"])
        typer.echo(f"{target.name}: {size / 1e6:.2f} MB, from {names}, into {target}")
    typer.echo("Their cards (README.md) have the figures of the models before them: measure, and write anew.")
