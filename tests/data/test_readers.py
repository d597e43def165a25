"""Grids in other layouts: each becomes the row table that its tokens say."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.data.check import check_table
from braid.data.readers import grid_table, read_grids, read_npz, read_stream_data
from braid.data.row_table import RowTable
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError

SILENCE = 999
STREAMS = ("user", "output")
GRID = {"user": [1, 2, SILENCE, SILENCE, SILENCE], "output": [SILENCE, SILENCE, SILENCE, 7, 8]}


def _said(table: RowTable) -> dict[str, list[tuple[int, int]]]:
    return {lane.stream: list(zip(lane.rows, lane.ids, strict=True)) for lane in table.lanes}


def test_silence_takes_no_slot_and_empty_rows_go(lines: Callable[..., Path]) -> None:
    path = lines({"id": "g", "num_rows": 5, "token_ids": list(GRID.values())}, name="dataset.jsonl")
    for source in (path, path.parent):
        (table,) = read_grids(source, STREAMS, ["user"], SILENCE)
        assert (table.id, table.num_rows) == ("g", 4)
        assert _said(table) == {"user": [(0, 1), (1, 2)], "output": [(2, 7), (3, 8)]}
        assert [lane.asked for lane in table.lanes] == [(), ((0, 3),)]


@pytest.mark.parametrize(
    "bad",
    ["{", "[]", '{"num_rows": 2}', '{"num_rows": 9, "token_ids": [[1], [2]]}', '{"num_rows": 1, "token_ids": [[1]]}',
     '{"num_rows": 1, "token_ids": [["a"], [2]]}', '{"num_rows": 1, "token_ids": [[999], [999]]}'],
)  # fmt: skip
def test_a_line_that_is_no_grid_is_named(bad: str, lines: Callable[..., Path]) -> None:
    path = lines({"num_rows": 5, "token_ids": list(GRID.values())}, bad)
    reading = read_grids(path, STREAMS, ["user"], SILENCE)
    next(reading)
    with pytest.raises(DataCorruptError, match="line 2"):
        next(reading)


@given(
    cells=st.integers(1, 12).flatmap(
        lambda n: st.lists(
            st.lists(st.none() | st.integers(0, 50), min_size=n, max_size=n), min_size=2, max_size=4
        )
    )
)
def test_any_grid_is_a_table_without_faults(cells: list[list[int | None]]) -> None:
    grid = {f"s{h}": column for h, column in enumerate(cells)}
    if all(cell is None for column in cells for cell in column):
        with pytest.raises(DataError, match="nobody says anything"):
            grid_table(grid, "x", ["s0"])
        return
    table = grid_table(grid, "x", ["s0"])
    rules = {finding.rule for finding in check_table(table)}
    assert rules <= {"unasked"} if table.num_rows == 1 else rules == set()
    assert [lane.ids for lane in table.lanes] == [[c for c in column if c is not None] for column in cells]


def _flat(order: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Ids and (stream, time) of the grid, flat."""
    places = [(h, t) for h in range(2) for t in range(5)]
    if order == "rows":
        places.sort(key=lambda place: (place[1], place[0]))
    if order == "shuffled":
        random.Random(3).shuffle(places)
    ids = np.array([list(GRID.values())[h][t] for h, t in places])
    return ids, np.array(places)


@pytest.mark.parametrize("order", ["rows", "streams", "shuffled"])
@pytest.mark.parametrize("labels", ["next", "same"])
def test_npz_in_any_order_with_either_kind_of_label(order: str, labels: str, tmp_path: Path) -> None:
    ids, places = _flat(order)
    columns = list(GRID.values())
    told = np.full(len(ids), -100)
    for place, (h, t) in enumerate(places.tolist()):
        if h == 1 and labels == "next" and t < 4:
            told[place] = columns[h][t + 1]
        if h == 1 and labels == "same" and t:
            told[place] = ids[place]
    np.savez(tmp_path / "a.npz", input_ids=ids, labels=told, position_ids=places)
    (table,) = read_npz(tmp_path, STREAMS, SILENCE)
    assert _said(table) == {"user": [(0, 1), (1, 2)], "output": [(2, 7), (3, 8)]}
    assert [(lane.asked, lane.weight) for lane in table.lanes] == [((), 0.0), (((0, 3),), 1.0)]
    assert list(check_table(table)) == []


def test_npz_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.npz"):
        next(read_npz(tmp_path, STREAMS, SILENCE))
    ids, places = _flat("rows")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"input_ids": ids}, "is no .npz with"),
        ({"input_ids": ids, "labels": ids, "position_ids": places[:, 0]}, r"position_ids is \[S, 2\]"),
        ({"input_ids": ids, "labels": ids + 1, "position_ids": places}, "labels are neither"),
        ({"input_ids": ids, "labels": ids, "position_ids": places + np.array([5, 0])}, "only 2 have names"),
        ({"input_ids": ids * 0 + SILENCE, "labels": ids * 0 - 100, "position_ids": places}, "nobody says"),
    ]
    for arrays, message in cases:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(DataCorruptError, match=message):
            next(read_npz(tmp_path, STREAMS, SILENCE))
    (tmp_path / "a.npz").write_bytes(b"PK no zip")
    with pytest.raises(DataCorruptError, match=r"is no \.npz"):
        next(read_npz(tmp_path, STREAMS, SILENCE))


