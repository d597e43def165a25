"""Tools in a live session: the model goes on speaking while they run, and reads what they found in the next row."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from braid.engine.backend import Draw
from braid.errors import InputError, SessionClosedError
from braid.sessions.session import Session
from braid.sessions.tools import McpTools, Toolbox, tool
from braid.streams.events import TurnEvent
from braid.streams.topology import Topology
from tests.engine.harness import SILENCE, codec
from tests.engine.live import House, eventually, rows_reach, say, spec

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent / "tools" / "mcp_server.py"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def agent(**call: Any) -> Topology:
    """Native rows: a user, results, calls that depend on the user alone, and an answer."""
    return Topology(
        streams={
            "user": spec("input", priority="high"),
            "tool_result": spec("input", feed="burst"),
            "tool_call": spec(visibility="internal", priority="high", **call),
            "output": spec(),
        },
        reads={"user": [], "tool_call": ["user"], "tool_result": ["user"]},
        forbid=[("tool_result", "tool_call")],  # type: ignore[arg-type]
    )


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def voices(says: Mapping[str, str | Sequence[str]], then: int | None = None) -> Callable[[Draw], int]:
    """What each lane says, by turn; afterwards its end token, or `then`. A lane that is not named speaks for ever."""
    texts = {lane: [text] if isinstance(text, str) else list(text) for lane, text in says.items()}
    tokens = {lane: [codec().encode(text)[0] for text in turns] for lane, turns in texts.items()}

    def speak(draw: Draw) -> int:
        if draw.lane not in tokens:
            return 97 + draw.index % 26
        turns = tokens[draw.lane]
        said = turns[draw.turn] if draw.turn < len(turns) else []
        if draw.index < len(said):
            return said[draw.index]
        return codec().end_ids[0] if then is None else then

    return speak


def results(session: Session) -> list[dict[str, Any]]:
    """What has come back so far, in the order in which it was read."""
    text = session.text("tool_result")
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


class Recorded:
    """Notes the next row at the moment when a result is written."""

    def __init__(self, house: House) -> None:
        self.at: list[int] = []
        push = house.loop.push

        def noting(number: int, verb: str, *arguments: Any) -> Any:
            with house.loop.core.lock:
                if verb == "tell" and "tool_result" in arguments[0]:
                    self.at.append(house.loop._seats[number].conversation.t)
                return push(number, verb, *arguments)

        house.loop.push = noting  # type: ignore[method-assign]


class Clerk:
    """Tools that answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release: dict[str, anyio.Event] = {}
        self.num_cancelled = 0

    def toolbox(self, **settings: Any) -> Toolbox:
        @tool
        async def look(what: str) -> str:
            """Look something up."""
            self.asked.append(what)
            self.release[what] = anyio.Event()
            try:
                await self.release[what].wait()
            except anyio.get_cancelled_exc_class():
                self.num_cancelled += 1
                raise
            return f"all about {what}"

        @tool
        def fail(why: str) -> str:
            """Fail."""
            raise RuntimeError(why)

        @tool
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        return Toolbox([look, fail, add], **settings)


async def test_lanes_call_in_the_same_row_and_the_output_goes_on_meanwhile() -> None:
    clerk = Clerk()
    said = {"tool_call": call("look", what="tea"), "tool_call#1": call("look", what="jam")}
    async with House(speak=voices(said)) as house:
        recorded = Recorded(house)
        async with house.open(
            agent(max_streams=2), tools=clerk.toolbox(), copies={"tool_call": 2}
        ) as session:
            await say(session, "what is there?")
            await eventually(lambda: len(clerk.asked) == 2)
            assert sorted(clerk.asked) == ["jam", "tea"]
            lanes = [
                [t for t, token in session.transcript.tokens(lane) if token == ord("}")][-1]
                for lane in ("tool_call", "tool_call#1")
            ]
            assert lanes[0] == lanes[1], "both calls were complete in the same row"
            asked_at = session.rows
            await rows_reach(session, asked_at + 200)
            for what in ("tea", "jam"):  # in no order that anybody has asked for
                clerk.release[what].set()
                await eventually(
                    lambda what=what: any(r["result"] == f"all about {what}" for r in results(session))
                )
            await rows_reach(session, session.rows + 20)
        spoken = {t for t, _ in session.transcript.tokens("output")}
        waited = range(asked_at, recorded.at[0])
        assert len(waited) >= 200
        assert spoken.issuperset(waited), "a row without a word of the output, while a tool ran"
        # A result is read in the very next row.
        result_rows = [t for t, _ in session.transcript.tokens("tool_result")]
        assert recorded.at[0] == result_rows[0]
        assert recorded.at[1] in result_rows
        assert [r["result"] for r in results(session)] == ["all about tea", "all about jam"]


