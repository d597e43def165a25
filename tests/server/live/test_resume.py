"""Sessions outlive connections, servers and `kill -9`: nothing is lost, nothing is told or done twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from braid.client import Session, connect, protocol
from braid.server.run import Server
from tests.server.live.process import ANSWER
from tests.server.live.talk import EDITABLE, TOOLS, Talk, ids, said
from tests.server.serving import Serving, null_engine, test_settings

CALL = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
BROKEN = '{"name": "add", "arguments": 7}'
SCRIPT = {
    "output": ["Hello there, whoever you are.", "Once more.", "And more."],
    "tool_call": [CALL + CALL + BROKEN + '{"name": "sub", "arguments": {}}'],
}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(null_engine(script=SCRIPT)) as serving:
        yield serving


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sessions.db'}"


def serving(database: str, script: Any = None, **options: Any) -> Serving:
    """A server of its own over a database that others used before."""
    served = Serving(null_engine(script=script or SCRIPT, **options), test_settings(database=database))
    served._server = Server(served._server.config)
    return served


# ---- connections


@settings(max_examples=8)
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=15), seed=st.integers(0, 99))
def test_wherever_the_connection_is_cut_whoever_resumes_hears_each_message_once(
    server: Serving, cuts: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    talk = Talk(server)
    talk.open(rows=True)
    name, heard = talk.session, list(talk.heard)

    def listen(talking: Talk) -> None:
        message = talking.hear()
        if message["id"] > heard[-1]["id"]:  # an answer that is told again keeps its id
            heard.append(message)

    talk.send({"type": "write", "id": "w", "stream": "user", "text": "hi"})
    talk.send({"type": "end", "id": "e"})
    for count in cuts:
        talk.heard = []
        for _ in range(count):
            if any(m["type"] == "turn" for m in heard):
                break
            listen(talk)
        talk.cut() if rng.random() < 0.5 else talk.close()
        talk = Talk(server)
        talk.send({"type": "resume", "id": "r", "session": name, "after": heard[-1]["id"]})
        resumed = talk.hear()
        assert resumed["type"] == "resumed" and resumed["last"] >= heard[-1]["id"]
        for command in (
            {"type": "write", "id": "w", "stream": "user", "text": "hi"},
            {"type": "end", "id": "e"},
        ):
            if not any(m.get("re") == command["id"] for m in heard):
                talk.send(command)
    while sum(m["type"] in ("turn", "done") for m in heard) < 3:  # the turn may be over before `end` is done
        listen(talk)
    talk.close()
    assert ids(heard) == list(range(1, len(heard) + 1))
    assert said(heard) == "Hello there, whoever you are."
    assert next(m for m in heard if m["type"] == "turn")["tokens"]["user"] == 2


def test_a_newer_connection_takes_over_and_the_older_is_told(server: Serving) -> None:
    with Talk(server) as old, Talk(server) as new:
        old.open()
        assert new.ask("resume", session=old.session, after=1)["type"] == "resumed"
        assert old.until("error")[-1]["code"] == "session"
        with pytest.raises(ConnectionClosed):
            old.hear()
        assert old.socket.close_code == 4409
        assert said(new.turn()) == "Hello there, whoever you are."


def test_a_session_whose_opening_was_never_heard_of_is_not_kept(server: Serving) -> None:
    before = server.app.state.hub.num_live
    with Talk(server) as talk:
        talk.open()
    with Talk(server) as talk:
        assert talk.ask("resume", session="s_x", after=0)["code"] == "server.not_found"
    assert server.app.state.hub.num_live <= before + 1


def test_who_resumes_after_more_than_was_told_is_refused(server: Serving) -> None:
    with Talk(server) as first, Talk(server) as talk:
        first.open()
        answer = talk.ask("resume", session=first.session, after=99)
        assert answer["code"] == "input" and "99" in answer["message"]


# ---- servers


def test_sessions_go_on_at_the_next_start_of_the_server(database: str) -> None:
    with serving(database) as first:
        talk = Talk(first)
        talk.open(rows=True)
        talk.turn()
        last = talk.heard[-1]["id"]
        talk.ask("write", id="w9", stream="user", text="go ")
    left = []
    with pytest.raises(ConnectionClosed):  # noqa: PT012
        while True:
            left.append(talk.hear())
    assert left[-1]["code"] == "engine.closed"
    assert talk.socket.close_code == 1012
    with serving(database) as second:
        again = Talk(second)
        again.ask("resume", session=talk.session, after=last)
        done = again.until(lambda m: m.get("re") == "w9")[-1]
        assert again.ask("write", id="w9", stream="user", text="go ") == done
        again.ask("write", stream="user", text="on")
        again.ask("end")
        messages = [m for m in again.heard if m["type"] == "turn"] or again.until("turn")
        assert messages[-1]["tokens"]["user"] == 5
        assert said(again.heard) == "Once more."
        told = [*(m for m in talk.heard if (m.get("id") or 0) <= last), *again.heard]
        numbers = sorted({m["id"] for m in told if m.get("id") is not None})
        assert numbers == list(range(1, numbers[-1] + 1))
        again.ask("close")
        again.close()


def test_snapshots_that_were_not_committed_are_still_there(database: str) -> None:
    with serving(database) as first, Talk(first) as talk:
        talk.open(**EDITABLE)
        talk.ask("snapshot", streams={"user": "hi you"})
    with serving(database) as second, Talk(second) as again:
        again.ask("resume", session=talk.session, after=1)
        again.ask("commit")
        if not any(m["type"] == "turn" for m in again.heard):
            again.until("turn")
        assert next(m for m in again.heard if m["type"] == "turn")["tokens"]["user"] == 6


def test_messages_and_segments_that_were_not_committed_are_still_there(database: str) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Yes?"}]
    segments = [{"id": "rules", "fixed": "Say: "}, {"id": "what"}, {"id": "how", "positions": "local"}]
    with serving(database) as first, Talk(first) as told, Talk(first) as filled:
        told.open(**EDITABLE)
        told.ask("snapshot", messages=[*messages, {"role": "user", "content": "And?"}])
        told.ask("snapshot", streams={"user": "And now?"})
        filled.open(**EDITABLE, template={"segments": segments})
        filled.ask("snapshot", segments=[{"id": "what", "text": "hi"}, {"id": "how", "text": "now"}])
    with serving(database) as second, Talk(second) as again:
        again.ask("resume", session=told.session, after=1)
        again.ask("commit")
        until_turns(again, 1)
        hub: Any = second.app.state.hub
        loop: Any = second.engine.backend
        stage = loop.core.conversations[hub._live[told.session].handle.number].stage
        assert [message.content for message in stage.preamble.history[:3]] == ["hi", "Yes?", "And now?"]
        with Talk(second) as other:
            other.ask("resume", session=filled.session, after=1)
            other.ask("snapshot", segments=[{"id": "how", "text": "then"}])
            other.ask("commit")
            until_turns(other, 1)
            text = hub._live[filled.session].handle.transcript.text
            assert (text("rules"), text("user")) == ("Say: hi", "then")


def test_a_template_that_was_told_empty_cannot_be_committed_after_a_restart(database: str) -> None:
    segments = [{"id": "rules", "fixed": "Say: "}, {"id": "what"}]
    with serving(database) as first, Talk(first) as talk:
        talk.open(**EDITABLE, template={"segments": segments})
        talk.ask("snapshot", segments=[{"id": "what", "text": "hi"}])
        talk.ask("snapshot", segments=[{"id": "what", "text": ""}])
    with serving(database) as second, Talk(second) as again:
        again.ask("resume", session=talk.session, after=1)
        assert again.ask("commit")["code"] == "input.empty"
        again.ask("commit", segments=[{"id": "what", "text": "hi"}])
        assert turns_of(until_turns(again, 1)) == [len("Say: hi")]


def test_after_kill_9_what_was_committed_is_answered_and_what_was_drafted_can_be_committed(
    database: str,
) -> None:
    port = free_port()
    url = f"ws://127.0.0.1:{port}"
    with process(port, database, 0.002) as first:
        answered, speaking, committed, drafted, fresh = (Talk(url) for _ in range(5))
        for talk in (answered, speaking, committed, drafted, fresh):
            talk.open(**EDITABLE)
            for text in () if talk is fresh else ("What", "What foll", "What follows 1?"):
                talk.ask("snapshot", streams={"user": text}, mode="repair")
        for talk in (answered, speaking, committed):
            talk.ask("commit")
            while (talk is answered and not turns_of(talk.heard)) or (
                talk is speaking and not said(talk.heard)
            ):
                talk.hear()
        first.send_signal(signal.SIGKILL)
        first.wait()
    with process(port, database, 0.0):
        for talk in (answered, speaking, committed):
            go_on(url, talk)
        with Talk(url) as talk:
            talk.ask("resume", session=drafted.session, after=drafted.heard[-1]["id"])
            talk.ask("commit")
            heard = of_session([*drafted.heard, *until_turns(talk, 1)])
            assert (said(heard), turns_of(heard)) == (ANSWER, [len("What follows 1?")])
            assert ids(heard) == list(range(1, len(heard) + 1))
        with Talk(url) as talk:
            talk.ask("resume", session=fresh.session, after=1)
            assert talk.ask("commit")["code"] == "input.empty"
            talk.ask("snapshot", streams={"user": "Well?"})
            talk.ask("commit")
            assert said(until_turns(talk, 1)) == ANSWER


def go_on(url: str, before: Talk) -> None:
    """On the other side of a restart, the turn that was committed is answered once, and another one can follow."""
    with Talk(url) as talk:
        talk.ask("resume", session=before.session, after=before.heard[-1]["id"])
        old = len(turns_of(before.heard))
        heard = of_session([*before.heard, *until_turns(talk, 1 - old)])
        assert (said(heard), turns_of(heard)) == (ANSWER, [len("What follows 1?")])
        talk.ask("snapshot", streams={"user": "And now?"})
        talk.ask("commit")
        heard = of_session([*before.heard, *until_turns(talk, 2 - old)])
        assert ids(heard) == list(range(1, len(heard) + 1))
        assert (said(heard), turns_of(heard)[1:]) == (ANSWER * 2, [len("And now?")])


def of_session(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are the session's."""
    return [message for message in messages if message.get("id") is not None]


