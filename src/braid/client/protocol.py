"""What a client and a live session say to each other on `/v1/live`, one JSON object a message.

    client                                        server
    {"type": "open", "id": "c1", …}        ─▶
                                           ◀─     {"type": "opened", "id": 1, "re": "c1", "session": "s_…", …}
    {"type": "write", "id": "c2", …}       ─▶
                                           ◀─     {"type": "done", "id": 2, "re": "c2"}
                                           ◀─     {"type": "delta", "id": 3, "stream": "thought", …}
    ×  the connection drops
    {"type": "resume", "session": "s_…", "after": 2}   ─▶
                                           ◀─     {"type": "delta", "id": 3, …}   and all that came since
    {"type": "write", "id": "c3", …}       ─▶     a command with an id that was done already is only answered again

Commands have ids of the client's choice; `done` or `error` with the same `re` answers each. What a session tells has
ids that count from 1 without a gap; whoever resumes names the last one that it has seen. `done` is said when the
command, and what it changed, would outlive the server. A `done` that is told again keeps its id: whoever has seen that
id knows the message, and ids of commands are unique in a session, over all of its connections.

Both sides may ignore fields that they do not know in what the *server* sends; the server refuses what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from braid.errors import InputError
from braid.streams.events import CellData, Reuse, StreamState, TokenOdds
from braid.streams.sampling import SamplingSpec
from braid.streams.strict import problem

__all__ = [
    "MAX_ID",
    "Cancel",
    "Close",
    "CloseStream",
    "Closed",
    "Command",
    "Commit",
    "Delta",
    "Done",
    "End",
    "Flush",
    "Force",
    "GuessesOf",
    "Interrupt",
    "Notice",
    "Open",
    "OpenCall",
    "Opened",
    "Ping",
    "Pong",
    "Problem",
    "Quiescent",
    "Resume",
    "Resumed",
    "Rollback",
    "RowMade",
    "ServerMessage",
    "Snapshot",
    "State",
    "Suggest",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Turn",
    "Write",
    "command_schema",
    "parse_command",
    "parse_message",
    "protocol_schema",
    "server_schema",
]

MAX_ID = 64
"""Characters of a command's id."""

GuessesOf = Literal["session", "tenant", "none"]
"""What a session guesses from, see `Open`."""

_Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
_Count = Annotated[int, Field(ge=0)]


# ---- what a client says


class _Command(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)

    id: _Id | None = None
    """What the answer names; None wants none, and cannot be repeated safely."""


class ToolSpec(_Command):
    """A function that the client runs for the model.

    Args:
        name: what the model calls it.
        description: what it does.
        parameters: JSON schema of its arguments.
    """

    id: None = None  # pyright: ignore[reportIncompatibleVariableOverride] (it is part of a command, and none itself)
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])


class Open(_Command):
    """Begin a session; the first message of a connection, unless it resumes one.

    Args:
        topology: name of a preset, or the streams as a topology file spells them.
        model: which model; None is the server's only, or first, one.
        seed: of all sampling noise.
        copies: parallel copies of streams that allow them.
        sampling: by output stream, instead of the topology's.
        input: `live`: what is written is read at once; `editable`: snapshots, which are read and drafted ahead, and of
            which nothing counts before `commit`.
        template: what the segments of snapshots are filled into, as `braid.sessions.Template` spells it.
        most_drafted: tokens that the outputs may say ahead of the commit, in each draft; 0 reads ahead alone, None
            leaves it to the server.
        draft_after: seconds without a newer snapshot before they say anything; None leaves it to the server.
        drift_bound: how far keys and values that are taken over behind an edit may be from what they should be,
            relative to their size; None leaves it to the server.
        guesses: `tenant`: the answers of this key's other sessions that ask for it are guesses for this one, and its
            answers for them; where the server allows it. `none`: only what is suggested is guessed.
        history: chat messages before the session's first turn, for topologies of views.
        tools: functions that the client runs; the topology needs a `tool_call` and a `tool_result` stream.
        forces_answers: make an output speak that owes an answer when everything else is silent.
        show: `external` streams, or `all`: inner ones too, where the client's key allows that.
        rows: whether `row` messages are wanted, one a row, beside the deltas.
        max_rows: rows after which the session closes by itself; None leaves it to the server's limit.
    """

    type: Literal["open"] = "open"
    topology: str | dict[str, Any] = "chat"
    model: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    copies: dict[str, Annotated[int, Field(ge=1, le=64)]] = Field(default_factory=dict[str, int])
    sampling: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    input: Literal["live", "editable"] = "live"
    template: dict[str, Any] | None = None
    most_drafted: _Count | None = None
    draft_after: Annotated[float, Field(ge=0, le=3600)] | None = None
    drift_bound: Annotated[float, Field(ge=0, le=1)] | None = None
    guesses: GuessesOf = "session"
    history: Annotated[list[dict[str, Any]], Field(max_length=10_000)] = Field(
        default_factory=list[dict[str, Any]]
    )
    tools: Annotated[list[ToolSpec], Field(max_length=128)] = Field(default_factory=list[ToolSpec])
    forces_answers: bool = True
    show: Literal["external", "all"] = "external"
    rows: bool = False
    max_rows: Annotated[int, Field(ge=1)] | None = None

    def sampling_specs(self) -> dict[str, SamplingSpec]:
        """Sampling parameters by stream.

        Raises:
            SamplingError, UnknownKeyError: A value is out of range; there is no such parameter.
        """
        return {stream: SamplingSpec(**spec) for stream, spec in self.sampling.items()}