def test_stream_data_of_ids_and_of_text(tokenizer: DataTokenizer, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ids = {
        "id": ["a"],
        "input_prompt": ["Hi"],
        "User": [[1, SILENCE, SILENCE]],
        "Inner Voice": [[SILENCE, 5, 6]],
    }
    parquet.write_table(arrow.table(ids), tmp_path / "ids.parquet")
    (table,) = read_stream_data(tmp_path / "ids.parquet", silence_id=SILENCE)
    assert (table.id, _said(table)) == ("a", {"user": [(0, 1)], "inner_voice": [(1, 5), (2, 6)]})
    text = {"id": ["b"], "User": [["Mia has 3 pens", "-"]], "Output": [["-", "three"]]}
    parquet.write_table(arrow.table(text), tmp_path / "text.parquet")
    (table,) = read_stream_data(tmp_path / "text.parquet", tokenizer=tokenizer)
    assert [tokenizer.decode(lane.ids) for lane in table.lanes] == ["Mia has 3 pens", "three"]
    assert [lane.ids[-1] for lane in table.lanes] == [tokenizer.end_id] * 2
    assert table.lanes[1].asked == ((0, table.lanes[1].rows[-1]),)
    assert table.lanes[1].rows[0] == len(tokenizer.encode("Mia has 3 pens"))
    assert list(check_table(table, 1, tokenizer)) == []
    with pytest.raises(DataError, match="tokenizer"):
        next(read_stream_data(tmp_path / "text.parquet"))


def test_stream_data_in_lines(lines: Callable[..., Path]) -> None:
    path = lines({"User": [1, SILENCE], "Output": [SILENCE, 2]}, {"id": "empty", "input_prompt": "x"})
    reading = read_stream_data(path, silence_id=SILENCE)
    assert next(reading).num_rows == 2
    with pytest.raises(DataCorruptError, match="no column is a list"):
        next(reading)


def test_text_that_is_no_grid_is_named(lines: Callable[..., Path], tokenizer: DataTokenizer) -> None:
    for bad in ({"User": ["Hi", 5]}, {"User": ["Hi"], "Output": [{"a": 1}]}):
        with pytest.raises(DataCorruptError, match="record 1: this is no grid"):
            next(read_stream_data(lines(bad), tokenizer=tokenizer))


def test_an_output_that_says_nothing_ends_when_the_others_have_spoken(
    lines: Callable[..., Path], tokenizer: DataTokenizer
) -> None:
    record = {
        "User": ["Hi", "-"],
        "Document": ["-", "-"],
        "Worried": ["-", "-"],
        "Output": ["-", "three pens"],
    }
    (table,) = read_stream_data(lines(record), ["user", "document"], tokenizer=tokenizer)
    assert list(check_table(table, 1, tokenizer)) == []
    assert [list(lane.ids) for lane in table.lanes][1:3] == [[], [tokenizer.end_id]]
    assert table.lanes[2].rows[0] == table.lanes[3].rows[-1] == table.num_rows - 1


def _with_end(end: int) -> dict[str, list[int]]:
    """Two turns; the thought has ended long before the output, and says nothing in the second."""
    s = SILENCE
    return {
        "user": [20, end, s, s, s, 21, end, s, s],
        "thought": [s, 55, end, s, s, s, s, end, s],
        "output": [s, s, s, 56, end, s, s, 57, end],
    }


@pytest.mark.parametrize("layout", ["grid", "npz", "stream-data"])
def test_nobody_is_asked_after_its_end_until_the_next_turn(
    layout: str, tokenizer: DataTokenizer, lines: Callable[..., Path], tmp_path: Path
) -> None:
    end, grid = tokenizer.end_id, _with_end(tokenizer.end_id)
    if layout == "grid":
        path = lines({"num_rows": 9, "token_ids": list(grid.values())})
        (table,) = read_grids(path, list(grid), ["user"], SILENCE, end)
    elif layout == "stream-data":
        (table,) = read_stream_data(lines(grid), ["user"], silence_id=SILENCE, end_id=end)
    else:
        places = [(h, t) for h in range(3) for t in range(9)]
        ids = [list(grid.values())[h][t] for h, t in places]
        told = [token if h and t else -100 for (h, t), token in zip(places, ids, strict=True)]
        np.savez(tmp_path / "a.npz", input_ids=ids, labels=told, position_ids=places)
        (table,) = read_npz(tmp_path, list(grid), SILENCE, end)
    assert list(check_table(table, 1, tokenizer)) == []
    assert [lane.asked for lane in table.lanes] == [(), ((0, 2), (5, 7)), ((0, 4), (5, 8))]
