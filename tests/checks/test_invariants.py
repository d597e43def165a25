"""`braid check` says yes to what is right, and no to each thing that can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from braid.cache import PagePool
from braid.checks.run import INVARIANTS, check_model
from braid.checks.subject import Subject
from braid.engine.local import layout
from braid.engine.local.layout import RowLayout, ViewLayout
from braid.engine.session.rowmaker import RowMaker
from braid.errors import UnsupportedByBackend
from braid.model.linear import RowLinear
from braid.streams.lanes import LaneTable
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import stock, trained

SOLVE = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal"),
        "output": StreamSpec(direction="output"),
    },
    reads={"thought": ["user"]},
)


@pytest.mark.parametrize("architecture", ["llama", "mistral-sliding", "gemma3", "gpt-oss"])
def test_a_right_model_passes(architecture: str) -> None:
    report = check_model(stock(architecture))
    assert report.ok, report
    assert report.greedy_equal is True
    assert report.max_abs_diff is not None
    assert report.max_abs_diff <= 1e-6  # far below the bound for real models
    assert {finding.name for finding in report.findings} == set(INVARIANTS)


def test_a_model_trained_with_streams_passes_and_runs_its_own_topology() -> None:
    plain, own = (INVARIANTS["rows_equal_oracle"](Subject(model)) for model in (stock(), trained(SOLVE)))
    assert plain.ok
    assert own.ok
    assert "4 topologies" in plain.detail
    assert "5 topologies" in own.detail


def test_a_model_whose_positions_cannot_be_shifted_skips_views_and_says_why() -> None:
    model = stock()
    model.architecture = replace(model.architecture, shift_refusal="its RoPE is dynamic")
    finding = INVARIANTS["views_equal_oracle"](Subject(model))
    assert finding.ok is None
    assert "its RoPE is dynamic" in finding.detail


def test_the_report_is_json_and_names_every_invariant() -> None:
    seen: list[str] = []
    report = check_model(stock(), on_start=seen.append)
    data = json.loads(json.dumps(report.to_dict()))
    assert seen == list(INVARIANTS)
    assert data["ok"] is True
    assert data["greedy_equal"] is True
    for name in INVARIANTS:
        assert data[name].keys() >= {"ok", "value", "bound", "seconds"}


def test_the_network_is_given_back_as_it_was() -> None:
    subject = Subject(stock("qwen3"))
    hf = subject.model.hf
    before = [type(module) for module in hf.modules()], hf.config._attn_implementation
    hf.float()
    for module in hf.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = RowLinear
    try:
        switched = [type(module) for module in hf.modules()]
        with subject.as_stock() as network:
            assert not any(type(module) is RowLinear for module in network.modules())
            assert network.config._attn_implementation != before[1]
        assert [type(module) for module in hf.modules()] == switched
        assert hf.config._attn_implementation == before[1]
    finally:
        hf.double()
        for module, kind in zip(hf.modules(), before[0], strict=True):
            module.__class__ = kind


# ---- controls: each breaks one thing


def fails(name: str, model: Any = None) -> None:
    finding = INVARIANTS[name](Subject(model or stock()))
    assert finding.ok is False, finding


def test_control_the_wrong_same_row_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(span: Any, times: Any, same_row: bool) -> Any:
        return np.searchsorted(span.times, times, side="right").astype(np.int64)

    monkeypatch.setattr(layout, "_stop", always)
    fails("rows_equal_oracle")


def test_control_flat_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    place = RowLayout.place

    def flat(self: Any, label: str, span: Any, times: Any, *rest: Any) -> Any:
        self.count = getattr(self, "count", -1) + len(times)
        return place(self, label, span, times, *rest) * 0 + self.count

    monkeypatch.setattr(RowLayout, "place", flat)
    fails("rows_equal_oracle")


def test_control_shifts_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    sights = ViewLayout.sights

    def unshifted(self: Any, feed: Any) -> Any:
        return [replace(sight, shifts=sight.shifts * 0) for sight in sights(self, feed)]

    monkeypatch.setattr(ViewLayout, "sights", unshifted)
    fails("views_equal_oracle")


def test_control_another_token_than_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_best(logits_NV: torch.Tensor, draws: Any) -> list[int]:
        return logits_NV.topk(2).indices[:, 1].tolist()

    monkeypatch.setattr("braid.engine.local.backend.sample", second_best)
    fails("plain_equals_generate")


def test_control_silence_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = RowMaker._probe
    monkeypatch.setattr(
        RowMaker, "_probe", lambda self, lane, t, ask=None: probe(self, lane, t, ask)._replace(keep=True)
    )
    fails("silence_keeps_no_kv")


def test_control_everybody_reads_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneTable, "reads", lambda self, reader, read: True)
    fails("non_interference")


def test_control_pages_that_are_shared_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braid.cache.kv._copy_page", lambda tensors, page_size, source, target: None)
    fails("pool_integrity")


def test_control_pages_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagePool, "release", lambda self, pages: None)
    fails("pool_integrity")


def test_a_refusal_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedByBackend("this backend has no views")

    monkeypatch.setattr(ViewLayout, "__init__", refuse)
    report = check_model(stock())
    assert report.failed == ("views_equal_oracle", "plain_equals_generate")
    assert report["views_equal_oracle"].detail == "backend.unsupported: this backend has no views"
    assert report.greedy_equal is False
