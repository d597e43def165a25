"""Whatever happens to many sessions in whatever order: the books balance, the logits are the oracle's, nothing leaks.

Two machines make up lives of sessions, verb by verb and step by step, and look at everything after each:

    RealLife   a tiny trained model in float64; at the end, every logit of every session equals the dense oracle's
    NullLife   a backend without a network, rows and views mixed, in a pool that is full most of the time; at the end,
               the journal of it all, replayed on a fresh engine, gives the same transcripts
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from braid.cache import PageList
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, replay
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session import ground as ground_module
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import LedgerLine, as_event
from braid.errors import BraidError, CacheError, InputError, PoolTooSmallError, RegimeError, SessionError
from braid.streams.events import TurnEvent
from braid.streams.patterns import Striped, Window
from braid.streams.stream_spec import AdaptiveWait, Trigger
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, chatty, codec, trained
from tests.engine.witness import TOLERANCE, WitnessCore, check_books, held_tokens, state_of

MOST = 4
"""Sessions that may be open at a time: few, so that much happens to each."""

CHUNK = 8
"""Tokens of a piece of a refill: few, so that much happens to sessions that are half refilled."""

texts = st.sampled_from(["a", "hi ", "hello ", "hello there, ", "the same beginning, and then more of it. "])
which = st.integers(0, 99)
verbs = st.sampled_from(["end", "flush", "interrupt", "cancel", "force", "force_text", "close_stream"])
policies = st.builds(
    SchedulerPolicy,
    step_tokens=st.sampled_from([6, 40, 2048]),
    chunk_tokens=st.sampled_from([4, 32]),
    min_chunk_tokens=st.just(4),
    seed=st.integers(0, 2),
)


def lines_of(conversation: Conversation) -> list[Any]:
    """Its ledger, as it comes back from a store."""
    news = conversation.record._news
    return json.loads(json.dumps([piece.line for piece in news if isinstance(piece, LedgerLine)]))


def events_of(conversation: Conversation) -> list[Any]:
    """What has happened; what reading ahead has cost is not in the ledger."""
    events = [as_event(news) for news in conversation.record._news if not isinstance(news, LedgerLine)]
    return [e.model_copy(update={"reuse": None}) if isinstance(e, TurnEvent) else e for e in events]


def lasting(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """What of a session's state outlives a process: all but what the cache holds, and when its input was written."""
    entries, _, _, inputs, outputs, turn, is_over, is_closed, _, num_awaited = state
    inputs = [(label, [w._replace(at=0.0) for w in queue], *rest) for label, queue, *rest in inputs]
    return entries, inputs, outputs, turn, is_over, is_closed, num_awaited


