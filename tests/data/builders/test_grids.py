"""Grids of n streams from tables of text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.builders.grids import grid_score
from braid.data.check import check_table
from braid.data.layout import lay_out
from braid.data.tokens import DataTokenizer
from braid.errors import DataError
from tests.data.strategies import arrivals

VOICES = ["calm", "worried", "critic", "planner", "memory", "doubt", "humour", "care"]
cells = st.sampled_from(["", "-", "Oh no.", "Wait.", "I see it now."])


def test_a_cell_waits_for_its_row_of_the_user_and_the_rows_before_of_the_others() -> None:
    record = {
        "User": ["Hi, I lost my keys.", "In my bag."],
        "Calm": ["", "Retrace it."],
        "Worried": ["Oh no.", "Gone!"],
        "Output": "Look in your bag.",
    }
    score = grid_score(record, "g")
    assert score.streams == ["user", "calm", "worried", "output"]
    assert dict(score.part("calm").segments[0].after) == {"user": 2, "worried": 1}
    assert [dict(each.after) for each in score.part("worried").segments] == [{"user": 1}, {"user": 2}]
    assert dict(score.part("output").segments[0].after) == {"user": 2}
    assert score.part("worried").text == "Oh no. Gone!"


@given(
    columns=st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=8, max_size=8)
    ),
    arrival=arrivals,
)
@settings(max_examples=60, deadline=None)
def test_ten_streams_can_be_laid_out(
    columns: list[list[str]], arrival: object, tokenizer: DataTokenizer
) -> None:
    record = {"user": "I am here. What now?", **dict(zip(VOICES, columns, strict=True)), "output": "Breathe."}
    score = grid_score(record, "g")
    assert len(score.parts) == 10
    table = lay_out(score, tokenizer, arrival, random.Random(0))  # type: ignore[arg-type]
    assert list(check_table(table, 1, tokenizer)) == []
    for lane in table.lanes:
        assert tokenizer.decode(lane.ids) == score.part(lane.stream).text


def test_tables_that_make_no_grid() -> None:
    with pytest.raises(DataError, match="nothing to learn"):
        grid_score({"user": "Hi"}, "g")
    with pytest.raises(DataError, match="'a_b'"):
        grid_score({"a b": "x", "A-B": "y"}, "g")