def until_turns(talk: Talk, count: int) -> list[dict[str, Any]]:
    """What a connection has heard by the end of so many turns."""
    while sum(m["type"] == "turn" for m in talk.heard) < count:
        talk.hear()
    return list(talk.heard)


def turns_of(messages: list[dict[str, Any]]) -> list[int]:
    """Tokens of the user in each turn."""
    return [m["tokens"]["user"] for m in messages if m["type"] == "turn"]


def test_a_result_that_comes_while_input_may_change_is_read_with_the_commit(database: str) -> None:
    script = {"output": ["Well.", "Five."], "tool_call": [CALL]}
    with serving(database, script) as first:
        talk = Talk(first)
        talk.open(topology=TOOLS, tools=[{"name": "add", "description": "Add."}], input="editable")
        talk.ask("snapshot", streams={"user": "2 and 3?"})
        talk.ask("commit")
        until_turns(talk, 1)
        assert talk.ask("snapshot", streams={"user": "And"})["type"] == "done"
        assert talk.ask("tool_result", call="call_1", content=5)["type"] == "done"
        assert result_text(first, talk.session) == ""
    with serving(database, script) as second, Talk(second) as again:
        assert again.ask("resume", session=talk.session, after=talk.heard[-1]["id"])["calls"] == []
        assert result_text(second, talk.session) == ""
        again.ask("snapshot", streams={"user": "And then?"})
        again.ask("commit")
        wait_for(lambda: result_text(second, talk.session))
        assert json.loads(result_text(second, talk.session)) == {"id": "call_1", "name": "add", "result": 5}


