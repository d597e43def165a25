"""The transcript: the whole table, time × streams, and the canonical record of a session.

    {"format": "braid-transcript", "version": 1, "model": …, "topology": …, "copies": …, "meta": …}
    {"event": "open", "t": 0, "lane": "user"}
    {"t": 0, "cells": {"user": [1128, "How"]}}
    {"t": 1, "cells": {"user": [800, " many"], "thought": [49, "c"]}}

That is the file (`transcript_lines`): it can be appended to while the session runs, and if the machine stops in
mid-line, all complete lines are still read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from braid.errors import BraidError, TranscriptCorruptError, TranscriptError
from braid.streams.entries import Cell, Entry, LifeEvent, LifeKind, Row, entry_to_json
from braid.streams.lanes import LaneTable
from braid.streams.topology import Topology
from braid.streams.transcript_lines import Lines, header_data, read_lines, to_line, write_whole

__all__ = ["Cell", "Entry", "LifeEvent", "LifeKind", "Row", "Transcript", "TranscriptWriter"]


class Transcript:
    """Rows and events of one session, in the order in which they happened.

    Args:
        topology: the streams.
        model: name of the model.
        copies: copies of each stream that has more than one.
        meta: anything else worth keeping, as plain JSON data.
        entries: rows and events so far.

    Raises:
        TranscriptError: if an entry cannot follow those before it, or `meta` is no JSON.
        UnknownStreamError: if an entry or `copies` names a lane that there is not.
    """

    def __init__(
        self,
        topology: Topology,
        model: str,
        copies: Mapping[str, int] | None = None,
        meta: Mapping[str, Any] | None = None,
        entries: Iterable[Entry] = (),
    ) -> None:
        self.topology = topology
        self.model = model
        self.copies = dict(copies or {})
        self.meta = _plain(dict(meta or {}))
        self.damage: str | None = None
        """What was lost when the file was read, in words; None if nothing."""
        self._lanes = topology.lanes(self.copies)
        self._entries: list[Entry] = []
        self._rows: list[Row] = []
        self._events: list[LifeEvent] = []
        self._closed: dict[str, int] = {}
        for entry in entries:
            self.append(entry)

    @property
    def lanes(self) -> LaneTable:
        """The lanes of the session."""
        return self._lanes

    @property
    def entries(self) -> Sequence[Entry]:
        """Rows and events, in the order in which they happened."""
        return self._entries

    @property
    def rows(self) -> Sequence[Row]:
        """The rows alone."""
        return self._rows

    @property
    def events(self) -> Sequence[LifeEvent]:
        """The events alone."""
        return self._events

    def append(self, entry: Entry) -> None:
        """Add what happened next.

        Raises:
            TranscriptError: if it cannot have happened now: a row without cells or out of order, a token in a lane
                that is closed, an event that would take effect before a row that is there already.
            UnknownStreamError: if it names a lane that there is not.
        """
        if isinstance(entry, Row):
            self._check_row(entry)
            self._rows.append(entry)
        else:
            self._check_event(entry)
            self._events.append(entry)
            if entry.kind == "close":
                labels = (
                    [entry.lane] if entry.lane is not None else [lane.label for lane in self._lanes.lanes]
                )
                for label in labels:
                    self._closed.setdefault(label, entry.t)
        self._entries.append(entry)

    def copy(self) -> Transcript:
        """Return a second transcript with the same entries, which goes on by itself."""
        twin = Transcript(self.topology, self.model, self.copies, self.meta)
        twin._entries, twin._rows, twin._events = list(self._entries), list(self._rows), list(self._events)
        twin._closed = dict(self._closed)
        return twin

    def tokens(self, label: str) -> list[tuple[int, int]]:
        """Return (t, token id) of each token of a lane.

        Raises:
            UnknownStreamError: if there is no such lane.
        """
        self._lanes.index(label)
        return [(row.t, row.cells[label].token) for row in self._rows if label in row.cells]

    def text(self, stream_or_label: str, since: int = 0) -> str:
        """Return the text of a lane; the bare name of a stream is its first copy.

        Args:
            stream_or_label: which lane.
            since: the entry to begin with.

        Raises:
            UnknownStreamError: if there is no such lane.
        """
        self._lanes.index(stream_or_label)
        pieces: list[str] = []
        for entry in islice(self._entries, since, None):
            if isinstance(entry, Row):
                cell = entry.cells.get(stream_or_label)
                pieces += [cell.text] if cell is not None else []
            elif entry.kind == "sleep" and entry.lane == stream_or_label:
                pieces.append(entry.text)  # what it held back until it was clear that no more would come
        return "".join(pieces)

    def turns(self) -> list[list[Row]]:
        """Return the rows of each turn; `turn` events end turns, and turns without a row are left out."""
        turns: list[list[Row]] = [[]]
        for entry in self._entries:
            if isinstance(entry, Row):
                turns[-1].append(entry)
            elif entry.kind == "turn":
                turns.append([])
        return [rows for rows in turns if rows]

    def save(self, path: str | Path) -> None:
        """Write the transcript to a file, whole or not at all.

        Raises:
            TranscriptError: if the file cannot be written.
        """
        write_whole(Path(path), self.lines_of_file())

    @classmethod
    def load(cls, path: str | Path) -> Transcript:
        """Read a transcript from a file; if its last line is torn, `damage` says so.

        Raises:
            TranscriptVersionError: if another version of the format wrote it.
            TranscriptCorruptError: if it is no transcript, or a line before the last one is damaged.
            TranscriptError: if the file cannot be read.
        """
        found = read_lines(Path(path))
        transcript = _assemble(Path(path), found)
        transcript.damage = found.damage
        return transcript

    def lines_of_file(self) -> Iterable[bytes]:
        """Return what `save` writes, line by line."""
        yield to_line(header_data(self.model, self.topology.to_dict(), self.copies, self.meta))
        yield from (to_line(entry_to_json(entry)) for entry in self._entries)

    def _check_row(self, row: Row) -> None:
        if not row.cells:
            raise TranscriptError(f"row {row.t} has no cells; leave out rows in which nobody reads or speaks")
        if row.t < 0 or (self._rows and row.t <= self._rows[-1].t):
            after = f"row {self._rows[-1].t}" if self._rows else "row -1"
            raise TranscriptError(f"row {row.t} comes after {after}; t must grow from row to row")
        if self._events and row.t < self._events[-1].t:
            raise TranscriptError(
                f"row {row.t} comes after an event that takes effect at {self._events[-1].t}"
            )
        for label in row.cells:
            self._lanes.index(label)
            if label in self._closed:
                raise TranscriptError(
                    f"row {row.t} has a token of {label!r}, closed at {self._closed[label]}"
                )

    def _check_event(self, event: LifeEvent) -> None:
        if event.t < 0 or (self._rows and event.t <= self._rows[-1].t):
            last = self._rows[-1].t if self._rows else -1
            raise TranscriptError(
                f"{event.kind!r} is said to take effect before row {event.t}, but row {last} is there already"
            )
        if event.lane is None or event.kind == "prefill":
            return
        self._lanes.index(event.lane)
        if event.kind in ("open", "wake") and event.lane in self._closed:
            raise TranscriptError(
                f"{event.lane!r} was closed at {self._closed[event.lane]}; closed is for good"
            )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Transcript):
            return NotImplemented
        return self._state == other._state

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"Transcript({self.model!r}, {len(self._rows)} rows, {len(self._events)} events)"

    @property
    def _state(self) -> tuple[object, ...]:
        return self.topology, self.model, self.copies, self.meta, self._entries


class TranscriptWriter:
    """Keeps a transcript and its file in step: each entry is in the file when `append` returns.

    Args:
        path: the file; its folder exists.
        transcript: what there is so far; it grows with the file.
        sync: also wait until each line has reached the disk, so that it outlives the machine, not just the process.
        at: None makes a new file; else the file holds the transcript already, up to this byte, and the rest is cut off.

    Raises:
        TranscriptError: if a new file exists already, or the file cannot be written.
    """

    def __init__(
        self, path: str | Path, transcript: Transcript, *, sync: bool = False, at: int | None = None
    ) -> None:
        self.path = Path(path)
        self.transcript = transcript
        self._sync = sync
        try:
            self._file = self.path.open("xb" if at is None else "r+b")
            if at is not None:
                self._file.truncate(at)
                self._file.seek(at - 1)
        except FileExistsError:
            raise TranscriptError(
                f"{self.path} is there already; choose another name, or go on with TranscriptWriter.resume"
            ) from None
        except OSError as error:
            raise TranscriptError(f"cannot write the transcript {self.path}: {error.strerror}") from error
        if at is None:
            self._write(transcript.lines_of_file())
        elif self._file.read(1) != b"\n":
            self._write([b"\n"])

    @classmethod
    def resume(cls, path: str | Path, *, sync: bool = False) -> TranscriptWriter:
        """Go on with a file, cutting off a torn last line; raises what `Transcript.load` raises."""
        found = read_lines(Path(path))
        return cls(path, _assemble(Path(path), found), sync=sync, at=found.num_good_bytes)

    def append(self, entry: Entry) -> None:
        """Add what happened next to the transcript and to the file.

        Raises:
            TranscriptError: if it cannot have happened now, or cannot be written.
            UnknownStreamError: if it names a lane that there is not.
        """
        if self._file.closed:
            raise TranscriptError(f"the transcript {self.path} is closed")
        self.transcript.append(entry)
        self._write([to_line(entry_to_json(entry))])

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, lines: Iterable[bytes]) -> None:
        try:
            self._file.writelines(lines)
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
        except OSError as error:
            # A half-written line must stay the last one, or it could not be told from damage.
            with contextlib.suppress(OSError):
                self._file.close()
            raise TranscriptError(f"cannot write the transcript {self.path}: {error.strerror}") from error


def _assemble(path: Path, found: Lines) -> Transcript:
    """Return the transcript that the lines of a file make up."""
    header = found.header
    number = 1
    try:
        topology = Topology.from_dict(header["topology"])
        transcript = Transcript(topology, header["model"], header["copies"], header["meta"])
        for number, entry in found.entries:  # noqa: B007  # the message needs it
            transcript.append(entry)
    except BraidError as error:
        raise TranscriptCorruptError(f"{path}, line {number}: {error}") from error
    return transcript


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the data as a file would give it back."""
    try:
        return json.loads(json.dumps(meta, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TranscriptError(f"meta must be plain JSON data: {error}") from None
