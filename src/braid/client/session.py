"""Live sessions on a server, from Python, without a model or torch.

    async with braid.client.connect("http://127.0.0.1:8000") as client:
        async with client.open(topology="think-aloud") as session:
            await session.write("user", "Sally has 3 apples.")
            await session.end()
            async for message in session:
                ...

A connection that is lost is made again, and nothing is lost or doubled by that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import anyio
import anyio.abc

from braid.client import protocol
from braid.client.line import Address, Line
from braid.client.tools import ClientTool, Tools, as_tools
from braid.errors import BraidError, InputError, SessionClosedError

__all__ = ["Client", "Session", "connect"]

_UNHEARD = (protocol.Done, protocol.Pong, protocol.Opened, protocol.Resumed)
"""What answers commands, and is no news."""


def connect(url: str, *, api_key: str | None = None, give_up_after_s: float = 60.0) -> Client:
    """A server, to be entered with `async with`; each session has a connection of its own.

    Args:
        url: `http://host:port`.
        api_key: If the server wants one.
        give_up_after_s: How long a lost connection is tried for.

    Raises:
        InputError: That is no address.
    """
    address = Address(url, api_key, give_up_after_s)
    _ = address.live_url  # so that a wrong one is told now
    return Client(address)


class Client:
    """Opens and resumes sessions; use `connect`.

    Args:
        address: Of the server.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._tasks: anyio.abc.TaskGroup | None = None

    def open(
        self,
        topology: str | Mapping[str, Any] = "chat",
        *,
        tools: Tools | None = None,
        sampling: Mapping[str, Mapping[str, Any]] | None = None,
        history: Sequence[Mapping[str, Any]] = (),
        copies: Mapping[str, int] | None = None,
        model: str | None = None,
        seed: int = 0,
        input: Literal["live", "editable"] = "live",  # noqa: A002 (as the protocol has it)
        most_drafted: int | None = None,
        draft_after: float | None = None,
        drift_bound: float | None = None,
        guesses: protocol.GuessesOf = "session",
        template: Mapping[str, Any] | None = None,
        show: Literal["external", "all"] = "external",
        rows: bool = False,
        max_rows: int | None = None,
        forces_answers: bool = True,
    ) -> Session:
        """A new session, to be entered with `async with`; it is closed when that is left.

        Args:
            topology: Name of a preset, or the streams as plain data.
            tools: Functions that run here when the model calls them, by name; results come back by themselves.
            sampling, history, copies, model, seed, input, most_drafted, draft_after, drift_bound, guesses, template,
                show, rows, max_rows, forces_answers: See `braid.client.protocol.Open`.

        Raises:
            InputError: An argument, or a tool, cannot be used.
        """
        ready = as_tools(tools)
        opening = {
            "type": "open",
            "topology": topology if isinstance(topology, str) else dict(topology),
            "tools": [tool.spec(name).model_dump(exclude_none=True) for name, tool in ready.items()],
            "sampling": {stream: dict(spec) for stream, spec in (sampling or {}).items()},
            "history": [dict(message) for message in history],
            "copies": dict(copies or {}),
            "model": model,
            "seed": seed,
            "input": input,
            "most_drafted": most_drafted,
            "draft_after": draft_after,
            "drift_bound": drift_bound,
            "guesses": guesses,
            "template": None if template is None else dict(template),
            "show": show,
            "rows": rows,
            "max_rows": max_rows,
            "forces_answers": forces_answers,
        }
        command = protocol.parse_command(opening)
        assert isinstance(command, protocol.Open)
        return Session(self, self._address, ready, opening=command)

    def resume(self, name: str, after: int = 0, *, tools: Tools | None = None) -> Session:
        """A session that is there already, to be entered with `async with`.

        Args:
            name: Its name.
            after: Id of the last message that was seen; everything later is told again.
            tools: As for `open`; calls that wait for a result are run.
        """
        return Session(self, self._address, as_tools(tools), name=name, after=after)

    def start(self, session: Session) -> None:
        """Have a session's line and tools run as long as this client is entered."""
        if self._tasks is None:
            raise InputError("the client has not been entered; use `async with connect(…) as client`")
        self._tasks.start_soon(session.run)

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)


