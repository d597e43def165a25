"""How much of a session is in the cache; test_restore tells whether it is the right thing."""

from __future__ import annotations

from typing import Any

import pytest

from braid.engine.backend import Close, Drop, Entry, Item, Trim, closer_of
from braid.engine.session import ground as ground_module
from braid.engine.session.ground import Ground, Unanswered
from braid.engine.session.stage import Stage
from braid.streams.entries import Cell, LifeEvent, Row
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Transcript
from braid.testing import NullModel
from tests.engine.harness import codec

TOPOLOGY = Topology(streams={"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output")})
LATE = Unanswered(
    Item(1, "decode", [Entry("user", "user", (7,), (3,)), Entry("output", "output", (8,), (3,), keep=False)]),
    3,
)


def transcript(rows: int = 3) -> Transcript:
    told = Transcript(TOPOLOGY, "none", {}, {})
    for t in range(rows):
        told.append(Row(t, {"user": Cell(t, "a", True)}))
    return told


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground_module, "REFILL_CHUNK", 2)


def refill(ground: Ground, told: Transcript, ops: list[Any]) -> int:
    count = 0
    while ground.next_piece(1, told, None, ops.extend) is not None:
        count += sum(len(entry.token_ids) for entry in ground.take())
    return count


def evicted(unanswered: Unanswered | None = None) -> Ground:
    ground = Ground()
    assert ground.is_whole
    ground.lose()
    ground.unanswered = unanswered
    return ground


def test_it_is_filled_piece_by_piece() -> None:
    ground, ops = evicted(), list[Any]()
    assert (ground.is_whole, ground.piece, ground.num_refilled) == (False, None, 0)
    piece = ground.next_piece(1, transcript(), None, ops.extend)
    assert piece is not None and ground.piece is piece and ground.num_refilled == 0
    ground.take()
    assert (ground.piece, ground.num_refilled) == (None, 2)
    assert refill(ground, transcript(), ops) == 1
    ground.refilled(1, Stage(NullModel(codec()), TOPOLOGY, None), ops.extend)
    assert ground.is_whole and ops == []


def test_it_begins_anew_where_it_has_begun() -> None:
    ground, ops = evicted(), list[Any]()
    ground.begin_anew(1, ops.extend)
    assert ops == []
    ground.next_piece(1, transcript(), None, ops.extend)
    ground.take()
    ground.begin_anew(1, ops.extend)
    assert ops == [Drop(1)] and ground.num_refilled == 0
    assert refill(ground, transcript(), ops) == 3


def test_a_closer_that_came_to_nothing_goes_again() -> None:
    told, ops = transcript(1), list[Any]()
    told.append(LifeEvent(1, "prefill", closer_of("output"), tokens=(5, 6)))
    ground = evicted()
    assert refill(ground, told, ops) == 3
    ground.refilled(1, Stage(NullModel(codec()), TOPOLOGY, None), ops.extend)
    assert ops == [Trim(1, closer_of("output"), 0)]


def test_what_was_not_answered_comes_behind_all_that_was() -> None:
    told, ops = transcript(4), list[Any]()
    told.append(LifeEvent(4, "close", "user"))
    ground = evicted(LATE)
    assert refill(ground, told, ops) == 3, "its own row is not refilled"
    ground.refilled(1, Stage(NullModel(codec()), TOPOLOGY, None), ops.extend)
    assert (ground.is_evicted, ground.is_whole, ground.num_refilled) == (False, False, 3)
    assert LATE.needs == [("user", 1)], "a probe needs no room"
    ground.answered(1, told, ops.extend)
    assert ops == [Close(1, "user")] and ground.is_whole


def test_a_fork_is_refilled_by_itself() -> None:
    ground, ops = evicted(LATE), list[Any]()
    ground.next_piece(1, transcript(), None, ops.extend)
    ground.take()
    twin = ground.fork(9)
    assert twin.unanswered is not None and twin.unanswered.item.session == 9
    assert ground.unanswered is LATE
    assert (ground.num_refilled, twin.num_refilled) == (2, 0)
    assert (refill(twin, transcript(), ops), refill(ground, transcript(), ops)) == (3, 1)
