"""A session and its tools: calls start at once, results come in order of completion, nobody harms another."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from braid.errors import PoolFullError, SessionClosedError
from braid.sessions.tools import Call, Toolbox, ToolResult, ToolRunner, tool

pytestmark = pytest.mark.anyio

FLOWS = {"tool_call": "tool_result"}


class Port:
    """A session that writes down what it is told."""

    def __init__(self) -> None:
        self.delivered: list[tuple[str, dict[str, Any]]] = []
        self.log: list[str] = []
        self.results: dict[str, ToolResult] = {}
        self.refuse: set[str] = set()
        self.gate = anyio.Event()
        self.gate.set()
        self.busy: set[str] = set()

    async def deliver(self, stream: str, text: str) -> None:
        assert text.endswith("\n") and text.count("\n") == 1
        data = json.loads(text)
        assert stream not in self.busy, "results may not be written into one another"
        self.busy.add(stream)
        await self.gate.wait()
        self.busy.remove(stream)
        if data["id"] in self.refuse:
            raise PoolFullError("no room")
        self.delivered.append((stream, data))

    def began(self, call: Call) -> None:
        self.log.append(f"began {call.id}")

    def finished(self, call: Call, result: ToolResult) -> None:
        self.log.append(f"finished {call.id}")
        self.results[call.id] = result

    @property
    def ids(self) -> list[str]:
        return [data["id"] for _, data in self.delivered]


class Gates:
    """A tool whose calls return when the test says so."""

    def __init__(self) -> None:
        self.gates: dict[int, anyio.Event] = {}

    @property
    def toolbox(self) -> Toolbox:
        async def wait(n: int) -> int:
            await self.gates.setdefault(n, anyio.Event()).wait()
            return n

        return Toolbox([tool(wait)], max_running=50)

    async def open(self, n: int) -> None:
        self.gates[n].set()
        await anyio.wait_all_tasks_blocked()


def text(n: int) -> str:
    return json.dumps({"name": "wait", "arguments": {"n": n}})


async def test_calls_start_when_they_are_whole_and_results_come_as_they_are_ready() -> None:
    port, gates = Port(), Gates()
    async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
        for character in text(1) + " and " + text(2)[:-1]:
            runner.feed("tool_call", character)
        assert (runner.num_running, port.log) == (1, ["began call_1"])
        runner.feed("tool_call#1", text(3))
        runner.feed("tool_call", "}")
        assert runner.num_running == 3
        await anyio.wait_all_tasks_blocked()
        for n in (2, 1, 3):
            await gates.open(n)
        assert [(stream, data["result"]) for stream, data in port.delivered] == [
            ("tool_result", 2),
            ("tool_result", 1),
            ("tool_result", 3),
        ]
        await runner.drain()
        assert runner.num_running == 0
    assert port.log[:3] == ["began call_1", "began call_2", "began call_3"]


async def test_slow_delivery_keeps_the_order_of_completion() -> None:
    port, gates = Port(), Gates()
    port.gate = anyio.Event()
    async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
        runner.feed("tool_call", "".join(text(n) for n in range(20)))
        await anyio.wait_all_tasks_blocked()
        order = [7, 3, 19, 0, 12, *(n for n in range(20) if n not in (7, 3, 19, 0, 12))]
        for n in order:
            await gates.open(n)
        assert (port.delivered, runner.num_running) == ([], 20)
        port.gate.set()
        await runner.drain()
    assert [data["result"] for _, data in port.delivered] == order


async def test_lanes_of_different_streams_have_results_of_their_own() -> None:
    port = Port()
    flows = {"search": "found", "act": "done"}
    async with ToolRunner(Toolbox([]), flows=flows, port=port) as runner:
        assert runner.is_fed_by("search#2") and not runner.is_fed_by("output")
        runner.feed("search#2", '{"name": "a"}')
        runner.feed("act", '{"name": "b"}')
        await runner.drain()
    assert sorted((stream, data["name"]) for stream, data in port.delivered) == [
        ("done", "b"),
        ("found", "a"),
    ]


async def test_a_call_cut_short_by_the_end_of_its_lane_is_a_result() -> None:
    port = Port()
    async with ToolRunner(Toolbox([]), flows=FLOWS, port=port) as runner:
        runner.feed("tool_call", '{"name": "wait", ')
        runner.end("tool_call")
        runner.end("tool_call")
        await runner.drain()
    [(_, data)] = port.delivered
    assert data["id"] == "call_1" and "not finished" in data["error"]
    assert port.log == ["began call_1", "finished call_1"]


async def test_a_session_that_refuses_a_result_harms_no_other_call() -> None:
    port, gates = Port(), Gates()
    port.refuse = {"call_1", "call_3"}
    async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
        runner.feed("tool_call", "".join(text(n) for n in range(1, 5)))
        await anyio.wait_all_tasks_blocked()
        for n in (1, 2, 3, 4):
            await gates.open(n)
        await runner.drain()
        assert port.ids == ["call_2", "call_4"]
        assert [(each.call.id, type(each.error)) for each in runner.undelivered] == [
            ("call_1", PoolFullError),
            ("call_3", PoolFullError),
        ]
        assert runner.undelivered[0].result.content == 1


async def test_a_listener_that_fails_harms_no_other_call() -> None:
    class Faulty(Port):
        def finished(self, call: Call, result: ToolResult) -> None:
            super().finished(call, result)
            if call.id == "call_1":
                raise KeyError("a bug of the listener")

    port = Faulty()
    async with ToolRunner(Toolbox([]), flows=FLOWS, port=port) as runner:
        runner.feed("tool_call", '{"name": "a"} {"name": "b"}')
        await runner.drain()
        assert [each.call.id for each in runner.undelivered] == ["call_1"]
    assert port.ids == ["call_2"]


async def test_leaving_cancels_what_is_under_way_and_delivers_no_more() -> None:
    port, gates = Port(), Gates()
    with anyio.fail_after(5):
        async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
            runner.feed("tool_call", text(1) + text(2))
            await anyio.wait_all_tasks_blocked()
            await gates.open(1)
            runner.feed("tool_call", text(3))  # has not even started when the block is left
    assert port.ids == ["call_1"]
    assert {id_: result.status for id_, result in port.results.items()} == {
        "call_1": "ok",
        "call_2": "cancelled",
        "call_3": "cancelled",
    }
    assert runner.num_running == 0
    await runner.drain()
    for verb in (lambda: runner.feed("tool_call", "x"), lambda: runner.end("tool_call")):
        with pytest.raises(SessionClosedError):
            verb()


async def test_leaving_while_a_result_is_being_delivered() -> None:
    port = Port()
    port.gate = anyio.Event()
    with anyio.fail_after(5):
        async with ToolRunner(Toolbox([]), flows=FLOWS, port=port) as runner:
            runner.feed("tool_call", '{"name": "a"} {"name": "b"}')
            await anyio.wait_all_tasks_blocked()
    assert (port.delivered, runner.num_running) == ([], 0)
    assert [result.status for result in port.results.values()] == ["error", "error"]


async def test_an_error_of_the_block_passes_as_it_is() -> None:
    port, gates = Port(), Gates()

    async def fail() -> None:
        async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
            runner.feed("tool_call", text(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert port.results["call_1"].status == "cancelled"


async def test_cancelling_from_outside_ends_the_calls() -> None:
    port, gates = Port(), Gates()
    with anyio.fail_after(5), anyio.CancelScope() as scope:
        async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
            runner.feed("tool_call", text(1))
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert port.results["call_1"].status == "cancelled"


async def test_several_may_wait_for_the_drain() -> None:
    port, gates = Port(), Gates()
    async with ToolRunner(gates.toolbox, flows=FLOWS, port=port) as runner:
        await runner.drain()
        runner.feed("tool_call", text(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runner.drain)
            tasks.start_soon(runner.drain)
            await anyio.wait_all_tasks_blocked()
            runner.feed("tool_call", text(2))
            await anyio.wait_all_tasks_blocked()
            await gates.open(1)
            assert runner.num_running == 1
            await gates.open(2)
    assert port.ids == ["call_1", "call_2"]


async def test_a_runner_that_is_not_entered_says_so() -> None:
    with pytest.raises(SessionClosedError, match="not entered"):
        ToolRunner(Toolbox([]), flows=FLOWS, port=Port()).feed("tool_call", "x")
