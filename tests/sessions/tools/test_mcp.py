"""Tools of MCP servers: a real one over stdio, one in memory, and everything that may go wrong with either."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, ClientSession
from mcp.types import ListToolsResult
from mcp.types import Tool as ServerTool

from braid.errors import InputError
from braid.sessions.tools import Call, McpTools, Toolbox, ToolResult
from tests.sessions.tools.mcp_server import server

pytestmark = pytest.mark.anyio

SCRIPT = str(Path(__file__).with_name("mcp_server.py"))


def stdio(**changes: Any) -> McpTools:
    return McpTools.stdio(sys.executable, [SCRIPT], **changes)


async def run(toolbox: Toolbox, name: str, **arguments: Any) -> ToolResult:
    return await toolbox.run(Call("call_1", "tool_call", name, arguments, ""))


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[ClientSession]:
    async with Client(server) as client:
        yield client.session


async def test_a_server_over_stdio_until_it_dies() -> None:
    async with stdio(env={"BRAID_TEST": "passed on"}) as source:
        assert [tool.name for tool in source.tools][:2] == ["add", "place"]
        assert source.tools[0].description == "Add two numbers."
        assert source.tools[0].parameters["required"] == ["a"]
        toolbox = Toolbox(source.tools, timeout_s=20)
        hanging: list[ToolResult] = []

        async def hang() -> None:
            hanging.append(await run(toolbox, "hang"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            assert (await run(toolbox, "add", a=2)).content == 3  # the other call does not hold it up
            tasks.cancel_scope.cancel()
        assert (await run(toolbox, "environment", variable="BRAID_TEST")).content == "passed on"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hang)
            await anyio.wait_all_tasks_blocked()
            results = [await run(toolbox, "die")]
        results += [*hanging, await run(toolbox, "add", a=2)]
        assert [result.status for result in results] == ["error"] * 3
        assert all(sys.executable in result.content for result in results)
    after = await run(toolbox, "add", a=2)
    assert after.status == "error" and "is closed" in after.content


@pytest.mark.parametrize(
    ("name", "arguments", "status", "content"),
    [
        ("add", {"a": 2, "b": 5}, "ok", 7),
        ("place", {}, "ok", {"city": "Nice", "sea": True}),
        ("mixed", {}, "ok", "look:\n[image, image/png]"),
        ("fail", {}, "error", "no such city"),
        ("add", {"a": "two"}, "error", "two"),
        ("add", {}, "error", "required"),
    ],
)
async def test_answers_and_errors(name: str, arguments: Any, status: str, content: Any) -> None:
    async with in_memory() as session, McpTools.over(session) as source:
        result = await run(Toolbox(source.tools), name, **arguments)
    assert result.status == status
    assert content in result.content if status == "error" else content == result.content


async def test_a_timeout_and_a_prefix() -> None:
    async with in_memory() as session, McpTools.over(session, prefix="s.", timeout_s=0.02) as source:
        toolbox = Toolbox(source.tools)
        assert (await run(toolbox, "s.hang")).status == "timeout"
        assert (await run(toolbox, "s.add", a=1)).content == 2


async def test_a_given_session_stays_open() -> None:
    async with in_memory() as session:
        async with McpTools.over(session):
            pass
        async with McpTools.over(session) as source:
            assert (await run(Toolbox(source.tools), "add", a=1)).content == 2


async def test_an_error_of_the_block_passes_as_it_is() -> None:
    async with in_memory() as session:
        with pytest.raises(ZeroDivisionError):
            async with McpTools.over(session):
                raise ZeroDivisionError


async def test_a_connection_that_breaks_in_the_end_is_nobodys_error() -> None:
    @contextlib.asynccontextmanager
    async def breaking() -> AsyncIterator[ClientSession]:
        async with in_memory() as session:
            yield session
        raise OSError("broken pipe")

    async with McpTools(breaking, "it") as source:
        toolbox = Toolbox(source.tools)
        assert (await run(toolbox, "add", a=1)).content == 2
    assert "is closed" in (await run(toolbox, "add", a=1)).content


async def test_cancelling_from_outside_ends_the_server() -> None:
    with anyio.fail_after(30), anyio.CancelScope() as scope:
        async with stdio():
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("command", "args", "said"),
    [
        ("no-such-program-anywhere", [], "cannot be used"),
        (sys.executable, ["-c", "raise SystemExit(3)"], "cannot be used"),
        (sys.executable, ["-c", "import sys; sys.stdin.read()"], "no answer within 0.3 s"),
    ],
)
async def test_servers_that_do_not_start(command: str, args: list[str], said: str) -> None:
    began = time.perf_counter()
    with pytest.raises(InputError, match=said) as caught:
        async with McpTools.stdio(command, args, start_timeout_s=0.3 if "0.3" in said else 20):
            pass
    assert command in str(caught.value)
    assert time.perf_counter() - began < 15


class Lists:
    """A session whose server lists pages of tools."""

    def __init__(self, pages: int, name: str = "tool") -> None:
        self.pages = pages
        self.name = name

    async def list_tools(self, *, params: Any) -> ListToolsResult:
        page = int(params.cursor or 0)
        tool = ServerTool(name=f"{self.name}{page}", input_schema={"type": "object"})
        cursor = str(page + 1) if page + 1 < self.pages else None
        return ListToolsResult(tools=[tool], next_cursor=cursor)


async def test_tools_are_listed_page_by_page() -> None:
    async with McpTools.over(Lists(3)) as source:  # type: ignore[arg-type]
        assert [tool.name for tool in source.tools] == ["tool0", "tool1", "tool2"]


@pytest.mark.parametrize(
    ("lists", "said"), [(Lists(10**6), "100 pages"), (Lists(1, "a b"), "no name for a tool")]
)
async def test_lists_that_cannot_be(lists: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        async with McpTools.over(lists):
            pass


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InputError, match=r"pip install 'braid-llm\[tools\]'"):
        McpTools.stdio("server")
    monkeypatch.setitem(sys.modules, "mcp", os)
    with pytest.raises(InputError, match="mcp 2 or later"):
        McpTools.stdio("server")


def test_a_timeout_that_cannot_be() -> None:
    with pytest.raises(InputError):
        McpTools.stdio("server", start_timeout_s=0)
