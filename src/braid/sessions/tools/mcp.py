"""Tools of a server that speaks the Model Context Protocol, through the protocol's own client library.

    McpTools ── a task of its own holds the connection ──▶ server
       └── tools: one Tool each ── call ──▶ what the server answers, or a Failure

The connection lives in a task of its own, so that a server that dies harms nothing but the calls to it. The library
is an extra and takes a second to import: it is imported when a source is made.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import anyio
import anyio.abc

from braid.errors import BraidError, InputError
from braid.sessions.tools.tool import Failure, Tool, check_timeout

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult, ContentBlock
    from mcp.types import Tool as ServerTool

__all__ = ["McpTools"]

DEFAULT_START_TIMEOUT_S = 30.0
_MAX_PAGES = 100
"""A server that lists more pages of tools than this is taken for one whose list never ends."""

_Connect = Callable[[], AbstractAsyncContextManager["ClientSession"]]


class McpTools:
    """The tools of one MCP server, for as long as it is connected.

    `stdio` starts a server, `over` uses a connection that is there already:

        async with McpTools.stdio("my-server", ["--read-only"]) as source:
            toolbox = Toolbox([*source.tools, *others])

    The tools are those that the server has when the block is entered. A call that is made after the block, or after
    the server has died, fails as a result. A source is entered once.

    Args:
        connect: Opens the connection, and closes it.
        what: The server, for messages.
        prefix: Put before the tools' names, so that two servers may each have a tool of one name.
        timeout_s: Seconds that a call may take; None for the toolbox's.
        start_timeout_s: Seconds in which the server must have answered and named its tools.

    Raises:
        InputError: A timeout is not above 0, or the client library is not installed.
    """

    def __init__(
        self,
        connect: _Connect,
        what: str,
        *,
        prefix: str = "",
        timeout_s: float | None = None,
        start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
    ) -> None:
        _require_library()
        check_timeout(start_timeout_s)
        self._connect = connect
        self._what = what
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._session: ClientSession | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._left = anyio.Event()
        self.tools: tuple[Tool, ...] = ()
        """The server's tools, in its order; none before the block is entered."""

    @classmethod
    def stdio(
        cls,
        command: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        prefix: str = "",
        timeout_s: float | None = None,
        start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
        errors_to: TextIO | None = None,
    ) -> Self:
        """The tools of a server that is started when the block is entered, and stopped when it is left.

        Args:
            command: The program.
            args: Its arguments.
            env: Variables for its environment, beside the few that are always passed on, `PATH` among them.
            errors_to: An open file for what the server writes to its standard error; None for this process's own.
            prefix, timeout_s, start_timeout_s: As for the class.

        Raises:
            InputError: As for the class.
        """
        connect = partial(_started, command, list(args), dict(env or {}), errors_to)
        return cls(
            connect, repr(command), prefix=prefix, timeout_s=timeout_s, start_timeout_s=start_timeout_s
        )

    @classmethod
    def over(
        cls,
        session: ClientSession,
        *,
        prefix: str = "",
        timeout_s: float | None = None,
        start_timeout_s: float = DEFAULT_START_TIMEOUT_S,
    ) -> Self:
        """The tools behind a connection that the caller has made and will close.

        Args:
            session: Entered and initialised.
            prefix, timeout_s, start_timeout_s: As for the class.

        Raises:
            InputError: As for the class.
        """
        connect = partial(_given, session)
        return cls(
            connect, "behind the session", prefix=prefix, timeout_s=timeout_s, start_timeout_s=start_timeout_s
        )

    async def __aenter__(self) -> Self:
        assert self._tasks is None, "a source is entered once"
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        problem: InputError | None = None
        try:
            with anyio.fail_after(self._start_timeout_s):
                await self._tasks.start(self._hold)
        except TimeoutError:
            reason = f"no answer within {self._start_timeout_s:g} s"
            problem = InputError(
                f"the MCP server {self._what} cannot be used: {reason}; it must speak MCP over stdio"
            )
        except BraidError as error:
            problem = InputError(f"the MCP server {self._what} cannot be used: {error}")
        except Exception as error:  # noqa: BLE001 - whatever keeps a server from starting
            problem = InputError(f"the MCP server {self._what} cannot be used: {_reason(error)}")
            problem.__cause__ = error
        except BaseException as error:
            await self._leave(error)
            raise
        if problem is not None:
            await self._leave(None)  # first: a task group that is left by an error wraps it
            raise problem
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None) -> None:
        """Let the connection close, which takes a stubborn server a few seconds."""
        assert self._tasks is not None
        self._left.set()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            await self._tasks.__aexit__(type(error), error, error.__traceback__)
        else:
            await self._tasks.__aexit__(None, None, None)

    async def _hold(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the connection open until the block is left."""
        is_up = False
        try:
            async with self._connect() as session:
                self.tools = await self._list_tools(session)
                self._session = session
                is_up = True
                task_status.started()
                await self._left.wait()
        except Exception:
            # Once it is up, a connection that breaks is told to the calls that need it.
            if not is_up:
                raise
        finally:
            self._session = None

    async def _list_tools(self, session: ClientSession) -> tuple[Tool, ...]:
        from mcp.types import PaginatedRequestParams

        tools: list[Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools += [self._tool(each) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return tuple(tools)
        raise InputError(f"its list of tools goes on after {_MAX_PAGES} pages")

    def _tool(self, each: ServerTool) -> Tool:
        return Tool(
            name=self._prefix + each.name,
            description=each.description or each.title or "",
            parameters=each.input_schema,
            call=partial(self._call, each.name),
            timeout_s=self._timeout_s,
        )

    async def _call(self, name: str, arguments: dict[str, Any]) -> object:
        from mcp import MCPError

        if self._session is None:
            return Failure(f"the connection to the MCP server {self._what} is closed")
        try:
            return _content(await self._session.call_tool(name, arguments))
        except MCPError as error:
            return Failure(f"the MCP server {self._what} says: {error}")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return Failure(f"the connection to the MCP server {self._what} is closed")


@asynccontextmanager
async def _started(
    command: str, args: list[str], env: dict[str, str], errors_to: TextIO | None
) -> AsyncGenerator[ClientSession]:
    """A connection to a server that is started for it."""
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(command=command, args=args, env=env)
    async with Client(stdio_client(server, errlog=errors_to or sys.stderr)) as client:
        yield client.session


@asynccontextmanager
async def _given(session: ClientSession) -> AsyncGenerator[ClientSession]:
    """A connection that belongs to someone else."""
    yield session


def _require_library() -> None:
    """Refuse where the client library is missing, or older than what is written for here."""
    how = "install it with: pip install 'braid-llm[tools]'"
    try:
        library = importlib.import_module("mcp")
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise InputError(f"tools of MCP servers need the package mcp; {how}") from None
    if not hasattr(library, "Client"):
        raise InputError(f"tools of MCP servers need mcp 2 or later; {how}")


def _reason(error: BaseException) -> str:
    """The first thing that went wrong, out of the groups that task groups wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _content(result: CallToolResult) -> object:
    """What a server answered: data where it gave any, else its text; of an error, its words."""
    text = "\n".join(_block(block) for block in result.content)
    if result.is_error:
        return Failure(text or "the tool failed and did not say why")
    data = result.structured_content
    if data is None:
        return text
    # Servers wrap what is no object into one with this single key.
    return data["result"] if isinstance(data, dict) and data.keys() == {"result"} else data


def _block(block: ContentBlock) -> str:
    """One block of an answer as text; what a language model cannot read is named, so that it knows of it."""
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    if block.type == "resource":
        return getattr(block.resource, "text", None) or f"[resource {block.resource.uri}]"
    return f"[{block.type}, {block.mime_type}]"
