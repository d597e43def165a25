"""What a session tells its client, as one discriminated union: `event` says which kind an event is.

A client that does not know a kind can skip it; `event_schema()` is the contract for other languages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from braid.errors import InputError
from braid.streams.stream_spec import StreamSpec

__all__ = [
    "CellData",
    "ClosedEvent",
    "DeltaBuffer",
    "DeltaEvent",
    "ErrorEvent",
    "Event",
    "NoticeEvent",
    "QuiescentEvent",
    "Reuse",
    "RowEvent",
    "StateEvent",
    "StreamState",
    "SummaryEvent",
    "TokenOdds",
    "TurnEvent",
    "event_schema",
    "parse_event",
]

StreamState = Literal["created", "active", "asleep", "closed"]

_Count = Annotated[int, Field(ge=0)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> str:
        """Return the event as one line of JSON."""
        return self.model_dump_json()


class CellData(_Event):
    """One token of a row."""

    token: _Count
    text: str
    forced: bool = False


class RowEvent(_Event):
    """A whole row, as the transcript has it: every lane, internal ones too."""

    event: Literal["row"] = "row"
    t: _Count
    cells: Annotated[dict[str, CellData], Field(min_length=1)]


class TokenOdds(_Event):
    """How likely a token was.

    Args:
        token: its id.
        logprob: its natural logarithm of probability, as the model has it, before bias and grammar.
        top: the likeliest tokens, and theirs.
    """

    token: _Count
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class DeltaEvent(_Event):
    """New text of one stream, in pieces of its `chunk_size`.

    Args:
        t: the row of its last token.
        stream: label of the lane.
        text: the text.
        tokens: the ids, those without text too, such as the end token.
        odds: of each token, None for one that was forced; None where the stream's `logprobs` asks for none.
    """

    event: Literal["delta"] = "delta"
    t: _Count
    stream: str
    text: str
    tokens: list[int]
    odds: list[TokenOdds | None] | None = None


class StateEvent(_Event):
    """A stream is now in another state."""

    event: Literal["state"] = "state"
    t: _Count
    stream: str
    state: StreamState
    reason: str = ""


class QuiescentEvent(_Event):
    """Input has ended and every awake output chooses silence: nothing will happen until someone acts."""

    event: Literal["quiescent"] = "quiescent"
    t: _Count


class NoticeEvent(_Event):
    """Something that a client should know and that is no error, such as a forced flush."""

    event: Literal["notice"] = "notice"
    t: _Count
    stream: str | None = None
    code: str
    message: str


class Reuse(_Event):
    """What reading and drafting ahead of the commit has brought a turn, and what it has cost, in tokens.

    Args:
        mode: `exact`, `repair` or `reuse`.
        read: of the committed input.
        reused: of them, those that were in the cache when it was committed, repaired ones included.
        repaired: of them, those that were computed once more because something before them had changed.
        recomputed: of the committed input, those that were computed after the commit.
        drafted: that drafts said before the commit, those that were taken back included.
        kept: of the answer, those that the draft had said when it was committed.
        accepted: of all answers, drafts included, those that a guess brought without a forward of their own.
        computed: in all forwards of the turn, probes and template text included.
        wasted: computed, and not part of the committed turn.
        snapshots: that were followed.
        fallbacks: edits that were to be repaired or reused, and were computed exactly.
        changed_fact: for which the last edit that was to be reused was computed exactly, such as
            `number: '3' became '4'`; None where none was.
        drift: largest estimate of how far a repaired or reused part is from the exact one; None where all is exact.
    """

    mode: Literal["exact", "repair", "reuse"] = "exact"
    read: _Count = 0
    reused: _Count = 0
    repaired: _Count = 0
    recomputed: _Count = 0
    drafted: _Count = 0
    kept: _Count = 0
    accepted: _Count = 0
    computed: _Count = 0
    wasted: _Count = 0
    snapshots: _Count = 0
    fallbacks: _Count = 0
    changed_fact: str | None = None
    drift: float | None = None


class TurnEvent(_Event):
    """A turn is over: its answers are complete. The first is 0; `reuse` is of a turn that was committed."""

    event: Literal["turn"] = "turn"
    t: _Count
    turn: _Count
    reuse: Reuse | None = None

    @model_serializer(mode="wrap")
    def _told(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        told = cast("dict[str, Any]", handler(self))
        return {name: value for name, value in told.items() if name != "reuse" or value is not None}


class ClosedEvent(_Event):
    """The session is closed; nothing follows but its summary."""

    event: Literal["closed"] = "closed"
    t: _Count
    reason: str = ""


class ErrorEvent(_Event):
    """What failed, by the stable code of its error class."""

    event: Literal["error"] = "error"
    code: str
    message: str


class SummaryEvent(_Event):
    """Figures of a session or a turn.

    Args:
        rows: rows that were made.
        tokens: tokens by stream, all copies together.
        kv_tokens: tokens whose keys and values are held.
        kv_bytes: memory of them, in bytes.
        seconds: wall time.
        tnft: rows between the last input token and the first answer token; None without an answer.
        msl: tokens in the longest lane.
        ttft_s: seconds from the end of input to the first token of any output.
        ttfat_s: seconds from the end of input to the first *answer* token.
    """

    event: Literal["summary"] = "summary"
    rows: _Count
    tokens: dict[str, int]
    kv_tokens: _Count
    kv_bytes: _Count
    seconds: Annotated[float, Field(ge=0)]
    tnft: _Count | None = None
    msl: _Count
    ttft_s: float | None = None
    ttfat_s: float | None = None


Event = Annotated[
    RowEvent
    | DeltaEvent
    | StateEvent
    | QuiescentEvent
    | NoticeEvent
    | TurnEvent
    | ClosedEvent
    | ErrorEvent
    | SummaryEvent,
    Field(discriminator="event"),
]
"""Any event."""

_ADAPTER: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(data: str | bytes | Mapping[str, Any]) -> Event:
    """Return the event that a line of JSON, or plain data, spells.

    Raises:
        InputError: if it spells none.
    """
    try:
        if isinstance(data, Mapping):
            return _ADAPTER.validate_python(dict(data))
        return _ADAPTER.validate_python(json.loads(data))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"this is no event: {where + ': ' if where else ''}{first['msg']}") from None
    except ValueError as error:
        raise InputError(f"this is no event: not JSON ({error})") from None


def event_schema() -> dict[str, Any]:
    """Return the JSON schema of all events."""
    return _ADAPTER.json_schema()


class DeltaBuffer:
    """Gathers the tokens of one stream into deltas of its `chunk_size`; into one, where it does not stream.

    Args:
        stream: label of the lane.
        spec: the stream's settings.
    """

    def __init__(self, stream: str, spec: StreamSpec) -> None:
        self._stream = stream
        self._limit = spec.chunk_size if spec.streaming else None
        self._tells_odds = spec.logprobs is not None
        self._tokens: list[int] = []
        self._odds: list[TokenOdds | None] = []
        self._text = ""
        self._t = 0

    def push(self, t: int, token: int, text: str, odds: TokenOdds | None = None) -> DeltaEvent | None:
        """Add a token; return a delta if one is full."""
        self._tokens.append(token)
        self._odds.append(odds)
        self._text += text
        self._t = t
        return self.flush() if self._limit is not None and len(self._tokens) >= self._limit else None

    def fork(self) -> DeltaBuffer:
        """Return a second buffer that holds the same and goes on by itself."""
        twin = copy(self)
        twin._tokens, twin._odds = list(self._tokens), list(self._odds)  # noqa: SLF001 (of its own class)
        return twin

    def flush(self, tail: str = "") -> DeltaEvent | None:
        """Return what is gathered, with the detokeniser's `tail`; None if that is nothing."""
        if not self._tokens and not tail:
            return None
        odds = self._odds if self._tells_odds else None
        delta = DeltaEvent(
            t=self._t, stream=self._stream, text=self._text + tail, tokens=self._tokens, odds=odds
        )
        self._tokens, self._odds, self._text = [], [], ""
        return delta
