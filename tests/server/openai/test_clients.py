"""Other people's clients, unchanged: LangChain's `ChatOpenAI` and Pydantic AI's `OpenAIChatModel`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from braid.engine.backend import Draw
from braid.model.codec import TokenizerCodec
from tests.fakes import byte_tokenizer
from tests.server.openai.talking import serving
from tests.server.serving import Serving

SAID = "It is clear in Paris."
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class City(BaseModel):
    """A city."""

    name: str
    people: int


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"clear in {city}"


@contextmanager
def langchain(said: str, **settings: Any) -> Iterator[ChatOpenAI]:
    with serving(said) as server:
        yield ChatOpenAI(
            model="null",
            base_url=f"{server.base_url}/v1",
            api_key=SecretStr("none"),
            max_retries=0,
            **settings,
        )


class _InTurn:
    """Says one thing in the first session, another in the second, and so on."""

    def __init__(self, *texts: str) -> None:
        codec = TokenizerCodec(byte_tokenizer())
        self._said = [codec.encode(text)[0] for text in texts]
        self._number = -1
        self._end_id = codec.end_ids[0]

    def __call__(self, draw: Draw) -> int:
        self._number += draw.index == 0
        tokens = self._said[self._number]
        return tokens[draw.index] if draw.index < len(tokens) else self._end_id


# ---- LangChain


@pytest.mark.parametrize("settings", [{}, {"use_responses_api": True}])
def test_langchain_invokes_and_streams(settings: dict[str, Any]) -> None:
    with langchain(SAID, **settings) as model:
        answer = model.invoke("How is the weather?")
        assert answer.text == SAID
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == len(SAID) + 1
        assert "".join(chunk.text for chunk in model.stream("How is the weather?")) == SAID


def test_langchain_is_async_too() -> None:
    async def talk(server: Serving) -> None:
        async with openai.DefaultAsyncHttpxClient() as client:
            model = ChatOpenAI(
                model="null",
                base_url=f"{server.base_url}/v1",
                api_key=SecretStr("none"),
                http_async_client=client,
            )
            assert (await model.ainvoke("How is the weather?")).text == SAID
            assert "".join([chunk.text async for chunk in model.astream("How is it?")]) == SAID

    with serving(SAID) as server:
        anyio.run(talk, server)


def test_langchain_binds_tools() -> None:
    with langchain(f"{CALL}\n{CALL}") as model:
        asked = HumanMessage("How is the weather?")
        answer = model.bind_tools([weather]).invoke([asked])
        assert isinstance(answer, AIMessage)
        assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
            ("weather", {"city": "Paris"})
        ] * 2
        results = [weather.invoke(call) for call in answer.tool_calls]
        assert all(isinstance(result, ToolMessage) for result in results)
        again = model.bind_tools([weather]).invoke([asked, answer, *results])
        assert again.tool_calls
        streamed: Any = None
        for chunk in model.bind_tools([weather]).stream([asked]):
            streamed = chunk if streamed is None else streamed + chunk
        assert [call["name"] for call in streamed.tool_calls] == ["weather", "weather"]


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
def test_langchain_has_structured_output(method: Any) -> None:
    data = '{"name": "Paris", "people": 7}'
    if method == "function_calling":
        data = f'<tool_call>\n{{"name": "City", "arguments": {data}}}\n</tool_call>'
    with langchain(data) as model:
        assert model.with_structured_output(City, method=method).invoke("A city, in JSON.") == City(
            name="Paris", people=7
        )


# ---- Pydantic AI


@asynccontextmanager
async def agent_model(server: Serving, kind: type[Any] = OpenAIChatModel) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        yield kind("null", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai_runs_and_streams(kind: type[Any]) -> None:
    async def talk(server: Serving) -> None:
        async with agent_model(server, kind) as model:
            agent = Agent(model, instructions="Be brief.")
            first = await agent.run("How is the weather?")
            assert first.output == SAID
            again = await agent.run("Sure?", message_history=first.all_messages())
            assert again.output == SAID
            async with agent.run_stream("How is the weather?") as stream:
                said = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
            assert "".join(said) == SAID
            assert len(said) > 1

    with serving(SAID) as server:
        anyio.run(talk, server)


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai_calls_tools(kind: type[Any]) -> None:
    asked: list[str] = []

    async def talk(server: Serving) -> None:
        async with agent_model(server, kind) as model:
            agent = Agent(model)

            @agent.tool_plain
            def weather(city: str) -> str:  # pyright: ignore[reportUnusedFunction]
                """The weather in a city."""
                asked.append(city)
                return f"clear in {city}"

            assert (await agent.run("How is the weather?")).output == SAID

    with serving(speak=_InTurn(CALL, SAID)) as server:
        anyio.run(talk, server)
    assert asked == ["Paris"]


def test_pydantic_ai_has_structured_output() -> None:
    called = json.dumps({"name": "final_result", "arguments": {"name": "Paris", "people": 7}})

    async def talk(server: Serving) -> None:
        async with agent_model(server) as model:
            agent = Agent(model, output_type=City)
            assert (await agent.run("A city.")).output == City(name="Paris", people=7)

    with serving(f"<tool_call>\n{called}\n</tool_call>") as server:
        anyio.run(talk, server)
