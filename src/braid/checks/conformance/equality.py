"""Do answers depend on what they may depend on, and on nothing else? The oracle, batches, and what is forbidden."""

from __future__ import annotations

from braid.checks.conformance import scenes
from braid.checks.conformance.oracle import Heard, farthest
from braid.checks.conformance.stand import Playback, Stand, judged, play, skipped
from braid.checks.conformance.tape import Tape
from braid.checks.finding import Finding

__all__ = [
    "batched_equals_alone",
    "mixed_equals_alone",
    "others_change_no_bit",
    "rows_equal_dense",
    "views_equal_dense",
]


def rows_equal_dense(stand: Stand) -> Finding:
    """Native rows, row by row, against the dense oracle: the same-row rules, both kinds of silence, windows."""
    name = "rows_equal_dense"
    if not stand.can.rows:
        return skipped(name, "the backend has no native rows")
    oracle = stand.oracle
    tapes = [oracle.tape(scenes.rows, rules, has_patterns=stand.can.patterns) for rules in scenes.ROWS]
    if oracle.subject.model.trained is not None:
        tapes.append(oracle.tape(scenes.own))
    return _against_oracle(name, stand, tapes)


def views_equal_dense(stand: Stand) -> Finding:
    """Training-free views against the replay of home views; one writer alone is for every backend."""
    oracle = stand.oracle
    tapes = [oracle.tape(scenes.plain)]
    if stand.can.views:
        tapes.append(oracle.tape(scenes.think, has_window=stand.can.patterns))
    return _against_oracle("views_equal_dense", stand, tapes)


def _against_oracle(name: str, stand: Stand, tapes: list[Tape]) -> Finding:
    value, num_answers, num_probes = 0.0, 0, 0
    for tape in tapes:
        heard = stand.alone(tape)
        value = max(value, stand.oracle.distance(tape, heard))
        num_answers, num_probes = num_answers + len(heard), num_probes + len(tape.probes)
    detail = f"{num_answers} answers ({num_probes} to probes) in {len(tapes)} sessions"
    return judged(name, value, stand.oracle.bound, detail)


def batched_equals_alone(stand: Stand) -> Finding:
    """Sessions of one trained model, each begun later than the last, are told what each is told alone."""
    name = "batched_equals_alone"
    if not stand.can.rows:
        return skipped(name, "the backend has no native rows; see mixed_equals_alone")
    oracle, rules, has_patterns = stand.oracle, scenes.ROWS[0], stand.can.patterns
    now_and_then = oracle.tape(scenes.rows, rules, has_patterns=has_patterns)
    always = oracle.tape(scenes.rows, rules, has_patterns=has_patterns, rhythm="+")
    tapes = [now_and_then, always, now_and_then]
    return _staggered(name, stand, tapes)


def mixed_equals_alone(stand: Stand) -> Finding:
    """Rows and views in the same steps, some reading an input in chunks while others speak."""
    oracle = stand.oracle
    tapes = [oracle.tape(scenes.plain)]
    if stand.can.rows:
        tapes.append(oracle.tape(scenes.stock))
    if stand.can.views:
        tapes.append(oracle.tape(scenes.think, has_window=stand.can.patterns))
    tapes.append(oracle.tape(scenes.plain, has_system=True, chunk=64))
    return _staggered("mixed_equals_alone", stand, tapes)


def _staggered(name: str, stand: Stand, tapes: list[Tape]) -> Finding:
    """Play all in common steps, each joining four steps after the one before."""
    with stand.serving(tapes[0].model) as backend:
        playing: list[Playback] = []
        for number, tape in enumerate(tapes):
            playing.append(Playback(backend, number, tape))
            play(backend, *playing, steps=4)
        play(backend, *playing)
    value = max(farthest(each.heard, stand.alone(each.tape)) for each in playing)
    num_answers = sum(len(each.heard) for each in playing)
    return judged(name, value, stand.oracle.bound, f"{num_answers} answers in {len(tapes)} sessions")


def others_change_no_bit(stand: Stand) -> Finding:
    """Other tokens where a lane may not look, in its own session and in others: its answers stay as they are."""
    name, oracle = "others_change_no_bit", stand.oracle
    kinds = [
        in_views for in_views, is_there in ((False, stand.can.rows), (True, stand.can.views)) if is_there
    ]
    if not kinds:
        return skipped(name, "with one writer alone there is nobody who may not be read")
    partner = oracle.tape(scenes.plain)
    num_changed = num_blind = num_reached = 0
    for in_views in kinds:
        tape = oracle.tape(scenes.blind, in_views=in_views)
        before = _beside(stand, tape, partner)
        after = _beside(stand, tape.disguised(("document", "output")), partner.disguised())
        blind = [key for key in before if key[1] == "thought"]
        num_blind += len(blind)
        num_changed += _num_unequal(before, after, blind)
        num_reached += _num_unequal(before, after, [key for key in before if key[1] == "output"])
    detail = f"{num_blind} answers to a lane that must not know; {num_reached} to one that may have changed"
    return judged(name, float(num_changed), 0.0, detail, holds=num_reached > 0)


def _beside(stand: Stand, tape: Tape, partner: Tape) -> Heard:
    """What a session is told that has another one beside it in every step."""
    with stand.serving() as backend:
        first, _ = play(
            backend, Playback(backend, 0, tape), Playback(backend, 1, partner), steps=len(tape.lines)
        )
    return first.heard


def _num_unequal(first: Heard, second: Heard, keys: list[tuple[int, str]]) -> int:
    return sum(first[key] != second[key] for key in keys)
