"""Problems with answers that can be graded: the generator's splits, a file of one's own, `gsm_symbolic`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from braid.data.builders.outside import REFUSAL
from braid.data.builders.reasoning import GSM_FORMAT, reasoning_items
from braid.data.score import Part, Score, Segment
from braid.data.sentences import split_sentences
from braid.data.sources import Wish, find_builder
from braid.data.tables import read_records
from braid.errors import DataCorruptError

__all__ = [
    "OUTSIDE",
    "SPLITS",
    "Problem",
    "gsm_problems",
    "outside_problems",
    "own_problems",
    "problem_of",
    "scores_of",
    "story_problems",
]

SPLITS: Mapping[str, str] = {
    "numbers": "unseen numbers",
    "structure": "unseen operation structures",
    "wording": "unseen wording",
}
"""Splits of the story generator that are never trained on, and what is new in them."""

OUTSIDE: Mapping[str, str] = {"outside": "train", "outside_unseen": "questions"}
"""Sets of questions outside the domain: those of training, and kinds that are never trained on."""


@dataclass(frozen=True)
class Problem:
    """A question with its answer.

    Args:
        score: What arrives; of the generator's problems also what a perfect model would say, else the inputs alone.
        answer: The graded answer.
    """

    score: Score
    answer: str

    @property
    def id(self) -> str:
        """Of the problem."""
        return self.score.id

    @property
    def question(self) -> str:
        """Its whole text."""
        return self.score.part("user").text

    @property
    def has_labels(self) -> bool:
        """Whether it says what a perfect model would say, row by row."""
        return any(part.direction == "output" for part in self.score.parts)

    def is_right(self, answer: str) -> bool:
        """Whether an answer is right: the same text, or the same number however it is written."""
        given, wanted = answer.strip().rstrip("."), self.answer.strip().rstrip(".")
        return given == wanted or (_number(given) is not None and _number(given) == _number(wanted))


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").lstrip("$"))
    except ValueError:
        return None


def scores_of(builder: str, count: int, wish: Wish) -> list[Score]:
    """The first scores of a builder whose steps need no validating."""
    return [cast("Score", each) for each in itertools.islice(find_builder(builder).scores(wish), count)]


def story_problems(split: str, count: int, seed: int) -> list[Problem]:
    """Stories of one split.

    Args:
        split: One of `SPLITS`.
        count: How many.
        seed: Of the series; a recipe's own seeds would give what was trained on only for the split `train`.
    """
    return [
        Problem(score, str(score.meta["answer"])) for score in scores_of("stories", count, Wish(seed, split))
    ]


def outside_problems(count: int, seed: int, split: str = "train") -> list[Problem]:
    """Questions outside the domain of the stories, whose right answer says so.

    Args:
        count: How many.
        seed: Of the series.
        split: `train`, or `questions` for kinds of question that training never shows.
    """
    return [Problem(score, REFUSAL) for score in scores_of("outside", count, Wish(seed, split))]


def own_problems(path: Path) -> list[Problem]:
    """Problems from a file of records with `question` and `answer`, and an `id` if they like.

    Raises:
        DataCorruptError: A record has none of them; the message names it.
    """
    return [
        problem_of(record, f"{path}, record {place}")
        for place, (_, record) in enumerate(read_records(path), start=1)
    ]


def problem_of(record: Mapping[str, Any], where: str) -> Problem:
    """A problem from a record.

    Raises:
        DataCorruptError: It has no question, or no answer.
    """
    question, answer = record.get("question"), record.get("answer")
    if not isinstance(question, str) or not question.strip() or answer is None:
        raise DataCorruptError(
            f"{where}: a problem has a `question` and an `answer`; it has {', '.join(record)}"
        )
    return Problem(_asked(str(record.get("id") or where), question), str(answer))


def gsm_problems(count: int, seed: int) -> list[Problem]:
    """Problems of `gsm_symbolic`, none left out.

    Raises:
        DataError: `reasoning-gym` is not installed.
    """
    found: list[Problem] = []
    for place, item in enumerate(itertools.islice(reasoning_items("gsm_symbolic", seed), count)):
        question = str(item["question"]).removesuffix(GSM_FORMAT)
        found.append(Problem(_asked(f"gsm_symbolic-{seed}-{place}", question), str(item["answer"])))
    return found


def _asked(name: str, question: str) -> Score:
    segments = tuple(Segment(text) for text in split_sentences(question))
    return Score(name, (Part("user", "input", segments),))