class Resume(_Command):
    """Go on with a session after the connection was lost, or the server restarted.

    Args:
        session: its name, from `opened`.
        after: id of the last message that was seen; everything later is sent again.
    """

    type: Literal["resume"] = "resume"
    session: Annotated[str, Field(min_length=1, max_length=128)]
    after: _Count = 0


class Write(_Command):
    """Add text to an input stream."""

    type: Literal["write"] = "write"
    stream: str
    text: str


class End(_Command):
    """An input, or every one, is complete for this turn."""

    type: Literal["end"] = "end"
    stream: str | None = None


class Flush(_Command):
    """Feed what `write` holds back of a stream because it could still merge with what follows."""

    type: Literal["flush"] = "flush"
    stream: str


class _Saying(_Command):
    """What inputs say, for sessions with `editable` input.

    Args:
        streams: whole text by input stream; those that are not named stay as they are.
        segments: `{"id": …, "text": …}` each: of the session's template those that have changed; without one all of
            them, with a `role` where they are messages.
        messages: the whole conversation, whose last message is the first input's text; for topologies of views.
        mode: what may be kept of what stands behind an edit: nothing (`exact`), all that has drifted little once a
            window behind the edit is computed anew (`repair`), or nearly all of it, unless the edit changes a fact
            (`reuse`).
    """

    streams: Annotated[dict[str, str], Field(min_length=1)] | None = None
    segments: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)] | None = None
    messages: Annotated[list[dict[str, Any]], Field(max_length=10_000)] | None = None
    mode: Literal["exact", "repair", "reuse"] = "exact"

    @property
    def is_blank(self) -> bool:
        """Whether it says nothing of any input."""
        return self.streams is None and self.segments is None and self.messages is None


class Snapshot(_Saying):
    """All that inputs say so far; the newest wins."""

    type: Literal["snapshot"] = "snapshot"

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.is_blank:
            raise problem("it needs streams, segments or messages")
        return self


class Commit(_Saying):
    """What the last snapshot says, which may be told here, will not change any more; its answer is told now."""

    type: Literal["commit"] = "commit"


class Rollback(_Command):
    """Forget all snapshots since the last commit."""

    type: Literal["rollback"] = "rollback"


class Suggest(_Command):
    """What an output is likely to say, from an application that knows; it is verified, and changes nothing but time."""

    type: Literal["suggest"] = "suggest"
    stream: str
    text: str


class Interrupt(_Command):
    """Force the end token of an output that speaks, or of all."""

    type: Literal["interrupt"] = "interrupt"
    stream: str | None = None


class Cancel(_Command):
    """Put an output to sleep, or all, without an end token."""

    type: Literal["cancel"] = "cancel"
    stream: str | None = None


class Force(_Command):
    """Make an output speak: `text`, or what the model chooses with silence masked once."""

    type: Literal["force"] = "force"
    stream: str
    text: str | None = None


class CloseStream(_Command):
    """Close one stream for good."""

    type: Literal["close_stream"] = "close_stream"
    stream: str


class ToolResult(_Command):
    """What a call that the client ran has found.

    Args:
        call: id of the call, from `tool_call`.
        content: the result: text, or data that is written as JSON.
        error: what went wrong, in words for the model; instead of a content.
    """

    type: Literal["tool_result"] = "tool_result"
    call: str
    content: Any = None
    error: str | None = None


class Ping(_Command):
    """Is anybody there?"""

    type: Literal["ping"] = "ping"


class Close(_Command):
    """End the session; its transcript stays. A connection that merely drops ends nothing."""

    type: Literal["close"] = "close"


Command = Annotated[
    Open
    | Resume
    | Write
    | End
    | Flush
    | Snapshot
    | Commit
    | Rollback
    | Suggest
    | Interrupt
    | Cancel
    | Force
    | CloseStream
    | ToolResult
    | Ping
    | Close,
    Field(discriminator="type"),
]
"""Whatever a client may say."""


# ---- what the server says


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Told(_Message):
    """Something that happened to the session; told once, in order, and again to whoever resumes."""

    id: Annotated[int, Field(ge=1)]
    at: float = 0.0
    """Seconds since the session was opened, when it happened."""


class Opened(_Told):
    """The session is there."""

    type: Literal["opened"] = "opened"
    re: str | None = None
    session: str
    model: str
    topology: dict[str, Any]
    lanes: list[str]
    """Labels of the streams, copies told apart, in the order of rows; those that the client may not see left out."""
    inputs: list[str]
    outputs: list[str]


class Done(_Told):
    """A command was carried out, and would outlive the server."""

    type: Literal["done"] = "done"
    re: str


