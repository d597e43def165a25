"""What a transcript is made of: rows of tokens, and the events that changed who exists. And their spelling in JSON.

A row is `{"t": 7, "cells": {"user": [1128, "How"], "output": [40, "I", 1]}}`, where the 1 says *forced*; an event is
`{"event": "end", "t": 8, "lane": "user"}`, with `tokens`, `text` and `reason` where there are any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from braid.errors import TranscriptError

__all__ = ["Cell", "Entry", "LifeEvent", "LifeKind", "Row", "entry_from_json", "entry_to_json"]

LifeKind = Literal[
    "open", "prefill", "wake", "sleep", "end", "interrupt", "cancel", "force", "flush", "close", "turn"
]
LIFE_KINDS = frozenset(get_args(LifeKind))


@dataclass(frozen=True, slots=True)
class Cell:
    """One kept token.

    Args:
        token: its id.
        text: what it adds to its stream's text; empty for control tokens and for all but the last token of a
            character.
        forced: whether it was put there rather than chosen (a prompt, a header, a prefix).
    """

    token: int
    text: str
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """All kept tokens that share a time step.

    Args:
        t: the time step, and the position of its tokens.
        cells: lane label → token; never empty, since a row without a token does not exist.
    """

    t: int
    cells: Mapping[str, Cell]


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """A change in the life of a stream or a session.

    Args:
        t: the row before which it takes effect.
        kind: what happened. `prefill` put `tokens` into a span that need not be a lane (`preamble`,
            `closer:output`); `flush` tokenised held text before it was certain; `turn` ends a turn.
        lane: the label of the lane, the name of the span, or None for the whole session.
        tokens: ids that it brought.
        text: their text.
        reason: why, in words.
    """

    t: int
    kind: LifeKind
    lane: str | None = None
    tokens: tuple[int, ...] = ()
    text: str = ""
    reason: str = ""


Entry = Row | LifeEvent


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return an entry as plain data, defaults left out."""
    if isinstance(entry, Row):
        cells = {
            label: [cell.token, cell.text, 1] if cell.forced else [cell.token, cell.text]
            for label, cell in entry.cells.items()
        }
        return {"t": entry.t, "cells": cells}
    data: dict[str, Any] = {"event": entry.kind, "t": entry.t}
    if entry.lane is not None:
        data["lane"] = entry.lane
    if entry.tokens:
        data["tokens"] = list(entry.tokens)
    for name in ("text", "reason"):
        if value := getattr(entry, name):
            data[name] = value
    return data


def entry_from_json(data: object) -> Entry:
    """Return the entry that plain data spells.

    Raises:
        TranscriptError: if it spells none.
    """
    if not isinstance(data, dict):
        raise TranscriptError("an entry is a JSON object")
    fields = dict(cast("dict[str, Any]", data))
    t = fields.pop("t", None)
    if not _is_count(t):
        raise TranscriptError(f"t is a row number, 0 or more, not {t!r}")
    entry = _event(t, fields) if "event" in fields else _row(t, fields)
    if fields:
        raise TranscriptError(f"unknown keys: {', '.join(sorted(fields))}")
    return entry


def _row(t: int, fields: dict[str, Any]) -> Row:
    cells = fields.pop("cells", None)
    if not isinstance(cells, dict):
        raise TranscriptError("a row has cells: {lane: [token, text]}")
    return Row(t, {label: _cell(label, value) for label, value in cast("dict[str, Any]", cells).items()})


def _cell(label: str, value: Any) -> Cell:
    match value:
        case [token, str(text), *rest] if _is_count(token) and rest in ([], [1]):
            return Cell(token, text, forced=bool(rest))
        case _:
            raise TranscriptError(
                f"the cell of {label!r} is [token, text] or [token, text, 1], not {value!r}"
            )


def _event(t: int, fields: dict[str, Any]) -> LifeEvent:
    kind, lane = fields.pop("event"), fields.pop("lane", None)
    tokens: Any = fields.pop("tokens", [])
    text, reason = fields.pop("text", ""), fields.pop("reason", "")
    if kind not in LIFE_KINDS:
        raise TranscriptError(f"unknown event {kind!r}")
    if not isinstance(tokens, list) or not all(_is_count(token) for token in cast("list[Any]", tokens)):
        raise TranscriptError("tokens is a list of ids")
    if not all(isinstance(value, str) for value in (lane or "", text, reason)):
        raise TranscriptError("lane, text and reason are text")
    return LifeEvent(t, kind, lane, tuple(cast("list[int]", tokens)), text, reason)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
