"""What the server costs: the same sessions on the engine alone, and over HTTP from another process.

    engine   sessions in this process, all at once
    HTTP     `braid serve` in a process of its own, streamed chat completions, all at once
    live     the same server, sessions on /v1/live: from an event of the engine to the byte on the socket

The two take turns, and each counts by its fastest round, so that noise hits both alike.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

import braid.client
from braid.bench.machine import describe_machine
from braid.bench.sessions.run import sized
from braid.bench.sessions.workload import sessions_workload
from braid.errors import ConnectionLostError, InputError
from braid.sessions.generate import with_sampling
from braid.sessions.session import Engine
from braid.streams.presets import topology as preset
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology

if TYPE_CHECKING:
    import httpx

    from braid.bench.sessions.workload import Workload
    from braid.model.model import Model

__all__ = ["ServingFigures", "bench_serving", "median_of_histogram"]

NEVER = -100.0
"""A bias that no token comes back from, so that all answers have one length."""
START_S = 120.0
HISTOGRAM = "braid_event_to_socket_seconds"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ServingFigures:
    """Tokens a second, and milliseconds to the socket."""

    sessions: int
    output_tokens: int
    engine_tokens_per_s: list[float]
    http_tokens_per_s: list[float]
    event_to_socket_ms: float | None
    """Median; None where nothing was measured."""
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The fastest of each, their ratio, and the machine."""
        engine, http = max(self.engine_tokens_per_s), max(self.http_tokens_per_s)
        return {
            "sessions": self.sessions,
            "output_tokens": self.output_tokens,
            "rounds": len(self.http_tokens_per_s),
            "engine_tokens_per_s": round(engine, 2),
            "http_tokens_per_s": round(http, 2),
            "http_over_engine": round(http / engine, 3),
            "event_to_socket_p50_ms": self.event_to_socket_ms,
            "machine": dict(self.machine),
        }


def bench_serving(
    model: Model,
    name: str,
    *,
    sessions: int = 16,
    output_tokens: int = 64,
    rounds: int = 3,
    on_progress: Progress | None = None,
) -> ServingFigures:
    """Measure both, in turns.

    Args:
        model: Loaded here, for the engine alone.
        name: The same one, for the server's process.
        sessions: At once.
        output_tokens: Of each answer; end tokens are never drawn.
        rounds: Of each.
        on_progress: Told how many measurements are done, of how many.

    Raises:
        InputError: A number is too small; httpx is not installed.
        ConnectionLostError: The server has not started.
    """
    if sessions < 1 or output_tokens < 2 or rounds < 1:
        raise InputError("give at least 1 session, 2 tokens and 1 round")
    work = sessions_workload(model.codec, sessions, output_tokens=output_tokens)
    end_ids = model.codec.end_ids
    engine_rates: list[float] = []
    http_rates: list[float] = []
    total = 2 * rounds + 1
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    engine = Engine(model)
    with _server(name) as url:
        for _ in range(rounds):
            engine_rates.append(anyio.run(_engine_round, engine, work, end_ids))
            advance()
            http_rates.append(anyio.run(_http_round, url, name, work, end_ids))
            advance()
        anyio.run(_live_round, url, work, end_ids)
        median_ms = _event_to_socket(url)
        advance()
    anyio.run(engine.aclose)
    return ServingFigures(sessions, output_tokens, engine_rates, http_rates, median_ms, describe_machine())


# ---- the engine alone


async def _engine_round(engine: Engine, work: Workload, end_ids: tuple[int, ...]) -> float:
    """Tokens a second of all sessions together, opened at once."""
    topology = _topology(work, end_ids)

    async def talk(text: str) -> None:
        async with engine.open(topology) as session:
            session.max_turns = 1
            await session.write("user", text)
            await session.end()
            async for _ in session:
                pass
            assert len(session.transcript.tokens("output")) == work.output_tokens

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for text in work.users:
            tasks.start_soon(talk, text)
    return len(work.users) * work.output_tokens / (time.perf_counter() - began)


def _topology(work: Workload, end_ids: tuple[int, ...]) -> Topology:
    sampling = SamplingSpec(logit_bias=dict.fromkeys(end_ids, NEVER))  # pyright: ignore[reportArgumentType]
    return with_sampling(sized(preset("plain"), work.system, work.output_tokens), sampling)


# ---- over HTTP


