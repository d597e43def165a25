"""Drafts keep to their share of idle time, and wait until nobody types; an engine that is replayed decides alike."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.backend import Item
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, replay
from braid.engine.metrics import EngineMetrics
from braid.engine.pace import SAVED_S, DraftPace
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec
from tests.engine.live import House, views

STEP_S = 0.05
"""What a forward takes, by the fake clock."""


class Clock:
    """A clock that forwards move, and whoever waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float = STEP_S) -> None:
        self.now = 0.0
        self.step_s = step_s
        monkeypatch.setattr("braid.engine.core.time", SimpleNamespace(perf_counter=lambda: self.now))

    def pass_one(self, item: Item) -> None:
        self.now += self.step_s


def core_of(clock: Clock, share: float, **given: Any) -> EngineCore:
    backend = NullBackend(NullModel(codec(), silence_token_id=SILENCE), fail=clock.pass_one)
    return EngineCore(backend, policy=SchedulerPolicy(draft_share=share), **given)


def run(core: EngineCore, clock: Clock, *conversations: Conversation, until: float) -> tuple[float, int]:
    """Do what the loop does until a moment; returns the seconds in forwards, and how often it was asked in vain."""
    busy, num_vain = 0.0, 0
    while clock.now < until:
        report = core.step(conversations, now=clock.now)
        busy += report.seconds
        if not report.worked:
            num_vain += 1
            clock.now = min([*report.held.values(), until])
    return busy, num_vain


# ---- the purse


@given(
    share=st.floats(0.01, 0.99),
    moves=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 0.4), st.booleans()), max_size=60),
)
def test_no_stretch_of_idle_time_has_more_drafts_than_its_share(
    share: float, moves: list[tuple[float, float, bool]]
) -> None:
    """Whatever comes when: in every stretch without a paying step at most its share, a second's worth, and a step."""
    pace, now = DraftPace(share), 0.0
    began, spent, longest = 0.0, 0.0, 0.0
    for pause, seconds, is_paying in moves:
        now += pause
        if is_paying:
            pace.took(now, seconds=seconds, is_draft=False)
            now += seconds
            began, spent, longest = now, 0.0, 0.0
            continue
        due = pace.due(now)
        assert due >= now
        now = due
        assert pace.due(now) == now, "whoever comes back when it is due may draft"
        pace.took(now, seconds=seconds, is_draft=True)
        now += seconds
        spent, longest = spent + seconds, max(longest, seconds)
        assert spent <= share * (now - began + SAVED_S) + longest + 1e-4


def test_a_whole_share_never_waits() -> None:
    pace = DraftPace(1.0)
    for second in range(50):
        pace.took(float(second), seconds=5.0, is_draft=True)
        assert pace.due(second + 0.5) == second + 0.5


@pytest.mark.parametrize("share", [0, -0.5, 1.5, float("nan"), "half"])
def test_a_share_is_above_0_and_at_most_1(share: Any) -> None:
    with pytest.raises(InputError, match="draft_share"):
        SchedulerPolicy(draft_share=share)


