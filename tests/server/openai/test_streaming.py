"""Server-sent events: comments while it is quiet, errors in the middle, and an end when nobody listens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import anyio
import pytest

from braid.errors import EngineBusyError
from braid.server.openai.streaming import EventStream, Sink
from braid.server.service import Service


async def sent_by(
    run: Callable[[Sink], Awaitable[None]], *, leaves_after_s: float = 5.0, keep_alive_s: float = 0.05
) -> list[dict[str, Any]]:
    """What a response sends to a client that leaves after a while."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await anyio.sleep(leaves_after_s)
        return {"type": "http.disconnect"}

    stream = EventStream(cast("Service", None), run, keep_alive_s=keep_alive_s)
    with anyio.fail_after(5):
        await stream({"type": "http", "path": "/"}, receive, send)
    return sent


def test_a_comment_is_sent_while_it_is_quiet() -> None:
    async def run(sink: Sink) -> None:
        await anyio.sleep(0.18)
        await sink.event({"a": 1})

    bodies = [message.get("body") for message in anyio.run(lambda: sent_by(run))]
    assert bodies[0] is None  # the start
    assert 2 <= bodies.count(b": still here\n\n") <= 3
    assert bodies[-2:] == [b'data: {"a":1}\n\n', b""]


def test_what_fails_first_is_raised() -> None:
    async def run(_sink: Sink) -> None:
        raise EngineBusyError("busy")

    with pytest.raises(EngineBusyError):
        anyio.run(lambda: sent_by(run))


def test_what_fails_later_is_told() -> None:
    async def run(sink: Sink) -> None:
        await sink.event({"a": 1})
        raise EngineBusyError("busy")

    sent = anyio.run(lambda: sent_by(run))
    assert b'"code":"engine.busy"' in sent[-2]["body"]
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


def test_it_is_cancelled_when_nobody_listens() -> None:
    was_cancelled = False

    async def run(sink: Sink) -> None:
        nonlocal was_cancelled
        await sink.event({"a": 1})
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            was_cancelled = True
            raise

    sent = anyio.run(lambda: sent_by(run, leaves_after_s=0.02))
    assert was_cancelled
    assert all(message.get("more_body", True) for message in sent)
