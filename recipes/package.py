"""Put a finished run of `recipes/braid-stories.yaml` into the package: weights in half precision, how they came to be.

    python recipes/package.py runs/braid-stories

Beside the weights go the recipe, the log of every stage, and a manifest of the data: each source with the hash of its
first examples as they are trained on, and of the tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from braid._version import __version__
from braid.data.tables import to_line
from braid.data.tokens import DataTokenizer
from braid.model.sources import PACKAGED
from braid.train.examples import Examples
from braid.train.queries import Weighing
from braid.train.recipe import Form, Recipe

RECIPE = Path(__file__).with_name("braid-stories.yaml")
HASHED = 1000
"""Examples of each form that the manifest has the hash of."""

_KEPT = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
         "braid.json", "braid.safetensors")  # fmt: skip


def package(run: Path, form: Form, target: Path) -> None:
    """Package what the last stage of a form became."""
    recipe = Recipe.read(RECIPE) if form == "streams" else Recipe.read(RECIPE).as_baseline()
    stages = [f"{number}-{stage.form}" for number, stage in enumerate(recipe.stages, start=1)]
    source = run / stages[-1] / "model"
    needed = [
        source / "model.safetensors",
        source / "config.json",
        *(run / stage / "log.jsonl" for stage in stages),
    ]
    missing = [str(path) for path in needed if not path.is_file()]
    if missing:
        sys.exit(f"the run is not complete: there is no {', '.join(missing)}")
    final = target
    target = final.with_name(f"{final.name}.new")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _KEPT:
        if (source / name).is_file():
            shutil.copy(source / name, target / name)
    weights = {name: each.half() for name, each in load_file(source / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": "float16"}, indent=2) + "\n")
    shutil.copy(RECIPE, target / "recipe.yaml")
    with (target / "training.jsonl").open("w") as log:
        for stage in stages:
            for line in (run / stage / "log.jsonl").read_text().splitlines():
                log.write(json.dumps({"stage": stage, **json.loads(line)}) + "\n")
    (target / "data.json").write_text(json.dumps(manifest(recipe, target), indent=2) + "\n")
    if (final / "README.md").is_file():
        shutil.copy(final / "README.md", target / "README.md")
    for path in target.iterdir():
        path.chmod(0o644)
    shutil.rmtree(final, ignore_errors=True)
    target.replace(final)


def manifest(recipe: Recipe, folder: Path) -> dict[str, object]:
    """What it was trained on."""
    tokenizer = DataTokenizer.read(folder)
    hashes: dict[str, str] = {}
    for form in dict.fromkeys(stage.form for stage in recipe.stages):
        examples = Examples(recipe, tokenizer, form, Weighing(), count=HASHED)
        digest = hashlib.sha256()
        for index in range(HASHED):
            digest.update(to_line(examples.table(index).to_json()))
        hashes[form] = digest.hexdigest()
    return {
        "sources": [source.model_dump(mode="json", exclude_none=True) for source in recipe.examples],
        "seed": recipe.seed,
        "examples": {
            f"{n}-{stage.form}": stage.num_examples for n, stage in enumerate(recipe.stages, start=1)
        },
        "tokenizer": tokenizer.fingerprint,
        f"sha256_of_first_{HASHED}": hashes,
        "braid": __version__,
    }


if __name__ == "__main__":
    package(Path(sys.argv[1]), "streams", PACKAGED["braid-stories"])
    package(Path(sys.argv[1]), "turns", PACKAGED["braid-stories-turns"])
