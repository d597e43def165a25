"""`/v1/chat/completions` by the official client, over scripted speech."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from braid.engine.backend import Draw
from braid.engine.metrics import EngineMetrics
from braid.server.openai.replies import ChatChunk, ChatCompletion
from tests.server.openai.talking import ASKED, client_of, serving, talking
from tests.server.serving import Serving, null_engine, null_model, test_settings

SAID = "Clear, and 21 °C 🌤️. Take a coat."
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TWO_CALLS = (
    "Let me look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving(SAID) as made:
        yield made


@pytest.fixture
def client(server: Serving) -> Iterator[OpenAI]:
    with client_of(server) as made:
        yield made


def post(server: Serving, **body: Any) -> httpx.Response:
    asked = {"model": "null", "messages": ASKED, **body}
    return httpx.post(f"{server.base_url}/v1/chat/completions", json=asked)


# ---- text


def test_a_prediction_saves_forwards_and_changes_no_answer(client: OpenAI, server: Serving) -> None:
    length = len(SAID.encode()) + 1
    plain = client.chat.completions.create(model="null", messages=ASKED)
    assert plain.usage is not None and plain.usage.completion_tokens_details is not None
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0
    right = client.chat.completions.create(
        model="null", messages=ASKED, prediction={"type": "content", "content": SAID}
    )
    assert right.choices[0].message.content == SAID
    assert right.usage is not None and right.usage.completion_tokens_details is not None
    assert right.usage.completion_tokens == length
    assert right.usage.completion_tokens_details.accepted_prediction_tokens > length / 2
    assert right.usage.completion_tokens_details.rejected_prediction_tokens == 0
    parts = [{"type": "text", "text": SAID[:9]}, {"type": "text", "text": "nothing of the sort, of course"}]
    for streams in (False, True):
        answer = post(
            server, prediction={"type": "content", "content": parts}, stream=streams, **USAGE[streams]
        )
        last = answer.json() if not streams else json.loads(answer.text.split("data: ")[-2])
        details = last["usage"]["completion_tokens_details"]
        assert last["usage"]["completion_tokens"] == length
        assert 0 < details["accepted_prediction_tokens"] < length / 2
        assert details["rejected_prediction_tokens"] > 0


def test_answers_to_the_same_key_are_guesses_where_server_and_request_allow_it(server: Serving) -> None:
    wanted = {"braid": {"guesses": "tenant"}}
    answer = post(server, **wanted)
    assert answer.status_code == 403
    assert answer.json()["error"]["param"] == "braid.guesses"
    settings = test_settings(
        tenant_guesses=True, keys=[{"key": f"{name}-key-1", "name": name} for name in ("alice", "bobby")]
    )
    metrics = EngineMetrics()
    with Serving(null_engine(script={"output": [SAID]}, metrics=metrics), settings) as sharing:

        def accepted(key: str, **body: Any) -> float:
            before = metrics.snapshot()[ACCEPTED]
            answer = httpx.post(
                f"{sharing.base_url}/v1/chat/completions",
                json={"model": "null", "messages": ASKED, **body},
                headers={"Authorization": f"Bearer {key}"},
            ).json()
            assert answer["choices"][0]["message"]["content"] == SAID
            details = answer["usage"]["completion_tokens_details"]
            assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0, (
                "it had none"
            )
            return metrics.snapshot()[ACCEPTED] - before

        assert accepted("alice-key-1") == accepted("alice-key-1", **wanted) == 0
        assert accepted("alice-key-1", **wanted) > len(SAID) / 2
        assert accepted("alice-key-1") == 0
        assert accepted("bobby-key-1", **wanted) == 0


ACCEPTED = 'braid_draft_tokens_total{fate="accepted"}'
USAGE: dict[bool, dict[str, Any]] = {False: {}, True: {"stream_options": {"include_usage": True}}}


@pytest.mark.parametrize(
    "prediction",
    [
        "x",
        {"type": "content"},
        {"type": "tokens", "content": "x"},
        {"type": "content", "content": "x", "more": 1},
        {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_a_prediction_that_is_none_is_refused(server: Serving, prediction: Any) -> None:
    answer = post(server, prediction=prediction)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prediction")


def test_an_answer_at_once(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="null", messages=ASKED)
    choice = answer.choices[0]
    assert choice.message.content == SAID
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    # 20 tokens of ChatML around the input: 6 before it, 14 after it; one end token after the answer
    assert answer.usage.prompt_tokens == 6 + len(ASKED[0]["content"].encode()) + 13
    assert answer.usage.completion_tokens == len(SAID.encode()) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_an_answer_as_it_comes(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="null",
            messages=ASKED,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == SAID
    assert len(chunks) > 10
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(SAID.encode()) + 1
    assert len({chunk.id for chunk in chunks}) == 1


def test_what_is_sent_is_what_the_document_says(server: Serving) -> None:
    assert ChatCompletion.model_validate(post(server, logprobs=True, top_logprobs=3).json()).choices
    streamed = post(server, stream=True, logprobs=True, stream_options={"include_usage": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *events, last, nothing = streamed.text.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    for event in events:
        ChatChunk.model_validate_json(event.removeprefix("data: "))


def test_the_async_client(server: Serving) -> None:
    anyio.run(_talk, server)


async def _talk(server: Serving) -> None:
    async with AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(model="null", messages=ASKED)
        assert answer.choices[0].message.content == SAID
        said = ""
        async with client.chat.completions.stream(model="null", messages=ASKED) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    said += event.delta
            final = await stream.get_final_completion()
        assert said == final.choices[0].message.content == SAID


@pytest.mark.parametrize("stop", ["°", ["coat", " Take"]])
def test_stop_strings_end_an_answer(client: OpenAI, stop: str | list[str]) -> None:
    asked: dict[str, Any] = {"model": "null", "messages": ASKED, "stop": stop, "logprobs": True}
    expected = "Clear, and 21 " if stop == "°" else "Clear, and 21 °C 🌤️."
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert b"".join(bytes(entry.bytes or []) for entry in logprobs.content or []) == expected.encode()
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    entries = [e for chunk in chunks if (odds := chunk.choices[0].logprobs) for e in odds.content or []]
    assert b"".join(bytes(entry.bytes or []) for entry in entries) == expected.encode()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_may_be_cut(client: OpenAI, name: str) -> None:
    limit: dict[str, Any] = {name: 5}
    answer = client.chat.completions.create(model="null", messages=ASKED, **limit)
    assert answer.choices[0].message.content == SAID[:5]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_logprobs_are_of_the_answers_tokens(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="null", messages=ASKED, logprobs=True)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    entries = logprobs.content or []
    assert [byte for entry in entries for byte in entry.bytes or []] == list(SAID.encode())  # no end token


def test_several_answers() -> None:
    def speak(draw: Draw) -> int:
        return 97 + draw.seed % 3 if draw.index < 4 else 257

    with serving(speak=speak) as server, client_of(server) as client:
        asked: dict[str, Any] = {"model": "null", "messages": ASKED, "seed": 97, "n": 3}
        answer = client.chat.completions.create(**asked)
        texts = [choice.message.content for choice in answer.choices]
        assert texts == [chr(97 + (97 + number) % 3) * 4 for number in range(3)]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 15
        streamed = ["", "", ""]
        for chunk in client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        assert streamed == texts


def test_histories_reach_the_template(server: Serving) -> None:
    messages = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
        },
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Weather?"},
    ]
    prompt = "<system\nBe brief.>\n<user\nHi.>\n<assistant\nHello!>\n<user\nWeather?>\n<assistant\n"
    assert post(server, messages=messages).json()["usage"]["prompt_tokens"] == len(prompt)


# ---- tools


@pytest.mark.parametrize("is_streamed", [False, True])
def test_parallel_calls(is_streamed: bool) -> None:
    with talking(TWO_CALLS) as client:
        asked: dict[str, Any] = {"model": "null", "messages": ASKED, "tools": [WEATHER, CLOCK]}
        if is_streamed:
            with client.chat.completions.stream(**asked) as stream:
                choice: Any = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("weather", {"city": "Paris"}), ("clock", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2


def test_one_call_where_one_is_allowed() -> None:
    with talking(TWO_CALLS) as client:
        answer = client.chat.completions.create(
            model="null",
            messages=ASKED,
            tools=[WEATHER, CLOCK],
            parallel_tool_calls=False,
        )
    assert [call.function.name for call in answer.choices[0].message.tool_calls or []] == ["weather"]


def test_no_call_where_none_is_allowed() -> None:
    with talking(TWO_CALLS) as client:
        answer = client.chat.completions.create(
            model="null",
            messages=ASKED,
            tools=[WEATHER, CLOCK],
            tool_choice="none",
        )
    assert answer.choices[0].message.content == TWO_CALLS
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("required", TWO_CALLS.removeprefix("Let me look.\n")),
        (
            {"type": "function", "function": {"name": "clock"}},
            '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>',
        ),
    ],
)
def test_calls_that_must_be_made_are_held_to(choice: Any, said: str) -> None:
    asked: dict[str, Any] = {
        "model": "null",
        "messages": ASKED,
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice,
    }
    with talking(said) as client:
        answer = client.chat.completions.create(**asked)
        assert answer.choices[0].finish_reason == "tool_calls"
        assert len(answer.choices[0].message.tool_calls or []) == said.count("<tool_call>")
    with talking("I would rather talk.") as client, pytest.raises(openai.APIStatusError):
        client.chat.completions.create(**asked)  # the script is not held; the engine notices


def test_a_tools_result_is_answered() -> None:
    with serving("It is clear.") as server:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
        }
        messages = [
            *ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
        ]
        answer = post(server, messages=messages, tools=[WEATHER])
        assert answer.status_code == 200, answer.text


# ---- formats


class City(BaseModel):
    name: str
    people: int


def test_a_schema_is_parsed_by_the_client() -> None:
    with talking('{"name": "Paris", "people": 2100000}') as client:
        parsed = client.chat.completions.parse(model="null", messages=ASKED, response_format=City)
        assert parsed.choices[0].message.parsed == City(name="Paris", people=2_100_000)
        answer = client.chat.completions.create(
            model="null",
            messages=ASKED,
            response_format={"type": "json_object"},
        )
        assert json.loads(answer.choices[0].message.content or "")["name"] == "Paris"


# ---- streams


def test_inner_streams_are_hidden_unless_they_are_asked_for() -> None:
    script = {"thought": ["The secret is 42."], "output": ["I know."]}
    with serving(script=script) as server:
        braid: dict[str, Any] = {"topology": "think-aloud"}
        hidden = post(server, braid=braid, logprobs=True, top_logprobs=5)
        assert hidden.json()["choices"][0]["message"]["content"] == "I know."
        assert "secret" not in hidden.text
        assert hidden.json()["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
        streamed = post(server, braid=braid, logprobs=True, stream=True)
        assert "reasoning_content" not in streamed.text
        shown = post(server, braid={**braid, "show_internal": True}).json()["choices"][0]["message"]
        assert shown["content"] == "I know."
        assert script["thought"][0].startswith(shown["reasoning_content"])
        assert shown["reasoning_content"]


def test_inner_streams_are_not_shown_to_a_key_that_may_not() -> None:
    keys = [{"key": "secret-key-1", "name": "one"}, {"key": "secret-key-2", "name": "two", "internal": True}]
    with serving("Hi.", settings={"keys": keys}) as server:
        asked: dict[str, Any] = {
            "model": "null",
            "messages": ASKED,
            "extra_body": {"braid": {"show_internal": True}},
        }
        with client_of(server, "secret-key-1") as client, pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(**asked)
        with client_of(server, "secret-key-2") as client:
            assert client.chat.completions.create(**asked).choices[0].message.content == "Hi."
        with client_of(server, "secret-key-3") as client, pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**asked)


def test_each_role_goes_to_its_own_stream() -> None:
    script = {"tool_call": ['{"name": "weather", "arguments": {}}'], "output": ["Clear."], "thought": ["Hm."]}
    model = null_model(silence_token_id=258)
    with Serving(null_engine(script=script, model=model), model=model) as server:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
        ]
        braid = {"topology": "agent", "documents": ["Paris is a city."]}
        answer = post(server, messages=messages, tools=[WEATHER], braid=braid)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert message["content"] == "Clear."
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
        assert "Hm." not in answer.text


# ---- errors


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": ""}, "stop"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"temprature": 1}, "temprature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"audio": {"voice": "a"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "clok"}}},
            "tool_choice",
        ),
        ({"response_format": {"type": "xml"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "car"}},
                }
            },
            "response_format",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"pattern": "(?<=a)b", "type": "string"}},
                }
            },
            "response_format",
        ),
        ({"braid": {"topology": "nonesuch"}}, "braid.topology"),
        ({"braid": {"topology": {"streams": {}}}}, "braid.topology"),
        ({"braid": {"copies": {"thought": 2}}}, "braid"),
        ({"braid": {"colour": "red"}}, "braid.colour"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ],
)
def test_a_bad_request_is_told_which_field(server: Serving, body: dict[str, Any], param: str) -> None:
    asked = json.dumps({"model": "null", "messages": ASKED, **body})
    answer = httpx.post(
        f"{server.base_url}/v1/chat/completions", content=asked, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] is not None
    assert error["param"].startswith(param), error
    assert len(error["message"]) > len(param) + 5


def test_harmless_fields_are_ignored(server: Serving) -> None:
    harmless = {
        "user": "ada",
        "store": True,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "seed": 2**64 - 1,
    }
    assert post(server, **harmless, frequency_penalty=0, reasoning_effort="low").status_code == 200


def test_a_model_that_is_not_served(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-9' here"):
        client.chat.completions.create(model="gpt-9", messages=ASKED)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")
    assert [model.id for model in client.models.list()] == ["null"]
    assert client.models.retrieve("null").id == "null"


class _Breaks:
    """Fails once a session has been asked so often."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, _item: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("a secret detail")


