"""One session: its verbs, and the rows that come of them.

    write, end, interrupt, …     change queues and phases; nothing is computed
    demand()                     what it could do next, for the scheduler
    prepare(grant)               takes from the queues what enters the next rows, records them, says what to compute
    advance(answers)             gives every lane that was asked its next token, or silence
    step_ahead()                 enters the next rows, too, where they were computed already, see `guessing.ahead`

A verb takes effect in the next row. `prepare` asks the backend for room before it changes anything: when there is
none it raises, and the same call succeeds later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from braid.engine.backend import (
    PREAMBLE,
    Answer,
    Backend,
    Close,
    Draft,
    Draw,
    Drop,
    Entry,
    Fork,
    Item,
    Keep,
    Kind,
    Op,
    Open,
    Recall,
    Splice,
    Stash,
    Trim,
    closer_of,
)
from braid.engine.editing.editable import DRIFT_BOUND, MOST_DRAFTED, Counts, EditableTurn, Mode
from braid.engine.editing.facts import changes_a_fact
from braid.engine.editing.history import History, told_history
from braid.engine.editing.room import has_outgrown, require_room, require_room_for_a_turn
from braid.engine.editing.splicing import Part, needs_of
from braid.engine.editing.taken import Shape, Taken, shape_of
from braid.engine.guessing.ahead import BooksOnly, StepAhead, StepsAhead
from braid.engine.guessing.guesses import MAX_TOKENS
from braid.engine.guessing.session_guesses import Asked, SessionGuesses
from braid.engine.scheduler import Demand, Grant
from braid.engine.session.coming import coming_rows, demand_of_piece, demand_of_rows, within
from braid.engine.session.ground import Ground, Unanswered
from braid.engine.session.lanes import InputLane, OutputLane, Waiting
from braid.engine.session.policy import RowPlan
from braid.engine.session.record import LedgerLine, News, Record, as_event
from braid.engine.session.rowmaker import NextRows, RowMaker
from braid.engine.session.shared_prefix import SharedPrefix
from braid.engine.session.stage import Stage
from braid.engine.session.starts import Predicate, decide_wait, is_unread, note_sureness, require_supported
from braid.errors import (
    BraidError,
    ContextOverflowError,
    EditAfterConsumed,
    EmptyInputError,
    InputError,
    NothingToForceError,
    QueueFullError,
    RegimeError,
    SessionClosedError,
)
from braid.model.chat import Chat
from braid.streams.events import Event, Reuse, StreamState, TokenOdds
from braid.streams.text import require_whole
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

if TYPE_CHECKING:
    from braid.engine.ledger import Ledger

__all__ = ["EVERYTHING", "Conversation"]

EVERYTHING = Grant(-1, 1 << 30, True)
"""A grant without a limit."""

_BOOKS = (
    "stage",
    "turn",
    "is_first_due",
    "_in_turn",
    "_was_quiescent",
    "_ended_at",
    "_said_at",
    "asked",
    "_told",
    "num_entries_before",
)
"""What a conversation takes from its double."""

Apply = Callable[[Sequence[Op]], list[int]]


class Conversation:
    """The state of one session. Synchronous, without threads, clocks and tensors; made by `EngineCore.open`.

    Args:
        backend: What computes.
        topology: The streams; what the checkpoint was trained with wins over it.
        number: The session's number on the backend.
        apply: Takes operations for the backend, and may put them off until a forward that is under way is over.
        seed: Of all sampling noise.
        copies: Parallel copies of streams that allow them.
        forces_answers: At quiescence, make an external output speak that has not answered in this turn.
        predicates: What triggers of the topology may ask, by name.
        salt: Prefixes are shared with sessions of the same salt only.
        max_queued: Input tokens that may wait to be read.
        chat: In views, the conversation that the first turn goes on with, as `Chat.to_data` spells it.
        most_drafted: Tokens that the outputs may say ahead of the commit, in each draft of an editable turn.
        draft_after: Seconds without a newer snapshot before they do; reading goes on at once.
        drift_bound: How far what is taken over behind an edit may be from what it should be, see `DRIFT_BOUND`.

    Raises:
        CheckpointConflictError: The topology contradicts the checkpoint.
        UnsupportedByBackend: The topology asks for what the backend cannot do.
        UnsupportedModelError: Views on a model whose positions cannot be shifted.
        InputError: A trigger names a predicate that is not there.
    """

    TIMED: ClassVar = frozenset({"write", "tell", "end", "flush", "snapshot", "commit"})
    """Verbs that are told the moment."""

    UNWRITTEN: ClassVar = frozenset({"snapshot", "rollback", "suggest"})
    """Verbs that are not in the ledger, where a committed turn stands as if it had been told at once."""

    def __init__(
        self,
        backend: Backend,
        topology: Topology,
        *,
        number: int,
        apply: Apply,
        seed: int = 0,
        copies: Mapping[str, int] | None = None,
        forces_answers: bool = True,
        predicates: Mapping[str, Predicate] | None = None,
        salt: str = "",
        max_queued: int = 65_536,
        chat: Mapping[str, Any] | None = None,
        most_drafted: int = MOST_DRAFTED,
        draft_after: float = 0.0,
        drift_bound: float = DRIFT_BOUND,
    ) -> None:
        self.backend = backend
        self.model = backend.model
        self.topology = backend.settle(topology)
        self.number = number
        self.salt = salt
        self.predicates = dict(predicates or {})
        require_supported(self.topology, backend.capabilities(), self.predicates, self.model.silence_token_id)
        if chat is not None and self.topology.decoding != "views":
            raise InputError(
                "a conversation so far is for topologies of views; give one of rows its past as input streams"
            )
        self.stage = Stage(self.model, self.topology, copies, None if chat is None else Chat.from_data(chat))
        self.table = self.stage.table
        self.labels = frozenset(lane.label for lane in self.table.lanes)
        self.seed = seed
        self.turn = 0
        self.is_closed = False
        self.error: BraidError | None = None
        """What ended it from inside."""
        self.forces_answers = forces_answers
        self.is_first_due = False
        """Whether a turn's first token, or first answer token, is still to come."""
        self.num_awaited = 0
        """Results that are still to come from outside, such as those of tools; no turn ends by silence meanwhile."""
        self.max_queued = max_queued
        self.peak_kv_tokens = 0
        """The most tokens that the cache kept for this session."""
        self._apply = apply
        self._ended_at: float | None = None
        self._said_at: float | None = None
        self._in_turn = False
        self._was_quiescent = False
        can_share = (
            backend.capabilities().prefixes and not self.stage.in_views and not self.stage.keeps_silence
        )
        self.prefix = SharedPrefix(salt, is_open=can_share)
        self.ground = Ground()
        self.ledger: Ledger | None = None
        """Where it is written down what happens to this session, so that another process can go on with it."""
        self.num_entries_before = 0
        """Entries of the transcript before the rows that were prepared last; what was recalled is among them."""
        self._coming: NextRows | None = None
        self.edit: EditableTurn | None = None
        """The turn whose input may still change, until it is committed and released."""
        self.finished: list[Reuse] = []
        """Of turns that are over or were taken back, until the metrics have it."""
        self.counts: Counts | None = None
        """Of the editable turn that began last."""
        self.most_drafted = most_drafted
        self.draft_after = draft_after
        self.drift_bound = drift_bound
        self.has_stash = False
        """Whether anything is put aside."""
        self.put_off: list[tuple[str, str | None]] = []
        """Verbs that came between a commit and its release, and follow it."""
        self.needs_ground = False
        """Whether its cache is wanted though it has nothing to do: while a ledger is followed to a snapshot."""
        self.granted = EVERYTHING
        """What `prepare` took of its grant."""
        self.holds_turn = False
        """Whether it is led through a draft, whose turn is over when it is committed."""
        self._is_edited = False
        """Whether the turn that is under way was committed by `commit`."""
        self._live = Counts()
        """Of a turn that is not an editable one: what guesses have brought, and cost."""
        self.guesses = SessionGuesses([lane.label for lane in self.stage.outputs], salt)
        self.ahead = StepsAhead()
        self._told: tuple[int, ...] = ()
        """The last answers."""
        self.asked: list[Asked] = []
        """Who is asked by the forward that is under way, and whether only how sure the model is."""
        self._samplings = {
            lane.label: lane.spec.sampling.of_model(self.model.silence_token_id)
            for lane in self.stage.outputs
        }
        self._compiled = {
            lane.label: self.model.grammars.compile(lane.spec.grammar, at_start=lane.spec.prefix is None)
            for lane in self.stage.outputs
            if lane.spec.grammar is not None
        }
        apply([Open(number, self.topology, dict(copies or {}), salt)])
        meta = {"seed": seed} if chat is None else {"seed": seed, "chat": dict(chat)}
        self.record = Record(Transcript(self.topology, self.model.name, dict(copies or {}), meta))
        self._rows = RowMaker(self.stage, self.record, self._draw)
        for lane in self.table.lanes:
            self.record.life("open", lane.label)
            self.record.state(lane.label, "created")

    # ---- verbs

    def write(self, stream: str, text: str, now: float = 0.0) -> None:
        """Add text to an input; trailing text that could still merge with what follows is held back.

        Raises:
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
            QueueFullError: Too much waits to be read already; nothing was taken.
            ContextOverflowError: In views, what was said before leaves no room for another turn.
        """
        lane = self._input(stream)
        require_whole(text)
        self._require_live("write")
        if not text:
            return
        self._require_queue_room(lane)
        if not self._in_turn:
            self._begin_turn(now)
        if lane.has_ended or not lane.text:
            self.record.state(lane.label, "active")
        lane.has_ended = False
        lane.text += text
        lane.add(lane.tokenizer.write(text), now, self.record.t)

    def tell(self, texts: Mapping[str, str], ends: Sequence[str] | None = None, *, now: float = 0.0) -> None:
        """Write to inputs and end them, before the next row: whoever wakes has all of it before it.

        Args:
            texts: By stream.
            ends: Which inputs end; None for all.
            now: The moment, on the engine's clock.

        Raises:
            What `write` and `end` raise.
        """
        for stream, text in texts.items():  # so that nothing is taken where one of them is refused
            lane = self._input(stream)
            require_whole(text)
            self._require_queue_room(lane)
        self._require_live("tell")
        for stream, text in texts.items():
            self.write(stream, text, now)
        for stream in (None,) if ends is None else ends:
            self.end(stream, now=now)

    def flush(self, stream: str, reason: str = "deadline", now: float = 0.0) -> bool:
        """Feed what `write` holds back, as it is; the token boundary is then where the text happens to end.

        Returns:
            Whether there was anything.
        """
        lane = self._input(stream)
        self._require_live("flush")
        if not self._in_turn:  # what is held then is the beginning of the next one
            return False
        held = lane.tokenizer.flush()
        if held:
            lane.add(held, now, self.record.t)
            self.record.life("flush", lane.label, text="".join(text for _, text in held), reason=reason)
            self.record.notice(
                "flush", f"held text was fed without waiting for what follows ({reason})", stream
            )
        return bool(held)

    def end(self, stream: str | None = None, now: float = 0.0) -> None:
        """Say that an input, or every one, is complete for this turn.

        Raises:
            EmptyInputError: No input has any text in this turn.
            ContextOverflowError: As for `write`.
        """
        self._require_open()
        inputs = self.stage.inputs
        lanes = (
            [self._input(stream)] if stream is not None else [lane for lane in inputs if not lane.is_closed]
        )
        self._require_live("end")
        turn_end = None if self.stage.in_views else self.model.turn_end_id
        if not self._in_turn and any(lane.held_over.strip() for lane in inputs):
            self._begin_turn(now)
        if not any(lane.text for lane in inputs):
            raise EmptyInputError(
                f"{stream or 'the input'} ended without any text; write something to "
                f"{' or '.join(self.topology.input_names) or 'an input stream'} first"
            )
        for lane in lanes:
            if lane.has_ended or not lane.text:
                continue
            lane.add(lane.tokenizer.flush(), now, self.record.t)
            lane.has_ended = True
            if turn_end is not None:
                lane.add([(turn_end, "")], now, self.record.t)
            self.record.life("end", lane.label)
            self.record.state(lane.label, "asleep", "ended")
        if all(lane.has_ended or not lane.text for lane in inputs):
            self._ended_at = now

    def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all; those that wait for their turn go on waiting."""
        end = self.model.turn_end_id
        lanes = self._outputs(stream)
        self._put_off("interrupt", stream)
        for lane in lanes:
            if lane.is_awake and self.edit is None:
                lane.pending, lane.phase, lane.must_speak = (end, True), "speaking", False
                lane.forced.clear()
                self.record.life("interrupt", lane.label)

    def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        lanes = self._outputs(stream)
        self._put_off("cancel", stream)
        for lane in lanes:
            if lane.phase != "asleep" and self.edit is None:
                self.record.life("cancel", lane.label)
                self._sleep(lane, "cancelled")

    def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak.

        Args:
            stream: Its label.
            text: What to say; None lets the model choose, with silence masked once.

        Raises:
            NothingToForceError: Nothing was written in this turn, or the stream has finished in it.
        """
        (lane,) = self._outputs(stream)
        require_whole(text or "")
        self._require_live("force")
        if not self._in_turn or not any(other.text for other in self.stage.inputs):
            raise NothingToForceError(
                f"nothing was written in this turn, so {stream} cannot speak; write some input first"
            )
        if lane.phase == "asleep" and lane.has_answered:
            raise NothingToForceError(
                f"{stream} has finished in this turn; it speaks again in the next one, after more input"
            )
        tokens = [] if text is None else self.model.codec.encode(text)[0]
        if lane.phase == "asleep":
            lane.phase = "waiting"
        lane.forced.extend(tokens)
        is_drawn = lane.pending is not None and not lane.pending[1]
        if lane.forced and (lane.phase == "silent" or (lane.phase == "speaking" and is_drawn)):
            lane.pending, lane.phase, lane.must_speak = (lane.forced.popleft(), True), "speaking", False
        elif lane.phase == "silent":
            lane.must_speak = True
        elif lane.phase == "waiting":
            lane.force_start = True
        self.record.life("force", lane.label, text=text or "")

    def snapshot(
        self,
        texts: Mapping[str, str],
        mode: Mode = "exact",
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        now: float = 0.0,
    ) -> None:
        """Say what inputs hold by now, the whole of it, as long as it may still change; the newest counts.

        The session reads it ahead and drafts its answer, of which nobody hears before `commit`.

        Args:
            texts: By stream; streams that are not named hold what they held in the snapshot before.
            mode: What may be kept of what stands behind an edit, in views: nothing (`exact`); all that has drifted
                little once a window behind the edit is computed anew (`repair`); or nearly all of it, unless the edit
                changes a fact (`reuse`).
            messages: In views, the whole conversation, whose last message is the first input's text; None leaves what
                stands before the input as it was in the snapshot before.
            now: The moment, on the engine's clock, in seconds.

        Raises:
            RegimeError: This turn was begun with `write`.
            EditAfterConsumed: This turn is committed already.
            InputError, ChatTemplateError: The messages are none that the session can go on with.
            ContextOverflowError: It is longer than the model's context, with the conversation before it.
            PoolTooSmallError: It is larger than the cache, with the conversation before it.
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
        """
        texts, history = self._heard(texts, messages)
        self._want(texts, mode, history, now)

    def _heard(
        self, texts: Mapping[str, str], messages: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Mapping[str, str], History | None]:
        """What a snapshot says of the inputs, and of the conversation before them; nothing is changed.

        Raises:
            What `snapshot` raises.
        """
        self._require_open()
        history = None
        if messages is not None:
            texts, history = told_history(self, texts, messages)
        for stream, text in texts.items():
            self._input(stream)
            require_whole(text)
        edit = self.edit
        if self._is_edited if edit is None else edit.is_committed:
            raise EditAfterConsumed(
                "this turn is committed and being answered; send the next snapshot when it is over, or interrupt it"
            )
        if self._in_turn and edit is None:
            raise RegimeError(
                "this turn was begun with write, which is read at once and cannot change any more; end it, and send "
                "snapshots in the next turn"
            )
        merged = texts if edit is None else {**edit.texts, **texts}
        if edit is None or history is not None or merged != edit.texts:
            require_room(self, merged, edit.history if history is None and edit is not None else history)
        return texts, history

    def _want(self, texts: Mapping[str, str], mode: Mode, history: History | None, now: float) -> None:
        """Let the turn be of what a snapshot says."""
        if self.edit is None:
            self.edit = EditableTurn(self, self.most_drafted, self.draft_after)
            self.counts = self.edit.counts
        if mode == "reuse":
            mode = self._unless_a_fact_changes(self.edit, texts)
        self.edit.want(texts, mode, history, now)

    def _unless_a_fact_changes(self, edit: EditableTurn, texts: Mapping[str, str]) -> Mode:
        """`reuse`, or `exact` where an edit changes what is told rather than how: the old would shine through.

        What is taken over is of the run that was put aside, however many keys ago, or else of the one that is followed.
        """
        merged = {**edit.texts, **texts}
        told = [lane for lane in self.stage.inputs if merged.get(lane.label)]
        last = max(told, key=lambda lane: (lane.rank, lane.lane.index), default=None)
        for run in (edit.followed, *((edit.splicing.stashed_texts,) if self.has_stash else ())):
            for stream, text in merged.items():
                before = run.get(stream, "")
                is_longer = last is not None and stream == last.label and text.startswith(before)
                if text == before or is_longer:
                    continue  # nothing stands behind what was added
                change = changes_a_fact(before, text)
                if change is not None:
                    edit.counts.fallbacks += 1
                    edit.counts.changed_fact = str(change)
                    return "exact"
        return "reuse"

    def commit(
        self,
        texts: Mapping[str, str] | None = None,
        mode: Mode = "exact",
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        now: float = 0.0,
    ) -> None:
        """Say that the newest snapshot will not change any more, and let its answer be heard.

        Args:
            texts, mode, messages: A last snapshot, as for `snapshot`.
            now: The moment, on the engine's clock, in seconds.

        Raises:
            EmptyInputError: There is no text.
            EditAfterConsumed: This turn is committed already.
            What `snapshot` raises.
        """
        texts, history = texts or {}, None
        says_more = bool(texts) or messages is not None or self.edit is None
        if says_more:
            texts, history = self._heard(texts, messages)
        elif self.edit is not None and self.edit.is_committed:
            raise EditAfterConsumed("this turn is committed already; wait until it is over")
        if not any((texts if self.edit is None else {**self.edit.texts, **texts}).values()):
            raise EmptyInputError(
                "the committed input is empty; send a snapshot with text to "
                f"{' or '.join(self.topology.input_names) or 'an input stream'} first"
            )
        if says_more:
            self._want(texts, mode, history, now)
        assert self.edit is not None, "a snapshot makes one"
        self.edit.is_committed, self.edit.committed_at = True, now

    def rollback(self) -> None:
        """Take back all snapshots of this turn, as if none had been sent; harmless when there were none.

        Raises:
            EditAfterConsumed: The turn is committed; nothing of it can be taken back.
        """
        self._require_open()
        if self.edit is not None and not self.edit.is_committed:
            self._take_back()
        elif self.edit is not None or self._is_edited:
            raise EditAfterConsumed("this turn is committed already, and cannot be taken back; interrupt it")

    def suggest(self, stream: str, text: str, ends: bool = True) -> None:
        """Say what an output is likely to say, from an application that knows; it is verified and changes nothing.

        Args:
            stream: Its label.
            text: What it may say.
            ends: Whether its turn is then over.
        """
        (lane,) = self._outputs(stream)
        require_whole(text)
        codec = self.model.codec
        if len(text) > MAX_TOKENS:  # what guesses keep of it is within so many characters
            text = text[: MAX_TOKENS * codec.longest_piece]
        tokens = list(codec.encode(text)[0])
        self.guesses.add(lane.label, [*tokens, self.model.turn_end_id] if ends else tokens)
        if self._in_turn and not self.guesses.follows(lane.label) and not lane.has_answered:
            self.guesses.begin_turn()

    def await_result(self) -> None:
        """A result is on its way to an input, such as a tool's: silence does not end the turn before it comes."""
        self._require_open()
        self.num_awaited += 1

    def result_came(self) -> None:
        """A result that was on its way is there, or will never come; `write` brings it, if there is one."""
        self.num_awaited = max(0, self.num_awaited - 1)

    def close_stream(self, stream: str) -> None:
        """Close one stream; its pages are free at once, and later rows do not read it. Harmless when repeated."""
        self._require_open()
        self.stage.lane(stream)
        self._restart_draft()
        if self.edit is not None:
            self.edit.texts.pop(stream, None)
            if self.edit.is_committed and not any(self.edit.texts.values()):
                self._take_back()  # nothing is left of what was committed
        lane = self.stage.lane(stream)
        if lane.is_closed if isinstance(lane, InputLane) else lane.phase == "closed":
            return
        if isinstance(lane, OutputLane):
            self._sleep(lane, "closed")
        self.stage.close_lane(lane)
        self.prefix.end()
        if self.is_evicted:
            self.ground.begin_anew(self.number, self._apply)
        else:
            self._apply([Close(self.number, stream)])
        self.record.life("close", stream)
        self.record.state(stream, "closed")

    def close(self, reason: str = "closed") -> None:
        """Close the session; everything that it holds is free at once. Harmless when repeated."""
        if self.is_closed:
            return
        self._take_back()
        self._finish_counts()
        if self._in_turn:  # as after a chat request, whose answer is complete before its turn is over
            self.guesses.end_turn()
        self.is_closed = True
        for lane in self.stage.outputs:
            self.record.send(lane, lane.rest())
        self.record.life("close", reason=reason)
        self._apply([Close(self.number)])
        self.record.closed(reason)

    def fail(self, error: BraidError) -> None:
        """Close the session because of an error, which is told first."""
        if not self.is_closed:
            self._take_back()  # or what is told now would be taken back with it
            self.error = error
            self.record.error(error.code, str(error))
            self.close(error.code)

    # ---- a session's double, and its rest

    def fork(self, number: int) -> Conversation:
        """A second session that holds the same and goes on by itself; not while a forward is under way.

        Raises:
            SessionClosedError
            RegimeError: There are snapshots that are neither committed nor taken back.
        """
        self._require_open()
        if self.edit is not None:
            raise RegimeError(
                "the input may still change; commit it or roll it back before the session is forked"
            )
        twin = self._copied(number)
        twin.num_awaited = 0  # what is on its way comes to the first one
        if self.is_evicted:
            self._apply([Open(number, self.topology, self.record.transcript.copies, self.salt)])
        else:
            self._apply([Fork(self.number, number)])
        for lane in twin.table.lanes:
            twin.record.state(lane.label, twin._state_of(lane.label), "forked")  # noqa: SLF001 (of its own class)
        return twin

    def double(self, books: BooksOnly | None = None) -> Conversation:
        """Its books alone, to see what may come; it computes nothing.

        Args:
            books: In the place of the backend.
        """
        twin = self._copied(self.number)
        books = BooksOnly() if books is None else books
        twin.backend = books  # pyright: ignore[reportAttributeAccessIssue] (it is asked for room alone)
        twin._apply = books.apply  # noqa: SLF001 (of its own class)
        twin.prefix.share_nothing()
        return twin

    def _copied(self, number: int) -> Conversation:
        """Its books once more."""
        twin = copy(self)
        twin.number = number
        twin.stage = self.stage.fork()
        twin.record = self.record.fork()
        twin._rows = RowMaker(twin.stage, twin.record, twin._draw)  # noqa: SLF001 (of its own class)
        twin.asked = list(self.asked)
        twin.guesses, twin.ahead = self.guesses.fork(), self.ahead.fork()
        twin.prefix, twin.ground = self.prefix.fork(), self.ground.fork(number)
        twin._coming = None  # noqa: SLF001 (of its own class)
        twin.ledger = None  # it would lack the past
        twin.needs_ground, twin.put_off = False, []
        twin.edit, twin.finished, twin.counts = None, [], copy(self.counts)
        twin._live = Counts()  # noqa: SLF001 (of its own class)
        return twin

    def become(self, twin: Conversation) -> None:
        """Stand where a double stands; what was held of the record is rewritten."""
        for name in _BOOKS:
            setattr(self, name, getattr(twin, name))
        self.record.rewrite(twin.record)
        self._rows = RowMaker(self.stage, self.record, self._draw)
        self.guesses.become(twin.guesses)
        self._coming = None
        # What other sessions may share is told from the rows that were taken back.
        self.prefix.share_nothing()
        self._forget_steps(self.ahead.drop())

    def evict(self) -> None:
        """Drop its spans from the cache; they are refilled from the transcript before the session goes on.

        Not while a forward is under way.
        """
        if self.is_closed:
            return
        self._restart_draft()
        self._apply([Drop(self.number)])
        if not self.is_evicted:
            self.record.notice(
                "evicted", "its cache was given back; it is refilled when there is something to do"
            )
        self.ground.lose()
        self.prefix.keep_nothing()

    def go_on(self, backend: Backend, apply: Apply, unanswered: Unanswered | None, now: float) -> None:
        """Go on at a backend that holds nothing of it yet, as in another process.

        Args:
            backend, apply: As when it was made.
            unanswered: What had been prepared and not answered; it is computed once everything before it is refilled.
            now: The moment, on the new engine's clock.
        """
        self.backend, self._apply = backend, apply
        if self.is_closed:
            return
        apply([Open(self.number, self.topology, self.record.transcript.copies, self.salt)])
        self.ground.lose()
        self.prefix.keep_nothing()
        if self.ground.unanswered is None and unanswered is not None and self.asked:
            self.ground.unanswered = replace(unanswered, asked=self.asked)
        self.asked, self._coming = [], None
        for lane in self.stage.inputs:
            lane.queue = deque(waiting._replace(at=now) for waiting in lane.queue)
        self._ended_at = None if self._ended_at is None else now
        self._said_at = None if self._said_at is None else now

    # ---- an editable turn

    @property
    def is_evicted(self) -> bool:
        """Whether its spans were dropped from the cache, and are refilled before it goes on."""
        return self.ground.is_evicted

    @property
    def has_ground(self) -> bool:
        """Whether all that a turn stands on is in the cache, or there is nothing."""
        return self.ground.is_whole and not self._preamble_is_stale

    def follow(self, now: float) -> bool:
        """Bring an editable turn to its newest snapshot; between two forwards, unless it `can_be_released`.

        Args:
            now: The moment, on the engine's clock.

        Returns:
            Whether what was drafted is released with it.
        """
        edit = self.edit
        if edit is None or self.is_closed:
            return False
        if not edit.follow(now):
            return False
        self.released()
        self._ended_at = edit.committed_at
        return True

    @property
    def can_be_released(self) -> bool:
        """Whether what was committed is drafted as it is, so that it can be heard in the middle of a forward, too."""
        return self.edit is not None and self.edit.is_settled

    def released(self) -> None:
        """What was committed is released: the turn is as any other from now on."""
        self.edit, self._is_edited = None, True

    @property
    def _counted(self) -> Counts | None:
        """Where tokens are counted, if the turn under way is an editable one."""
        return self.counts if self._is_edited or self.edit is not None else None

    def rest_draft(self) -> bool:
        """Let what is but a draft wait for the next snapshot, or the commit; returns whether it is one."""
        if self.edit is None or self.edit.is_committed:
            return False
        self.edit.has_no_room = True
        return True

    @property
    def _rests(self) -> bool:
        """Whether it has but a draft to do, which found no room: it waits for the next snapshot, or the commit."""
        return self.edit is not None and self.edit.has_no_room and not self.edit.is_committed

    @property
    def wants_ground(self) -> bool:
        """Whether a snapshot waits for what the turn stands on."""
        return self.edit is not None and self.edit.base is None

    @property
    def is_behind(self) -> bool:
        """Whether a snapshot has come that it can follow now, and has not."""
        return not self.is_closed and self.edit is not None and self.edit.is_outdated and self.has_ground

    def _restart_draft(self) -> None:
        if self.edit is not None:
            self.edit.restart()

    def _take_back(self) -> None:
        """There is no editable turn any more, as if none had been begun; what it has cost was in vain."""
        if self.edit is not None:
            self.edit.restart()
            self.finished.append(self.edit.counts.in_vain())
        self.edit, self.put_off = None, []

    @property
    def _tally(self) -> Counts:
        """Where what guesses bring and cost is counted, whatever the turn under way is."""
        return self._counted or self._live

    def _finish_counts(self) -> Reuse:
        """Nothing more is counted of the turn; returns what was."""
        reuse = self._tally.told()
        self.finished.append(reuse)
        self._live = Counts()
        return reuse

    def _put_off(self, verb: str, stream: str | None) -> None:
        """What is drafted has not been said, and cannot be cut short; what is committed can, once it is released."""
        if self.edit is not None and self.edit.is_committed:
            self.put_off.append((verb, stream))

    def _require_live(self, verb: str) -> None:
        if self.edit is not None:
            raise RegimeError(
                f"{verb} is for input that is read at once, and this turn was begun with a snapshot; send the whole "
                "text with snapshot, and commit it"
            )

    # ---- asking

    @property
    def t(self) -> int:
        """The next row."""
        return self._public.record.t

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self._public.record.transcript

    @property
    def num_said(self) -> int:
        """Tokens that its outputs have said so far."""
        return sum(lane.num_said for lane in self._public.stage.outputs)

    @property
    def _public(self) -> Conversation:
        """The books without what is only drafted."""
        return self if self.edit is None or self.edit.base is None else self.edit.base

    @property
    def turn_is_over(self) -> bool:
        """Whether no turn is under way; one that is only drafted is none yet."""
        return not self._in_turn if self.edit is None else not self.edit.is_committed

    @property
    def is_drafting(self) -> bool:
        """Whether all that it does may still be taken back."""
        return self.edit is not None and not self.edit.is_committed

    @property
    def draft(self) -> Draft | None:
        """What is drafted of the newest snapshot; None while there is nothing, and once it is committed."""
        edit = self.edit
        if edit is None or edit.base is None or edit.is_outdated or edit.is_committed:
            return None
        transcript, before = self.record.transcript, len(edit.base.record.transcript.entries)
        return Draft(
            dict(edit.texts),
            {lane.label: transcript.text(lane.label, before) for lane in self.stage.outputs},
            is_complete=self._has_said_all,
            rests=not edit.may_say_more,
            num_tokens=sum(step.num_tokens for step in edit.steps),
        )

    @property
    def _has_said_all(self) -> bool:
        """Whether the outputs of the turn under way would say nothing more if it were committed now."""
        outputs = self.stage.open_outputs()
        return (
            self._in_turn
            and not any(lane.queue for lane in self.stage.inputs)
            and any(lane.phase in ("asleep", "silent") for lane in outputs)
            and all(
                lane.phase == "asleep"
                or lane.may_never_start
                or (lane.phase == "silent" and self._was_quiescent and not lane.must_speak)
                for lane in outputs
            )
        )

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session."""
        if self.is_closed:
            return 0
        return self.stage.kv_tokens if self.ground.is_whole else self.ground.num_refilled

    @property
    def num_queued(self) -> int:
        """Input tokens that have not entered a row yet; of what is only drafted, none."""
        return 0 if self.is_drafting else sum(len(lane.queue) for lane in self.stage.inputs)

    def num_queued_of(self, stream: str) -> int:
        """Tokens of one input that have not entered a row yet."""
        return len(self._input(stream).queue)

    @property
    def is_speaking(self) -> bool:
        """Whether an output has a token for the next row."""
        return self.stage.is_speaking

    @property
    def has_work(self) -> bool:
        """Whether the next step would compute something."""
        if self.is_closed:
            return False
        if self._rests:
            return False
        if self.ground.unanswered is not None or (self._preamble_is_stale and not self.is_evicted):
            return True
        if self.edit is not None and (self.edit.is_outdated or self.edit.is_committed):
            return True
        # An evicted session rests, whatever its preamble lacks, until it has rows to make.
        coming = self._next_rows(math.inf)
        return coming.is_something and (self.edit is None or self.edit.may_go_on(coming, math.inf))

    def quiet_at(self, now: float) -> float | None:
        """When its draft goes on, if it waits for nothing but that no newer snapshot comes; None if not."""
        edit = self.edit
        waits = edit is not None and self.is_drafting and edit.may_say_more and now < edit.quiet_at
        return edit.quiet_at if edit is not None and waits else None

    def take_news(self) -> list[News]:
        """What has happened since the last call, rows not yet made into events."""
        return self.record.take()

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        return [as_event(news) for news in self.record.take() if not isinstance(news, LedgerLine)]

    # ---- the step

    def demand(self, now: float = 0.0) -> Demand | None:
        """What it could do next, for the scheduler; None when there is nothing to do.

        Args:
            now: The moment, on the engine's clock.
        """
        self._coming = None
        if self.is_closed or self._rests:
            return None
        ground = self.ground
        if ground.unanswered is not None:
            return (
                self._refill_demand(now) if ground.is_evicted else self._unanswered_demand(ground.unanswered)
            )
        if self.stage.in_views:
            self._retire_unread()
        coming = self._next_rows(now)
        if self._has_filled_context(coming):
            for lane in self.stage.outputs:
                if lane.is_awake:
                    self._sleep(lane, "length")
            coming = self._next_rows(now)
        if not coming.is_something and (ground.is_evicted or not self._preamble_is_stale):
            self._settle()
            coming = self._next_rows(now)
        needs_ground = self.needs_ground or self.wants_ground
        if ground.is_evicted:
            return self._refill_demand(now) if coming.is_something or needs_ground else None
        if self._preamble_is_stale:
            self._recall_preamble()
        if self._preamble_is_stale:
            assert self.stage.preamble is not None
            _, missing = self.stage.preamble.missing(1 << 30)
            return demand_of_piece(self.number, self.stage, max(1, len(missing)), is_whole=False)
        if not coming.is_something or (self.edit is not None and not self.edit.may_go_on(coming, now)):
            return None
        self._coming = coming
        return demand_of_rows(self.number, self.stage, coming)

    def coming(self, grant: Grant, now: float) -> NextRows:
        """What a grant allows of the next rows; `demand` was asked before."""
        return within(self._next_rows(now) if self._coming is None else self._coming, grant)

    def prepare(
        self, grant: Grant = EVERYTHING, now: float = 0.0, *, spare: int = 0
    ) -> tuple[Item, list[Waiting]] | None:
        """What the next forward computes for this session, and the input that is read with it.

        Args:
            grant: What the scheduler allows; `demand` was asked before.
            now: The moment, on the engine's clock.
            spare: Tokens of further rows that may be computed with them, where there are guesses.

        Returns:
            None when there is nothing to do, or nothing that the grant allows.

        Raises:
            PoolFullError, PoolTooSmallError: The pool has no room; nothing was changed.
            ContextOverflowError: A position would lie beyond the model's context; nothing was changed.
        """
        self.granted = grant
        if self.is_closed:
            return None
        if self.ground.is_evicted:
            return self._refilled(grant)
        if self.ground.unanswered is not None:
            return self._compute_unanswered(self.ground.unanswered, grant)
        if self._preamble_is_stale:
            return self._prefill_preamble(grant)
        coming = self._coming if self._coming is not None else self._next_rows(now)
        self._coming = None
        read: list[Waiting] = []
        if self.prefix.is_open:
            read = self._recall(coming.rows)
            coming = self._next_rows(now) if read else coming
        if self.edit is not None and self.edit.splicing.is_pending:
            read = self.edit.splicing.take_over(now)
            coming = self._next_rows(now) if read else coming
            grant = self.granted = self.edit.splicing.up_to(grant)
        self._require_length(coming)
        coming = within(coming, grant)
        if not coming.is_something or (self.edit is not None and self.edit.is_outdated):
            return None
        needs = self._rows.needs(coming)
        self.backend.reserve(self.number, needs)
        item, entered = self._make(coming, grant, now)
        if spare > 0 and self.guesses.is_followed and item.kind == "decode":
            item = self.ahead.behind(item, needs, self, spare, now)
        return item, read + entered

    def _make(self, coming: NextRows, grant: Grant, now: float) -> tuple[Item, list[Waiting]]:
        """Enter rows that there is room for."""
        shape = None if self.edit is None else shape_of(coming, self)
        for lane, _ in coming.starters:
            if lane.spec.grammar is not None and lane.matcher is None:
                lane.matcher = self._compiled[lane.label].copy()
        self._was_quiescent = False
        self.prefix.lengthen(coming.rows, self.stage, self.record.t)
        self.num_entries_before = len(self.record.transcript.entries)
        made = self._rows.make(coming)
        for lane, reason in made.finished:
            self._sleep(lane, reason)
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.kv_tokens)
        is_decode = coming.rows is None or coming.rows.outputs
        item = self._item("decode" if is_decode else "prefill", made.entries)
        if self.edit is not None and shape is not None:
            self.edit.took(Taken(shape, grant, now, item.num_tokens))
        elif self._counted is not None:
            self._counted.computed += item.num_tokens
        return item, made.read

    # ---- what stands behind an edit

    @property
    def can_splice(self) -> bool:
        """Whether what stands behind an edit can be taken over."""
        return self.stage.in_views and self.backend.capabilities().edits and not self.is_evicted

    def stash(self, labels: Sequence[str]) -> None:
        """Have what inputs hold put aside."""
        self._apply([Stash(self.number, label) for label in labels])
        self.has_stash = True

    def forget_stashed(self) -> None:
        """Let go of what was put aside."""
        if self.has_stash:
            self._apply([Stash(self.number, None)])
        self.has_stash = False

    def take_over(self, parts: Sequence[Part]) -> tuple[Shape, list[Waiting]]:
        """Enter the next input tokens, and have the cache take them over from what was put aside.

        Args:
            parts: Where they are there.

        Returns:
            The rows that were entered, and the input that was read with them.

        Raises:
            PoolFullError, PoolTooSmallError: There is no room; nothing was changed.
        """
        self.backend.reserve(self.number, needs_of(parts))
        coming = NextRows(RowPlan(tuple((part.label, part.length) for part in parts), (), False))
        shape = shape_of(coming, self)
        made = self._rows.make(coming)
        times = {entry.span: iter(entry.times) for entry in made.entries}
        self._apply(
            [
                Splice(self.number, label, start, start + length, list(islice(times[label], length)))
                for label, start, length in parts
            ]
        )
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.kv_tokens)
        return shape, made.read

    # ---- steps ahead

    @property
    def num_asked(self) -> int:
        """Answers that the step which was prepared last waits for."""
        return len(self.asked)

    def step_ahead(self) -> bool:
        """Enter the next rows, which were computed together with those before them, if it has come as was guessed.

        The cache forgets the others.
        """
        now = self.ahead.at  # as when they were computed: what is overdue by now comes afterwards
        has_come = self.ahead.has_come(self._told)
        if has_come and self.demand(now) is not None and self._coming is not None:  # a draft has a budget
            step = self.ahead.take()
            item, _ = self._make(self._coming, EVERYTHING, now)
            self._coming = None
            assert [entry.token_ids for entry in item.entries] == [entry.token_ids for entry in step.entries]
            self._tally.accepted += len(step.expected)
            return True
        if self.ahead.is_pending:
            self._miss_steps()
        return False

    def _miss_steps(self) -> None:
        steps = self.ahead.miss()
        tokens, counts = sum(step.num_tokens for step in steps), self._tally
        counts.computed += tokens
        counts.wasted += tokens
        self._forget_steps(steps)

    def _forget_steps(self, steps: Sequence[StepAhead]) -> None:
        """Let the cache forget what was computed for steps that do not come."""
        held = self.stage.held_by_span()
        spans = {span for step in steps for span in step.kept_spans}
        self.forget({span: held[span] for span in spans if span in held})

    def forget(self, lengths: Mapping[str, int]) -> None:
        """Let the cache forget what spans hold beyond these lengths."""
        if lengths and not self.is_evicted:
            self._apply([Trim(self.number, span, length) for span, length in lengths.items()])

    # ---- the answers

    def advance(self, answers: Sequence[Answer]) -> None:
        """Give the drawn tokens to their lanes.

        Args:
            answers: One for each lane that was asked, in the order of the item's entries.
        """
        silence = self.model.silence_token_id
        if self.edit is not None and self.asked and self.edit.steps:
            asked = zip(self.asked, answers, strict=True)
            self.edit.told(
                answers, [(label, answer.token) for (label, is_wait), answer in asked if not is_wait]
            )
        self._told = tuple(answer.token for answer in answers)
        for (label, is_wait), answer in zip(self.asked, answers, strict=True):
            lane = self.stage.lane(label)
            if not is_wait:
                self.guesses.said(label, answer.token)
            if isinstance(lane, InputLane):
                note_sureness(lane, self.stage.outputs, self.table, answer.confidence)
            elif is_wait or lane.phase == "waiting":
                # Where only one of them holds, a verb has put it to sleep meanwhile, or made it wait again.
                if is_wait and lane.phase == "waiting":
                    self._drop_closer(lane)  # it is written again, behind what will have been read by then
                    decide_wait(lane, answer.confidence)
            elif not lane.is_awake or lane.pending is not None:
                continue  # a verb came in between
            elif lane.forced:
                lane.phase, lane.pending, lane.must_speak = "speaking", (lane.forced.popleft(), True), False
            elif answer.token == silence:
                lane.phase = "silent"
            else:
                lane.phase, lane.pending, lane.must_speak = "speaking", (answer.token, False), False
                lane.has_chosen = True
                lane.odds = None if lane.spec.logprobs is None else _odds(answer, lane.spec.logprobs)
                if lane.matcher is not None:
                    lane.matcher.consume(answer.token)
        self.asked = []
        if self.ground.unanswered is not None and not self.ground.is_evicted:
            self.ground.answered(self.number, self.record.transcript, self._apply)

    def first_tokens(self, now: float) -> tuple[float | None, float | None]:
        """Seconds from the end of input to the turn's first token and to its first answer token, where they are new.

        Measured on the tokens that the model chose; 0 for what it says before the input has ended. What was drafted
        comes when it is released.
        """
        first = answer = None
        since = 0.0 if self._ended_at is None else max(0.0, now - self._ended_at)
        for lane in self.stage.outputs:
            if not lane.has_chosen:
                continue
            if self._said_at is None:
                self._said_at, first = now, since
            if lane.spec.visibility == "external":
                self.is_first_due, answer = False, since
        return first, answer

    # ---- refilling, and what other sessions have computed already

    def _refill_demand(self, now: float) -> Demand | None:
        """What refilling an evicted session takes next; what comes after it once everything is there."""
        number, apply = self.number, self._apply
        piece = self.ground.next_piece(number, self.record.transcript, self.stage.preamble, apply)
        if piece is not None:
            size = sum(len(entry.token_ids) for entry in piece)
            return demand_of_piece(number, self.stage, size, is_whole=True)
        self.ground.refilled(number, self.stage, apply)
        self.record.notice("restored", "its cache is refilled from the transcript")
        return self.demand(now)

    def _refilled(self, grant: Grant) -> tuple[Item, list[Waiting]] | None:
        piece = self.ground.piece
        if piece is None or not grant.makes_row:
            return None
        self.backend.reserve(self.number, [(entry.span, len(entry.token_ids)) for entry in piece])
        return self._item("prefill", self.ground.take()), []

    def _unanswered_demand(self, unanswered: Unanswered) -> Demand:
        return demand_of_piece(self.number, self.stage, unanswered.item.num_tokens, is_whole=True)

    def _compute_unanswered(self, unanswered: Unanswered, grant: Grant) -> tuple[Item, list[Waiting]] | None:
        """What had been prepared before the process was killed; its rows are in the transcript already."""
        if not grant.makes_row:
            return None
        self.backend.reserve(self.number, unanswered.needs)
        self.asked = list(unanswered.asked)
        return unanswered.item, []

    def _recall_preamble(self) -> None:
        """Take what other sessions, or earlier turns, have computed of the preamble already."""
        preamble = self.stage.preamble
        assert preamble is not None
        kept, ids = preamble.missing(1 << 30)
        self._require_context(kept + len(ids))
        if kept < preamble.num_cached:
            self._apply([Trim(self.number, PREAMBLE, kept)])
            preamble.has_cached(kept)
        (found,) = self._apply([Recall(self.number, preamble.cells(kept + len(ids)))])
        self.prefix.num_cached += max(0, found - kept)
        if found > kept or not ids:
            self._rows.prefill_preamble(kept, ids[: max(0, found - kept)])

    def _prefill_preamble(self, grant: Grant) -> tuple[Item, list[Waiting]] | None:
        preamble = self.stage.preamble
        assert preamble is not None
        kept, ids = preamble.missing(grant.input_tokens)
        if not ids:
            return None
        self.backend.reserve(self.number, [(PREAMBLE, len(ids))])
        entries = self._rows.prefill_preamble(kept, ids)
        if self.edit is not None:
            self.edit.prefills(kept, len(ids))
        elif self._counted is not None:
            self._counted.computed += len(ids)
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.kv_tokens)
        self.prefix.prefills(preamble, kept + len(ids))
        return self._item("prefill", entries), []

    @property
    def beginning(self) -> Hashable | None:
        """What it computes next of a closed prefix; two sessions that say the same would compute the same.

        Told apart by the neighbourhood alone: if two that differ should say the same, one of them waits for a step.
        """
        if self.is_evicted:
            return None
        if self._preamble_is_stale:
            assert self.stage.preamble is not None
            return self.prefix.next_of_preamble(self.stage.preamble)
        return self.prefix.next_of_rows(None if self._coming is None else self._coming.rows, self.stage)

    def _recall(self, rows: RowPlan | None) -> list[Waiting]:
        """In native rows: enter what other sessions have read at their very beginning without computing it again."""
        if rows is None or not rows.burst:
            return []
        stage, t = self.stage, self.record.t
        (found,) = self._apply([Recall(self.number, self.prefix.wanted(rows, stage, t))])
        recalled = self.prefix.recalled(rows, found, stage, t)
        return [] if recalled is None else self._rows.make(NextRows(recalled)).read

    def keep_prefixes(self) -> None:
        """After the forward: let other sessions share what has just been computed, where it is closed."""
        cells = self.prefix.take()
        if cells and not self.is_closed:
            self._apply([Keep(self.number, cells)])

    # ---- inside

    @property
    def _preamble_is_stale(self) -> bool:
        """Whether the cache lacks some of the preamble; of one that leaves no room for a turn, nothing is wanted."""
        is_stale = self.stage.preamble is not None and self.stage.preamble.is_stale
        return is_stale and (self._in_turn or not has_outgrown(self))

    def _item(self, kind: Kind, entries: Sequence[Entry]) -> Item:
        self.asked = [(e.lane, not e.ask.draws) for e in entries if e.ask is not None]
        return Item(self.number, kind, entries)

    def _require_length(self, coming: NextRows) -> None:
        """Refuse what would lie beyond the context, before its beginning is read."""
        self._require_context(self._length_with(coming))

    def _length_with(self, coming: NextRows) -> int:
        """Positions that the session takes, the next rows among them."""
        if self.stage.in_views:
            return self._length + sum(count for _, count in self._rows.needs(coming))
        return self._length + (coming.rows.num_rows if coming.rows is not None else 0)

    @property
    def _length(self) -> int:
        """Positions that the session takes."""
        return self.stage.kv_tokens if self.stage.in_views else self.record.t

    def _has_filled_context(self, coming: NextRows) -> bool:
        """Whether nobody but outputs that have begun goes on, and the context has no room for what they say next."""
        if not coming.is_something or coming.starters or coming.curious:
            return False
        if coming.rows is not None and (coming.rows.burst or coming.rows.row):
            return False
        limit = self.model.max_positions
        may_be_full = self._length + len(self.stage.outputs) > limit  # cheap, and asked in every step
        return may_be_full and self._length_with(coming) > limit

    def _require_context(self, length: int) -> None:
        limit = self.model.max_positions
        if length > limit:
            raise ContextOverflowError(
                f"the session would grow to {length} positions; {self.model.name} was made for {limit}: close it, "
                "or go on in a new session with a summary"
            )

    def _next_rows(self, now: float) -> NextRows:
        return coming_rows(self.stage, now, in_turn=self._in_turn, predicates=self.predicates)

    def _retire_unread(self) -> None:
        """In views, an inner output whose readers have all finished thinks for nobody; but tools read their calls."""
        calls = dict(self.topology.resolved_tool_flows)
        for lane in self.stage.outputs:
            if (
                lane.phase == "speaking"
                and lane.lane.stream not in calls
                and is_unread(lane, self.table, self.stage.outputs)
            ):
                self._sleep(lane, "nobody is left to read it")

    def _settle(self) -> None:
        """Nothing is queued and nobody speaks: is the turn over, or the session quiescent?"""
        outputs = self.stage.open_outputs()
        if not self._in_turn or any(lane.queue for lane in self.stage.inputs):
            return
        is_held = self.is_drafting or self.holds_turn
        if is_held and all(lane.phase != "silent" for lane in outputs):
            return  # it is over when it is committed
        left = [lane for lane in outputs if lane.phase != "asleep" and not lane.may_never_start]
        if not left and any(lane.phase == "asleep" for lane in outputs):
            self._end_turn()  # whoever goes on writing begins the next one
            return
        if self.num_awaited or not all(lane.is_drained for lane in self.stage.inputs):
            return
        silent = [lane for lane in outputs if lane.phase == "silent"]
        if silent and not self._was_quiescent:
            self._was_quiescent = True
            self.record.quiescent()
        owing = [lane for lane in silent if lane.spec.visibility == "external" and not lane.has_answered]
        for lane in owing if self.forces_answers else ():
            lane.must_speak = True
            self.record.life("force", lane.label, reason="quiescent")
        if owing or is_held:
            return
        for lane in silent:
            self._sleep(lane, "silent")
        self._end_turn()

    def _begin_turn(self, now: float) -> None:
        require_room_for_a_turn(self)
        self._in_turn = self.is_first_due = True
        self._was_quiescent = False
        self._ended_at = self._said_at = None
        before = self.stage.preamble.text if self.stage.preamble is not None else ""
        for lane in self.stage.inputs:
            if not lane.is_closed:
                lane.begin_turn(before, now, self.record.t)
        for lane in self.stage.outputs:
            lane.begin_turn()
        self.guesses.begin_turn()

    def _end_turn(self) -> None:
        counted, is_editable = self._finish_counts(), self._counted is not None
        self._in_turn = self._is_edited = False
        self.guesses.end_turn()
        self.record.turn(self.turn, counted if is_editable else None)
        self.turn += 1
        for lane in self.stage.inputs:
            lane.end_turn()
        if self.stage.preamble is None:
            return
        said = "".join(lane.text for lane in self.stage.inputs)
        answers = [lane.turn_text for lane in self.stage.open_outputs() if lane.spec.visibility == "external"]
        if said or any(answers):  # not of a turn whose only text was in a stream that was closed
            self.stage.preamble.remember(said, "".join(answers))
        kept = [lane.label for lane in (*self.stage.inputs, *self.stage.outputs) if lane.num_kept]
        kept += [closer_of(lane.label) for lane in self.stage.outputs if lane.closer_len]
        if self.is_evicted:
            self.ground.begin_anew(self.number, self._apply)
        else:
            self._apply([Trim(self.number, span, 0) for span in kept])
        self.stage.clear_turn()

    def _sleep(self, lane: OutputLane, reason: str) -> None:
        lane.phase, lane.pending, lane.must_speak = "asleep", None, False
        lane.forced.clear()
        if not lane.has_answered:
            self._drop_closer(lane)
        rest = lane.rest()
        self.record.send(lane, rest)
        self.record.life("sleep", lane.label, text=rest, reason=reason)
        self.record.state(lane.label, "asleep", reason)

    def _drop_closer(self, lane: OutputLane) -> None:
        """Forget the closer of a start that came to nothing; another start writes it again."""
        if lane.closer_len and not self.is_evicted:
            self._apply([Trim(self.number, closer_of(lane.label), 0)])
        lane.closer_len = 0

    def _draw(self, lane: OutputLane) -> Draw:
        silence = self.model.silence_token_id
        exempt = () if silence is None else (silence,)
        sampling = self._samplings[lane.label]
        return Draw(
            sampling,
            lane.label,
            self.seed if sampling.seed is None else sampling.seed,
            self.turn,
            lane.index,
            dict(lane.counts),  # as they are now: what is ahead of a forward goes on with them
            exempt if lane.must_speak else (),
            exempt,
            None if lane.matcher is None else lane.matcher.allowed(),
        )

    def _state_of(self, label: str) -> StreamState:
        lane = self.stage.lane(label)
        if isinstance(lane, InputLane):
            return "closed" if lane.is_closed else "active" if lane.text and not lane.has_ended else "asleep"
        return {"waiting": "created", "speaking": "active", "silent": "active"}.get(lane.phase, lane.phase)  # pyright: ignore[reportReturnType]

    def _require_open(self) -> None:
        if self.is_closed:
            raise SessionClosedError(
                "the session is closed; open a new one (its transcript can still be saved)"
            )

    def _input(self, stream: str) -> InputLane:
        self._require_open()
        return self.stage.input(stream)

    def _require_queue_room(self, lane: InputLane) -> None:
        if len(lane.queue) >= self.max_queued:
            raise QueueFullError(
                f"{lane.label} has {len(lane.queue)} tokens that the model has not read, and may have "
                f"{self.max_queued}; wait until it has read some, or open the session with a larger max_queued"
            )

    def _outputs(self, stream: str | None) -> list[OutputLane]:
        """One output by label, or all that are not closed."""
        self._require_open()
        return self.stage.open_outputs() if stream is None else [self.stage.output(stream)]


def _odds(answer: Answer, num_others: int) -> TokenOdds:
    """How likely the drawn token was, and what else was likely."""
    return TokenOdds(token=answer.token, logprob=answer.logprob, top=answer.top[:num_others])
