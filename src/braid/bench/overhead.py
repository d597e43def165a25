"""What the engine itself costs: steps on a backend that computes nothing.

Sessions of one input and some outputs; every stream has a token in every row. A step's time is all of the engine's:
scheduling, rows, stop rules, text, the transcript and the log.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from braid.bench.machine import describe_machine
from braid.engine.core import EngineCore
from braid.engine.scheduler import SchedulerPolicy
from braid.errors import InputError
from braid.model.codec import TokenizerCodec
from braid.streams.topology import StreamSpec, Topology
from braid.testing.null import NullBackend, NullModel

__all__ = ["OverheadFigures", "bench_overhead"]

WARM_UP = 20
FILLER = "The quick brown fox jumps over the lazy dog while the others look on and wonder. "


@dataclass(frozen=True)
class OverheadFigures:
    """Milliseconds a step."""

    sessions: int
    streams: int
    ms: list[float]
    backend_ms: list[float]
    """Of these, in the null backend."""
    tokens_per_step: int
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Median, minimum and 95th percentile in milliseconds, and the machine."""
        ordered = sorted(self.ms)
        return {
            "sessions": self.sessions,
            "streams": self.streams,
            "tokens_per_step": self.tokens_per_step,
            "median_ms": round(statistics.median(ordered), 3),
            "min_ms": round(ordered[0], 3),
            "p95_ms": round(ordered[int(0.95 * (len(ordered) - 1))], 3),
            "backend_median_ms": round(statistics.median(self.backend_ms), 3),
            "steps": len(ordered),
            "machine": dict(self.machine),
        }


def bench_overhead(
    codec: TokenizerCodec, *, sessions: int = 64, streams: int = 4, steps: int = 300
) -> OverheadFigures:
    """Time steps of so many sessions, each with so many streams that all have a token in every row.

    Args:
        codec: Any tokenizer.
        sessions: How many.
        streams: Of each: one input, the others outputs; 2 or more.
        steps: That are timed.

    Raises:
        InputError: A number is too small.
    """
    if sessions < 1 or streams < 2 or steps < 1:
        raise InputError("give at least 1 session, 2 streams and 1 step")
    core = EngineCore(
        NullBackend(NullModel(codec)),
        policy=SchedulerPolicy(step_tokens=sessions * streams, chunk_tokens=256),
    )
    lanes = {"user": StreamSpec(direction="input", feed="paced")}
    lanes |= {f"output{i}": StreamSpec(direction="output") for i in range(streams - 1)}
    topology = Topology(streams=lanes)
    conversations = [core.open(topology) for _ in range(sessions)]
    per_text = max(1, len(codec.encode(FILLER)[0]))
    text = FILLER * (2 + (WARM_UP + steps) // per_text)
    for conversation in conversations:
        conversation.write("user", text)
    times: list[float] = []
    backend: list[float] = []
    tokens = 0
    gc.collect()
    gc.freeze()  # the books of a long run are not looked through again and again
    try:
        for step in range(WARM_UP + steps):
            began = time.perf_counter()
            report = core.step(conversations)
            ms = (time.perf_counter() - began) * 1e3
            for conversation in conversations:
                conversation.take_news()
            if step >= WARM_UP:
                times.append(ms)
                backend.append(report.forward_s * 1e3)
                tokens = report.num_tokens
    finally:
        gc.unfreeze()
    core.close()
    return OverheadFigures(sessions, streams, times, backend, tokens, describe_machine())
