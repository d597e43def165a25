"""Runs one session for one answer, and tells what it says in parts.

    open ─▶ tell ─▶ events ─▶ Reader ─▶ Said, Thought, Called … ─▶ Outcome
                      └─ every answer is complete: the session is closed before its turn is made history

Several outputs that clients see are told one after another, in the order of the topology. Whoever cancels closes the
session; nothing of a stream that is internal comes out unless it was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from braid.engine.session.record import LedgerLine
from braid.errors import (
    BraidError,
    ChatTemplateError,
    ContextOverflowError,
    EngineClosedError,
    SamplingError,
)
from braid.model.chat import BLANK_LINE
from braid.server.openai.odds import OddsTeller
from braid.server.openai.plans import Plan
from braid.server.openai.refusals import naming
from braid.server.openai.replies import FinishReason
from braid.server.openai.toolcalls import CallFilter
from braid.server.service import Service
from braid.sessions.session import Session
from braid.sessions.tools.calls import Call
from braid.streams.entries import Row
from braid.streams.events import ClosedEvent, DeltaEvent, Event, StateEvent
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["Called", "Gathered", "Outcome", "Part", "Said", "Thought", "Tokens", "answer", "gathered"]


@dataclass(frozen=True, slots=True)
class Said:
    """Text of an answer, and the odds of tokens that belong to it."""

    text: str
    odds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of an inner stream."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call, whole.

    Args:
        arguments: As JSON.
    """

    id: str
    name: str
    arguments: str


Part = Said | Thought | Called
Tell = Callable[[Part], Awaitable[None]]


