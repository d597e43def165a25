"""`braid bench rows`: what a row costs, beside what the stock forward costs.

One run, interleaved: every round times every case once, so that noise on the machine hits all alike. Each side begins
its half of a round with a step that is not counted.

    our row of 1, 2, 4, 8 streams     the full step: prepare, plan, forward, sample (greedy), advance
    four probes                       the full step of a batch that is four probes and nothing else
    stock forward of 1, 2, 4, 8       `transformers` alone, sdpa, in an unpatched process; no sampling
    the weights, read once            every parameter summed; no forward can be faster

Each of ours has `cached` tokens in the cache before every step, over all its streams: each output has said a few,
the user the rest. What a step adds is trimmed off before the next one. The stock forward has as many in a
`DynamicCache`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from braid.bench.machine import describe_machine
from braid.bench.rows.stock import StockProcess
from braid.engine.backend import Ask, Draw, Entry, Item, Trim
from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.scheduler import Demand, SchedulerPolicy
from braid.errors import InputError
from braid.model.model import Model
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology

__all__ = ["COUNTS", "RowFigures", "SpeakingRows", "bench_rows"]

COUNTS = (1, 2, 4, 8)
"""Streams of a row, and tokens of a stock forward."""

NUM_PROBES = 4
WARM_UP = 3
SAID = 8
"""Tokens that each output has said when the clock starts."""
FILLER = "The quick brown fox jumps over the lazy dog while the others look on and wonder. "


@dataclass(frozen=True)
class RowFigures:
    """Milliseconds of every repetition, by case."""

    ours: Mapping[int, list[float]]
    probes: list[float]
    stock: Mapping[int, list[float]]
    weights: list[float]
    model: str
    cached: int
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Medians in milliseconds, the ratios that the project promises, minima, and the machine."""
        ours = {count: statistics.median(times) for count, times in self.ours.items()}
        stock = {count: statistics.median(times) for count, times in self.stock.items()}
        probes, weights = statistics.median(self.probes), statistics.median(self.weights)
        return {
            "ms_per_row": _keyed(ours),
            "hf_ms": _keyed(stock),
            "ms_probes": round(probes, 2),
            "weights_read_ms": round(weights, 2),
            "row4_over_row1": _ratio(ours.get(4), ours.get(1)),
            "row4_over_hf1": _ratio(ours.get(4), stock.get(1)),
            "probes4_over_row1": _ratio(probes, ours.get(1)),
            "probes4_over_hf1": _ratio(probes, stock.get(1)),
            "row4_over_weights_read": _ratio(ours.get(4), weights),
            "min": {
                "ms_per_row": _keyed({count: min(times) for count, times in self.ours.items()}),
                "hf_ms": _keyed({count: min(times) for count, times in self.stock.items()}),
                "ms_probes": round(min(self.probes), 2),
                "weights_read_ms": round(min(self.weights), 2),
            },
            "cached": self.cached,
            "repeat": len(self.weights),
            "model": self.model,
            "machine": dict(self.machine),
        }


def _keyed(times: Mapping[int, float]) -> dict[str, float]:
    return {str(count): round(ms, 2) for count, ms in times.items()}


def _ratio(ms: float | None, of: float | None) -> float | None:
    return None if ms is None or of is None else round(ms / of, 3)