class Life(RuleBasedStateMachine):
    """What both machines do; they differ in the engine, the topologies, and what must hold at the end."""

    core: EngineCore
    topologies: tuple[Topology, ...]

    def __init__(self) -> None:
        super().__init__()
        self.sessions: list[Conversation] = []
        self.past: dict[int, list[Any]] = {}
        """Lines of the ledgers of sessions that were moved, from before that."""
        self.settings_of: dict[int, dict[str, Any]] = {}
        self.foreign: list[PageList] = []
        self.was_crowded = False
        self.now = 0.0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ground_module, "REFILL_CHUNK", CHUNK)

    # ---- who there is

    @property
    def open_sessions(self) -> list[Conversation]:
        return list(self.core.conversations.values())

    def some(self, index: int) -> Conversation:
        """Any session, closed ones too, so that verbs meet them; most often one that is open."""
        pool = self.open_sessions * 3 + [c for c in self.sessions if c.is_closed][-1:]
        return pool[index % len(pool)]

    def do(self, conversation: Conversation, verb: str, *arguments: Any) -> None:
        """A verb either works, or raises what it may and changes nothing."""
        before = state_of(self.core, conversation)
        try:
            self.core.do(conversation, verb, *arguments, now=self.now)
        except (InputError, SessionError, PoolTooSmallError):
            assert state_of(self.core, conversation) == before, verb

    def set_out(self) -> None:
        """One session that has something to do, of each kind."""
        for number, topology in enumerate(self.topologies[1:3]):
            self.sessions.append(self.core.open(topology, seed=number, ledger=()))
            self.settings_of[self.sessions[-1].number] = {"seed": number}
            self.core.do(self.sessions[-1], "write", topology.input_names[0], "to begin with, ")
            self.core.do(self.sessions[-1], "end")

    # ---- rules

    @precondition(lambda self: len(self.core.conversations) < MOST)
    @rule(index=which, seed=st.integers(0, 3), salt=st.sampled_from(["", "", "other"]), forces=st.booleans())
    def open(self, index: int, seed: int, salt: str, forces: bool) -> None:
        topology = self.topologies[index % len(self.topologies)]
        copies = {n: 2 for n, s in topology.streams.items() if s.max_streams > 1 and seed % 2}
        settings = {"seed": seed, "copies": copies, "salt": salt, "forces_answers": forces}
        opened = self.core.open(topology, ledger=(), now=self.now, **settings)
        self.settings_of[opened.number] = settings
        self.sessions.append(opened)

    @precondition(lambda self: self.sessions)
    @rule(index=which, stream=which, text=texts, ends=st.booleans(), count=st.integers(0, 9))
    def write(self, index: int, stream: int, text: str, ends: bool, count: int) -> None:
        conversation = self.some(index)
        names = conversation.topology.input_names
        self.do(conversation, "write", names[stream % len(names)], text)
        if ends:
            self.do(conversation, "end")
        for _ in range(count):
            self.step_once([conversation])

    @precondition(lambda self: self.sessions)
    @rule(
        index=which,
        stream=which,
        text=texts,
        verb=st.sampled_from(["snapshot", "snapshot", "snapshot", "commit", "rollback"]),
        mode=st.sampled_from(["exact", "repair", "reuse"]),
        count=st.integers(0, 6),
    )
    def edit(self, index: int, stream: int, text: str, verb: str, mode: str, count: int) -> None:
        """A turn whose input changes, and is committed or taken back."""
        conversation = self.some(index)
        names = conversation.topology.input_names
        given = {names[stream % len(names)]: text}
        if verb == "snapshot":
            self.do(conversation, "snapshot", given, mode)
        elif verb == "commit":
            self.do(conversation, "commit", given if stream % 2 else None)
        else:
            self.do(conversation, "rollback")
        for _ in range(count):
            self.step_once([conversation])

    @precondition(lambda self: self.sessions)
    @rule(index=which, lane=which, verb=verbs)
    def say(self, index: int, lane: int, verb: str) -> None:
        self.say_to(self.some(index), lane, verb)

    def say_to(self, conversation: Conversation, lane: int, verb: str) -> None:
        labels = [*(other.label for other in conversation.table.lanes), "nobody"]
        label = labels[lane % len(labels)]
        if verb == "force_text":
            self.do(conversation, "force", label, "so ")
        elif verb in ("interrupt", "cancel", "end") and label == "nobody":
            self.do(conversation, verb)
        else:
            self.do(conversation, verb, label)

    @precondition(lambda self: self.sessions)
    @rule(index=which, comes=st.booleans())
    def tool(self, index: int, comes: bool) -> None:
        self.do(self.some(index), "result_came" if comes else "await_result")

    @precondition(lambda self: self.sessions)
    @rule(index=which, is_meant=st.integers(0, 3))
    def close(self, index: int, is_meant: int) -> None:
        """Not often: lives are to be long."""
        conversation = self.some(index)
        if is_meant and not conversation.is_closed:
            return
        self.core.do(conversation, "close")
        assert held_tokens(self.core, conversation) == 0

    @precondition(lambda self: 0 < len(self.core.conversations) < MOST)
    @rule(index=which)
    def fork(self, index: int) -> None:
        source = self.open_sessions[index % len(self.core.conversations)]
        if source.edit is not None:
            with pytest.raises(RegimeError):
                self.core.fork(source)
            return
        twin = self.core.fork(source)
        assert twin.transcript == source.transcript
        self.sessions.append(twin)

    @precondition(lambda self: self.sessions)
    @rule(index=which, count=st.integers(0, 3), lane=which, verb=st.none() | verbs)
    def evict(self, index: int, count: int, lane: int, verb: str | None) -> None:
        """Out of the cache, some of the way back, and then something happens."""
        conversation = self.some(index)
        self.core.evict(conversation)
        assert conversation.kv_tokens == held_tokens(self.core, conversation) == 0
        for _ in range(count):
            self.step_once([conversation])
        if verb is not None:
            self.say_to(conversation, lane, verb)
            for _ in range(6):
                self.step_once([conversation])

    @precondition(lambda self: any(c.ledger is not None for c in self.open_sessions))
    @rule(index=which, is_torn=st.booleans(), count=st.integers(0, 9))
    def move(self, index: int, is_torn: bool, count: int) -> None:
        """Another process goes on with it; maybe from before the last forward had answered."""
        old = [c for c in self.open_sessions if c.ledger is not None]
        source = old[index % len(old)]
        lines = self.past.get(source.number, []) + lines_of(source)
        events, state = events_of(source), state_of(self.core, source)
        if not lines or source.edit is not None:
            return  # nothing has happened to it, or nothing that another process would know
        is_torn = is_torn and lines[-1][0] == "told"
        if is_torn:
            del lines[-1]
        settings = self.settings_of[source.number]
        self.core.do(source, "close")
        moved = self.core.open(source.topology, ledger=lines, now=self.now, **settings)
        self.settings_of[moved.number] = settings
        self.sessions.append(moved)
        self.past[moved.number] = lines
        assert lines_of(moved) == [["resumed", self.now]]
        assert moved.is_evicted
        assert moved.kv_tokens == held_tokens(self.core, moved) == 0
        if not is_torn:
            assert events_of(moved) == events
            assert lasting(state_of(self.core, moved)) == lasting(state)
        for _ in range(count):
            self.step_once([moved])

    @precondition(lambda self: self.sessions)
    @rule(keep=st.integers(0, 3), count=st.integers(1, 6), stays=st.integers(0, 3))
    def exhaust(self, keep: int, count: int, stays: int) -> None:
        """Somebody else takes all pages but a few, for some steps, or for longer."""
        taken = self.pool.num_free - keep
        if taken <= 0:
            return
        self.was_crowded = True
        self.foreign.append(self.pool.new_list())
        self.foreign[-1].grow(taken * self.pool.page_size)
        for _ in range(count):
            self.step_once(self.open_sessions)
        if stays:
            self.foreign.pop().release()

    @precondition(lambda self: self.foreign)
    @rule()
    def relax(self) -> None:
        self.foreign.pop().release()

    @precondition(lambda self: self.sessions)
    @rule(mask=st.integers(1, 255), count=st.integers(1, 6), seconds=st.sampled_from([0.0, 0.01, 1.0]))
    def step(self, mask: int, count: int, seconds: float) -> None:
        """Some of the sessions step, several times."""
        chosen = [c for index, c in enumerate(self.sessions[::-1]) if mask >> index % 8 & 1]
        for _ in range(count):
            self.now += seconds
            self.step_once(chosen)

    def step_once(self, chosen: list[Conversation]) -> bool:
        report = self.core.step(chosen, now=self.now)
        check_books(self.core)
        for conversation, error in report.failures:
            assert isinstance(error, CacheError), error
            assert not conversation.is_closed, "there was no forward that could have failed"
        return report.worked

    # ---- what must hold

    @property
    def pool(self) -> Any:
        backend: Any = self.core.backend
        return backend.pool if isinstance(backend, NullBackend) else backend.cache.pool

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "core"):
            check_books(self.core)

    def teardown(self) -> None:
        try:
            if hasattr(self, "core"):
                self.end_of_days()
        finally:
            self.patch.undo()

    def end_of_days(self) -> None:
        """Everybody hears one last word, and answers: what was evicted comes back for that."""
        while self.foreign:
            self.foreign.pop().release()
        self.everybody_comes_to_rest()
        self.at_the_end()
        for conversation in self.open_sessions:
            self.core.do(conversation, "close")
        backend: Any = self.core.backend
        prefixes = getattr(backend, "prefixes", None)
        assert self.pool.num_used == (0 if prefixes is None else prefixes.num_pages)
        self.core.close()
        self.pool.check_integrity()
        assert self.pool.num_used == 0 and not self.pool.lists

    def everybody_comes_to_rest(self) -> None:
        """Nobody is stuck: with the pool to themselves, all get on, or fail for want of a larger one."""
        for conversation in self.open_sessions:
            for name in conversation.topology.input_names:
                if conversation.edit is not None:
                    self.do(conversation, "commit", {name: "the end "})
                self.do(conversation, "write", name, "the end ")
            self.do(conversation, "end")
        for _ in range(3000):
            report = self.core.step(self.open_sessions, now=self.now)
            check_books(self.core)
            for conversation, error in report.failures:
                assert isinstance(error, CacheError), error
                assert isinstance(error, BraidError)
                self.core.fail(conversation, error)
            if not report.worked and not any(c.has_work for c in self.open_sessions):
                return
        stuck = [(c.number, c.t, c.is_evicted) for c in self.open_sessions if c.has_work]
        raise AssertionError(f"sessions never came to rest: {stuck}")

    def at_the_end(self) -> None:
        raise NotImplementedError


