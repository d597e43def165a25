"""The Realtime protocol, for text, spoken by the official client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI, OpenAI
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from braid.engine.backend import Item
from tests.server.serving import Serving, null_engine, test_settings

pytestmark = pytest.mark.anyio

CALL = '<tool_call>{"name": "look", "arguments": {"what": "tea"}}</tool_call>'
TOOLS = [{"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}]
USER: dict[str, Any] = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "What is tea?"}],
}


class Tap:
    """Lets so many forwards through, then none until it is opened."""

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)
        self.is_open = threading.Event()

    def __call__(self, _item: Item) -> None:
        while not self.is_open.is_set() and not self.passes.acquire(timeout=0.01):
            pass


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def server() -> Iterator[Serving]:
    with Serving(null_engine(script={"output": ["A drink."]}), test_settings()) as serving:
        yield serving


def client(serving: Serving) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{serving.base_url}/v1", api_key="none", max_retries=0)


async def until_done(connection: Any) -> list[Any]:
    events: list[Any] = []
    with anyio.fail_after(20):
        async for event in connection:
            events.append(event)
            if event.type in ("response.done", "error"):
                return events
    raise AssertionError("the connection ended")


async def test_a_conversation(server: Serving) -> None:
    async with client(server).realtime.connect(model="null") as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        await connection.session.update(session={"type": "realtime", "instructions": "Be brief."})
        updated = await connection.recv()
        assert updated.session.instructions == "Be brief."
        await connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
        await connection.response.create()
        events = await until_done(connection)
        kinds = [event.type for event in events]
        assert kinds[:2] == ["conversation.item.added", "conversation.item.done"]
        assert kinds[2:6] == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
        ]
        assert kinds[-5:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == "A drink."
        response = events[-1].response
        assert response.status == "completed"
        assert response.output[0].content[0].text == "A drink."
        assert response.usage.output_tokens == len("A drink.") + 1
        assert len({event.event_id for event in events}) == len(events)


async def test_the_second_turn_knows_the_first(server: Serving) -> None:
    async with client(server).realtime.connect(model="null") as connection:
        sizes: list[int] = []
        for _ in range(2):
            await connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
            await connection.response.create()
            sizes.append((await until_done(connection))[-1].response.usage.input_tokens)
        assert sizes[1] > sizes[0] + len("What is tea?") + len("A drink.")


async def test_a_response_is_interrupted_and_what_it_said_stays() -> None:
    tap = Tap()
    with Serving(
        null_engine(script={"output": ["A very long story of tea."]}, fail=tap), test_settings()
    ) as serving:
        async with client(serving).realtime.connect(model="null") as connection:
            await connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
            await connection.response.create()
            for _ in range(8):
                tap.passes.release()
            said = ""
            with anyio.fail_after(20):
                async for event in connection:
                    if event.type == "response.output_text.delta":
                        said += event.delta
                        break
            await connection.response.cancel()
            tap.is_open.set()
            events = await until_done(connection)
            response = events[-1].response
            assert response.status == "cancelled"
            assert response.status_details.reason == "client_cancelled"
            kept = response.output[0]
            assert kept.status == "incomplete"
            assert said <= kept.content[0].text < "A very long story of tea."
            await connection.conversation.item.retrieve(item_id=kept.id)
            assert (await connection.recv()).item.content[0].text == kept.content[0].text
            await connection.response.cancel()  # nothing is under way
            assert (await connection.recv()).type == "error"
        assert serving.service.gate.caller({}, {}).num_busy == 0


async def test_calls_and_their_results() -> None:
    with Serving(null_engine(script={"output": ["Let me see. " + CALL]}), test_settings()) as serving:
        async with client(serving).realtime.connect(model="null") as connection:
            await connection.session.update(session={"type": "realtime", "tools": TOOLS})  # pyright: ignore[reportArgumentType]
            await connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
            await connection.response.create()
            events = await until_done(connection)
            done = next(e for e in events if e.type == "response.function_call_arguments.done")
            assert (done.name, json.loads(done.arguments)) == ("look", {"what": "tea"})
            message, call = events[-1].response.output
            assert message.content[0].text == "Let me see."
            assert (call.type, call.name, call.call_id) == ("function_call", "look", done.call_id)
            await connection.conversation.item.create(
                item={"type": "function_call_output", "call_id": done.call_id, "output": "a drink"}
            )
            await connection.response.create()
            assert (await until_done(connection))[-1].response.status == "completed"


async def test_a_response_beside_the_conversation(server: Serving) -> None:
    async with client(server).realtime.connect(model="null") as connection:
        await connection.response.create(
            response={"conversation": "none", "input": [USER], "metadata": {"topic": "tea"}}  # pyright: ignore[reportArgumentType]
        )
        events = await until_done(connection)
        assert events[-1].response.metadata == {"topic": "tea"}
        assert not [event for event in events if event.type.startswith("conversation.")]
        await connection.response.create()  # nobody has said anything
        assert "nothing to answer" in (await until_done(connection))[-1].error.message


async def test_a_limit_makes_it_incomplete(server: Serving) -> None:
    async with client(server).realtime.connect(model="null") as connection:
        await connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
        await connection.response.create(response={"max_output_tokens": 3})
        response = (await until_done(connection))[-1].response
        assert (response.status, response.status_details.reason) == ("incomplete", "max_output_tokens")


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # of the official client itself
def test_the_sync_client(server: Serving) -> None:
    official = OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    with official.realtime.connect(model="null") as connection:
        connection.conversation.item.create(item=USER)  # pyright: ignore[reportArgumentType]
        connection.response.create()
        text = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.done":
                break
    assert text == "A drink."


def tell(socket: ClientConnection, frame: str | bytes | dict[str, Any]) -> dict[str, Any]:
    socket.send(json.dumps(frame) if isinstance(frame, dict) else frame)
    return json.loads(socket.recv(timeout=10))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("{", "not JSON"),
        (b"\x00", "binary"),
        ("[]", "objects"),
        ({}, "nothing that this server knows"),
        ({"type": "input_audio_buffer.append", "audio": ""}, "speaks text"),
        ({"type": "session.update", "session": {"output_modalities": ["audio"]}}, "speaks text"),
        ({"type": "session.update", "session": {"tools": 3}}, "session.tools"),
        (
            {"type": "conversation.item.create", "item": {"type": "message", "role": "pope", "content": []}},
            "item.role",
        ),
        ({"type": "conversation.item.create", "item": {"type": "function_call"}}, "name and arguments"),
        (
            {
                "type": "conversation.item.create",
                "item": {"type": "message", "role": "user", "content": [{"type": "input_audio"}]},
            },
            "text alone",
        ),
        ({"type": "conversation.item.create", "item": USER, "previous_item_id": "none"}, "no item"),
        ({"type": "conversation.item.delete", "item_id": "none"}, "no item"),
        ({"type": "response.create", "response": {"max_output_tokens": "x"}}, "response"),
        ({"type": "response.create"}, "nothing to answer"),
        ({"type": "response.cancel"}, "nothing to cancel"),
    ],
)
def test_mistakes_are_told_and_end_nothing(server: Serving, frame: Any, says: str) -> None:
    with connect(f"{server.ws_url}/v1/realtime?model=null") as socket:
        assert json.loads(socket.recv())["type"] == "session.created"
        told = tell(socket, {**frame, "event_id": "mine"} if isinstance(frame, dict) else frame)
        assert told["type"] == "error"
        assert says in told["error"]["message"]
        assert told["error"]["event_id"] == ("mine" if isinstance(frame, dict) else None)
        assert tell(socket, {"type": "session.update", "session": {}})["type"] == "session.updated"


def test_items_are_put_where_they_belong(server: Serving) -> None:
    with connect(f"{server.ws_url}/v1/realtime") as socket:
        socket.recv()
        for number, after in enumerate([None, "root", "item_0"]):
            item = {**USER, "id": f"item_{number}"}
            told = tell(socket, {"type": "conversation.item.create", "item": item, "previous_item_id": after})
            assert told["previous_item_id"] == (None if number < 2 else "item_0")
            socket.recv()
        taken = tell(socket, {"type": "conversation.item.create", "item": {**USER, "id": "item_0"}})
        assert "taken" in taken["error"]["message"]
        assert tell(socket, {"type": "conversation.item.delete", "item_id": "item_0"})["item_id"] == "item_0"


def test_another_model_and_another_origin_are_refused(server: Serving) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{server.ws_url}/v1/realtime?model=gpt-9")
    assert caught.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{server.ws_url}/v1/realtime", origin="http://evil.example")  # pyright: ignore[reportArgumentType]
    assert caught.value.response.status_code == 403


def test_two_responses_at_once_are_refused() -> None:
    tap = Tap()
    with (
        Serving(null_engine(script={"output": ["x"]}, fail=tap), test_settings()) as serving,
        connect(f"{serving.ws_url}/v1/realtime") as socket,
    ):
        socket.recv()
        socket.send(json.dumps({"type": "conversation.item.create", "item": USER}))
        socket.send(json.dumps({"type": "response.create"}))
        socket.send(json.dumps({"type": "response.create"}))
        kinds = [json.loads(socket.recv(timeout=10))["type"] for _ in range(4)]
        assert kinds[-1] == "error" or "error" in kinds
        tap.is_open.set()
