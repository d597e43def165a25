"""Grading: what is right, what came too early, how long it took; and the figures that come of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import braid
from braid.data.builders.outside import REFUSAL
from braid.data.score import Part, Score, Segment
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, InputError
from braid.eval.baseline import Baseline
from braid.eval.clock import wait_for
from braid.eval.play import Played, Said
from braid.eval.problems import OUTSIDE, Problem, outside_problems, own_problems, story_problems
from braid.eval.solve import Answered, answer_in_turns, by_length, compare, figures_of, grade, label_bounds
from braid.eval.tasks import Contenders, _tokenizer_of, evaluate_solve
from braid.model.model import Model
from braid.model.sources import PACKAGED
from braid.streams.presets import topology

END = 2
OWN = Path(__file__).with_name("own_words.jsonl")


@pytest.fixture(scope="module")
def model() -> Model:
    return braid.load("braid-stories", threads=1)


@pytest.fixture(scope="module")
def turns() -> Baseline:
    return Baseline(PACKAGED["braid-stories-turns"])


def problem(answer: str = "7") -> Problem:
    return Problem(Score("p", (Part("user", "input", (Segment("How many?"),)),)), answer)


def said(output: str, rows: tuple[int, ...], *, is_over: bool = True) -> Played:
    streams = {
        "user": Said((0, 1, 2), (9, 9, END), "How many?"),
        "thought": Said((1,), (8,), "7;"),
        "output": Said(rows, (*tuple(5 for _ in rows[:-1]), END) if rows else (), output),
    }
    return Played(streams, 1, 10, 12, is_over, END)


def test_a_right_answer_after_the_question_is_right() -> None:
    found = grade(problem(), said("7", (3, 4)))
    assert (found.is_right, found.is_early, found.tnft, found.rows_after) == (True, False, 1, 2)


def test_an_answer_in_the_next_row_waits_for_nothing() -> None:
    assert grade(problem(), said("7", (2, 3))).tnft == 0


@pytest.mark.parametrize("row", [0, 1])
def test_a_right_answer_before_the_question_ends_is_wrong(row: int) -> None:
    found = grade(problem(), said("7", (row, 5)))
    assert found.is_early
    assert not found.is_right
    assert found.tnft is None


def test_an_answer_that_never_ends_is_wrong() -> None:
    assert not grade(problem(), said("7", (3, 4), is_over=False)).is_right


def test_silence_is_wrong_and_has_no_tnft() -> None:
    found = grade(problem(), said("", ()))
    assert (found.is_right, found.tnft, found.rows_after) == (False, None, None)


@pytest.mark.parametrize(("given", "wanted", "is_right"), [
    ("7", "7", True), (" 7 ", "7", True), ("7.0", "7", True), ("1,200", "1200", True), ("$7", "7", True),
    ("70", "7", False), ("7 pens", "7", False), ("", "7", False), ("yes.", "yes", True),
])  # fmt: skip
def test_numbers_are_graded_by_value(given: str, wanted: str, is_right: bool) -> None:
    assert problem(wanted).is_right(given) is is_right


def test_figures_say_what_was_left_out() -> None:
    answers = [
        grade(problem(), said("7", (3, 4))),
        grade(problem(), said("", ())),
        grade(problem(), said("7", (0, 4))),
    ]
    figures = figures_of(answers, {"p": 2})
    assert figures["accuracy"]["value"] == pytest.approx(1 / 3, abs=1e-4)
    assert (figures["early"], figures["unanswered"]) == (1, 1)


def test_the_bound_is_of_the_problems_whose_tnft_is_known() -> None:
    late, silent = (
        answered(True, 8, 10),
        replace(answered(False, 0, 4), id="silent", tnft=None, rows_after=None),
    )
    figures = figures_of([late, silent], {"x": 4, "silent": 30})
    assert figures["tnft"]["value"] == 8
    assert figures["tnft"]["label_bound"] == figures["tnft"]["label_bound_median"] == 4


def answered(is_right: bool, tnft: int, rows: int) -> Answered:
    return Answered("x", "", is_right, False, tnft, rows, rows, rows, rows, rows)


def test_a_comparison_is_of_the_same_problems() -> None:
    ours, theirs = (
        [answered(True, 0, 4), answered(False, 0, 4)],
        [answered(True, 8, 10), answered(True, 8, 30)],
    )
    found = compare(ours, theirs)
    assert found["accuracy"]["value"] == -0.5
    cut = found["rows_after_question_cut"]
    assert (cut["value"], cut["n"]) == (pytest.approx(0.8), 2)
    assert cut["low"] == pytest.approx(0.6), "both draws may be of the first problem"
    assert cut["high"] == pytest.approx(1 - 4 / 30, abs=1e-4)
    for name in ("msl_ratio", "rows_ratio", "kv_ratio"):
        assert found[name]["value"] == pytest.approx(0.2)
        assert found[name]["low"] < 0.2 < found[name]["high"]
    bins = by_length(ours, theirs)
    assert [(each["n"], each["streams"], each["baseline"]) for each in bins] == [(2, 4.0, 20.0)]


def test_the_bound_is_the_labels_own(model: Model) -> None:
    tokenizer = DataTokenizer(model.codec.hf.backend_tokenizer)
    stories = story_problems("numbers", 30, 5)
    paced, typed = label_bounds(stories, "paced", tokenizer), label_bounds(stories, "typed", tokenizer)
    assert len(paced) == 30
    assert sum(typed.values()) < sum(paced.values())
    assert label_bounds([problem()], "paced", tokenizer) == {}


def test_the_baseline_is_asked_as_it_was_trained(turns: Baseline) -> None:
    wanted = story_problems("numbers", 4, 5)
    prompt = turns.prompt_of(wanted[0].score)
    assert turns.tokenizer.decode(prompt) == f"{wanted[0].question}<think>"
    for answer in answer_in_turns(turns, wanted, lambda *_: None):
        assert answer.tnft is None or answer.tnft > 2


def test_the_baseline_batched_says_what_it_says_alone(turns: Baseline) -> None:
    wanted = [each.score for each in story_problems("numbers", 6, 5)]
    together = [said for _, said in turns.play(wanted)]
    assert together == [said for score in wanted for _, said in turns.play([score])]


def test_a_model_of_streams_is_no_baseline() -> None:
    with pytest.raises(InputError, match="no single-stream model"):
        Baseline(PACKAGED["braid-stories"])


def test_problems_of_ones_own_are_read_unfiltered() -> None:
    assert len(own_problems(OWN)) == 200


def test_unseen_questions_outside_the_domain_are_asked_apart() -> None:
    seen, unseen = (outside_problems(200, 5, split) for split in OUTSIDE.values())
    assert {each.answer for each in (*seen, *unseen)} == {REFUSAL}
    assert not {each.question for each in seen} & {each.question for each in unseen}


def test_a_record_without_an_answer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "How many?", "answer": 3}\n{"question": "How many?"}\n')
    with pytest.raises(DataCorruptError, match="record 2"):
        own_problems(path)


def test_the_clock_of_who_reads_along_starts_when_the_question_ends(model: Model, turns: Baseline) -> None:
    story = story_problems("numbers", 1, 5)[0]
    ours = wait_for(model, topology("stories"), story.score, output="output", per_second=5.0)
    plain = braid.load("braid-stories-turns", threads=1)
    theirs = wait_for(
        plain, topology("plain"), story.score, output="output", per_second=5.0, thought_end=turns.thought_end
    )
    assert ours.first is not None and ours.whole is not None
    assert theirs.first is not None and theirs.whole is not None
    assert ours.first <= ours.whole
    assert ours.whole < theirs.whole  # it has thought while the question was typed
    assert ours.rows > theirs.rows


def test_a_whole_evaluation_says_all_that_it_promises(model: Model, turns: Baseline) -> None:
    told: list[str] = []
    found = evaluate_solve(
        Contenders(model, topology("stories"), turns),
        n=9, files=[OWN], gsm=False, waits=(1, 5), timed=1, per_second=8.0, limit=3,
        on_progress=lambda what, done, of: told.append(what),
    )  # fmt: skip
    assert list(found["splits"]) == [
        "numbers",
        "structure",
        "wording",
        "outside",
        "outside_unseen",
        "own_words",
    ]
    for split in found["splits"].values():
        assert set(split) >= {"streams", "baseline", "difference", "by_length"}
    assert set(found["wait_k"]["by_wait"]) == {"1", "5"}
    spread = found["wait_k"]["spread"]
    assert 0 <= spread["low"] <= spread["value"] < spread["high"], "nobody is sure of one problem"
    for gap in found["wording_gap"].values():
        assert gap["low"] < gap["value"] < gap["high"]
    assert {pace: each["tokens_per_second"] for pace, each in found["seconds"].items()} == {
        "typed": 8, "paste": None,
    }  # fmt: skip
    assert any("wait-5" in each for each in told)


def test_problems_are_laid_out_with_the_models_own_tokens(model: Model) -> None:
    tokenizer = _tokenizer_of(model)
    assert (tokenizer.silence_id, tokenizer.end_id) == (model.silence_token_id, model.turn_end_id)
    with pytest.raises(InputError, match="not trained on streams"):
        _tokenizer_of(braid.load("braid-stories-turns", threads=1))