# ---- with a network


def world(**changes: Any) -> Topology:
    streams = {
        "system": StreamSpec(direction="input", feed="burst", priority="high"),
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", sampling=chatty(3.0), max_tokens=9),
        "output": StreamSpec(direction="output", sampling=chatty(3.0), max_tokens=7),
    }
    return Topology(streams=streams, **changes)


WORLDS = (
    world(),
    world(same_row="none", silence="kept"),
    world(
        reads={"thought": ["user"], "output": ["system", "user", "thought"]},
        patterns={"output": {"thought": Window(3)}, "thought": {"user": Striped(2, 1)}},
    ),
)


def variants(topology: Topology) -> tuple[Topology, ...]:
    """What sessions of one checkpoint may differ in."""
    streams = topology.streams
    burst = {"user": streams["user"].model_copy(update={"feed": "burst"})}
    late = {"output": streams["output"].model_copy(update={"wait_k": "end"})}
    slow = {"user": streams["user"].model_copy(update={"max_latency_ms": 500})}
    return (
        topology,
        topology.with_specs({**burst, **late}),
        topology.with_specs(burst),
        topology.with_specs(slow),
    )


class RealLife(Life):
    core: WitnessCore

    @initialize(
        topology=st.sampled_from(WORLDS),
        policy=policies,
        share=st.sampled_from([0.0, 0.5]),
        kv_tokens=st.sampled_from([96, 400]),
    )
    def begin(self, topology: Topology, policy: SchedulerPolicy, share: float, kv_tokens: int) -> None:
        self.core = WitnessCore(trained(topology), policy=policy, kv_tokens=kv_tokens, prefix_share=share)
        self.topologies = variants(topology)
        self.set_out()

    def at_the_end(self) -> None:
        for conversation in self.sessions:
            if self.core.was_asked(conversation):
                assert self.core.difference(conversation) <= TOLERANCE, conversation.number


