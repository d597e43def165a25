"""Flags belong to faults that can be known; all others are false alarms."""

from __future__ import annotations

from typing import Any

import pytest

import braid
from braid.data.score import Part, Score, Segment
from braid.engine.core import EngineCore
from braid.engine.session.conversation import Conversation
from braid.eval.audit import (
    Audited,
    Fault,
    _matched,
    audit_figures,
    audit_in_turns,
    audit_scores,
    efficiency,
    flag_seconds,
    grade_audit,
)
from braid.eval.baseline import Baseline, Turned
from braid.eval.clock import time_alone
from braid.eval.play import Played, Said, step_alone
from braid.eval.statistics import share_of
from braid.eval.tasks import Contenders, evaluate_audit
from braid.model.model import Model
from braid.model.sources import PACKAGED
from braid.streams.presets import topology


@pytest.fixture(scope="module")
def model() -> Model:
    return braid.load("braid-stories", threads=1)


SOLUTION = ("3", ";7", ";")
"""`3;7;`, in which the 7 is wrong."""


def score(*, is_faulty: bool = True) -> Score:
    segments = tuple(Segment(text) for text in ("3;7", ";")) if is_faulty else (Segment("3;7;"),)
    audit = (Segment(" wrong number;", {"solution": 1}),) if is_faulty else ()
    verdict = Segment(" not ok" if is_faulty else " ok", {"solution": len(segments) + 1})
    return Score(
        "s",
        (
            Part("user", "input", (Segment("How many?"),)),
            Part("solution", "input", segments),
            Part("audit", "output", (*audit, verdict), reads=("solution",)),
        ),
        {"faults": [{"step": 1, "kind": "number"}] if is_faulty else [], "num_steps": 2},
    )


def played(model: Model, flags: dict[int, str]) -> Played:
    """The solution stands in rows 10 to 13, its fault in row 12; flags begin in the rows that are given."""
    end = model.turn_end_id
    solution = model.codec.encode("3;7;")[0]
    assert len(solution) == 4
    rows: list[int] = []
    ids: list[int] = []
    for row, text in flags.items():
        tokens = model.codec.encode(text)[0]
        rows += range(row, row + len(tokens))
        ids += tokens
    assert rows == sorted(set(rows)), "one token a row"
    streams = {
        "user": Said((0, 1, 2), (9, 9, 9), "How many?"),
        "solution": Said((10, 11, 12, 13), tuple(solution), "3;7;"),
        "audit": Said(tuple(rows), tuple(ids), model.codec.decode(ids)),
    }
    return Played(streams, 13, 40, 30, True, end)


def test_a_flag_after_the_fault_is_its_flag(model: Model) -> None:
    found = grade_audit(model, score(), played(model, {13: " wrong number;", 20: " not ok"}))
    assert found.faults == (Fault("number", 1, True, True),)
    assert (found.false_alarms, found.verdict) == (0, True)


@pytest.mark.parametrize("row", [11, 12])
def test_a_flag_before_the_fault_can_be_known_is_a_false_alarm(model: Model, row: int) -> None:
    found = grade_audit(model, score(), played(model, {row: " wrong number;", 20: " not ok"}))
    assert not found.faults[0].is_flagged
    assert found.false_alarms == 1


def test_a_second_flag_for_one_fault_is_a_false_alarm(model: Model) -> None:
    flags = {13: " wrong number;", 17: " wrong result;", 24: " not ok"}
    assert grade_audit(model, score(), played(model, flags)).false_alarms == 1


def test_a_flag_on_a_sound_solution_is_a_false_alarm(model: Model) -> None:
    found = grade_audit(model, score(is_faulty=False), played(model, {13: " wrong number;", 20: " not ok"}))
    assert (found.faults, found.false_alarms, found.verdict) == ((), 1, False)


