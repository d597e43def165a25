"""`/v1/responses` by the official client, over scripted speech."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from braid.server.openai.response_shapes import ResponseBody
from braid.server.openai.response_store import MemoryResponseStore, StoredResponse
from tests.server.openai.talking import client_of, serving, talking
from tests.server.serving import Serving

SAID = "Clear, and 21 °C."
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALLS = (
    "I will look.\n"
    '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>\n'
    '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
)


def post(server: Serving, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}/v1/responses", json={"model": "null", "input": "Hi.", **body})


def test_a_response_at_once() -> None:
    with talking(SAID) as client:
        response = client.responses.create(
            model="null", input="How is the weather?", instructions="Be brief."
        )
    assert response.output_text == SAID
    assert response.status == "completed"
    assert response.usage is not None
    prompt = "<system\nBe brief.>\n<user\nHow is the weather?>\n<assistant\n"
    assert response.usage.input_tokens == len(prompt)
    assert response.usage.output_tokens == len(SAID.encode()) + 1


def test_a_response_as_it_comes() -> None:
    with talking(SAID) as client:
        events = list(client.responses.create(model="null", input="Hi.", stream=True))
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
        assert set(kinds[4:-4]) == {"response.output_text.delta"}
        assert kinds[-4:] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == SAID
        with client.responses.stream(model="null", input="Hi.") as stream:
            assert stream.get_final_response().output_text == SAID


def test_the_async_client() -> None:
    async def talk(server: Serving) -> None:
        async with AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
            assert (await client.responses.create(model="null", input="Hi.")).output_text == SAID
            said = ""
            async for event in await client.responses.create(model="null", input="Hi.", stream=True):
                said += event.delta if event.type == "response.output_text.delta" else ""
            assert said == SAID

    with serving(SAID) as server:
        anyio.run(talk, server)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_function_calls(is_streamed: bool) -> None:
    with talking(CALLS) as client:
        asked: Any = {"model": "null", "input": "Weather?", "tools": [WEATHER]}
        if is_streamed:
            with client.responses.stream(**asked) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**asked)
    assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
    assert response.output_text == "I will look."
    calls = [(item.name, json.loads(item.arguments)) for item in response.output[1:]]
    assert calls == [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]
    assert len({item.call_id for item in response.output[1:]}) == 2


def test_items_are_a_conversation() -> None:
    with serving(SAID) as server:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "clear"},
        ]
        answer = post(server, input=items)
        assert answer.status_code == 200, answer.text
        call = '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'
        prompt = f"<user\nWeather?>\n<assistant\n{call}>\n<tool\nclear>\n<assistant\n"
        assert answer.json()["usage"]["input_tokens"] == len(prompt)


def test_a_conversation_goes_on_by_its_id() -> None:
    with talking(SAID) as client:
        first = client.responses.create(model="null", input="Hi.", instructions="Be brief.")
        second = client.responses.create(model="null", input="Why?", previous_response_id=first.id)
        assert second.usage is not None
        prompt = f"<user\nHi.>\n<assistant\n{SAID}>\n<user\nWhy?>\n<assistant\n"
        assert second.usage.input_tokens == len(prompt.encode())
        assert client.responses.retrieve(first.id).output_text == SAID
        client.responses.delete(first.id)
        for missing in (first.id, "resp_none"):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(missing)
            with pytest.raises(openai.NotFoundError):
                client.responses.create(model="null", input="Why?", previous_response_id=missing)
        forgotten = client.responses.create(model="null", input="Hi.", store=False)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(forgotten.id)


def test_one_caller_does_not_see_anothers_responses() -> None:
    keys = [{"key": "secret-key-1", "name": "one"}, {"key": "secret-key-2", "name": "two"}]
    with (
        serving(SAID, settings={"keys": keys}) as server,
        client_of(server, "secret-key-1") as one,
        client_of(server, "secret-key-2") as two,
    ):
        made = one.responses.create(model="null", input="Hi.")
        assert one.responses.retrieve(made.id).id == made.id
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(made.id)


def test_a_store_forgets_what_was_used_least_recently() -> None:
    store = MemoryResponseStore(most=2)
    for name in "abc":
        store.put("one", StoredResponse({"id": name}, ()))
        store.get("one", "a")
    assert [store.get("one", name) is not None for name in "abc"] == [True, False, True]
    assert store.get("two", "a") is None
    assert (store.remove("one", "a"), store.remove("one", "a")) == (True, False)


def test_a_response_may_be_cut() -> None:
    with talking(SAID) as client:
        response = client.responses.create(model="null", input="Hi.", max_output_tokens=5)
        assert (response.status, response.output_text) == ("incomplete", SAID[:5])
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        kinds = [
            e.type
            for e in client.responses.create(model="null", input="Hi.", max_output_tokens=5, stream=True)
        ]
        assert kinds[-1] == "response.incomplete"


def test_thoughts_are_items_where_they_are_asked_for() -> None:
    script = {"thought": ["The secret is 42."], "output": ["I know."]}
    with serving(script=script) as server:
        hidden = post(server, braid={"topology": "think-aloud"}, stream=True)
        assert "secret" not in hidden.text
        asked: Any = {"model": "null", "input": "x" * 20}
        asked["extra_body"] = {"braid": {"topology": "think-aloud", "show_internal": True}}
        with client_of(server) as client, client.responses.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        assert "response.reasoning_text.delta" in kinds
        assert sorted(item.type for item in final.output) == ["message", "reasoning"]
        assert final.output_text == "I know."


class City(BaseModel):
    name: str


def test_a_schema_is_parsed_by_the_client() -> None:
    with talking('{"name": "Paris"}') as client:
        parsed = client.responses.parse(model="null", input="A city.", text_format=City)
    assert parsed.output_parsed == City(name="Paris")


def test_logprobs() -> None:
    with talking(SAID) as client:
        response = client.responses.create(
            model="null", input="Hi.", include=["message.output_text.logprobs"]
        )
    content: Any = response.output[0]
    assert "".join(entry.token for entry in content.content[0].logprobs).startswith("Clear")


def test_the_answer_is_what_the_document_says() -> None:
    with serving(SAID) as server:
        ResponseBody.model_validate(post(server, tools=[WEATHER]).json())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
        ({"input": [{"content": "x"}]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_request_is_told_which_field(body: dict[str, Any], param: str) -> None:
    with serving(SAID) as server:
        answer = post(server, **body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param), answer.text


def test_what_fails_in_the_middle_is_an_event() -> None:
    left = 6

    def fail(_item: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("a secret detail")

    with talking(SAID, fail=fail) as client:
        events = list(client.responses.create(model="null", input="Hi.", stream=True))
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