# ---- without one


def in_rows(**changes: Any) -> Topology:
    streams = {
        "user": StreamSpec(direction="input", feed=changes.pop("feed", None)),
        "thought": StreamSpec(direction="output", visibility="internal", max_tokens=8, max_streams=2),
        "tool_call": StreamSpec(
            direction="output", visibility="internal", max_tokens=3, trigger=Trigger(on="thought")
        ),
        "output": StreamSpec(direction="output", max_tokens=6, wait_k=changes.pop("wait_k", 2)),
    }
    return Topology(streams=streams, **changes)


def in_views(**changes: Any) -> Topology:
    streams = {
        "document": StreamSpec(direction="input", priority="low"),
        "user": StreamSpec(direction="input", priority="high", feed=changes.pop("feed", None)),
        "thought": StreamSpec(
            direction="output",
            visibility="internal",
            max_tokens=8,
            wait_k=3,
            max_streams=2,
            instructions="think",
        ),
        "output": StreamSpec(direction="output", max_tokens=6, wait_k=changes.pop("wait_k", "end")),
    }
    return Topology(decoding="views", streams=streams, **changes)


class NullLife(Life):
    topologies = (
        in_rows(),
        in_rows(feed="burst", silence="kept"),
        in_views(),
        in_views(feed="paced", wait_k=AdaptiveWait(threshold=0.5, max=6), system="be brief"),
        in_views(wait_k=AdaptiveWait(threshold=0.9, max=4, measure="input")),
    )

    @initialize(
        policy=policies, kv_tokens=st.sampled_from([80, 160, 600]), confidence=st.sampled_from([0.1, 1.0])
    )
    def begin(self, policy: SchedulerPolicy, kv_tokens: int, confidence: float) -> None:
        self.settings = {"policy": policy, "kv_tokens": kv_tokens, "confidence": confidence}
        self.journal = Journal()
        self.core = self.engine(self.journal)
        self.set_out()

    def engine(self, journal: Journal | None = None) -> EngineCore:
        backend = NullBackend(
            NullModel(codec(), silence_token_id=SILENCE),
            kv_tokens=self.settings["kv_tokens"],
            page_size=4,
            confidence=self.settings["confidence"],
        )
        return EngineCore(backend, policy=self.settings["policy"], journal=journal)

    def at_the_end(self) -> None:
        if self.was_crowded:  # the journal does not know of others who took pages
            return
        again = replay(self.engine(), self.journal.entries)
        for conversation in self.sessions:
            assert again[conversation.number].transcript == conversation.transcript


def _settings(examples: int, steps: int) -> settings:
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None)


RealLife.TestCase.settings = _settings(16, 40)
NullLife.TestCase.settings = _settings(100, 50)

TestRealLife = RealLife.TestCase
TestNullLife = NullLife.TestCase


class LongRealLife(RealLife):
    """The same for longer."""


class LongNullLife(NullLife):
    """The same for longer."""


LongRealLife.TestCase.settings = _settings(int(os.environ.get("BRAID_LIVES", "150")), 50)
LongNullLife.TestCase.settings = _settings(int(os.environ.get("BRAID_LIVES", "150")) * 8, 60)

TestLongRealLife = pytest.mark.slow(LongRealLife.TestCase)
TestLongNullLife = pytest.mark.slow(LongNullLife.TestCase)
