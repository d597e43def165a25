"""Turns that took something over are computed again while nobody waits, and nobody hears of it but the metrics."""

from __future__ import annotations

import random
from typing import Any

import pytest

from braid.engine.backend import Item, ItemResult, Op, Splice
from braid.engine.core import EngineCore
from braid.engine.editing.checking import Checks
from braid.engine.journal import Journal, replay
from braid.engine.local import LocalBackend
from braid.engine.loop import EngineLoop
from braid.engine.metrics import EngineMetrics
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.sessions.generate import ALONE
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.editing.test_editable import aloud, plain
from tests.engine.editing.test_splicing import prose
from tests.engine.harness import stock
from tests.engine.live import engine_threads, eventually

TEXT = prose(random.Random(3), 260)
EDITED = TEXT[:40] + "X" + TEXT[40:150] + "YZ" + TEXT[150:]


class Bench:
    """A core that checks all turns, and its figures."""

    def __init__(self, share: float = 1.0, **settings: Any) -> None:
        self.metrics = EngineMetrics()
        self.backend = LocalBackend(stock(), **{"kv_tokens": 2048, "page_size": 8, **settings})
        self.journal = Journal()
        self.core = EngineCore(
            self.backend, policy=ALONE, metrics=self.metrics, check_share=share, journal=self.journal
        )

    def open(self, topology: Topology | None = None, **settings: Any) -> Conversation:
        return self.core.open(topology or plain(), **{"seed": 9, "drift_bound": 9.0, **settings})

    def edit(self, conversation: Conversation, *, mode: str = "repair") -> None:
        """A turn that takes something over, up to its commit."""
        for text in (TEXT, EDITED):
            self.core.do(conversation, "snapshot", {"user": text}, mode)
            for _ in range(12):
                self.core.step([conversation])
        self.core.do(conversation, "commit")

    def answer(self, conversation: Conversation, *, mode: str = "repair") -> None:
        """A whole turn."""
        self.edit(conversation, mode=mode)
        self.until_over(conversation)

    def until_over(self, *conversations: Conversation) -> None:
        for _ in range(200):
            if all(c.turn_is_over for c in conversations):
                return
            report = self.core.step(conversations)
            self.backend.cache.pool.check_integrity()
            assert not report.failures
        raise AssertionError("the turn does not end")

    def idle(self) -> None:
        """Steps in which nobody has anything to do."""
        for _ in range(200):
            if not self.core.checks.has_work:
                return
            report = self.core.step(list(self.core.conversations.values()))
            assert not report.worked
            self.backend.cache.pool.check_integrity()
        raise AssertionError("it does not end")

    def counted(self, name: str) -> float:
        return self.metrics.snapshot()[name]

    @property
    def outcomes(self) -> tuple[float, float, float]:
        """Inside, outside, dropped."""
        inside, outside, dropped = (
            self.counted(f'braid_edit_checks_total{{outcome="{outcome}"}}')
            for outcome in ("inside", "outside", "dropped")
        )
        return inside, outside, dropped


# ---- the comparison


@pytest.mark.parametrize("topology", [plain(), plain(1.0), aloud(1.0)], ids=["greedy", "sampled", "aloud"])
def test_what_was_taken_over_is_compared_with_what_is_right(topology: Topology) -> None:
    bench = Bench()
    conversation = bench.open(topology)
    bench.answer(conversation)
    assert bench.core.checks.has_work
    assert bench.outcomes == (0, 0, 0)
    bench.idle()
    assert bench.outcomes == (1, 0, 0)
    assert conversation.counts is not None
    assert bench.counted("braid_edit_check_estimate_sum") == pytest.approx(conversation.counts.drift)
    assert 0 < bench.counted("braid_edit_check_drift_sum") < 1.5
    answers = [
        bench.counted(f'braid_edit_check_answers_total{{answer="{a}"}}') for a in ("same", "different")
    ]
    assert sum(answers) == 1
    assert bench.counted("braid_edit_check_tokens_total") > len(EDITED)
    assert set(bench.backend.sessions) == {conversation.number}


def test_a_turn_of_other_messages_is_computed_again_behind_them() -> None:
    bench = Bench()
    conversation = bench.open()
    before = [{"role": "user", "content": "Say."}, {"role": "assistant", "content": "So."}]
    for text in (TEXT, EDITED):
        messages = [*before, {"role": "user", "content": text}]
        bench.core.do(conversation, "snapshot", {}, "repair", messages)
        for _ in range(16):
            bench.core.step([conversation])
    bench.core.do(conversation, "commit")
    bench.until_over(conversation)
    bench.idle()
    assert bench.outcomes == (1, 0, 0)
    assert bench.counted("braid_edit_check_drift_sum") < 1.5
    assert bench.counted('braid_edit_check_answers_total{answer="same"}') == 1


