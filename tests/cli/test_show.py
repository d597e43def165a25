"""How runs are shown: breaking lines, keeping terminals safe, whole lines on shared screens."""

from __future__ import annotations

import io
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from braid.cli.show.json_lines import JsonLines
from braid.cli.show.lanes import strip
from braid.cli.show.plain import PlainText
from braid.cli.show.wrapping import Wrapped, printable
from braid.streams.events import CellData, ClosedEvent, NoticeEvent, RowEvent, StateEvent, parse_event
from braid.streams.presets import topology
from braid.streams.topology import Topology

SAMPLES = st.text(alphabet="ab cd\n\té你🙂\u0301", max_size=80)


@given(SAMPLES, st.integers(2, 20), st.lists(st.integers(0, 80), max_size=6))
def test_lines_do_not_depend_on_the_pieces_in_which_text_comes(
    text: str, width: int, cuts: list[int]
) -> None:
    whole, pieces = Wrapped(width), Wrapped(width)
    whole.add(text)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    final: list[str] = []
    for start, stop in pairwise(places):
        pieces.add(text[start:stop])
        assert pieces.lines[: len(final)] == final  # what was final stays
        final = pieces.lines[:-1]
    assert [line.rstrip() for line in pieces.lines] == [line.rstrip() for line in whole.lines]


@given(SAMPLES, st.integers(2, 20))
def test_no_line_is_too_wide_and_no_letter_is_lost(text: str, width: int) -> None:
    wrapped = Wrapped(width)
    wrapped.add(text)
    assert all(cell_len(line.rstrip()) <= width for line in wrapped.lines)
    assert "".join("".join(wrapped.lines).split()) == "".join(text.split())


def test_lines_break_between_words() -> None:
    wrapped = Wrapped(10)
    wrapped.add("one two three fo")
    assert wrapped.lines == ["one two", "three fo"]
    wrapped.add("ur five\n\nsix")
    assert wrapped.lines == ["one two", "three four", "five", "", "six"]
    assert wrapped.take() == ["one two", "three four", "five", ""]
    assert wrapped.take(all_of_it=True) == ["six"]
    assert wrapped.take(all_of_it=True) == []


@given(st.text(max_size=60))
def test_nothing_can_take_over_the_terminal(text: str) -> None:
    shown = printable(text)
    assert not any((ord(char) < 32 and char not in "\n\t") or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(shown)


def test_rows_share_columns_where_there_are_many() -> None:
    assert strip([], 0, 10) == ""
    assert strip(list(range(7)), 7, 10) == "━" * 7
    assert len(strip([0, 999], 1000, 60)) <= 60
    assert strip([0, 999], 1000, 10) == "━        ━"


def test_json_lines_are_lines_for_every_program() -> None:
    out = io.StringIO()
    event = NoticeEvent(t=0, code="x", message="a\u2028b\u2029c\x85d\ne")
    JsonLines(out).on_event(event)
    (line,) = out.getvalue().splitlines()
    assert parse_event(line) == event


def row(t: int, **texts: str) -> RowEvent:
    return RowEvent(t=t, cells={label: CellData(token=1, text=text) for label, text in texts.items()})


def test_asides_are_whole_lines_in_the_order_in_which_they_are_complete() -> None:
    out, err = io.StringIO(), io.StringIO()
    with PlainText(topology("think-aloud").lanes(), out, err) as show:
        show.on_event(row(0, user="How many"))
        show.on_event(StateEvent(t=1, stream="user", state="asleep", reason="ended"))
        show.on_event(row(1, user=" apples?", thought="3 + 4"))
        show.on_event(row(2, thought=" = 7", output="There"))
        assert err.getvalue() == "user    │ How many apples?\n"
        show.on_event(StateEvent(t=3, stream="thought", state="asleep"))
        show.on_event(row(3, output=" are\nsev"))
        assert out.getvalue() == "There are\n"
        show.on_event(row(4, output="en"))
        show.on_event(ClosedEvent(t=5))
    assert out.getvalue() == "There are\nseven\n"
    assert err.getvalue() == "user    │ How many apples?\nthought │ 3 + 4 = 7\n"


def test_several_answers_are_told_apart() -> None:
    streams = {"user": {"direction": "input"}, "a": {"direction": "output"}, "b": {"direction": "output"}}
    out = io.StringIO()
    with PlainText(Topology.from_dict({"streams": streams}).lanes(), out, io.StringIO()) as show:
        show.on_event(row(0, a="yes\n", b="no"))
    assert out.getvalue() == "a: yes\nb: no\n"
