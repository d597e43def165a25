"""Scores arrive as they are said to: a token a row, when nobody speaks, all at once; and in their order."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

import braid
from braid.data.layout import ARRIVALS, lay_out
from braid.data.score import Part, Score, Segment
from braid.data.sources import Wish, find_builder
from braid.data.tokens import DataTokenizer
from braid.errors import InputError
from braid.eval.play import Pace, Played, play, trained_topology
from braid.model.model import Model
from braid.streams.presets import topology

STORIES = topology("stories")


@pytest.fixture(scope="module")
def model() -> Model:
    return braid.load("braid-stories", threads=1)


def scores(builder: str, count: int) -> list[Score]:
    return [
        cast("Score", each)
        for each in itertools.islice(find_builder(builder).scores(Wish(11, "numbers")), count)
    ]


def played(model: Model, wanted: list[Score], pace: Pace, at_once: int = 8) -> list[Played]:
    return [said for _, said in play(model, STORIES, wanted, pace, at_once=at_once)]


@pytest.mark.parametrize("pace", ["paced", "paste"])
def test_all_that_arrives_is_read_in_consecutive_rows(model: Model, pace: Pace) -> None:
    for said in played(model, scores("stories", 6), pace):
        rows = said.streams["user"].rows
        assert list(rows) == list(range(len(rows)))


def test_pasted_input_is_read_before_anything_is_said(model: Model) -> None:
    for said in played(model, scores("stories", 6), "paste"):
        spoken = [said.streams[name].rows for name in ("thought", "output")]
        assert all(row > said.last_input for rows in spoken for row in rows)


def test_typed_input_waits_until_nobody_speaks(model: Model) -> None:
    found = played(model, scores("stories", 6), "typed")
    assert any(said.num_rows > len(said.streams["user"].rows) for said in found)
    for said in found:
        typed = set(said.streams["user"].rows)
        spoken = {row for name in ("thought", "output") for row in said.streams[name].rows}
        # A row that has both is the first of a burst of speech: it was drawn by the row before, as the token came.
        assert len(typed & spoken) <= len(typed) // 2
        assert spoken - typed


def test_the_tokens_are_those_of_the_training_data(model: Model) -> None:
    wanted = scores("stories", 12)
    tokenizer = DataTokenizer(model.codec.hf.backend_tokenizer)
    for pace in ("paced", "typed"):
        for score, said in zip(wanted, played(model, wanted, cast("Pace", pace)), strict=True):
            lane = lay_out(score, tokenizer, ARRIVALS["paced"]).lane("user")
            assert lane is not None
            assert list(said.streams["user"].ids) == list(lane.ids)


def test_a_solution_waits_for_the_sentence_that_it_is_about(model: Model) -> None:
    tokenizer = DataTokenizer(model.codec.hf.backend_tokenizer)
    wanted = scores("audit", 6)
    for score, said in zip(wanted, played(model, wanted, "paced"), strict=True):
        table = lay_out(score, tokenizer, ARRIVALS["paced"])
        for stream in ("user", "solution"):
            lane = table.lane(stream)
            assert lane is not None
            assert list(said.streams[stream].ids) == list(lane.ids)
        first = score.part("solution").segments[0].after["user"]
        needed = sum(len(tokenizer.encode(segment.text)) for segment in score.part("user").segments[:first])
        assert said.streams["solution"].rows[0] >= said.streams["user"].rows[needed - 1]


def test_many_at_once_say_what_each_says_alone(model: Model) -> None:
    wanted = scores("stories", 10)
    together, alone = played(model, wanted, "paced", at_once=10), played(model, wanted, "paced", at_once=1)
    assert [said.streams for said in together] == [said.streams for said in alone]


def test_they_come_back_in_their_order(model: Model) -> None:
    long = Score(
        "long", (Part("user", "input", (Segment("Mia has 3 pens." + " She likes pens very much." * 8),)),)
    )
    short = Score("short", (Part("user", "input", (Segment("Hello!"),)),))
    assert [score.id for score, _ in play(model, STORIES, [long, short], "paced")] == ["long", "short"]


def test_a_stock_model_has_no_topology_of_its_own() -> None:
    with pytest.raises(InputError, match="not trained on streams"):
        trained_topology(braid.load("braid-stories-turns", threads=1))