def result_text(server: Serving, session: str, stream: str = "tool_result") -> str:
    live = server.app.state.hub._live[session]
    return live.handle.transcript.text(stream)


def wait_for(holds: Any) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_calls_are_answered_once_across_a_restart_and_those_nobody_can_run_at_once(database: str) -> None:
    tools = [{"name": "add", "description": "Add."}]
    with serving(database) as first:
        talk = Talk(first)
        talk.open(topology=TOOLS, tools=tools)
        talk.ask("write", stream="user", text="2 and 3?")
        talk.ask("end")
        while len([m for m in talk.heard if m["type"] == "tool_call"]) < 2:
            talk.hear()
        calls = [m for m in talk.heard if m["type"] == "tool_call"]
        assert [(c["call"], c["name"], c["arguments"]) for c in calls] == [
            ("call_1", "add", {"a": 2, "b": 3}),
            ("call_2", "add", {"a": 2, "b": 3}),
        ]
        assert talk.ask("tool_result", id="t1", call="call_1", content=5)["type"] == "done"
        assert talk.ask("tool_result", call="call_9", content=5)["code"] == "server.not_found"
        wait_for(lambda: result_text(first, talk.session).count("\n") == 3)
    with serving(database) as second:
        again = Talk(second)
        resumed = again.ask("resume", session=talk.session, after=0)
        assert [call["call"] for call in resumed["calls"]] == ["call_2"]
        assert again.ask("tool_result", call="call_1", content=7)["type"] == "done"  # it has one already
        again.ask("tool_result", call="call_2", error="no idea")
        wait_for(lambda: result_text(second, talk.session).count("\n") == 4)
        lines = result_text(second, talk.session).splitlines()
        assert '{"id": "call_1", "name": "add", "result": 5}' in lines
        assert '{"id": "call_2", "name": "add", "error": "no idea"}' in lines
        assert sorted(line.split('"')[3] for line in lines) == ["call_1", "call_2", "call_3", "call_4"]
        again.close()


