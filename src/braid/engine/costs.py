"""What a row and an input token cost, measured in a second or so on the model itself, once a process.

Each case is a session of views whose outputs all speak in every row, as a request would run it: the whole step is
timed, with planning and drawing. The middle of a few repetitions counts, so that one disturbance does not.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from braid.engine.core import EngineCore
from braid.engine.fallback import Costs
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.preamble import Preamble
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology

if TYPE_CHECKING:
    from braid.engine.backend import Backend, ModelCard
    from braid.model.model import Model

__all__ = ["costs_of", "endless_bias", "measure_costs"]

COUNTS = (1, 2, 4)
"""Outputs that speak at once."""
_WARM_UP = 2
_FILLER = "The quick brown fox jumps over the lazy dog while the others look on. "
_LONG = 8
"""How often the filler is written at most, where reading is timed."""

_known: WeakKeyDictionary[Model, Costs] = WeakKeyDictionary()
_lock = threading.Lock()


def costs_of(model: Model) -> Costs:
    """What computing costs with a model; measured when it is first asked for in this process.

    Raises:
        UnsupportedModelError: The model's positions cannot be shifted, so it has no views of several outputs.
    """
    from braid.engine.local import LocalBackend

    with _lock:
        if model not in _known:
            _known[model] = measure_costs(LocalBackend(model, kv_tokens=1024, prefix_share=0.0))
        return _known[model]


def measure_costs(
    backend: Backend, *, repeat: int = 5, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Measure on a backend that serves nobody else meanwhile.

    Args:
        backend: What computes.
        repeat: Rows of each number of queries; their median counts.
        clock: Seconds.
    """
    codec = backend.model.codec
    size = len(codec.encode(_FILLER)[0])
    longer = max(2, min(_LONG, backend.model.max_positions // (2 * size)))
    rows = {count: statistics.median(times) for count, times in _rows_ms(backend, repeat, clock).items()}
    short, long = (
        statistics.median(_read_ms(backend, times, clock) for _ in range(3)) for times in (1, longer)
    )
    token_ms = max(0.0, (long - short) / (len(codec.encode(_FILLER * longer)[0]) - size))
    closer = Preamble(codec, None).closer_ids(StreamSpec(direction="output"))
    return Costs(rows, token_ms, closer_tokens=len(closer))


def endless_bias(model: Model | ModelCard) -> dict[int, float]:
    """A bias of logits with which a stream does not end by itself, for measurements of a given length.

    Args:
        model: Of a backend.
    """
    return dict.fromkeys({*model.codec.end_ids, model.turn_end_id}, -1000.0)


def _session(backend: Backend, count: int) -> Topology:
    endless = SamplingSpec(logit_bias=endless_bias(backend.model))  # nobody ends before the measurement does
    spec = StreamSpec(direction="output", wait_k="end", sampling=endless)
    outputs = {f"output{number}": spec for number in range(count)}
    return Topology(decoding="views", streams={"user": StreamSpec(direction="input"), **outputs})


def _rows_ms(backend: Backend, repeat: int, clock: Callable[[], float]) -> dict[int, list[float]]:
    """Milliseconds of rows, by how many outputs speak in them, in turns, so that noise hits all alike."""
    core = EngineCore(backend, policy=SchedulerPolicy(step_tokens=4096, chunk_tokens=4096))
    sessions = {count: core.open(_session(backend, count)) for count in COUNTS}
    found: dict[int, list[float]] = {count: [] for count in COUNTS}
    try:
        for conversation in sessions.values():
            conversation.write("user", _FILLER)
            conversation.end()
            while not conversation.is_speaking:
                core.step([conversation])
        for turn in range(_WARM_UP + repeat):
            for count, conversation in sessions.items():
                began = clock()
                core.step([conversation])
                if turn >= _WARM_UP:
                    found[count].append((clock() - began) * 1e3)
        return found
    finally:
        for conversation in sessions.values():
            core.do(conversation, "close")


def _read_ms(backend: Backend, times: int, clock: Callable[[], float]) -> float:
    """Milliseconds of the step that reads an input and its closer."""
    core = EngineCore(backend, policy=SchedulerPolicy(step_tokens=4096, chunk_tokens=4096))
    conversation = core.open(_session(backend, 1))
    try:
        conversation.write("user", _FILLER * times)
        conversation.end()
        taken = 0.0
        while not conversation.is_speaking:  # the template's beginning is read in a step of its own, before
            began = clock()
            core.step([conversation])
            taken = (clock() - began) * 1e3
        return taken
    finally:
        core.do(conversation, "close")
