"""How far a session's beginning goes, and what of it is kept and recalled."""

from __future__ import annotations

from braid.engine.session.policy import RowPlan
from braid.engine.session.shared_prefix import SharedPrefix
from braid.engine.session.stage import Stage
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullModel
from tests.engine.harness import codec

BURST = RowPlan((("user", 4), ("note", 2)), (), False)


def told(user: str = "abcdef", note: str = "xyz") -> Stage:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input", feed="burst"),
            "note": StreamSpec(direction="input", feed="burst"),
            "output": StreamSpec(direction="output"),
        }
    )
    stage = Stage(NullModel(codec()), topology, None)
    for name, text in (("user", user), ("note", note)):
        stage.input(name).add([(ord(letter), letter) for letter in text], 0.0, 0)
    return stage


def test_it_goes_as_far_as_nothing_but_bursts_has_happened() -> None:
    prefix, stage = SharedPrefix("", is_open=True), told()
    prefix.lengthen(BURST, stage, 0)
    cells = prefix.take()
    assert cells is not None and [(cell[0], cell[1]) for cell in cells[3:5]] == [(3, "user"), (4, "note")]
    assert prefix.take() is None, "it is kept once"
    assert prefix.is_open
    prefix.lengthen(BURST._replace(outputs=True), stage, 6)
    kept = prefix.take()
    assert kept is not None and len(kept) == 12, "the burst before the row with outputs is part of it"
    assert not prefix.is_open


def test_what_is_found_enters_as_far_as_it_goes() -> None:
    for found, burst in ((0, ()), (3, (("user", 3),)), (5, (("user", 4), ("note", 1))), (6, BURST.burst)):
        prefix, stage = SharedPrefix("", is_open=True), told()
        assert len(prefix.wanted(BURST, stage, 0)) == 6
        recalled = prefix.recalled(BURST, found, stage, 0)
        assert (() if recalled is None else recalled.burst) == burst
        assert prefix.num_cached == found
        assert prefix.take() is None, "it is kept already"


def test_two_beginnings_are_the_same_where_text_and_salt_are() -> None:
    prefix = SharedPrefix("", is_open=True)
    same = prefix.next_of_rows(BURST, told())
    assert same == SharedPrefix("", is_open=True).next_of_rows(BURST, told())
    assert same != prefix.next_of_rows(BURST, told("other text"))
    assert same != SharedPrefix("salt", is_open=True).next_of_rows(BURST, told())
    assert prefix.next_of_rows(None, told()) is None
    prefix.end()
    assert prefix.next_of_rows(BURST, told()) is None


def test_a_fork_goes_on_by_itself() -> None:
    prefix, stage = SharedPrefix("", is_open=True), told()
    prefix.lengthen(BURST, stage, 0)
    twin = prefix.fork()
    twin.lengthen(BURST, stage, 6)
    assert len(prefix.take() or ()) == 6 and len(twin.take() or ()) == 12
    twin.share_nothing()
    assert prefix.is_open and not twin.is_open
