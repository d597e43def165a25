"""Faults are planted as they are named, and what training leaves out stays out of them."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from braid.data.builders.audit import FAULTS, UNSEEN_FAULTS, audit_score, plant
from braid.data.sources import Wish, find_builder
from braid.data.stories import Split, tell
from tests.data.written import held_out_steps

COUNT = 400


@pytest.mark.parametrize("split", ["train", "faults"])
@pytest.mark.parametrize("seed", range(3))
def test_audits_of_training_stories_have_no_held_out_pair_not_even_a_wrong_one(seed: int, split: str) -> None:
    nth = find_builder("audit").nth
    assert nth is not None
    for index in range(COUNT):
        score = nth(Wish(seed, split), index)
        assert held_out_steps([score.part("solution").text]) == []


def test_as_many_faults_are_planted_in_training_stories_as_in_others() -> None:
    found = {
        split: Counter(len(plant(tell(1, index, split), random.Random(index))[1]) for index in range(COUNT))
        for split in ("train", "wording")
    }
    assert all(abs(found["train"][n] - found["wording"][n]) < 0.08 * COUNT for n in range(3))


def test_a_story_whose_every_plan_holds_a_left_out_pair_is_written_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = tell(0, 0)
    monkeypatch.setattr("braid.data.builders.audit.is_held_out_pair", lambda _a, _sign, _b: True)
    assert all(
        plant(story, random.Random(seed), FAULTS + UNSEEN_FAULTS) == (story.steps, []) for seed in range(20)
    )


@pytest.mark.parametrize("kind", [*FAULTS, *UNSEEN_FAULTS])
def test_no_other_kind_is_planted_than_the_one_that_is_named(kind: str) -> None:
    scores = [audit_score(tell(2, index), "x", random.Random(index), (kind,)) for index in range(COUNT)]
    assert {fault["kind"] for score in scores for fault in score.meta["faults"]} == {kind}
    flags = {segment.text for score in scores for segment in score.part("audit").segments[:-1]}
    assert flags == {f" wrong {kind};" if kind in FAULTS else " wrong;"}


def test_a_step_that_only_notes_a_number_has_no_wrong_result_and_no_wrong_operation() -> None:
    for index in range(COUNT):
        story = tell(2, index)
        _, faults = plant(story, random.Random(index), ("result", "operation"))
        assert all("=" in story.steps[fault.step] for fault in faults)


@pytest.mark.parametrize("split", ["train", "numbers"])
def test_a_step_without_a_fault_goes_on_from_what_was_written(split: Split) -> None:
    for index in range(COUNT):
        story = tell(3, index, split)
        written, faults = plant(story, random.Random(index))
        spoiled = {fault.step for fault in faults}
        came_to: dict[str, str] = {}
        for place, (right, step) in enumerate(zip(story.steps, written, strict=True)):
            *told, result = re.findall(r"\d+", right)
            if place not in spoiled:
                goes_on = [came_to.get(number, number) for number in told[:1]]
                assert re.findall(r"\d+", step)[:-1] == [*goes_on, *told[1:]], index
            came_to[result] = re.findall(r"\d+", step)[-1]
