"""All live sessions of a server: opened, resumed, closed when nobody comes back, put aside when the server stops.

open ──▶ live ── connection drops ──▶ live, alone ── close_idle_after_s ──▶ closed ── keep_closed_s ──▶ forgotten
           ▲                            │
           └── resume ── stored ◀── server stops, or is killed
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc
import anyio.to_thread

from braid import __version__
from braid.client import protocol
from braid.engine.editing.editable import DRIFT_BOUND
from braid.errors import (
    BraidError,
    EngineClosedError,
    ForbiddenError,
    InputError,
    NotFoundError,
    ServerError,
    SessionError,
)
from braid.model.chat import Chat
from braid.model.codec import TokenizerCodec
from braid.server.live.feed import Feed
from braid.server.live.session import LiveSession, Pending
from braid.server.live.telling import visible_lanes
from braid.server.store import FORMAT, Append, SessionRecord, Store, StoredMessage
from braid.sessions.generate import with_sampling
from braid.sessions.template import Template
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from braid.engine.backend import SessionHandle
    from braid.server.access import Caller
    from braid.server.service import Service
    from braid.streams.transcript import Transcript

__all__ = ["Hub"]

GOING_AWAY = 1012
"""WebSocket close code: the service restarts."""
LOOK_EVERY_S = 30.0
GOODBYE_S = 1.0
LAST_WORDS_S = 5.0
"""How long the end of a session that is deleted may take."""


class Hub:
    """The live sessions of one server; entered and left with it.

    Args:
        service: The server.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._backend = service.engine.backend
        self._live: dict[str, LiveSession] = {}
        self._callers: dict[str, Caller] = {}
        """Who is charged for a session, by its name."""
        self._resuming: dict[str, anyio.Lock] = {}
        self._store: Store | None = None
        self._is_stopping = False
        self._tasks: anyio.abc.TaskGroup | None = None
        self._due: deque[str] = deque()
        """Sessions that may have news; the engine's thread adds to it."""
        self._is_noted = False
        """Whether the pump is about to be woken."""
        self._news = anyio.Event()
        self._loop: asyncio.AbstractEventLoop

    @property
    def store(self) -> Store:
        """Where sessions are kept.

        Raises:
            EngineClosedError: The server is stopped.
        """
        if self._store is None:
            raise EngineClosedError("the server is not running")
        return self._store

    @property
    def num_live(self) -> int:
        """Sessions that are open at the engine."""
        return len(self._live)

    # ---- life

    async def __aenter__(self) -> Self:
        settings = self.service.settings
        self._store = await Store.open(settings.database)
        waiting = await self._store.open_sessions(self.service.model.name)
        if waiting:
            self.service.log.info("sessions_found", count=len(waiting))
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._loop = asyncio.get_running_loop()
        self._tasks.start_soon(self._look_after)
        self._tasks.start_soon(self._pump)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        with anyio.CancelScope(shield=True):
            self.dismiss()
            for session in list(self._live.values()):
                with contextlib.suppress(BraidError):
                    await session.suspend()
                self._forget(session)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)
        with anyio.CancelScope(shield=True):
            store, self._store = self.store, None
            await store.close()

    def dismiss(self) -> None:
        """Tell all connected clients that the server stops; their sessions go on at its next start. Harmless twice."""
        self._is_stopping = True
        gone = EngineClosedError("the server stops; resume the session when it is there again")
        for session in self._live.values():
            if session.feed.connection is not None:
                session.feed.connection.dismiss(GOING_AWAY, gone)

    async def say_goodbye(self) -> None:
        """Dismiss all clients, and give them a moment to hear why."""
        self.dismiss()
        connected = [session.feed for session in self._live.values()]
        with anyio.move_on_after(GOODBYE_S):
            for feed in connected:
                await feed.until_alone()

    # ---- opening

    async def open(self, caller: Caller, command: protocol.Open) -> LiveSession:
        """Open a session.

        Raises:
            BraidError: It cannot be opened; by its own class.
        """
        self._require_running()
        topology, settings = self._plan(caller, command)
        caller.begin()
        name = f"s_{secrets.token_hex(12)}"
        try:
            handle = await self._start(topology, settings)
        except BaseException:
            caller.end()
            raise
        now = time.time()
        record = SessionRecord(
            name, caller.name, self.service.model.name, topology.to_dict(), settings, now, now, last_id=1
        )
        opened = self._opened(record, handle, command.id)
        try:
            await self.store.create(record, [opened])
        except BaseException:
            self._backend.abort(handle.number, "not stored")
            caller.end()
            raise
        session = self._enter(
            caller, LiveSession(self._backend, handle, self.store, record, codec=self._codec)
        )
        session.feed.publish([opened])
        return session

    @property
    def _codec(self) -> TokenizerCodec:
        return self.service.model.codec

    def _require_running(self) -> None:
        if self._is_stopping:
            raise EngineClosedError("the server stops; try again when it is there again")

    def _plan(self, caller: Caller, command: protocol.Open) -> tuple[Topology, dict[str, Any]]:
        """What a session is started with; everything that could be wrong is found out."""
        service = self.service
        service.require_model(command.model)
        if command.show == "all" and not caller.sees_internal:
            raise ForbiddenError("this key may not see inner streams; open the session with show: external")
        limit = service.settings.max_rows
        if command.max_rows is not None and command.max_rows > limit:
            raise InputError(f"max_rows is {command.max_rows}; this server allows {limit}")
        most_drafted = service.settings.max_drafted
        if command.most_drafted is not None and command.most_drafted > most_drafted:
            raise InputError(f"most_drafted is {command.most_drafted}; this server allows {most_drafted}")
        topology = with_sampling(service.topology(command.topology), command.sampling_specs())
        template = None if command.template is None else Template.of(command.template)
        if template is not None:
            topology = template.topology(topology)
            template.fitted(service.model.codec, topology)
        tools = [tool.model_dump(exclude={"id"}) for tool in command.tools]
        if tools and not topology.resolved_tool_flows:
            raise InputError(
                "tools were given to a session whose topology has no tool flow; add an output `tool_call` and an input "
                "`tool_result`, or name your own in `tool_flows`"
            )
        if len({tool["name"] for tool in tools}) < len(tools):
            raise InputError("two tools have the same name")
        engine = {
            "seed": command.seed,
            "copies": dict(command.copies),
            "forces_answers": command.forces_answers,
            "salt": caller.salt,
            "chat": _chat(command, topology, tools),
            "most_drafted": most_drafted if command.most_drafted is None else command.most_drafted,
            "draft_after": service.settings.draft_after
            if command.draft_after is None
            else command.draft_after,
            "drift_bound": DRIFT_BOUND if command.drift_bound is None else command.drift_bound,
            "guesses": service.guesses(command.guesses),
        }
        self._backend.check(topology, engine)
        settings = {
            "engine": engine,
            "input": command.input,
            "template": None if template is None else template.to_dict(),
            "tools": tools,
            "show": command.show,
            "rows": command.rows,
            "max_rows": limit if command.max_rows is None else command.max_rows,
        }
        return topology, settings

    async def _start(
        self, topology: Topology, settings: Mapping[str, Any], lines: Sequence[Any] = ()
    ) -> SessionHandle:
        backend = self._backend
        given = {**settings["engine"], "ledger": list(lines)}
        if given.get("guesses") == "tenant" and not self.service.settings.tenant_guesses:
            given["guesses"] = "session"  # it was allowed when the session was opened
        if any(spec.grammar is not None for spec in topology.streams.values()):
            await anyio.to_thread.run_sync(backend.warm, topology)
        await backend.admit()
        try:
            # In a thread, because a long ledger takes its time.
            handle = (
                await anyio.to_thread.run_sync(backend.start, topology, given)
                if lines
                else backend.start(topology, given)
            )
        except BaseException:
            backend.decline()
            raise
        backend.limit(handle.number, max_rows=settings["max_rows"], max_turns=None)
        return handle

    def _opened(self, record: SessionRecord, handle: SessionHandle, re: str | None) -> StoredMessage:
        topology = handle.topology
        message = protocol.Opened(
            id=1,
            re=re,
            session=record.name,
            model=record.model,
            topology=topology.to_dict(),
            lanes=visible_lanes(
                topology, record.settings["engine"]["copies"], shows_all=record.settings["show"] == "all"
            ),
            inputs=list(topology.input_names),
            outputs=list(topology.output_names),
        )
        return StoredMessage(1, message.model_dump_json(), re)

    def _enter(self, caller: Caller, session: LiveSession) -> LiveSession:
        self._live[session.name] = session
        self._callers[session.name] = caller
        name = session.name
        session.handle.mailbox.on_news = session.feed.on_room = partial(self._note_news, name)
        self._note_news(name)  # it may have come before anybody was told of it
        return session

    async def _pump(self) -> None:
        """Tell and store what happens to all sessions: those with news at a time share one commit."""
        limit = self.service.settings.max_unread
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            names: dict[str, None] = {}
            while self._due:
                names[self._due.popleft()] = None
            pending = [taken for name in names if (taken := self._begin(name, limit)) is not None]
            with anyio.CancelScope(shield=True):  # what is taken must be stored
                await self._keep(pending)

    async def _keep(self, pending: Sequence[Pending]) -> None:
        """Store what was taken, and tell it."""
        errors = await self.store.append_all([each.append for each in pending])
        for each, error in zip(pending, errors, strict=True):
            session = each.session
            session.finish(each, error)
            if error is not None:
                told = {"session": session.name, "code": error.code}
                self.service.log.warning("session_failed", text=str(error), **told)
            if session.is_over:
                self._forget(session)

    def _begin(self, name: str, limit: int) -> Pending | None:
        """Take a session's news; whatever is wrong with one, the others go on."""
        session = self._live.get(name)
        if session is None:
            return None
        try:
            pending = session.begin(limit)
        except Exception as error:  # noqa: BLE001 (told as such, and logged with where it was)
            self.service.log.mistake("session_failed", error, session=name)
            session.failure = ServerError("an internal error; resume the session to go on from before it")
            session.leave()
            pending = None
        if pending is None and session.is_over:
            self._forget(session)
        return pending

    def _note_news(self, name: str) -> None:
        """A session has news; called from any thread."""
        self._due.append(name)
        if not self._is_noted:
            self._is_noted = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_noted = False
        self._news.set()

    def _forget(self, session: LiveSession) -> None:
        if self._live.pop(session.name, None) is None:
            return
        self._callers.pop(session.name).end()
        session.leave()
        session.left.set()
        connection = session.feed.connection
        if session.failure is not None and connection is not None:
            connection.dismiss(1011, session.failure)

    # ---- going on

    async def resume(self, caller: Caller, name: str) -> LiveSession | Feed:
        """A session that was opened before: live, or, where it has ended, what it told.

        Raises:
            NotFoundError: There is none of that name, or it is somebody else's.
            SessionError: A newer Braid wrote it, or another model spoke in it.
            BraidError: The engine cannot go on with it.
        """
        self._require_running()
        lock = self._resuming.setdefault(name, anyio.Lock())
        try:
            async with lock:
                session = self._live.get(name)
                if session is not None and not session.is_over:
                    _require_own(caller, session.caller, name)
                    return session
                if session is not None:
                    self._forget(session)
                return await self._restore(caller, name)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._resuming.pop(name, None)

    async def _restore(self, caller: Caller, name: str) -> LiveSession | Feed:
        record = await self._record(caller, name)
        if record.closed is not None:
            return Feed(name, self.store, record.last_id)
        self._require_ours(record)
        lines = await self.store.lines(name)
        answers = await self.store.answers(name)
        caller.begin()
        try:
            handle = await self._start(Topology.from_dict(record.topology), record.settings, lines)
        except BaseException:
            caller.end()
            raise
        self.service.log.info("session_resumed", session=name, lines=len(lines))
        session = LiveSession(
            self._backend, handle, self.store, record, lines=lines, answers=answers, codec=self._codec
        )
        self._enter(caller, session)
        await session.catch_up()
        return session

    async def _record(self, caller: Caller, name: str) -> SessionRecord:
        record = await self.store.read(name)
        if record is None:
            raise _unknown(name)
        _require_own(caller, record.caller, name)
        return record

    def _require_ours(self, record: SessionRecord) -> None:
        if record.format > FORMAT:
            raise SessionError(
                f"the session {record.name} was written by Braid {record.braid}, which is newer than this one "
                f"({__version__}); it is kept, and goes on there"
            )
        if record.model != self.service.model.name:
            raise SessionError(
                f"the session {record.name} was held with the model {record.model}, and this server has "
                f"{self.service.model.name}; it is kept, and goes on where that model is served"
            )

    # ---- what there is

    async def sessions_of(self, caller: Caller) -> list[SessionRecord]:
        """Somebody's sessions, the newest first."""
        return await self.store.sessions_of(caller.name)

    def is_connected(self, name: str) -> bool:
        """Whether a client listens to that session now."""
        session = self._live.get(name)
        return session is not None and session.feed.connection is not None

    async def transcript(self, caller: Caller, name: str) -> tuple[Transcript, list[str]]:
        """A session's record so far, and the lanes of it that its client may see.

        Raises:
            NotFoundError, SessionError: As for `resume`.
        """
        record = await self._record(caller, name)
        session = self._live.get(name)
        if session is not None:
            return session.handle.transcript, session.lanes()
        self._require_ours(record)
        topology = Topology.from_dict(record.topology)
        settings = {**record.settings["engine"], "ledger": await self.store.lines(name)}
        transcript = await anyio.to_thread.run_sync(self._backend.recount, topology, settings)
        shows_all = record.settings["show"] == "all"
        return transcript, visible_lanes(transcript.topology, transcript.copies, shows_all=shows_all)

    async def delete(self, caller: Caller, name: str) -> None:
        """Close a session, if it is open, and forget it.

        Raises:
            NotFoundError: There is none of that name, or it is somebody else's.
        """
        await self._record(caller, name)
        session = self._live.get(name)
        if session is not None:
            session.close("deleted")
            with anyio.move_on_after(LAST_WORDS_S):
                await session.left.wait()  # until its end is stored, and told
            self._forget(session)
        await self.store.delete(name)

    # ---- looking after them

    async def _look_after(self) -> None:
        settings = self.service.settings
        while True:
            try:
                await self.look_after()
            except BraidError as error:
                self.service.log.warning("store_failed", code=error.code, text=str(error))
            await anyio.sleep(min(LOOK_EVERY_S, settings.close_idle_after_s / 2))

    async def look_after(self) -> None:
        """Close sessions that nobody has come back to, and forget those that ended long ago."""
        settings, now = self.service.settings, time.time()
        for session in list(self._live.values()):
            if (
                session.feed.connection is None
                and time.monotonic() - session.touched > settings.close_idle_after_s
            ):
                session.close("idle")
        stale = await self.store.open_sessions(self.service.model.name, now - settings.close_idle_after_s)
        for record in stale:
            if record.name not in self._live and record.name not in self._resuming:
                await self._close_stored(record)
        await self.store.prune(now - settings.keep_closed_s)

    async def _close_stored(self, record: SessionRecord) -> None:
        """End a session that no engine holds; whoever resumes it is told."""
        last = record.last_id + 1
        closed = protocol.Closed(id=last, at=round(time.time() - record.opened, 4), t=0, reason="idle")
        closing = Append(
            record.name,
            messages=[StoredMessage(last, closed.model_dump_json())],
            state=record.state,
            num_lines=record.num_lines,
            last_id=last,
            closed=time.time(),
        )
        await self.store.append(closing)


def _chat(
    command: protocol.Open, topology: Topology, tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The conversation that the first turn goes on with; of views, the template tells the model of its tools."""
    options: dict[str, Any] = {}
    if tools and topology.decoding == "views":
        options["tools"] = [{"type": "function", "function": dict(tool)} for tool in tools]
    if not command.history and not options:
        return None
    return Chat.of([*command.history, {"role": "user", "content": ""}], options).to_data()


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(f"there is no session {name!r}")


def _require_own(caller: Caller, owner: str, name: str) -> None:
    if caller.name != owner:
        raise _unknown(name)
