"""The default model through `/v1/chat/completions`: greedy answers equal the chat template and `generate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, OpenAI

from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.sessions.session import Engine
from tests.server.serving import Serving, test_settings
from tests.sessions.test_default_model import TIE, attending_plainly, generated

NUM_TOKENS = 16

HERMES = (
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "Tools:\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% elif not (m.role == 'system' and loop.first) %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that knows of tools, in the manner of Hermes and Qwen."""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    "three turns": [
        {"role": "user", "content": "My name is Ada and I like tea."},
        {"role": "assistant", "content": "Hello Ada! Tea is a fine choice."},
        {"role": "user", "content": "What do I like?"},
        {"role": "assistant", "content": "You like tea."},
        {"role": "user", "content": "\n  And what is my name?\n"},
    ],
    "line breaks at both ends": [{"role": "user", "content": "\n\nWhat is tea?\n\n"}],
    "a tool's result": [
        {"role": "user", "content": "How is the weather in Paris?"},
        {"role": "assistant", "content": 'I will look.\n{"name": "weather"}'},
        {"role": "tool", "content": '{"sky": "clear", "celsius": 21}'},
    ],
    "after a tool's result": [
        {"role": "system", "content": "You are a weather service."},
        {"role": "user", "content": "How is the weather in Paris?"},
        {"role": "assistant", "content": "I will look."},
        {"role": "tool", "content": "clear, 21 °C"},
        {"role": "assistant", "content": "It is clear, at 21 °C."},
        {"role": "user", "content": "Thank you. And is that warm?"},
    ],
}
WITH_CALLS: dict[str, list[dict[str, Any]]] = {
    "offered": [{"role": "user", "content": "How is the weather in Paris?"}],
    "a call and its result": [
        {"role": "system", "content": "You are a weather service."},
        {"role": "user", "content": "How is the weather in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": "clear", "celsius": 21}'},
    ],
    "two calls, and on": [
        {"role": "user", "content": "How is the weather in Paris and in Rome?"},
        {"role": "assistant", "content": "One moment.", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "clear"},
        {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
        {"role": "assistant", "content": "Clear in Paris, rain in Rome."},
        {"role": "user", "content": "Which is better for a walk?"},
    ],
}


def assert_answered(
    client: OpenAI, model: Model, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> None:
    tokens, gaps, length = generated(model, _with_read_arguments(messages), tools, NUM_TOKENS)
    answer = client.chat.completions.create(
        model="smollm2-135m",
        messages=messages,
        temperature=0,
        max_tokens=NUM_TOKENS,
        logprobs=True,
        top_logprobs=2,
        tools=tools or [],
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == length
    choice = answer.choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    found = [bytes(entry.bytes or []) for entry in choice.logprobs.content]
    end_ids = model.codec.end_ids
    wanted = [spelled(model.codec, token) for token in tokens if token not in end_ids]
    for at, (ours, theirs) in enumerate(zip(found, wanted, strict=False)):
        if ours != theirs:
            assert gaps[at] < TIE, (
                f"token {at}: {ours!r} instead of {theirs!r}, which leads by {gaps[at]:.4f}"
            )
            return
    assert len(found) == len(wanted)
    assert answer.usage.completion_tokens == len(tokens)
    assert choice.message.content == model.codec.decode(tokens)
    assert choice.finish_reason == ("stop" if tokens[-1] in end_ids else "length")


def spelled(codec: TokenizerCodec, token: int) -> bytes:
    piece = codec.piece(token)
    assert isinstance(piece, bytes)
    return piece


def _with_read_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Templates take arguments as data; OpenAI's clients send them as text."""

    def read(call: dict[str, Any]) -> dict[str, Any]:
        function = {**call["function"], "arguments": json.loads(call["function"]["arguments"])}
        return {**call, "function": function}

    return [
        {**message, "tool_calls": [read(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


@pytest.fixture(scope="module")
def server(smollm2: Model) -> Iterator[Serving]:
    with Serving(Engine(smollm2), test_settings(model="smollm2-135m")) as serving:
        yield serving


@pytest.fixture(scope="module")
def client(server: Serving) -> OpenAI:
    return OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def tool_model(smollm2: Model) -> Model:
    """The default model with a template that knows of tools."""
    tokenizer = deepcopy(smollm2.codec.hf)
    tokenizer.chat_template = HERMES
    return Model(smollm2.hf, TokenizerCodec(tokenizer), name=smollm2.name)


@pytest.fixture(scope="module")
def tool_client(tool_model: Model) -> Iterator[OpenAI]:
    with Serving(Engine(tool_model), test_settings(model="smollm2-135m")) as server:
        yield OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_equal_the_template_and_generate(client: OpenAI, smollm2: Model, name: str) -> None:
    assert_answered(client, smollm2, CONVERSATIONS[name])


@pytest.mark.parametrize("name", WITH_CALLS)
def test_tool_histories_equal_the_template_and_generate(
    tool_client: OpenAI, tool_model: Model, name: str
) -> None:
    assert_answered(tool_client, tool_model, WITH_CALLS[name], TOOLS)


def test_what_the_template_drops_is_written_as_text(client: OpenAI, smollm2: Model) -> None:
    """The default model's template knows of no calls: the prompt is that of a conversation in which they are text."""
    messages = WITH_CALLS["a call and its result"]
    told = [
        messages[0],
        messages[1],
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        },
        {"role": "tool", "content": messages[3]["content"]},
    ]
    answers = [
        client.chat.completions.create(
            model="smollm2-135m",
            messages=each,
            temperature=0,
            max_tokens=16,
        )
        for each in (messages, told)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    assert answers[0].usage is not None
    assert answers[0].usage.prompt_tokens == generated(smollm2, told, None, NUM_TOKENS)[2]


def test_choices_share_the_prompt_and_differ_by_their_seed(client: OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "Invent a name for a cat. " * 8}],
        "max_tokens": 8,
        "seed": 5,
    }
    three = client.chat.completions.create(**asked, n=3)
    texts = [choice.message.content for choice in three.choices]
    again = client.chat.completions.create(**{**asked, "seed": 6})
    assert texts[1] == again.choices[0].message.content
    assert len(set(texts)) > 1
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_a_schema_holds_what_is_said(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "people": {"type": "integer", "maximum": 99},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": "A city and how many people live there, in JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},
        max_tokens=64,
        temperature=0,
    )
    said = json.loads(answer.choices[0].message.content or "")
    assert set(said) == {"city", "people"}
    assert isinstance(said["people"], int)


def test_a_required_call_is_made(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": "How is the weather in Paris?"}],
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=64,
        temperature=0,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert set(json.loads(call.function.arguments)) >= {"city"}


def test_a_text_is_continued_as_it_is(client: OpenAI, smollm2: Model) -> None:
    prompt = "Once upon a time"
    ids = torch.tensor([smollm2.codec.encode(prompt)[0]])
    with attending_plainly(smollm2), torch.inference_mode():
        made = smollm2.hf.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False
        )
    answer = client.completions.create(model="smollm2-135m", prompt=prompt, temperature=0, max_tokens=16)
    assert answer.choices[0].text == smollm2.codec.decode(made[0, ids.shape[1] :].tolist())
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == ids.shape[1]


@pytest.mark.anyio
async def test_the_realtime_connection(server: Serving) -> None:
    client = AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    async with client.realtime.connect(model="smollm2-135m") as connection:
        await connection.session.update(
            session={"type": "realtime", "instructions": "You are a helpful assistant."}
        )
        said: list[str] = []
        for text in ("What is the capital of France?", "And of Italy?"):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await connection.conversation.item.create(item=item)
            await connection.response.create(response={"max_output_tokens": 24})
            async for event in connection:
                assert event.type != "error", event
                if event.type == "response.done":
                    said.append(event.response.output[0].content[0].text)
                    break
    assert all(said)