def test_another_models_session_is_refused_by_name_and_kept(database: str) -> None:
    with serving(database) as first, Talk(first) as talk:
        talk.open()
        talk.turn()
    from tests.server.serving import null_model

    other = Serving(null_engine(script=SCRIPT), test_settings(database=database), null_model(name="other"))
    with other as second, Talk(second) as again:
        refused = again.ask("resume", session=talk.session)
        assert refused["code"] == "session"
        assert talk.session in refused["message"] and "null" in refused["message"]
    with serving(database) as third, Talk(third) as last:
        assert last.ask("resume", session=talk.session)["type"] == "resumed"


def test_transcripts_are_the_same_before_and_after_a_restart(database: str) -> None:
    with serving(database) as first, Talk(first) as talk:
        talk.open()
        talk.turn()
        url = f"/v1/sessions/{talk.session}/transcript"
        before = httpx.get(first.base_url + url).text
    with serving(database) as second:
        after = httpx.get(second.base_url + url).text
        assert after == before


# ---- kill -9


@contextmanager
def process(port: int, database: str, pause_s: float) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.server.live.process", str(port), database, str(pause_s)]
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    running = subprocess.Popen(
        command, cwd=root, env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    )
    try:
        deadline = time.monotonic() + 150
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            assert running.poll() is None and time.monotonic() < deadline, "the server does not start"
            time.sleep(0.05)
        yield running
    finally:
        running.kill()
        running.wait()


def free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return probing.getsockname()[1]


@pytest.mark.slow
def test_after_kill_9_in_the_middle_of_twenty_sessions_all_go_on_and_nothing_is_lost_or_doubled(
    database: str,
) -> None:
    asyncio.run(killed(database))


async def killed(database: str, num_sessions: int = 20) -> None:
    port = free_port()
    heard: dict[int, list[protocol.ServerMessage]] = {}
    reached = asyncio.Event()

    async def talk(number: int, session: Session) -> None:
        told: list[protocol.ServerMessage] = heard.setdefault(number, [])
        hear = session._line._hear

        def note(message: protocol.ServerMessage) -> None:
            told.append(message)
            hear(message)
            if sum(len(session.text("output")) > 40 for session in sessions) >= num_sessions // 2:
                reached.set()

        session._line._hear = note
        async with session:
            for turn in range(2):
                await session.write("user", f"question {turn} ")
                await session.write("user", "of many")
                await session.end()
                await session.wait_for_turn()
            assert session.text("output") == ANSWER * 2
            assert session.num_connections >= 2

    async with connect(f"http://127.0.0.1:{port}") as client:
        with process(port, database, 0.0002) as first:
            sessions = [client.open("plain", rows=True) for _ in range(num_sessions)]
            talks = [asyncio.ensure_future(talk(number, session)) for number, session in enumerate(sessions)]
            await asyncio.wait_for(reached.wait(), 60)
            first.send_signal(signal.SIGKILL)
            await asyncio.to_thread(first.wait)
        second = process(port, database, 0.0)
        await asyncio.to_thread(second.__enter__)
        try:
            await asyncio.wait_for(asyncio.gather(*talks), 60)
        finally:
            second.__exit__(None, None, None)
    for told in heard.values():
        numbers = [m.id for m in told if getattr(m, "id", None) is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        turns = [m for m in told if isinstance(m, protocol.Turn)]
        assert [turn.tokens["user"] for turn in turns] == [len("question 0 of many")] * 2
        rows = [m.t for m in told if isinstance(m, protocol.RowMade)]
        assert rows == sorted(set(rows))
