"""What happened to one session, line by line, so that another process can go on with it.

    ["do", "write", ["user", "How"], 0.1]        a verb, at 0.1 s
    ["ground", 0.1, [512, true], [], 0]          a step of a session that came back to the cache for a snapshot alone
    ["step", 0.2, [512, true], [3], 0]           demand, and prepare under a grant; the cache recalled 3 cells
    ["retry", 0.2, [512, true], [], 0]           prepare once more, after room was made
    ["told", [[40], [311]]]                      what the forward answered to the lanes that it asked
    ["do", "commit", [texts], 0.3]               a commit, and once it was followed:
    ["history", 40]                              its messages replace the session's; 40 tokens of them are cached
    ["released"]                                 what it became follows, as if the text had been told at once
    ["held", 12]                                 a draft of other messages is taken back, and has left 12 tokens
    ["evict"]   ["fail", code, message]   ["resumed", 0.0]

A conversation is a state machine whose only other sources are its backend's answers. So a fresh one that is led through
the lines, with the answers as they stand there, is in the same state, text that was held back and grammars included;
nothing is computed. Its cache is empty then, and is refilled from the transcript like that of an evicted session.

A line stands before the events that came of it. Whoever stores both in this order, and is killed at any moment, has
lines for all events that are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from braid.engine.backend import Answer, Backend, Capabilities, ModelCard, Op, Recall, Usage
from braid.engine.editing.history import enter, spelled
from braid.engine.scheduler import Grant
from braid.engine.session.conversation import Conversation
from braid.engine.session.ground import Unanswered
from braid.engine.session.record import LedgerLine
from braid.errors import BraidError, PoolFullError, TranscriptCorruptError
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.backend import Item, ItemResult
    from braid.engine.editing.editable import EditableTurn
    from braid.engine.session.conversation import Apply

__all__ = ["Ledger", "Line", "lead_through"]

Line = list[Any]
"""Plain JSON data; its first item says what happened."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that a conversation takes part in, as long as its line is not written."""

    mark: tuple[int, int]
    now: float
    kind: str = "step"
    is_retry: bool = False
    """Whether the demand is in a line already, and it has only prepared once more."""


