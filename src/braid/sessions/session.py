"""A live session: write while it speaks, and iterate over what happens."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import anyio.lowlevel
import anyio.to_thread

from braid.engine.admission import EngineLimits
from braid.engine.backend import Draft, Dropped, SessionBackend, SessionHandle, SessionLook
from braid.engine.core import GuessesOf, require_guesses_of
from braid.engine.editing.checking import CHECK_SHARE
from braid.engine.editing.editable import DRAFT_AFTER, DRIFT_BOUND, MOST_DRAFTED, Mode
from braid.engine.local import LocalBackend
from braid.engine.loop import EngineLoop
from braid.engine.metrics import EngineMetrics
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.tracing import NO_TRACER, Tracer
from braid.errors import BraidError, InputError, RegimeError, SessionClosedError
from braid.model.chat import Chat
from braid.model.codec import TokenizerCodec
from braid.model.loading import load
from braid.model.model import Model
from braid.sessions.desk import ToolDesk
from braid.sessions.generate import Result, result_of, with_sampling
from braid.sessions.snapshots import Messages, Segments, Snapshots
from braid.sessions.template import FittedTemplate, Template
from braid.streams.events import Event, Reuse
from braid.streams.lanes import LaneTable
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

if TYPE_CHECKING:
    from braid.engine.journal import Journal
    from braid.engine.mailbox import Mailbox
    from braid.engine.session.starts import Predicate
    from braid.sessions.tools import Toolbox

__all__ = ["Engine", "InputRegime", "Reply", "Session"]


InputRegime = Literal["live", "editable"]


@dataclass(frozen=True)
class Reply:
    """The answer to a committed turn.

    Args:
        texts: What each output said in it.
        reuse: What reading and drafting ahead has brought, and cost.
    """

    texts: Mapping[str, str]
    reuse: Reuse | None = None

    def __getitem__(self, stream: str) -> str:
        return self.texts[stream]


class Engine:
    """Many live sessions on one model and one cache, in one batch.

    It needs no starting: its thread begins with the first session and ends with the last one. As a context manager it
    also shuts down in order: turns that are under way are finished, then all sessions are closed.

    Args:
        model: From `braid.load`.
        kv_tokens: Tokens that the cache must hold; None takes what the model's context allows, at most 16,384.
        policy: Of the scheduler: the token budget of a step, the size of chunks, ageing, drafts' share of idle time.
        limits: How many sessions are admitted, how much may wait.
        prefix_share: The largest share of the cache that shared prefixes without a session may hold.
        journal: Where every verb and batch is recorded, so that they can be replayed.
        metrics: Counters and histograms, `engine.metrics`; False for none.
        tracer: An OpenTelemetry tracer, for a span a step.
        check_share: Of turns of editable input that took something over behind an edit, those that are computed again
            when nobody waits, so that the metrics tell how good the estimates of the drift are; 0 for none.
        drafter: A smaller model that drafts for this one in editable turns of topologies of views: from `braid.load`,
            its name, or an engine of one's own on it, which is not shut down with this one. It needs no tokenizer in
            common; what it drafts is verified, and changes nothing but the time.
    """

    _drafter: Engine | None = None
    """A smaller model's, if it is shut down with this one."""

    def __init__(
        self,
        model: Model,
        *,
        kv_tokens: int | None = None,
        policy: SchedulerPolicy | None = None,
        limits: EngineLimits | None = None,
        prefix_share: float = 0.5,
        journal: Journal | None = None,
        metrics: bool = True,
        tracer: Tracer = NO_TRACER,
        check_share: float = CHECK_SHARE,
        drafter: Engine | Model | str | None = None,
    ) -> None:
        self.model = model
        if isinstance(drafter, str):
            drafter = load(drafter)
        if isinstance(drafter, Model):
            drafter = self._drafter = Engine(drafter, policy=policy, limits=limits)
        self.local = LocalBackend(model, kv_tokens=kv_tokens, prefix_share=prefix_share)
        """What computes."""
        usage = self.local.usage()
        page_bytes = usage.page_size * usage.bytes_per_token
        self.metrics = EngineMetrics(usage.pages_total, page_bytes) if metrics else None
        if self.metrics is not None and drafter is not None:
            self.metrics.drafter = drafter.metrics
        self.backend: SessionBackend = EngineLoop(
            self.local,
            policy=policy,
            limits=limits,
            journal=journal,
            metrics=self.metrics,
            tracer=tracer,
            check_share=check_share,
            drafter=None if drafter is None else drafter.backend,
        )

    @classmethod
    def over(cls, backend: SessionBackend) -> Self:
        """An engine over one that drives itself already, such as an `EngineLoop` on another backend than ours.

        Args:
            backend: Shut down with this engine. It keeps its metrics itself; there is no `model` and no `local`.
        """
        engine = cls.__new__(cls)
        engine.metrics = None
        engine.backend = backend
        return engine

    def open(
        self,
        topology: str | Topology,
        *,
        seed: int = 0,
        copies: Mapping[str, int] | None = None,
        sampling: SamplingSpec | Mapping[str, SamplingSpec] | None = None,
        tools: Toolbox | None = None,
        predicates: Mapping[str, Predicate] | None = None,
        forces_answers: bool = True,
        salt: str = "",
        chat: Chat | None = None,
        input: InputRegime | None = None,  # noqa: A002 (it is what one would call it)
        most_drafted: int = MOST_DRAFTED,
        draft_after: float = DRAFT_AFTER,
        drift_bound: float = DRIFT_BOUND,
        guesses: GuessesOf = "session",
        template: Template | Mapping[str, Any] | None = None,
    ) -> Session:
        """A session, to be entered with `async with`.

        Args:
            topology: A preset's name, a YAML file or a `Topology`.
            seed: As for `braid.generate`.
            copies: As for `braid.generate`.
            sampling: As for `braid.generate`.
            tools: What the topology's tool flows may call; results come back by themselves.
            predicates: Functions that triggers of the topology name.
            forces_answers: At quiescence, make an output speak that owes an answer.
            chat: In views, the conversation that the first turn goes on with.
            salt: Cached prefixes are shared with sessions of the same salt only; one a tenant keeps them apart.
            input: `live`: what is written is read at once; `editable`: snapshots, whose answer nobody hears before
                `commit`. None leaves it to each turn's first verb.
            most_drafted: Tokens that the outputs may say ahead of the commit, in each draft; 0 reads ahead alone.
            draft_after: Seconds without a newer snapshot before they say anything; reading goes on at once.
            drift_bound: How far keys and values that `repair` and `reuse` take over behind an edit may be from what
                they should be, relative to their size; 0 takes nothing over whose drift can be told.
            guesses: `tenant` takes answers of other sessions of the same salt that asked for it as guesses, too, and
                gives them its own. No token changes, but whoever shares the salt may learn from the speed of an answer
                what others were answered. `none` guesses what `suggest` brings alone, as for a measurement.
            template: What the segments of snapshots are filled into; local ones become inputs of the topology.

        Raises:
            TopologyError, CheckpointConflictError, UnsupportedByBackend, InputError
        """
        if most_drafted < 0 or not draft_after >= 0 or not drift_bound >= 0:
            raise InputError("most_drafted, draft_after and drift_bound are at least 0")
        require_guesses_of(guesses)
        chosen = with_sampling(as_topology(topology), sampling)
        fitted = None
        if template is not None:
            template = Template.of(template)
            chosen = template.topology(chosen)
            fitted = template.fitted(self._codec, chosen)
        settings: dict[str, Any] = {
            "seed": seed,
            "copies": dict(copies or {}),
            "predicates": dict(predicates or {}),
            "forces_answers": forces_answers,
            "salt": salt,
            "chat": None if chat is None else chat.to_data(),
            "most_drafted": most_drafted,
            "draft_after": draft_after,
            "drift_bound": drift_bound,
            "guesses": guesses,
        }
        self.backend.check(chosen, settings)
        return Session(self.backend, chosen, settings, tools, regime=input, template=fitted)

    @property
    def _codec(self) -> TokenizerCodec | None:
        """The model's tokenizer; None over a backend whose model is elsewhere."""
        model: Model | None = getattr(self, "model", None)
        return None if model is None else model.codec

    async def aclose(self, *, drain: bool = True, timeout_s: float = 30.0) -> list[Dropped]:
        """Shut down; afterwards no session can be opened.

        Args:
            drain: Let turns that are under way finish first.
            timeout_s: How long to wait for them.

        Returns:
            What was left undone, by session; empty when everything was finished.
        """
        try:
            return await self.backend.aclose(drain=drain, timeout_s=timeout_s)
        finally:
            if self._drafter is not None:
                with anyio.CancelScope(shield=True):
                    await self._drafter.aclose(drain=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.aclose(drain=error is None)


class Session:
    """One client's live conversation. Every verb takes effect in the next row.

    async with Engine(model).open("think-aloud") as session:
        await session.write("user", "Sally has 3 apples.")
        await session.end("user")
        async for event in session:
            ...
    """

    def __init__(
        self,
        backend: SessionBackend,
        topology: Topology,
        settings: Mapping[str, Any],
        tools: Toolbox | None = None,
        handle: SessionHandle | None = None,
        regime: InputRegime | None = None,
        template: FittedTemplate | None = None,
    ) -> None:
        self._backend = backend
        self._regime: InputRegime | None = regime
        self._topology = topology
        self._snapshots = Snapshots(topology, template)
        self._settings = settings
        self._tools = tools
        self._handle = handle
        self._desk: ToolDesk | None = None
        self._max_rows: int | None = None
        self._max_turns: int | None = None
        self._began = time.perf_counter()

    # ---- verbs

    async def write(self, stream: str, text: str) -> None:
        """Add text to an input stream.

        Trailing text that could still merge with what follows is held back, until a boundary, `end`, or, where
        the stream has `max_latency_ms`, until that time is over.

        Raises:
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
            QueueFullError: The model has not read what was written before; nothing was taken.
        """
        self._require_regime("live", "write")
        await self._push("write", stream, text)

    async def tell(self, texts: Mapping[str, str]) -> None:
        """Write to several inputs and end them all, before the next row.

        Args:
            texts: By input stream.

        Raises:
            What `write` and `end` raise.
        """
        self._require_regime("live", "tell")
        await self._push("tell", dict(texts))

    async def end(self, stream: str | None = None) -> None:
        """Say that an input, or every one, is complete for this turn.

        Raises:
            EmptyInputError: No input has any text in this turn; the session goes on.
        """
        self._require_regime("live", "end")
        await self._push("end", stream)

    async def flush(self, stream: str) -> bool:
        """Feed what `write` holds back, without waiting for what follows; returns whether there was anything."""
        return bool(await self._push("flush", stream, "asked for"))

    async def snapshot(
        self,
        texts: Mapping[str, str] | str | None = None,
        *,
        segments: Segments | None = None,
        messages: Messages | None = None,
        mode: Mode = "exact",
    ) -> None:
        """Say all that inputs hold by now, as long as it may still change; the newest snapshot counts.

        The session reads it ahead and drafts its answer; nobody hears of that before `commit`, and no tool is called.

        Args:
            texts: By input stream, those that are not named as before; a plain string is the first input's.
            segments: Text by id, or `{"id": …, "text": …}` each: of the session's template those that have changed;
                without one all of them, with a `role` where they are messages.
            messages: The whole conversation, `{"role": …, "content": …}` each; the last one is the first input's text.
                In topologies of views.
            mode: What may be kept of what stands behind an edit: nothing (`exact`), all that has drifted little once
                a window behind the edit is computed anew (`repair`), or nearly all of it, unless the edit changes a
                fact (`reuse`).

        Raises:
            RegimeError: The session's input, or this turn's, is live.
            EditAfterConsumed: This turn is committed already.
            ContextOverflowError: The text, or the conversation, is longer than the model's context.
            InputError, ChatTemplateError: There is nothing to say, the ways of saying it contradict each other, or the
                messages are none that the session can go on with.
            TemplateError: The segments do not fit the template; its own classes say how.
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
        """
        self._require_regime("editable", "snapshot")
        reading = self._snapshots.read(texts, segments=segments, messages=messages)
        await self._push("snapshot", *reading.arguments(mode))
        self._snapshots.keep(reading)

    async def commit(
        self,
        texts: Mapping[str, str] | str | None = None,
        *,
        segments: Segments | None = None,
        messages: Messages | None = None,
        mode: Mode = "exact",
    ) -> Reply:
        """Say that the input will not change any more, and wait for the answer.

        Whoever iterates over the session meanwhile hears it as it comes.

        Args:
            texts, segments, messages, mode: A last snapshot, as for `snapshot`.

        Returns:
            What the outputs said, and what had been computed ahead.

        Raises:
            EmptyInputError: There is no text.
            EditAfterConsumed: This turn is committed already.
            SessionClosedError: The session ended before the answer was complete; `error` says why.
            What `snapshot` raises.
        """
        self._require_regime("editable", "commit")
        handle = self._opened()
        turn, first = handle.look().turn, len(handle.transcript.entries)
        reading = None
        if not (texts is None and segments is None and messages is None):
            reading = self._snapshots.read(texts, segments=segments, messages=messages)
        self._snapshots.require_text(reading)
        await self._push("commit", *(() if reading is None else reading.arguments(mode)))
        self._snapshots.forget()
        await self.wait_for_turn()
        look = handle.look()
        if look.turn <= turn:
            raise self.error or SessionClosedError("the session was closed before the answer was complete")
        return Reply(_said(handle.transcript, first), look.reuse)

    async def rollback(self) -> None:
        """Take back all snapshots of this turn; harmless when there were none.

        Raises:
            EditAfterConsumed: This turn is committed already.
        """
        self._require_regime("editable", "rollback")
        await self._push("rollback")
        self._snapshots.forget()

    def draft(self) -> Draft | None:
        """What the session would answer to the newest snapshot, as far as that is computed.

        Returns:
            None while nothing is, and once the snapshot is committed.
        """
        return self._opened().look_at_draft()

    async def next_draft(self, after: Draft | None = None) -> Draft | None:
        """Wait for a draft.

        Args:
            after: One that is known already; the next one that is not the same is returned.

        Returns:
            None when the snapshot is committed, or the session closed.
        """
        handle = self._opened()
        turn = handle.look().turn

        def look() -> tuple[Draft | None] | None:
            draft = handle.look_at_draft()
            if draft is not None:
                return None if draft == after else (draft,)
            state = handle.look()
            is_past = state.is_closed or not state.turn_is_over or state.turn > turn
            return (None,) if is_past else None

        (found,) = await handle.changed.until(look)
        return found

    async def suggest(self, stream: str, text: str) -> None:
        """Say what an output is likely to say, such as the text that it is to revise.

        The guess is verified as the stream speaks, several tokens in one forward; it changes nothing of what is said.
        """
        await self._push("suggest", stream, text)

    async def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all."""
        await self._push("interrupt", stream)

    async def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        await self._push("cancel", stream)

    async def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak: `text`, or what the model chooses with silence masked once."""
        await self._push("force", stream, text)

    async def close_stream(self, stream: str) -> None:
        """Close one stream for good; its pages are free at once."""
        await self._push("close_stream", stream)

    async def fork(self) -> Session:
        """A second session that holds the same and goes on by itself; enter it, or close it.

        Raises:
            SessionClosedError
            EngineBusyError, EngineClosedError: There is no seat for it.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        handle = await self._backend.fork(self._opened().number)
        template = self._snapshots.template
        return Session(
            self._backend, self._topology, self._settings, self._tools, handle, self._regime, template
        )

    async def evict(self) -> None:
        """Give the session's cache back; it is refilled from the transcript once there is something to do."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        await self._backend.evict(self._opened().number)

    async def close(self, reason: str = "closed") -> None:
        """Close the session; harmless when repeated. Iterators end after the last event, which states the reason."""
        if self._handle is not None:
            self._backend.abort(self._handle.number, reason)

    # ---- asking

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self._opened().transcript

    @property
    def topology(self) -> Topology:
        """The streams."""
        return self._topology if self._handle is None else self._handle.topology

    @property
    def lanes(self) -> LaneTable:
        """The streams, each copy counted, in the order of rows."""
        return self.topology.lanes(self._settings.get("copies"))

    @property
    def turn_is_over(self) -> bool:
        """Whether no turn is under way."""
        return self.look().turn_is_over

    @property
    def rows(self) -> int:
        """Rows made so far."""
        return self.look().t

    @property
    def rows_due(self) -> int:
        """Rows made so far, and those that the input which waits will take at most."""
        look = self.look()
        return look.t + look.num_queued

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session."""
        return 0 if self._handle is None else self._handle.look().kv_tokens

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        return self._handle is not None and self._handle.look().is_closed

    @property
    def error(self) -> BraidError | None:
        """What ended the session from inside, such as a full pool; clients see it as an `ErrorEvent`."""
        return None if self._handle is None else self._handle.error

    @property
    def max_rows(self) -> int | None:
        """Rows after which the session closes by itself, once the forward that reaches them is done."""
        return self._max_rows

    @max_rows.setter
    def max_rows(self, rows: int | None) -> None:
        self._max_rows = rows
        self._limit()

    @property
    def max_turns(self) -> int | None:
        """Turns after which the session closes by itself."""
        return self._max_turns

    @max_turns.setter
    def max_turns(self, turns: int | None) -> None:
        self._max_turns = turns
        self._limit()

    def look(self) -> SessionLook:
        """How the session stands, all at one moment."""
        return self._opened().look()

    def text(self, stream: str) -> str:
        """All that a stream has held so far, of all turns."""
        return self.transcript.text(stream)

    def result(self) -> Result:
        """The run so far, as `braid.generate` gives it."""
        look = self.look()
        return result_of(
            self.transcript,
            seconds=time.perf_counter() - self._began,
            finished=look.turn_is_over,
            kv_tokens=look.peak_kv_tokens,
            bytes_per_token=self._backend.bytes_per_token,
        )

    @property
    def mailbox(self) -> Mailbox:
        """Where all that happens waits, for those who would rather take it in batches than iterate."""
        return self._opened().mailbox

    async def wait_for_turn(self) -> None:
        """Return when the turn under way is over, or the session closed."""
        handle = self._opened()

        def is_over() -> bool | None:
            look = handle.look()
            return look.turn_is_over or look.is_closed or None

        await handle.changed.until(is_over)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._opened().events()

    # ---- life

    async def __aenter__(self) -> Self:
        if self._handle is None:
            if any(spec.grammar is not None for spec in self._topology.streams.values()):
                await anyio.to_thread.run_sync(self._backend.warm, self._topology)
            await self._backend.admit()
            try:
                self._handle = self._backend.start(self._topology, self._settings)
            except BaseException:
                self._backend.decline()
                raise
            self._limit()
        self._began = time.perf_counter()
        if self._tools is not None:
            try:
                self._desk = ToolDesk(self._backend, self._handle, self._tools)
                await self._desk.__aenter__()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._desk is not None:
                await self._desk.__aexit__(kind, error, trace)
        finally:
            await self.close()

    def _opened(self) -> SessionHandle:
        if self._handle is None:
            raise SessionClosedError(
                "the session has not been entered; use `async with engine.open(…) as session`"
            )
        return self._handle

    async def _push(self, verb: str, *arguments: Any) -> Any:
        """Apply a verb before the next row; where it is cancelled, nothing was done."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        value = self._backend.push(self._opened().number, verb, *arguments)
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return value

    def _require_regime(self, regime: InputRegime, verb: str) -> None:
        if self._regime not in (None, regime):
            instead = "write, and end" if regime == "editable" else "snapshot, and commit"
            raise RegimeError(
                f"{verb} is for {regime} input, and this session was opened with input={self._regime!r}; use {instead}"
            )

    def _limit(self) -> None:
        if self._handle is not None:
            self._backend.limit(self._handle.number, max_rows=self._max_rows, max_turns=self._max_turns)


def _said(transcript: Transcript, since: int) -> dict[str, str]:
    """What each output has said from an entry of the transcript on."""
    lanes = [lane for lane in transcript.lanes.lanes if transcript.topology.stream(lane.stream).is_output]
    return {lane.label: transcript.text(lane.label, since) for lane in lanes}
