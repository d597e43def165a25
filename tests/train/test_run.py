"""Runs: whatever ends one, it goes on to the same weights; and what it leaves can be loaded."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from filelock import FileLock
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

import braid
from braid.data.builders.solve import solve_score
from braid.data.scores import score_to_json
from braid.data.stories import series
from braid.errors import DataError, DivergedError, RecipeError, TrainingError
from braid.streams.topology import Topology
from braid.train import trainer
from braid.train.build import read_tokenizer
from braid.train.estimate import estimate
from braid.train.network import StreamNetwork
from braid.train.optimisers import Joined
from braid.train.recipe import Recipe
from braid.train.run import examples_of, train
from tests.train import jobs
from tests.train.tiny import are_equal, read_recipe, tiny_dict, turns_then_streams, weights_of

STAGES = turns_then_streams(optimizer="muon")
FIRST, SECOND = "1-turns", "2-streams"
LAST_COMPLETE = "checkpoint-2"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps in turns and five in streams that nothing disturbed."""
    torch.set_num_threads(1)  # as the runs that it is compared with; another number rounds otherwise
    folder = tmp_path_factory.mktemp("whole")
    train(read_recipe(folder, stages=STAGES), folder / "run")
    return folder / "run"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return read_recipe(tmp_path, stages=STAGES)


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A run whose first stage is done."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / SECOND)
    return out


def _checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / SECOND).glob("checkpoint-*"))


def _is_as_if_nothing_had_happened(run: Path, whole: Path) -> bool:
    return are_equal(run / SECOND / "model", whole / SECOND / "model") and _losses(run) == _losses(whole)