def test_the_baseline_is_given_the_best_reading_of_its_flags() -> None:
    faults, alarms = _matched(["number", "result"], ["wrong result", "wrong operation", "wrong number"])
    assert [fault.is_named for fault in faults] == [True, True]
    assert alarms == 1


def test_a_late_flag_is_not_for_a_fault_long_ago(model: Model) -> None:
    two = score()
    solution = tuple(Segment(text) for text in ("3", ";7", ";"))
    audit = (
        Segment(" wrong number;", {"solution": 1}),
        Segment(" wrong result;", {"solution": 2}),
        Segment(" not ok", {"solution": 4}),
    )
    parts = (
        two.parts[0],
        Part("solution", "input", solution),
        Part("audit", "output", audit, reads=("solution",)),
    )
    faults = [{"step": 0, "kind": "number"}, {"step": 1, "kind": "result"}]
    two = Score("s", parts, {"faults": faults, "num_steps": 2})
    found = grade_audit(
        model, two, played(model, {13: " wrong result;", 60: " wrong number;", 70: " not ok"})
    )
    assert [fault.is_flagged for fault in found.faults] == [False, True]
    assert found.false_alarms == 1
    found = grade_audit(
        model, two, played(model, {13: " wrong number;", 17: " wrong result;", 70: " not ok"})
    )
    assert [(fault.delay, fault.is_named) for fault in found.faults] == [(3, True), (5, True)]


def test_another_kind_is_a_flag_that_names_it_wrongly(model: Model) -> None:
    found = grade_audit(model, score(), played(model, {14: " wrong result;", 20: " not ok"}))
    assert found.faults == (Fault("number", 2, True, False),)


def test_a_garbled_flag_is_a_false_alarm_and_finds_no_fault(model: Model) -> None:
    found = grade_audit(model, score(), played(model, {13: " number 7;", 20: " not ok"}))
    assert (found.faults[0].is_flagged, found.false_alarms, found.verdict) == (False, 1, True)
    sound = grade_audit(model, score(is_faulty=False), played(model, {13: " 7 wrong;", 20: " ok"}))
    assert (sound.false_alarms, sound.verdict) == (1, True)
    left = grade_audit(model, score(), played(model, {13: " number 7;", 20: " wrong number;", 30: " not ok"}))
    assert (left.faults[0].is_named, left.false_alarms) == (True, 1), "the flag after it is still the fault's"


def test_a_verdict_that_is_said_like_a_flag_is_none(model: Model) -> None:
    assert grade_audit(model, score(is_faulty=False), played(model, {20: " ok;"})).false_alarms == 0


