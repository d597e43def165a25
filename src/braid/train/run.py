"""A run: the stages of a recipe one after another, in one folder, from wherever it stopped.

    RUN/tokenizer.json           of a network from scratch
    RUN/1-turns/                 a stage: its checkpoints while it runs, its log
    RUN/1-turns/model/           what it became; its being there says that the stage is done
    RUN/2-streams/…              begins with the model of the stage before

The baseline of a recipe is run in the same folder: stages that are the same for both are trained once.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, set_seed

from braid._version import __version__
from braid.data.stories import lexicon
from braid.data.tokens import DataTokenizer, train_tokenizer
from braid.errors import BraidError, RecipeError, TrainingError
from braid.streams.whole_file import whole_file
from braid.train.examples import Examples, reading_of, texts_of
from braid.train.folder import load_weights, stock_tokenizer, write_network
from braid.train.network import StreamNetwork
from braid.train.queries import Weighing
from braid.train.recipe import Recipe, Stage
from braid.train.trainer import StreamTrainer, arguments_of, last_checkpoint

__all__ = ["Progress", "StageFolder", "build_network", "read_tokenizer", "stage_folders", "train"]

Progress = Callable[[str, int, int, dict[str, float]], None]
"""Is told the stage, the step, of how many, and the line of the log."""


@dataclass(frozen=True)
class StageFolder:
    """A stage and where it is."""

    number: int
    stage: Stage
    path: Path

    @property
    def model(self) -> Path:
        """What it became."""
        return self.path / "model"

    @property
    def name(self) -> str:
        """Of the stage."""
        return self.path.name


def stage_folders(recipe: Recipe, out: Path) -> list[StageFolder]:
    """The stages, in order."""
    folders: list[StageFolder] = []
    path = ""
    for number, stage in enumerate(recipe.stages, start=1):
        path = f"{number}-{stage.form}"
        folders.append(StageFolder(number, stage, out / path))
    return folders


def train(recipe: Recipe, out: str | Path, *, on_progress: Progress | None = None) -> Path:
    """Run a recipe, or go on with it.

    Args:
        recipe: What is trained.
        out: Folder of the run.
        on_progress: Is told how far it is.

    Returns:
        The folder of the finished model.

    Raises:
        TrainingError: It cannot begin or go on; what was saved is intact.
        DivergedError: The loss is not finite.
        DataError: An example cannot be used.
    """
    out = Path(out)
    before: Path | None = None
    start = 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        tokenizer, stock = read_tokenizer(recipe, out)
        for folder in stage_folders(recipe, out):
            _remember(recipe, folder)
            if not folder.model.is_dir():
                _run_stage(recipe, folder, before, tokenizer, stock, start, on_progress)
            start += folder.stage.num_examples * _world_size()
            before = folder.model
    except OSError as error:
        raise TrainingError(
            f"{out}: {error.strerror or error}; the last checkpoint is intact, run the same command to go on from it"
        ) from error
    except RuntimeError as error:
        if isinstance(error, BraidError):
            raise
        if "DataLoader worker" in str(error) or "No space left" in str(error) or "iostream error" in str(error):
            raise TrainingError(
                f"{out}: {error}; the last checkpoint is intact, run the same command to go on from it"
            ) from error
        raise
    assert before is not None
    return before


def _run_stage(
    recipe: Recipe,
    folder: StageFolder,
    before: Path | None,
    tokenizer: DataTokenizer,
    stock: Any,
    start: int,
    on_progress: Progress | None,
) -> None:
    stage = folder.stage
    arguments = arguments_of(recipe, stage, folder.path)
    set_seed(recipe.seed)
    network = build_network(recipe, stage, tokenizer)
    if before is not None:
        load_weights(before, network)
    weighing = Weighing(stage.silence, stage.probe_share, dict(stage.weights))
    examples = Examples(
        recipe,
        tokenizer,
        stage.form,
        weighing,
        start=start,
        count=stage.num_examples * arguments.world_size,
    )
    log = _Log(folder, stage.steps, on_progress)
    reading = reading_of(recipe.topology, stage.form)
    trainer = StreamTrainer(network, arguments, stage, examples, reading, stock, recipe.topology, log)
    checkpoint = last_checkpoint(folder.path)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state = trainer.accelerator.get_state_dict(trainer.model)
    if arguments.should_save:
        draft = folder.path / ".model"
        shutil.rmtree(draft, ignore_errors=True)
        write_network(draft, trainer.network, stock, recipe.topology, state)
        draft.replace(folder.model)
    trainer.accelerator.wait_for_everyone()


class _Log:
    """The log of a stage: one JSON object a line, and whoever watches."""

    def __init__(self, folder: StageFolder, steps: int, on_progress: Progress | None) -> None:
        self._path, self._name, self._steps = folder.path / "log.jsonl", folder.name, steps
        self._on_progress = on_progress

    def __call__(self, line: dict[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._on_progress is not None:
            self._on_progress(self._name, int(line["step"]), self._steps, line)


def build_network(recipe: Recipe, stage: Stage, tokenizer: DataTokenizer) -> StreamNetwork:
    """The network of a stage, with the recipe's seed where it is from scratch.

    Raises:
        RecipeError: `transformers` cannot build it.
    """
    torch.manual_seed(recipe.seed)
    dtype = getattr(torch, recipe.dtype)
    wish = recipe.network
    if wish.base is None:
        try:
            config = AutoConfig.for_model(
                wish.model_type,
                **{
                    "vocab_size": tokenizer.tokenizer.get_vocab_size(),
                    "tie_word_embeddings": True,
                    "bos_token_id": None,
                    "eos_token_id": tokenizer.end_id,
                    "pad_token_id": tokenizer.pad_id,
                    **wish.settings,
                },
            )
            hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise RecipeError(f"network: transformers cannot build it: {error}") from error
    else:
        hf = _stock_network(wish.base, dtype)
    streams = len(recipe.topology.streams) if stage.form == "streams" else 0
    return StreamNetwork(
        _adapted(hf, recipe), streams, tokenizer.silence_id if stage.form == "streams" else None
    )


def _stock_network(base: str, dtype: torch.dtype) -> PreTrainedModel:
    from braid.model.loading import load

    return load(base).hf.to(dtype)


def _adapted(hf: PreTrainedModel, recipe: Recipe) -> Any:
    if recipe.lora is None:
        return hf
    from peft import LoraConfig, get_peft_model

    lora = recipe.lora
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    return get_peft_model(
        hf, LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets)
    )


def read_tokenizer(recipe: Recipe, out: Path) -> tuple[DataTokenizer, Any]:
    """The tokenizer of a run, for data and as `transformers` keeps it; trained and written at the first call."""
    wish = recipe.tokenizer
    if recipe.network.base is not None:
        return _stock_tokenizer(recipe)
    path = out / "tokenizer.json" if wish.file is None else recipe.at(wish.file)
    if not path.is_file():
        if wish.file is not None:
            raise RecipeError(f"tokenizer: there is no file {path}")
        words = (
            (*lexicon.THINGS, *lexicon.SHE, *lexicon.HE, *lexicon.PLACES, *lexicon.NUMBER_WORDS)
            if wish.words == "stories"
            else wish.words
        )
        made = train_tokenizer(texts_of(recipe), size=wish.size, words=words)
        with whole_file(path) as file:
            file.write(made.to_str(pretty=True).encode())
    try:
        tokenizer = DataTokenizer.read(path, silence=wish.silence, end=wish.end)
    except KeyError as error:
        raise RecipeError(f"tokenizer: {error.args[0]}") from error
    return tokenizer, stock_tokenizer(tokenizer, silence=wish.silence, end=wish.end)


def _stock_tokenizer(recipe: Recipe) -> tuple[DataTokenizer, Any]:
    from braid.model.loading import load

    assert recipe.network.base is not None
    wish = recipe.tokenizer
    stock = load(recipe.network.base).codec.hf
    try:
        return DataTokenizer(stock.backend_tokenizer, silence=wish.silence, end=wish.end), stock
    except KeyError as error:
        raise RecipeError(
            f"tokenizer: {error.args[0]}; name two tokens that {recipe.network.base} has, as tokenizer.silence and "
            "tokenizer.end"
        ) from error


def _remember(recipe: Recipe, folder: StageFolder) -> None:
    """Write down what a stage was asked for, and refuse to go on with another wish."""
    told = {
        **recipe.model_dump(mode="json", exclude={"stages", "save_every", "log_every", "trackers"}),
        "stages": [stage.model_dump(mode="json") for stage in recipe.stages[: folder.number]],
    }
    path = folder.path / "recipe.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        before.pop("braid", None)
        if before != json.loads(json.dumps(told)):
            changed = [name for name in told if before.get(name) != json.loads(json.dumps(told[name]))]
            raise TrainingError(
                f"{folder.path} was begun with another recipe ({', '.join(changed)}); train into another folder, or "
                "remove this one"
            )
        return
    if _is_first_process():
        folder.path.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write((json.dumps({"braid": __version__, **told}, indent=2) + "\n").encode())


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _is_first_process() -> bool:
    return os.environ.get("RANK", "0") == "0"
