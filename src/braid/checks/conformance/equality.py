"""Do answers depend on what they may depend on, and on nothing else? The oracle, batches, and what is forbidden."""

from __future__ import annotations

from braid.checks.conformance import scenes
from braid.checks.conformance.oracle import Heard, farthest
from braid.checks.conformance.stand import Playback, Stand, judged, play, skipped
from braid.checks.conformance.tape import Tape
from braid.checks.finding import Finding
from braid.streams.topology import Decoding

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
    oracle, model = stand.oracle, stand.oracle.subject.model
    rules = [*scenes.ROWS, *([scenes.PATTERNED] if stand.can.patterns else [])]
    tapes = [oracle.tape(f"rows {each}", lambda each=each: scenes.rows(oracle.subject, each)) for each in rules]
    if model.trained is not None:
        tapes.append(oracle.tape("own", lambda: scenes.own(model)))
    return _against_oracle(name, stand, tapes)


def views_equal_dense(stand: Stand) -> Finding:
    """Training-free views against the replay of home views; one writer alone is for every backend."""
    oracle = stand.oracle
    tapes = [oracle.tape("plain", lambda: scenes.plain(oracle.stock))]
    if stand.can.views:
        tapes.append(_think(stand))
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
    subject = stand.oracle.subject
    rhythms = ("-+++--+", "+", "+-")
    tapes = [
        stand.oracle.tape(
            f"rhythm {rhythm}", lambda rhythm=rhythm: scenes.rows(subject, scenes.Rules(), rhythm=rhythm)
        )
        for rhythm in rhythms
    ]
    return _staggered(name, stand, tapes)


def mixed_equals_alone(stand: Stand) -> Finding:
    """Rows and views in the same steps, some reading an input in chunks while others speak."""
    model, oracle = stand.oracle.stock, stand.oracle
    tapes = [oracle.tape("plain", lambda: scenes.plain(model))]
    if stand.can.rows:
        tapes.append(oracle.tape("stock", lambda: scenes.stock(model)))
    if stand.can.views:
        tapes.append(_think(stand))
    tapes.append(oracle.tape("plain, system", lambda: scenes.plain(model, has_system=True, chunk=16)))
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
    decodings: list[Decoding] = [
        *(["rows"] if stand.can.rows else []),
        *(["views"] if stand.can.views else []),
    ]  # pyright: ignore[reportAssignmentType]
    if not decodings:
        return skipped("others_change_no_bit", "with one writer alone there is nobody who may not be read")
    num_changed = num_blind = num_reached = 0
    for decoding in decodings:
        tape = stand.oracle.tape(f"blind {decoding}", lambda decoding=decoding: scenes.blind(stand.oracle.stock, decoding))
        partner = stand.oracle.tape("plain", lambda: scenes.plain(stand.oracle.stock))
        before = _pair(stand, tape, partner)
        inside = _pair(stand, tape.disguised(("document", "output")), partner)
        outside = _pair(stand, tape, partner.disguised())
        blind = [key for key in before if key[1] == "thought"]
        num_blind += len(blind)
        num_changed += _num_unequal(before, inside, blind) + _num_unequal(before, outside, list(before))
        num_reached += _num_unequal(before, inside, [key for key in before if key[1] == "output"])
    detail = f"{num_blind} answers to a lane that must not know; {num_reached} to one that may have changed"
    return judged("others_change_no_bit", float(num_changed), 0.0, detail, holds=num_reached > 0)


def _pair(stand: Stand, tape: Tape, partner: Tape) -> Heard:
    """What a session is told beside another one."""
    with stand.serving() as backend:
        first, _ = play(backend, Playback(backend, 0, tape), Playback(backend, 1, partner))
    return first.heard


def _num_unequal(first: Heard, second: Heard, keys: list[tuple[int, str]]) -> int:
    return sum(first[key] != second[key] for key in keys)


def _think(stand: Stand) -> Tape:
    has_window = stand.can.patterns
    return stand.oracle.tape(
        f"think {has_window}", lambda: scenes.think(stand.oracle.stock, has_window=has_window)
    )
