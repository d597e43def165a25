"""The line that is typed into: Enter completes it, and what was sent disappears from its front."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

__all__ = ["LineInput"]


class LineInput(TextArea):
    """A text area of one line that grows with what is in it; Ctrl-J begins a new line within the text."""

    @dataclass
    class Entered(Message):
        """Enter was pressed; the line is empty again."""

        text: str

    def __init__(self, *, placeholder: str, id: str) -> None:  # noqa: A002  # as all widgets have it
        super().__init__(
            id=id, compact=True, soft_wrap=True, highlight_cursor_line=False, placeholder=placeholder
        )

    def on_key(self, event: events.Key) -> None:
        """Take the keys that a text area takes for something else."""
        if event.key == "enter":
            event.prevent_default().stop()
            # Taken out at once: what is typed before the message arrives belongs to the next line.
            text = self.text
            self.shorten("")
            self.post_message(self.Entered(text))
        elif event.key in ("ctrl+j", "shift+enter"):
            event.prevent_default().stop()
            self.insert("\n")

    def shorten(self, rest: str) -> None:
        """Take away what stands before `rest`, the end of the text. It cannot be brought back with undo."""
        before = self.text.removesuffix(rest)
        if before:
            *lines, last = before.split("\n")
            self.delete((0, 0), (len(lines), len(last)))
        self.history.clear()

    def put_back(self, text: str) -> None:
        """Put text in front of what stands here; the cursor stays where it is in the text."""
        self.insert(text, (0, 0))
