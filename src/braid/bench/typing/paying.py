"""What drafting costs those who pay: rows of one session, with and without another one that drafts.

    without   row row row row row row row row     with   row row row row row row row row
                                                         ▲ the other session gets a snapshot: one a block, and one
                                                           each 150 ms, which is as fast as people type

Blocks of both take turns, so that noise hits both alike. Drafts are computed in steps in which nobody waits, so what is
left is what the books of the other session cost in each step.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from braid.bench.typing.machine import CountingBackend
from braid.engine.core import EngineCore
from braid.engine.costs import endless_bias
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.model.model import Model
from braid.sessions.generate import with_sampling
from braid.streams.presets import topology as preset
from braid.streams.sampling import SamplingSpec

__all__ = ["bench_paying"]

QUESTION = "Tell me all that you know about the weather, and why it is never the same two days in a row."
TYPED = "What is the capital of France, and how many people live in it by now?"
BLOCK = 8
"""Rows of a block."""
IDLE_STEPS = 8
"""Steps between two blocks in which nobody pays, so that drafts are computed."""
KEY_S = 0.15
"""Seconds between two keys."""


def bench_paying(
    model: Model, *, rounds: int = 12, on_round: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Time rows of a session with and without another one that drafts.

    Args:
        model: Answers both.
        rounds: Blocks of each.
        on_round: Is told how many rounds are done, of how many.

    Returns:
        Rows of each; milliseconds of a row, mean and median; the ratio of the means, and that of the medians.

    Raises:
        InputError: There is no round.
    """
    if rounds < 1:
        raise InputError("give at least 1 round")
    backend = CountingBackend(model, kv_tokens=2 * BLOCK * rounds + 1024)
    core = EngineCore(backend)
    endless = with_sampling(preset("plain"), SamplingSpec(logit_bias=endless_bias(model)))
    paying = core.open(endless)
    core.do(paying, "tell", {"user": QUESTION})
    drafting = core.open(preset("plain"))
    for _ in range(8):
        _row(core, paying)
    times: dict[str, list[float]] = {"without": [], "with": []}
    letters = 0
    for turn in range(rounds):
        if on_round is not None:
            on_round(turn, rounds)
        for _ in range(BLOCK):
            times["without"].append(_row(core, paying))
        since_key = KEY_S
        for _ in range(BLOCK):
            began = time.perf_counter()
            if since_key >= KEY_S:
                letters, since_key = letters % len(TYPED) + 1, 0.0
                core.do(drafting, "snapshot", {"user": TYPED[:letters]})
            took = time.perf_counter() - began
            times["with"].append(took + _row(core, paying, drafting))
            since_key += times["with"][-1]
        for _ in range(IDLE_STEPS):  # so that there is a draft to be taken back
            _step(core, [drafting])
    core.close()
    means = {name: statistics.fmean(taken) for name, taken in times.items()}
    return {
        "rows": len(times["with"]),
        "without_ms": round(1e3 * means["without"], 3),
        "with_ms": round(1e3 * means["with"], 3),
        "without_median_ms": round(1e3 * statistics.median(times["without"]), 3),
        "with_median_ms": round(1e3 * statistics.median(times["with"]), 3),
        "with_over_without": round(means["with"] / means["without"], 4),
        "median_over_median": round(
            statistics.median(times["with"]) / statistics.median(times["without"]), 4
        ),
    }


def _row(core: EngineCore, paying: Conversation, *others: Conversation) -> float:
    """Seconds until the first of them has made a row; its first steps only read."""
    before, took = paying.t, 0.0
    while paying.t == before:
        took += _step(core, [paying, *others])
    return took


def _step(core: EngineCore, conversations: Sequence[Conversation]) -> float:
    """Seconds of a step."""
    began = time.perf_counter()
    report = core.step(conversations)
    took = time.perf_counter() - began
    for _, error in report.failures:
        raise error
    for each in conversations:
        each.take_news()
    return took
