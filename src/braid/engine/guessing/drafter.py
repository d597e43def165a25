"""A small model drafts for a large one: its text is what the large one is likely to say, and verifies in few forwards.

    large engine                         drafter's thread                       small engine
    push(snapshot, commit, …) ── heard ──▶  look at the newest snapshot
                                            snapshot to the session's twin ──▶  reads it, drafts its answer
    suggest(stream, text)  ◀─────────────── its draft, as it grows  ◀── rings ──
    close ─────────────────── heard ──────▶ close the twin

Text goes between the two, so that they need no tokenizer in common, and a suggestion changes nothing but the time. A
twin has the budget of its session. For each turn there is a new one, which is told what the large model has said in
the turns before. Whatever goes wrong with a twin is counted, and is no matter of the session's.

Only the drafter's thread asks either engine for anything, and never one while it holds the lock of the other: those who
call it, each under the lock of its engine, leave word and go on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from braid.engine.editing.history import spelled
from braid.errors import BraidError, EngineBusyError, SessionClosedError
from braid.model.chat import Chat
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.backend import Draft, SessionBackend, SessionHandle
    from braid.engine.session.conversation import Conversation

__all__ = ["CONCERNING", "Drafter", "Served", "Wish"]

CONCERNING = frozenset({"snapshot", "commit", "rollback"})
"""Verbs after which a session's twin may have something to do."""

LEAST_GROWTH = 24
"""Characters by which a draft has grown before it is suggested anew, at least; and by a half, so that all that is
suggested of one draft stays a small multiple of it."""

EXIT_S = 10.0

_log = logging.getLogger("braid.drafter")


class Served(Protocol):
    """The large engine, as far as it is asked from here; `EngineLoop` is one."""

    def push(self, session: int, verb: str, *arguments: Any) -> Any:
        """Apply a verb."""
        ...

    def note_drafter_error(self, error: BraidError) -> None:
        """Count what went wrong with a twin."""
        ...


class Snapshot(NamedTuple):
    """What a session's inputs hold.

    Args:
        texts: By stream.
        messages: The whole conversation, if that is told, too; its last message is the first input's text.
    """

    texts: Mapping[str, str]
    messages: Sequence[Mapping[str, Any]] | None = None


class Wish(NamedTuple):
    """What a session would have drafted.

    Args:
        turn: Its turn, counted from 0.
        snapshot: The newest one; None once that is committed and released, or where there is none.
        is_over: Whether the turn is over, or was taken back.
    """

    turn: int
    snapshot: Snapshot | None
    is_over: bool


def _wish_of(conversation: Conversation) -> Wish | None:
    """What a session would have drafted; None where it is closed."""
    if conversation.is_closed:
        return None
    edit = conversation.edit
    snapshot = None
    if edit is not None:
        texts = dict(edit.texts)
        snapshot = Snapshot(texts)
        if edit.history is not None:
            snapshot = Snapshot(texts, spelled(conversation, texts, edit.history)[1])
    return Wish(conversation.turn, snapshot, snapshot is None and conversation.turn_is_over)


@dataclass
class _Twin:
    """The small model's session for one turn of a large one's."""

    handle: SessionHandle
    turn: int
    told: Snapshot | None = None
    """The snapshot that it was told last."""
    suggested: dict[str, int] = field(default_factory=dict[str, int])
    """Characters of its draft that were suggested, by output."""