class Ledger:
    """Writes the lines of one conversation among its news, each before what came of it.

    Args:
        conversation: Whose.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._record = conversation.record
        self._step: _Step | None = None
        self.recalled: list[int] = []
        """What the cache has recalled since the last line."""

    def of(self, twin: Conversation) -> Ledger:
        """One for a double, whose news will stand in the place of this one's."""
        return Ledger(twin)

    def mark(self) -> tuple[int, int]:
        """Where a line will stand that is written when it is known what it says."""
        return self._record.mark()

    def did(self, mark: tuple[int, int], verb: str, arguments: Sequence[Any], now: float) -> None:
        """A verb was applied."""
        self._write_out(mark, ["do", verb, list(arguments), now])

    def committed(self, edit: EditableTurn, now: float) -> None:
        """Input was committed; it is drafted up to now, and nobody has heard of that."""
        arguments: list[Any] = [dict(edit.texts)]
        if edit.history is not None:
            others, messages = spelled(self._conversation, edit.texts, edit.history)
            arguments = [others, "exact", list(messages)]
        self._record.insert_before_held(LedgerLine(["do", "commit", arguments, now]))

    def history(self, num_held: int) -> None:
        """What follows stands on the history that was committed, of which the cache has so many tokens."""
        self._write(self.mark(), ["history", num_held])

    def held(self, num_held: int) -> None:
        """A draft of another history is taken back; of the session's own the cache has so many tokens."""
        self._write(self.mark(), ["held", num_held])

    def released(self) -> None:
        """What follows is what a commit became."""
        self._write(self.mark(), ["released"])

    def begin_step(self, now: float) -> None:
        """It is about to be asked what there is to do."""
        self._step = _Step(self._record.mark(), now, "ground" if self._conversation.wants_ground else "step")

    def prepared(self, grant: Grant, was_made: bool, *, was_full: bool = False) -> None:
        """It was granted something, and has prepared that; or had nothing to do, or found no room."""
        assert self._step is not None, "a grant follows a demand"
        step, self._step = self._step, None
        if was_made or self._has_changed(step):
            allowed = [grant.input_tokens, grant.makes_row]
            kind = "retry" if step.is_retry else step.kind
            self._write(step.mark, [kind, step.now, allowed, self._take_recalled(), int(was_full)])
        elif not step.is_retry:
            self._step = step  # so far nothing has happened
            return
        self._step = _Step(self._record.mark(), step.now, step.kind, is_retry=True)

    def spliced(self, grant: Grant) -> None:
        """Rows were entered that nothing is computed for; what is prepared next is in the same step."""
        self.prepared(grant, True)
        self.told(self.mark(), [])
        assert self._step is not None, "it has prepared"
        self._step = replace(self._step, mark=self.mark())

    def end_step(self) -> None:
        """Nothing more is granted; asking alone may have changed something, such as that the turn is over."""
        step, self._step = self._step, None
        if step is not None and not step.is_retry and self._has_changed(step):
            self._write(step.mark, [step.kind, step.now, None, self._take_recalled(), 0])
        self.recalled = []

    def _has_changed(self, step: _Step) -> bool:
        return self.mark() != step.mark or any(self.recalled)

    def _take_recalled(self) -> list[int]:
        """What was recalled; nothing, at the end, goes without saying."""
        recalled, self.recalled = self.recalled, []
        while recalled and not recalled[-1]:
            recalled.pop()
        return recalled

    def told(self, mark: tuple[int, int], answers: Sequence[Answer]) -> None:
        """A forward has answered."""
        self._write(mark, ["told", [_spelled(answer) for answer in answers]])

    def evict(self) -> None:
        """Its cache is given away; maybe between its demand and its grant, which comes to nothing then."""
        step = self._step
        self.end_step()
        self._write_out(self.mark(), ["evict"])
        if step is not None:
            self._step = _Step(self.mark(), step.now, step.kind, is_retry=True)

    def fail(self, error: BraidError) -> None:
        """It cannot go on."""
        self._write_out(self.mark(), ["fail", error.code, str(error)])

    def resumed(self, now: float) -> None:
        """Another process goes on with it; its clock begins anew."""
        self._write(self.mark(), ["resumed", now])

    def _write_out(self, mark: tuple[int, int], line: Line) -> None:
        """Write a line that holds whatever becomes of a draft."""
        if self._record.is_held:
            self._record.insert_before_held(LedgerLine(line))
        else:
            self._write(mark, line)

    def _write(self, mark: tuple[int, int], line: Line) -> None:
        self._record.insert(mark, LedgerLine(line))


def _spelled(answer: Answer) -> list[Any]:
    spelled: list[Any] = [
        answer.token,
        answer.logprob,
        [list(pair) for pair in answer.top],
        answer.confidence,
    ]
    while len(spelled) > 1 and not spelled[-1]:
        spelled.pop()
    return spelled


def _read(spelled: Sequence[Any]) -> Answer:
    unsaid: list[Any] = [0.0, [], 0.0]
    token, logprob, top, confidence = (*spelled, *unsaid[len(spelled) - 1 :])
    pairs = tuple((int(t), float(p)) for t, p in cast("list[list[float]]", top))
    return Answer(int(token), float(logprob), pairs, confidence=float(confidence))


def lead_through(
    backend: Backend,
    topology: Topology,
    lines: Iterable[Line],
    *,
    number: int,
    apply: Apply,
    now: float = 0.0,
    settings: Mapping[str, Any] | None = None,
) -> Conversation:
    """A conversation that stands where the lines end, with an empty cache, to go on at `backend`.

    Its news are all events since it was opened, so that whoever stored some of them can tell which are missing.

    Args:
        backend: Of the same model.
        topology, number, apply, settings: As for `Conversation`.
        lines: From a ledger, from the very first.
        now: The moment, on the engine's clock.

    Raises:
        TranscriptCorruptError: A line is damaged, or says what cannot have happened, as on another model.
        BraidError: What opening raises.
    """
    script = _Script(backend)
    conversation = Conversation(script, topology, number=number, apply=script.apply, **(settings or {}))
    line: Line = []
    try:
        for line in lines:
            script.follow(conversation, line)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise TranscriptCorruptError(
            f"the session's ledger cannot be followed at {str(line)[:200]} ({error!r}); the model, or Braid itself, "
            "may be another than when it was written"
        ) from error
    conversation.needs_ground = False
    conversation.go_on(backend, apply, script.unanswered, now)
    return conversation


