"""`braid eval` and `braid demo` as people and programs call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braid.cli import app

OWN = Path(__file__).parent.parent / "eval" / "own_words.jsonl"


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_report_has_three_forms(tmp_path: Path) -> None:
    out = run(
        "eval",
        "solve",
        "--n",
        "3",
        "--no-gsm",
        "--no-sweep",
        "--timed",
        "0",
        "--threads",
        "1",
        "--out",
        str(tmp_path),
        "--json",
    )
    found = json.loads(out)
    assert found["task"] == "solve"
    assert found["machine"]["threads"] == 1
    assert json.loads((tmp_path / "report.json").read_text()) == found
    assert (tmp_path / "report.md").read_text().startswith("# Solving while reading: braid-stories")
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_without_a_baseline_nothing_is_compared() -> None:
    found = json.loads(run("eval", "audit", "--n", "4", "--baseline", "none", "--threads", "1", "--json"))
    assert found["baseline"] is None
    assert "difference" not in found["splits"]["numbers"]


def test_a_stock_model_cannot_be_evaluated_so() -> None:
    result = CliRunner().invoke(
        app, ["eval", "solve", "--model", "braid-stories-turns", "--n", "3", "--threads", "1"]
    )
    assert result.exit_code != 0
    assert "trained" in result.output


def test_the_demo_has_two_clocks() -> None:
    found = json.loads(run("demo", "--pace", "100", "--threads", "1", "--json"))
    assert found["question"].startswith("Mia has 34 pens.")
    for who in ("streams", "turns"):
        assert 0 < found[who]["first_ms"] <= found[who]["whole_ms"]
    assert found["audit"]["solution"] == "34;3*12=36;34+36=80;80-15=65;"


def test_the_demo_in_a_pipe_prints_the_last_moment_once() -> None:
    out = run(
        "demo",
        "Leo had 20 shells. He found 7 more. How many shells does Leo have?",
        "--pace",
        "100",
        "--threads",
        "1",
    )
    assert out.count("whole answer") == 2  # the table, and the sum of it
    assert "audited" not in out


@pytest.mark.parametrize("command", ["demo", "eval", "train"])
def test_help_has_an_example(command: str) -> None:
    args = [command, "solve", "--help"] if command == "eval" else [command, "--help"]
    assert f"braid {command}" in run(*args)
