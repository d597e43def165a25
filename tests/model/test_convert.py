from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize, quantize
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging

from braid.errors import TokenizerError, UnsupportedModelError, WeightsCorruptError, WeightsMissingError
from braid.model.convert import convert_gguf, fingerprint, quiet_transformers
from braid.model.progress import Progress, ignore
from tests.fakes import CHATML
from tests.model.folders import tiny_llama, truncate, write_gguf


@pytest.fixture(scope="module")
def network() -> LlamaForCausalLM:
    return tiny_llama(vocab_size=260)


@pytest.fixture(scope="module")
def whole(network: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, network)
    return path


@pytest.fixture(scope="module")
def converted(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert_gguf(whole, folder, ignore)
    return folder


def rounded(network: LlamaForCausalLM) -> LlamaForCausalLM:
    """The same network, its matrices as Q8_0 keeps them."""
    copy = LlamaForCausalLM(network.config)
    kind = GGMLQuantizationType.Q8_0
    state = {
        name: torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))
        if weight.ndim == 2
        else weight
        for name, weight in network.state_dict().items()
    }
    copy.load_state_dict(state)
    return copy.eval()


def test_a_converted_model_computes_what_the_file_says(network: LlamaForCausalLM, converted: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(converted)
    assert loaded.dtype == torch.float32
    ids = torch.arange(32)[None]
    with torch.inference_mode():
        found, expected, original = (model(ids).logits for model in (loaded, rounded(network), network))
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, original, atol=1e-4), "quantisation shows, so this comparison can fail"


def test_no_value_is_rounded_when_it_is_stored(network: LlamaForCausalLM, converted: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(converted)
    expected = rounded(network).state_dict()
    for name, weight in loaded.state_dict().items():
        assert np.array_equal(weight.numpy(), expected[name].numpy()), name


def test_the_tokenizer_comes_along(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.chat_template == CHATML
    assert tokenizer("ab").input_ids == [97, 98]
    assert tokenizer("<|im_end|>").input_ids == [257]
    assert tokenizer("  1").input_ids == [259, 49]
    assert tokenizer.decode([104, 105]) == "hi"
    assert tokenizer.eos_token_id == 257


def cut(folder: Path, text: str) -> list[str]:
    pieces = AutoTokenizer.from_pretrained(folder).backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [text[start:stop] for _, (start, stop) in pieces]


def test_text_is_cut_as_the_model_was_trained(
    converted: Path, network: LlamaForCausalLM, tmp_path: Path
) -> None:
    """SmolLM sets each digit apart before GPT-2's rule, so blanks before a number stay together."""
    assert cut(converted, "x  123") == ["x", "  ", "1", "2", "3"]
    write_gguf(tmp_path / "a.gguf", network, pre="gpt-2")
    convert_gguf(tmp_path / "a.gguf", tmp_path, ignore)
    assert cut(tmp_path, "x  123") == ["x", " ", " 123"]


def test_text_that_would_be_cut_otherwise_is_refused(network: LlamaForCausalLM, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", network, pre="some-other-rule")
    with pytest.raises(TokenizerError, match="some-other-rule"):
        convert_gguf(tmp_path / "a.gguf", tmp_path, ignore)


def test_a_truncated_file_is_found(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    content = whole.read_bytes()
    for size in (0, 3, 10, 100, 3_000, len(content) // 2, len(content) - 64):
        path.write_bytes(content[:size])
        with pytest.raises(WeightsCorruptError, match=r"cut\.gguf"):
            convert_gguf(path, tmp_path, ignore)


def test_a_file_of_another_kind_is_found(tmp_path: Path) -> None:
    path = tmp_path / "not.gguf"
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(WeightsCorruptError, match="does not start"):
        convert_gguf(path, tmp_path, ignore)


def test_a_missing_tensor_is_found(network: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, network, without="blk.1.ffn_up.weight")
    with pytest.raises(WeightsMissingError, match=r"layers\.1\.mlp\.up_proj"):
        convert_gguf(path, tmp_path, ignore)


def test_an_architecture_that_transformers_does_not_read_is_refused(
    network: LlamaForCausalLM, tmp_path: Path
) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, network, architecture="frobnicator")
    with pytest.raises(UnsupportedModelError, match="frobnicator"):
        convert_gguf(path, tmp_path, ignore)


def test_one_part_of_several_is_refused(network: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    write_gguf(path, network, split__count=3)
    with pytest.raises(UnsupportedModelError, match="one of 3 parts"):
        convert_gguf(path, tmp_path, ignore)


def test_conversion_reports_its_steps_and_is_otherwise_quiet(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[Progress] = []
    convert_gguf(whole, tmp_path, seen.append)
    assert [progress.done for progress in seen] == [0, 1, 2, 3, 4]
    assert {progress.total for progress in seen} == {4}
    assert capfd.readouterr() == ("", "")


def test_quiet_is_undone() -> None:
    before = (logging.is_progress_bar_enabled(), logging.get_verbosity())
    with quiet_transformers():
        assert not logging.is_progress_bar_enabled()
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before


def test_a_fingerprint_tells_files_apart(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(5_000_000))
    first = fingerprint(path)
    assert fingerprint(path) == first
    assert len(first) == 16
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    for place in (0, 2_500_001, 4_999_999):
        content = bytearray(5_000_000)
        content[place] = 1
        path.write_bytes(content)
        os.utime(path, ns=times)
        assert fingerprint(path) != first, place
    path.write_bytes(bytes(5_000_000))
    os.utime(path, ns=(times[0], time.time_ns() + 10**9))
    assert fingerprint(path) != first
    truncate(path, 0)
    assert fingerprint(path) != first
