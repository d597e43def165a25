"""Counters and histograms of one engine, ready for Prometheus.

Every engine has a registry of its own, so two engines in one process do not add up by accident. Labels are few and
their values are fixed words; no session, tenant or text ever becomes one.

    name                              kind       labels   what
    braid_steps_total                 counter             forward passes
    braid_rows_total                  counter             rows that can be heard, all sessions, each once: those of a
                                                          draft when it is released; rate(…[1m]) is rows a second
    braid_tokens_total                counter    kind     input: read from outside, in drafts each time anew
                                                          output: said by the model, each once, as rows
                                                          probe: silent streams asked · prefill: templates, history
                                                          recomputed: computed again after eviction or preemption
    braid_step_tokens                 histogram           tokens and probes computed in one step, all sessions together
    braid_step_seconds                histogram  part     forward · overhead: the rest of the step
    braid_queue_tokens                gauge               input tokens that have not entered a row yet
    braid_sessions                    gauge      state    sessions by the state they are in
    braid_kv_used_pages, …_bytes      gauge               pages of the key-value pool that are owned, and their size
    braid_kv_capacity_pages, …_bytes  gauge               pages in the pool, and their size
    braid_prefix_lookups_total        counter             searches of the prefix cache
    braid_prefix_hits_total           counter             searches that found something
    braid_prefix_hit_tokens_total     counter             tokens that were found, and so not computed
    braid_evictions_total             counter    what     session: an idle one, rebuilt later · prefix: a cached one
    braid_preemptions_total           counter             sessions that lost their memory while they had work
    braid_input_read_seconds          histogram           from an input token's arrival until the model has read it;
                                                          what is read for a draft does not count
    braid_input_read_rows             histogram           the same in rows of its session; 1 is the very next row
    braid_first_token_seconds         histogram           TTFT: from the end of input, or the commit, to the first token
    braid_first_answer_token_seconds  histogram           TTFAT: … to the first token of an answer
    braid_committed_tokens_total      counter    how      of committed input: reused, with repaired ones · repaired
                                                          recomputed: after the commit
    braid_draft_tokens_total          counter    fate     drafted: said ahead of a commit · kept: in the answer
                                                          accepted: verified several at once, in live turns, too
                                                          wasted: computed for
                                                          a turn and not part of it, or for one that was taken back
    braid_draft_seconds_total         counter             seconds of steps in which nobody waited: drafts, reading ahead
    braid_drafter_seconds_total       counter             seconds of all steps of a small model that drafts
    braid_drafter_tokens_total        counter             tokens and probes that it has computed
    braid_drafter_kv_used_bytes       gauge               of its key-value pool, those that are owned
    braid_drafter_kv_capacity_bytes   gauge               all of them
    braid_drafter_errors_total        counter    code     what went wrong with drafts of a small model
    braid_edit_fallbacks_total        counter             edits to be repaired or reused, and computed instead
    braid_edit_drift                  histogram           estimated drift of what was taken over behind edits
    braid_edit_checks_total           counter    outcome  turns with such parts, computed again while nobody waited:
                                                          inside · outside of the bound · dropped: no room, or closed
    braid_edit_check_answers_total    counter    answer   same · different: what these turns said, computed again
    braid_edit_check_estimate         histogram           their estimated drift
    braid_edit_check_drift            histogram           what it was
    braid_edit_check_low_total        counter             of them, those whose drift was more than its estimate
    braid_edit_check_tokens_total     counter             tokens computed for that
    braid_tool_calls_total            counter    status   ok · error · timeout · cancelled
    braid_tool_call_seconds           histogram           from the call to its result
    braid_errors_total                counter    code     errors by their `code`, see `braid.errors`
    braid_slow_consumers_total        counter    outcome  paused: waited for its client · dropped: given up

The engine's worker writes and any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from braid.streams.events import Reuse

__all__ = ["ConsumerOutcome", "EngineMetrics", "Evicted", "StepFigures", "ToolStatus"]

_TOKEN_KINDS = ("input", "output", "probe", "prefill", "recomputed")

Evicted = Literal["session", "prefix"]
ToolStatus = Literal["ok", "error", "timeout", "cancelled"]
ConsumerOutcome = Literal["paused", "dropped"]

_PARTS = ("forward", "overhead")
_HOW = ("reused", "repaired", "recomputed")
_FATES = ("drafted", "kept", "accepted", "wasted")
_OUTCOMES = ("inside", "outside", "dropped")
_ANSWERS = ("same", "different")

_DRIFT_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)
_TOKEN_BUCKETS = tuple(2**power for power in range(13))
_ROW_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
_STEP_BUCKETS = (2.5e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 0.1, 0.2, 0.5, 1, 2, 5)
_WAIT_BUCKETS = (5e-3, 1e-2, 2e-2, 3e-2, 5e-2, 7.5e-2, 0.1, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30)
_TOOL_BUCKETS = (1e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


@dataclass(slots=True)
class StepFigures:
    """What happened in one step.

    Args:
        tokens: Tokens and probes computed, all sessions.
        input_tokens: Tokens read from outside.
        probe_tokens: Silent streams that were asked.
        prefill_tokens: Tokens of templates and history.
        recomputed_tokens: Tokens computed again, after an eviction or preemption.
        forward_seconds: Time in the model.
        overhead_seconds: Time in all the rest of the step.
        draft_seconds: Time in all of it, if nobody waited for it.
        queue_tokens: Input tokens that still wait, after the step.
        kv_used_pages: Pages of the pool that are owned, after the step.
    """

    tokens: int = 0
    input_tokens: int = 0
    probe_tokens: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    forward_seconds: float = 0.0
    overhead_seconds: float = 0.0
    draft_seconds: float = 0.0
    queue_tokens: int = 0
    kv_used_pages: int = 0


class EngineMetrics(Collector):
    """The figures of one engine; the module says what each name means.

    Args:
        kv_pages: Pages in the key-value pool.
        page_bytes: Bytes of one page, keys and values of all layers.

    >>> metrics = EngineMetrics()
    >>> metrics.heard(rows=2, said_tokens=4)
    >>> metrics.snapshot()["braid_rows_total"], metrics.snapshot()['braid_tokens_total{kind="output"}']
    (2.0, 4.0)
    """

    def __init__(self, kv_pages: int = 0, page_bytes: int = 0) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.drafter: EngineMetrics | None = None
        """Those of the engine that drafts for this one, whose costs are told here, too."""
        self._page_bytes = page_bytes
        self._make_step_metrics()
        self._make_memory_metrics(kv_pages)
        self._make_latency_metrics()
        self._make_edit_metrics()
        self._make_trouble_metrics()
        self.registry.register(_DrafterCosts(self))

    # ---- what happened

    def step(self, figures: StepFigures) -> None:
        """A step has been made."""
        self._steps.inc()
        for kind, count in (
            ("input", figures.input_tokens),
            ("probe", figures.probe_tokens),
            ("prefill", figures.prefill_tokens),
            ("recomputed", figures.recomputed_tokens),
        ):
            if count:
                self._tokens[kind].inc(count)
        self._step_tokens.observe(figures.tokens)
        self._forward.observe(figures.forward_seconds)
        self._overhead.observe(figures.overhead_seconds)
        if figures.draft_seconds:
            self._draft_seconds.inc(figures.draft_seconds)
        self.levels(figures.queue_tokens, figures.kv_used_pages)

    def heard(self, rows: int, said_tokens: int) -> None:
        """So many more rows can be heard, and so many tokens that outputs have said in them."""
        if rows:
            self._rows.inc(rows)
        if said_tokens:
            self._tokens["output"].inc(said_tokens)

    def levels(self, queue_tokens: int, kv_used_pages: int) -> None:
        """So many tokens wait and so many pages are owned; `step` says it too, call this when no step follows."""
        self._queue_tokens.set(queue_tokens)
        self._kv_used_pages.set(kv_used_pages)
        self._kv_used_bytes.set(kv_used_pages * self._page_bytes)

    def read_input(self, seconds: float, rows: int) -> None:
        """The model has read an input token that arrived so long ago; call it for the oldest of a stream and row.

        Args:
            seconds: Since its arrival.
            rows: Of its session since its arrival, the one that read it included.
        """
        self._read_seconds.observe(seconds)
        self._read_rows.observe(rows)

    def first_token(self, seconds: float) -> None:
        """A turn's first token was said, so many seconds after the end of its input."""
        self._first_token.observe(seconds)

    def first_answer_token(self, seconds: float) -> None:
        """A turn's first answer token was said, so many seconds after the end of its input."""
        self._first_answer_token.observe(seconds)

    def committed(self, reuse: Reuse) -> None:
        """A turn is over, or one that might have been committed is taken back."""
        for how, counter in self._committed.items():
            counter.inc(getattr(reuse, how))
        for fate, counter in self._drafted.items():
            counter.inc(getattr(reuse, fate))
        self._edit_fallbacks.inc(reuse.fallbacks)
        if reuse.drift is not None:
            self._edit_drift.observe(reuse.drift)

    def checking(self, num_tokens: int) -> None:
        """So many tokens are computed again, to see how good an estimate was."""
        self._check_tokens.inc(num_tokens)

    def checked(self, estimate: float, drift: float, is_inside: bool, is_same: bool | None) -> None:
        """A turn that took something over was computed again.

        Args:
            estimate: Of its drift.
            drift: What it is.
            is_inside: Whether that is inside of the bound.
            is_same: Whether its answer is the same; None where nothing was said.
        """
        self._checks["inside" if is_inside else "outside"].inc()
        self._check_estimate.observe(estimate)
        self._check_drift.observe(drift)
        if drift > estimate:
            self._check_low.inc()
        if is_same is not None:
            self._check_answers["same" if is_same else "different"].inc()

    def check_dropped(self) -> None:
        """A turn was to be computed again, and is not."""
        self._checks["dropped"].inc()

    def drafter_error(self, code: str) -> None:
        """A small model could not draft for a session; `code` is that of the error's class."""
        self._drafter_errors.labels(code).inc()

    def sessions(self, by_state: Mapping[str, int]) -> None:
        """So many sessions are in each state; a state that is not named has none."""
        for state in by_state:
            if state not in self._states:
                self._states[state] = self._sessions.labels(state)
        for state, gauge in self._states.items():
            gauge.set(by_state.get(state, 0))

    def prefixes(self, lookups: int, hits: int, hit_tokens: int) -> None:
        """The prefix cache was asked so often, found something so often, and so many tokens, since the beginning."""
        for counter, total, name in (
            (self._prefix_lookups, lookups, "lookups"),
            (self._prefix_hits, hits, "hits"),
            (self._prefix_hit_tokens, hit_tokens, "hit_tokens"),
        ):
            more = total - self._prefixes_seen.get(name, 0)
            if more > 0:
                counter.inc(more)
                self._prefixes_seen[name] = total

    def evicted(self, what: Evicted, count: int = 1) -> None:
        """Memory was taken back from a `session` that idled, or from the cache of a `prefix`."""
        self._evictions[what].inc(count)

    def preempted(self) -> None:
        """A session lost its memory while it had work, and will be rebuilt."""
        self._preemptions.inc()

    def tool_call(self, status: ToolStatus, seconds: float) -> None:
        """A tool call came to its end: `ok`, `error`, `timeout` or `cancelled`, so many seconds after it began."""
        self._tool_calls[status].inc()
        self._tool_seconds.observe(seconds)

    def error(self, code: str) -> None:
        """An error was raised to somebody; `code` is that of its class."""
        self._errors.labels(code).inc()

    def slow_consumer(self, outcome: ConsumerOutcome) -> None:
        """A client read too slowly: its session was `paused`, or the client was `dropped`."""
        self._slow_consumers[outcome].inc()

    # ---- asking

    def exposition(self) -> bytes:
        """All figures in the text format that Prometheus scrapes, UTF-8."""
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The figures as `prometheus_client` collects them, without the times at which each was made."""
        for family in self.registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

    def snapshot(self) -> dict[str, float]:
        """All figures by name, for tests and JSON; of a histogram its `_count` and `_sum`.

        A figure with a label is named as in the text format: `braid_tokens_total{kind="input"}`.
        """
        figures: dict[str, float] = {}
        for family in self.collect():
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                    figures[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return figures

    # ---- making them; children of a label are bound once, here

    def _make_step_metrics(self) -> None:
        self._steps = self._counter("braid_steps", "Forward passes.")
        self._rows = self._counter("braid_rows", "Rows that can be heard, all sessions.")
        self._tokens = self._counters("braid_tokens", "Tokens by what they are.", "kind", _TOKEN_KINDS)
        self._step_tokens = self._histogram("braid_step_tokens", "Tokens in one step.", _TOKEN_BUCKETS)
        seconds = Histogram(
            "braid_step_seconds",
            "Time of one step: the forward pass, and all else.",
            ["part"],
            buckets=_STEP_BUCKETS,
            registry=self.registry,
        )
        self._forward, self._overhead = (seconds.labels(part) for part in _PARTS)
        self._queue_tokens = self._gauge(
            "braid_queue_tokens", "Input tokens that have not entered a row yet."
        )
        self._sessions = Gauge("braid_sessions", "Sessions by state.", ["state"], registry=self.registry)
        self._states: dict[str, Gauge] = {}
        self._prefixes_seen: dict[str, int] = {}

    def _make_memory_metrics(self, kv_pages: int) -> None:
        self._kv_used_pages = self._gauge(
            "braid_kv_used_pages", "Pages of the key-value pool that are owned."
        )
        self._kv_used_bytes = self._gauge("braid_kv_used_bytes", "Size of the owned pages.")
        self._gauge("braid_kv_capacity_pages", "Pages in the key-value pool.").set(kv_pages)
        self._gauge("braid_kv_capacity_bytes", "Size of the pool.").set(kv_pages * self._page_bytes)
        self._prefix_lookups = self._counter("braid_prefix_lookups", "Searches of the prefix cache.")
        self._prefix_hits = self._counter("braid_prefix_hits", "Searches that found something.")
        self._prefix_hit_tokens = self._counter("braid_prefix_hit_tokens", "Tokens found, so not computed.")
        self._evictions = self._counters(
            "braid_evictions", "Memory taken back while idle.", "what", get_args(Evicted)
        )
        self._preemptions = self._counter("braid_preemptions", "Sessions that lost their memory under work.")

    def _make_latency_metrics(self) -> None:
        self._read_seconds = self._histogram(
            "braid_input_read_seconds", "From an input token's arrival until it is read.", _WAIT_BUCKETS
        )
        self._read_rows = self._histogram(
            "braid_input_read_rows", "The same in rows of its session; 1 is the very next row.", _ROW_BUCKETS
        )
        self._first_token = self._histogram(
            "braid_first_token_seconds", "From the end of input to the first token.", _WAIT_BUCKETS
        )
        self._first_answer_token = self._histogram(
            "braid_first_answer_token_seconds",
            "From the end of input to the first answer token.",
            _WAIT_BUCKETS,
        )

    def _make_edit_metrics(self) -> None:
        self._committed = self._counters(
            "braid_committed_tokens", "Committed input by what was known of it.", "how", _HOW
        )
        self._drafted = self._counters(
            "braid_draft_tokens", "Tokens of drafts by what became of them.", "fate", _FATES
        )
        self._draft_seconds = self._counter(
            "braid_draft_seconds", "Time of steps in which nobody waited for an answer."
        )
        self._drafter_errors = Counter(
            "braid_drafter_errors", "Errors of a drafting model by code.", ["code"], registry=self.registry
        )
        self._edit_fallbacks = self._counter(
            "braid_edit_fallbacks", "Edits that were computed exactly instead."
        )
        self._edit_drift = self._histogram(
            "braid_edit_drift", "Estimated drift of what was taken over behind edits.", _DRIFT_BUCKETS
        )

        self._checks = self._counters(
            "braid_edit_checks", "Edited turns that were computed again.", "outcome", _OUTCOMES
        )
        self._check_answers = self._counters(
            "braid_edit_check_answers", "Answers of edited turns, computed again.", "answer", _ANSWERS
        )
        self._check_estimate = self._histogram(
            "braid_edit_check_estimate", "Estimated drift of turns that were computed again.", _DRIFT_BUCKETS
        )
        self._check_drift = self._histogram(
            "braid_edit_check_drift", "Drift of turns that were computed again.", _DRIFT_BUCKETS
        )
        self._check_low = self._counter(
            "braid_edit_check_low", "Turns whose drift was more than its estimate."
        )
        self._check_tokens = self._counter(
            "braid_edit_check_tokens", "Tokens computed again to see how good estimates are."
        )

    def _make_trouble_metrics(self) -> None:
        self._tool_calls = self._counters(
            "braid_tool_calls", "Tool calls by how they ended.", "status", get_args(ToolStatus)
        )
        self._tool_seconds = self._histogram(
            "braid_tool_call_seconds", "From a tool call to its result.", _TOOL_BUCKETS
        )
        self._errors = Counter("braid_errors", "Errors by code.", ["code"], registry=self.registry)
        self._slow_consumers = self._counters(
            "braid_slow_consumers", "Clients that read too slowly.", "outcome", get_args(ConsumerOutcome)
        )

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, registry=self.registry)

    def _counters(self, name: str, about: str, label: str, values: tuple[str, ...]) -> dict[str, Counter]:
        family = Counter(name, about, [label], registry=self.registry)
        return {value: family.labels(value) for value in values}

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(name, about, registry=self.registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, buckets=buckets, registry=self.registry)


class _DrafterCosts(Collector):
    """What a small model takes, from the figures of its own engine.

    Args:
        metrics: Of the engine that it drafts for.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """The costs so far; nothing without a small model."""
        drafter = self._metrics.drafter
        found = {} if drafter is None else drafter.snapshot()
        seconds = sum(found.get(f'braid_step_seconds_sum{{part="{part}"}}', 0.0) for part in _PARTS)
        yield CounterMetricFamily("braid_drafter_seconds", "Time of a drafting model's steps.", seconds)
        tokens = found.get("braid_step_tokens_sum", 0.0)
        yield CounterMetricFamily(
            "braid_drafter_tokens", "Tokens that a drafting model has computed.", tokens
        )
        for name, about in (
            ("kv_used_bytes", "Size of the owned pages of a drafting model's pool."),
            ("kv_capacity_bytes", "Size of a drafting model's pool."),
        ):
            yield GaugeMetricFamily(f"braid_drafter_{name}", about, found.get(f"braid_{name}", 0.0))
