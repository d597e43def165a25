from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from braid.errors import (
    BraidError,
    CheckpointConflictError,
    ForbiddenFlowError,
    InputError,
    ModelNotFoundError,
    UnsupportedModelError,
    WeightsCorruptError,
    WeightsMissingError,
)
from braid.model import loading
from braid.model.checkpoint import (
    TrainedStreams,
    TrainedTopology,
    read_checkpoint,
    reconcile,
    save_checkpoint,
)
from braid.model.codec import TokenizerCodec
from braid.model.loading import load, load_parts
from braid.model.model import Model
from braid.streams.patterns import Dense, Window
from braid.streams.topology import StreamSpec, Topology
from tests.fakes import byte_tokenizer
from tests.model.folders import edit_json, save_tiny, tiny_llama, truncate

SOLVE = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output"),
        "output": StreamSpec(direction="output", chunk_size=4),
    },
    same_row="none",
    reads={"thought": ("user",)},
    patterns={"output": {"user": Window(9), "thought": Dense()}},
)
TRAINED = TrainedStreams(topology=TrainedTopology.of(SOLVE), silence_token_id=258)
EMBEDDINGS = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))


def trained_model(**changes: Any) -> Model:
    settings = {"trained": TRAINED, "stream_embeddings": EMBEDDINGS.clone(), **changes}
    return Model(tiny_llama(), TokenizerCodec(byte_tokenizer()), name="tiny", **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("saved") / "checkpoint", trained_model())


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "copy"))


def test_what_is_saved_is_loaded(saved: Path) -> None:
    model = load(saved)
    assert model.trained == TRAINED
    assert model.silence_token_id == 258
    assert torch.equal(model.stream_embeddings_HD, EMBEDDINGS)
    original = tiny_llama().state_dict()
    assert all(torch.equal(weight, original[name]) for name, weight in model.hf.state_dict().items())
    assert model.codec.encode("ab")[0] == [97, 98]


def test_a_saved_folder_is_an_ordinary_transformers_folder_too(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert "braid" not in json.dumps(config).lower(), "nothing of ours that transformers would stumble over"
    assert (saved / "tokenizer.json").is_file()
    assert [path.name for path in saved.parent.iterdir()] == ["checkpoint"], "no draft is left beside it"


def test_saving_what_was_loaded_changes_nothing(saved: Path, tmp_path: Path) -> None:
    again = save_checkpoint(tmp_path / "again", load(saved))
    for name in ("braid.json", "braid.safetensors", "model.safetensors", "config.json"):
        assert (again / name).read_bytes() == (saved / name).read_bytes(), name


def test_a_checkpoint_without_embeddings_has_zeros(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "zeros", trained_model(stream_embeddings=None))
    assert torch.equal(read_checkpoint(tmp_path / "zeros")[1], torch.zeros(3, 64))


def test_a_checkpoint_lies_on_top_of_a_base(tmp_path: Path) -> None:
    network = save_tiny(tmp_path / "base")
    top = save_checkpoint(tmp_path / "top", trained_model(), base="../base")
    assert sorted(path.name for path in top.iterdir()) == ["braid.json", "braid.safetensors"]
    parts = load_parts(top)
    assert parts.name == "top"
    assert parts.trained == TRAINED.model_copy(update={"base": "../base"})
    assert torch.equal(parts.stream_embeddings, EMBEDDINGS)
    assert torch.equal(parts.hf.lm_head.weight, network.lm_head.weight)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ModelNotFoundError, match=r"on top of the base '\.\./base'"):
        load(top)


def test_a_base_may_be_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny(tmp_path / "snapshot")
    top = save_checkpoint(tmp_path / "top", trained_model(), base="organisation/tiny")
    monkeypatch.setattr(loading, "fetch_hub", lambda hub_id, _: tmp_path / "snapshot")
    assert load_parts(top).stream_embeddings is not None


def test_a_base_with_streams_of_its_own_is_refused(saved: Path, tmp_path: Path) -> None:
    top = save_checkpoint(tmp_path / "top", trained_model(), base=str(saved))
    with pytest.raises(CheckpointConflictError, match="streams of its own"):
        load(top)