@pytest.mark.parametrize(("answer", "flagged", "alarms"), [
    (" wrong number; not ok", True, 0), (" wrong number", True, 0), (" number 7; not ok", False, 1),
    (" number 7; wrong result; not ok", True, 1), (" ok; not ok", False, 0),
])  # fmt: skip
def test_garbled_flags_of_the_baseline_count_as_well(
    answer: str, flagged: bool, alarms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = Baseline(PACKAGED["braid-stories-turns"])
    said = Turned("", answer, 10, 0, 5, True)
    monkeypatch.setattr(turns, "play", lambda scores, on_progress: [(each, said) for each in scores])
    (found,) = audit_in_turns(turns, [score()], lambda *_: None)
    assert (found.faults[0].is_flagged, found.false_alarms) == (flagged, alarms)


def test_silence_misses_the_fault(model: Model) -> None:
    found = grade_audit(model, score(), played(model, {20: " ok"}))
    assert (found.faults[0].is_flagged, found.false_alarms, found.verdict) == (False, 0, False)


def audited(**changes: Any) -> Audited:
    faults = (Fault("number", 1, True, True), Fault("result", None, False, False))
    return Audited("a", **{"faults": faults, "false_alarms": 1, "num_steps": 5, "verdict": True, "num_rows": 50,
                           "msl": 40, **changes})  # fmt: skip


def test_figures_count_flags_misses_and_alarms() -> None:
    figures = audit_figures([audited(), audited(faults=(), false_alarms=0)])
    assert figures["flagged"]["value"] == 0.5
    assert figures["by_kind"]["result"]["value"] == 0
    assert figures["false_alarms"]["of_flags"] == share_of([True, False]).to_json()
    assert figures["false_alarms"]["of_sound_steps"] == share_of([True] + 7 * [False]).to_json()
    assert figures["false_alarms"]["of_sound_solutions"]["value"] == 0
    assert figures["delay_rows"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 1, "median": 1.0}


def test_more_false_alarms_than_sound_steps_are_all_of_them() -> None:
    alarms = audit_figures([audited(false_alarms=30)])["false_alarms"]
    assert alarms["of_sound_steps"]["value"] == 1
    assert alarms["of_flags"]["n"] == 31


def test_a_model_without_a_flag_has_no_share_of_false_ones() -> None:
    figures = audit_figures([audited(faults=(), false_alarms=0)])
    assert figures["false_alarms"]["of_flags"]["n"] == figures["delay_rows"]["n"] == 0
    assert (
        0
        == figures["false_alarms"]["of_sound_steps"]["value"]
        < figures["false_alarms"]["of_sound_steps"]["high"]
    )


def test_sizes_are_compared_solution_by_solution() -> None:
    ours = [audited(num_rows=50 + each, msl=40) for each in range(8)]
    theirs = [audited(num_rows=100 + 2 * each, msl=100) for each in range(8)]
    found = efficiency(ours, theirs)
    assert found["msl_ratio"] == {"value": 0.4, "low": 0.4, "high": 0.4, "n": 8}
    assert found["rows_ratio"] == {"value": 0.5, "low": 0.5, "high": 0.5, "n": 8}, (
        "each pair has the same ratio"
    )


def test_seconds_run_from_the_token_that_gives_a_fault_away(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows that take 10 ms each, however long they take."""

    def step(core: EngineCore, conversation: Conversation) -> float:
        step_alone(core, conversation)
        return 0.01

    monkeypatch.setattr("braid.eval.clock.step_alone", step)
    at_once: list[Score] = []
    for each in audit_scores("numbers", 12, 5):
        said = time_alone(model, topology("stories"), each, 5.0).played
        delays = [fault.delay for fault in grade_audit(model, each, said, "typed").faults]
        at_once += [each] if delays and set(delays) == {1} else []
    assert len(at_once) > 1
    found = flag_seconds(model, topology("stories"), at_once, 5.0, lambda *_: None)
    # The row that reads the token draws the flag, and nothing else is under way with so slow a typist.
    assert found["delay_s"]["value"] == found["delay_s"]["median"] == pytest.approx(0.01)
    assert found["delay_s"]["n"] == sum(len(each.meta["faults"]) for each in at_once)
    assert found["flagged"]["value"] == 1
    assert found["ms_per_row"] == 10


def test_the_baseline_reads_the_finished_solution() -> None:
    turns = Baseline(PACKAGED["braid-stories-turns"])
    wanted = audit_scores("numbers", 3, 5)
    for each in wanted:
        question, solution = each.part("user").text, each.part("solution").text
        assert turns.tokenizer.decode(turns.prompt_of(each)) == f"{question}<end>{solution}<end>"
    assert len(audit_in_turns(turns, wanted, lambda *_: None)) == 3


def test_a_whole_evaluation_has_all_splits(model: Model) -> None:
    turns = Baseline(PACKAGED["braid-stories-turns"])
    found = evaluate_audit(Contenders(model, topology("stories"), turns), n=12, timed=2, per_second=8.0)
    assert found["seconds"]["tokens_per_second"] == 8
    assert list(found["splits"]) == ["numbers", "structure", "wording", "faults"]
    for split in found["splits"].values():
        ratio = split["difference"]["msl_ratio"]
        assert 0.3 < ratio["low"] <= ratio["value"] <= ratio["high"] < 0.8