async def test_several_calls_of_one_lane_come_back_in_the_order_in_which_they_are_ready() -> None:
    clerk = Clerk()
    said = " then ".join(call("look", what=what) for what in "abc") + call("add", a=1, b=2)
    async with House(speak=voices({"tool_call": said})) as house:
        recorded = Recorded(house)
        async with house.open(agent(), tools=clerk.toolbox()) as session:
            await say(session)
            await eventually(lambda: len(clerk.asked) == 3 and len(results(session)) == 1)
            for what in "cab":
                clerk.release[what].set()
                await eventually(lambda what=what: f"all about {what}" in session.text("tool_result"))
        assert [(r["id"], r["result"]) for r in results(session)] == [
            ("call_4", 3),
            ("call_3", "all about c"),
            ("call_1", "all about a"),
            ("call_2", "all about b"),
        ]
        starts = [t for t, token in session.transcript.tokens("tool_result") if token == ord("{")]
        assert starts == recorded.at, "each was read in the very next row"


async def test_whatever_goes_wrong_comes_back_as_a_result() -> None:
    clerk = Clerk()
    said = "".join(
        [
            call("fail", why="the shop is closed"),
            call("lok", what="tea"),
            call("add", a="one", b=2),
            '{"name": "add" "arguments"}',
            call("look", what="never"),
            call("add", a=20, b=22),
            '{"name": "add", "argum',
        ]
    )
    toolbox = clerk.toolbox(timeout_s=0.1)
    async with (
        House(speak=voices({"tool_call": said})) as house,
        house.open(agent(), tools=toolbox) as session,
    ):
        await say(session)
        await eventually(lambda: len(results(session)) == 7)
        await rows_reach(session, session.rows + 10)
        assert session.error is None
    found = {r["id"]: r for r in results(session)}
    assert found["call_1"]["error"] == "RuntimeError: the shop is closed"
    assert "there is no tool 'lok'" in found["call_2"]["error"]
    assert "bad arguments: a: " in found["call_3"]["error"]
    assert "not JSON" in found["call_4"]["error"]
    assert found["call_5"]["error"] == "no answer within 0.1 s; the call was given up"
    assert found["call_6"]["result"] == 42
    assert "not finished" in found["call_7"]["error"]


async def test_silence_ends_no_turn_while_a_result_is_awaited() -> None:
    """However fast the engine is, and whatever the event loop is busy with meanwhile."""
    clerk = Clerk()
    said = {"tool_call": call("look", what="tea"), "output": "hm"}
    async with House(speak=voices(said, then=SILENCE)) as house:
        for number in range(10):
            async with house.open(agent(), tools=clerk.toolbox()) as session:
                turns: list[int] = []
                await say(session)
                if number % 2:
                    time.sleep(0.02)  # noqa: ASYNC251 (the event loop is busy: the engine goes on without it)
                await eventually(lambda n=number: len(clerk.asked) == n + 1)
                assert not session.turn_is_over
                await anyio.sleep(0.01)
                assert not session.turn_is_over
                before = session.rows
                clerk.release["tea"].set()
                await session.wait_for_turn()
                assert results(session)[0]["result"] == "all about tea"
                assert session.look().turn == 1
                assert session.rows > before
                await session.close()
                turns += [event.turn async for event in session if isinstance(event, TurnEvent)]
                assert turns == [0]
        # The control: who has no tools is done without them.
        async with house.open(agent()) as session:
            await say(session)
            await session.wait_for_turn()
            assert not session.text("tool_result")


async def test_a_result_that_comes_after_the_turn_begins_the_next_one() -> None:
    clerk = Clerk()
    said = {"tool_call": [call("look", what="tea")], "output": ["let me see", "it is a drink"]}
    async with House(speak=voices(said)) as house, house.open(agent(), tools=clerk.toolbox()) as session:
        await say(session)
        await session.wait_for_turn()
        assert session.look().turn == 1
        await eventually(lambda: clerk.asked == ["tea"])
        clerk.release["tea"].set()
        await eventually(lambda: session.look().turn == 2)
        assert "it is a drink" in session.text("output")
        assert results(session)[0]["result"] == "all about tea"


