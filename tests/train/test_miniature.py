"""The miniature of the default recipe, from an empty folder to a model that thinks along on the engine."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import braid
from braid.eval.problems import Problem, outside_problems, story_problems
from braid.eval.solve import Answered, answer_in_streams, figures_of
from braid.model.model import Model
from braid.train.recipe import Recipe
from braid.train.run import train

RECIPE = Path(__file__).parents[2] / "recipes" / "miniature.yaml"
ACCURACY = 0.4
"""Of problems with numbers that no training story has. A guess among the numbers that they have is right less than once
in twenty times."""

SEED, COUNT = 90, 100


@dataclass(frozen=True)
class Trained:
    """What the recipe became."""

    recipe: Recipe
    model: Model

    def answers(self, problems: list[Problem]) -> list[Answered]:
        """Of problems that are typed."""
        return answer_in_streams(self.model, self.recipe.topology, problems, "typed", lambda *_: None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    recipe = Recipe.read(RECIPE)
    try:
        folder = train(recipe, tmp_path_factory.mktemp("miniature"))
    finally:
        torch.set_num_threads(threads)
    return Trained(recipe, braid.load(folder, threads=1))


@pytest.fixture(scope="module")
def answers(trained: Trained) -> list[Answered]:
    return trained.answers(short_problems("numbers", COUNT, trained.recipe.examples[0].most_steps))


def short_problems(split: str, count: int, most_steps: int | None) -> list[Problem]:
    """Problems as short as those that were trained on."""
    assert most_steps is not None
    drawn = story_problems(split, 20 * count, SEED)
    short = (problem for problem in drawn if problem.score.meta["num_steps"] <= most_steps)
    return list(itertools.islice(short, count))


def test_it_solves_problems_with_numbers_that_it_has_not_seen(answers: list[Answered]) -> None:
    assert len(answers) == COUNT
    assert figures_of(answers)["accuracy"]["value"] >= ACCURACY


def test_it_answers_at_once_and_never_early(answers: list[Answered]) -> None:
    figures = figures_of(answers)
    assert figures["tnft"]["median"] == 0
    assert figures["early"] == figures["unanswered"] == 0


def test_it_says_what_it_is_not_made_for(trained: Trained) -> None:
    figures = figures_of(trained.answers(outside_problems(COUNT, SEED)))
    assert figures["accuracy"]["value"] >= 0.8
    assert figures["early"] == 0
