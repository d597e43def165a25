"""The lines of a transcript file: one JSON object each, a header first.

A file is appended to while its session runs. If the machine stops in mid-line, only the last line can be torn, and a
torn line is no JSON, because every line is an object and no shorter part of an object is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from braid.errors import TranscriptCorruptError, TranscriptError, TranscriptVersionError
from braid.streams.entries import Entry, entry_from_json
from braid.streams.whole_file import whole_file

__all__ = ["FORMAT", "VERSION", "Lines", "header_data", "read_lines", "to_line", "write_whole"]

FORMAT = "braid-transcript"
VERSION = 1
_HEADER_TYPES: dict[str, type] = {
    "format": str,
    "version": int,
    "model": str,
    "topology": dict,
    "copies": dict,
    "meta": dict,
}


@dataclass(frozen=True)
class Lines:
    """A file, as far as it is whole.

    Args:
        header: the first line.
        entries: the others, with their line numbers.
        damage: what was left out, in words; None if nothing.
        num_good_bytes: length of the part of the file that is whole.
    """

    header: dict[str, Any]
    entries: list[tuple[int, Entry]]
    damage: str | None
    num_good_bytes: int


def header_data(model: str, topology: object, copies: Mapping[str, int], meta: object) -> dict[str, Any]:
    """Return the first line of a file, as plain data."""
    values = (FORMAT, VERSION, model, topology, copies, meta)
    return dict(zip(_HEADER_TYPES, values, strict=True))


def to_line(data: Mapping[str, Any]) -> bytes:
    """Return plain data as one line of a file."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass") + b"\n"


def write_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file, whole or not at all.

    Raises:
        TranscriptError: if it cannot be written; what was there is untouched.
    """
    try:
        with whole_file(path) as file:
            file.writelines(lines)
    except OSError as error:
        raise TranscriptError(f"cannot write the transcript {path}: {error.strerror}") from error


def read_lines(path: Path) -> Lines:
    """Read a file as far as it is whole.

    Raises:
        TranscriptVersionError: if another version of the format wrote it.
        TranscriptCorruptError: if it is no transcript, or a line before the last one is damaged.
        TranscriptError: if the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TranscriptError(f"cannot read the transcript {path}: {error.strerror}") from error
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise TranscriptCorruptError(f"{path} is empty; a transcript starts with a header line")
    header = _header(path, lines[0])
    entries: list[tuple[int, Entry]] = []
    num_good = len(lines[0]) + 1
    for number, line in enumerate(lines[1:], start=2):
        try:
            value = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            if number < len(lines):
                raise TranscriptCorruptError(
                    f"{path}, line {number}: this is not JSON: {_excerpt(line)}"
                ) from None
            damage = f"line {number} is torn ({_excerpt(line)}) and was left out"
            return Lines(header, entries, damage, num_good)
        try:
            entries.append((number, entry_from_json(value)))
        except TranscriptError as error:
            raise TranscriptCorruptError(f"{path}, line {number}: {error}") from error
        num_good += len(line) + 1
    return Lines(header, entries, None, min(num_good, len(data)))


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise TranscriptCorruptError(f"{path}, line 1: this is not JSON: {_excerpt(line)}") from None
    header = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if header.get("format") != FORMAT:
        raise TranscriptCorruptError(f"{path} is no transcript: line 1 does not say {FORMAT!r}")
    if header.get("version") != VERSION:
        raise TranscriptVersionError(
            f"{path} is version {header.get('version')!r} of the format, and this Braid reads version {VERSION}; "
            "use the Braid that wrote it"
        )
    if header.keys() != _HEADER_TYPES.keys():
        raise TranscriptCorruptError(f"{path}, line 1: a header has the keys {', '.join(_HEADER_TYPES)}")
    for key, kind in _HEADER_TYPES.items():
        if not isinstance(header[key], kind):
            raise TranscriptCorruptError(f"{path}, line 1: {key} is no {kind.__name__}")
    counts = cast("dict[str, Any]", header["copies"]).values()
    if not all(isinstance(count, int) and not isinstance(count, bool) for count in counts):
        raise TranscriptCorruptError(f"{path}, line 1: copies are whole numbers")
    return header


def _excerpt(line: bytes) -> str:
    return repr(line[:40].decode("utf-8", "replace")) + ("…" if len(line) > 40 else "")