class Session:
    """One live conversation. Iterating gives its messages, each once, whatever becomes of connections.

    Args:
        client, address: Where it is.
        tools: What runs here.
        opening: How it begins; None for one that is there already.
        name, after: Of one that is there.
    """

    def __init__(
        self,
        client: Client,
        address: Address,
        tools: Mapping[str, ClientTool],
        *,
        opening: protocol.Open | None = None,
        name: str = "",
        after: int = 0,
    ) -> None:
        self._client = client
        self._tools = dict(tools)
        self._line = Line(address, self._hear, opening=opening, session=name, last=after)
        self._waiting: deque[protocol.ServerMessage] = deque()
        self._turns: deque[protocol.Turn] = deque()
        self._texts: dict[str, list[str]] = {}
        self._changed = anyio.Event()
        self._is_there = False
        self._stays = False
        self._replayed = 0
        self._taken_calls: set[str] = set()
        self._due_calls: deque[protocol.OpenCall | protocol.ToolCall] = deque()
        self._scope: anyio.CancelScope | None = None
        self._has_run = anyio.Event()
        self.opened: protocol.Opened | None = None
        """What the server said of it, where it was opened here."""

    # ---- what there is

    @property
    def name(self) -> str:
        """What `resume` takes."""
        return self._line.session

    @property
    def last(self) -> int:
        """Id of the last message that has come."""
        return self._line.last

    @property
    def num_connections(self) -> int:
        """Connections that were made so far."""
        return self._line.num_connections

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes."""
        return self._line.is_over

    def text(self, stream: str) -> str:
        """What an output has said since this client listens, of all turns."""
        pieces = self._texts.get(stream, [])
        pieces[:] = ["".join(pieces)]
        return pieces[0]

    # ---- verbs

    async def write(self, stream: str, text: str) -> None:
        """Add text to an input stream; when this returns, it outlives the server."""
        await self._line.ask(lambda i: protocol.Write(id=i, stream=stream, text=text))

    async def end(self, stream: str | None = None) -> None:
        """Say that an input, or every one, is complete for this turn."""
        await self._line.ask(lambda i: protocol.End(id=i, stream=stream))

    async def flush(self, stream: str) -> None:
        """Feed what `write` holds back because it could still merge with what follows."""
        await self._line.ask(lambda i: protocol.Flush(id=i, stream=stream))

    async def snapshot(
        self,
        streams: Mapping[str, str] | None = None,
        *,
        segments: Mapping[str, str] | Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        mode: Literal["exact", "repair", "reuse"] = "exact",
    ) -> None:
        """Say all that inputs hold so far, in a session with editable input; the newest wins.

        It is read ahead, and its answer drafted; nobody hears of that before `commit`.

        Args:
            streams: Whole text by input stream; those that are not named stay as they are.
            segments: Text by id, or `{"id": …, "text": …}` each: of the session's template those that have changed;
                without one all of them.
            messages: The whole conversation; its last message is the first input's text.
            mode: What may be kept of what stands behind an edit, see `braid.client.protocol.Snapshot`.
        """
        await self._say(protocol.Snapshot, streams, segments, messages, mode)

    async def commit(
        self,
        streams: Mapping[str, str] | None = None,
        *,
        segments: Mapping[str, str] | Sequence[Mapping[str, Any]] | None = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        mode: Literal["exact", "repair", "reuse"] = "exact",
    ) -> None:
        """Say that the input will not change any more; its answer is told now.

        Args:
            streams, segments, messages, mode: A last snapshot, as for `snapshot`; without one the newest counts.
        """
        await self._say(protocol.Commit, streams, segments, messages, mode)

    async def _say(
        self,
        command: type[protocol.Snapshot | protocol.Commit],
        streams: Mapping[str, str] | None,
        segments: Mapping[str, str] | Sequence[Mapping[str, Any]] | None,
        messages: Sequence[Mapping[str, Any]] | None,
        mode: Literal["exact", "repair", "reuse"],
    ) -> None:
        """Send a command that says what inputs hold."""
        told: dict[str, Any] = {
            "type": command.model_fields["type"].default,
            "streams": None if streams is None else dict(streams),
            "segments": _listed(segments),
            "messages": None if messages is None else [dict(message) for message in messages],
            "mode": mode,
        }
        protocol.parse_command(told)  # so that what is no such command is said here
        await self._line.ask(lambda i: command(id=i, **told))

    async def rollback(self) -> None:
        """Forget all snapshots since the last commit."""
        await self._line.ask(lambda i: protocol.Rollback(id=i))

    async def suggest(self, stream: str, text: str) -> None:
        """Say what an output is likely to say; it is verified, and changes nothing but the time that it takes."""
        await self._line.ask(lambda i: protocol.Suggest(id=i, stream=stream, text=text))

    async def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all."""
        await self._line.ask(lambda i: protocol.Interrupt(id=i, stream=stream))

    async def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        await self._line.ask(lambda i: protocol.Cancel(id=i, stream=stream))

    async def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak: `text`, or what the model chooses with silence masked once."""
        await self._line.ask(lambda i: protocol.Force(id=i, stream=stream, text=text))

    async def close_stream(self, stream: str) -> None:
        """Close one stream for good."""
        await self._line.ask(lambda i: protocol.CloseStream(id=i, stream=stream))

    async def tool_result(self, call: str, content: Any = None, error: str | None = None) -> None:
        """Answer a call, where no tool of this client has."""
        await self._line.ask(lambda i: protocol.ToolResult(id=i, call=call, content=content, error=error))

    async def ping(self) -> None:
        """Return when the server has answered."""
        await self._line.ask(lambda i: protocol.Ping(id=i))

    async def close(self) -> None:
        """End the session; its transcript stays on the server. Harmless when repeated."""
        try:
            if not self._line.is_over:
                await self._line.ask(lambda i: protocol.Close(id=i))
        except SessionClosedError:
            return

    def leave(self) -> None:
        """Let the session go on without this client; `resume` comes back to it."""
        self._stays = True

    def drop(self) -> None:
        """Lose the connection, which is then made again; for tests."""
        self._line.drop()

    # ---- listening

    async def wait_for_turn(self) -> protocol.Turn:
        """The figures of the next turn that ends, each turn once.

        Raises:
            SessionClosedError, ConnectionLostError: None will.
        """
        await self._until(lambda: bool(self._turns))
        if not self._turns:
            raise self._line.error or SessionClosedError("the session is closed, and no turn was under way")
        return self._turns.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> protocol.ServerMessage:
        await self._until(lambda: bool(self._waiting))
        if self._waiting:
            return self._waiting.popleft()
        if self._line.error is not None:
            raise self._line.error
        raise StopAsyncIteration

    async def _until(self, holds: Any) -> None:
        """Wait until something holds, or nothing more comes."""
        while not (holds() or self._line.is_over):
            await self._changed.wait()

    def _hear(self, message: protocol.ServerMessage) -> None:
        if isinstance(message, protocol.Opened):
            self.opened = message
        if isinstance(message, protocol.Opened | protocol.Resumed):
            self._is_there = True
        if isinstance(message, protocol.Resumed):
            self._replayed = message.last
            self._due_calls.extend(message.calls)
        elif isinstance(message, protocol.Delta):
            self._texts.setdefault(message.stream, []).append(message.text)
        elif isinstance(message, protocol.Turn):
            self._turns.append(message)
        elif isinstance(message, protocol.ToolCall) and message.id > self._replayed:
            self._due_calls.append(message)  # of those before, the server has said which are open
        if not isinstance(message, _UNHEARD):
            self._waiting.append(message)
        self._ring()

    def _ring(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    # ---- life

    async def run(self) -> None:
        """Keep the line, and run the tools that are called; the client does this."""
        try:
            assert self._scope is not None
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._serve_calls, tasks)
                    await self._line.run()
                    tasks.cancel_scope.cancel()
        finally:
            self._line.is_over = True
            self._has_run.set()
            self._ring()

    async def _serve_calls(self, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await self._until(lambda: bool(self._due_calls))
            if not self._due_calls:
                return
            call = self._due_calls.popleft()
            if call.name in self._tools and call.call not in self._taken_calls:
                self._taken_calls.add(call.call)
                tasks.start_soon(self._serve, call)

    async def _serve(self, call: protocol.OpenCall | protocol.ToolCall) -> None:
        content, error = await self._tools[call.name].run(call.arguments)
        try:
            await self.tool_result(call.call, content, error)
        except BraidError as refused:  # the session has ended, or somebody else has answered
            self._waiting.append(protocol.Problem(code=refused.code, message=f"{call.call}: {refused}"))
            self._ring()

    async def __aenter__(self) -> Self:
        self._scope = anyio.CancelScope()
        self._client.start(self)
        await self._until(lambda: self._is_there)
        if not self._is_there:
            raise self._line.error or SessionClosedError("the session could not be opened")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._stays and not self._line.is_over:
                with anyio.move_on_after(5, shield=True):
                    await self.close()
        except BraidError:
            if error is None:
                raise
        finally:
            assert self._scope is not None
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._has_run.wait()


def _listed(segments: Mapping[str, str] | Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Segments as the protocol has them."""
    if isinstance(segments, Mapping):
        return [{"id": name, "text": text} for name, text in segments.items()]
    return None if segments is None else [dict(segment) for segment in segments]
