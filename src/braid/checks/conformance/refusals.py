"""What a backend says that it cannot do, it refuses by name; done half, or ignored, it would go unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from braid.checks.conformance.drafts import Spot, spots
from braid.checks.conformance.stand import Stand, judged, skipped
from braid.checks.finding import Finding
from braid.engine.backend import Ask, Backend, Cell, Item, Kind, Op, Open, Recall, Splice, require_ok
from braid.errors import UnsupportedByBackend, UnsupportedModelError
from braid.streams.patterns import Window
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology

__all__ = ["excluded_is_refused"]

_STREAMS = {
    "user": StreamSpec(direction="input"),
    "thought": StreamSpec(direction="output"),
    "output": StreamSpec(direction="output"),
}

Attempt = Callable[[Backend], object]
"""Something to try on a backend with session 0 open, at a spot."""


def excluded_is_refused(stand: Stand) -> Finding:
    """Whatever the capabilities exclude raises `UnsupportedByBackend`, or is the error of its item."""
    name = "excluded_is_refused"
    spot = spots(stand)[0]
    excluded = [what for what in _ATTEMPTS if not getattr(stand.can, what)]
    if not excluded:
        return skipped(name, "the backend excludes nothing")
    with stand.serving() as backend:
        spot.reach(backend, 0)
        attempts = [(what, attempt) for what in excluded for attempt in _ATTEMPTS[what](spot)]
        accepted = [what for what, attempt in attempts if not _is_refused(attempt, backend)]
    detail = f"excluded: {', '.join(excluded)}"
    if accepted:
        detail += f"; yet accepted: {', '.join(sorted(set(accepted)))}"
    return judged(name, float(len(accepted)), 0.0, detail)


def _is_refused(attempt: Attempt, backend: Backend) -> bool:
    try:
        attempt(backend)
    except (UnsupportedByBackend, UnsupportedModelError):
        return True
    return False


# ---- what to try


def _apply(op: Op) -> Attempt:
    return lambda backend: backend.apply([op])


def _ask(spot: Spot, ask: Ask, kind: Kind = "decode", num_more: int = 0) -> Attempt:
    entry = spot.entry([spot.token] * (1 + num_more), ask)

    def attempt(backend: Backend) -> None:
        (result,) = backend.step([Item(0, kind, [entry])])
        require_ok(result)

    return attempt


def _statistics(spot: Spot) -> list[Attempt]:
    draws = (spot.draw(SamplingSpec()),)
    asks = (Ask(draws, logprobs=3), Ask(draws, entropy=True), Ask(draws, confidence=True))
    return [_ask(spot, ask) for ask in asks]


def _penalties(spot: Spot) -> list[Attempt]:
    penalised = replace(spot.draw(SamplingSpec(repetition_penalty=1.5)), counts={spot.token: 2})
    return [_ask(spot, Ask((spot.draw(SamplingSpec(logit_bias={1: 2.0})),))), _ask(spot, Ask((penalised,)))]


def _grammars(spot: Spot) -> list[Attempt]:
    return [_ask(spot, Ask((replace(spot.draw(SamplingSpec()), allowed=np.ones(9, dtype=np.bool_)),)))]


def _verify(spot: Spot) -> list[Attempt]:
    draws = tuple(spot.draw(SamplingSpec(), step) for step in range(3))
    return [_ask(spot, Ask(draws), "verify", 2), _ask(spot, Ask(), "score", 2)]


def _edits(spot: Spot) -> list[Attempt]:
    return [_apply(Splice(0, "user", 0, 1, (0,)))]


def _rows(_: Spot) -> list[Attempt]:
    return [_apply(Open(1, Topology(streams=_STREAMS), {}))]


def _views(_: Spot) -> list[Attempt]:
    return [_apply(Open(1, Topology(streams=_STREAMS, decoding="views"), {}))]


def _patterns(_: Spot) -> list[Attempt]:
    return [_apply(Open(1, Topology(streams=_STREAMS, patterns={"output": {"user": Window(3)}}), {}))]


def _prefixes(spot: Spot) -> list[Attempt]:
    def attempt(backend: Backend) -> None:
        (found,) = backend.apply([Recall(0, [Cell(0, "user", spot.token)])])
        if found == 0:  # as good as a refusal: nothing was shared, and nothing was said to be
            raise UnsupportedByBackend("nothing is recalled")

    return [attempt]


_ATTEMPTS: dict[str, Callable[[Spot], list[Attempt]]] = {
    "rows": _rows,
    "views": _views,
    "patterns": _patterns,
    "penalties": _penalties,
    "grammars": _grammars,
    "statistics": _statistics,
    "prefixes": _prefixes,
    "verify": _verify,
    "edits": _edits,
}
"""By capability: what shows that it is missing."""
