"""Running calls: whatever a tool does, a result comes back; only cancellation passes through."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.errors import InputError
from braid.sessions.tools import Call, Failure, Tool, Toolbox, ToolResult, tool

pytestmark = pytest.mark.anyio


def call(name: str, error: str | None = None, **arguments: Any) -> Call:
    return Call("call_1", "tool_call", name, arguments, "", error)


def box(function: Callable[..., object], **changes: Any) -> Toolbox:
    return Toolbox([tool(name="it")(function)], **changes)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@dataclass
class Found:
    when: date
    pages: set[int]


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        ("text", "text"),
        (None, None),
        (3.5, 3.5),
        ({"a": [1, True]}, {"a": [1, True]}),
        ({1: "keys become text"}, {"1": "keys become text"}),
        (Found(date(2026, 3, 1), {7}), {"when": "2026-03-01", "pages": [7]}),
    ],
)
async def test_results_are_json(returned: object, content: object) -> None:
    result = await box(lambda: returned).run(call("it"))
    assert (result.status, result.content) == ("ok", content)
    assert json.loads(result.to_text()) == {"id": "call_1", "name": "it", "result": content}


def _raises(error: BaseException) -> Callable[[], object]:
    def function() -> object:
        raise error

    return function


class Unprintable(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def _endless() -> Iterator[int]:
    yield from itertools.count()


async def _endless_async() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_raises(KeyError("city")), "KeyError: 'city'"),
        (_raises(TimeoutError()), "TimeoutError"),
        (_raises(StopIteration()), "StopIteration"),
        (_raises(SystemExit(3)), "SystemExit: 3"),
        (_raises(Unprintable()), "Unprintable"),
        (_raises(ExceptionGroup("", [ExceptionGroup("", [OSError("disk")])])), "OSError: disk"),
        (_raises(RecursionError("deep")), "RecursionError: deep"),
        (lambda: Failure("no such city"), "no such city"),
        (lambda: object(), "cannot be written as JSON"),
        (lambda: math.nan, "cannot be written as JSON"),
        (lambda: 10**5000, "cannot be written as JSON"),
        (lambda: _cycle(), "cannot be written as JSON"),
        (_endless, "returned a generator; it must return a list"),
        (_endless_async, "returned a generator; it must return a list"),
    ],
)
async def test_whatever_goes_wrong_in_a_tool_is_its_result(
    function: Callable[..., object], said: str
) -> None:
    result = await box(function).run(call("it"))
    assert result.status == "error" and said in result.content
    assert "Traceback" not in result.content
    assert json.loads(result.to_text()) == {"id": "call_1", "name": "it", "error": result.content}


async def test_calls_that_reach_no_tool() -> None:
    tools = Toolbox([add])
    assert (await tools.run(call("ad"))).content == "there is no tool 'ad'; did you mean 'add'? (known: add)"
    assert (await tools.run(call("", error="not JSON"))).content == "not JSON"
    bad = await tools.run(call("add", a=1, c=2))
    assert bad.status == "error"
    assert "b is required" in bad.content and "there is no argument 'c'" in bad.content
    assert (await Toolbox([]).run(call("add"))).status == "error"


async def test_a_tool_that_is_no_coroutine_is_an_error_too() -> None:
    made = Tool("it", "", {"type": "object"}, lambda arguments: 3)  # type: ignore[arg-type, return-value]
    assert (await Toolbox([made]).run(call("it"))).status == "error"


async def test_an_overdue_call_is_given_up() -> None:
    began = time.perf_counter()
    slow = box(lambda: time.sleep(0.5), timeout_s=0.01)
    result = await slow.run(call("it"))
    assert (result.status, result.content) == ("timeout", "no answer within 0.01 s; the call was given up")
    assert time.perf_counter() - began < 0.4
    assert 0.01 <= result.seconds < 0.4


async def test_a_tool_may_have_a_timeout_of_its_own() -> None:
    async def pause() -> str:
        await anyio.sleep(0.02)
        return "done"

    patient = tool(name="patient", timeout_s=30)(pause)
    hasty = tool(name="hasty", timeout_s=0.001)(pause)
    assert (await Toolbox([patient], timeout_s=0.001).run(call("patient"))).status == "ok"
    assert (await Toolbox([hasty], timeout_s=30).run(call("hasty"))).status == "timeout"


async def test_cancellation_passes_through() -> None:
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box(anyio.sleep_forever).run, call("it"))
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancel_passes_through() -> None:
    task = asyncio.create_task(box(anyio.sleep_forever).run(call("it")))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_tool_that_cancels_itself_has_a_result() -> None:
    async def awaits_a_cancelled_task() -> None:
        task = asyncio.create_task(asyncio.sleep(9))
        task.cancel()
        await task

    async with anyio.create_task_group():
        with anyio.fail_after(5):
            result = await box(awaits_a_cancelled_task).run(call("it"))
    assert (result.status, result.content) == ("cancelled", "the tool was cancelled")


async def test_so_many_run_at_once_and_the_rest_wait_their_turn() -> None:
    running, most, order = 0, 0, list[int]()
    gate = anyio.Event()

    async def work(number: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        order.append(number)
        await gate.wait()
        running -= 1

    tools = box(work, max_running=3)
    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(tools.run, call("it", number=number))
            await anyio.wait_all_tasks_blocked()
        assert order == [0, 1, 2]
        gate.set()
    assert (most, sorted(order)) == (3, list(range(10)))


async def test_waiting_for_a_turn_is_not_counted() -> None:
    async def pause() -> None:
        await anyio.sleep(0.03)

    tools = box(pause, max_running=1, timeout_s=0.25)
    results: list[ToolResult] = []

    async def run() -> None:
        results.append(await tools.run(call("it")))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(run)
    assert [result.status for result in results] == ["ok"] * 10


@pytest.mark.parametrize(
    ("function", "key"),
    [(lambda: "x" * 500, "result"), (lambda: ["x"] * 500, "result"), (_raises(OSError("x" * 500)), "error")],
)
async def test_long_results_are_cut_with_a_note(function: Callable[..., object], key: str) -> None:
    result = await box(function, max_result_chars=100).run(call("it"))
    said = json.loads(result.to_text())[key]
    assert " … [cut: 100 of " in said and said.endswith(" characters]")
    assert len(said) < 150


@settings(max_examples=50)
@given(
    st.text(max_size=20)
    | st.dictionaries(
        st.text(max_size=5), st.text(max_size=5) | st.floats() | st.binary(max_size=4), max_size=3
    )
)
async def test_a_result_is_always_one_line_of_json_that_can_be_sent(value: object) -> None:
    async def give() -> object:
        return value

    text = (await box(give, max_result_chars=15).run(call("it"))).to_text()
    assert "\n" not in text and text.encode()
    assert json.loads(text).keys() in ({"id", "name", "result"}, {"id", "name", "error"})


async def test_half_a_surrogate_pair_can_be_sent() -> None:
    assert (await box(lambda: "a\ud83d").run(call("it"))).to_text().encode().endswith(b'"result": "a?"}')


def test_schemas_and_description() -> None:
    tools = Toolbox([add])
    [schema] = tools.schemas()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "add"
    assert schema["function"]["parameters"]["required"] == ["a", "b"]
    how, line = tools.describe().split("\n")
    assert '{"name": ' in how
    assert json.loads(line) == schema["function"]
    assert Toolbox([]).describe() == ""
    assert tools.names == ("add",)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_s": 0},
        {"timeout_s": math.nan},
        {"max_running": 0},
        {"max_result_chars": 0},
        {"tools": [add, add]},
    ],
)
def test_toolboxes_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Toolbox(**{"tools": [add]} | wrong)


def test_a_keyboard_interrupt_is_not_a_result() -> None:
    async def main() -> None:
        await box(_raises(KeyboardInterrupt())).run(call("it"))

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert sys.exc_info() == (None, None, None)
