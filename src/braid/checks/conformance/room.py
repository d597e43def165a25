"""Room: what takes none, what happens when none is left, and what failures and goodbyes give back.

Pages are counted from outside, by `usage()`. That the survivors are right all the same is seen by comparing their
answers with those of sessions that were alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from braid.checks.conformance import scenes
from braid.checks.conformance.drafts import Spot, spots, thorough
from braid.checks.conformance.oracle import farthest
from braid.checks.conformance.stand import Playback, Stand, judged, pages_in_use, play, skipped
from braid.checks.finding import Finding
from braid.engine.backend import Backend, Close, Draw, Entry, Item, require_ok
from braid.errors import PoolFullError, PoolTooSmallError
from braid.streams.sampling import SamplingSpec

__all__ = ["close_frees_everything", "failures_stay_alone", "full_pool_refuses", "probes_keep_nothing"]

MAX_PROBES = 32
EVERYTHING = 1 << 30


def probes_keep_nothing(stand: Stand) -> Finding:
    """A lane that is asked and asked takes no page, and goes on as if nobody had asked."""
    name = "probes_keep_nothing"
    if not stand.can.rows:
        return skipped(name, "only native rows have probes")
    spot = spots(stand)[-1]
    with stand.serving() as backend:
        spot.reach(backend, 0)
        before = pages_in_use(backend)
        num_probes = min(backend.usage().page_size, MAX_PROBES) + 1
        for _ in range(num_probes):
            ask = thorough(stand.can, spot.draw(SamplingSpec()))
            probe = Entry("output", "output", (backend.model.probe_id,), (spot.t - 1,), False, ask)
            (result,) = backend.step([Item(0, "decode", [probe])])
            require_ok(result)
        surplus = pages_in_use(backend) - before
        (playback,) = play(backend, Playback(backend, 0, spot.tape, at=spot.at))
    value = farthest(playback.heard, stand.alone(spot.tape))
    detail = f"{len(playback.heard)} answers after {num_probes} probes, which took {surplus} pages"
    return judged(name, value, stand.oracle.bound, detail, holds=surplus == 0)


# ---- no room


def full_pool_refuses(stand: Stand) -> Finding:
    """Without room a reservation is refused and nothing has changed; after somebody has left, it goes on."""
    tape = stand.oracle.tape(scenes.plain)
    room = 4 * tape.held(len(tape.lines)).total()
    mistakes: list[str] = []
    with stand.serving(kv_tokens=room) as backend:
        crowd = _fill_up(backend, Playback(backend, 0, tape))
        late = crowd[-1]
        used = backend.usage().pages_used
        if not _is_refused(lambda: late.take(EVERYTHING)) or backend.usage().pages_used != used:
            mistakes.append("a reservation that was refused has changed something")
        crowd[0].close()
        item = late.take(EVERYTHING)
        assert item is not None, "whoever was refused has something to say"
        usage = backend.usage()
        all_free = (usage.pages_total - usage.pages_used) * usage.page_size
        if not _is_refused(lambda: backend.reserve(crowd[1].number, [("output", all_free)])):
            mistakes.append("pages were promised twice in one step")
        too_many = (usage.pages_total + 1) * usage.page_size
        if not _is_refused(lambda: backend.reserve(crowd[1].number, [("output", too_many)])):
            mistakes.append("more was promised than there is in all")
        (result,) = backend.step([item])
        late.hear(item, require_ok(result))
        play(backend, late)
    value = max(farthest(each.heard, stand.alone(tape)) for each in crowd)
    detail = f"{len(crowd) - 1} sessions filled the cache" + "".join(f"; {mistake}" for mistake in mistakes)
    return judged("full_pool_refuses", value, stand.oracle.bound, detail, holds=not mistakes)


def _fill_up(backend: Backend, first: Playback) -> list[Playback]:
    """Play session after session, until one is refused, which is the last of them."""
    crowd = [first]
    while not _is_refused(lambda: play(backend, crowd[-1])):
        crowd.append(Playback(backend, len(crowd), first.tape))
        assert len(crowd) < backend.usage().pages_total, "every session takes a page at least"
    assert len(crowd) > 2, "there is room for two sessions"
    return crowd


def _is_refused(act: Callable[[], object]) -> bool:
    try:
        act()
    except (PoolFullError, PoolTooSmallError):
        return True
    return False


# ---- failures, and the end


def failures_stay_alone(stand: Stand) -> Finding:
    """Items that cannot be computed are told so, each in its own result; those beside them are as they would be."""
    spot = spots(stand)[-1]
    faults = _faults(stand, spot)
    with stand.serving() as backend:
        empty = pages_in_use(backend)
        healthy = [
            Playback(backend, 0, stand.oracle.tape(scenes.plain)),
            Playback(backend, 1, spot.tape),
        ]
        play(backend, *healthy, until=spot.at)
        spot.reach(backend, *range(2, 2 + len(faults)))
        sick = [Item(number, "decode", [entry]) for number, entry in enumerate(faults, start=2)]
        taken = [item for each in healthy if (item := each.take(EVERYTHING)) is not None]
        results = backend.step([taken[0], *sick, taken[1]])
        num_unnoticed = sum(result.error is None for result in results[1:-1])
        for each, item, result in zip(healthy, taken, (results[0], results[-1]), strict=True):
            each.hear(item, require_ok(result))
        backend.apply([Close(item.session) for item in sick])
        play(backend, *healthy)
        for each in healthy:
            each.close()
        num_left = pages_in_use(backend) - empty
    value = max(farthest(each.heard, stand.alone(each.tape)) for each in healthy)
    detail = f"{len(faults)} items failed beside two others"
    if num_unnoticed or num_left:
        detail += f"; {num_unnoticed} of them were told nothing, {num_left} pages are left"
    holds = num_unnoticed == num_left == 0
    return judged("failures_stay_alone", value, stand.oracle.bound, detail, holds=holds)


def _faults(stand: Stand, spot: Spot) -> list[Entry]:
    """Entries that nobody can compute."""
    model = stand.oracle.stock
    no_class = SamplingSpec(logit_bias={2 * model.vocab_size: 1.0})
    draw = spot.draw(SamplingSpec())
    nothing = np.zeros(model.vocab_size, dtype=np.bool_)
    draws: list[Draw] = []
    if stand.can.penalties:
        draws.append(spot.draw(no_class))
    if stand.can.grammars:
        draws.append(replace(draw, allowed=nothing))
    entries = [spot.entry([spot.token], thorough(stand.can, each)) for each in draws]
    if stand.can.rows:
        beyond = replace(spot, t=model.max_positions + 1)
        entries.append(beyond.entry([spot.token], thorough(stand.can, draw)))
    return entries


def close_frees_everything(stand: Stand) -> Finding:
    """A stream that closes frees its pages at once, a session all of them; closing twice is harmless."""
    spot = spots(stand)[-1]
    lane = "output"
    with stand.serving() as backend:
        empty = pages_in_use(backend)
        first, second = Playback(backend, 0, spot.tape), Playback(backend, 1, spot.tape)
        play(backend, first)
        full = pages_in_use(backend)
        backend.apply([Close(0, lane), Close(0, lane)])
        num_kept = int(pages_in_use(backend) >= full)
        backend.apply([Close(0), Close(0), Close(77)])
        play(backend, second)
        second.close()
        num_left = pages_in_use(backend) - empty
    value = farthest(second.heard, stand.alone(spot.tape))
    detail = f"{full - empty} pages were in use; {num_left} are left"
    if num_kept:
        detail += "; a closed stream kept its pages"
    holds = num_left == num_kept == 0 and full > empty
    return judged("close_frees_everything", value, stand.oracle.bound, detail, holds=holds)