async def test_a_result_that_comes_during_a_draft_waits_for_its_commit() -> None:
    clerk = Clerk()
    said = {"tool_call": [call("look", what="tea")], "output": ["let me see", "it is a drink"]}
    async with House(speak=voices(said)) as house, house.open(agent(), tools=clerk.toolbox()) as session:
        await say(session)
        await session.wait_for_turn()
        await eventually(lambda: clerk.asked == ["tea"])
        await session.snapshot({"user": "and what is jam?"})
        clerk.release["tea"].set()
        await anyio.sleep(0.1)
        assert not results(session) and session.look().turn == 1
        await session.commit()
        await eventually(lambda: bool(results(session)))
        assert results(session)[0]["result"] == "all about tea"
        await session.wait_for_turn()


async def test_a_call_of_a_draft_is_made_once_and_after_its_commit() -> None:
    clerk = Clerk()
    said = {"tool_call": call("look", what="tea"), "output": "let me see"}
    async with (
        House(speak=voices(said)) as house,
        house.open(agent(), tools=clerk.toolbox(), draft_after=0.0) as session,
    ):
        for text in ("what is", "what is tea?"):
            await session.snapshot({"user": text})
            await eventually(lambda: drafted_call(session, text) == call("look", what="tea"))  # noqa: B023
        await anyio.sleep(0.1)
        assert clerk.asked == []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.commit)
            await eventually(lambda: bool(clerk.asked))
            clerk.release["tea"].set()
        await eventually(lambda: bool(results(session)))
        assert clerk.asked == ["tea"]
        assert [result["result"] for result in results(session)] == ["all about tea"]


def drafted_call(session: Session, text: str) -> str | None:
    """What the call lane says in a draft of a text that is complete."""
    draft = session.draft()
    if draft is None or dict(draft.inputs) != {"user": text}:
        return None
    return draft.texts["tool_call"]


async def test_in_views_a_result_is_read_and_answered() -> None:
    clerk = Clerk()
    topology = Topology(
        decoding="views",
        streams={
            "user": spec("input"),
            "tool_result": spec("input"),
            "tool_call": spec(visibility="internal", wait_k=1),
            "output": spec(wait_k="end"),
        },
    )
    said = {"tool_call": [call("look", what="tea")], "output": ["let me see", "it is a drink"]}
    house = House(speak=voices(said), silence=False)
    async with house, house.open(topology, tools=clerk.toolbox()) as session:
        await say(session, "what is tea?")
        await eventually(lambda: clerk.asked == ["tea"])
        await session.wait_for_turn()
        clerk.release["tea"].set()
        await eventually(lambda: session.look().turn == 2)
        assert "it is a drink" in session.text("output")


@pytest.mark.parametrize("how", ["leave", "close", "cancel", "shutdown", "fail"])
async def test_ending_while_a_tool_runs_cancels_it_and_raises_nothing(how: str) -> None:
    clerk = Clerk()
    said = {"tool_call": call("look", what="tea"), "output": "x" * 40}

    def fail(item: Any) -> None:
        if how == "fail" and clerk.asked:
            raise RuntimeError("the network fell over")

    async with House(speak=voices(said), fail=fail) as house:
        with anyio.CancelScope() as scope:
            async with house.open(agent(), tools=clerk.toolbox()) as session:
                await say(session)
                await eventually(lambda: clerk.asked == ["tea"])
                if how == "close":
                    await session.close()
                elif how == "cancel":
                    scope.cancel()
                    await anyio.sleep(1)
                elif how == "shutdown":
                    await house.engine.aclose(drain=False)
                elif how == "fail":
                    # A row of the output may have failed already.
                    with contextlib.suppress(SessionClosedError):
                        await say(session, "more")
                    await eventually(lambda: session.is_closed)
                    clerk.release["tea"].set()  # its result finds nobody
                    await anyio.sleep(0.02)
        assert clerk.num_cancelled == (0 if how == "fail" else 1)
        assert session.is_closed


