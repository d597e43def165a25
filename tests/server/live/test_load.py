"""Many sessions at once: those who do not read harm nobody, and what is told is told soon."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from braid.client import Session, connect
from braid.engine.admission import EngineLimits
from tests.server.live.process import ANSWER
from tests.server.live.talk import Talk
from tests.server.serving import Serving, null_engine, test_settings

LIMITS = EngineLimits(max_sessions=400, max_events=64)


def serving(database: str = "memory", **settings: object) -> Serving:
    script = {"output": [ANSWER] * 3}
    engine = null_engine(script=script, limits=LIMITS)
    return Serving(engine, test_settings(database=database, max_sessions=400, **settings))


def test_200_idle_and_50_busy_sessions(tmp_path: Path) -> None:
    async def main(server: Serving) -> None:
        async with connect(server.base_url) as client:
            idle = [client.open("plain") for _ in range(200)]
            for session in idle:
                await session.__aenter__()
            busy = [client.open("plain") for _ in range(50)]

            async def talk(session: Session) -> None:
                async with session:
                    await session.write("user", "go")
                    await session.end()
                    await session.wait_for_turn()
                    assert session.text("output") == ANSWER

            await asyncio.gather(*map(talk, busy))
            assert server.app.state.hub.num_live >= 200
            await idle[100].ping()
            for session in idle:
                session.leave()

    with serving(f"sqlite:///{tmp_path / 's.db'}") as server:
        asyncio.run(main(server))


class Deaf:
    """A client that opens a session with an endless answer, and never reads another byte."""

    def __init__(self, server: Serving) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.connect(("127.0.0.1", server.port))
        self._wire = ClientProtocol(parse_uri(f"{server.ws_url}/v1/live"))
        self._wire.send_request(self._wire.connect())
        self._flush()
        while self._wire.state is not State.OPEN:
            self._wire.receive_data(self.socket.recv(4096))
            self._wire.events_received()
        for command in (
            {"type": "open", "id": "a", "topology": "plain", "rows": True},
            {"type": "write", "id": "b", "stream": "user", "text": "go on for ever"},
            {"type": "end", "id": "c"},
        ):
            self._wire.send_text(json.dumps(command).encode())
        self._flush()

    def _flush(self) -> None:
        for data in self._wire.data_to_send():
            self.socket.sendall(data)


@pytest.fixture
def watched() -> Iterator[Callable[[Deaf], Deaf]]:
    """Closes clients, however a test ends."""
    clients: list[Deaf] = []

    def watch(client: Deaf) -> Deaf:
        clients.append(client)
        return client

    yield watch
    for client in clients:
        client.socket.close()


def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_a_client_that_does_not_read_stops_its_own_session_alone(watched: Callable[[Deaf], Deaf]) -> None:
    """The answer has no end, so that no buffer on the way can hold it."""
    engine = null_engine(limits=LIMITS)  # letters for ever
    settings = test_settings(max_unread=16, max_sessions=400, max_rows=10_000_000)
    with Serving(engine, settings, send_buffer=8192) as server:
        deaf = watched(Deaf(server))
        hub = server.app.state.hub
        until(lambda: hub.num_live == 1)
        (session,) = hub._live.values()

        def stands_still() -> bool:
            before = session.handle.look().t
            time.sleep(0.7)
            return before > 0 and session.handle.look().t == before

        until(stands_still)  # once all buffers on the way are full
        assert session.handle.is_paused
        stood_at = session.handle.look().t
        assert stood_at > 100
        with Talk(server) as other:  # goes on, while the first one stands still
            other.open()
            other.ask("write", stream="user", text="go on for ever")
            other.ask("end")
            other.until(lambda message: message["type"] == "delta" and message["t"] > 200)
        assert session.handle.look().t == stood_at
        assert (
            session.feed.last_id - session.feed.connection.cursor
            <= settings.max_unread + LIMITS.max_events * 4
        )
        deaf.socket.close()
        until(lambda: session.handle.look().t > stood_at)  # nobody listens now: it is stored, and goes on
        for each in list(hub._live.values()):
            each.close("enough")
        until(lambda: hub.num_live == 0)


def test_a_peer_that_died_without_a_word_is_noticed(watched: Callable[[Deaf], Deaf]) -> None:
    """A half-open connection: its machine is gone, and no packet says so."""
    engine = null_engine(script={"output": ["Yes."]}, limits=LIMITS)
    with Serving(engine, test_settings(), ping_s=0.3) as server:
        deaf = watched(Deaf(server))
        hub = server.app.state.hub
        until(lambda: hub.num_live == 1)
        (session,) = hub._live.values()
        until(lambda: session.feed.connection is None)  # it answers no ping
        assert hub.num_live == 1  # and may come back
        deaf.socket.close()


def test_a_session_that_nobody_comes_back_to_is_closed() -> None:
    engine = null_engine(script={"output": ["Yes."]}, limits=LIMITS)
    with Serving(engine, test_settings(close_idle_after_s=0.4)) as server:
        with Talk(server) as talk:
            name = talk.open()["session"]
            talk.turn()
            time.sleep(0.8)
            assert server.app.state.hub.num_live == 1  # somebody is there
        until(lambda: server.app.state.hub.num_live == 0)
        with Talk(server) as again:
            again.send({"type": "resume", "session": name, "after": 0})
            assert again.until("closed")[-1]["reason"] == "idle"


def test_the_way_from_an_event_to_the_socket_is_short(tmp_path: Path) -> None:
    """At 16 sessions of 30 rows a second, as a model makes them; printed, and held to a loose bound."""
    seconds: list[float] = []

    async def main(server: Serving) -> None:
        server.service.send_seconds.observe = seconds.append  # pyright: ignore[reportAttributeAccessIssue]
        async with connect(server.base_url) as client:

            async def talk() -> None:
                async with client.open("plain") as session:
                    await session.write("user", "go")
                    await session.end()
                    await session.wait_for_turn()

            await asyncio.gather(*(talk() for _ in range(16)))

    def wait(_item: object) -> None:
        time.sleep(0.002)

    engine = null_engine(script={"output": [ANSWER]}, limits=LIMITS, fail=wait)
    with Serving(engine, test_settings(database=f"sqlite:///{tmp_path / 's.db'}")) as server:
        asyncio.run(main(server))
    p50, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
    print(
        f"event to socket at 16 sessions: p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms of {len(seconds)}"
    )
    assert p50 < 0.02