# ---- in the engine


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_drafts_compute_their_share_of_idle_time(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    clock = Clock(monkeypatch)
    metrics = EngineMetrics()
    core = core_of(clock, share, metrics=metrics)
    conversation = core.open(views(), most_drafted=10_000)
    core.do(conversation, "snapshot", {"user": "Say something long."}, now=clock.now)
    busy, num_vain = run(core, clock, conversation, until=20.0)
    assert busy == pytest.approx(share * 20, abs=SAVED_S * share + 2 * STEP_S)
    assert num_vain <= busy / STEP_S + 2, "it is asked about once a step"
    assert metrics.snapshot()["braid_draft_seconds_total"] == pytest.approx(busy)


def test_nobody_who_pays_waits_for_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit of a session whose drafts were held back is answered at once, and earns the drafts nothing."""
    clock = Clock(monkeypatch)
    core = core_of(clock, 0.1)
    drafting, paying = (core.open(views(max_tokens=40)) for _ in range(2))
    core.do(drafting, "snapshot", {"user": "Say something."}, now=clock.now)
    run(core, clock, drafting, until=10.0)
    core.do(paying, "tell", {"user": "Say it."}, now=clock.now)
    before = clock.now
    while not paying.turn_is_over:
        core.step([drafting, paying], now=clock.now)
    num_steps = (clock.now - before) / STEP_S
    assert num_steps <= 45
    assert core.pace.due(clock.now) <= clock.now + STEP_S / 0.1 + 1e-6
    core.do(drafting, "commit", now=clock.now)
    before = clock.now
    while not drafting.turn_is_over:
        assert core.step([drafting], now=clock.now).held == {}
    assert clock.now - before <= 45 * STEP_S


def test_outputs_wait_until_nobody_types_and_reading_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, step_s=0.01)
    core = core_of(clock, 1.0)
    conversation = core.open(views(), draft_after=0.5)
    text = ""
    for letter in "Hello there":
        text += letter
        core.do(conversation, "snapshot", {"user": text}, now=clock.now)
        run(core, clock, conversation, until=clock.now + 0.2)
        assert conversation.stage.input("user").read_text == text
        assert conversation.edit is not None
        assert conversation.edit.num_drafted <= 1, "but for the token that reading brings"
        assert conversation.draft is not None
        assert not conversation.draft.rests
    core.do(conversation, "snapshot", {"user": text}, now=clock.now)  # which is no new one
    typed_at = clock.now - 0.2
    assert core.step([conversation], now=clock.now).held == {
        conversation.number: pytest.approx(typed_at + 0.5)
    }
    run(core, clock, conversation, until=typed_at + 0.49)
    assert conversation.edit.num_drafted <= 1
    run(core, clock, conversation, until=typed_at + 0.6)
    assert conversation.edit.num_drafted > 1


def test_a_commit_waits_for_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, step_s=0.01)
    core = core_of(clock, 1.0)
    conversation = core.open(views(max_tokens=5), draft_after=100.0)
    core.do(conversation, "snapshot", {"user": "Say"}, now=clock.now)
    run(core, clock, conversation, until=1.0)
    core.do(conversation, "commit", {"user": "Say it"}, now=clock.now)
    for _ in range(12):
        core.step([conversation], now=clock.now)
    assert conversation.turn_is_over
    assert clock.now < 2


def test_nothing_is_waited_for_where_the_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, step_s=0.01)
    core = core_of(clock, 1.0)
    conversation = core.open(views(), draft_after=0.5, most_drafted=0)
    core.do(conversation, "snapshot", {"user": "Say"}, now=clock.now)
    for _ in range(3):
        report = core.step([conversation], now=clock.now)
    assert not report.worked
    assert report.held == {}


@settings(max_examples=30)
@given(seed=st.integers(0, 10**9))
def test_the_journal_replays_what_drafts_were_held_back(seed: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        journal = Journal()
        core = core_of(clock, rng.choice([0.1, 0.4, 0.9]), journal=journal)
        draft_after = rng.choice([0.0, 0.3])
        sessions = [core.open(views(max_tokens=12), draft_after=draft_after, seed=n) for n in range(3)]
        num_held = 0
        for _ in range(60):
            conversation = rng.choice(sessions)
            clock.step_s = rng.uniform(0.001, 0.3)
            kind = rng.random()
            if kind < 0.2 and conversation.turn_is_over:
                text = "".join(rng.choices("abc ", k=4)) + "x"
                core.do(conversation, "snapshot", {"user": text}, now=clock.now)
            elif kind < 0.25 and conversation.is_drafting:
                core.do(conversation, "commit", now=clock.now)
            elif kind < 0.3:
                clock.now += rng.uniform(0, 2)
            else:
                num_held += len(core.step(sessions, now=clock.now).held)
        again = replay(core_of(clock, core.pace.share), journal.entries)
    for conversation in sessions:
        assert again[conversation.number].transcript.entries == conversation.transcript.entries
        assert again[conversation.number].draft == conversation.draft


# ---- in the engine's thread


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.anyio
async def test_the_thread_sleeps_while_drafts_wait_and_goes_on_by_itself() -> None:
    journal = Journal()
    given = {"draft_after": 0.4, "most_drafted": 30}
    async with House(journal=journal) as house, house.open(views(max_tokens=40), **given) as session:
        await session.snapshot("Say it")
        draft = None
        with anyio.fail_after(30):
            while draft is None or not draft.texts["output"]:
                draft = await session.next_draft(draft)
            while not draft.rests:
                draft = await session.next_draft(draft)
                assert draft is not None
        steps = [entry for entry in journal.entries if entry["event"] == "step"]
        early = [entry for entry in steps if entry["now"] < steps[0]["now"] + 0.35]
        assert len(early) <= 15, "it is not asked over and over"
        reply = await session.commit()
        assert reply["output"].startswith(draft.texts["output"])


@pytest.mark.anyio
async def test_the_thread_drafts_a_share_of_the_time() -> None:
    def slow(item: Item) -> None:
        import time

        time.sleep(0.02)

    journal = Journal()
    policy = SchedulerPolicy(draft_share=0.2)
    house = House(fail=slow, journal=journal, policy=policy)
    async with house, house.open(views(), most_drafted=10_000) as session:
        await session.snapshot("Say it")
        await anyio.sleep(2.0)
        steps = [entry for entry in journal.entries if entry["event"] == "step"]
        num_made = sum(bool(entry["batch"]) for entry in steps)
        assert 5 <= num_made <= (0.2 * (steps[-1]["now"] + SAVED_S)) / 0.02 + 5
        assert len(steps) - num_made <= num_made + 5
