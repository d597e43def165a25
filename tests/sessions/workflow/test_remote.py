"""Stages at an endpoint, against a small server that streams chat completions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest

from braid.errors import StageError
from braid.sessions.workflow import Endpoint, Function, Prompt, Workflow
from braid.streams.sampling import SamplingSpec

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


class _Server(ThreadingHTTPServer):
    """Answers every prompt with itself, word by word."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.status = 200
        self.breaks_off = False
        self.lines: list[str] | None = None
        self.waits: threading.Event | None = None
        """Before the second half of an answer."""
        self.num_left = 0
        """Callers that went away in the middle."""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.server_port}/v1", "echo", key="k", timeout_s=20)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.asked.append({"path": self.path, **body})
        server.keys.append(self.headers["authorization"])
        self.send_response(server.status)
        self.end_headers()
        if server.status != 200:
            self.wfile.write(b"no such model")
            return
        words = [word + " " for word in body["messages"][-1]["content"].split()]
        lines = [": a comment", *(json.dumps({"choices": [{"delta": {"content": word}}]}) for word in words)]
        if not server.breaks_off:
            lines.append(json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
            if (body.get("stream_options") or {}).get("include_usage"):  # nobody is told unasked
                lines.append(json.dumps({"usage": {"total_tokens": 77}, "choices": []}))
            lines.append("[DONE]")
        try:
            for number, line in enumerate(server.lines or lines):
                if server.waits is not None and number == len(lines) // 2:
                    while not server.waits.wait(0.02):
                        self.wfile.write(b": patience\n\n")
                        self.wfile.flush()
                data = line if line.startswith(":") else f"data: {line}"
                self.wfile.write(f"{data}\n\n".encode())
                self.wfile.flush()
        except OSError:
            server.num_left += 1

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def test_a_stage_is_answered_by_an_endpoint(server: _Server) -> None:
    stage = Prompt(
        "a",
        "Say {q}",
        endpoint=server.endpoint,
        system="Be brief.",
        sampling=SamplingSpec(temperature=0.5, top_p=0.9),
        seed=7,
        max_tokens=30,
    )
    result = await Workflow(stage, inputs=["q"]).run(None, "it")
    assert result.output == "Say it "
    assert server.keys == ["Bearer k"]
    assert server.asked == [
        {
            "path": "/v1/chat/completions",
            "model": "echo",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Say it"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "seed": 7,
            "top_p": 0.9,
            "max_tokens": 30,
        }
    ]
    assert result.plan["a"].tokens == 77


async def test_an_endpoint_is_asked_ahead_once_the_prompt_is_stable(server: _Server) -> None:
    workflow = Workflow(Prompt("a", "Say {q}", endpoint=server.endpoint, stable_s=0.1), inputs=["q"])
    async with workflow.open() as run:
        for text in ("i", "it", "it "):
            await run.snapshot(text)
        await run.settled()
        assert len(server.asked) == 1
        assert (await run.commit()).output == "Say it "
        assert len(server.asked) == 1
    async with workflow.open(most_drafted=0) as run:
        await run.snapshot("x")
        await run.settled()
        assert len(server.asked) == 1, "without a budget nothing is asked ahead"


async def test_a_field_of_an_answer_is_read_while_it_comes(server: _Server) -> None:
    server.waits = threading.Event()
    came: list[str] = []

    def look(city: str) -> str:
        assert server.waits is not None
        came.append(city)
        server.waits.set()
        return city

    workflow = Workflow(
        Prompt(
            "plan", '{{"city": "{q}", "and so on": "one two three four five six"}}', endpoint=server.endpoint
        ),
        Function("look", look, reads={"city": "plan.city"}),
        inputs=["q"],
    )
    with anyio.fail_after(20):
        assert (await workflow.run(None, "Rome")).output == "Rome"
    assert came == ["Rome"]


async def test_a_call_whose_prompt_has_changed_is_given_up(server: _Server) -> None:
    server.waits = threading.Event()
    workflow = Workflow(Prompt("a", "one two three {q}", endpoint=server.endpoint, stable_s=0), inputs=["q"])
    async with workflow.open() as run:
        await run.snapshot("x")
        with anyio.fail_after(20):
            while not server.asked:  # noqa: ASYNC110 (threads ring no bell)
                await anyio.sleep(0.01)
            await run.snapshot("y")
            while not server.num_left:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        server.waits.set()
        result = await run.commit()
    assert result.output == "one two three y "
    assert len(server.asked) == 2
    assert result.plan["a"].wasted_seconds > 0


async def test_what_endpoints_do_wrong_is_told_with_the_stage(server: _Server) -> None:
    workflow = Workflow(Prompt("a", "Say {q}", endpoint=server.endpoint, stable_s=0), inputs=["q"])

    async def refused() -> str:
        async with workflow.open() as run:
            await run.snapshot("it")
            await run.settled()
            assert run.plan()["a"].state == "failed"
            with pytest.raises(StageError) as told:
                await run.commit()
            assert told.value.stage == "a"
            return str(told.value)

    server.breaks_off = True
    assert "stage a: the endpoint at http://127.0.0.1" in await refused()
    server.lines = [json.dumps({"error": {"message": "overloaded"}})]
    assert "overloaded" in await refused()
    server.lines = ["[1]"]
    assert "no chat completion" in await refused()
    server.status = 404
    assert "refused with 404: no such model" in await refused()
    server.status, server.lines, server.breaks_off = 200, None, False
    assert (await workflow.run(None, "it")).output == "Say it "


async def test_an_endpoint_that_is_not_there() -> None:
    nowhere = Endpoint("http://127.0.0.1:9/v1", "m", timeout_s=2)
    with pytest.raises(StageError, match=r"stage a: the endpoint at .* cannot be reached"):
        await Workflow(Prompt("a", "{q}", endpoint=nowhere), inputs=["q"]).run(None, "x")
