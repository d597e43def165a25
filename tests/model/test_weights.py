from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from braid.errors import ModelNotFoundError, UnsupportedModelError, WeightsCorruptError, WeightsMissingError
from braid.model.weights import check_folder, check_safetensors
from tests.model.folders import edit_json, safetensors_header_length, save_tiny, truncate


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    save_tiny(folder)
    return folder


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_tiny(folder, shard="100KB")
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def shards(sharded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "copy"))


def test_whole_folders_pass(folder: Path, sharded: Path) -> None:
    check_folder(folder)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    check_folder(sharded)


def test_missing_weights_are_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsMissingError, match=r"model\.safetensors"):
        check_folder(folder)


def test_a_missing_shard_is_named(shards: Path) -> None:
    last = sorted(shards.glob("*.safetensors"))[-1]
    last.unlink()
    with pytest.raises(WeightsMissingError, match=last.name):
        check_folder(shards)


def test_every_truncation_is_found(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    header = 8 + safetensors_header_length(path)
    for size in (0, 3, 8, header // 2, header - 1, header, header + 1, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(WeightsCorruptError, match=r"model\.safetensors"):
            check_folder(folder)
    path.write_bytes(content + b"x")
    with pytest.raises(WeightsCorruptError):
        check_folder(folder)


def test_a_truncated_shard_is_found(shards: Path) -> None:
    last = sorted(shards.glob("*.safetensors"))[-1]
    truncate(last, -10)
    with pytest.raises(WeightsCorruptError, match=last.name):
        check_folder(shards)


def test_a_header_of_garbage_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for header in (b"{not json", b"[1, 2]", b'{"a": {"data_offsets": [0]}}', b'{"a": 1}', b"\xff\xfe\xfd"):
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        with pytest.raises(WeightsCorruptError):
            check_safetensors(path)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(WeightsCorruptError):
        check_safetensors(path)


def test_damaged_json_is_found(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    content = index.read_text()
    for text in ("", "{", "[]", json.dumps({"metadata": {}}), json.dumps({"weight_map": {}})):
        index.write_text(text)
        with pytest.raises(WeightsCorruptError):
            check_folder(shards)
    index.write_text(content)
    truncate(shards / "config.json", 20)
    with pytest.raises(WeightsCorruptError, match=r"config\.json"):
        check_folder(shards)


def test_a_folder_without_config_is_no_model(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        check_folder(folder)


@pytest.mark.parametrize(
    ("model_type", "words"), [("frobnicator", "does not know"), ("t5", "no decoder"), (None, "no model_type")]
)
def test_a_model_type_that_cannot_be_served_is_refused(
    folder: Path, model_type: str | None, words: str
) -> None:
    edit_json(folder / "config.json", model_type=model_type)
    with pytest.raises(UnsupportedModelError, match=words):
        check_folder(folder)


def test_code_that_comes_with_a_model_is_never_run(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="frobnicator", auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(UnsupportedModelError, match="never runs"):
        check_folder(folder)


def test_pickles_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="pickles"):
        check_folder(folder)
