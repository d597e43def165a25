"""The figures of an engine: named as documented, counted as told, cheap."""

from __future__ import annotations

import json
import math
import re
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from braid.engine import metrics as metrics_module
from braid.engine.metrics import EngineMetrics, StepFigures
from braid.streams.events import Reuse


def busy_engine() -> EngineMetrics:
    """One of everything that can happen."""
    metrics = EngineMetrics(kv_pages=100, page_bytes=4096)
    metrics.step(StepFigures(30, 4, 6, 7, 8, 0.012, 0.001, queue_tokens=40, kv_used_pages=10))
    metrics.step(StepFigures(2, 1, 0, 0, 0, 0.010, 0.003, queue_tokens=39, kv_used_pages=11))
    metrics.heard(4, 6)
    metrics.read_input(0.02, 1)
    metrics.first_token(0.3)
    metrics.first_answer_token(0.5)
    metrics.sessions({"active": 2, "idle": 1})
    metrics.prefixes(1, 0, 0)
    metrics.prefixes(2, 1, 512)
    metrics.evicted("session")
    metrics.evicted("prefix", 3)
    metrics.preempted()
    metrics.committed(
        Reuse(reused=9, repaired=4, recomputed=2, drafted=8, kept=5, accepted=3, wasted=7, fallbacks=1)
    )
    metrics.committed(Reuse(drift=0.02))
    metrics.checked(0.03, 0.02, True, None)
    metrics.checked(0.01, 0.02, True, True)
    metrics.drafter = EngineMetrics(kv_pages=10, page_bytes=100)
    metrics.drafter.step(StepFigures(20, forward_seconds=0.5, overhead_seconds=0.25, kv_used_pages=3))
    metrics.tool_call("timeout", 30.0)
    metrics.error("cache.full")
    metrics.slow_consumer("paused")
    return metrics


def test_every_occasion_moves_its_figures() -> None:
    figures = busy_engine().snapshot()
    told = {
        "braid_steps_total": 2,
        "braid_rows_total": 4,
        'braid_tokens_total{kind="input"}': 5,
        'braid_tokens_total{kind="output"}': 6,
        'braid_tokens_total{kind="probe"}': 6,
        'braid_tokens_total{kind="prefill"}': 7,
        'braid_tokens_total{kind="recomputed"}': 8,
        "braid_step_tokens_count": 2,
        "braid_step_tokens_sum": 32,
        'braid_step_seconds_count{part="forward"}': 2,
        'braid_step_seconds_sum{part="forward"}': 0.022,
        'braid_step_seconds_count{part="overhead"}': 2,
        'braid_step_seconds_sum{part="overhead"}': 0.004,
        "braid_queue_tokens": 39,
        'braid_sessions{state="active"}': 2,
        'braid_sessions{state="idle"}': 1,
        "braid_kv_used_pages": 11,
        "braid_kv_used_bytes": 11 * 4096,
        "braid_kv_capacity_pages": 100,
        "braid_kv_capacity_bytes": 100 * 4096,
        "braid_prefix_lookups_total": 2,
        "braid_prefix_hits_total": 1,
        "braid_prefix_hit_tokens_total": 512,
        'braid_evictions_total{what="session"}': 1,
        'braid_evictions_total{what="prefix"}': 3,
        "braid_preemptions_total": 1,
        "braid_input_read_seconds_count": 1,
        "braid_input_read_seconds_sum": 0.02,
        "braid_input_read_rows_count": 1,
        "braid_input_read_rows_sum": 1,
        "braid_first_token_seconds_count": 1,
        "braid_first_token_seconds_sum": 0.3,
        "braid_first_answer_token_seconds_count": 1,
        "braid_first_answer_token_seconds_sum": 0.5,
        'braid_committed_tokens_total{how="reused"}': 9,
        'braid_committed_tokens_total{how="repaired"}': 4,
        'braid_committed_tokens_total{how="recomputed"}': 2,
        'braid_draft_tokens_total{fate="drafted"}': 8,
        'braid_draft_tokens_total{fate="kept"}': 5,
        'braid_draft_tokens_total{fate="accepted"}': 3,
        'braid_draft_tokens_total{fate="wasted"}': 7,
        "braid_edit_fallbacks_total": 1,
        "braid_edit_drift_count": 1,
        "braid_edit_drift_sum": 0.02,
        'braid_edit_checks_total{outcome="inside"}': 2,
        'braid_edit_check_answers_total{answer="same"}': 1,
        "braid_edit_check_estimate_count": 2,
        "braid_edit_check_estimate_sum": 0.04,
        "braid_edit_check_drift_count": 2,
        "braid_edit_check_drift_sum": 0.04,
        "braid_edit_check_low_total": 1,
        "braid_drafter_seconds_total": 0.75,
        "braid_drafter_tokens_total": 20,
        "braid_drafter_kv_used_bytes": 300,
        "braid_drafter_kv_capacity_bytes": 1000,
        'braid_tool_calls_total{status="timeout"}': 1,
        "braid_tool_call_seconds_count": 1,
        "braid_tool_call_seconds_sum": 30,
        'braid_errors_total{code="cache.full"}': 1,
        'braid_slow_consumers_total{outcome="paused"}': 1,
    }
    assert {name: value for name, value in figures.items() if value} == pytest.approx(told)
    assert json.loads(json.dumps(figures)) == figures
    assert figures['braid_tool_calls_total{status="ok"}'] == 0, "what may happen is there from the start"


