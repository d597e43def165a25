"""The async session: verbs while it runs, events as they come, errors where they belong, nothing left behind."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from braid.errors import DirectionError, EmptyInputError, InputError, PoolTooSmallError, SessionClosedError
from braid.model.model import Model
from braid.sessions.generate import generate
from braid.sessions.session import Engine
from braid.streams.events import ClosedEvent, DeltaEvent, ErrorEvent, Event, RowEvent, TurnEvent
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import stock, trained

pytestmark = pytest.mark.anyio

LETTER_A = SamplingSpec(logit_bias={97: 100.0})


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def topology(**changes: Any) -> Topology:
    return Topology(
        streams={
            "user": StreamSpec(direction="input", **changes),
            "output": StreamSpec(direction="output", sampling=LETTER_A, max_tokens=6),
        }
    )


def model() -> Model:
    return trained(topology())


async def test_write_end_and_iterate() -> None:
    engine = Engine(model(), kv_tokens=400)
    seen: list[Event] = []
    async with engine.open(topology()) as session:
        await session.write("user", "hello there")
        await session.end()
        async for event in session:
            seen.append(event)
            if isinstance(event, TurnEvent):
                break
        assert session.turn_is_over
        assert session.text("user") == "hello there"
    assert "".join(e.text for e in seen if isinstance(e, DeltaEvent)) == "aaaaaa"
    rows = [e.t for e in seen if isinstance(e, RowEvent)]
    assert rows == sorted(set(rows))
    assert session.is_closed
    assert engine.local.cache.pool.num_used == 0


async def test_text_that_arrives_in_pieces_while_it_speaks_is_the_same_text() -> None:
    engine = Engine(stock(), kv_tokens=2000)
    views = Topology(
        decoding="views",
        streams={
            "user": StreamSpec(direction="input"),
            "thought": StreamSpec(direction="output", visibility="internal", wait_k=1, max_tokens=30),
            "output": StreamSpec(direction="output", wait_k="end", max_tokens=5),
        },
    )
    text = "naïve 😀 text\n\twith tabs and 中文 "
    async with engine.open(views) as session:
        for letter in text:
            await session.write("user", letter)
            await anyio.sleep(0.001)
        await session.end("user")
        await session.wait_for_turn()
        assert session.text("user") == text
        result = session.result()
    assert result["output"].tokens and result.finished


async def test_errors_of_verbs_are_raised_to_the_caller_and_the_session_goes_on() -> None:
    async with Engine(model(), kv_tokens=400).open(topology()) as session:
        with pytest.raises(EmptyInputError):
            await session.end()
        with pytest.raises(DirectionError):
            await session.write("output", "x")
        await session.write("user", "hello ")
        await session.interrupt()
        await session.cancel("output")
        await session.end()
        await session.wait_for_turn()
        assert session.turn_is_over


async def test_a_pool_that_is_too_small_ends_the_session_with_its_own_error() -> None:
    engine = Engine(model(), kv_tokens=8)
    async with engine.open(topology(feed="burst")) as session:
        await session.write("user", "x" * 60)
        await session.end()
        seen = [event async for event in session]
    errors = [e for e in seen if isinstance(e, ErrorEvent)]
    assert [e.code for e in errors] == [PoolTooSmallError.code]
    assert isinstance(session.error, PoolTooSmallError)
    assert isinstance(seen[-1], ClosedEvent)
    assert engine.local.cache.pool.num_used == 0


async def test_held_text_is_fed_when_its_deadline_has_passed() -> None:
    sentencepiece_like = topology(max_latency_ms=30.0)
    async with Engine(model(), kv_tokens=400).open(sentencepiece_like) as session:
        await session.write("user", "abc")
        with anyio.fail_after(20):
            async for event in session:
                if isinstance(event, RowEvent) and session.text("user") == "abc":
                    break
        assert any(e.kind == "flush" for e in session.transcript.events)


async def test_a_stream_that_is_closed_before_its_deadline_harms_nothing() -> None:
    two = topology(max_latency_ms=30.0)
    async with Engine(model(), kv_tokens=400).open(two) as session:
        await session.write("user", "hel")
        await session.close_stream("user")
        await anyio.sleep(0.1)
        assert not session.is_closed


async def test_a_session_must_be_entered_and_closing_twice_is_harmless() -> None:
    session = Engine(model(), kv_tokens=400).open(topology())
    with pytest.raises(SessionClosedError, match="async with"):
        await session.write("user", "x")
    async with session:
        await session.close()
        await session.close()
        with pytest.raises(SessionClosedError):
            await session.write("user", "x")


async def test_cancelling_the_task_closes_the_session() -> None:
    engine = Engine(model(), kv_tokens=400)
    with anyio.move_on_after(0.2):
        async with engine.open(topology()) as session:
            await session.write("user", "hello ")
            await anyio.sleep_forever()
    assert session.is_closed
    assert engine.local.cache.pool.num_used == 0


async def test_two_sessions_share_an_engine_one_forward_at_a_time() -> None:
    engine = Engine(model(), kv_tokens=800)
    texts: dict[str, str] = {}

    async def talk(name: str) -> None:
        async with engine.open(topology()) as session:
            await session.write("user", name)
            await session.end()
            await session.wait_for_turn()
            texts[name] = session.text("user") + session.text("output")

    async with anyio.create_task_group() as group:
        for name in ("first", "second one"):
            group.start_soon(talk, name)
    assert texts == {"first": "firstaaaaaa", "second one": "second oneaaaaaa"}


def test_generate_is_one_call() -> None:
    seen: list[Event] = []
    result = generate(model(), topology(), "hello", on_event=seen.append, kv_tokens=400)
    assert result["output"].text == "aaaaaa" and result["user"].text == "hello"
    assert result.finished and result.metrics.rows == len(result.transcript.rows)
    assert result.kv_bytes == result.kv_tokens * 3 * 2 * 2 * 16 * 8
    assert any(isinstance(event, TurnEvent) for event in seen)
    late: list[Event] = []
    cut = generate(model(), topology(), "hello", max_rows=9, kv_tokens=400, on_event=late.append)
    assert isinstance(late[-1], ClosedEvent)
    assert "".join(e.text for e in late if isinstance(e, DeltaEvent)) == cut["output"].text
    cut = generate(model(), topology(), "hello", max_rows=2, kv_tokens=400)
    assert not cut.finished and len(cut.transcript.rows) == 2


def test_generate_takes_sampling_and_forced_beginnings_by_stream() -> None:
    result = generate(model(), topology(), {"user": "hello"}, forced={"output": "xyz"}, kv_tokens=400)
    assert result["output"].text == "xyzaaa"
    greedy = generate(
        model(), topology(), "hello", sampling={"output": SamplingSpec(logit_bias={98: 200.0})}, kv_tokens=400
    )
    assert greedy["output"].text == "bbbbbb"
    with pytest.raises(InputError, match="outputs are output"):
        generate(model(), topology(), "hello", forced={"user": "x"})
    with pytest.raises(EmptyInputError, match="give text to user"):
        generate(model(), topology(), "")