async def test_a_tool_that_blocks_its_thread_holds_nobody_up() -> None:
    free = threading.Event()

    @tool
    def block(what: str) -> str:
        """Block."""
        free.wait(20)
        return what

    house = House(speak=voices({"tool_call": call("block", what="tea")}))
    async with house, house.open(agent(), tools=Toolbox([block])) as session:
        await say(session)
        await rows_reach(session, 300)
        assert not results(session)
        free.set()
        await eventually(lambda: len(results(session)) == 1)


async def test_sessions_share_a_toolbox_and_mix_up_nothing() -> None:
    clerk = Clerk()
    toolbox = clerk.toolbox(max_running=4)

    def speak(draw: Draw) -> int:
        return voices({"tool_call": call("add", a=draw.seed, b=0)})(draw)

    async with House(speak=speak) as house:

        async def run(seed: int) -> None:
            async with house.open(agent(), tools=toolbox, seed=seed) as session:
                await say(session)
                await eventually(lambda: len(results(session)) == 1)
                assert results(session)[0]["result"] == seed

        async with anyio.create_task_group() as tasks:
            for seed in range(8):
                tasks.start_soon(run, seed)


async def test_a_twin_has_a_desk_of_its_own() -> None:
    clerk = Clerk()
    said = {"tool_call": [call("look", what="tea"), call("add", a=2, b=2)]}
    async with House(speak=voices(said)) as house, house.open(agent(), tools=clerk.toolbox()) as session:
        await say(session)
        await eventually(lambda: clerk.asked == ["tea"])
        async with await session.fork() as twin:
            await twin.interrupt()
            await twin.wait_for_turn()
            await say(twin, "and now?")
            await eventually(lambda: [r["result"] for r in results(twin)] == [4])
            assert not results(session)
            clerk.release["tea"].set()
            await eventually(lambda: len(results(session)) == 1)
            assert len(results(twin)) == 1


async def test_a_refused_result_harms_no_other() -> None:
    clerk = Clerk()
    said = call("look", what="tea") + call("add", a=1, b=1)
    house = House(speak=voices({"tool_call": said}))
    async with house, house.open(agent(), tools=clerk.toolbox()) as session:
        await say(session)
        await eventually(lambda: len(results(session)) == 1 and clerk.asked == ["tea"])
        await session.close_stream("tool_result")
        clerk.release["tea"].set()
        await eventually(lambda: len(session._desk._runner.undelivered) == 1)  # type: ignore[union-attr]
        await rows_reach(session, session.rows + 20)
        assert session._desk.num_running == 0  # type: ignore[union-attr]
        assert house.loop._seats[0].conversation.num_awaited == 0


async def test_tools_need_a_stream_that_calls_them() -> None:
    topology = Topology(streams={"user": spec("input"), "output": spec()})
    async with House() as house:
        with pytest.raises(InputError, match="no tool flow"):
            async with house.open(topology, tools=Clerk().toolbox()):
                pass


async def test_tools_of_an_mcp_server(anyio_backend: str) -> None:
    if anyio_backend == "trio":
        return  # once is enough: the connection itself is tested on both in test_mcp
    said = call("add", a=19, b=23) + call("fail") + call("place")
    async with (
        McpTools.stdio(sys.executable, [str(SERVER)]) as source,
        House(speak=voices({"tool_call": said})) as house,
        house.open(agent(), tools=Toolbox(source.tools)) as session,
    ):
        await say(session)
        await eventually(lambda: len(results(session)) == 3, seconds=30)
    found = {r["name"]: r for r in results(session)}
    assert found["add"].get("result") in (42, "42", {"result": 42})
    assert "no such city" in found["fail"]["error"]
    assert found["place"]["result"] == {"city": "Nice", "sea": True}


async def test_many_calls_at_once_are_all_answered_once() -> None:
    """Forty calls from four lanes, some of them malformed, while the output speaks; each comes back exactly once."""
    clerk = Clerk()
    numbers = itertools.count()
    lanes = {
        lane: " ".join(call("add", a=next(numbers), b=0) for _ in range(10))
        for lane in ("tool_call", "tool_call#1", "tool_call#2", "tool_call#3")
    }
    async with House(speak=voices(lanes)) as house:
        async with house.open(
            agent(max_streams=4), tools=clerk.toolbox(), copies={"tool_call": 4}
        ) as session:
            await say(session)
            await eventually(lambda: len(results(session)) == 40, seconds=30)
            await rows_reach(session, session.rows + 50)
        found = results(session)
        assert sorted(r["result"] for r in found) == list(range(40))
        assert len({r["id"] for r in found}) == 40
