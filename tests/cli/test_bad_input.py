"""Bad input, each kind with its own error and exit code, in words and as an event."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from braid import errors
from braid.errors import BraidError
from tests.cli.conftest import Braid, events
from tests.model.folders import edit_json, truncate


def assert_refused(result: Result, error: type[BraidError], *words: str) -> None:
    """The command ended with this error's exit code and a message, and without a traceback."""
    assert result.exit_code == error.exit_code, (result.exit_code, result.stderr, result.exception)
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


@pytest.fixture
def broken(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_a_model_that_is_not_there(braid: Braid) -> None:
    assert_refused(braid("run", "-m", "no-such-model", "--user", "Hi"), errors.ModelNotFoundError)


def test_a_missing_weight_file(braid: Braid, broken: Path) -> None:
    (broken / "model.safetensors").unlink()
    assert_refused(braid("run", "-m", broken, "--user", "Hi"), errors.WeightsMissingError)


@pytest.mark.parametrize("size", [0, 4, 1000, -1])
def test_a_truncated_weight_file(braid: Braid, broken: Path, size: int) -> None:
    truncate(broken / "model.safetensors", size)
    assert_refused(braid("run", "-m", broken, "--user", "Hi"), errors.WeightsCorruptError)


def test_an_unknown_model_type(braid: Braid, broken: Path) -> None:
    edit_json(broken / "config.json", model_type="perpetuum", architectures=["PerpetuumForCausalLM"])
    assert_refused(braid("run", "-m", broken, "--user", "Hi"), errors.UnsupportedModelError, "perpetuum")


def test_a_topology_whose_closure_breaks_forbid(braid: Braid, tmp_path: Path) -> None:
    file = tmp_path / "leaky.yaml"
    file.write_text(
        "streams:\n"
        "  document: {direction: input}\n"
        "  thought: {direction: output, visibility: internal}\n"
        "  tool_call: {direction: output}\n"
        "reads: {tool_call: [thought]}\n"
        "forbid: [[document, tool_call]]\n"
    )
    result = braid("run", "-t", file, "--user", "Hi")
    assert_refused(result, errors.ForbiddenFlowError, "document", "thought", "tool_call")


def test_an_unknown_key(braid: Braid, tmp_path: Path) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text("streams:\n  user: {direction: input}\n  output: {direction: output, prioritty: high}\n")
    assert_refused(braid("run", "-t", file, "--user", "Hi"), errors.UnknownKeyError, "prioritty", "priority")


def test_an_unknown_preset(braid: Braid) -> None:
    assert_refused(
        braid("run", "-t", "think-alound", "--user", "Hi"), errors.UnknownPresetError, "think-aloud"
    )


def test_an_empty_input(braid: Braid, tiny: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert_refused(braid("run", "-m", tiny, "--user", ""), errors.EmptyInputError, "user")
    assert_refused(braid("run", "-m", tiny, "--user-file", empty), errors.EmptyInputError, "user")
    assert_refused(braid("run", "-m", tiny, stdin=b""), errors.EmptyInputError, "user")


def test_input_that_is_not_text(braid: Braid, tiny: Path, short: Path, tmp_path: Path) -> None:
    file = tmp_path / "latin1.txt"
    file.write_bytes("café".encode("latin-1"))
    assert_refused(braid("run", "-m", tiny, "--user-file", file), errors.InputError, "byte 3")
    piped = braid("run", "-m", tiny, "-t", short, stdin=b"good \xf0\x9f\x99\x82 bad \xff")
    assert_refused(piped, errors.InputError, "byte 14")
    cut_off = braid("run", "-m", tiny, "-t", short, stdin=b"good \xf0\x9f\x99")
    assert_refused(cut_off, errors.InputError, "byte 5")
    assert_refused(braid("run", "-m", tiny, "--user", "caf\udce9"), errors.InputError, "character 3")
    assert_refused(braid("run", "-m", tiny, "--user-file", tmp_path), errors.InputError, "cannot be read")
    assert_refused(
        braid("run", "-m", tiny, "--user-file", tmp_path / "no"), errors.InputError, "cannot be read"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--stream", "nobody=x", "--user", "Hi"], errors.UnknownStreamError),
        (["--stream", "output=x", "--user", "Hi"], errors.DirectionError),
        (["--stream", "user", "--user", "Hi"], errors.InputError),
        (["--stream", "user=x", "--user", "Hi"], errors.InputError),
        (["--stream", "user=x", "--stream", "user=y"], errors.InputError),
        (["--user", "Hi", "--user-file", "x"], errors.InputError),
        (["--user", "Hi", "--pace", "0"], errors.InputError),
        (["--user", "Hi", "--pace", "nan"], errors.InputError),
        (["--pace", "5"], errors.InputError),
        (["--user", "Hi", "--copies", "thought=many"], errors.InputError),
        (["--user", "Hi", "--top-p", "2", "--temperature", "1"], errors.SamplingError),
        (["--user", "Hi", "--top-k", "5", "--temperature", "0"], errors.SamplingError),
        (["--user", "Hi", "--save", "no/such/folder/run.jsonl"], errors.TranscriptError),
        (["--user", "Hi", "--dtype", "float8"], errors.InputError),
        (["--user", "Hi", "--device", "abacus"], errors.InputError),
        (["--user", "Hi", "--threads", "0"], errors.InputError),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], error: type[BraidError], braid: Braid, tiny: Path
) -> None:
    assert_refused(braid("run", "-m", tiny, *arguments), error)


def test_a_pool_that_is_too_small(braid: Braid, tiny: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    result = braid("run", "-m", tiny, "--user", "Hello there", "--kv-tokens", "8", "--save", saved)
    assert_refused(result, errors.PoolTooSmallError, "kv_tokens")
    assert saved.exists()


def test_a_pool_that_fills_up_keeps_what_was_said(braid: Braid, tiny: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    pool = ("--kv-tokens", "96")
    result = braid(
        "run", "-m", tiny, "-t", "plain", "--user", "Hello there", *pool, "--save", saved, "--json"
    )
    assert_refused(result, errors.PoolFullError)
    lines = saved.read_text().splitlines()
    assert len(lines) > 20
    assert all(json.loads(line) for line in lines)
    assert events(result)[-1]["code"] == errors.PoolFullError.code
    assert [event["event"] for event in events(result)].count("error") == 1


def test_a_context_that_overflows(braid: Braid, broken: Path) -> None:
    edit_json(broken / "config.json", max_position_embeddings=64)
    assert_refused(braid("run", "-m", broken, "-t", "plain", "--user", "x" * 60), errors.ContextOverflowError)


def test_a_transcript_from_another_version(braid: Braid, tiny: Path, short: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    assert braid("run", "-m", tiny, "-t", short, "--user", "Hi", "--save", saved).exit_code == 0
    first, *rest = saved.read_text().splitlines()
    other = json.dumps({**json.loads(first), "version": 99})
    saved.write_text("\n".join([other, *rest]) + "\n")
    assert_refused(braid("inspect", saved), errors.TranscriptVersionError, "99")
    saved.write_text("\n".join([first, "{", *rest]) + "\n")
    assert_refused(braid("inspect", saved), errors.TranscriptCorruptError, "line 2")
    assert_refused(braid("inspect", tmp_path / "no.jsonl"), errors.TranscriptError)


def test_json_says_what_failed_in_its_last_line(braid: Braid, tiny: Path) -> None:
    result = braid("run", "-m", tiny, "--user", "", "--json")
    assert result.exit_code == errors.EmptyInputError.exit_code
    last = events(result)[-1]
    assert (last["event"], last["code"]) == ("error", "input.empty")
    assert last["message"] in result.stderr


def test_what_nobody_expected_keeps_its_traceback(
    braid: Braid, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("braid.model.loading.load", fails)
    assert isinstance(braid("run", "-m", tiny, "--user", "Hi").exception, ZeroDivisionError)


def test_ctrl_c_while_the_model_loads(braid: Braid, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("braid.model.loading.load", fails)
    result = braid("run", "-m", tiny, "--user", "Hi")
    assert result.exit_code == 130
    assert "Interrupted." in result.stderr
