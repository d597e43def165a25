"""Many sessions at once: those who do not read harm nobody, and what is told is told soon."""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from pathlib import Path

from braid.client import Session, connect
from braid.engine.admission import EngineLimits
from tests.server.live.process import ANSWER
from tests.server.live.talk import Talk, said
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


def test_a_client_that_does_not_read_stops_its_own_session_alone() -> None:
    with serving(max_unread=16) as server, Talk(server) as other:
        slow = Talk(server)
        slow.open(rows=True)
        slow.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.socket.recv_messages.pause()  # pyright: ignore[reportAttributeAccessIssue]
        slow.send({"type": "write", "stream": "user", "text": "go"})
        slow.send({"type": "end"})
        other.open()
        assert said(other.turn()) == ANSWER
        slow.socket.recv_messages.resume()  # pyright: ignore[reportAttributeAccessIssue]
        slow.until("turn")
        assert said(slow.heard) == ANSWER
        slow.close()


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
