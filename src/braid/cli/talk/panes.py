"""The parts of the screen: bubbles in the order of turns, and the side lane."""

from __future__ import annotations

from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from braid.cli.talk import contents
from braid.cli.talk.turns import TalkState, Turn

__all__ = ["ConversationPane", "Empty", "SideLane"]


class Empty(Static):
    """What stands in a pane before there is anything in it."""


class _Pane(VerticalScroll, can_focus=False):
    """A pane with one part for each turn; it stays at its end unless someone scrolls."""

    def __init__(self, hint: str, *, id: str) -> None:  # noqa: A002  # as all widgets have it
        super().__init__(id=id)
        self._hint = hint
        self._state: TalkState | None = None
        self._parts: dict[int, Widget] = {}
        self._drawn: dict[int, int] = {}
        """Of each turn, the version that is on the screen."""

    def on_mount(self) -> None:
        """Follow what comes."""
        self.anchor()

    def show(self, state: TalkState) -> None:
        """Draw what has changed."""
        if state is not self._state:
            self._state, self._parts, self._drawn = state, {}, {}
            self.remove_children()
            self.mount(Empty(self._hint))
        for turn in state.turns:
            if self._drawn.get(turn.number) == turn.version or not self.has_part(state, turn):
                continue
            if not self._parts:
                self.query(Empty).remove()
            if turn.number not in self._parts:
                self._parts[turn.number] = self.new_part()
                self.mount(self._parts[turn.number])
            self.draw(self._parts[turn.number], state, turn)
            self._drawn[turn.number] = turn.version

    def has_part(self, state: TalkState, turn: Turn) -> bool:
        """Whether there is anything of the turn to show here."""
        raise NotImplementedError

    def new_part(self) -> Widget:
        """A widget for a turn."""
        raise NotImplementedError

    def draw(self, part: Widget, state: TalkState, turn: Turn) -> None:
        """Show the turn in its widget."""
        raise NotImplementedError


class ConversationPane(_Pane):
    """Questions and answers."""

    def has_part(self, state: TalkState, turn: Turn) -> bool:
        """Every turn is shown, and goes on being shown when its words were withdrawn."""
        return bool(turn.said.strip() or turn.outputs or turn.number in self._parts)

    def new_part(self) -> Widget:
        """A column of bubbles."""
        return _Bubbles()

    def draw(self, part: Widget, state: TalkState, turn: Turn) -> None:
        """Let the bubbles grow."""
        assert isinstance(part, _Bubbles)
        part.show(list(contents.bubbles(state, turn)))

    def show_error(self, state: TalkState) -> None:
        """Say below the last turn what ended the conversation."""
        if state.error is not None and not self.query(".error"):
            self.mount(Static(contents.error_note(state.error), classes="bubble error"))


class SideLane(_Pane):
    """What the inner streams say."""

    def has_part(self, state: TalkState, turn: Turn) -> bool:
        """Only turns in which an inner stream has spoken."""
        return any(state.kinds[label] == "inner" for label in turn.outputs)

    def new_part(self) -> Widget:
        """All streams of a turn in one text."""
        return Static(classes="inner")

    def draw(self, part: Widget, state: TalkState, turn: Turn) -> None:
        """Let the text grow."""
        assert isinstance(part, Static)
        part.border_title = f"turn {turn.number}"
        part.update(contents.side_lane(state, turn))


class _Bubbles(Vertical):
    """The bubbles of one turn, by their keys."""

    def __init__(self) -> None:
        super().__init__(classes="turn")
        self._bubbles: dict[str, Static] = {}
        self._contents: dict[str, Content] = {}

    def show(self, wanted: list[contents.Bubble]) -> None:
        """Draw the bubbles that are new or have grown, and remove those that are not wanted any more."""
        for key in self._bubbles.keys() - {key for key, _, _ in wanted}:
            self._bubbles.pop(key).remove()
            del self._contents[key]
        following: Static | None = None
        for key, classes, content in reversed(wanted):
            if key not in self._bubbles:
                bubble = self._bubbles[key] = Static(content, classes=f"bubble {classes}")
                self.mount(bubble, before=following)
            elif not content.is_same(self._contents[key]):  # == compares the text alone
                self._bubbles[key].update(content)
            self._contents[key] = content
            following = self._bubbles[key]
