"""Ways to answer an input that is typed: what each does with a snapshot, and what at the commit.

ahead        snapshots are read, and answered in drafts, as they come
read-ahead   they are read, and nothing is drafted
repair,      as `ahead`, and of what stands behind an edit as much is taken over as the mode allows
reuse
none         nothing before the commit; then the whole text
append       what is appended is written to a live session; at any other edit a new session is opened
fresh        whenever nothing is being answered, the newest text is asked whole, the answer included, as a request of
             its own; its prompt is computed from the first token on that differs from the request before (a prefix
             cache without pages, which is as good as one gets). The commit ends a request of an older text

All of them run on the same engine and sample alike, so that they differ in nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from braid.bench.typing.machine import Machine
from braid.engine.editing.editable import DRAFT_AFTER, MOST_DRAFTED, Mode
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.model.chat import Chat, Message
from braid.streams.topology import Topology

__all__ = ["EXACT_WAYS", "WAYS", "Way", "make_way"]

WAYS = ("ahead", "read-ahead", "repair", "reuse", "none", "append", "fresh")
"""All of them, in the order in which they are told."""

EXACT_WAYS = ("ahead", "read-ahead", "append", "fresh")
"""Those whose answers are those of `none`, token by token."""


class Way(ABC):
    """One way to answer, on a machine of its own.

    Args:
        machine: What computes.
        topology: Its streams.
        stream: The input that is typed.
    """

    def __init__(self, machine: Machine, topology: Topology, stream: str) -> None:
        self.machine = machine
        self.topology = topology
        self.stream = stream
        self._conversation: Conversation | None = None
        self._history: list[Message] = []

    @property
    def conversation(self) -> Conversation:
        """The session as it is now."""
        assert self._conversation is not None, "begin comes first"
        return self._conversation

    def begin(self) -> None:
        """Open the session of a trace, at second 0."""
        self._history = []
        self._open()

    @abstractmethod
    def hear(self, text: str) -> None:
        """A snapshot has come."""

    @abstractmethod
    def commit(self, text: str) -> None:
        """The text is final, and what was heard last."""

    @property
    def has_work(self) -> bool:
        """Whether the next step would compute something."""
        return self.conversation.has_work

    @property
    def is_over(self) -> bool:
        """Whether the committed turn is answered."""
        return self.conversation.turn_is_over

    def step(self, meanwhile: Callable[[float], None]) -> bool:
        """Make the next rows; returns whether there was a forward. See `Machine.step`."""
        return self.machine.step(self.conversation, meanwhile)

    def has_read(self, text: str) -> bool:
        """Whether the cache holds this text, all of it computed or taken over; False where nobody can tell."""
        return False

    def remember(self, said: str, answered: str) -> None:
        """A turn is over; another may follow."""
        self._history += [Message("user", said), Message("assistant", answered)]

    def end(self) -> None:
        """Close the session of a trace."""
        if self._conversation is not None:
            self.machine.core.do(self._conversation, "close")
        self._conversation = None

    def _open(self, **settings: Any) -> None:
        self.end()
        if self._history:
            settings["chat"] = Chat(tuple(self._history)).to_data()
        self._conversation = self.machine.open(self.topology, **settings)

    def _do(self, verb: str, *arguments: Any) -> None:
        self.machine.do(self.conversation, verb, *arguments)


class _Whole(Way):
    def hear(self, text: str) -> None:
        pass

    def commit(self, text: str) -> None:
        self._do("tell", {self.stream: text})


class _Snapshots(Way):
    def __init__(
        self, machine: Machine, topology: Topology, stream: str, *, most_drafted: int, mode: Mode = "exact"
    ) -> None:
        super().__init__(machine, topology, stream)
        self._most_drafted = most_drafted
        self._mode: Mode = mode

    def hear(self, text: str) -> None:
        self._do("snapshot", {self.stream: text}, self._mode)

    def commit(self, text: str) -> None:
        self._do("commit")

    def has_read(self, text: str) -> bool:
        conversation = self.conversation
        edit, lane = conversation.edit, conversation.stage.input(self.stream)
        if edit is None:
            is_there = not conversation.turn_is_over
        else:
            is_there = edit.base is not None and not edit.is_outdated and not edit.splicing.is_pending
        return is_there and not lane.queue and lane.read_text == text

    def _open(self, **settings: Any) -> None:
        super()._open(most_drafted=self._most_drafted, draft_after=DRAFT_AFTER, **settings)


class _Appending(Way):
    _written = ""

    def begin(self) -> None:
        self._written = ""
        super().begin()

    def hear(self, text: str) -> None:
        if not text.startswith(self._written):
            self._open()
            self._written = ""
        more = text[len(self._written) :]
        if more:
            self._do("write", self.stream, more)
        self._written = text

    def commit(self, text: str) -> None:
        self._do("end")

    def remember(self, said: str, answered: str) -> None:
        super().remember(said, answered)
        self._written = ""


class _Requests(_Snapshots):
    """Each request is a draft that nobody edits before it is finished, and that leaves no guesses to the next."""

    _newest = ""
    _asked = ""

    def begin(self) -> None:
        self._newest = self._asked = ""
        super().begin()

    def hear(self, text: str) -> None:
        self._newest = text

    def commit(self, text: str) -> None:
        self._ask(text)
        super().commit(text)

    @property
    def has_work(self) -> bool:
        return self.conversation.has_work or self._is_due

    @property
    def _is_due(self) -> bool:
        return self._newest != self._asked and bool(self._newest.strip())

    def step(self, meanwhile: Callable[[float], None]) -> bool:
        if not self.conversation.has_work and self._is_due:
            self._ask(self._newest)
        return super().step(meanwhile)

    def remember(self, said: str, answered: str) -> None:
        super().remember(said, answered)
        self._newest = self._asked = ""

    def _ask(self, text: str) -> None:
        if text != self._asked:
            self._do("snapshot", {self.stream: text})
        self._newest = self._asked = text

    def _open(self, **settings: Any) -> None:
        super()._open(guesses="none", **settings)


def make_way(name: str, machine: Machine, topology: Topology, stream: str, longest: int) -> Way:
    """One way, by its name.

    Args:
        name: Of `WAYS`.
        machine: Of its own.
        topology, stream: As for `Way`.
        longest: Tokens of the longest answer.

    Raises:
        InputError: There is no such way.
    """
    if name == "none":
        return _Whole(machine, topology, stream)
    if name == "append":
        return _Appending(machine, topology, stream)
    if name == "fresh":
        return _Requests(machine, topology, stream, most_drafted=MOST_DRAFTED + longest)
    modes: dict[str, Mode] = {"ahead": "exact", "read-ahead": "exact", "repair": "repair", "reuse": "reuse"}
    if name not in modes:
        raise InputError(f"there is no way to answer called {name!r}; there are {', '.join(WAYS)}")
    most = 0 if name == "read-ahead" else MOST_DRAFTED
    return _Snapshots(machine, topology, stream, most_drafted=most, mode=modes[name])
