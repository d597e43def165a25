"""The conversation without a screen: each line is a turn, answers go to standard output, thoughts to standard error."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TextIO

import anyio

from braid.cli.show.json_lines import JsonLines
from braid.cli.show.wrapping import printable
from braid.cli.talk.controller import ChatController, Severity
from braid.cli.talk.turns import Turn
from braid.errors import BraidError
from braid.streams.events import ErrorEvent, Event

__all__ = ["LineMode", "lines_of"]


async def lines_of(pieces: AsyncIterator[str]) -> AsyncIterator[str]:
    """The lines of a text that arrives in pieces, each as soon as it is complete; without their ends."""
    held = ""
    async for piece in pieces:
        *lines, held = (held + piece).split("\n")
        for line in lines:
            yield line.removesuffix("\r")
    if held:
        yield held


class LineMode:
    """Asks line after line, and writes what the streams say in whole lines.

    Args:
        controller: Not yet running; it is left when the lines end.
        out: For answers. Where several streams answer, lines begin with the stream's name.
        err: For inner streams, whose lines always do.
        prompt: Written to `err` before each line is read; for a person who types.
        as_json: Write every event to `out` instead.
    """

    def __init__(
        self, controller: ChatController, out: TextIO, err: TextIO, *, prompt: str = "", as_json: bool = False
    ) -> None:
        self._controller = controller
        self._out, self._err, self._prompt = out, err, prompt
        self._json = JsonLines(out) if as_json else None
        kinds = controller.state.kinds.values()
        self._names_answers = sum(kind == "answer" for kind in kinds) > 1
        self._turn: Turn | None = None
        self._num_written: dict[str, int] = {}
        """Of each output, characters of its text in this turn that were written."""
        self._failure: Exception | None = None
        controller.on_event = self._saw
        controller.on_change = self._changed
        controller.tell = self._tell

    async def run(self, lines: AsyncIterator[str]) -> None:
        """Hold the conversation.

        Raises:
            BraidError: What ended the conversation from inside, or was wrong with a line.
            OSError: Nobody reads what is written.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._controller.run)
            try:
                await self._ask(lines)
            except (BraidError, OSError) as error:  # raised below, outside the group, which would wrap it
                self._fail(error)
            self._controller.leave()
        if self._failure is not None:
            raise self._failure

    async def _ask(self, lines: AsyncIterator[str]) -> None:
        self._show_prompt()
        async for line in lines:
            if line.strip():
                self._controller.enter(line)
                await self._controller.wait_for_turn()
            if self._failure is not None:
                return
            if self._controller.error is not None:
                raise self._controller.error
            self._show_prompt()

    def _show_prompt(self) -> None:
        if self._prompt:
            self._err.write(self._prompt)
            self._err.flush()

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error

    def _saw(self, event: Event) -> None:
        # Errors are raised, and reported once.
        if self._json is not None and self._failure is None and not isinstance(event, ErrorEvent):
            try:
                self._json.on_event(event)
            except OSError as error:
                self._fail(error)
                self._controller.leave()

    def _changed(self) -> None:
        if self._json is None and self._failure is None:
            try:
                self._write_what_is_new()
            except OSError as error:
                self._fail(error)
                self._controller.leave()

    def _write_what_is_new(self) -> None:
        state = self._controller.state
        if not state.turns:
            return
        if state.turns[-1] is not self._turn:
            self._turn, self._num_written = state.turns[-1], {}
        turn = state.turns[-1]
        for label, said in turn.outputs.items():
            fresh = said.text[self._num_written.get(label, 0) :]
            is_complete = turn.is_over or state.is_closed or not state.is_active(label)
            whole = fresh if is_complete else fresh[: fresh.rfind("\n") + 1]
            self._num_written[label] = self._num_written.get(label, 0) + len(whole)
            for line in whole.splitlines():
                self._write(label, line, is_answer=state.kinds[label] == "answer")

    def _write(self, label: str, line: str, *, is_answer: bool) -> None:
        if not is_answer:
            self._err.write(f"{label}> {printable(line)}\n")
            self._err.flush()
            return
        # A terminal must be kept safe, a file must have what was said.
        shown = printable(line) if self._out.isatty() else line
        self._out.write(f"{label}> {shown}\n" if self._names_answers else f"{shown}\n")
        self._out.flush()

    def _tell(self, message: str, severity: Severity) -> None:
        if severity != "error":  # errors are raised
            with suppress(OSError):
                self._err.write(f"{message}\n")
