"""The conversation on the screen: bubbles on the left, thoughts beside them, a line to type into below."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal

from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.theme import Theme
from textual.timer import Timer
from textual.widgets import Footer, Static, TextArea

from braid.cli.talk import contents
from braid.cli.talk.controller import ChatController, Severity
from braid.cli.talk.help import HelpScreen
from braid.cli.talk.line_input import LineInput
from braid.cli.talk.panes import ConversationPane, SideLane
from braid.errors import BraidError

__all__ = ["ChatApp", "ThemeName"]

ThemeName = Literal["auto", "light", "dark"]

_LOOK_S = 0.08
"""Seconds after a key until the model reads what stands in the line, where it reads ahead."""
_PAUSE_S = 1.5
"""Seconds without a key after which the last word goes."""
_FRAME_S = 0.05
"""Seconds between two pictures; rows can come faster than anyone can read."""

_DARK = Theme(
    name="braid-dark",
    primary="#60a5fa",
    secondary="#c084fc",
    success="#34d399",
    error="#f87171",
    warning="#fbbf24",
    foreground="#e6edf3",
    background="#0d1117",
    surface="#161b22",
    panel="#21262d",
    variables={"muted": "#9198a1", "frame": "#3d444d"},
)
_LIGHT = Theme(
    name="braid-light",
    primary="#1d4ed8",
    secondary="#7e22ce",
    success="#047857",
    error="#b91c1c",
    warning="#b45309",
    foreground="#1f2328",
    background="#ffffff",
    surface="#f4f5f7",
    panel="#e7e9ec",
    dark=False,
    variables={"muted": "#656d76", "frame": "#c9cfd6"},
)


class ChatApp(App[None]):
    """The view of a controller.

    Args:
        controller: What the keys act on.
        name: Of the model and the topology, as the head of the conversation.
        theme: `auto` goes by the terminal's background where the terminal tells it, and is dark elsewhere.
        pause_s: Seconds without a key after which the last word goes.
    """

    CSS_PATH = Path(__file__).with_name("app.tcss")
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (84, "-wide")]  # noqa: RUF012  # the base class says what it is
    # With priority: the input line has some of these keys for itself.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "interrupt", "Interrupt", priority=True),
        Binding("ctrl+t", "toggle_lane", "Thoughts", priority=True),
        Binding("ctrl+s", "save", "Save", priority=True),
        Binding("ctrl+n", "new", "New", priority=True),
        Binding("ctrl+d", "leave", "Leave", priority=True),
        Binding("f1", "help", "Help", priority=True),
        Binding("ctrl+q", "leave", "Leave", priority=True, show=False),
        Binding("f2", "other_theme", "Light, dark", priority=True, show=False),
        Binding("pageup", "scroll(-1)", "Back", priority=True, show=False),
        Binding("pagedown", "scroll(1)", "Forth", priority=True, show=False),
    ]

    def __init__(
        self,
        controller: ChatController,
        *,
        name: str,
        theme: ThemeName = "auto",
        pause_s: float = _PAUSE_S,
    ) -> None:
        super().__init__()
        self.title = name
        self._controller = controller
        self._pause_s = pause_s
        self._pause: Timer | None = None
        self._look: Timer | None = None
        self._is_drawing = False
        self._is_leaving = False
        self.register_theme(_DARK)
        self.register_theme(_LIGHT)
        self.theme = f"braid-{_background() if theme == 'auto' else theme}"

    def compose(self) -> ComposeResult:
        """The parts of the screen, from top to bottom."""
        when = "reads along while you type" if self._controller.is_live else "reads what you enter"
        if self._controller.reads_ahead:
            when = "reads ahead while you type, and answers what you enter"
        with Container(id="panes"):
            yield ConversationPane(
                f"The model {when}.\nEnter ends your turn, Esc interrupts the model, F1 has the other keys.",
                id="conversation",
            )
            yield SideLane("What the model thinks stands here.", id="lane")
        yield Static(id="status")
        yield LineInput(placeholder="Say something", id="line")
        yield Footer()

    def on_mount(self) -> None:
        """Start the conversation."""
        controller = self._controller
        controller.on_change = self._changed
        controller.on_returned = self.query_one(LineInput).put_back
        controller.tell = self._tell
        self.query_one(ConversationPane).border_title = self.title
        inner = [label for label, kind in controller.state.kinds.items() if kind == "inner"]
        self.query_one(SideLane).border_title = " · ".join(inner)
        self.query_one(SideLane).display = bool(inner)
        self.query_one(LineInput).focus()
        self._draw()
        self.run_worker(self._converse())

    async def _converse(self) -> None:
        await self._controller.run()
        self.exit()

    # ---- the input line

    @on(TextArea.Changed)
    def _typed(self) -> None:
        line = self.query_one(LineInput)
        rest = self._controller.type(line.text)
        if rest != line.text:
            line.shorten(rest)
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(self._pause_s, self._paused) if rest.strip() else None
        if self._controller.reads_ahead and self._look is None:
            self._look = self.set_timer(_LOOK_S, self._look_at_line)

    def _look_at_line(self) -> None:
        self._look = None
        text = self.query_one(LineInput).text
        if text:  # after Enter it is empty, and what was entered counts
            self._controller.look(text)

    def _paused(self) -> None:
        line = self.query_one(LineInput)
        rest = self._controller.pause(line.text)
        if rest != line.text:
            line.shorten(rest)

    @on(LineInput.Entered)
    def _entered(self, event: LineInput.Entered) -> None:
        rest = self._controller.enter(event.text)
        if rest:
            self.query_one(LineInput).put_back(rest)

    # ---- keys

    def action_interrupt(self) -> None:
        """Close what lies over the conversation, or end what speaks."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        else:
            self._controller.interrupt()

    def action_toggle_lane(self) -> None:
        """Show the side lane, or hide it."""
        lane = self.query_one(SideLane)
        lane.display = not lane.display

    def action_save(self) -> None:
        """Write the transcript."""
        try:
            path = self._controller.save()
        except BraidError as error:
            self._tell(str(error), "error")
        else:
            self._tell(f"Saved to {path}", "information")

    def action_new(self) -> None:
        """Begin another conversation."""
        self._controller.new()
        self._draw()

    def action_leave(self) -> None:
        """End the conversation and the program; the second time without waiting for the model."""
        if self._is_leaving:
            self.exit()
        self._is_leaving = True
        self._controller.leave()

    def action_help(self) -> None:
        """Show the keys, or hide them."""
        if isinstance(self.screen, HelpScreen):
            self.pop_screen()
        else:
            self.push_screen(HelpScreen())

    def action_other_theme(self) -> None:
        """Go from light to dark, or back."""
        self.theme = "braid-dark" if self.theme == "braid-light" else "braid-light"

    def action_scroll(self, pages: int) -> None:
        """Look at what was said earlier."""
        pane = self.query_one(ConversationPane)
        if pages < 0:
            pane.scroll_page_up()
        else:
            pane.scroll_page_down()

    # ---- drawing

    def _changed(self) -> None:
        if not self._is_drawing:
            self._is_drawing = True
            self.set_timer(_FRAME_S, self._draw)

    def _draw(self) -> None:
        self._is_drawing = False
        state = self._controller.state
        screen = self.screen_stack[0]  # the conversation, whatever lies over it
        screen.query_one(ConversationPane).show(state)
        screen.query_one(ConversationPane).show_error(state)
        screen.query_one(SideLane).show(state)
        screen.query_one("#status", Static).update(contents.status(state, self._controller.kv_tokens))

    def _tell(self, message: str, severity: Severity) -> None:
        self.notify(message, severity=severity, markup=False)


def _background() -> Literal["light", "dark"]:
    """What the terminal says of its background: `COLORFGBG` ends with the number of its colour."""
    number = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if number in ("7", "15") else "dark"