def test_a_base_of_another_width_or_vocabulary_is_refused(tmp_path: Path) -> None:
    save_tiny(tmp_path / "base", hidden_size=32)
    top = save_checkpoint(tmp_path / "top", trained_model(), base="../base")
    with pytest.raises(CheckpointConflictError, match="64 wide and the network is 32 wide"):
        load(top)
    shutil.rmtree(tmp_path / "base")
    save_tiny(tmp_path / "base", vocab_size=258, pad_token_id=None)
    with pytest.raises(CheckpointConflictError, match="silence is token 258"):
        load(top)


def test_only_what_was_trained_is_saved_and_only_to_a_free_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stock weights"):
        save_checkpoint(tmp_path / "new", trained_model(trained=None))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("x")
    with pytest.raises(InputError, match="not an empty folder"):
        save_checkpoint(tmp_path / "full", trained_model())
    (tmp_path / "empty").mkdir()
    save_checkpoint(tmp_path / "empty", trained_model())
    assert (tmp_path / "empty" / "braid.json").is_file()


def test_saving_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained_model()

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model.codec.hf, "save_pretrained", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "a" / "new", model)
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"version": 2}, UnsupportedModelError, "format version 2"),
        ({"version": None}, WeightsCorruptError, "version"),
        ({"silence_token_id": None}, WeightsCorruptError, "silence_token_id"),
        ({"silence_token_id": -1}, WeightsCorruptError, "silence_token_id"),
        ({"surprise": 1}, WeightsCorruptError, "surprise"),
        ({"topology": {}}, WeightsCorruptError, "topology"),
        ({"stream_embeddings": "../../elsewhere.safetensors"}, WeightsCorruptError, "stream_embeddings"),
        ({"stream_embeddings": "absent.safetensors"}, WeightsMissingError, r"absent\.safetensors"),
    ],
)
def test_a_bad_description_is_refused(
    folder: Path, changes: dict[str, object], error: type[BraidError], words: str
) -> None:
    edit_json(folder / "braid.json", **changes)
    with pytest.raises(error, match=words):
        load(folder)


def test_an_impossible_topology_is_refused(folder: Path) -> None:
    data = json.loads((folder / "braid.json").read_text())
    data["topology"]["reads"]["thought"] = ["nobody"]
    (folder / "braid.json").write_text(json.dumps(data))
    with pytest.raises(WeightsCorruptError, match=r"impossible topology.*nobody"):
        load(folder)


def test_damaged_files_are_refused(folder: Path) -> None:
    path = folder / "braid.safetensors"
    content = path.read_bytes()
    truncate(path, -4)
    with pytest.raises(WeightsCorruptError, match=r"braid\.safetensors"):
        load(folder)
    path.write_bytes(content)
    truncate(folder / "braid.json", 30)
    with pytest.raises(WeightsCorruptError, match=r"braid\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": torch.zeros(3, 64)}, "no tensor"),
        ({"stream_embeddings": torch.zeros(2, 64)}, "3 streams"),
        ({"stream_embeddings": torch.zeros(64)}, "shape"),
        ({"stream_embeddings": torch.full((3, 64), float("nan"))}, "not finite"),
    ],
)
def test_embeddings_that_do_not_fit_are_refused(
    folder: Path, tensors: dict[str, torch.Tensor], words: str
) -> None:
    save_file(tensors, folder / "braid.safetensors")
    with pytest.raises(WeightsCorruptError, match=words):
        load(folder)


def test_the_checkpoint_wins_where_the_caller_says_nothing() -> None:
    asked = Topology.from_dict(
        {
            "streams": {
                "user": {"direction": "input", "max_latency_ms": 50},
                "thought": {"direction": "output", "max_streams": 3},
                "output": {"direction": "output", "max_tokens": 7},
            }
        }
    )
    found = reconcile(TRAINED, asked)
    assert TrainedTopology.of(found) == TRAINED.topology
    assert found.same_row == "none"
    assert found.readable("thought") == ("user", "thought")
    assert found.pattern("output", "user") == Window(9)
    assert (found.streams["thought"].max_streams, found.streams["output"].max_tokens) == (3, 7)


def test_saying_the_same_is_no_conflict() -> None:
    assert reconcile(TRAINED, SOLVE) == SOLVE.model_copy(
        update={"reads": TRAINED.topology.reads, "patterns": TRAINED.topology.patterns}
    )
    assert reconcile(TRAINED, reconcile(TRAINED, SOLVE)) == reconcile(TRAINED, SOLVE)


