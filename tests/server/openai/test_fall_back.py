"""`braid.fall_back`: one stream answers where inner streams would only cost time, and the reply says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from braid.engine.fallback import Costs
from braid.server import service as service_module
from braid.server.openai.replies import ChatChunk, ChatCompletion
from braid.sessions.session import Engine
from braid.streams.stream_spec import StreamSpec
from braid.streams.topology import Topology
from tests.engine.harness import stock, trained
from tests.server.openai.talking import ASKED
from tests.server.serving import Serving, test_settings

THOUGHTFUL: dict[str, Any] = {
    "decoding": "views",
    "streams": {
        "user": {"direction": "input"},
        "thought": {"direction": "output", "visibility": "internal", "max_tokens": 9, "max_streams": 2},
        "output": {"direction": "output", "wait_k": "end", "max_tokens": 9},
    },
}
PLAIN: dict[str, Any] = {
    "decoding": "views",
    "streams": {name: spec for name, spec in THOUGHTFUL["streams"].items() if name != "thought"},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
HISTORY = [*ASKED, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "And there?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    """A stock model, whose rows of two cost twice as much as rows of one, whatever this machine says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service_module, "costs_of", lambda _: Costs({1: 10.0, 2: 20.0}, 1.0))
        made = Serving(Engine(stock(), kv_tokens=2000), test_settings(fall_back=True, model="llama"))
    with made:
        yield made


def post(server: Serving, route: str = "chat/completions", **body: Any) -> httpx.Response:
    asked = {"model": "llama", "messages": ASKED, "temperature": 0, **body}
    return httpx.post(f"{server.base_url}/v1/{route}", json=asked, timeout=60)


def answered(server: Serving, topology: dict[str, Any], **options: Any) -> dict[str, Any]:
    reply = post(server, braid={"topology": topology, **options})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_the_answer_is_that_of_one_stream(server: Serving) -> None:
    fallen = answered(server, THOUGHTFUL, fall_back=True)
    plain = answered(server, PLAIN)
    assert ChatCompletion.model_validate(fallen).braid is not None
    assert fallen["braid"]["fell_back"] is True
    assert "thought had nothing to read along" in fallen["braid"]["reason"]
    assert fallen["choices"] == plain["choices"]
    assert fallen["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert fallen["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_without_it_streams_are_as_they_were_and_nothing_is_told(server: Serving) -> None:
    answer = answered(server, THOUGHTFUL)
    assert "braid" not in answer
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


def test_a_stream_tells_it_with_the_end_of_each_choice(server: Serving) -> None:
    asked = {"topology": THOUGHTFUL, "fall_back": True}
    text = post(server, braid=asked, stream=True, n=2, stream_options={"include_usage": True}).text
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: {")]
    for event in events:
        ChatChunk.model_validate_json(event)
    told = [json.loads(event) for event in events]
    ends = [chunk for chunk in told if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    assert len(ends) == 2
    assert all(chunk["braid"]["fell_back"] for chunk in ends)
    assert not any("braid" in chunk for chunk in told if chunk not in ends)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"messages": HISTORY}, "a conversation goes on"),
        ({"tools": [WEATHER]}, "tools were given"),
        ({"braid": {"copies": {"thought": 2}}}, "copies of a stream"),
        ({"braid": {"show_internal": True}}, "inner streams are to be shown"),
        ({"braid": {"topology": PLAIN}}, "there is one output already"),
    ],
    ids=["history", "tools", "copies", "shown", "plain"],
)
def test_nothing_that_was_asked_for_is_lost(server: Serving, body: dict[str, Any], why: str) -> None:
    options = {"topology": THOUGHTFUL, "fall_back": True, **body.get("braid", {})}
    reply = post(server, **{**body, "braid": options})
    assert reply.status_code == 200, reply.text
    told = reply.json()["braid"]
    assert told["fell_back"] is False
    assert told["reason"].startswith("streams as asked for: ")
    assert why in told["reason"]


def test_one_copy_of_what_is_left_out_is_no_mistake_but_an_unknown_stream_is(server: Serving) -> None:
    assert answered(server, THOUGHTFUL, fall_back=True, copies={"thought": 1})["braid"]["fell_back"]
    wrong = post(server, braid={"topology": THOUGHTFUL, "fall_back": True, "copies": {"thoughts": 1}})
    assert wrong.status_code == 400
    assert "thoughts" in wrong.text


def test_responses_tell_it_too(server: Serving) -> None:
    asked = {"topology": THOUGHTFUL, "fall_back": True}
    body = {"model": "llama", "input": "How is the weather?", "temperature": 0, "braid": asked}
    reply = httpx.post(f"{server.base_url}/v1/responses", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["braid"]["fell_back"] is True


def test_costs_are_measured_before_anybody_is_served_and_only_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(service_module, "costs_of", measured.append)
    model = stock()
    with Serving(Engine(model, kv_tokens=600), test_settings(model="llama")) as server:
        told = answered(server, THOUGHTFUL, fall_back=True)["braid"]
        assert told["fell_back"] is False
        assert "has not measured what rows cost" in told["reason"]
    assert measured == []
    service_module.Service(Engine(model, kv_tokens=600), test_settings(model="llama", fall_back=True))
    assert measured == [model]


def test_costs_are_those_of_the_servers_model() -> None:
    made = service_module.Service(
        Engine(stock(), kv_tokens=600), test_settings(model="llama", fall_back=True)
    )
    assert made.costs is not None
    assert set(made.costs.row_ms) == {1, 2, 4}
    assert all(each > 0 for each in made.costs.row_ms.values())


def test_a_model_of_streams_keeps_them() -> None:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input"),
            "output": StreamSpec(direction="output", max_tokens=4),
        }
    )
    settings = test_settings(model="llama", fall_back=True)
    with Serving(Engine(trained(topology), kv_tokens=600), settings) as server:
        assert server.service.costs is None
        asked = topology.model_dump(mode="json", exclude_defaults=True)
        told = answered(server, asked, fall_back=True)["braid"]
    assert told == {"fell_back": False, "reason": "streams as asked for: the model was trained on streams"}
