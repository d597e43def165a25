"""A session's ledger: another process goes on from any of its lines, and nothing of what follows is another.

`test_stateful.py` moves sessions in the middle of everything; here are single lives, cut at every line.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from braid.engine.core import EngineCore
from braid.engine.ledger import lead_through
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import LedgerLine, as_event
from braid.errors import PoolFullError, TranscriptCorruptError
from braid.model.chat import Chat
from braid.streams.stream_spec import AdaptiveWait
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec, stock, trained
from tests.engine.test_stateful import WORLDS, events_of, in_rows, in_views, lines_of
from tests.engine.witness import TOLERANCE, WitnessCore, check_books, drive

GRAMMAR = {"regex": "[0-9]{2}-[a-z]{3}"}


def null_core(**settings: Any) -> EngineCore:
    return EngineCore(NullBackend(NullModel(codec(), silence_token_id=SILENCE), **settings))


def live(core: EngineCore, topology: Topology, **settings: Any) -> Conversation:
    """Two turns with everything in between."""
    conversation = core.open(topology, seed=3, ledger=(), **settings)
    first, *others = topology.input_names
    core.do(conversation, "write", first, "hello there, this is the beginning ", now=0.5)
    for name in others:
        core.do(conversation, "write", name, "and this beside it ", now=0.6)
    for count in range(4):
        core.step([conversation], now=1.0 + count)
    core.evict(conversation)
    core.do(conversation, "write", first, "and the rest", now=8.0)
    core.do(conversation, "flush", first, "asked for", now=8.5)
    core.do(conversation, "end", now=9.0)
    drive(core, conversation)
    core.do(conversation, "write", first, "once more", now=20.0)
    core.do(conversation, "end", now=20.0)
    for _ in range(5):
        core.step([conversation], now=21.0)
    return conversation


TOPOLOGIES = (
    in_rows(),
    in_rows(feed="burst", silence="kept"),
    in_views(),
    in_views(wait_k=AdaptiveWait(threshold=0.9, max=4), system="be brief"),
    in_views(wait_k=AdaptiveWait(threshold=0.9, max=4, measure="input")),
)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=range(len(TOPOLOGIES)))
def test_cut_at_any_line_it_stands_where_it_stood(topology: Topology) -> None:
    core = null_core(confidence=0.5)
    conversation = live(core, topology)
    lines, entries = lines_of(conversation), list(conversation.transcript.entries)
    events: list[list[Any]] = [[]]
    for news in conversation.record._news:
        if isinstance(news, LedgerLine):
            events.append(list(events[-1]))
        else:
            events[-1].append(as_event(news))
    assert len(lines) > 20
    for cut in range(1, len(lines) + 1):
        again = null_core().open(topology, seed=3, ledger=lines[:cut])
        found = list(again.transcript.entries)
        assert found == entries[: len(found)]
        assert events_of(again) == events[cut]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=range(len(TOPOLOGIES)))
def test_cut_after_the_last_verb_it_ends_as_if_it_had_not_been_cut(topology: Topology) -> None:
    core = null_core(confidence=0.5)
    conversation = live(core, topology)
    lines = lines_of(conversation)
    last_verb = max(number for number, line in enumerate(lines) if line[0] == "do")
    drive(core, conversation)
    whole = conversation.transcript.entries
    for cut in range(last_verb + 1, len(lines) + 1):
        second = null_core(confidence=0.5)
        again = second.open(topology, seed=3, ledger=lines[:cut])
        drive(second, again)
        assert list(again.transcript.entries) == list(whole), f"cut at {cut}: {lines[cut - 1]}"


def cuts(lines: list[Any]) -> Iterator[int]:
    last_verb = max(number for number, line in enumerate(lines) if line[0] == "do")
    yield from range(last_verb + 1, len(lines) + 1, 3)


@pytest.mark.parametrize("index", range(len(WORLDS)))
def test_the_next_process_computes_the_logits_of_the_oracle(index: int) -> None:
    """Also those that the last process had asked for and was not told."""
    model = trained(WORLDS[index])
    core = WitnessCore(model)
    conversation = live(core, WORLDS[index])
    lines = lines_of(conversation)
    drive(core, conversation)
    num_torn = 0
    for cut in cuts(lines):
        second = WitnessCore(model)
        again = second.open(WORLDS[index], seed=3, ledger=lines[:cut])
        num_torn += lines[cut - 1][0] == "step" and lines[cut - 1][2] is not None
        drive(second, again)
        assert second.difference(again) <= TOLERANCE
        assert again.transcript.tokens("output") == conversation.transcript.tokens("output")
    assert num_torn


def test_views_with_a_conversation_so_far_go_on() -> None:
    chat = Chat.of(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user"}]
    )
    model = stock()
    core = WitnessCore(model)
    conversation = live(core, in_views(), chat=chat.to_data())
    lines = lines_of(conversation)
    second = WitnessCore(model)
    again = second.open(in_views(), seed=3, ledger=lines, chat=chat.to_data())
    assert again.stage.preamble is not None
    assert again.stage.preamble.history[:2] == list(chat.history)
    drive(core, conversation)
    drive(second, again)
    assert again.transcript.entries == conversation.transcript.entries
    assert second.difference(again) <= TOLERANCE


def test_a_grammar_goes_on_where_it_stood() -> None:
    output = StreamSpec(direction="output", wait_k="end", grammar=GRAMMAR)  # pyright: ignore[reportArgumentType]
    topology = Topology(decoding="views", streams={"user": StreamSpec(direction="input"), "output": output})
    model = stock()
    core = WitnessCore(model)
    conversation = core.open(topology, ledger=())
    core.do(conversation, "write", "user", "a date please")
    core.do(conversation, "end")
    lines: list[Any] = []
    while len(conversation.transcript.tokens("output")) < 3:
        core.step([conversation])
    lines = lines_of(conversation)
    second = WitnessCore(model)
    again = second.open(topology, ledger=lines)
    drive(core, conversation)
    drive(second, again)
    assert again.transcript.text("output") == conversation.transcript.text("output")
    assert len(again.transcript.text("output")) == 6


def test_a_full_pool_leaves_lines_that_can_be_followed() -> None:
    core = null_core(kv_tokens=64, page_size=4)
    backend = core.backend
    assert isinstance(backend, NullBackend)
    conversation = core.open(in_rows(), seed=3, ledger=())
    core.do(conversation, "write", "user", "hello there, this will not fit ")
    taken = backend.pool.new_list()
    taken.grow(backend.pool.num_free * 4)
    report = core.step([conversation])
    assert [type(error) for _, error in report.failures] == [PoolFullError]
    taken.release()
    drive(core, conversation)
    again = null_core().open(in_rows(), seed=3, ledger=lines_of(conversation))
    assert again.transcript.entries == conversation.transcript.entries


def test_nothing_is_written_while_nothing_happens() -> None:
    core = null_core()
    conversation = core.open(in_rows(), ledger=())
    core.do(conversation, "write", "user", "hello ")
    core.do(conversation, "end")
    drive(core, conversation)
    count = len(lines_of(conversation))
    for _ in range(50):
        core.step([conversation])
    assert len(lines_of(conversation)) == count
    check_books(core)


@pytest.mark.parametrize(
    "line",
    [
        ["do", "dance", [], 0.0],
        ["step", 0.0],
        ["told", [[7]]],
        ["what"],
        [],
        ["do", "write", ["nobody", "x"], 0.0],
    ],
)
def test_lines_that_cannot_have_happened_are_refused(line: list[Any]) -> None:
    core = null_core()
    with pytest.raises(TranscriptCorruptError, match="ledger"):
        core.open(in_rows(), ledger=[["do", "write", ["user", "hi "], 0.0], line])
    assert not core.conversations


def test_a_closed_session_stays_closed() -> None:
    core = null_core()
    conversation = core.open(in_rows(), ledger=())
    core.do(conversation, "close", "enough")
    again = lead_through(core.backend, in_rows(), lines_of(conversation), number=9, apply=core.backend.apply)
    assert again.is_closed