class Delta(_Told):
    """New text of an output stream."""

    type: Literal["delta"] = "delta"
    t: _Count
    stream: str
    text: str
    tokens: list[int]
    odds: list[TokenOdds | None] | None = None


class RowMade(_Told):
    """A row: at most one token a stream; only streams that the client may see are in it."""

    type: Literal["row"] = "row"
    t: _Count
    cells: dict[str, CellData]


class State(_Told):
    """A stream's change of state, and why."""

    type: Literal["state"] = "state"
    t: _Count
    stream: str
    state: StreamState
    reason: str = ""


class Quiescent(_Told):
    """Input has ended and every awake output chooses silence."""

    type: Literal["quiescent"] = "quiescent"
    t: _Count


class Notice(_Told):
    """Something that a client should know and that is no error."""

    type: Literal["notice"] = "notice"
    t: _Count
    stream: str | None = None
    code: str
    message: str


class ToolCall(_Told):
    """The model calls a function; answer with `tool_result`, whenever it is ready. Nobody waits for it."""

    type: Literal["tool_call"] = "tool_call"
    call: str
    stream: str
    name: str
    arguments: dict[str, Any]


class Turn(_Told):
    """A turn is over, and these are its figures.

    Args:
        turn: its number, from 0.
        rows: rows that were made in it.
        tokens: tokens by stream, of those that the client may see.
        cached_tokens: tokens that were not computed because another session had computed them.
        tnft: rows between the last input token and the first answer token.
        ttft_s, ttfat_s: seconds from the end of input to the first token, and to the first answer token.
        reuse: of a turn that was committed: what was computed ahead of the commit, and what that has cost.
    """

    type: Literal["turn"] = "turn"
    t: _Count
    turn: _Count
    rows: _Count = 0
    tokens: dict[str, int] = Field(default_factory=dict[str, int])
    cached_tokens: _Count = 0
    tnft: _Count | None = None
    ttft_s: float | None = None
    ttfat_s: float | None = None
    reuse: Reuse | None = None


class Closed(_Told):
    """The session has ended; nothing follows."""

    type: Literal["closed"] = "closed"
    t: _Count
    reason: str = ""


class Problem(_Message):
    """A command that was refused, or what ended the session or the connection.

    Args:
        id: where it is the session's; None where it answers a command that changed nothing.
        re: the command.
        code: the stable code of its error class, see `braid.errors`.
        message: what is wrong, and what would work.
        retry_after_s: when it is worth another try.
    """

    type: Literal["error"] = "error"
    id: int | None = None
    at: float = 0.0
    re: str | None = None
    code: str
    message: str
    retry_after_s: float | None = None


class OpenCall(_Message):
    """A call that was told and has no result yet."""

    call: str
    stream: str
    name: str
    arguments: dict[str, Any]


class Resumed(_Message):
    """Here is the session again; what was missed follows."""

    type: Literal["resumed"] = "resumed"
    re: str | None = None
    session: str
    last: _Count
    """Id of the newest message."""
    calls: list[OpenCall] = Field(default_factory=list[OpenCall])
    """Calls that wait for a result, whether they are told again or not."""


class Pong(_Message):
    """Here I am."""

    type: Literal["pong"] = "pong"
    re: str | None = None


ServerMessage = Annotated[
    Opened
    | Done
    | Delta
    | RowMade
    | State
    | Quiescent
    | Notice
    | ToolCall
    | Turn
    | Closed
    | Problem
    | Resumed
    | Pong,
    Field(discriminator="type"),
]
"""Whatever the server may say."""

_COMMANDS: TypeAdapter[Command] = TypeAdapter(Command)
_MESSAGES: TypeAdapter[ServerMessage] = TypeAdapter(ServerMessage)


def parse_command(data: str | bytes | Mapping[str, Any]) -> Command:
    """Return the command that a message spells.

    Raises:
        InputError: It spells none; the message says where.
    """
    return _parse(_COMMANDS, data, "command")


def parse_message(data: str | bytes | Mapping[str, Any]) -> ServerMessage:
    """Return what the server said.

    Raises:
        InputError: It is nothing that this version knows.
    """
    return _parse(_MESSAGES, data, "message")


def _parse(adapter: TypeAdapter[Any], data: str | bytes | Mapping[str, Any], what: str) -> Any:
    try:
        plain = dict(data) if isinstance(data, Mapping) else json.loads(data)
        if (
            isinstance(data, str) and "\\ud" in data.lower()
        ):  # an escape may spell half a character, which is no text
            json.dumps(plain, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is no {what}: not JSON ({error})") from None
    try:
        return adapter.validate_python(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"this is no {what}: {where + ': ' if where else ''}{first['msg']}") from None


def command_schema() -> dict[str, Any]:
    """Return the JSON schema of what a client may say."""
    return _COMMANDS.json_schema()


def server_schema() -> dict[str, Any]:
    """Return the JSON schema of what the server may say."""
    return _MESSAGES.json_schema(mode="serialization")


def protocol_schema() -> dict[str, Any]:
    """Return both schemas, as `GET /v1/live/schema` serves them."""
    return {"client": command_schema(), "server": server_schema()}