def test_what_fails_in_the_middle_is_an_event() -> None:
    with serving("Hello there.", fail=_Breaks(6)) as server:
        answer = post(server, stream=True)
        assert answer.status_code == 200
        assert '"error"' in answer.text
        assert "[DONE]" not in answer.text
        with client_of(server) as client, pytest.raises(openai.APIError):
            list(client.chat.completions.create(model="null", messages=ASKED, stream=True))


def test_what_fails_before_the_first_event_has_a_status() -> None:
    with serving("Hello there.", fail=_Breaks(0)) as server:
        assert post(server, stream=True).status_code >= 400
        assert post(server).status_code >= 400


# ---- clients that go, and clients that come too many


class _Slow:
    """Takes its time for every step."""

    def __init__(self) -> None:
        self.is_slow = threading.Event()
        self.is_slow.set()

    def __call__(self, _item: Any) -> None:
        if self.is_slow.is_set():
            time.sleep(0.02)


def num_sessions(server: Serving) -> int:
    backend: Any = server.engine.backend
    return len(backend._seats)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_client_that_goes_takes_its_session_with_it(is_streamed: bool) -> None:
    slow = _Slow()
    with serving("a" * 3000, fail=slow) as server:
        body = {"model": "null", "messages": ASKED, "stream": is_streamed, "max_tokens": 3000}
        url = f"{server.base_url}/v1/chat/completions"
        if is_streamed:
            with httpx.stream("POST", url, json=body) as answer:
                assert answer.status_code == 200
                assert num_sessions(server) == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(url, json=body, timeout=0.5)
        deadline = time.monotonic() + 5
        while num_sessions(server) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert num_sessions(server) == 0
        slow.is_slow.clear()
        assert post(server, max_tokens=3).status_code == 200


def test_a_key_has_its_limit() -> None:
    slow = _Slow()
    keys = [{"key": "secret-key-1", "name": "one", "max_sessions": 2}]
    with serving("a" * 40, fail=slow, settings={"keys": keys}) as server:
        headers = {"authorization": "Bearer secret-key-1"}
        url = f"{server.base_url}/v1/chat/completions"

        async def ask() -> httpx.Response:
            async with httpx.AsyncClient() as client:
                return await client.post(url, json={"model": "null", "messages": ASKED}, headers=headers)

        async def ask_all() -> list[httpx.Response]:
            answers: list[httpx.Response] = []

            async def one() -> None:
                answers.append(await ask())

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(one)
            return answers

        answers = anyio.run(ask_all)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429, 429]
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 429)
