"""The keys, and how the conversation works, on a screen of their own."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

__all__ = ["KEYS", "HelpScreen"]

KEYS = {
    "Enter": "ends your turn",
    "Ctrl-J": "new line within your turn",
    "Esc": "interrupts: whatever speaks, ends",
    "Ctrl-T": "shows or hides the side lane",
    "PgUp PgDn": "looks at what was said earlier",
    "Ctrl-S": "saves the transcript",
    "Ctrl-N": "begins a new conversation",
    "F2": "goes from dark to light, and back",
    "Ctrl-D Ctrl-Q": "leaves",
    "F1": "closes this",
}
"""Key → what it does."""

_HOW = """
A word goes to the model when you begin the next one, or when you pause. From then on it stands in the conversation \
and cannot be changed; it is dim until the model has read it.

What you type while the model speaks, it reads at once, in the middle of its answer: ◂ shows where. If the answer \
ends before your line does, the line is your next turn.

With --whole, a line goes when you press Enter. Where the model reads ahead, as with --topology plain, a question \
stays in the line and can be changed until then."""


class HelpScreen(ModalScreen[None]):
    """Lies over the conversation, which goes on."""

    def compose(self) -> ComposeResult:
        """Keys first."""
        width = max(map(len, KEYS))
        parts: list[str | tuple[str, str]] = []
        for key, what in KEYS.items():
            parts += [(f"{key:<{width}}", "bold $primary"), f"  {what}\n"]
        parts.append(_HOW)
        with VerticalScroll(id="help") as scroll:
            scroll.border_title = "braid chat"
            yield Static(Content.assemble(*parts))
