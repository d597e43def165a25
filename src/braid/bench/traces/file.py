"""Traces: how an input came to be, snapshot by snapshot, as a file that can be replayed.

One trace a line, as JSON:

    {"version": 1, "id": "edits-7", "seed": 7, "kind": "edits",
     "question": "What is the capital of France?",       what is committed; {segment: text} where there is a template
     "template": null,                                   or [{"id", "role", "text"}]: what stands there at second 0
     "events": [{"at": 0.214, "text": "W"}, …],          snapshots: the whole text, or {segment: its whole text}
     "commit_at": 6.02,
     "steer": null,                                      or {"question", "events", "commit_at"}: while it answers
     "meta": {"last_edit": "append", "changed_fact": false, "pause_before_commit_s": 0.61, "answers": ["Paris"]}}

Seconds count from the beginning of the trace and ascend. An event of a trace with a template names the segments that
it changes. The last snapshot is the question. `meta` may have more keys than those that are described here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from braid.data.files import drafted
from braid.data.tables import json_lines, to_line
from braid.errors import DataCorruptError, DataError

__all__ = [
    "LastEdit",
    "Meta",
    "Segment",
    "Steering",
    "Text",
    "Trace",
    "TraceEvent",
    "last_edit_of",
    "read_traces",
    "write_traces",
]

Text = str | dict[str, str]
"""A whole text, or those of segments."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LastEdit = Literal["append", "middle", "none"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(_Model):
    """A part of a template.

    Args:
        id: Its name.
        role: Who says it, as in a chat.
        text: What stands there at second 0.
    """

    id: Annotated[str, Field(min_length=1)]
    role: str = "user"
    text: str = ""


class TraceEvent(_Model):
    """A snapshot.

    Args:
        at: Seconds from the beginning.
        text: The whole text, or that of each segment that changes.
    """

    at: Seconds
    text: Text


class Steering(_Model):
    """What is said while the first input is being answered; its seconds go on counting.

    Args:
        question: The text that is committed.
        events: Its snapshots, from an empty text on.
        commit_at: When, in seconds.
    """

    question: str
    events: tuple[TraceEvent, ...]
    commit_at: Seconds


class Meta(BaseModel):
    """What is known of a trace.

    Args:
        last_edit: Whether the last change stood at the end of the text or in the middle; `none` if the text came at
            once and was not changed.
        changed_fact: Whether a fact was another in an earlier snapshot than in the question; half-typed words and
            what a recogniser heard amiss do not count.
        pause_before_commit_s: Seconds from the last snapshot to the commit.
        answers: Words, one of which a right answer has.
        stale_answers: Words that it would have had, had the fact not been changed.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    last_edit: LastEdit
    changed_fact: bool
    pause_before_commit_s: Seconds
    answers: tuple[str, ...] = ()
    stale_answers: tuple[str, ...] = ()


class Trace(_Model):
    """One input from its first key to its commit; the module tells the fields."""

    version: Literal[1] = 1
    id: Annotated[str, Field(min_length=1)]
    seed: int | None = None
    kind: Annotated[str, Field(min_length=1)]
    question: Text
    template: tuple[Segment, ...] | None = None
    events: Annotated[tuple[TraceEvent, ...], Field(min_length=1)]
    commit_at: Seconds
    steer: Steering | None = None
    meta: Meta

    def snapshots(self) -> list[tuple[float, Text]]:
        """Each event's seconds with the whole text then, or with the texts of all segments."""
        if self.template is None:
            return [(event.at, event.text) for event in self.events]
        texts = {segment.id: segment.text for segment in self.template}
        whole: list[tuple[float, Text]] = []
        for event in self.events:
            assert isinstance(event.text, dict)
            texts = texts | event.text
            whole.append((event.at, texts))
        return whole

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = None if self.template is None else [segment.id for segment in self.template]
        _check_names(self.events, names)
        _check_times(self.events, self.commit_at)
        if self.snapshots()[-1][1] != self.question:
            raise DataError("the last event's text is not the question, which is what is committed")
        if self.steer is not None:
            _check_names(self.steer.events, None)
            _check_times(self.steer.events, self.steer.commit_at)
            if not self.steer.events or self.steer.events[0].at <= self.commit_at:
                raise DataError("steer has no event, or begins before the first commit")
            if self.steer.events[-1].text != self.steer.question:
                raise DataError("the last event of steer is not its question")
        return self


def last_edit_of(snapshots: Sequence[str]) -> LastEdit:
    """Where the last change of a text stood.

    >>> last_edit_of(["a cat", "a cat?"]), last_edit_of(["a cat?", "a hat?"]), last_edit_of(["a cat?"])
    ('append', 'middle', 'none')
    """
    changed = [(old, new) for old, new in pairwise(snapshots) if old != new]
    if not changed:
        return "none"
    old, new = changed[-1]
    is_at_the_end = old.startswith(new) or new.startswith(old) or old[-1] != new[-1]
    return "append" if is_at_the_end else "middle"


def read_traces(path: str | Path) -> Iterator[Trace]:
    """Read a file of traces, one after another.

    Args:
        path: JSON lines; blank ones are passed over.

    Raises:
        DataCorruptError: A line is no trace, or its id was there before; the message names the line and what is wrong.
        DataError: The file cannot be read.
    """
    known: dict[str, int] = {}
    for line, data in json_lines(path):
        try:
            trace = Trace.model_validate(json.loads(data))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            problem = f"{where}: {message}" if where else message
            raise DataCorruptError(f"{path}, line {line}: this is no trace: {problem}") from None
        except ValueError as error:
            raise DataCorruptError(f"{path}, line {line}: this is no trace: not JSON ({error})") from None
        if trace.id in known:
            raise DataCorruptError(
                f"{path}, line {line}: {trace.id!r} is the trace of line {known[trace.id]} too; ids are unique"
            )
        known[trace.id] = line
        yield trace


def write_traces(path: str | Path, traces: Iterable[Trace]) -> int:
    """Write traces to a file, whole or not at all.

    Args:
        path: What is there is replaced.
        traces: One after another; they are not gathered.

    Returns:
        How many there were.

    Raises:
        DataError: It cannot be written.
    """
    count = 0
    with drafted(path) as file:
        for trace in traces:
            file.write(to_line(trace.model_dump(mode="json"), trace.id))
            count += 1
    return count


def _check_names(events: Sequence[TraceEvent], names: Sequence[str] | None) -> None:
    if names is not None and len(set(names)) != len(names):
        raise DataError("two segments of the template have the same id")
    for count, event in enumerate(events):
        if names is None:
            if not isinstance(event.text, str):
                raise DataError(f"event {count} names segments, but there is no template")
        elif not isinstance(event.text, dict):
            raise DataError(
                f"event {count} is a whole text; with a template it names the segments that change"
            )
        elif unknown := [name for name in event.text if name not in names]:
            raise DataError(f"event {count} changes {unknown[0]!r}, which the template does not have")


def _check_times(events: Sequence[TraceEvent], commit_at: float) -> None:
    for count, (earlier, later) in enumerate(pairwise(events), 1):
        if later.at <= earlier.at:
            raise DataError(f"event {count} is at {later.at} s, not after the one before, at {earlier.at} s")
    if events and commit_at < events[-1].at:
        raise DataError(f"commit_at is {commit_at} s, before the last event, at {events[-1].at} s")