@dataclass(frozen=True)
class Tokens:
    """How many there were; template and end tokens are counted, too."""

    prompt: int = 0
    cached: int = 0
    said: int = 0
    thought: int = 0
    """Of those said, by inner streams."""
    accepted: int = 0
    """Of those said, the prediction's."""
    rejected: int = 0
    """Tokens of the prediction that were tried, and not said."""

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.said + other.said,
            self.thought + other.thought,
            self.accepted + other.accepted,
            self.rejected + other.rejected,
        )

    def as_usage(self) -> dict[str, Any]:
        """As OpenAI spells it."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.said,
            "total_tokens": self.prompt + self.said,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {
                "reasoning_tokens": self.thought,
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            },
        }


@dataclass(frozen=True)
class Outcome:
    """How an answer ended."""

    reason: FinishReason
    tokens: Tokens


@dataclass
class Gathered:
    """An answer that is told at once."""

    text: str = ""
    thought: str = ""
    calls: list[Called] = field(default_factory=list[Called])
    odds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    outcome: Outcome = field(default_factory=lambda: Outcome("stop", Tokens()))

    async def take(self, part: Part) -> None:
        """Add what is new."""
        match part:
            case Said(text, odds):
                self.text += text
                self.odds += odds
            case Thought(text):
                self.thought += text
            case Called():
                self.calls.append(part)


async def gathered(service: Service, plan: Plan, number: int = 0) -> Gathered:
    """Run an answer to its end; raises as `answer` does."""
    whole = Gathered()
    whole.outcome = await answer(service, plan, whole.take, number)
    return whole


async def answer(service: Service, plan: Plan, tell: Tell, number: int = 0) -> Outcome:
    """Run a session until its answers are complete.

    Args:
        service: Where.
        plan: What.
        tell: Told each part as it comes; the session pauses while it does not keep up.
        number: Of the answer; each has noise of its own.

    Raises:
        BraidError: The session cannot be opened, or has failed.
    """
    conversation = plan.conversation
    with naming("braid"):
        session = service.engine.open(
            conversation.topology,
            seed=plan.seed + number,
            copies=plan.copies,
            chat=conversation.chat,
            salt=plan.salt,
            guesses=plan.guesses,
        )
    session.max_turns, session.max_rows = 1, plan.max_rows
    reader = _Reader(plan, service)
    async with AsyncExitStack() as open_sessions:
        try:
            await open_sessions.enter_async_context(session)
        except (SamplingError, ChatTemplateError) as error:
            error.param = plan.grammar_param if isinstance(error, SamplingError) else "messages"
            raise
        reader.open(session)
        if plan.prediction:
            await session.suggest(reader.answering, plan.prediction)
        with naming("messages"):
            await session.tell(conversation.inputs)
        mailbox = session.mailbox
        mailbox.heed(reader)
        while not reader.is_done and (news := await mailbox.take()):
            for event in news:
                assert not isinstance(event, LedgerLine), "these sessions keep no ledger"
                for part in reader.take(event):
                    await tell(part)
    for part in reader.rest():
        await tell(part)
    reason = reader.reason(session)
    look = session.look()
    tokens = count_tokens(session.transcript, session.topology, look.num_cached)
    if plan.prediction:  # what answers to others of the key have brought is none of the request's
        tokens = replace(tokens, accepted=look.num_accepted, rejected=look.num_rejected)
    return Outcome(reason, tokens)


def count_tokens(transcript: Transcript, topology: Topology, cached: int) -> Tokens:
    """Count what a session of one turn has read and said."""
    prompt = said = thought = 0
    inputs = frozenset(topology.input_names)
    inner = frozenset(name for name, spec in topology.streams.items() if spec.visibility == "internal")
    for entry in transcript.entries:
        if isinstance(entry, Row):
            for label in entry.cells:
                stream = label.partition("#")[0]
                if stream in inputs:
                    prompt += 1
                else:
                    said += 1
                    thought += stream in inner
        elif entry.kind == "turn":
            break  # what follows makes the answer history
        elif entry.kind == "prefill":
            prompt += len(entry.tokens)
    return Tokens(prompt, min(cached, prompt), said, thought)


@dataclass
class _Lane:
    """An output that clients see, or hear calls from."""

    label: str
    is_call_lane: bool
    calls: CallFilter | None
    odds: OddsTeller | None
    waiting: list[Part] = field(default_factory=list[Part])
    """What it has said while another one is told."""
    finish: str | None = None


class _Reader:
    """Makes parts of events."""

    def __init__(self, plan: Plan, service: Service) -> None:
        self._plan = plan
        self._codec = service.model.codec
        self._lanes: dict[str, _Lane] = {}
        self._inner: frozenset[str] = frozenset()
        self._told = 0
        """How many lanes have been told to their end."""
        self._has_said = False
        self._is_cut = False
        self._num_calls = 0
        self._speaker = ""
        self._closed_because = ""

    def open(self, session: Session) -> None:
        """See which lanes there are."""
        topology = session.topology
        calling = (
            frozenset(name for name, _ in topology.resolved_tool_flows)
            if self._plan.tools
            else frozenset[str]()
        )
        inner: list[str] = []
        for lane in session.lanes.lanes:
            spec = topology.streams[lane.stream]
            if spec.is_input:
                continue
            is_call_lane = lane.stream in calling
            if spec.visibility == "internal" and not is_call_lane:
                inner.append(lane.label)
                continue
            finds = bool(self._plan.tools) and (is_call_lane or not calling)
            calls = CallFilter(lane.label, self._plan.tools) if finds else None
            odds = None
            if spec.logprobs is not None:
                odds = OddsTeller(self._codec, spec.logprobs, waits=bool(spec.stop))
            self._lanes[lane.label] = _Lane(lane.label, is_call_lane, calls, odds)
        self._inner = frozenset(inner)

    @property
    def answering(self) -> str:
        """The lane whose text is the answer, or begins it."""
        answering = [label for label, lane in self._lanes.items() if not lane.is_call_lane]
        return (answering or list(self._lanes))[0]

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be told."""
        return self._is_cut or all(lane.finish is not None for lane in self._lanes.values())

    def take(self, event: Event | Row) -> list[Part]:
        """What an event tells."""
        match event:
            case DeltaEvent(stream=label) if label in self._lanes:
                lane = self._lanes[label]
                lane.waiting += self._said(lane, event)
                return self._due()
            case DeltaEvent(stream=label, text=text) if label in self._inner:
                return [Thought(text)] if self._plan.shows_internal and text else []
            case StateEvent(stream=label, state=("asleep" | "closed"), reason=reason) if label in self._lanes:
                lane = self._lanes[label]
                if lane.finish is None:
                    lane.finish = reason
                    lane.waiting += self._end(lane)
                return self._due()
            case ClosedEvent(reason=reason):
                self._closed_because = reason
                return []
            case _:
                return []

    def rest(self) -> list[Part]:
        """What is left when the session has ended."""
        parts: list[Part] = []
        for lane in self._lanes.values():
            if lane.finish is None and not self._is_cut:
                lane.finish = "cut"
                lane.waiting += self._end(lane)
        parts += self._due()
        return parts

    def reason(self, session: Session) -> FinishReason:
        """Why the answers ended.

        Raises:
            BraidError: Because the session has failed.
        """
        error = session.error
        has_begun = self._has_said or self._num_calls
        if error is not None and not (isinstance(error, ContextOverflowError) and has_begun):
            if isinstance(error, ContextOverflowError):
                error.param = "messages"
            raise self._tellable(error, session.topology)
        finishes = {lane.finish for lane in self._lanes.values()}
        if self._num_calls:
            return "tool_calls"
        if self._closed_because == "shutdown":
            raise EngineClosedError(
                "the server is shutting down, and the answer was cut short; try again later"
            )
        is_long = error is not None or self._closed_because == "max_rows"
        return "length" if is_long or "length" in finishes else "stop"

    def _tellable(self, error: BraidError, topology: Topology) -> BraidError:
        """The error, without its words where they may quote an inner stream."""
        specs = topology.streams.values()
        is_open = all(spec.visibility == "external" or spec.is_input for spec in specs)
        if is_open or self._plan.shows_internal or not error.code.startswith("input"):
            return error
        return BraidError.of(error.code, "an inner stream has failed")

    def _said(self, lane: _Lane, delta: DeltaEvent) -> list[Part]:
        odds = [] if lane.odds is None else lane.odds.take(delta)
        found = [delta.text] if lane.calls is None else lane.calls.push(delta.text)
        return self._parts(lane, found, odds)

    def _end(self, lane: _Lane) -> list[Part]:
        odds = [] if lane.odds is None else lane.odds.rest(is_stopped=lane.finish == "stop")
        return self._parts(lane, [] if lane.calls is None else lane.calls.flush(), odds)

    def _parts(self, lane: _Lane, found: Sequence[str | Call], odds: list[dict[str, Any]]) -> list[Part]:
        parts: list[Part] = []
        for piece in found:
            if self._is_cut:
                break
            if isinstance(piece, Call):
                parts.append(Called(piece.id, piece.name, _as_json(piece.arguments)))
                self._num_calls += 1
                self._is_cut = self._plan.is_single
            elif piece and not lane.is_call_lane:
                parts.append(Said(piece, odds))
                odds = []
        if odds and not lane.is_call_lane:
            parts.append(Said("", odds))
        return parts

    def _due(self) -> list[Part]:
        """What may be told: calls at once, text in the order of lanes."""
        due: list[Part] = []
        for number, lane in enumerate(self._lanes.values()):
            if number > self._told and not self._is_cut:
                due += [part for part in lane.waiting if isinstance(part, Called)]
                lane.waiting = [part for part in lane.waiting if not isinstance(part, Called)]
                continue
            if number == self._told or self._is_cut:
                due += self._joined(lane)
                if lane.finish is not None:
                    self._told += 1
        return due

    def _joined(self, lane: _Lane) -> list[Part]:
        """A lane's parts; a blank line stands between the text of two lanes."""
        parts, lane.waiting = lane.waiting, []
        for index, part in enumerate(parts):
            if isinstance(part, Said) and part.text:
                if self._has_said and self._speaker != lane.label:
                    parts[index] = Said(BLANK_LINE + part.text, part.odds)
                self._has_said, self._speaker = True, lane.label
        return parts


def _as_json(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)
