"""An example as a grid."""

from __future__ import annotations

from braid.data.row_table import Lane, RowTable
from braid.data.show import render_table, to_transcript
from braid.data.tokens import DataTokenizer


def test_text_is_that_of_the_table(table: RowTable, tokenizer: DataTokenizer) -> None:
    transcript = to_transcript(table, tokenizer)
    assert transcript.text("user") == tokenizer.decode(table.lanes[0].ids) + "<end>"
    assert [row.t for row in transcript.rows] == list(range(table.num_rows))
    assert transcript.topology.input_names == ("user",)


def test_the_grid_has_every_stream_and_when_it_is_asked(table: RowTable, tokenizer: DataTokenizer) -> None:
    text = render_table(table, tokenizer, width=80)
    assert all(len(line) <= 80 for line in text.splitlines() if "asked" not in line)
    assert {line.split()[0] for line in text.splitlines() if line.strip()} == {
        "t",
        "user",
        "thought",
        "output",
    }
    start, stop = table.lanes[1].asked[0]
    assert f"thought is asked in rows {start}–{stop - 1}" in text
    assert "<end>" in text


def test_without_a_tokenizer_ids_are_shown_and_forced_tokens_are_told_apart() -> None:
    table = RowTable("x", 2, (Lane("a", [0, 1], [5, 6], ((0, 1),), 0.5),), {})
    text = render_table(table)
    assert "#5" in text
    assert "a is asked in rows 0, weight 0.5" in text
    assert [row.cells["a"].forced for row in to_transcript(table).rows] == [True, False]


def test_a_range_is_not_counted_through() -> None:
    table = RowTable("x", 2, (Lane("a", [0, 1], [5, 6], ((0, 10**15),), 1.0),), {})
    assert [row.cells["a"].forced for row in to_transcript(table).rows] == [True, False]
