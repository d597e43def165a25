"""`braid bench rows`: it measures what it says it measures, beside a process that Braid has not touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from braid.bench.rows.run import ProbedRows, RowFigures, SpeakingRows, bench_rows
from braid.bench.rows.stock import StockProcess
from braid.cli import app
from braid.errors import InputError, UnsupportedModelError
from braid.model.loading import load
from braid.model.model import Model
from braid.model.plan import Plan
from tests.engine.harness import stock
from tests.model.folders import save_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_tiny(path)
    return path


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of every forward: new tokens, and how many of them are kept."""
    seen: list[tuple[int, int]] = []
    forward = Model.forward

    def watched(self: Model, plan: Plan, token_ids: Any, *rest: Any, **named: Any) -> Any:
        ids = token_ids if token_ids is not None else rest[0]
        seen.append((len(ids), len(plan.slots_L)))
        return forward(self, plan, token_ids, *rest, **named)

    monkeypatch.setattr(Model, "forward", watched)
    return seen


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_every_step_is_a_row_of_so_many_streams_behind_as_many_cached_tokens(
    count: int, shapes: list[tuple[int, int]]
) -> None:
    rows = SpeakingRows(stock(), count, 64)
    assert rows.num_cached == 64
    shapes.clear()
    for _ in range(20):
        assert rows.time() > 0
        assert rows.num_cached == 64
    assert shapes == [(count, count)] * 20


def test_a_lane_never_ends(monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, int]]) -> None:
    model = stock()
    end = model.codec.end_ids[0]
    monkeypatch.setattr("braid.engine.local.backend.sample", lambda logits_NV, draws: [end] * len(draws))
    rows = SpeakingRows(model, 2, 40)
    shapes.clear()
    for _ in range(5):
        rows.time()
    assert shapes == [(2, 2)] * 5


def test_probes_keep_nothing_and_change_nothing(shapes: list[tuple[int, int]]) -> None:
    rows = ProbedRows(stock(), 4, 64)
    shapes.clear()
    for _ in range(3):
        rows.time()
        assert rows.num_cached == 64
    assert shapes == [(4, 0)] * 3


def test_too_few_cached_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="16 or more"):
        SpeakingRows(stock(), 8, 15)


def test_the_stock_process_answers_and_goes(folder: Path) -> None:
    with StockProcess(str(folder), torch.float32, 1, 32) as process:
        assert process.time(1) > 0
        assert process.time(4) > 0
        assert process.versions["torch"] == torch.__version__
    assert process._process.returncode is not None


def test_a_model_that_transformers_cannot_run_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(UnsupportedModelError, match=r"config\.json"),
        StockProcess(str(tmp_path), torch.float32, 1, 32),
    ):
        pass


def test_figures_are_medians_and_their_ratios() -> None:
    figures = RowFigures(
        ours={1: [10.0, 30.0, 20.0], 4: [25.0, 24.0, 26.0]},
        probes=[20.0, 20.0, 90.0],
        stock={1: [50.0, 50.0, 50.0], 4: [100.0, 100.0, 100.0]},
        weights=[5.0, 5.0, 6.0],
        model="tiny",
        cached=512,
    ).to_dict()
    assert figures["ms_per_row"] == {"1": 20.0, "4": 25.0}
    assert figures["hf_ms"] == {"1": 50.0, "4": 100.0}
    assert (figures["ms_probes"], figures["weights_read_ms"]) == (20.0, 5.0)
    assert figures["row4_over_row1"] == 1.25
    assert figures["row4_over_hf1"] == 0.5
    assert figures["probes4_over_hf1"] == 0.4
    assert figures["row4_over_weights_read"] == 5.0
    assert figures["min"]["ms_per_row"] == {"1": 10.0, "4": 24.0}


def test_impossible_repeats_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="at least once"):
        bench_rows(load(folder), repeat=0)


def test_the_command_prints_one_line_of_json(folder: Path) -> None:
    threads = torch.get_num_threads()
    try:
        result = CliRunner().invoke(
            app,
            [
                "bench",
                "rows",
                "--model",
                str(folder),
                "--cached",
                "64",
                "--repeat",
                "2",
                "--threads",
                "1",
                "--json",
            ],
        )
    finally:
        torch.set_num_threads(threads)
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.strip().splitlines()
    figures = json.loads(line)
    assert set(figures["ms_per_row"]) == set(figures["hf_ms"]) == {"1", "2", "4", "8"}
    assert figures["ms_probes"] > 0
    assert figures["weights_read_ms"] > 0
    assert figures["machine"]["threads"] == 1
