"""From options and standard input to the text of each input stream."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import typer

from braid.errors import DirectionError, EmptyInputError, InputError
from braid.streams.topology import Topology

__all__ = ["STDIN", "counts_of", "gather_inputs", "parse_copies", "stdin_reader"]

STDIN = None
"""Stands for text that comes through standard input."""


def gather_inputs(
    topology: Topology, user: str | None, user_file: Path | None, others: Sequence[str]
) -> dict[str, str | None]:
    """The text of each input stream that gets any; `STDIN` where it comes through standard input.

    Args:
        topology: Whose inputs.
        user: Text of the stream that a person speaks in: `user`, or the first input where none has this name.
        user_file: A file with that text.
        others: `NAME=TEXT` for any input.

    Raises:
        InputError, EmptyInputError, UnknownStreamError, DirectionError: What was given cannot be used.
    """
    if not topology.input_names:
        raise InputError("this topology has no input stream, so that there is nothing to run it on")
    main = "user" if "user" in topology.input_names else topology.input_names[0]
    texts: dict[str, str | None] = {}
    for name, text in (_pair(other, "TEXT") for other in others):
        _require_input(topology, name)
        if name in texts:
            raise InputError(f"{name} is given twice; give each input once")
        texts[name] = _checked(name, text)
    if sum((user is not None, user_file is not None, main in texts)) > 1:
        raise InputError(f"{main} is given twice; use one of --user, --user-file and --stream {main}=…")
    if user is not None:
        texts[main] = _checked(main, user)
    elif user_file is not None:
        texts[main] = _checked(main, _read(user_file))
    elif main not in texts:
        texts[main] = _typed_text(main) if sys.stdin.isatty() else STDIN
    return {name: texts[name] for name in topology.input_names if name in texts}


def parse_copies(values: Sequence[str]) -> dict[str, int]:
    """`NAME=N` of each stream that runs in parallel copies.

    Raises:
        InputError: It is no such pair.
    """
    copies: dict[str, int] = {}
    for name, count in (_pair(value, "N") for value in values):
        if not count.isdecimal():
            raise InputError(f"--copies {name}={count}: N is a whole number")
        copies[name] = int(count)
    return copies


def stdin_reader() -> Callable[[], bytes]:
    """A function that returns what has arrived on standard input, and nothing at its end."""
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # it was replaced by something that is no file
        # The stream as it is now: a thread may read after it was put back.
        return partial(_read_replaced, sys.stdin.buffer)
    # Below Python's buffer: a thread that waits in there could keep the process from ending.
    return lambda: os.read(descriptor, 65536)


def _read_replaced(stream: BinaryIO) -> bytes:
    try:
        return stream.read(65536)
    except ValueError:  # whoever had replaced it has closed it since
        return b""


def _pair(value: str, what: str) -> tuple[str, str]:
    name, equals, rest = value.partition("=")
    if not (name and equals):
        raise InputError(f"{value!r} is not NAME={what}")
    return name, rest


def _require_input(topology: Topology, name: str) -> None:
    if not topology.stream(name).is_input:
        raise DirectionError(f"{name} is an output; the inputs are {', '.join(topology.input_names)}")


def _checked(name: str, text: str) -> str:
    if not text:
        raise EmptyInputError(f"{name} is empty; give it some text, or leave it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text, from character {error.start} on; convert it first"
        ) from None
    return text


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()  # and not read_text, which would change line ends
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}; convert it first"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _typed_text(name: str) -> str:
    """What a person types, before anything else is drawn on the terminal."""
    typer.secho(f"Text for {name}, ended by Ctrl-D on a line of its own:", err=True, dim=True)
    try:
        return _checked(name, sys.stdin.buffer.read().decode())
    except UnicodeDecodeError as error:
        raise InputError(f"what was typed is not UTF-8 text: {error.reason}") from None


def counts_of(text: str) -> tuple[int, ...]:
    """Numbers from 1 up, as `1,4,16` spells them.

    Raises:
        InputError: It spells none.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise InputError(f"{text!r} spells no numbers; write them like 1,4,16")
    return tuple(int(part) for part in parts)