STREAMS: dict[str, Any] = {
    "user": {"direction": "input"},
    "thought": {"direction": "output"},
    "output": {"direction": "output"},
}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"streams": {**STREAMS, "audit": {"direction": "output"}}}, r"streams: .*'audit'"),
        ({"streams": {"user": STREAMS["user"], "output": STREAMS["output"]}}, "streams: "),
        ({"streams": dict(reversed(STREAMS.items()))}, "streams: "),
        (
            {"streams": {**STREAMS, "thought": {"direction": "input"}}},
            r"thought\.direction: .*'output'.*'input'",
        ),
        ({"same_row": "earlier"}, "same_row: .*'none'.*'earlier'"),
        ({"silence": "kept"}, "silence: .*'dropped'.*'kept'"),
        ({"decoding": "views"}, "decoding: .*'rows'.*'views'"),
        ({"reads": {"output": ["user"]}}, "reads.output: .*'thought'"),
        ({"reads": {"thought": ["user", "thought"]}}, "reads.thought: "),
        (
            {"patterns": {"output": {"user": "window(8)"}}},
            r"patterns.output.user: .*window\(9\).*window\(8\)",
        ),
        ({"patterns": {"thought": {"user": "striped(2, 0)"}}}, "patterns.thought.user: .*dense"),
    ],
)
def test_saying_otherwise_is_a_conflict_that_names_both(asked: dict[str, Any], words: str) -> None:
    topology = Topology.from_dict({"streams": STREAMS, **asked})
    with pytest.raises(CheckpointConflictError, match=words):
        reconcile(TRAINED, topology)


def test_a_promise_that_the_checkpoint_breaks_is_refused() -> None:
    asked = Topology.from_dict({"streams": STREAMS, "reads": {"thought": ["user"]}})
    reconcile(TRAINED, asked)
    asked = Topology.from_dict(
        {"streams": {**STREAMS, "output": {"direction": "output"}}, "forbid": [["thought", "user"]]}
    )
    reconcile(TRAINED, asked)
    learned = TRAINED.topology.model_copy(update={"reads": {**TRAINED.topology.reads, "user": ("thought",)}})
    with pytest.raises(ForbiddenFlowError):
        reconcile(TRAINED.model_copy(update={"topology": learned}), asked)


@st.composite
def structures(draw: st.DrawFn) -> Topology:
    names = ["a", "b", "c", "d"][: draw(st.integers(2, 4))]
    directions = {name: draw(st.sampled_from(["input", "output"])) for name in names}
    directions[names[-1]] = "output"  # somebody must be able to speak
    some = st.lists(st.sampled_from(names), unique=True)
    reads = {name: draw(some) for name in draw(some)}
    topology = Topology.from_dict(
        {
            "streams": {name: {"direction": direction} for name, direction in directions.items()},
            "reads": reads,
            "same_row": draw(st.sampled_from(["earlier", "none"])),
            "silence": draw(st.sampled_from(["dropped", "kept"])),
        }
    )
    spelled = st.sampled_from(["dense", "window(3)", "striped(4, 1)"])
    patterns = {
        name: {read: draw(spelled) for read in topology.readable(name) if draw(st.booleans())}
        for name in names
    }
    return Topology.from_dict({**topology.to_dict(), "patterns": patterns})


@given(structures())
def test_any_structure_survives_the_file_and_agrees_with_itself(topology: Topology) -> None:
    trained = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=0)
    again = TrainedStreams.model_validate_json(trained.model_dump_json())
    assert again == trained
    assert list(again.topology.streams) == list(topology.streams)
    silent = Topology.from_dict({"streams": topology.to_dict()["streams"]})
    for found in (again.topology.to_topology(), reconcile(again, topology), reconcile(again, silent)):
        assert (found.same_row, found.silence) == (topology.same_row, topology.silence)
        for reader in topology.streams:
            assert found.readable(reader) == topology.readable(reader)
            for read in topology.readable(reader):
                assert found.pattern(reader, read) == topology.pattern(reader, read)
        copies = dict.fromkeys(topology.streams, 1)
        assert [
            [found.lanes(copies).reads(i, j) for j in range(len(copies))] for i in range(len(copies))
        ] == [[topology.lanes(copies).reads(i, j) for j in range(len(copies))] for i in range(len(copies))]
