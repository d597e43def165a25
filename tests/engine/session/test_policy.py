"""Row policy and stop strings: pure functions, tried by the thousand."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from braid.engine.session.policy import Backlog, next_rows
from braid.engine.session.stops import StopMatcher

backlogs = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["paced", "burst"])), min_size=1, max_size=4
).map(lambda entries: [Backlog(f"s{i}", queued, feed) for i, (queued, feed) in enumerate(entries)])


@given(backlogs, st.booleans(), st.integers(1, 12))
def test_everything_queued_enters_in_order_and_within_the_budget(
    waiting: list[Backlog], speaking: bool, budget: int
) -> None:
    left = {b.label: b.queued for b in waiting}
    steps = 0
    while True:
        current = [Backlog(b.label, left[b.label], b.feed) for b in waiting]
        rows = next_rows(current, is_speaking=speaking and steps == 0, budget=budget)
        steps += 1
        if rows is None:
            break
        entered = {b.label: rows.count(b.label) for b in waiting}
        assert all(0 <= entered[label] <= left[label] for label in left)
        assert sum(count for _, count in rows.burst) <= budget
        assert rows.outputs or (sum(entered.values()) == budget and not rows.row)
        assert rows.num_rows > 0
        for b in waiting:
            if b.feed == "paced":
                assert entered[b.label] == int(rows.outputs and left[b.label] > 0)
            left[b.label] -= entered[b.label]
        if rows.outputs:
            assert all(left[b.label] == 0 for b in waiting if b.feed == "burst")
    assert not any(left.values())


def test_no_row_when_nothing_happens() -> None:
    assert next_rows([Backlog("user", 0, "burst")], is_speaking=False, budget=8) is None
    rows = next_rows([], is_speaking=True, budget=8)
    assert rows is not None and rows.row == () and rows.num_rows == 1


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    st.lists(st.integers(0, 30)),
)
def test_stops_cut_at_the_first_match_however_the_text_is_pieced(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    edges = sorted({0, len(text), *(cut for cut in cuts if cut <= len(text))})
    shown, stopped = "", False
    for start, stop in pairwise(edges):
        piece, stopped = matcher.push(text[start:stop])
        shown += piece
        if stopped:
            break
    else:
        shown += matcher.flush()
    # Where two stops overlap, the one that is complete first wins.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, stopped) == (text, False)
    else:
        assert stopped
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)