@contextmanager
def _server(name: str) -> Generator[str]:
    command = [sys.executable, "-m", "braid", "serve", name, "--port", "0", "--database", "memory"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    deadline = time.monotonic() + START_S
    said: list[str] = []
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        if not line:
            break
        said.append(line)
        found = re.search(r"at (http://\S+)", line)
        if found:
            _drain(process)
            _wait_until_ready(found[1], deadline)
            return found[1]
    raise ConnectionLostError(f"the server has not started; it said: {''.join(said)[-500:]}")


def _drain(process: subprocess.Popen[str]) -> None:
    """Read on, or the server would wait for somebody to read its log."""
    import threading

    assert process.stderr is not None
    stderr = process.stderr

    def read() -> None:
        for _ in stderr:
            pass

    threading.Thread(target=read, daemon=True).start()


def _wait_until_ready(url: str, deadline: float) -> None:
    client = _httpx()
    while time.monotonic() < deadline:
        try:
            if client.get(f"{url}/ready", timeout=5).is_success:
                return
        except client.TransportError:
            pass
        time.sleep(0.1)
    raise ConnectionLostError(f"the server at {url} has not become ready")


async def _http_round(url: str, name: str, work: Workload, end_ids: tuple[int, ...]) -> float:
    httpx = _httpx()
    limits = httpx.Limits(max_connections=len(work.users))
    counts: list[int] = []
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def talk(text: str) -> None:
            counts.append(await _stream(client, _request(name, work, text, end_ids)))

        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for text in work.users:
                tasks.start_soon(talk, text)
        seconds = time.perf_counter() - began
    assert counts == [work.output_tokens] * len(work.users), counts
    return sum(counts) / seconds


def _request(name: str, work: Workload, text: str, end_ids: tuple[int, ...]) -> dict[str, Any]:
    return {
        "model": name,
        "messages": [{"role": "system", "content": work.system}, {"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": work.output_tokens,
        "logit_bias": {str(token): NEVER for token in end_ids},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _stream(client: httpx.AsyncClient, request: dict[str, Any]) -> int:
    """Read a streamed answer to its end; returns how many tokens it had."""
    count = 0
    async with client.stream("POST", "/v1/chat/completions", json=request) as answer:
        if not answer.is_success:
            raise ConnectionLostError(f"the server said: {(await answer.aread()).decode()[:500]}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and '"usage":{' in line.replace(" ", ""):
                count = json.loads(line[6:])["usage"]["completion_tokens"]
    return count


# ---- live sessions


async def _live_round(url: str, work: Workload, end_ids: tuple[int, ...]) -> None:
    topology = _topology(work, end_ids).to_dict()

    async def talk(text: str) -> None:
        async with braid.client.connect(url) as client, client.open(topology=topology) as session:
            await session.write("user", text)
            await session.end()
            await session.wait_for_turn()
            await session.close()

    async with anyio.create_task_group() as tasks:
        for text in work.users:
            tasks.start_soon(talk, text)


def _event_to_socket(url: str) -> float | None:
    text = _httpx().get(f"{url}/metrics", timeout=30).text
    median_s = median_of_histogram(text, HISTOGRAM)
    return None if median_s is None else round(median_s * 1e3, 3)


def median_of_histogram(text: str, name: str) -> float | None:
    r"""The median of a Prometheus histogram, read off its buckets.

    Args:
        text: What `/metrics` says.
        name: Of the histogram, without labels.

    >>> buckets = 'x_bucket{le="1.0"} 2\nx_bucket{le="2.0"} 6\nx_bucket{le="+Inf"} 8'
    >>> median_of_histogram(buckets, "x")
    1.5
    """
    pattern = re.compile(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)$', re.MULTILINE)
    buckets = [(float(edge), float(count)) for edge, count in pattern.findall(text)]
    if not buckets or not buckets[-1][1]:
        return None
    half = buckets[-1][1] / 2
    below_edge = below = 0.0
    for edge, count in buckets:
        if count >= half:
            if edge == float("inf"):
                return below_edge
            return below_edge + (edge - below_edge) * (half - below) / (count - below)
        below_edge, below = edge, count
    return None


def _httpx() -> Any:
    try:
        import httpx
    except ModuleNotFoundError:
        raise InputError("`braid bench serve` needs httpx: pip install httpx") from None
    return httpx
