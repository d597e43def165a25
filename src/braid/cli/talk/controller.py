"""Between the person and the session: which words go when, what Enter and Esc mean, one conversation after another.

    type, pause, enter, interrupt      at once, never waiting: they change what is shown, and queue orders
    run                                carries the orders out one after the other, and takes the events

Words belong to the turn in which they are read. Three cases follow from it. A line that comes while the model speaks
is read in mid-answer, as an aside of the turn under way. If the answer ends before the line does, the rest of the line
is the next question. If all of the line has been read by then, Enter asks it again, since nothing was said to it.

Where the model reads ahead, a question stays in the input line until Enter: what stands there is a snapshot, of which
nothing counts before the commit. Lines that come while the model speaks go as ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from braid.cli.talk.chat_session import ChatSession
from braid.cli.talk.keeper import Keeper
from braid.cli.talk.turns import TalkState
from braid.cli.talk.words import split_words
from braid.errors import BraidError
from braid.streams.events import ErrorEvent, Event, NoticeEvent, RowEvent, TurnEvent

if TYPE_CHECKING:
    from braid.engine.editing.editable import Mode

__all__ = ["ChatController", "Severity"]

Severity = Literal["information", "warning", "error"]

_QUIET_NOTICES = {"flush"}
"""What every word that is typed brings with it, so that nobody wants to be told."""


_Verb = Literal["write", "end", "snapshot", "commit", "interrupt", "cancel", "close"]


@dataclass(frozen=True, slots=True)
class _Order:
    """A verb for the session."""

    verb: _Verb
    text: str = ""


class ChatController:
    """One conversation after another, driven by whoever types.

    Args:
        open_session: Opens a session, not yet entered; called for every conversation.
        main: The input that the person speaks in.
        is_live: Whether words go to the model while they are typed; else lines go at Enter.
        reads_ahead: Whether what stands in the input line is read and drafted ahead of Enter; not with `is_live`.
        mode: What may be kept behind an edit of it.
        max_rows: Rows without input after which an answer is ended; None for no limit.
        save: Where each conversation is kept after every turn. The second goes to `NAME-2`, and so on.

    Raises:
        BraidError: The first session cannot be opened.
    """

    def __init__(
        self,
        open_session: Callable[[], ChatSession],
        *,
        main: str = "user",
        is_live: bool = True,
        reads_ahead: bool = False,
        mode: Mode = "exact",
        max_rows: int | None = None,
        save: Path | None = None,
    ) -> None:
        self.main = main
        self.is_live = is_live and not reads_ahead
        self.reads_ahead = reads_ahead
        self.on_event: Callable[[Event], None] = lambda event: None
        """Called with every event."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is something new to show."""
        self.on_returned: Callable[[str], None] = lambda text: None
        """Called with words that could not be sent; they belong in front of what stands in the input line."""
        self.tell: Callable[[str, Severity], None] = lambda message, severity: None
        """Called with what the person should know."""
        self.keeper = Keeper(save)
        self._open = open_session
        self._session = open_session()
        self._mode: Mode = mode
        self._max_rows = max_rows
        self._orders: deque[_Order] = deque()
        self._news = anyio.Event()
        self._gap = ""
        """White space between the last word that was sent and what stands in the input line."""
        self._line = ""
        """What was sent of the line that is being typed."""
        self._wants: Literal["", "new", "leave"] = ""
        """What was asked for, until it is done."""
        self._refusal: BraidError | None = None
        """What the session did not do; until the next Enter nothing goes by itself, lest it be refused for ever."""
        is_text = self._session.lanes.topology.decoding == "views"
        self._between_lines = "\n" if is_text else ""
        self.state = self._fresh()

    # ---- what the person does; nothing here waits

    def type(self, draft: str) -> str:
        """Take what stands in the input line; whole words are on their way.

        Returns:
            What stays in the input line.
        """
        ready, gap, rest = split_words(draft)
        if not ready or not self._flows:
            return draft
        self._say(self._gap + ready)
        self._gap = gap
        return rest

    def pause(self, draft: str) -> str:
        """Nothing was typed for a while: the last word goes too.

        Returns:
            What stays in the input line.
        """
        ready = draft.rstrip()
        if not ready or not self._flows:
            return draft
        self._say(self._gap + ready)
        self._gap = draft[len(ready) :]
        return ""

    def look(self, draft: str) -> None:
        """Let the model read what stands in the input line, which may still change."""
        if not self.reads_ahead or self.state.is_closed or self.state.open_turn is not None or self._wants:
            return
        self._orders = deque(order for order in self._orders if order.verb != "snapshot")
        self._order("snapshot", draft.rstrip())

    def enter(self, draft: str) -> str:
        """The line is complete.

        Returns:
            What stays in the input line: nothing, or all of it where the conversation is over.
        """
        if self.state.is_closed:
            self.tell("This conversation is over; start a new one, and the line is still here.", "warning")
            return draft
        self._refusal = None
        text, turn = (self._gap + draft).rstrip(), self.state.open_turn
        if not (text.strip() or self._line.strip()):
            if turn is None:
                self.tell("There is nothing to send yet.", "information")
            return ""
        if self.reads_ahead and turn is None:
            self.state.sent(text)
            self.state.entered()
            self._order("commit", text)
            return ""
        if text.strip():
            self._say(text)
        elif turn is None:
            self._say(self._line)
        self.state.entered()
        self._order("end")
        self._line = self._gap = ""
        return ""

    def interrupt(self) -> None:
        """End what speaks; where nothing speaks yet, let nothing begin to."""
        turn = self.state.open_turn
        if self.state.is_closed:
            return
        if self.state.speaking:
            self._order("interrupt")
        elif turn is not None and turn.completed_at is not None:
            self._order("cancel")
        else:
            self.tell("Nothing is speaking.", "information")

    def new(self) -> None:
        """Leave this conversation and begin another."""
        self._finish("new")

    def leave(self) -> None:
        """End it all; `run` returns."""
        self._finish("leave")

    def save(self) -> Path:
        """Write the transcript to a file, whole.

        Returns:
            The file: the one that was asked for, or else one that is named by the time.

        Raises:
            TranscriptError: It cannot be written.
        """
        return self.keeper.write(self._session.transcript)

    # ---- asking

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this conversation."""
        return self._session.kv_tokens

    @property
    def error(self) -> BraidError | None:
        """What ended the conversation from inside."""
        return self._session.error

    async def wait_for_turn(self) -> None:
        """Return when no turn is under way, or the conversation is over.

        Raises:
            BraidError: The session refused what was sent.
        """
        while not self.state.is_closed:
            if self._refusal is not None:
                raise self._refusal
            if not self._orders and self.state.open_turn is None:
                return
            await self._news.wait()

    # ---- life

    async def run(self) -> None:
        """Hold conversations until `leave`."""
        while True:
            await self._converse(self._session, self.state)
            while not self._wants:  # it failed, and stays on the screen
                await self._news.wait()
            if self._wants == "leave":
                return
            self._begin()

    def _begin(self) -> None:
        """Open the session of the next conversation, whose state is there already."""
        self._wants, self._refusal = "", None
        # A session that failed did not come to closing; what was typed since is for the next one.
        self._orders = deque(order for order in self._orders if order.verb in ("write", "end", "commit"))
        try:
            self._session = self._open()
        except BraidError as error:
            self.state.saw(ErrorEvent(code=error.code, message=str(error)))
            self._is_over(self.state)
        else:
            self.keeper.next()

    async def _converse(self, session: ChatSession, state: TalkState) -> None:
        if session.is_closed:  # the new one could not be opened
            return
        try:
            async with session, anyio.create_task_group() as tasks:
                tasks.start_soon(self._carry_out, session, tasks)
                async for event in session:
                    self._take(event, state)
                tasks.cancel_scope.cancel()
        finally:
            self._keep()
        if not self._wants:
            self._is_over(state)
        self._changed()

    def _is_over(self, state: TalkState) -> None:
        state.is_closed = True
        self._give_back()
        self._changed()

    def _take(self, event: Event, state: TalkState) -> None:
        state.saw(event)
        self.on_event(event)
        if isinstance(event, TurnEvent):
            self._keep()
        elif isinstance(event, NoticeEvent) and event.code not in _QUIET_NOTICES:
            self.tell(event.message, "information")
        elif isinstance(event, RowEvent) and state.turns[-1].rows_alone == self._max_rows:
            self.tell(f"The answer was ended after {self._max_rows:,} rows.", "warning")
            self._order("interrupt")
        self._changed()

    async def _carry_out(self, session: ChatSession, tasks: TaskGroup) -> None:
        """Do what was ordered, until the session is closed."""
        while True:
            while not self._orders:
                await self._news.wait()
            order = self._orders.popleft()
            try:
                await self._do(session, order, tasks)
            except BraidError as error:
                self._orders.appendleft(order)
                self._refusal = error
                self._give_back()
                if not session.is_closed:  # else there is an event of it
                    self.tell(str(error), "error")
            if order.verb == "close":
                return
            self._changed()

    async def _do(self, session: ChatSession, order: _Order, tasks: TaskGroup) -> None:
        match order.verb:
            case "snapshot":
                with suppress(BraidError):  # the commit says what is wrong with it
                    await session.snapshot({self.main: order.text}, mode=self._mode)
            case "commit":
                await session.snapshot({self.main: order.text}, mode=self._mode)
                tasks.start_soon(self._commit, session)  # it returns when the answer is complete
                await anyio.lowlevel.checkpoint()
            case "write":
                await session.write(self.main, order.text)
            case "end":
                await session.end(self.main)
            case "interrupt":
                await session.interrupt()
            case "cancel":
                await session.cancel()
            case "close":
                await session.close("left")

    @staticmethod
    async def _commit(session: ChatSession) -> None:
        with suppress(BraidError):  # what ends the session is an event of it
            await session.commit()

    # ---- inside

    @property
    def _flows(self) -> bool:
        """Whether words go before the line is complete."""
        return self.is_live and not self.state.is_closed and self._refusal is None

    def _say(self, text: str) -> None:
        """Send words, with what must stand between them and those before."""
        turn = self.state.open_turn
        is_aside = turn is not None and turn.completed_at is not None and not self._line
        if turn is None or not turn.said:
            text = text.lstrip()
        elif is_aside:  # rows have a token for the end of each line; views are one text
            text = self._between_lines + text.lstrip()
        self.state.sent(text, is_aside=is_aside)
        self._line += text
        self._order("write", text)

    def _order(self, verb: _Verb, text: str = "") -> None:
        self._orders.append(_Order(verb, text))
        self._changed()

    def _give_back(self) -> None:
        """Nothing that is queued can be done: words return to the input line."""
        words = "".join(order.text for order in self._orders if order.verb != "snapshot")
        self._orders.clear()
        if not words:
            return
        self.state.withdrawn(words)
        self._line = self._line.removesuffix(words)
        self.on_returned(words.lstrip() + self._gap)
        self._gap = ""

    def _finish(self, wants: Literal["new", "leave"]) -> None:
        if self._wants in (wants, "leave"):
            return
        self._wants = wants
        self._give_back()
        self._line = self._gap = ""
        if wants == "new":
            self.state = self._fresh()
        self._order("close")

    def _keep(self) -> None:
        """Save the conversation where that was asked for, and there is anything to save."""
        if self.keeper.path is None or not self._session.transcript.rows:
            return
        try:
            self.save()
        except BraidError as error:
            self.tell(str(error), "error")

    def _fresh(self) -> TalkState:
        return TalkState(self._session.lanes, self.main)

    def _changed(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()
        self.on_change()