def _losses(run: Path) -> list[tuple[int, float]]:
    log = [json.loads(line) for line in (run / SECOND / "log.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in log if "loss" in line]


# ---- killed


def test_a_run_that_was_killed_ends_as_one_that_was_not(recipe: Recipe, run: Path, whole: Path) -> None:
    path = recipe.folder / "recipe.yaml"
    assert jobs.wait_for(jobs.start(jobs.train_and_die, path, run, SECOND, 3)) == -signal.SIGKILL
    assert _checkpoints(run) == [LAST_COMPLETE]
    seen: list[tuple[str, int]] = []
    train(recipe, run, on_progress=lambda name, step, of, line: seen.append((name, step)))
    assert seen[:2] == [(SECOND, 2), (SECOND, 3)], "it goes on after the last checkpoint"
    assert _is_as_if_nothing_had_happened(run, whole)


def test_a_run_that_was_killed_while_it_wrote_does_too(recipe: Recipe, run: Path, whole: Path) -> None:
    path = recipe.folder / "recipe.yaml"
    assert jobs.wait_for(jobs.start(jobs.train_and_die_writing, path, run, "checkpoint-4")) == -signal.SIGKILL
    assert _checkpoints(run) == [LAST_COMPLETE, "checkpoint-4"]
    assert trainer.last_checkpoint(run / SECOND) == run / SECOND / LAST_COMPLETE
    train(recipe, run)
    assert _is_as_if_nothing_had_happened(run, whole)


def test_a_run_from_an_empty_folder_is_the_same_each_time(
    recipe: Recipe, whole: Path, tmp_path: Path
) -> None:
    model = train(recipe, tmp_path / "again")
    assert model == tmp_path / "again" / SECOND / "model"
    assert are_equal(model, whole / SECOND / "model")


def test_a_finished_run_has_nothing_left_to_do(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = _files(tmp_path / "run")
    assert train(recipe, tmp_path / "run") == tmp_path / "run" / SECOND / "model"
    assert _files(tmp_path / "run") == before


def _files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != ".lock"}


def test_the_baseline_shares_the_stage_that_is_the_same(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = _files(tmp_path / "run")
    model = train(recipe.as_baseline(), tmp_path / "run")
    assert model == tmp_path / "run" / "2-turns" / "model"
    after = _files(tmp_path / "run")
    assert {path: after[path] for path in before if path != tmp_path / "run"} == {
        path: before[path] for path in before if path != tmp_path / "run"
    }
    assert not (model / "braid.json").exists()


def test_stages_of_the_baseline_never_stand_for_others(tmp_path: Path) -> None:
    stages = [{"form": form, "steps": 1, "batch": 1} for form in ("turns", "streams", "turns")]
    recipe = read_recipe(tmp_path, stages=stages)
    names = [folder.name for folder in braid_stage_folders(recipe, tmp_path)]
    assert names == ["1-turns", "2-streams", "3-turns-after-streams"]
    baseline = [folder.name for folder in braid_stage_folders(recipe.as_baseline(), tmp_path)]
    assert baseline == ["1-turns", "2-turns", "3-turns"]


def braid_stage_folders(recipe: Recipe, out: Path) -> Any:
    from braid.train.run import stage_folders

    return stage_folders(recipe, out)


# ---- stages with examples of their own


THIRD = {"steps": 2, "batch": 2, "warmup": 1, "examples": [{"builder": "outside", "seed": 9}]}


def test_a_stage_draws_from_its_own_examples(recipe: Recipe, tmp_path: Path) -> None:
    longer = read_recipe(tmp_path, stages=[*STAGES, THIRD])
    tokenizer, _ = read_tokenizer(recipe, None)
    drawn = [examples_of(longer, stage, tokenizer, start=16, count=3) for stage in longer.stages]
    assert [each.table(0).id.partition("-")[0] for each in drawn] == ["stories", "stories", "outside"]
    plain = examples_of(recipe, recipe.stages[1], tokenizer, start=16, count=3)
    assert drawn[1].table(2) == plain.table(2), "another stage's own examples change nothing here"


def test_a_finished_run_takes_a_further_stage(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    seen: list[str] = []
    longer = read_recipe(tmp_path, stages=[*STAGES, THIRD])
    assert train(longer, out, on_progress=lambda name, *_: seen.append(name)) == out / "3-streams" / "model"
    assert set(seen) == {"3-streams"}
    for name in (FIRST, SECOND):
        assert (out / name / "recipe.json").read_bytes() == (whole / name / "recipe.json").read_bytes()
    other = read_recipe(
        tmp_path, stages=[*STAGES, {**THIRD, "examples": [{"builder": "outside", "seed": 8}]}]
    )
    with pytest.raises(TrainingError, match=r"3-streams was begun with another recipe \(stages\)"):
        train(other, out)


def test_a_stages_own_file_lies_beside_the_recipe_and_is_checked_first(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"id": "x"}\n')
    stages = [*turns_then_streams(), {**THIRD, "examples": [{"file": "own.jsonl"}]}]
    recipe = read_recipe(tmp_path, stages=stages)
    with pytest.raises(DataError, match=r"own\.jsonl, line 1"):
        train(recipe, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("*-*")] == [], "no stage has begun"


# ---- what goes wrong


def test_a_loss_that_is_no_number_ends_the_run(
    recipe: Recipe, run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = StreamNetwork.forward, 0

    def diverging(self: StreamNetwork, *arguments: Any, **more: Any) -> dict[str, torch.Tensor]:
        nonlocal calls
        calls += 1
        told = forward(self, *arguments, **more)
        return {"loss": told["loss"] * float("nan")} if calls == 4 else told

    with monkeypatch.context() as patch:
        patch.setattr(StreamNetwork, "forward", diverging)
        with pytest.raises(DivergedError, match="the loss of step 4 is nan"):
            train(recipe, run)
    assert _checkpoints(run) == [LAST_COMPLETE]
    assert braid.load(run / SECOND / LAST_COMPLETE, threads=1).trained is not None
    train(recipe, run)
    assert _is_as_if_nothing_had_happened(run, whole)


def test_weights_that_are_no_numbers_reach_no_checkpoint(
    recipe: Recipe, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = Joined.step, 0

    def diverging(self: Joined, _: object = None) -> None:
        nonlocal calls
        calls += 1
        step(self)
        if calls == 4:
            self.param_groups[0]["params"][0].data[0, 0] = float("inf")

    monkeypatch.setattr(Joined, "step", diverging)
    with pytest.raises(DivergedError, match="is not finite at step 4"):
        train(recipe, run)
    assert _checkpoints(run) == [LAST_COMPLETE]


FULL = {
    "python": OSError(errno.ENOSPC, "No space left on device"),
    "torch": RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/1: file write failed"),
    "safetensors": SafetensorError("I/O error: No space left on device (os error 28)"),
}


@pytest.mark.parametrize("who", FULL)
def test_a_full_disk_leaves_the_last_checkpoint(
    who: str, recipe: Recipe, run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def save_until_full(data: object, path: str) -> None:
        if "checkpoint-4" in str(path) and "scheduler" in str(path):
            Path(path).write_bytes(b"half of it")
            raise FULL[who]
        save(data, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save_until_full)
        with pytest.raises(TrainingError, match=r"cannot write .*checkpoint-4: .*(No space|failed)"):
            train(recipe, run)
    assert _checkpoints(run) == [LAST_COMPLETE]
    train(recipe, run)
    assert _is_as_if_nothing_had_happened(run, whole)


def test_a_disk_that_is_full_at_the_very_end_costs_no_step(
    recipe: Recipe, run: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("braid.train.run.sync", _raising(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(TrainingError, match=r"cannot write .*model: No space left"):
            train(recipe, run)
    assert not (run / SECOND / "model").exists()
    seen: list[Mapping[str, float]] = []
    train(recipe, run, on_progress=lambda name, step, of, line: seen.append(line))
    assert [line for line in seen if "loss" in line] == []
    assert are_equal(run / SECOND / "model", whole / SECOND / "model")


def _raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_worker_that_is_killed_ends_the_run(recipe: Recipe, run: Path, whole: Path) -> None:
    """And workers change nothing: the run goes on without them to the weights of one that never had any."""
    with_workers = recipe.model_copy(update={"workers": 1})

    def kill(name: str, step: int, of: int, line: Mapping[str, float]) -> None:
        if step == 2 and line:
            for worker in multiprocessing.active_children():
                if "forkserver" not in type(worker).__name__.lower():
                    assert worker.pid is not None
                    os.kill(worker.pid, signal.SIGKILL)
                    worker.join()

    with pytest.raises(TrainingError, match="a process of the run has ended: DataLoader worker"):
        train(with_workers, run, on_progress=kill)
    train(recipe, run)
    assert _is_as_if_nothing_had_happened(run, whole)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_example_that_cannot_be_is_told_in_plain_words(workers: int, tmp_path: Path) -> None:
    recipe = read_recipe(tmp_path, examples=[{"builder": "audit"}], workers=workers)
    with pytest.raises(DataError) as refusal:
        train(recipe, tmp_path / "run")
    assert str(refusal.value).startswith("example audit-")
    assert str(refusal.value).endswith("it has user, thought, output")


@pytest.mark.parametrize("form", ["turns", "streams"])
def test_an_example_that_has_more_rows_than_the_network_positions_is_told(form: str, tmp_path: Path) -> None:
    def recipe(positions: int) -> Recipe:
        settings = {**tiny_dict()["network"]["settings"], "max_position_embeddings": positions}
        stages = [{"form": form, "steps": 1, "batch": 2}]
        return read_recipe(tmp_path, network={"settings": settings}, stages=stages)

    tokenizer, _ = read_tokenizer(recipe(1), None)
    examples = examples_of(recipe(1), recipe(1).stages[0], tokenizer)
    longest = max((examples.table(0), examples.table(1)), key=lambda table: table.num_rows)
    few = recipe(longest.num_rows - 1)
    told = rf"example {longest.id} has {longest.num_rows} rows .* {longest.num_rows - 1} positions; raise .*most_steps"
    with pytest.raises(DataError, match=told):
        train(few, tmp_path / "few")
    with pytest.raises(DataError, match=told):
        estimate(few)
    train(recipe(longest.num_rows), tmp_path / "enough")


def test_a_step_in_which_nothing_counts_is_told(tmp_path: Path) -> None:
    """Its loss would be 0 divided by 0, and no lower learning rate would help."""
    stages = [{"steps": 2, "batch": 2, "warmup": 1, "weights": {"thought": 0, "output": 0}}]
    recipe = read_recipe(tmp_path, topology="stories", stages=stages)
    with pytest.raises(DataError, match=r"no answer of step 1 counts, .*; raise the stage's weights"):
        train(recipe, tmp_path / "run")


def test_a_malformed_file_is_told_before_anything_is_trained(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "x"}\n')
    tokenizer = {"file": str(whole / "tokenizer.json")}
    recipe = read_recipe(tmp_path, examples=[{"file": "x.jsonl"}], tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"x\.jsonl, line 1"):
        train(recipe, tmp_path / "run")


# ---- refused


def test_another_recipe_is_refused(run: Path, tmp_path: Path) -> None:
    for changes in ({"seed": 4}, {"stages": turns_then_streams(optimizer="adamw")}):
        with pytest.raises(TrainingError, match=f"another recipe \\({next(iter(changes))}\\)"):
            train(read_recipe(tmp_path, **{"stages": STAGES, **changes}), run)


def test_another_number_of_processes_is_refused(recipe: Recipe, run: Path) -> None:
    """It would skip examples, or take some twice."""
    path = run / FIRST / "recipe.json"
    told = json.loads(path.read_text())
    assert told["processes"] == 1
    path.write_text(json.dumps({**told, "processes": 2}))
    with pytest.raises(TrainingError, match=r"another number of processes \(2, now 1\); go on with as many"):
        train(recipe, run)


@pytest.mark.parametrize("edited", ["all.scores.jsonl", "own.scores.jsonl", "folder/tokenizer.json"])
def test_a_file_that_was_edited_is_refused(edited: str, whole: Path, tmp_path: Path) -> None:
    for seed, name in enumerate(("all", "own")):
        scores = [solve_score(story, story.text[:9]) for story in series(seed, 4)]
        lines = [json.dumps(score_to_json(score)) + "\n" for score in scores]
        (tmp_path / f"{name}.scores.jsonl").write_text("".join(lines))
    (tmp_path / "folder").mkdir()
    shutil.copy(whole / "tokenizer.json", tmp_path / "folder")
    stages = [{"steps": 1, "batch": 1}, {"steps": 1, "batch": 1, "examples": [{"file": "own.scores.jsonl"}]}]
    recipe = read_recipe(
        tmp_path, examples=[{"file": "all.scores.jsonl"}], tokenizer={"file": "folder"}, stages=stages
    )
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "run")
    file = tmp_path / edited
    file.write_text(file.read_text().rstrip() + "\n\n")
    name = edited.removesuffix("/tokenizer.json")
    where = "2-streams" if name.startswith("own") else "1-streams"
    with pytest.raises(TrainingError, match=f"{where} was begun with another {name}; bring back"):
        train(recipe, tmp_path / "run")


def test_a_folder_is_for_one_run_at_a_time(recipe: Recipe, run: Path) -> None:
    with FileLock(run / ".lock"), pytest.raises(TrainingError, match="another run is training into"):
        train(recipe, run)


def test_a_checkpoint_that_is_damaged_is_told(recipe: Recipe, run: Path, whole: Path) -> None:
    damaged = run / SECOND / "checkpoint-4"
    for name in ("trainer_state.json", "model.safetensors", "optimizer.pt"):
        shutil.rmtree(run / SECOND, ignore_errors=True)
        shutil.copytree(whole / SECOND, run / SECOND)
        shutil.rmtree(run / SECOND / "model")
        shutil.rmtree(run / SECOND / "checkpoint-5")
        (run / SECOND / "checkpoint-of-mine").mkdir()
        (damaged / name).write_bytes((damaged / name).read_bytes()[:40])
        with pytest.raises(TrainingError, match=r"checkpoint-4 cannot be gone on from .*remove it"):
            train(recipe, run)
    shutil.rmtree(damaged)
    train(recipe, run)
    assert are_equal(run / SECOND / "model", whole / SECOND / "model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": {"model_type": "lama"}}, "network: transformers cannot build it"),
        ({"network": {"settings": {**tiny_dict()["network"]["settings"], "num_attention_heads": 0}}}, "network: "),
        ({"network": {"settings": {**tiny_dict()["network"]["settings"], "vocab_size": 50}}}, "50 are too few"),
        ({"tokenizer": {"file": "none.json"}}, "tokenizer: "),
        ({"tokenizer": {"size": 400, "texts": 40, "silence": "<hush>"}}, "tokenizer: .*'<hush>'"),
        ({"trackers": ["tensorbord"]}, "trackers: "),
    ],
    ids=["model type", "settings", "vocabulary", "tokenizer", "silence", "trackers"],
)  # fmt: skip
def test_what_cannot_be_built_is_told(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        train(read_recipe(tmp_path, **changes), tmp_path / "run")


class _Tracker(TrainerCallback):
    told: ClassVar[list[dict[str, float]]] = []

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        self.told.append(dict(logs))


def test_a_tracker_is_told_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "mine", _Tracker)
    monkeypatch.setattr(_Tracker, "told", [])
    stages = [{"steps": 3, "batch": 1, "warmup": 1}]
    train(read_recipe(tmp_path, trackers=["mine"], stages=stages), tmp_path / "run")
    log = [
        json.loads(line) for line in (tmp_path / "run" / "1-streams" / "log.jsonl").read_text().splitlines()
    ]
    losses = [line["loss"] for line in log if "loss" in line]
    assert len(losses) == 3
    assert [line["loss"] for line in _Tracker.told if "loss" in line] == losses


@pytest.mark.parametrize("error", [ImportError, ValueError, RuntimeError])
def test_trackers_are_blamed_only_where_there_are_any(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error("it is not there")

    monkeypatch.setattr("braid.train.run.StreamTrainer", fail)
    with pytest.raises(RecipeError, match="trackers: it is not there"):
        train(read_recipe(tmp_path, trackers=["mine"]), tmp_path / "run")
    with pytest.raises(error, match=r"^it is not there$"):
        train(read_recipe(tmp_path), tmp_path / "run")


# ---- what it leaves


def test_models_and_checkpoints_load(whole: Path) -> None:
    for folder in (whole / SECOND / "model", whole / SECOND / "checkpoint-4"):
        model = braid.load(folder, threads=1)
        assert model.trained is not None
        assert list(model.trained.topology.streams) == ["user", "thought", "output"]
        assert model.stream_embeddings_HD is not None
        assert float(model.stream_embeddings_HD.abs().max()) > 0
    for folder in (whole / FIRST / "model", whole / FIRST / "checkpoint-2"):
        network = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert network.config.use_cache
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Mia has 3 pens."}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            said = network.generate(**ids, max_new_tokens=3, do_sample=False)
        assert said.shape[1] > ids["input_ids"].shape[1]
        assert braid.load(folder, threads=1).trained is None


def test_a_tied_table_is_written_once(whole: Path) -> None:
    assert [name for name in weights_of(whole / SECOND / "model") if "head" in name] == []


def test_a_trained_model_generates(whole: Path) -> None:
    model = braid.load(whole / SECOND / "model", threads=1)
    topology = Topology.model_validate(tiny_dict()["topology"])
    result = braid.generate(model, topology, {"user": "Mia has 3 pens."}, max_rows=30)
    assert "user" in result.transcript.topology.streams
    assert result.metrics is not None


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_number_formats(dtype: str, tmp_path: Path) -> None:
    stages = [{"steps": 2, "batch": 2, "warmup": 1, "learning_rate": 1e-2}]
    model = train(read_recipe(tmp_path, dtype=dtype, stages=stages), tmp_path / "run")
    expected = torch.float64 if dtype == "float64" else torch.float32
    assert {each.dtype for each in weights_of(model).values()} == {expected}
    assert braid.load(model, threads=1).trained is not None
