"""A run: the stages of a recipe one after another, in one folder, from wherever it stopped.

    RUN/tokenizer.json           of a network from scratch
    RUN/1-turns/                 a stage: what it was asked for, its log, its checkpoints
    RUN/1-turns/model/           what it became; its being there says that the stage is done
    RUN/2-streams/…              begins with the model of the stage before

The baseline of a recipe is run in the same folder: stages that are the same for both are trained once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout
from transformers import set_seed

from braid._version import __version__
from braid.data.files import sha256_of
from braid.data.tokens import DataTokenizer
from braid.errors import RecipeError, TrainingError
from braid.streams.whole_file import whole_file
from braid.train.build import build_network, read_tokenizer
from braid.train.examples import Examples, reading_of
from braid.train.folder import load_weights, remove, sync, write_network
from braid.train.processes import is_first_process, num_processes, wait_for_all
from braid.train.queries import Weighing
from braid.train.recipe import Recipe, Stage
from braid.train.trainer import (
    StreamTrainer,
    arguments_of,
    clear_cut_off,
    is_lost_process,
    last_checkpoint,
    steps_of,
    writing,
)

__all__ = ["Progress", "StageFolder", "examples_of", "stage_folders", "train"]

Progress = Callable[[str, int, int, Mapping[str, float]], None]
"""Is told the stage, the step, of how many, and the line of the log; where a stage begins or goes on, an empty one."""

_GO_ON = "the last checkpoint is intact, run the same command to go on from it"
_NOT_ASKED = {"stages", "save_every", "log_every", "trackers", "workers"}
"""Fields of a recipe that may differ when a run goes on; of the stages, those up to it count."""


@dataclass(frozen=True)
class StageFolder:
    """A stage and where it is.

    Args:
        number: From 1.
        stage: What is asked for.
        path: Its folder.
    """

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
    had_streams = False
    for number, stage in enumerate(recipe.stages, start=1):
        # The baseline has a stage of this number and form, too, which began with another network.
        suffix = "-after-streams" if had_streams and stage.form == "turns" else ""
        folders.append(StageFolder(number, stage, out / f"{number}-{stage.form}{suffix}"))
        had_streams = had_streams or stage.form == "streams"
    return folders


def train(recipe: Recipe, out: str | Path, *, on_progress: Progress | None = None) -> Path:
    """Run a recipe, or go on with it.

    Args:
        recipe: What is trained.
        out: Folder of the run.
        on_progress: Is told how far it is, in the first process.

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
        with _alone(out):
            tokenizer, stock = _shared_tokenizer(recipe, out)
            _check_own_examples(recipe, out, tokenizer)
            for folder in stage_folders(recipe, out):
                _remember(recipe, folder)
                if not folder.model.is_dir():
                    _run_stage(recipe, folder, before, (tokenizer, stock), start, on_progress)
                start += folder.stage.num_examples * num_processes()
                before = folder.model
    except OSError as error:
        raise TrainingError(f"{out}: {error.strerror or error}; {_GO_ON}") from error
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        raise TrainingError(f"a process of the run has ended: {error}; {_GO_ON}") from error
    assert before is not None, "a recipe has stages"
    return before


def examples_of(
    recipe: Recipe,
    stage: Stage,
    tokenizer: DataTokenizer,
    *,
    start: int = 0,
    count: int | None = None,
    max_positions: int | None = None,
) -> Examples:
    """The examples of a stage.

    Args:
        recipe, stage: What is asked for.
        tokenizer: Of the model.
        start: Place of the first one.
        count: How many; what all processes together use if None.
        max_positions: Of the network, which longer ones are refused for; None refuses none.
    """
    streams = dict(stage.weights) if stage.form == "streams" else None
    if stage.examples:
        recipe = recipe.model_copy(update={"examples": stage.examples})
    weighing = Weighing(stage.silence, stage.probe_share, streams)
    count = stage.num_examples * num_processes() if count is None else count
    return Examples(
        recipe, tokenizer, stage.form, weighing, start=start, count=count, max_positions=max_positions
    )


def _check_own_examples(recipe: Recipe, out: Path, tokenizer: DataTokenizer) -> None:
    """Read the examples of stages that are yet to come, so that a fault in a file is told before hours are spent."""
    for folder in stage_folders(recipe, out):
        if folder.stage.examples and not folder.model.is_dir():
            examples_of(recipe, folder.stage, tokenizer, count=1)


