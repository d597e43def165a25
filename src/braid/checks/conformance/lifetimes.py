"""What happens to a session besides rows: a fork, eviction, going back, a beginning that somebody else has computed.

    fork      trunk ─┬─ trunk's own end     both in the same steps; the source is closed, the twin goes on
                     └─ branch's end
    drop      trunk ─ Drop ─ refilled from the transcript ─ trunk's end
    trim      trunk to its end ─ back to where the branch parts ─ branch's end
    recall    one session keeps its beginning; another recalls it and computes what is missing

Every answer is compared with that of a session which nothing of the kind ever happened to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from braid.checks.conformance import scenes
from braid.checks.conformance.oracle import farthest
from braid.checks.conformance.stand import Playback, Stand, judged, needs_of, pages_in_use, play, skipped
from braid.checks.conformance.tape import Tape
from braid.checks.finding import Finding
from braid.engine.backend import (
    PREAMBLE,
    Backend,
    Cell,
    Drop,
    Entry,
    Fork,
    Item,
    Keep,
    Open,
    Recall,
    Trim,
    require_ok,
)
from braid.engine.session.restore import refills

__all__ = [
    "forked_equals_recomputed",
    "recalled_equals_computed",
    "refilled_equals_kept",
    "trimmed_equals_fresh",
]

REFILL_CHUNK = 24
"""Tokens that are refilled at once: fewer than the sessions have, so that they come in pieces."""


def forked_equals_recomputed(stand: Stand) -> Finding:
    """Both go their own ways after a fork, in the same steps, and each is told what it would be told alone."""
    value, num_answers = 0.0, 0
    for trunk, branch in _forks_in_the_road(stand):
        parting = trunk.parts_from(branch)
        with stand.serving() as backend:
            source = Playback(backend, 0, trunk)
            play(backend, source, until=parting)
            backend.apply([Fork(0, 1)])
            twin = Playback(backend, 1, branch, at=parting)
            play(backend, source, twin, until=len(branch.lines) - 3)
            source.close()
            # Somebody else writes over the pages that the source gave back.
            play(backend, Playback(backend, 2, branch), until=3)
            play(backend, twin)
        value = max(
            value, farthest(source.heard, stand.alone(trunk)), farthest(twin.heard, stand.alone(branch))
        )
        num_answers += len(source.heard) + len(twin.heard)
    return judged(
        "forked_equals_recomputed", value, stand.oracle.bound, f"{num_answers} answers to sources and twins"
    )


def refilled_equals_kept(stand: Stand) -> Finding:
    """A session is dropped from the cache, which is empty then, is refilled, and goes on as if nothing had been."""
    value, num_answers, num_left = 0.0, 0, 0
    for trunk, _ in _forks_in_the_road(stand):
        halfway = len(trunk.lines) - 5
        with stand.serving() as backend:
            empty = pages_in_use(backend)
            playback = Playback(backend, 0, trunk)
            play(backend, playback, until=halfway)
            backend.apply([Drop(0)])
            num_left += pages_in_use(backend) - empty
            _refill(backend, trunk, halfway)
            playback.heard.clear()
            play(backend, playback)
        value = max(value, farthest(playback.heard, stand.alone(trunk)))
        num_answers += len(playback.heard)
    detail = f"{num_answers} answers after a refill; {num_left} pages in use after a drop"
    return judged("refilled_equals_kept", value, stand.oracle.bound, detail, holds=num_left == 0)


def _refill(backend: Backend, tape: Tape, at: int) -> None:
    """Fill the empty spans of session 0 from the transcript of all before line `at`."""
    items = [line for line in tape.lines[:at] if isinstance(line, Item)]
    preamble = [token for item in items for e in item.entries if e.span == PREAMBLE for token in e.token_ids]
    ids = preamble if tape.topology.decoding == "views" else None
    for piece in refills(0, tape.past(at), ids, chunk=REFILL_CHUNK):
        if isinstance(piece, list):
            _fill(backend, 0, piece)
        else:
            backend.apply([piece])


def _fill(backend: Backend, session: int, entries: Sequence[Entry]) -> None:
    backend.reserve(session, needs_of(entries))
    for result in backend.step([Item(session, "prefill", entries)]):
        require_ok(result)


def trimmed_equals_fresh(stand: Stand) -> Finding:
    """A session goes back to where it could have gone another way, and goes that way."""
    value, num_answers = 0.0, 0
    for trunk, branch in _forks_in_the_road(stand):
        parting = trunk.parts_from(branch)
        lengths = trunk.held(parting)
        with stand.serving() as backend:
            play(backend, Playback(backend, 0, trunk))
            spans = [span for span, held in trunk.held(len(trunk.lines)).items() if held]
            backend.apply([Trim(0, span, lengths[span]) for span in spans])
            (playback,) = play(backend, Playback(backend, 0, branch, at=parting))
        value = max(value, farthest(playback.heard, stand.alone(branch)))
        num_answers += len(playback.heard)
    return judged(
        "trimmed_equals_fresh", value, stand.oracle.bound, f"{num_answers} answers after going back"
    )


def _forks_in_the_road(stand: Stand) -> list[tuple[Tape, Tape]]:
    """Pairs of sessions that begin alike: of views, or of one writer alone; and of rows."""
    oracle, has_window = stand.oracle, stand.can.patterns
    pairs: list[tuple[Tape, Tape]] = []
    if stand.can.views:
        trunk, branch = (oracle.tape(scenes.think, turns=t, has_window=has_window) for t in (False, True))
    else:
        trunk, branch = oracle.tape(scenes.plain), oracle.tape(scenes.plain, turns=True)
    pairs.append((trunk, branch))
    if stand.can.rows:
        pairs.append((oracle.tape(scenes.stock), oracle.tape(scenes.stock, turns=True)))
    return pairs


# ---- prefixes


class _Beginning(NamedTuple):
    """How a session begins: tokens that could read nothing else, in the order of their rows."""

    tape: Tape
    lanes: list[str]
    times: list[int]
    cells: list[Cell]

    def entries(self, start: int) -> list[Entry]:
        """What computes the cells from `start` on."""
        by_span: dict[str, list[int]] = {}
        for index in range(start, len(self.cells)):
            by_span.setdefault(self.cells[index].span, []).append(index)
        return [
            Entry(
                self.lanes[indices[0]],
                span,
                tuple(self.cells[i].token for i in indices),
                tuple(self.times[i] for i in indices),
            )
            for span, indices in by_span.items()
        ]


def recalled_equals_computed(stand: Stand) -> Finding:
    """What a session begins with is computed once: another one holds it, as much as it is told, and no more."""
    name = "recalled_equals_computed"
    if not stand.can.prefixes:
        return skipped(name, "the backend shares no prefixes")
    value, num_cells, num_recalled, mistakes = 0.0, 0, 0, list[str]()
    for beginning in _beginnings(stand):
        found, difference = _recall(stand, beginning, mistakes)
        num_cells, num_recalled = num_cells + len(beginning.cells), num_recalled + found
        value = max(value, difference)
    detail = f"{num_recalled} of {num_cells} tokens recalled" + "".join(
        f"; {mistake}" for mistake in mistakes
    )
    return judged(name, value, stand.oracle.bound, detail, holds=not mistakes)


def _beginnings(stand: Stand) -> list[_Beginning]:
    tapes = [stand.oracle.tape(scenes.plain, has_system=True, chunk=64)]
    if stand.can.rows:
        tapes.append(stand.oracle.tape(scenes.library))
    found: list[_Beginning] = []
    for tape in tapes:
        beginning = _Beginning(tape, [], [], [])
        in_views = tape.topology.decoding == "views"
        for line in tape.lines[: tape.opening]:
            assert isinstance(line, Item), "a session opens with items"
            for entry in line.entries:
                if in_views and entry.span != PREAMBLE:
                    continue
                for token, t in zip(entry.token_ids, entry.times, strict=True):
                    step = len(beginning.cells) if in_views else t
                    beginning.cells.append(Cell(step, entry.span, token))
                    beginning.lanes.append(entry.lane)
                    beginning.times.append(t)
        if beginning.cells:
            found.append(beginning)
    return found


def _recall(stand: Stand, beginning: _Beginning, mistakes: list[str]) -> tuple[int, float]:
    """Keep the beginning of one session, recall it in others: how many tokens came, and the largest difference."""
    tape, cells = beginning.tape, beginning.cells
    num_lines = _lines_of(beginning)
    with stand.serving() as backend:
        first = Playback(backend, 0, tape)
        play(backend, first, until=num_lines)
        backend.apply([Keep(0, cells)])
        play(backend, first)
        first.close()
        (found,) = backend.apply([Open(1, tape.topology, {}), Recall(1, cells)])[1:]
        if not 0 <= found <= len(cells):
            mistakes.append(f"{found} of {len(cells)} tokens are said to be held")
        if found == 0 and len(cells) > 2 * backend.usage().page_size:
            mistakes.append("nothing was recalled of what had been kept")
        if found < len(cells):
            _fill(backend, 1, beginning.entries(found))
        (second,) = play(backend, Playback(backend, 1, tape, at=num_lines))
        mistakes += _strangers(backend, beginning)
    return found, farthest({**first.heard, **second.heard}, stand.alone(tape))


def _lines_of(beginning: _Beginning) -> int:
    """How many lines of the tape compute the beginning, which they end with."""
    left = len(beginning.cells)
    for at, line in enumerate(beginning.tape.lines):
        if left == 0:
            return at
        assert isinstance(line, Item), "a session opens with items"
        left -= line.num_tokens
    raise AssertionError("a session goes on after its beginning")


def _strangers(backend: Backend, beginning: _Beginning) -> list[str]:
    """Sessions that must not be given the beginning, or not all of it."""
    topology, cells = beginning.tape.topology, beginning.cells
    middle = len(cells) // 2
    changed = [*cells[:middle], cells[middle]._replace(token=cells[middle].token + 1), *cells[middle + 1 :]]
    backend.apply([Open(2, topology, {}, "another tenant"), Open(3, topology, {})])
    salted, parted = backend.apply([Recall(2, cells), Recall(3, changed)])
    mistakes: list[str] = []
    if salted:
        mistakes.append(f"a session with another salt was given {salted} tokens")
    if parted > middle:
        mistakes.append(f"{parted} tokens were recalled of a beginning that agrees in {middle}")
    first, last = cells[0].span, cells[-1].span
    if first != last:  # computed by a reader; now somebody comes who may not read
        num_first = sum(cell.span == first for cell in cells)
        backend.apply([Open(4, topology.model_copy(update={"reads": {last: ()}}), {})])
        (ruled,) = backend.apply([Recall(4, cells)])
        if ruled > num_first:
            mistakes.append(f"a session whose {last} may not read its {first} was given {ruled} tokens")
    return mistakes