class SpeakingRows:
    """A session of native rows in which every output speaks in every row, on stock weights.

    Args:
        model: The network; what it was trained with is left aside, since it does not change what a row costs.
        num_outputs: Streams that speak.
        cached: Tokens in the cache before each step.

    Raises:
        InputError: `cached` is too small for so many streams.
    """

    def __init__(self, model: Model, num_outputs: int, cached: int) -> None:
        said = min(SAID, cached // (2 * num_outputs))
        if said < 1:
            raise InputError(
                f"{cached} cached tokens are too few for {num_outputs} streams; give {2 * num_outputs} or more"
            )
        read = cached - num_outputs * said
        streams = {"user": StreamSpec(direction="input", feed="burst")}
        streams |= {f"output{i}": StreamSpec(direction="output") for i in range(num_outputs)}
        once, twice = (len(model.codec.encode(FILLER * n)[0]) for n in (1, 2))
        text = FILLER * (2 + read // (twice - once))
        size = len(model.codec.encode(text)[0])
        size = size + (num_outputs + 1) * (said + 2 * 16) + 256
        self._backend = LocalBackend(model, kv_tokens=size, prefix_share=0.0)
        everything = SchedulerPolicy(step_tokens=size, chunk_tokens=size)
        self._core = EngineCore(self._backend, policy=everything)
        self._conversation = self._core.open(Topology(streams=streams))
        self._conversation.write("user", text)
        self._conversation.flush("user")
        for _ in range(said + 1):
            self._step()
            self._keep_talking()
        self._lengths = [read, *([said] * num_outputs)]
        self._restore()

    @property
    def num_cached(self) -> int:
        """Tokens in the cache now."""
        return self._conversation.kv_tokens

    def time(self) -> float:
        """Milliseconds of one step; the cache is as it was afterwards."""
        began = time.perf_counter()
        self._step()
        ms = (time.perf_counter() - began) * 1e3
        self._restore()
        return ms

    def _step(self) -> None:
        report = self._core.step([self._conversation])
        assert report.worked, "every lane speaks in every row"

    def _restore(self) -> None:
        stage = self._conversation.stage
        lanes = [*stage.inputs, *stage.outputs]
        for lane, length in zip(lanes, self._lengths, strict=True):
            self._backend.apply([Trim(self._conversation.number, lane.label, length)])
            lane.num_kept = length
        self._keep_talking()

    def _keep_talking(self) -> None:
        """Put another token in the place of an end token that a lane has drawn and not yet said."""
        model = self._backend.model
        for lane in self._conversation.stage.outputs:
            assert lane.pending is not None, "every lane speaks"
            if lane.pending[0] in model.codec.end_ids:
                lane.pending = (
                    next(i for i in range(model.vocab_size) if i not in model.codec.end_ids),
                    False,
                )


class ProbedRows(SpeakingRows):
    """The same session, timed on steps whose batch is one probe of each output.

    A session never makes such a row: a row keeps a token. So the session's part of the step is replaced by an item that
    is put together here, which goes the whole way through the step; the drawn tokens are dropped.
    """

    def __init__(self, model: Model, num_outputs: int, cached: int) -> None:
        super().__init__(model, num_outputs, cached)
        conversation = self._conversation
        lanes = conversation.stage.outputs
        spec = SamplingSpec()
        entries = [
            Entry(lane.label, lane.label, (model.probe_id,), (conversation.t,), False, Ask((
                Draw(spec, lane.label, 0, 0, 0, {}),
            )))
            for lane in lanes
        ]  # fmt: skip
        item = Item(conversation.number, "decode", entries)
        replaced: dict[str, Callable[..., object]] = {
            "demand": lambda now: Demand(conversation.number, len(entries), 0, 0, 0),
            "prepare": lambda grant, now, spare=0: (item, []),
            "advance": lambda answers: None,
        }
        for name, function in replaced.items():
            setattr(conversation, name, function)


def read_weights(model: Model) -> float:
    """Milliseconds to read every parameter once, with all threads."""
    began = time.perf_counter()
    with torch.inference_mode():
        for weight in model.hf.parameters():
            weight.sum()
    return (time.perf_counter() - began) * 1e3


def bench_rows(
    model: Model,
    *,
    cached: int = 512,
    repeat: int = 30,
    counts: tuple[int, ...] = COUNTS,
    on_round: Callable[[int, int], None] | None = None,
) -> RowFigures:
    """Time rows beside stock forwards.

    Args:
        model: On a CPU, where a step is over when it returns.
        cached: Tokens in the cache.
        repeat: Rounds; every case is timed once a round.
        counts: How many streams or tokens.
        on_round: Called with the rounds done, and how many there are in all, warm-up included.

    Raises:
        InputError: `cached` or `repeat` is too small, or the model is not on a CPU.
        UnsupportedModelError: `transformers` alone cannot run the model.
    """
    if repeat < 1:
        raise InputError(f"repeat is {repeat}; measure at least once")
    if model.device.type != "cpu":
        raise InputError(
            f"{model.name} is on {model.device}; rows are timed on a CPU, so load it with device='cpu'"
        )
    model = _as_stock(model)
    rows = {count: SpeakingRows(model, count, cached) for count in counts}
    probed = ProbedRows(model, NUM_PROBES, cached)
    figures = RowFigures(
        {count: [] for count in counts},
        [],
        {count: [] for count in counts},
        [],
        model.name,
        cached,
        describe_machine(),
    )
    folder = str(model.hf.name_or_path)
    with StockProcess(folder, model.dtype, torch.get_num_threads(), cached) as stock, _no_collection():
        for turn in range(WARM_UP + repeat):
            if on_round is not None:
                on_round(turn, WARM_UP + repeat)
            # Not counted: it pays for the other side's having used the processor's caches.
            rows[counts[0]].time()
            ours = {count: row.time() for count, row in rows.items()}
            probe, weights = probed.time(), read_weights(model)
            stock.time(counts[0])  # the same for the other side
            theirs = {count: stock.time(count) for count in counts}
            if turn < WARM_UP:
                continue
            for count in counts:
                figures.ours[count].append(ours[count])
                figures.stock[count].append(theirs[count])
            figures.probes.append(probe)
            figures.weights.append(weights)
    return figures


def _as_stock(model: Model) -> Model:
    """The model without what it was trained with."""
    return (
        model if model.trained is None else Model(model.hf, model.codec, name=model.name, choice=model.choice)
    )


@contextmanager
def _no_collection() -> Generator[None]:
    """No garbage collection inside a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
