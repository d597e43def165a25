"""The client against a real server: what it does by itself, and that nothing is lost or doubled by a bad line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid import client as braid_client
from braid.client import ClientTool, connect, connect_sync, protocol
from braid.errors import (
    ConnectionLostError,
    FixedSegmentError,
    InputError,
    NotFoundError,
    RegimeError,
    SessionError,
    UnauthenticatedError,
    UnknownPresetError,
    UnknownStreamError,
)
from braid.server.settings import ApiKey
from tests.server.live.talk import TOOLS
from tests.server.serving import Serving, null_engine, test_settings

pytestmark = pytest.mark.anyio
CALL = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
SCRIPT = {"output": ["Hello there.", "Once more.", "And more."], "tool_call": [CALL]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(null_engine(script=SCRIPT)) as serving:
        yield serving


def test_the_client_needs_no_torch() -> None:
    code = (
        "import sys, braid.client; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_it_exports_is_there() -> None:
    assert all(hasattr(braid_client, name) for name in braid_client.__all__)


async def test_a_conversation(server: Serving) -> None:
    async with connect(server.base_url) as client, client.open("plain", rows=True) as session:
        await session.write("user", "hi")
        await session.end()
        turn = await session.wait_for_turn()
        assert turn.tokens == {"user": 2, "output": 13}
        assert session.text("output") == "Hello there."
        await session.write("user", "go on")
        await session.end()
        await session.wait_for_turn()
        assert session.text("output") == "Hello there.Once more."
        await session.close()
        messages = [message async for message in session]
    assert isinstance(messages[-1], protocol.Closed)
    assert any(isinstance(message, protocol.RowMade) for message in messages)


async def test_editable_input(server: Serving) -> None:
    async with connect(server.ws_url) as client, client.open("plain", input="editable") as session:
        with pytest.raises(RegimeError, match="snapshot"):
            await session.write("user", "hi")
        await session.snapshot({"user": "no"})
        await session.rollback()
        await session.suggest("output", "Hello there.")
        await session.snapshot({"user": "yes"}, mode="repair")
        await session.commit()
        turn = await session.wait_for_turn()
        assert turn.tokens["user"] == 3
        assert turn.reuse is not None and turn.reuse.mode == "repair" and turn.reuse.accepted > 0
        await session.snapshot(
            messages=[{"role": "system", "content": "So."}, {"role": "user", "content": "yes"}]
        )
        await session.commit()
        assert (await session.wait_for_turn()).tokens["user"] == 3
        await session.commit({"user": "no"})
        assert (await session.wait_for_turn()).tokens["user"] == 2
        with pytest.raises(InputError, match="streams, segments or messages"):
            await session.snapshot()
        with pytest.raises(InputError, match="mode"):
            await session.commit({"user": "no"}, mode="guess")  # pyright: ignore[reportArgumentType]
    template = {"segments": [{"id": "rules", "fixed": "Say: "}, {"id": "ask"}]}
    opening = {"input": "editable", "template": template}
    async with connect(server.ws_url) as client, client.open("plain", **opening) as session:
        await session.snapshot(segments={"ask": "hi"})
        await session.snapshot(segments=[{"id": "ask", "text": "hi you"}])
        await session.commit()
        assert (await session.wait_for_turn()).tokens["user"] == len("Say: hi you")
        with pytest.raises(FixedSegmentError):
            await session.commit(segments={"rules": "Sing: "})
        await session.commit(segments={"ask": "yes"}, mode="repair")
        assert (await session.wait_for_turn()).tokens["user"] == len("Say: yes")
    async with connect(server.ws_url) as client:
        with pytest.raises(InputError, match="this server allows 256"):
            async with client.open("plain", input="editable", most_drafted=1000):
                pass


async def test_tools_of_the_client_answer_by_themselves(server: Serving) -> None:
    called = threading.Event()

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        called.set()
        return a + b

    async with (
        connect(server.base_url) as client,
        client.open(TOOLS, tools={"add": add}, rows=True) as session,
    ):
        await session.write("user", "2 and 3?")
        await session.end()
        await session.wait_for_turn()
        while True:
            text = "".join(
                cell.text
                for message in session._waiting
                if isinstance(message, protocol.RowMade)
                for label, cell in message.cells.items()
                if label == "tool_result"
            )
            if "\n" in text:
                break
            await asyncio.sleep(0.01)
    assert called.is_set()
    assert text == '{"id": "call_1", "name": "add", "result": 5}\n'


async def test_tools_say_what_is_wrong() -> None:
    async def fails(a: int) -> int:
        raise KeyError(a)

    assert await ClientTool(fails).run({"a": 1}) == (None, "KeyError: 1")
    assert (await ClientTool(fails).run({"a": "x"}))[1].startswith("bad arguments: a: ")  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(InputError, match="by name"):
        ClientTool(lambda *things: things)
    with pytest.raises(InputError, match="called"):
        ClientTool(fails).spec("no good")


async def test_what_is_refused_raises_the_error_of_its_class(server: Serving) -> None:
    async with connect(server.base_url) as client:
        with pytest.raises(UnknownPresetError):
            await client.open("nothing").__aenter__()
        with pytest.raises(NotFoundError):
            await client.resume("s_none").__aenter__()
        async with client.open("plain") as session:
            with pytest.raises(UnknownStreamError):
                await session.write("nobody", "x")
            await session.ping()
    with pytest.raises(InputError, match="address"):
        connect("ftp://nowhere")
    with pytest.raises(InputError, match="entered"):
        await connect(server.base_url).open("plain").__aenter__()


async def test_a_wrong_key_is_told_at_once() -> None:
    keys = (ApiKey(key="alice-key-1", name="alice"),)  # pyright: ignore[reportArgumentType]
    with Serving(null_engine(script=SCRIPT), test_settings(keys=keys)) as server:
        async with connect(server.base_url, api_key="wrong") as client:
            with pytest.raises(UnauthenticatedError):
                await client.open("plain").__aenter__()
        async with connect(server.base_url, api_key="alice-key-1") as client, client.open("plain") as session:
            await session.ping()


async def test_a_server_that_is_not_there_is_given_up_after_a_while() -> None:
    async with connect("http://127.0.0.1:9", give_up_after_s=0.2) as client:
        with pytest.raises(ConnectionLostError, match="cannot be reached"):
            await client.open("plain").__aenter__()


async def test_who_resumes_last_has_the_session(server: Serving) -> None:
    async with connect(server.base_url) as client, client.open("plain") as first:
        first.leave()
        async with client.resume(first.name) as second:
            with pytest.raises(SessionError, match="another connection"):
                async for _ in first:
                    pass
            await second.write("user", "hi")
            await second.end()
            await second.wait_for_turn()


async def test_a_session_that_was_left_is_there_for_whoever_comes_back(server: Serving) -> None:
    async with connect(server.base_url) as client:
        async with client.open("plain") as session:
            await session.write("user", "hi")
            await session.end()
            session.leave()
        async with client.resume(session.name) as again:
            await again.wait_for_turn()
            assert again.text("output") == "Hello there."


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(0, 12), min_size=1, max_size=12))
def test_cuts_at_any_moment_lose_and_double_nothing(server: Serving, cuts: list[int]) -> None:
    async def talk() -> tuple[list[Any], int]:
        async with connect(server.base_url) as client, client.open("plain") as session:
            told: list[Any] = []

            async def cut() -> None:
                for pause in cuts:
                    await asyncio.sleep(pause / 1000)
                    session.drop()

            cutting = asyncio.ensure_future(cut())
            for text in ("hi", "go on", "more"):
                for character in text:
                    await session.write("user", character)
                await session.end()
                turn = await session.wait_for_turn()
                told.append((turn.turn, turn.tokens))
            await cutting
            told.append(session.text("output"))
            return told, session.num_connections

    told, _ = asyncio.run(talk())
    assert told == [
        (0, {"user": 2, "output": 13}),
        (1, {"user": 5, "output": 11}),
        (2, {"user": 4, "output": 10}),
        "Hello there.Once more.And more.",
    ]


def test_the_same_without_await(server: Serving) -> None:
    with connect_sync(server.base_url) as client:
        with client.open("plain") as session:
            session.write("user", "hi")
            session.end()
            assert session.wait_for_turn().turn == 0
            assert session.text("output") == "Hello there."
            with pytest.raises(UnknownStreamError):
                session.write("nobody", "x")
            session.close()
            assert isinstance(list(session)[-1], protocol.Closed)
        with client.resume(session.name) as again:
            assert isinstance(list(again)[-1], protocol.Closed)
            assert again.text("output") == "Hello there."
    with pytest.raises(InputError, match="entered"):
        connect_sync(server.base_url).open("plain")
