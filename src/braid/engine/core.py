"""The step: schedule → prepare → compute → advance, with the news published in between.

    Scheduler.schedule()      who may do how much                                    (no tensors)
    Conversation.prepare()    which tokens enter which spans; rows are recorded      (no tensors)
    Backend.step()            one forward over all new tokens, one draw an ask
    Conversation.advance()    the drawn tokens become the next rows

When the pool is full, shared prefixes that nobody uses go first, then sessions that rest, then, of those that work,
the ones behind the session that needs room; whoever loses its pages is refilled from its transcript later. A session
whose turn it is not waits; only one that could never fit fails.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from braid.engine.backend import Backend, Item, ItemResult, Op, Recall
from braid.engine.editing.checking import CHECK_SHARE, HARMLESS, Checks
from braid.engine.editing.editable import DRIFT_BOUND, MOST_DRAFTED
from braid.engine.guessing.shared_guesses import SharedGuesses
from braid.engine.journal import Journal
from braid.engine.ledger import Ledger, Line, lead_through
from braid.engine.metrics import EngineMetrics, StepFigures
from braid.engine.pace import DraftPace
from braid.engine.scheduler import Demand, Grant, Scheduler, SchedulerPolicy
from braid.engine.session.conversation import EVERYTHING, Conversation
from braid.engine.session.lanes import Waiting
from braid.engine.session.starts import Predicate
from braid.engine.tracing import NO_TRACER, Tracer
from braid.errors import BraidError, EngineError, InputError, PoolFullError
from braid.streams.topology import Topology

__all__ = ["EngineCore", "GuessesOf", "StepReport", "require_guesses_of"]

GuessesOf = Literal["session", "tenant", "none"]
"""What is guessed from, besides what is suggested: the session's own drafts and what it reads; the answers that its
salt was given, too; or nothing."""

PREFIX_PAGES = 64
"""Pages of unused prefixes that are given up at once when the pool is full."""

Publish = Callable[[Sequence[Conversation]], None]


@dataclass
class StepReport:
    """What a step did."""

    num_items: int = 0
    num_tokens: int = 0
    """New tokens of the forward, probes included."""
    figures: StepFigures = field(default_factory=StepFigures)
    """Counts for the metrics, where there are any."""
    forward_s: float = 0.0
    """Seconds in the backend."""
    seconds: float = 0.0
    """Seconds in all."""
    demanding: list[int] = field(default_factory=list[int])
    """Sessions, by number, that had something to do, served or not."""
    released: list[int] = field(default_factory=list[int])
    """Of them, those whose draft was released, or can begin now; they go on in the next step."""
    held: dict[int, float] = field(default_factory=dict[int, float])
    """Sessions, by number, whose drafts have to wait, and until when; they need not be asked before."""
    is_draft: bool = False
    """Whether nobody waited for what was computed."""
    deferred: list[Conversation] = field(default_factory=list[Conversation])
    """Sessions that had to wait for room."""
    failures: list[tuple[Conversation, BaseException]] = field(
        default_factory=list[tuple[Conversation, BaseException]]
    )
    """Sessions that cannot go on, and why. After an error of the forward they are closed; else nothing of theirs has
    changed, and the caller decides."""

    @property
    def worked(self) -> bool:
        """Whether anything was computed."""
        return self.num_items > 0


class EngineCore:
    """Runs conversations on one backend. Synchronous; steps come from one thread at a time, verbs from any.

    Args:
        backend: What computes.
        policy: Of the scheduler.
        journal: Where verbs and batches are recorded, so that they can be replayed.
        metrics: Where figures go.
        tracer: Of OpenTelemetry, or any other with its `start_as_current_span`.
        check_share: Of committed turns that took something over behind an edit, those that are computed again exactly
            when nobody waits, to see how good the estimates are.

    Raises:
        InputError: The share is none.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: SchedulerPolicy | None = None,
        journal: Journal | None = None,
        metrics: EngineMetrics | None = None,
        tracer: Tracer = NO_TRACER,
        check_share: float = CHECK_SHARE,
    ) -> None:
        self.backend = backend
        self.scheduler = Scheduler(policy)
        self.drafting = Scheduler(self.scheduler.policy.for_drafts())
        self.pace = DraftPace(self.scheduler.policy.draft_share)
        self.last_step_s = 0.0
        """Seconds that the step took which the pace does not know yet; replayed from the journal."""
        self._last_step: tuple[float, bool] | None = None
        """When it was made, and whether of drafts alone."""
        self.journal = journal
        self.metrics = metrics
        self.tracer = tracer
        self.conversations: dict[int, Conversation] = {}
        """The sessions that are open, by number."""
        self.shared = SharedGuesses()
        """Of sessions that asked for it."""
        self.num_steps = 0
        self.lock = threading.RLock()
        """Held while queues and books are read or changed; not during a forward."""
        self._shares_prefixes = backend.capabilities().prefixes
        self._next_number = 0
        self._is_computing = False
        self._put_off: list[Op] = []
        self._last_worked: dict[int, int] = {}
        self._heard: dict[int, tuple[int, int]] = {}
        """What the metrics know of each session: its rows, and the tokens that its outputs have said."""
        self.checks = Checks(
            backend, self._apply, share=check_share, seed=self.scheduler.policy.seed, metrics=metrics
        )
        self._is_checking = False
        """Whether the forward that is under way is but a check, in which no session takes part."""
        self._deferred: set[int] = set()
        """Sessions that were granted a step and found no room, until they do."""

    # ---- sessions

    def open(
        self,
        topology: Topology,
        *,
        seed: int = 0,
        copies: Mapping[str, int] | None = None,
        forces_answers: bool = True,
        predicates: Mapping[str, Predicate] | None = None,
        salt: str = "",
        max_queued: int = 65_536,
        chat: Mapping[str, Any] | None = None,
        most_drafted: int = MOST_DRAFTED,
        draft_after: float = 0.0,
        guesses: GuessesOf = "session",
        drift_bound: float = DRIFT_BOUND,
        ledger: Sequence[Line] | None = None,
        now: float = 0.0,
    ) -> Conversation:
        """Open a session; see `Conversation` for the other arguments, and for what it raises.

        Args:
            topology, seed, copies, forces_answers, predicates, salt, max_queued, chat, most_drafted, draft_after,
                drift_bound: As for `Conversation`.
            guesses: `tenant` takes the answers of other sessions of the same salt that asked for it as guesses, and
                gives them its own; see `braid.engine.guessing.shared_guesses`. `none` guesses what is suggested alone.
            ledger: The lines of its ledger so far, none for a new session; None keeps no ledger. Of one that goes on,
                the news begins with all that happened since it was opened.
            now: The moment, on the engine's clock, in seconds.

        Raises:
            TranscriptCorruptError: The lines are damaged, or of another model.
        """
        require_guesses_of(guesses)
        with self.lock:
            number = self._next_number
            settings: dict[str, Any] = {
                "seed": seed,
                "copies": dict(copies or {}),
                "forces_answers": forces_answers,
                "salt": salt,
                "max_queued": max_queued,
                "chat": None if chat is None else dict(chat),
                "most_drafted": most_drafted,
                "draft_after": draft_after,
                "drift_bound": drift_bound,
            }
            if ledger:
                conversation = lead_through(
                    self.backend,
                    topology,
                    ledger,
                    number=number,
                    apply=self._apply,
                    now=now,
                    settings={**settings, "predicates": predicates},
                )
            else:
                conversation = Conversation(
                    self.backend,
                    topology,
                    number=number,
                    apply=self._apply,
                    predicates=predicates,
                    **settings,
                )
            if ledger is not None:
                conversation.ledger = Ledger(conversation)
                if ledger:
                    conversation.ledger.resumed(now)
            conversation.guesses.shared = self.shared if guesses == "tenant" else None
            conversation.guesses.learns = guesses != "none"
            if self.journal is not None:
                settings["guesses"] = guesses
                self.journal.opened(
                    self.num_steps, number, topology, settings, now, ledger, during=self._is_stepping
                )
            return self._enter(conversation)

    def fork(self, conversation: Conversation) -> Conversation:
        """Open a session that holds what another one holds; between two steps, never during one.

        Raises:
            SessionClosedError
        """
        with self.lock:
            assert not self._is_computing, "a session is forked between steps"
            twin = conversation.fork(self._next_number)
            if self.journal is not None:
                self.journal.forked(self.num_steps, conversation.number, twin.number)
            return self._enter(twin)

    def _enter(self, conversation: Conversation) -> Conversation:
        self.conversations[conversation.number] = conversation
        self._next_number += 1
        self._last_worked[conversation.number] = self.num_steps
        self._heard[conversation.number] = (conversation.t, conversation.num_said)
        return conversation

    def do(self, conversation: Conversation, verb: str, *arguments: Any, now: float = 0.0) -> Any:
        """Apply a verb of `Conversation` before the next row, and record it.

        Args:
            conversation: Whose.
            verb: Its name, such as `write`.
            arguments: Its arguments.
            now: The moment, on the engine's clock, in seconds.

        Raises:
            BraidError: What the verb raises; nothing was changed then.
        """
        with self.lock:
            timed = {"now": now} if verb in conversation.TIMED else {}
            mark = conversation.record.mark_heard()
            is_unheard = conversation.edit is not None
            if verb not in HARMLESS:
                self.checks.turn_changes(conversation)
            value = getattr(conversation, verb)(*arguments, **timed)
            if self._is_stepping and verb != "suggest":  # which changes nothing of what comes
                conversation.ahead.disturb()
            if conversation.ledger is not None:
                if verb == "commit":
                    assert conversation.edit is not None, "it was committed just now"
                    conversation.ledger.committed(conversation.edit, now)
                elif verb not in conversation.UNWRITTEN and not (
                    is_unheard and verb in ("interrupt", "cancel")
                ):
                    conversation.ledger.did(mark, verb, arguments, now)
            if self.journal is not None:
                self.journal.did(
                    self.num_steps, conversation.number, verb, arguments, now, during=self._is_stepping
                )
            if verb == "commit" and conversation.can_be_released:
                # Who has committed need not wait for the forward that is under way.
                self._follow(conversation, now)
            if conversation.is_closed:
                self._forget(conversation)
            return value

    @property
    def _is_stepping(self) -> bool:
        """Whether a forward of sessions is under way."""
        return self._is_computing and not self._is_checking

    def _share_answers(self, conversation: Conversation) -> None:
        for tokens in conversation.guesses.take_answered():
            self.shared.add(conversation.salt, tokens)

    def _forget(self, conversation: Conversation) -> None:
        self._share_answers(conversation)
        self._count_heard([conversation])
        self._count_finished(conversation)
        self._heard.pop(conversation.number, None)
        self.conversations.pop(conversation.number, None)
        self._last_worked.pop(conversation.number, None)
        self._deferred.discard(conversation.number)

    def evict(self, conversation: Conversation) -> None:
        """Drop a session from the cache, between two steps; it is refilled when it has something to do."""
        with self.lock:
            assert not self._is_computing, "a session is evicted between steps"
            if conversation.is_closed or (conversation.is_evicted and not conversation.kv_tokens):
                return
            self._evict(conversation)
            if self.journal is not None:
                self.journal.did(self.num_steps, conversation.number, "evict", (), 0.0)

    def _evict(self, conversation: Conversation) -> None:
        if conversation.ledger is not None:
            conversation.ledger.evict()
        conversation.evict()
        if self.metrics is not None:
            self.metrics.evicted("session")

    def fail(self, conversation: Conversation, error: BraidError) -> None:
        """Close a session that a step has reported as unable to go on; its clients are told why."""
        with self.lock:
            if self.journal is not None and not conversation.is_closed:
                self.journal.failed(self.num_steps, conversation.number, error)
            self._fail(conversation, error)

    def _fail(self, conversation: Conversation, error: BraidError) -> None:
        self.checks.turn_changes(conversation)
        if conversation.ledger is not None and not conversation.is_closed:
            conversation.ledger.fail(error)
        conversation.fail(error)
        self._forget(conversation)

    def close(self) -> None:
        """Close all sessions, and the backend."""
        with self.lock:
            for conversation in list(self.conversations.values()):
                self.do(conversation, "close", "engine closed")
            self.checks.close()
            self.backend.close()

    # ---- the step

    def step(
        self, conversations: Sequence[Conversation], *, now: float = 0.0, publish: Publish | None = None
    ) -> StepReport:
        """Make the next rows of the conversations, as far as the budget goes, in one forward.

        Args:
            conversations: Those that may have something to do.
            now: The moment, on the engine's clock, in seconds; it decides what is overdue.
            publish: Called with the conversations that have news: those of the rows about to be computed before the
                forward, what the forward decided (streams that fall silent or asleep) after it.

        Returns:
            What was done, and who cannot go on.
        """
        began = time.perf_counter()
        report = StepReport()
        with self.tracer.start_as_current_span("braid.step"):
            with self.lock:
                batch = self._prepare(conversations, now, report)
                check = None
                if not batch and not report.demanding:
                    check = self.checks.prepare(self.drafting.policy.step_tokens, now)
                self._is_checking = check is not None
                self._is_computing = bool(batch) or self._is_checking
            self._publish(conversations, publish)
            if check is not None:
                self._compute_check(check)
            if batch:
                self._compute(batch, report, now)
                self._publish(conversations, publish)
            if self.metrics is not None:
                with self.lock:
                    self._count_heard(conversations)
        report.seconds = time.perf_counter() - began
        if batch:
            self.last_step_s, self._last_step = report.seconds, (now, report.is_draft)
        if self.metrics is not None and report.worked:
            self._measure(report, self.metrics)
        return report

    def _measure(self, report: StepReport, metrics: EngineMetrics) -> None:
        figures, usage = report.figures, self.backend.usage()
        figures.tokens = report.num_tokens
        figures.forward_seconds = report.forward_s
        figures.overhead_seconds = report.seconds - report.forward_s
        figures.draft_seconds = report.seconds if report.is_draft else 0.0
        figures.queue_tokens = sum(c.num_queued for c in self.conversations.values())
        figures.kv_used_pages = usage.pages_used
        metrics.step(figures)
        metrics.prefixes(usage.prefix_lookups, usage.prefix_hits, usage.prefix_hit_tokens)

    def _count_heard(self, conversations: Sequence[Conversation]) -> None:
        """Count rows, and what was said in them, once they can be heard: those of a draft when it is released."""
        if self.metrics is None:
            return
        for conversation in conversations:
            known = self._heard.get(conversation.number)
            if known is not None:
                now = self._heard[conversation.number] = (conversation.t, conversation.num_said)
                self.metrics.heard(now[0] - known[0], now[1] - known[1])

    def _count_finished(self, conversation: Conversation) -> None:
        if self.metrics is not None:
            for reuse in conversation.finished:
                self.metrics.committed(reuse)
        conversation.finished = []

    def _prepare(
        self, conversations: Sequence[Conversation], now: float, report: StepReport
    ) -> list[tuple[Conversation, Item]]:
        """Let the scheduler choose, and enter the rows of those it chose."""
        demands: list[Demand] = []
        by_number: dict[int, Conversation] = {}
        for conversation in conversations:
            try:
                if self._follow(conversation, now):
                    # What was drafted is told before anything else happens: it may call tools, which hold the turn.
                    report.released.append(conversation.number)
                    continue
            except Exception as error:  # noqa: BLE001 (of its own making: the others go on)
                report.failures.append((conversation, as_braid_error(error)))
                continue
            if conversation.ledger is not None:
                conversation.ledger.begin_step(now)
            try:
                demand = conversation.demand(now)
            except Exception as error:  # noqa: BLE001 (of its own making, such as a predicate's: the others go on)
                report.failures.append((conversation, as_braid_error(error)))
                continue
            if conversation.finished:
                self.checks.turn_changes(conversation)
                self._count_finished(conversation)
            self._share_answers(conversation)
            if demand is not None:
                demands.append(demand)
                by_number[demand.session] = conversation
            elif conversation.is_behind:  # its cache has come back, and nothing else was to be done
                report.released.append(conversation.number)
            elif (quiet_at := conversation.quiet_at(now)) is not None:
                report.held[conversation.number] = quiet_at
        last_s = self._hold_back(demands, by_number, now, report)
        report.demanding = [*by_number, *report.released]
        try:
            return self._prepare_granted(conversations, demands, by_number, now, report, last_s)
        finally:
            for conversation in conversations:
                if conversation.ledger is not None:
                    conversation.ledger.end_step()

    def _hold_back(
        self, demands: list[Demand], by_number: dict[int, Conversation], now: float, report: StepReport
    ) -> float | None:
        """Let drafts wait where they have used up their share of idle time; where somebody pays, they do anyway.

        Returns:
            Seconds of the step before, which that is decided by; None where it is not.
        """
        report.is_draft = bool(demands) and all(c.is_drafting for c in by_number.values())
        if not self.pace.is_limited or not demands:
            return None
        last_s, self.last_step_s = self.last_step_s, 0.0
        if self._last_step is not None:
            began, was_draft = self._last_step
            self.pace.took(began, seconds=last_s, is_draft=was_draft)
            self._last_step = None
        due = self.pace.due(now)
        if report.is_draft and due > now:
            report.held.update(dict.fromkeys(by_number, due))
            demands.clear()
            by_number.clear()
        return last_s

    def _follow(self, conversation: Conversation, now: float) -> bool:
        """Bring an editable turn to its newest snapshot; returns whether it was released."""
        turn = conversation.edit
        is_released = conversation.follow(now)
        if is_released:
            assert turn is not None, "only what may change is released"
            self.checks.consider(conversation, turn)
            if conversation.put_off:
                self.checks.turn_changes(conversation)
            late, conversation.put_off = conversation.put_off, []
            for verb, stream in late:
                mark = conversation.record.mark()
                getattr(conversation, verb)(stream)
                if conversation.ledger is not None:
                    conversation.ledger.did(mark, verb, (stream,), now)
        if is_released and self.metrics is not None and conversation.is_first_due:
            self._note_first_tokens(conversation, now, self.metrics)
        return is_released

    def _prepare_granted(
        self,
        conversations: Sequence[Conversation],
        demands: Sequence[Demand],
        by_number: Mapping[int, Conversation],
        now: float,
        report: StepReport,
        last_s: float | None,
    ) -> list[tuple[Conversation, Item]]:
        """Enter the rows of those whom the scheduler chooses."""
        if not demands:
            # Asking alone can end a turn, so that it is recorded, too.
            if self.journal is not None and conversations:
                self.journal.stepped(self.num_steps, now, conversations, [], last_s)
            return []
        if self._shares_prefixes:
            demands = _one_a_beginning(demands, by_number)
        batch: list[tuple[Conversation, Item]] = []
        while demands and not batch:
            found_no_room = self._fill(demands, by_number, now, report, batch)
            if not found_no_room:
                break
            # What they would have had of the step is there for the others.
            demands = [demand for demand in demands if demand.session not in found_no_room]
        if self.journal is not None:
            self.journal.stepped(self.num_steps, now, conversations, [item for _, item in batch], last_s)
        self.num_steps += 1
        return batch

    def _fill(
        self,
        demands: Sequence[Demand],
        by_number: Mapping[int, Conversation],
        now: float,
        report: StepReport,
        batch: list[tuple[Conversation, Item]],
    ) -> set[int]:
        """Add to the batch what the scheduler grants; returns who found no room."""
        grants, left = self._schedule(demands, by_number, now)
        demanding = frozenset(report.demanding)
        found_no_room: set[int] = set()
        for grant in grants:
            conversation = by_number[grant.session]
            try:
                made = self._with_room(conversation, grant, now, left, batch, demanding)
            except PoolFullError as error:
                if not conversation.rest_draft():
                    if self._somebody_else_holds(conversation):
                        report.deferred.append(conversation)
                        self._deferred.add(conversation.number)
                        found_no_room.add(conversation.number)
                    else:
                        report.failures.append((conversation, error))
                continue
            except Exception as error:  # noqa: BLE001 (a predicate may be asked here, too)
                # Of a draft it is raised after the commit, if it comes to that.
                if not conversation.rest_draft():
                    report.failures.append((conversation, as_braid_error(error)))
                continue
            if made is None:
                continue
            item, read = made
            left -= max(0, item.num_tokens - grant.input_tokens - 1)
            batch.append((conversation, item))
            self._deferred.discard(conversation.number)
            self._last_worked[conversation.number] = self.num_steps
            report.num_items += 1
            report.num_tokens += item.num_tokens
            if self.metrics is not None:
                _count(report.figures, conversation, item, len(read))
                if read and conversation.edit is None:  # of a draft nobody waits for it
                    oldest = min(read, key=lambda waiting: (waiting.at, waiting.t))
                    self.metrics.read_input(now - oldest.at, conversation.t - oldest.t)
        return found_no_room

    def _schedule(
        self, demands: Sequence[Demand], by_number: Mapping[int, Conversation], now: float
    ) -> tuple[list[Grant], int]:
        """Who may do how much, and the tokens that nobody needs; drafts use steps in which nobody waits.

        Whoever found no room last time comes first, those who opened first before others: room is taken from sessions
        that are not in the batch yet, so that one behind others might never get any.
        """
        drafts = [demand for demand in demands if by_number[demand.session].is_drafting]
        paying = [demand for demand in demands if not by_number[demand.session].is_drafting]
        scheduler = self.scheduler if paying else self.drafting
        grants = scheduler.schedule(paying or drafts, now)
        wanted = {demand.session: demand.row_tokens for demand in demands}
        used = sum(grant.input_tokens + wanted[grant.session] * grant.makes_row for grant in grants)
        grants.sort(key=lambda grant: grant.session if grant.session in self._deferred else math.inf)
        return grants, max(0, scheduler.policy.step_tokens - used)

    def _with_room(
        self,
        conversation: Conversation,
        grant: Grant,
        now: float,
        spare: int,
        batch: Sequence[tuple[Conversation, Item]],
        demanding: Container[int],
    ) -> tuple[Item, list[Waiting]] | None:
        """Prepare, and make room for it where there is none."""
        ledger = conversation.ledger
        while True:
            try:
                made = conversation.prepare(grant, now, spare=spare)
                if ledger is not None:
                    ledger.prepared(conversation.granted, made is not None)
                return made
            except PoolFullError:
                if ledger is not None:
                    ledger.prepared(grant, False, was_full=True)
                if self.checks.drop():
                    continue
                if not conversation.is_drafting and self._make_room(conversation, batch, demanding):
                    continue
                if conversation.edit is None or not conversation.edit.splicing.give_up():
                    raise

    def _make_room(
        self,
        conversation: Conversation,
        batch: Sequence[tuple[Conversation, Item]],
        demanding: Container[int],
    ) -> bool:
        """Free some pages: of prefixes that nobody uses, of a draft, of a session that rests, of one behind this.

        Whoever goes on in the next step does not rest: its cache has just come back, maybe at the cost of this one's.
        """
        if self.backend.release_prefixes(PREFIX_PAGES):
            return True
        taken = {other.number for other, _ in batch} | {conversation.number}
        others = [
            other for other in self.conversations.values() if other.number not in taken and other.kv_tokens
        ]
        drafting = [other for other in others if other.is_drafting]
        resting = drafting or [other for other in others if other.number not in demanding]
        # Whoever opened first always gets on, so that two sessions cannot push each other out for ever.
        behind = [
            other for other in others if other.number in demanding and other.number > conversation.number
        ]
        if resting:
            self._evict(min(resting, key=lambda other: (self._last_worked[other.number], other.number)))
        elif behind:
            self._evict(max(behind, key=lambda other: other.number))
            if self.metrics is not None:
                self.metrics.preempted()
        else:
            return False
        return True

    def _somebody_else_holds(self, conversation: Conversation) -> bool:
        return any(other is not conversation and other.kv_tokens for other in self.conversations.values())

    def _compute(self, batch: Sequence[tuple[Conversation, Item]], report: StepReport, now: float) -> None:
        """The forward, and what comes of it."""
        began = time.perf_counter()
        try:
            with self.tracer.start_as_current_span(
                "braid.forward", attributes={"sessions": len(batch), "tokens": report.num_tokens}
            ):
                results = self.backend.step([item for _, item in batch])
        except BaseException as error:
            results = [ItemResult(error=error)] * len(batch)
            if not isinstance(error, Exception):
                self._finish(batch, results, report, now)
                raise
        report.forward_s = time.perf_counter() - began
        self._finish(batch, results, report, now)

    def _finish(
        self,
        batch: Sequence[tuple[Conversation, Item]],
        results: Sequence[ItemResult],
        report: StepReport,
        now: float,
    ) -> None:
        with self.lock:
            self._is_computing = False
            self.backend.apply(self._put_off)
            self._put_off = []
            for (conversation, _), result in zip(batch, results, strict=True):
                if conversation.is_closed:
                    continue
                error = result.error
                if error is None:
                    try:
                        self._advance(conversation, result, now + report.forward_s)
                        continue
                    except Exception as mistake:  # noqa: BLE001 (of ours: it must not harm the others)
                        error = mistake
                # The cache lacks keys that the books have: this session cannot go on, the others can.
                report.failures.append((conversation, error))
                self._fail(conversation, as_braid_error(error))

    def _compute_check(self, item: Item) -> None:
        """A forward in which no session takes part."""
        result = ItemResult(error=EngineError("it was interrupted"))
        try:
            (result,) = self.backend.step([item])
        except Exception as error:  # noqa: BLE001 (it concerns nobody)
            result = ItemResult(error=error)
        finally:
            with self.lock:
                self._is_computing = self._is_checking = False
                self.backend.apply(self._put_off)
                self._put_off = []
                self.checks.advance(result)

    def _advance(self, conversation: Conversation, result: ItemResult, now: float) -> None:
        """Give a session its answers, and enter the rows that were computed ahead."""
        answers, ledger = result.answers, conversation.ledger
        while True:
            mark = conversation.record.mark()
            told, answers = answers[: conversation.num_asked], answers[conversation.num_asked :]
            conversation.advance(told)
            conversation.keep_prefixes()
            if ledger is not None:
                ledger.told(mark, told)
            if self.metrics is not None and conversation.is_first_due and conversation.edit is None:
                self._note_first_tokens(conversation, now, self.metrics)
            if ledger is not None:
                ledger.begin_step(conversation.ahead.at)
            is_ahead = conversation.step_ahead()
            if ledger is not None and is_ahead:
                ledger.prepared(EVERYTHING, True)
            if ledger is not None:
                ledger.end_step()
            if not is_ahead:
                return

    @staticmethod
    def _note_first_tokens(conversation: Conversation, now: float, metrics: EngineMetrics) -> None:
        first, answer = conversation.first_tokens(now)
        if first is not None:
            metrics.first_token(first)
        if answer is not None:
            metrics.first_answer_token(answer)

    @staticmethod
    def _publish(conversations: Sequence[Conversation], publish: Publish | None) -> None:
        if publish is not None:
            publish([conversation for conversation in conversations if conversation.record.has_news])

    def _apply(self, ops: Sequence[Op]) -> list[int]:
        """Hand operations to the backend; during a forward they wait, so that no page is pulled away from it."""
        if self._is_computing:
            self._put_off += ops
            return [0] * len(ops)
        answers = self.backend.apply(ops)
        for op, answer in zip(ops, answers, strict=True):
            if isinstance(op, Recall):
                conversation = self.conversations.get(op.session)
                if conversation is not None and conversation.ledger is not None:
                    conversation.ledger.recalled.append(answer)
        return answers