class Drafter:
    """Drafts for the sessions of one engine on another one.

    Args:
        served: The large engine.
        lock: That guards its sessions.
        small: The small model's engine.
    """

    def __init__(self, served: Served, lock: threading.RLock, small: SessionBackend) -> None:
        self._served = served
        self._lock = lock
        self._small = small
        self._changed = threading.Condition()
        self._pending: dict[int, Conversation] = {}
        """Sessions that have changed, or whose twins have."""
        self._twins: dict[int, _Twin] = {}
        self._refused: set[int] = set()
        """Sessions that cannot have a twin."""
        self._thread: threading.Thread | None = None
        self._is_halted = False
        self._has_complained = False

    def heard(self, conversation: Conversation) -> None:
        """A session was told something that may concern its twin, or is closed."""
        if not conversation.stage.in_views:
            return  # a small model knows nothing of streams that the large one was trained on
        with self._changed:
            number = conversation.number
            if self._is_halted or (conversation.is_closed and self._thread is None):
                self._refused.discard(number)
                return
            self._pending[number] = conversation
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="braid-drafter", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def halt(self) -> None:
        """End the thread, as the process ends; nothing is drafted any more."""
        with self._changed:
            self._is_halted = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(EXIT_S)

    # ---- the thread

    def _run(self) -> None:
        while (conversation := self._next()) is not None:
            try:
                self._serve(conversation)
            except SessionClosedError:  # by either side, meanwhile
                self._dismiss(conversation.number)
            except Exception as error:  # noqa: BLE001 (nothing of a twin is a matter of the session's)
                self._complain(conversation.number, error)

    def _next(self) -> Conversation | None:
        """A session whose turn it is; None when there is nobody left to draft for."""
        with self._changed:
            while not self._pending and self._twins and not self._is_halted:
                self._changed.wait()
            if not self._pending or self._is_halted:
                self._thread = None
                return None
            return self._pending.pop(next(iter(self._pending)))

    def _serve(self, conversation: Conversation) -> None:
        number = conversation.number
        with self._lock:
            wish = _wish_of(conversation)
        twin = self._twins.get(number)
        if wish is None:
            self._dismiss(number)
            self._refused.discard(number)
            return
        snapshot = wish.snapshot
        # Messages hold for the rest of a turn; one without them is another one, begun after these were taken back.
        is_anew = twin is not None and twin.told and twin.told.messages and snapshot and not snapshot.messages
        if twin is not None and (wish.is_over or wish.turn != twin.turn or is_anew):
            self._dismiss(number)
            twin = None
        if snapshot is not None and snapshot.texts and number not in self._refused:
            twin = twin or self._hire(conversation, wish.turn)
            if snapshot != twin.told:
                self._small.push(twin.handle.number, "snapshot", *_as_arguments(conversation, snapshot))
                twin.told, twin.suggested = snapshot, {}
        if twin is not None:
            self._suggest(number, twin)

    def _hire(self, conversation: Conversation, turn: int) -> _Twin:
        """Open a twin for a turn."""
        with self._lock:
            topology, settings = _opening(conversation)
        topology = self._small.check(topology, settings)
        handle = self._small.start(topology, settings)
        twin = self._twins[conversation.number] = _Twin(handle, turn)

        def rung() -> None:
            with self._changed:
                if self._twins.get(conversation.number) is twin:
                    self._pending[conversation.number] = conversation
                    self._changed.notify_all()

        handle.changed.on_ring = rung
        return twin

    def _suggest(self, number: int, twin: _Twin) -> None:
        """Hand on what the twin has drafted, where it has grown enough."""
        look = twin.handle.look()
        if look.is_closed:
            raise twin.handle.error or SessionClosedError("the twin is closed")
        draft = twin.handle.look_at_draft()
        if draft is None or twin.told is None or dict(draft.inputs) != dict(twin.told.texts):
            return
        for stream, text in draft.texts.items():
            if _is_worth_it(draft, text, twin.suggested.get(stream, 0)):
                self._served.push(number, "suggest", stream, text, draft.is_complete)
                twin.suggested[stream] = len(text) + draft.is_complete

    def _dismiss(self, number: int) -> None:
        with self._changed:
            twin = self._twins.pop(number, None)
        if twin is not None:
            twin.handle.changed.on_ring = None
            self._small.abort(twin.handle.number, "no longer needed")

    def _complain(self, number: int, error: Exception) -> None:
        """Count an error, tell of the first one, and let the session be; where there was no seat it is tried again."""
        known = error if isinstance(error, BraidError) else BraidError(f"{type(error).__name__}: {error}")
        self._served.note_drafter_error(known)
        if not self._has_complained:
            self._has_complained = True
            _log.warning(
                "the drafter cannot help a session (%s); it goes on without, and further errors are only counted",
                known,
            )
        if not isinstance(error, EngineBusyError):
            self._refused.add(number)
        try:
            self._dismiss(number)
        except BraidError:  # it is gone, or will be with its engine
            return


def _as_arguments(conversation: Conversation, snapshot: Snapshot) -> tuple[Any, ...]:
    """How a twin is told a snapshot."""
    if snapshot.messages is None:
        return (dict(snapshot.texts),)
    first = conversation.topology.input_names[0]
    others = {stream: text for stream, text in snapshot.texts.items() if stream != first}
    return others, "exact", snapshot.messages


def _is_worth_it(draft: Draft, text: str, suggested: int) -> bool:
    if not text:
        return False
    if draft.is_complete or draft.rests:
        return len(text) + draft.is_complete > suggested
    return len(text) >= max(suggested + LEAST_GROWTH, suggested * 3 // 2)


def _opening(conversation: Conversation) -> tuple[Topology, dict[str, Any]]:
    """What a session's twin is opened with.

    Token ids are the large model's, and silence is, so that biases are left out.
    """
    topology = conversation.topology
    changes: dict[str, Any] = {}
    for name in topology.output_names:
        spec = topology.streams[name]
        sampling = spec.sampling.model_copy(update={"logit_bias": {}, "silence_bias": 0.0})
        changes[name] = spec.model_copy(update={"sampling": sampling, "logprobs": None})
    settings = {
        "seed": conversation.seed,
        "copies": dict(conversation.transcript.copies),
        "forces_answers": conversation.forces_answers,
        "predicates": conversation.predicates,
        "salt": conversation.salt,
        "chat": _chat_of(conversation),
        "most_drafted": conversation.most_drafted,
        "draft_after": conversation.draft_after,
    }
    return topology.with_specs(changes), settings


def _chat_of(conversation: Conversation) -> dict[str, Any] | None:
    """The conversation so far, as the large model knows it."""
    given: Mapping[str, Any] | None = conversation.transcript.meta.get("chat")
    preamble = conversation.stage.preamble
    if preamble is None or not conversation.turn:
        return None if given is None else dict(given)
    first = Chat() if given is None else Chat.from_data(given)
    chat = Chat(tuple(preamble.history), options=first.options, is_bare=first.is_bare)
    return chat.to_data()