class Corrupt(LocalBackend):
    """What is taken over is not what was put aside."""

    def _apply(self, op: Op) -> int:
        result = super()._apply(op)
        if isinstance(op, Splice):
            span = self.sessions[op.session].named[op.span]
            slots = span.pages.slots(len(span) - (op.stop - op.start), len(span))
            for tensor in (*self.cache.keys_KSD, *self.cache.values_KSD):
                tensor[:, slots] *= -3.0
        return result


def test_what_is_broken_is_outside_of_its_bound_and_answered_otherwise() -> None:
    bench = Bench()
    bench.backend = Corrupt(stock(), kv_tokens=2048, page_size=8)
    bench.core = EngineCore(bench.backend, policy=ALONE, metrics=bench.metrics, check_share=1.0)
    bench.answer(bench.open(drift_bound=1.5))
    bench.idle()
    assert bench.outcomes == (0, 1, 0)
    assert bench.counted("braid_edit_check_drift_sum") == pytest.approx(4.0, abs=0.5)
    assert bench.counted('braid_edit_check_answers_total{answer="different"}') == 1


def test_what_has_not_drifted_is_found_to_be_right() -> None:
    """What was put aside is put back by exactly what a fresh session computes."""
    bench = Bench()
    conversation = bench.open()
    core = bench.core
    core.do(conversation, "snapshot", {"user": EDITED}, "repair")
    for _ in range(12):
        core.step([conversation])
    # The one character in the middle goes, and comes back before anything behind it could be taken over.
    core.do(conversation, "snapshot", {"user": EDITED[:40] + EDITED[41:]}, "repair")
    core.step([conversation])
    core.do(conversation, "snapshot", {"user": EDITED}, "repair")
    for _ in range(12):
        core.step([conversation])
    core.do(conversation, "commit")
    bench.until_over(conversation)
    bench.idle()
    assert bench.outcomes == (1, 0, 0)
    assert bench.counted("braid_edit_check_estimate_sum") < 1e-5
    assert bench.counted("braid_edit_check_drift_sum") < 1e-5
    assert bench.counted('braid_edit_check_answers_total{answer="same"}') == 1


def test_a_second_turn_is_checked_behind_the_first_one() -> None:
    bench = Bench()
    conversation = bench.open()
    bench.core.do(conversation, "tell", {"user": "Say it."})
    bench.until_over(conversation)
    bench.core.step([conversation])
    bench.core.evict(conversation)
    bench.answer(conversation)
    bench.idle()
    assert bench.outcomes == (1, 0, 0)
    assert 0 < bench.counted("braid_edit_check_drift_sum") < 1.5


# ---- which turns


def test_exact_turns_need_no_check() -> None:
    bench = Bench()
    bench.answer(bench.open(), mode="exact")
    assert not bench.core.checks.has_work
    assert bench.counted("braid_edit_check_tokens_total") == 0


def test_a_share_of_turns_is_drawn_and_the_same_ones_each_time() -> None:
    def drawn(seed: int) -> list[bool]:
        checks = Checks(LocalBackend(stock(), kv_tokens=64), lambda ops: [0] * len(ops), seed=seed)
        return [checks.draw(number, turn) < 0.3 for number in range(50) for turn in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 240 < sum(drawn(1)) < 360


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="check_share"):
        Bench(share=2.0)
    bench = Bench(share=0.0)
    bench.answer(bench.open())
    assert not bench.core.checks.has_work


# ---- giving way


def test_nobody_who_has_anything_to_do_waits_for_a_check() -> None:
    bench = Bench()
    conversation, other = bench.open(), bench.open()
    bench.answer(conversation)
    assert bench.core.checks.has_work
    bench.core.do(other, "tell", {"user": "Say it."})
    while not other.turn_is_over:
        before = bench.counted("braid_edit_check_tokens_total")
        report = bench.core.step([conversation, other])
        if report.demanding:
            assert bench.counted("braid_edit_check_tokens_total") == before
    bench.core.do(other, "snapshot", {"user": "Say something."})
    for _ in range(4):
        before = bench.counted("braid_edit_check_tokens_total")
        report = bench.core.step([conversation, other])
        assert report.worked, "a draft goes first, too"
        assert bench.counted("braid_edit_check_tokens_total") == before
    bench.core.do(other, "rollback")
    bench.idle()
    assert bench.outcomes == (1, 0, 0)


def test_a_check_in_the_way_is_dropped_before_anybody_loses_anything() -> None:
    bench = Bench(kv_tokens=640)
    conversation, other = bench.open(), bench.open()
    bench.answer(conversation)
    while bench.backend.usage().pages_used < 65:
        bench.core.step([conversation, other])
    bench.core.do(other, "tell", {"user": prose(random.Random(1), 220)})
    bench.until_over(other)
    assert bench.outcomes == (0, 0, 1)
    assert bench.counted('braid_evictions_total{what="session"}') == 0
    assert not [number for number in bench.backend.sessions if number < 0]