def require_guesses_of(whose: GuessesOf) -> None:
    """Refuse what is no choice of guesses.

    Raises:
        InputError
    """
    if whose not in get_args(GuessesOf):
        raise InputError(f"guesses is {whose!r}; it is one of {', '.join(get_args(GuessesOf))}")


def _count(figures: StepFigures, conversation: Conversation, item: Item, num_read: int) -> None:
    """Add an item's tokens to the figures, by what they are."""
    total = item.num_tokens
    if conversation.is_evicted:
        figures.recomputed_tokens += total
        return
    probes = sum(1 for entry in item.entries if not entry.keep)
    template = sum(len(entry.token_ids) for entry in item.entries if entry.span not in conversation.labels)
    figures.input_tokens += num_read
    figures.probe_tokens += probes
    figures.prefill_tokens += template


def _urgency(demand: Demand, is_draft: bool) -> tuple[bool, int, int]:
    return is_draft, min(demand.row_priority, demand.input_priority), demand.session


def _one_a_beginning(demands: Sequence[Demand], by_number: Mapping[int, Conversation]) -> list[Demand]:
    """Of sessions that would compute the same closed prefix, the most urgent one; the others recall it afterwards."""
    first: dict[Hashable, Demand] = {}
    chosen: list[Demand] = []
    for demand in sorted(demands, key=lambda d: _urgency(d, by_number[d.session].is_drafting)):
        beginning = by_number[demand.session].beginning
        if beginning is None or first.setdefault(beginning, demand) is demand:
            chosen.append(demand)
    return chosen


def as_braid_error(error: BaseException) -> BraidError:
    """The error itself, or one of ours that says that the forward failed."""
    if isinstance(error, BraidError):
        return error
    return EngineError(f"a forward pass failed ({type(error).__name__}: {error}); the session is closed")
