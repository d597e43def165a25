"""A live session: the engine's news become messages, are stored, and only then told; commands become verbs.

    engine's mailbox ──┐ under one lock: take all ▶ messages, with ids ▶ store, one commit ▶ feed
    a command ─ verb ──┘                  └── `done` stands behind the ledger's line of its verb

So whatever a client has heard is stored, with the lines that the engine needs to stand there again. A process that
is killed leaves lines for all events that are stored; the engine that goes on tells all events since the opening, and
those that were stored are passed over by their number.

What is drafted of input that may still change is no news, and not stored; its newest snapshot is, and is drafted anew
after a restart.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from braid.client import protocol
from braid.engine.session.record import LedgerLine, News
from braid.errors import BraidError, RegimeError, SessionClosedError, StreamClosedError
from braid.server.live.calls import CallBook
from braid.server.live.feed import Feed
from braid.server.live.telling import Teller, Telling, visible_lanes
from braid.server.store import Append, SessionRecord, Store, StoredMessage
from braid.sessions.snapshots import Reading, Snapshots
from braid.sessions.template import Template
from braid.streams.events import ClosedEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from braid.engine.backend import SessionBackend, SessionHandle
    from braid.model.codec import TokenizerCodec
    from braid.sessions.tools.calls import Call
    from braid.sessions.tools.toolbox import ToolResult

__all__ = ["LiveSession", "Pending", "StandingCommand"]

MOST = 1000
"""News that becomes one commit, where there is more."""

StandingCommand = (
    protocol.Write
    | protocol.End
    | protocol.Flush
    | protocol.Snapshot
    | protocol.Commit
    | protocol.Rollback
    | protocol.Suggest
    | protocol.Interrupt
    | protocol.Cancel
    | protocol.Force
    | protocol.CloseStream
    | protocol.ToolResult
    | protocol.Close
)
"""What can be said to a session that is open."""


@dataclass
class _Batch:
    """What is stored with one commit."""

    lines: list[Any] = field(default_factory=list[Any])
    messages: list[StoredMessage] = field(default_factory=list[StoredMessage])
    done: str | None = None
    """The command that this commit answers, until it is answered."""
    has_ended: bool = False
    has_refused: bool = False
    """Whether a call was answered that nobody can run."""
    is_due: bool = False
    """Whether there is something to store beside lines and messages: a command was carried out."""


@dataclass(frozen=True, slots=True)
class Pending:
    """News of a session that was taken, and is being stored."""

    session: LiveSession
    batch: _Batch
    since: float | None
    append: Append


class LiveSession:
    """One session that is open at the engine.

    Args:
        backend, handle: The engine, and the session there; it keeps a ledger.
        store: Where everything is kept.
        record: As it is stored.
        lines: Of its ledger so far.
        answers: Commands that were carried out, and the message that said so.
        codec: The model's tokenizer, in which the room of a template's slots is counted.
    """

    def __init__(
        self,
        backend: SessionBackend,
        handle: SessionHandle,
        store: Store,
        record: SessionRecord,
        *,
        lines: Sequence[Any] = (),
        answers: Mapping[str, int] | None = None,
        codec: TokenizerCodec | None = None,
    ) -> None:
        self.record = record
        self.handle = handle
        self.feed = Feed(record.name, store, record.last_id)
        self.touched = time.monotonic()
        """When something has happened, or a client has left."""
        self.is_over = False
        """Whether it has ended, or is suspended; nothing more is stored then."""
        self.left = anyio.Event()
        """Set when the hub has let it go."""
        self.failure: BraidError | None = None
        """Why it was suspended, where it could not be stored."""
        self._backend = backend
        self._store = store
        self._lock = anyio.Lock()
        self._answers = dict(answers or {})
        self._last_id = record.last_id
        self._num_lines = record.num_lines
        self._num_told: int = record.state.get("events", 0)
        self._num_seen = 0
        self._draft: dict[str, str] = dict(record.state.get("draft", {}))
        """The newest snapshot, until it is committed."""
        self._told_messages: list[dict[str, Any]] | None = record.state.get("messages")
        """The conversation, where it told one."""
        template = record.settings.get("template")
        self._snapshots = Snapshots(
            handle.topology,
            None if template is None else Template.of(template).fitted(codec, handle.topology),
            record.state.get("segments"),
            record.state.get("is_empty", False),
        )
        self._mode: str = record.state.get("mode", "exact")
        self._late: dict[str, str] = dict(record.state.get("late", {}))
        """Results of tools that came while input was open to change; they are told when it is committed."""
        self._copies: dict[str, int] = record.settings["engine"].get("copies", {})
        shows_all = record.settings["show"] == "all"
        self._teller = Teller(
            handle.topology,
            self._copies,
            shows_all=shows_all,
            wants_rows=record.settings["rows"],
            num_cached=lambda: handle.look().num_cached,
            cached_before=record.state.get("cached", 0),
        )
        names = [tool["name"] for tool in record.settings["tools"]]
        flows = dict(handle.topology.resolved_tool_flows) if names else {}
        self._calls = CallBook(flows, names, record.state.get("answered", ()))
        self._has_tools = bool(flows)
        self._num_awaited = 0
        for line in lines:
            self._note_line(line)
        handle.hold(frozenset(flows))

    @property
    def name(self) -> str:
        """What clients call it."""
        return self.record.name

    @property
    def caller(self) -> str:
        """Name of whose key it belongs to."""
        return self.record.caller

    @property
    def is_editable(self) -> bool:
        """Whether its input comes in snapshots."""
        return self.record.settings["input"] == "editable"

    # ---- what a client says

    def answered(self, command_id: str | None) -> int | None:
        """The message that answers a command that was carried out; None where it was not."""
        return None if command_id is None else self._answers.get(command_id)

    async def do(self, command: StandingCommand) -> None:
        """Carry a command out, once; when this returns it is stored, and its `done` told.

        Raises:
            BraidError: It was refused; the session goes on.
        """
        async with self._lock:
            if self.answered(command.id) is not None:
                return
            self._require_open()
            with anyio.CancelScope(shield=True):  # what is done must be stored, whoever has left meanwhile
                self._carry_out(command)
                self.touched = time.monotonic()
                await self._advance(_Batch(done=command.id, is_due=True))
        if self.handle.mailbox.has_news and self.handle.mailbox.on_news is not None:
            self.handle.mailbox.on_news()  # it came while the command was stored

    def _require_open(self) -> None:
        if self.is_over:
            raise SessionClosedError(
                "the session is closed; open a new one (its transcript stays for a while at "
                f"/v1/sessions/{self.name}/transcript)"
            )

    def _carry_out(self, command: StandingCommand) -> None:
        match command:
            case protocol.Write(stream=stream, text=text):
                self._require_regime("live", "write", "send `snapshot`, and `commit` when it is final")
                self._push("write", stream, text)
            case protocol.End(stream=stream):
                self._require_regime("live", "end", "send `commit`, which ends the input, too")
                self._push("end", stream)
                self._teller.input_ended()
            case protocol.Flush(stream=stream):
                self._require_regime("live", "flush", "send `commit`")
                self._push("flush", stream, "asked for")
            case protocol.Snapshot():
                self._require_regime("editable", "snapshot", "send `write`, and `end` when it is complete")
                self._say_snapshot(command)
            case protocol.Commit():
                self._require_regime("editable", "commit", "send `end` when the input is complete")
                reading = None if command.is_blank else self._read(command)
                self._snapshots.require_text(reading)
                self._push("commit", *(() if reading is None else reading.arguments(command.mode)))
                self._forget_snapshot()
                self._teller.input_ended()
            case protocol.Rollback():
                self._require_regime(
                    "editable", "rollback", "what was written has been read; open one with editable input"
                )
                self._push("rollback")
                self._forget_snapshot()
            case protocol.Suggest(stream=stream, text=text):
                self._push("suggest", stream, text)
            case protocol.Interrupt(stream=stream):
                self._push("interrupt", stream)
            case protocol.Cancel(stream=stream):
                self._push("cancel", stream)
            case protocol.Force(stream=stream, text=text):
                self._push("force", stream, text)
            case protocol.CloseStream(stream=stream):
                self._push("close_stream", stream)
            case protocol.ToolResult(call=call, content=content, error=error):
                found = self._calls.result(call, content, error)
                if found is not None:
                    self._deliver(*found)
            case protocol.Close():
                self._push("close", "closed")

    def _read(self, said: protocol.Snapshot | protocol.Commit) -> Reading:
        return self._snapshots.read(said.streams, segments=said.segments, messages=said.messages)

    def _say_snapshot(self, said: protocol.Snapshot) -> None:
        reading = self._read(said)
        self._push("snapshot", *reading.arguments(said.mode))
        if reading.messages is not None:
            self._told_messages = reading.messages
            first = self.handle.topology.input_names[0]
            self._draft = {**self._draft, first: reading.messages[-1].get("content") or ""}
        self._draft, self._mode = {**self._draft, **reading.texts}, said.mode
        self._snapshots.keep(reading)

    def _forget_snapshot(self) -> None:
        self._draft, self._told_messages = {}, None
        self._snapshots.forget()

    def _push(self, verb: str, *arguments: Any) -> None:
        self._backend.push(self.handle.number, verb, *arguments)

    def _require_regime(self, regime: str, verb: str, instead: str) -> None:
        if self.record.settings["input"] != regime:
            other = self.record.settings["input"]
            raise RegimeError(
                f"`{verb}` is for sessions with {regime} input, and this one's is {other}: {instead}"
            )

    # ---- tools of the client

    def _deliver(self, stream: str, result: ToolResult) -> None:
        """Write a result, whole; the input ends with it."""
        self._tell_result(stream, result.to_text() + "\n")
        self._calls.close(result.id)
        self._backend.note_tool(result.status, result.seconds)

    def _tell_result(self, stream: str, text: str) -> None:
        try:
            self._push("tell", {stream: text}, [stream])
        except RegimeError:  # of input that may still change, nothing counts yet
            self._late[stream] = self._late.get(stream, "") + text

    def _tell_late(self) -> None:
        """Write results that had to wait; those that still have to go on waiting."""
        late, self._late = self._late, {}
        for stream, text in late.items():
            try:
                self._tell_result(stream, text)
            except (StreamClosedError, SessionClosedError):  # nobody would read it
                continue
            except BraidError:  # there is no room for it yet
                self._late[stream] = text

    def _balance(self) -> None:
        """Hold the turn open for as many results as are still to come, and for no more.

        The engine itself holds it for each piece of a call lane, until that was heard here; its ledger tells. What is
        pushed here stands in the ledger before the next news is taken, so nothing is counted twice.
        """
        missing = len(self._calls.open) - self._num_awaited
        try:
            for _ in range(abs(missing)):
                self._push("await_result" if missing > 0 else "result_came")
        except SessionClosedError:  # its end is among the news to come
            return

    def _note_line(self, line: Sequence[Any]) -> None:
        match line:
            case ["do", "await_result", *_]:
                self._num_awaited += 1
            case ["do", "result_came", *_]:
                self._num_awaited = max(0, self._num_awaited - 1)
            case _:
                return

    # ---- what the engine says

    def begin(self, max_unread: int) -> Pending | None:
        """Take what has happened, to be stored; nobody else touches the session until `finish`.

        Args:
            max_unread: Messages that may wait for a client that is connected; then the session pauses.

        Returns:
            None when there is nothing to store, or not now: a command stores it, or the client has to read first.
        """
        if self.is_over or not self.handle.mailbox.has_news or not self.feed.has_room(max_unread):
            return None
        try:
            self._lock.acquire_nowait()
        except anyio.WouldBlock:
            return None
        try:
            batch = _Batch()
            since = self._collect(batch)
            if batch.lines or batch.messages:
                return Pending(self, batch, since, self._append(batch))
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()
        return None

    def finish(self, pending: Pending, error: BraidError | None) -> None:
        """What was taken is stored, or could not be; tell it."""
        try:
            self._kept(pending.batch, pending.since, error)
        finally:
            self._lock.release()

    async def catch_up(self) -> None:
        """After a restart: pass over what was told before, so that everything stands as it did."""
        async with self._lock:
            with anyio.CancelScope(shield=True):
                while self._num_seen < self._num_told and await self.handle.mailbox.until_news():
                    await self._advance(_Batch())
                if not self.is_over:
                    self._draft_anew()

    def _draft_anew(self) -> None:
        """Say the newest snapshot to an engine that has not heard of it."""
        if self._told_messages is not None:
            with contextlib.suppress(StreamClosedError):
                self._push("snapshot", {}, self._mode, self._told_messages)
        for stream, text in self._draft.items():
            with contextlib.suppress(StreamClosedError):  # it would not count
                self._push("snapshot", {stream: text}, self._mode)

    async def _advance(self, batch: _Batch) -> None:
        """Take all news, store it, tell it."""
        since = self._collect(batch)
        if not (batch.lines or batch.messages or batch.is_due):
            return
        (error,) = await self._store.append_all([self._append(batch)])
        self._kept(batch, since, error)
        if error is not None:
            raise error

    def _collect(self, batch: _Batch) -> float | None:
        """Take all news; returns when the oldest of it came."""
        mailbox = self.handle.mailbox
        if (
            self._late and not self._draft and mailbox.num_waiting < MOST
        ):  # their lines are taken with the rest
            self._tell_late()
        since = mailbox.since if mailbox.num_waiting else None
        due = mailbox.num_waiting if batch.is_due else min(mailbox.num_waiting, MOST)
        takes_all = due == mailbox.num_waiting
        while due:
            for news in mailbox.take_nowait(due):
                self._take(news, batch)
            is_torn = batch.lines[-1:] == [["released"]]  # what was committed stands in the next line
            due = mailbox.num_waiting if batch.has_refused else min(int(is_torn), mailbox.num_waiting)
            batch.has_refused = False  # what tells the model so was taken, too
        self._say_done(batch)
        if takes_all and self._has_tools and not batch.has_ended and not self._draft:
            self._balance()
        return since

    def _append(self, batch: _Batch) -> Append:
        """What is to be stored of a batch."""
        self._num_lines += len(batch.lines)
        return Append(
            self.name,
            lines=batch.lines,
            messages=batch.messages,
            state=self._state(),
            num_lines=self._num_lines,
            last_id=self._last_id,
            closed=time.time() if batch.has_ended else None,
        )

    def _kept(self, batch: _Batch, since: float | None, error: BraidError | None) -> None:
        """A batch is stored, and told now; or it could not be."""
        if error is not None:  # what is stored is still whole: it can be resumed from there
            self.failure = error
            self.leave()
            return
        if batch.has_ended:
            self.leave()
        self.feed.publish(batch.messages, since)

    def _state(self) -> dict[str, Any]:
        return {
            "events": self._num_told,
            "cached": self._teller.cached_before,
            "answered": list(self._calls.answered),
            "draft": self._draft,
            "messages": self._told_messages,
            "segments": self._snapshots.segments,
            "is_empty": self._snapshots.is_empty,
            "mode": self._mode,
            "late": self._late,
        }

    def _take(self, news: News, batch: _Batch) -> None:
        if isinstance(news, LedgerLine):
            batch.lines.append(news.line)
            self._note_line(news.line)
            return
        self._num_seen += 1
        if self._num_seen <= self._num_told:
            self._teller.again(news)
            self._calls.hear(news)
            return
        self._num_told += 1
        self.touched = time.monotonic()
        if isinstance(news, ClosedEvent):
            batch.has_ended = True
            self._say_done(batch)  # nothing follows the end
        telling = self._teller.tell(news)
        if telling is not None:
            self._say(batch, telling)
        for call in self._calls.hear(news):
            fault = self._calls.fault(call)
            if fault is None:
                self._say(batch, Telling(protocol.ToolCall, _call_fields(call)))
            else:
                batch.has_refused = True
                self._refuse(call.id, fault)

    def _refuse(self, call_id: str, fault: ToolResult) -> None:
        """A call that nobody can run: the model is told so, as it would be told a result."""
        try:
            self._deliver(self._calls.stream_of(self._calls.open[call_id]), fault)
        except (
            BraidError
        ):  # the session is closed, or its stream; a queue that is full holds results of others
            if call_id in self._calls.open:
                self._calls.close(call_id)

    def _say_done(self, batch: _Batch) -> None:
        if batch.done is not None:
            self._answers[batch.done] = self._last_id + 1
            self._say(batch, Telling(protocol.Done, {"re": batch.done}))
            batch.done = None

    def _say(self, batch: _Batch, telling: Telling) -> None:
        self._last_id += 1
        message = telling.kind(id=self._last_id, at=self._at(), **telling.fields)
        batch.messages.append(
            StoredMessage(self._last_id, message.model_dump_json(), telling.fields.get("re"))
        )

    def _at(self) -> float:
        return round(max(0.0, time.time() - self.record.opened), 4)

    # ---- its end here

    def close(self, reason: str) -> None:
        """End it; that is stored and told like anything else."""
        self._backend.abort(self.handle.number, reason)

    async def suspend(self) -> None:
        """Store what there is, and leave the engine; another process, or this one, can go on with it."""
        async with self._lock:
            with anyio.CancelScope(shield=True):
                if not self.is_over:
                    await self._advance(_Batch())
        self.leave()

    def leave(self) -> None:
        """Give the engine's seat back; whatever the engine says from now on is not stored."""
        self.is_over = True
        self._backend.abort(self.handle.number, "suspended")
        self.feed.moved()

    # ---- asking

    def open_calls(self) -> list[protocol.OpenCall]:
        """Calls that wait for a result of the client's."""
        return [protocol.OpenCall(**_call_fields(call)) for call in self._calls.open.values()]

    def lanes(self) -> list[str]:
        """Labels of the lanes that its client may see."""
        shows_all = self.record.settings["show"] == "all"
        return visible_lanes(self.handle.topology, self._copies, shows_all=shows_all)


def _call_fields(call: Call) -> dict[str, Any]:
    return {"call": call.id, "stream": call.lane, "name": call.name, "arguments": dict(call.arguments)}