def test_prometheus_reads_the_exposition_and_finds_the_same() -> None:
    metrics = busy_engine()
    read = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    told = {tuple(re.findall(r'[\w.]+(?=\{|$|")', name)): v for name, v in metrics.snapshot().items()}
    assert read == told
    assert b"_created" not in metrics.exposition()


def test_the_table_in_the_docstring_names_all_there_is() -> None:
    documented = set(re.findall(r"^    (braid_\w+)", metrics_module.__doc__ or "", re.MULTILINE))
    documented |= {"braid_kv_used_bytes", "braid_kv_capacity_bytes"}  # written as …_bytes
    exposed = set(re.findall(r"^# TYPE (\w+)", busy_engine().exposition().decode(), re.MULTILINE))
    assert exposed == documented


def test_a_state_without_sessions_falls_to_zero() -> None:
    metrics = EngineMetrics()
    metrics.sessions({"active": 3})
    metrics.sessions({"evicted": 1})
    figures = metrics.snapshot()
    assert figures['braid_sessions{state="active"}'] == 0
    assert figures['braid_sessions{state="evicted"}'] == 1


def test_levels_change_without_a_step() -> None:
    metrics = EngineMetrics(kv_pages=8, page_bytes=10)
    metrics.step(StepFigures(queue_tokens=5, kv_used_pages=4))
    metrics.levels(queue_tokens=0, kv_used_pages=1)
    figures = metrics.snapshot()
    assert figures["braid_queue_tokens"] == 0
    assert figures["braid_kv_used_bytes"] == 10
    assert figures["braid_steps_total"] == 1


def test_two_engines_do_not_add_up() -> None:
    one, two = busy_engine(), EngineMetrics()
    assert one.snapshot()["braid_steps_total"] == 2
    assert two.snapshot()["braid_steps_total"] == 0


def test_reading_while_the_worker_writes_loses_nothing() -> None:
    metrics = EngineMetrics()

    def work() -> None:
        for _ in range(500):
            metrics.heard(rows=1, said_tokens=2)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        metrics.exposition()
        time.sleep(0.002)
    assert metrics.snapshot()["braid_rows_total"] == 1500
    assert metrics.snapshot()['braid_tokens_total{kind="output"}'] == 3000


def test_a_step_costs_microseconds() -> None:
    """About 8 µs, and 1.5 more for each input read; the best of many, as a busy machine does not matter."""
    metrics = EngineMetrics(100, 4096)
    best = math.inf
    for _ in range(300):
        began = time.perf_counter()
        metrics.step(StepFigures(30, 4, 6, 7, 8, 0.012, 0.001, 0.0, 40, 10))
        metrics.heard(3, 5)
        metrics.read_input(0.02, 1)
        best = min(best, time.perf_counter() - began)
    assert best <= 40e-6
