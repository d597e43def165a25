"""The validator: what could be known passes, what comes too early is moved, what never could be is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.builders.solve import solve_score
from braid.data.causality import validate
from braid.data.layout import ARRIVALS, lay_out
from braid.data.score import Part, Score, Segment
from braid.data.stories import SPLITS, tell
from braid.data.tokens import DataTokenizer

MIA = ("Mia has 3 pens.", " Tom has 4 pens.", " How many do they have?")


def _score(user: Sequence[str], thought: Sequence[tuple[str, int]], output: str | None = None) -> Score:
    parts = [
        Part("user", "input", tuple(map(Segment, user))),
        Part(
            "thought",
            "output",
            tuple(Segment(text, {"user": read}) for text, read in thought),
            reads=("user",),
        ),
    ]
    if output is not None:
        parts.append(Part("output", "output", (Segment(output, {"user": 1}),), reads=("user",)))
    return Score("x", tuple(parts))


def _after(score: Score, stream: str) -> list[Mapping[str, int]]:
    return [dict(segment.after) for segment in score.part(stream).segments]


@given(seed=st.integers(0, 5), index=st.integers(0, 500), split=st.sampled_from(SPLITS))
@settings(max_examples=150, deadline=None)
def test_our_own_stories_hold_as_they_are(seed: int, index: int, split: str) -> None:
    score = solve_score(tell(seed, index, split), "x")  # type: ignore[arg-type]
    verdict = validate(score)
    assert (verdict.score, verdict.moved, verdict.impossible) == (score, (), ())


@given(seed=st.integers(0, 5), index=st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_steps_that_are_put_too_early_are_moved_back_no_further_than_they_were(seed: int, index: int) -> None:
    score = solve_score(tell(seed, index), "x")
    thought = score.part("thought")
    early = replace(thought, segments=tuple(Segment(each.text) for each in thought.segments))
    parts = tuple(early if part.stream == "thought" else part for part in score.parts)
    verdict = validate(replace(score, parts=parts))
    assert verdict.holds
    found = _after(verdict.score, "thought")
    assert all(
        each.get("user", 0) <= right.after["user"]
        for each, right in zip(found, thought.segments, strict=True)
    )
    again = validate(verdict.score)
    assert (again.score, again.moved) == (verdict.score, ())


def test_a_number_is_waited_for_and_the_move_is_told() -> None:
    verdict = validate(_score(MIA, [("3;", 1), ("3+4=7;", 1)]))
    assert _after(verdict.score, "thought") == [{"user": 1}, {"user": 2}]
    (moved,) = verdict.moved
    assert (moved.stream, moved.segment, moved.before, moved.after) == (
        "thought",
        1,
        {"user": 1},
        {"user": 2},
    )
    assert moved.missing == ("4",)


def test_what_was_worked_out_is_known_from_then_on_and_not_before() -> None:
    assert validate(_score(MIA, [("3+4=7;", 2), ("7*2=14;", 2)])).holds
    verdict = validate(_score(MIA, [("7*2=14;", 2), ("3+4=7;", 2)]))
    assert [each.missing for each in verdict.impossible] == [("7",)]


def test_wrong_sums_and_numbers_from_nowhere_are_impossible_wherever_they_stand() -> None:
    verdict = validate(_score(MIA, [("3+4=8;", 3), ("9;", 3)]))
    assert [(each.segment, each.missing) for each in verdict.impossible] == [
        (0, ("3+4=8 is wrong",)),
        (1, ("9",)),
    ]
    assert not verdict.holds


def test_what_can_be_waited_for_is_although_something_else_never_comes() -> None:
    verdict = validate(_score(MIA, [("3+4+55=62;", 1)]))
    assert _after(verdict.score, "thought") == [{"user": 2}]
    assert verdict.impossible[0].missing == ("55",)


def test_names_and_things_are_waited_for() -> None:
    verdict = validate(_score(MIA, [("Mia and Tom;", 0), ("pens;", 0)]))
    assert _after(verdict.score, "thought") == [{"user": 2}, {"user": 0}]
    assert verdict.moved[0].missing == ("tom", "mia") or set(verdict.moved[0].missing) == {"mia", "tom"}
    assert validate(_score(MIA, [("Clearly an easy matter;", 0)])).moved == ()


def test_numbers_in_words_are_waited_for_as_those_in_digits_are() -> None:
    told = validate(_score(("Mia has 3 pens.", " She buys four.", " How many?"), [("she will get four;", 1)]))
    assert (_after(told.score, "thought"), told.moved[0].missing) == ([{"user": 2}], ("4",))
    sums = validate(_score(MIA, [("three plus four makes seven;", 1)]))
    assert _after(sums.score, "thought") == [{"user": 2}]
    assert sums.impossible[0].missing == ("7",)
    many = ("Mia has 3 pens.", " She buys two hundred and forty-five.")
    assert validate(_score(many, [("245;", 2), ("3+245=248;", 2), ("two hundred and forty-eight;", 2)])).holds
    assert validate(_score(many, [("twenty-two;", 2)])).impossible[0].missing == ("22",)
    assert validate(_score(MIA, [("one by one;", 0)])).moved == ()
    assert validate(_score(("Mia has 4 pens.", " Tom has four."), [("Mia has four;", 1)])).moved == ()


def test_a_name_that_no_input_has_waits_until_all_have_been_read() -> None:
    for text in ("Peter has them;", "so Zelda has them;", "given to Zelda's friend;"):
        verdict = validate(_score(MIA, [(text, 1)]))
        assert _after(verdict.score, "thought") == [{"user": 3}]
        assert verdict.holds and verdict.moved[0].missing[0] in ("peter", "zelda")
        again = validate(verdict.score)
        assert (again.score, again.moved) == (verdict.score, ())
    for text in ("Clearly so. Easy; I'm sure: OK", "The Pens;"):
        assert validate(_score(MIA, [(text, 1)])).moved == ()
    said = validate(_score(MIA, [("so Zelda has them;", 3), ("with Zelda;", 1)]))
    assert said.moved == ()


def test_a_name_does_not_wait_for_an_input_that_waits_for_it() -> None:
    user = Part("user", "input", (Segment("Mia?"), Segment(" And now?", {"thought": 1}), Segment(" So?")))
    thought = Part("thought", "output", (Segment("ask Zelda;", {"user": 1}), Segment("ask Yann;")))
    verdict = validate(Score("x", (user, thought)))
    assert _after(verdict.score, "thought") == [{"user": 1}, {"user": 3}]


def test_names_of_two_letters_are_waited_for_and_small_words_are_not() -> None:
    user = ("Mia has 3 pens.", " Al has 4.", " He or she: how many?")
    verdict = validate(_score(user, [("Al is here;", 1)]))
    assert (_after(verdict.score, "thought"), verdict.moved[0].missing) == ([{"user": 2}], ("al",))
    assert validate(_score(user, [("He or She;", 1)])).moved == ()


def test_an_answer_waits_for_the_thought_that_works_it_out() -> None:
    verdict = validate(_score(MIA, [("3+4=7;", 2)], output="7"))
    assert _after(verdict.score, "output") == [{"user": 1, "thought": 1}]


def test_only_what_is_readable_counts() -> None:
    score = _score(MIA, [("3+4=7;", 2)], output="7")
    assert not validate(score, reads={"output": ("user",)}).holds
    assert validate(score, reads={"output": ("thought",)}).holds


def test_what_others_waited_for_stands_in_the_past_too() -> None:
    output = Part("output", "output", (Segment("4", {"thought": 1}),))
    score = _score(MIA, [("3+4=7;", 2)])
    assert validate(replace(score, parts=(*score.parts, output))).moved == ()


def test_a_judge_moves_steps_that_the_rules_let_pass() -> None:
    asked: list[tuple[str, str]] = []

    def judge(past: str, step: str) -> bool:
        asked.append((past, step))
        return "How many" in past

    verdict = validate(_score(MIA, [("Easy.", 0)]), judge=judge)
    assert _after(verdict.score, "thought") == [{"user": 3}]
    assert [past.count(".") for past, _ in asked] == [0, 1, 2, 2]
    never = validate(_score(MIA, [("Easy.", 0)]), judge=lambda _past, _step: False)
    assert never.impossible[0].missing == ("what the judge misses",)


def test_a_moved_score_can_be_laid_out(tokenizer: DataTokenizer) -> None:
    verdict = validate(_score(MIA, [("3+4=7;", 0)], output="7"))
    table = lay_out(verdict.score, tokenizer, ARRIVALS["paced"])
    user, thought = table.lanes[0], table.lanes[1]
    second = tokenizer.encode(MIA[0]) + tokenizer.encode(MIA[1])
    assert thought.rows[0] >= user.rows[len(second) - 1] + 1
