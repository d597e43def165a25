"""Questions outside the domain: what is evaluated is nothing that training asks."""

from __future__ import annotations

import random
import re

import pytest

from braid.data.builders.outside import COUNTRIES, LANGUAGES, REFUSAL, SPLITS, Split, outside_score
from braid.data.sources import Wish, find_builder
from braid.data.stories.lexicon import HE, PLACES, SHE, THINGS
from braid.errors import DataError

FILLED = re.compile(rf"\b(?:{'|'.join([*THINGS, *PLACES, *SHE, *HE, *COUNTRIES, *LANGUAGES])})\b")


def _kinds(split: Split) -> set[str]:
    """The kinds of question that several seeds ask: what is filled in is left out."""
    nth = find_builder("outside").nth
    assert nth is not None
    scores = [nth(Wish(seed, split), index) for seed in range(2) for index in range(500)]
    return {
        FILLED.sub("_", segment.text.strip()) for score in scores for segment in score.part("user").segments
    }


def test_the_splits_share_no_kind_of_question() -> None:
    train, questions = map(_kinds, SPLITS)
    assert not train & questions
    assert len(train) >= 2.5 * len(questions) >= 25
    assert "Tell me about _." in train
    assert "Who is _?" in questions


@pytest.mark.parametrize("split", SPLITS)
def test_whatever_is_asked_the_answer_says_that_it_is_outside(split: Split) -> None:
    score = outside_score(random.Random(3), "x", split)
    assert score.part("output").text == score.meta["answer"] == REFUSAL
    assert score.part("thought").text == ""
    assert score.meta["split"] == split


def test_another_split_is_refused() -> None:
    with pytest.raises(DataError, match="outside has no split 'numbers'"):
        find_builder("outside").scores(Wish(split="numbers"))
