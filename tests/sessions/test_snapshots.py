"""Messages and segments as a session takes them: its answers are those of a session that is told the same at once."""

from __future__ import annotations

from typing import Any

import pytest

from braid.errors import (
    EditAfterConsumed,
    EmptyInputError,
    FixedSegmentError,
    InputError,
    RepeatedSegmentError,
    UnknownSegmentError,
)
from braid.model.chat import Chat
from braid.sessions.session import Engine, Session
from braid.sessions.template import Segment, Template
from braid.streams.topology import Topology
from tests.engine.editing.test_editable import plain
from tests.engine.harness import stock

pytestmark = pytest.mark.anyio

TEMPLATE = Template(
    segments=(
        Segment(id="rules", fixed="Answer from this:\n"),
        Segment(id="document", room=16),
        Segment(id="question"),
    )
)
FILLED = "Answer from this:\nIt rains.       Does it?"
MESSAGES = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "So it goes."},
]


def engine() -> Engine:
    return Engine(stock(), kv_tokens=2048)


async def answer(topology: Topology, texts: dict[str, str], **settings: Any) -> str:
    """Of a session that is told all at once."""
    async with engine() as other, other.open(topology, **settings) as session:
        await session.tell(texts)
        await session.wait_for_turn()
        return session.text("output")


async def test_messages_may_change_until_they_are_committed() -> None:
    async with engine() as whole, whole.open(plain(1.0), seed=4, input="editable") as session:
        await session.snapshot(messages=MESSAGES[:1])
        await session.next_draft()
        await session.snapshot(messages=[*MESSAGES[:1], {"role": "assistant", "content": "No."}, MESSAGES[2]])
        await session.next_draft()
        reply = await session.commit(messages=MESSAGES)
        assert reply["output"] == await answer(
            plain(1.0), {"user": "So it goes."}, seed=4, chat=Chat.of(MESSAGES)
        )
        assert reply.reuse is not None
        assert reply.reuse.computed > reply.reuse.wasted
        later = await session.commit("And?")
        assert later["output"]


async def test_segments_are_filled_into_the_template_of_the_session() -> None:
    async with engine() as whole, whole.open(plain(1.0), seed=4, template=TEMPLATE.to_dict()) as session:
        await session.snapshot(segments={"document": "It rain"})
        await session.next_draft()
        with pytest.raises(UnknownSegmentError, match="did you mean 'document'"):
            await session.snapshot(segments={"documnet": "It"})
        with pytest.raises(FixedSegmentError):
            await session.snapshot(segments={"rules": "Do as you like:\n"})
        with pytest.raises(RepeatedSegmentError):
            await session.commit(segments=[{"id": "question", "text": "a"}, {"id": "question", "text": "b"}])
        await session.snapshot(segments=[{"id": "document", "text": "It rains."}])
        reply = await session.commit(segments={"question": "Does it?"})
        assert session.text("user") == FILLED
        assert reply["output"] == await answer(plain(1.0), {"user": FILLED}, seed=4)
        await session.snapshot(segments={"question": "And now?"})
        await session.rollback()
        with pytest.raises(EmptyInputError, match="segments"):
            await session.commit(segments={"question": ""})
        await session.commit(segments={"question": "Why?"})
        assert session.text("user").endswith(f"Answer from this:\n{' ' * 16}Why?"), (
            "of the turn before nothing is left"
        )


async def test_a_template_with_local_segments_is_opened_with_their_streams() -> None:
    local = [
        s.model_copy(update={"room": None, "positions": "local"}) if s.room else s for s in TEMPLATE.segments
    ]
    template = Template(segments=tuple(local))
    async with engine() as whole, whole.open(plain(1.0), seed=4, template=template) as session:
        await session.snapshot(segments={"document": "It rains.", "question": "Do"})
        await session.next_draft()
        reply = await session.commit(segments={"question": "Does it?"})
        assert [session.text(name) for name in session.topology.input_names] == [
            "Answer from this:\n",
            "It rains.",
            "Does it?",
        ]
    texts = {"rules": "Answer from this:\n", "document": "It rains.", "user": "Does it?"}
    assert reply["output"] == await answer(template.topology(plain(1.0)), texts, seed=4)


async def test_a_snapshot_says_one_thing() -> None:
    async with engine() as whole, whole.open(plain(), template=TEMPLATE) as session:
        for said in (
            {},
            {"segments": {"question": "a"}, "messages": MESSAGES},
            {"texts": "a", "segments": {"question": "a"}},
            {"texts": "a", "messages": MESSAGES},
            {"messages": []},
            {"segments": {}},
        ):
            with pytest.raises(InputError):
                await session.snapshot(**said)
        await session.snapshot(segments={"question": "a"})
        commit = await session.commit()
        assert commit["output"]


async def test_a_segment_that_is_released_does_not_change_any_more() -> None:
    async with engine() as whole, whole.open(plain(), template=TEMPLATE) as session:
        await session.snapshot(segments={"question": "a"})
        await session._push("commit")
        with pytest.raises(EditAfterConsumed):
            await session.snapshot(segments={"question": "b"})
        await session.wait_for_turn()
        assert session.text("user").endswith(" a")


async def test_a_fork_has_the_template_too() -> None:
    async with engine() as whole, whole.open(plain(), template=TEMPLATE) as session:
        twin: Session = await session.fork()
        async with twin:
            await twin.commit(segments={"question": "a"})
            assert twin.text("user").endswith(" a")
