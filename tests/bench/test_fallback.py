"""`braid bench fallback`: both are timed on equal terms, and the decision stands beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from braid.bench.fallback import bench_fallback
from braid.cli import app
from braid.errors import InputError
from tests.engine.harness import stock
from tests.model.folders import save_tiny


def test_both_say_equally_much() -> None:
    told: list[tuple[int, int]] = []
    figures = bench_fallback(
        stock(), question="Why?", answer_tokens=5, repeat=2, on_round=lambda *done: told.append(done)
    )
    found = figures.to_dict()
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert len(figures.asked) == len(figures.plain) == 2
    assert found["asked_rows"] == found["plain_rows"] == 4 + 5
    assert found["same_answers"]
    assert found["input_tokens"] == 4
    assert found["asked_over_plain"] == pytest.approx(found["asked_s"] / found["plain_s"], rel=0.05)
    assert found["plain_estimated_s"] is not None
    assert set(found["row_ms"]) == {"1", "2", "4"}


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="one output already"):
        bench_fallback(stock(), topology="plain")
    with pytest.raises(InputError, match="once"):
        bench_fallback(stock(), repeat=0)


def test_the_command(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    arguments = [
        "--model",
        str(tmp_path),
        "--repeat",
        "1",
        "--answer-tokens",
        "3",
        "--threads",
        "1",
        "--json",
    ]
    done = CliRunner().invoke(app, ["bench", "fallback", *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["answer_tokens"] == 3