def _run_stage(
    recipe: Recipe,
    folder: StageFolder,
    before: Path | None,
    tokenizers: tuple[DataTokenizer, Any],
    start: int,
    on_progress: Progress | None,
) -> None:
    """Train a stage to its end.

    Args:
        recipe, folder: What is asked for.
        before: Model of the stage before.
        tokenizers: For data, and of `transformers`.
        start: Place of its first example.
        on_progress: Is told how far it is.
    """
    tokenizer, stock = tokenizers
    stage = folder.stage
    arguments = arguments_of(recipe, stage, folder.path)
    set_seed(recipe.seed)
    network = build_network(recipe, stage, tokenizer)
    if is_first_process():
        clear_cut_off(folder.path)
    wait_for_all()
    checkpoint = last_checkpoint(folder.path)
    steps = 0 if checkpoint is None else steps_of(checkpoint)
    begin = checkpoint or before
    if begin is not None:
        load_weights(begin, network)
    log = _Log(folder, steps, on_progress)
    trainer = _trainer(
        recipe,
        network,
        arguments,
        stage,
        examples_of(recipe, stage, tokenizer, start=start, max_positions=network.max_positions),
        reading_of(recipe.topology, stage.form),
        stock,
        recipe.topology,
        log,
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state = trainer.gathered_state()
    if is_first_process():
        draft = folder.path / ".model"
        remove(draft)
        with writing(folder.model):
            write_network(draft, trainer.network, stock, recipe.topology, state)
            sync(draft)
            draft.replace(folder.model)
    wait_for_all()


def _trainer(recipe: Recipe, *given: Any) -> StreamTrainer:
    try:
        return StreamTrainer(*given)
    except (ImportError, ValueError, RuntimeError) as error:
        if not recipe.trackers:
            raise
        raise RecipeError(f"trackers: {error}") from error


class _Log:
    """The log of a stage: one JSON object a line, and whoever watches.

    Args:
        folder: Of the stage.
        steps: That it has behind it; what was logged beyond them is done again, and so is dropped.
        on_progress: Who watches.
    """

    def __init__(self, folder: StageFolder, steps: int, on_progress: Progress | None) -> None:
        self._path, self._name, self._steps = folder.path / "log.jsonl", folder.name, folder.stage.steps
        self._on_progress = on_progress
        if is_first_process():
            self._rewind(steps)
            if on_progress is not None:
                on_progress(self._name, steps, self._steps, {})

    def __call__(self, line: dict[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._on_progress is not None:
            self._on_progress(self._name, int(line["step"]), self._steps, line)

    def _rewind(self, steps: int) -> None:
        if not self._path.is_file():
            return
        kept = [line for line in self._path.read_bytes().splitlines() if _is_of(line, steps)]
        with whole_file(self._path) as file:
            file.writelines(line + b"\n" for line in kept)


def _is_of(line: bytes, steps: int) -> bool:
    """Whether a line of a log tells of the first steps; one that was cut off does not."""
    try:
        return json.loads(line)["step"] <= steps
    except (ValueError, KeyError, TypeError):
        return False


@contextmanager
def _alone(out: Path) -> Generator[None]:
    """The folder of a run, made if it is not there, for this run alone."""
    if not is_first_process():
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout:
        raise TrainingError(
            f"another run is training into {out}; wait for it, or name another folder"
        ) from None


def _shared_tokenizer(recipe: Recipe, out: Path) -> tuple[DataTokenizer, Any]:
    """The tokenizer, which the first process makes and the others read."""
    made = read_tokenizer(recipe, out) if is_first_process() else None
    wait_for_all()
    return read_tokenizer(recipe, out) if made is None else made


def _remember(recipe: Recipe, folder: StageFolder) -> None:
    """Write down what a stage was asked for, and refuse to go on with another wish."""
    stages = recipe.stages[: folder.number]
    told = {
        **recipe.model_dump(mode="json", exclude=_NOT_ASKED),
        "stages": [stage.model_dump(mode="json") for stage in stages],
    }
    processes, hashes = num_processes(), _hashes(recipe, stages)
    path = folder.path / "recipe.json"
    if path.is_file():
        try:
            before = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise TrainingError(f"{path} cannot be read ({error}); train into another folder") from error
        changed = [name for name in told if before.get(name) != told[name]]
        if changed:
            raise TrainingError(
                f"{folder.path} was begun with another recipe ({', '.join(changed)}); train into another folder, or "
                "remove this one"
            )
        if before.get("processes") != processes:
            raise TrainingError(
                f"{folder.path} was begun with another number of processes ({before.get('processes')}, now "
                f"{processes}); go on with as many, or train into another folder"
            )
        known = cast("dict[str, str]", before.get("sha256", {}))
        edited = [name for name in hashes if known.get(name) != hashes[name]]
        if edited:
            raise TrainingError(
                f"{folder.path} was begun with another {', '.join(edited)}; bring back what it was, or train into "
                "another folder"
            )
    elif is_first_process():
        folder.path.mkdir(parents=True, exist_ok=True)
        whole = {"braid": __version__, **told, "processes": processes, "sha256": hashes}
        with whole_file(path) as file:
            file.write((json.dumps(whole, indent=2) + "\n").encode())


def _hashes(recipe: Recipe, stages: Sequence[Stage]) -> dict[str, str]:
    """Of the files that the recipe and its stages so far name, by these names."""
    sources = [*recipe.examples, *(source for stage in stages for source in stage.examples)]
    files = {str(source.file): recipe.at(source.file) for source in sources if source.file is not None}
    if recipe.tokenizer_file is not None:
        files[str(recipe.tokenizer.file)] = recipe.tokenizer_file
    return {name: sha256_of(path) for name, path in files.items()}