class _Script:
    """A backend that computes nothing: it answers as the lines say.

    Args:
        backend: Whose model and capabilities it has.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._recalled: list[int] = []
        self._is_full = False
        self.unanswered: Unanswered | None = None
        """What was prepared and not answered."""

    @property
    def model(self) -> ModelCard:
        """As the other's."""
        return self._backend.model

    def capabilities(self) -> Capabilities:
        """As the other's."""
        return self._backend.capabilities()

    def settle(self, topology: Topology) -> Topology:
        """As the other does."""
        return self._backend.settle(topology)

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """What the cache recalled then; nothing else happens."""
        return [self._recalled.pop(0) if isinstance(op, Recall) and self._recalled else 0 for op in ops]

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        """There is room, unless there was none."""
        if self._is_full:
            raise PoolFullError("the cache was full")

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        """Never asked."""
        raise AssertionError("nothing is computed while a ledger is followed")

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        """Never asked: what a draft took over is rows as any others here."""
        raise AssertionError("nothing is compared while a ledger is followed")

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> object:
        """Never asked."""
        raise AssertionError("nothing is compared while a ledger is followed")

    def deviation_between(self, found: object, right: object) -> float:
        """Never asked."""
        raise AssertionError("nothing is compared while a ledger is followed")

    def usage(self) -> Usage:
        """Nothing is held."""
        return Usage()

    def release_prefixes(self, num_pages: int) -> int:
        """Nothing is held."""
        return 0

    def close(self) -> None:
        """Nothing is held."""

    def follow(self, conversation: Conversation, line: Line) -> None:
        """Do what a line says."""
        match line:
            case ["do", str(verb), list(arguments), now]:
                timed = {"now": now} if verb in conversation.TIMED else {}
                getattr(conversation, verb)(*arguments, **timed)
            case ["step" | "ground" as kind, now, grant, list(recalled), is_full]:
                conversation.needs_ground = kind == "ground"
                self._recalled, self._is_full = cast("list[int]", list(recalled)), bool(is_full)
                conversation.demand(now)
                if grant is not None:
                    self._prepare(conversation, grant, now)
            case ["retry", now, list(grant), list(recalled), is_full]:
                self._recalled, self._is_full = cast("list[int]", list(recalled)), bool(is_full)
                self._prepare(conversation, grant, now)
            case ["told", list(answers)]:
                self.unanswered = None
                conversation.advance([_read(answer) for answer in cast("list[list[Any]]", answers)])
                conversation.keep_prefixes()
            case ["history", int(num_held)]:
                edit = conversation.edit
                assert edit is not None
                assert edit.history is not None
                edit.history.put_before(conversation)
                enter(conversation, num_held)
            case ["held", int(num_held)]:
                enter(conversation, num_held)
            case ["released"]:
                conversation.released()
            case ["evict"]:
                conversation.evict()
            case ["fail", str(code), str(message)]:
                conversation.fail(BraidError.of(code, message))
            case ["resumed", now]:
                conversation.go_on(self, self.apply, self.unanswered, now)
            case _:
                raise TranscriptCorruptError(
                    f"the session's ledger has a line that Braid does not know: {str(line)[:200]}"
                )

    def _prepare(self, conversation: Conversation, allowed: Sequence[Any], now: float) -> None:
        grant = Grant(conversation.number, int(allowed[0]), bool(allowed[1]))
        try:
            made = conversation.prepare(grant, now)
        except PoolFullError:
            return
        self.unanswered = None if made is None else Unanswered(made[0], conversation.num_entries_before)
