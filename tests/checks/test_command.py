"""`braid check` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from braid.checks.conformance import CONFORMANCE
from braid.checks.run import INVARIANTS
from braid.cli import app
from braid.streams.lanes import LaneTable
from tests.model.folders import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny(path)
    return path


def check(folder: Path, *arguments: str) -> Result:
    threads = torch.get_num_threads()
    try:
        return CliRunner().invoke(app, ["check", str(folder), "--threads", "1", *arguments])
    finally:
        torch.set_num_threads(threads)


def test_a_right_model_exits_with_0_and_ends_with_json(folder: Path) -> None:
    result = check(folder)
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    assert json.loads(lines[-1])["ok"] is True
    assert sum("✓" in line for line in lines) == len(INVARIANTS)


def test_with_json_standard_output_is_one_line(folder: Path) -> None:
    result = check(folder, "--json")
    (line,) = result.stdout.strip().splitlines()
    data = json.loads(line)
    assert data["ok"] is True
    assert data["max_abs_diff"] < 1e-3
    assert data["greedy_equal"] is True


def test_the_backend_is_checked_when_that_is_asked_for(folder: Path) -> None:
    result = check(folder, "--backend")
    assert result.exit_code == 0, result.output
    lines = result.stdout.strip().splitlines()
    data = json.loads(lines[-1])
    assert set(CONFORMANCE) <= data.keys()
    # Ours excludes nothing, so that there is nothing to refuse.
    assert sum("✓" in line for line in lines) == len(INVARIANTS) + len(CONFORMANCE) - 1
    assert data["greedy_equal"] is True


def test_a_wrong_model_exits_with_1_and_names_what_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaneTable, "reads", lambda self, reader, read: True)
    result = check(folder)
    assert result.exit_code == 1
    assert json.loads(result.stdout.strip().splitlines()[-1])["ok"] is False
    assert "not served rightly" in result.stdout
    assert "non interference" in result.stdout


def test_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["check", "--help"])
    assert "braid check smollm2-135m" in result.stdout