def test_a_check_that_finds_no_room_is_dropped() -> None:
    bench = Bench(kv_tokens=700)
    conversation, other = bench.open(), bench.open()
    bench.answer(conversation)
    bench.core.do(other, "tell", {"user": prose(random.Random(1), 320)})
    while any(lane.queue for lane in other.stage.inputs):
        bench.core.step([other])  # it is not over then, and nobody asks it what it has to do
    for _ in range(20):
        bench.core.step([conversation])
    assert bench.outcomes == (0, 0, 1)
    bench.until_over(other)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_a_session_that_is_closed_or_evicted_is_checked_all_the_same(steps: int) -> None:
    bench = Bench()
    for verb in ("close", "evict"):
        conversation = bench.open()
        bench.edit(conversation)
        for _ in range(steps):
            bench.core.step([conversation])
        if verb == "evict":
            bench.core.evict(conversation)
            bench.until_over(conversation)
        else:
            bench.core.do(conversation, "close")
    bench.idle()
    inside, outside, dropped = bench.outcomes
    assert (outside, dropped) == (0, 0)
    assert inside == (2 if steps else 0), "before the release nothing is taken over for good"


def test_what_comes_in_between_ends_what_is_compared() -> None:
    """What is forced, or cut short, does not follow from what was committed."""
    bench = Bench()
    long = StreamSpec(
        direction="output", sampling=SamplingSpec(temperature=1.0, seed=3), max_tokens=40, wait_k="end"
    )
    topology = plain().with_specs({"output": long})
    conversation = bench.open(topology, most_drafted=2)
    bench.edit(conversation)
    for _ in range(6):
        bench.core.step([conversation])
    assert not conversation.turn_is_over
    bench.core.do(conversation, "force", "output", "zzzz")
    bench.until_over(conversation)
    bench.idle()
    assert bench.outcomes == (1, 0, 0)


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_check_that_fails_or_is_closed_concerns_nobody(is_failing: bool) -> None:
    bench = Bench()
    conversation = bench.open()
    bench.answer(conversation)
    bench.core.step([conversation])
    step = bench.backend.step
    if is_failing:

        def fail(items: list[Item]) -> list[ItemResult]:
            raise RuntimeError("broken")

        bench.backend.step = fail  # pyright: ignore[reportAttributeAccessIssue]
        report = bench.core.step([conversation])
        assert not report.failures
        bench.backend.step = step
    else:
        bench.core.checks.close()
    assert bench.outcomes == (0, 0, 1)
    assert set(bench.backend.sessions) == {conversation.number}
    bench.core.do(conversation, "tell", {"user": "Say it."})
    bench.until_over(conversation)


# ---- what nobody hears


def test_neither_events_nor_ledger_nor_journal_tell_of_it() -> None:
    def run(share: float) -> tuple[list[str], list[Any], Bench]:
        bench = Bench(share)
        conversation = bench.open(ledger=[])
        bench.answer(conversation)
        for _ in range(30):
            bench.core.step([conversation])
        bench.core.do(conversation, "tell", {"user": "Say it."})
        bench.until_over(conversation)
        return [str(news) for news in conversation.take_news()], bench.journal.entries, bench

    quiet, checked = run(0.0), run(1.0)
    assert checked[2].outcomes == (1, 0, 0)
    assert quiet[:2] == checked[:2]
    again = EngineCore(LocalBackend(stock(), kv_tokens=2048, page_size=8), policy=ALONE)
    (found,) = replay(again, checked[1]).values()
    assert found.transcript.entries == checked[2].core.conversations[0].transcript.entries


# ---- by itself


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("ending", ["stays", "leaves", "shuts down"])
async def test_the_engine_checks_by_itself_while_nobody_waits(ending: str) -> None:
    metrics = EngineMetrics()
    backend = LocalBackend(stock(), kv_tokens=2048, page_size=8)
    loop = EngineLoop(backend, metrics=metrics, check_share=1.0)
    seat = loop.start(plain(), {"seed": 9, "drift_bound": 9.0})
    for text in (TEXT, EDITED):
        loop.push(seat.number, "snapshot", {"user": text}, "repair")
        await eventually(
            lambda text=text: (draft := seat.look_at_draft()) is not None and draft.rests | draft.is_complete
        )
    loop.push(seat.number, "commit")
    await eventually(lambda: seat.look().turn == 1)

    def outcomes() -> list[float]:
        figures = metrics.snapshot()
        return [
            figures[f'braid_edit_checks_total{{outcome="{o}"}}'] for o in ("inside", "outside", "dropped")
        ]

    if ending == "leaves":
        loop.abort(seat.number)
    if ending != "shuts down":
        await eventually(lambda: outcomes() == [1, 0, 0])
    await loop.aclose()
    await eventually(lambda: not engine_threads())
    assert sum(outcomes()) == 1
    assert not loop.core.checks.has_work
    backend.cache.pool.check_integrity()
