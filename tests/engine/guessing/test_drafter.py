"""A small model drafts for a large one: fewer forwards after a commit, the same answers, no harm from its errors."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import pytest
from prometheus_client import generate_latest

from braid.engine.backend import Draw, Item
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, replay
from braid.engine.local import LocalBackend
from braid.engine.loop import EngineLoop
from braid.engine.metrics import EngineMetrics
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.record import LedgerLine
from braid.model.chat import Chat
from braid.sessions.session import Engine, Session
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.testing import NullBackend, NullModel
from tests.engine.editing.test_editable import TOPOLOGIES, plain
from tests.engine.harness import SILENCE, codec, stock
from tests.engine.live import engine_threads, eventually, rows, views

pytestmark = pytest.mark.anyio

SLOW = SchedulerPolicy(draft_share=1e-9)
"""An engine that reads and drafts next to nothing ahead by itself."""

ROOM = {"kv_tokens": 2048}


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def null(speak: Any = None, **given: Any) -> Engine:
    """A drafter without a network, which speaks another tokenizer's words as far as anybody can tell."""
    model = NullModel(codec(), silence_token_id=SILENCE)
    return Engine.over(EngineLoop(NullBackend(model, speak=speak, **given)))


@asynccontextmanager
async def engine(drafter: Any = None, **given: Any) -> AsyncIterator[Engine]:
    """A large engine, that of its drafter shut down with it; nothing may be left of either."""
    async with Engine(stock(), **{**ROOM, "policy": SLOW, **given}, drafter=drafter) as large:
        yield large
    if isinstance(drafter, Engine):
        loop: Any = drafter.backend
        await eventually(lambda: not loop._seats)
        await drafter.aclose(drain=False)
    await eventually(lambda: not engine_threads())


def is_told_all(large: Engine, session: Session, text: str) -> bool:
    """Whether the large engine was told a whole draft of the answer to a text."""
    loop: Any = large.backend
    twin = loop._drafter._twins.get(session._opened().number)
    draft = None if twin is None else twin.handle.look_at_draft()
    if draft is None or not draft.is_complete or dict(draft.inputs) != {"user": text}:
        return False
    is_told = twin.told is not None and twin.told.texts == {"user": text}
    return is_told and twin.suggested.get("output", 0) == len(draft.texts["output"]) + 1


async def expected(topology: Topology, *texts: str) -> list[dict[str, str]]:
    async with Engine(stock(), **ROOM) as alone, alone.open(topology, seed=9, input="editable") as session:
        return [dict((await session.commit(text)).texts) for text in texts]


def fluent(draw: Draw) -> int:
    """Twenty-five letters and an end, the same whoever says them; the tokens of a random network are no text."""
    return 97 + (draw.index * draw.index + draw.seed) % 26 if draw.index < 25 else 257


class Pair:
    """A large engine and its drafter, neither with a network."""

    def __init__(self, speak: Any = fluent, *, helps: bool = True) -> None:
        self.small = null(speak=speak)
        model = NullModel(codec(), silence_token_id=SILENCE)
        self.metrics = EngineMetrics()
        self.loop = EngineLoop(
            NullBackend(model, speak=fluent),
            policy=SLOW,
            metrics=self.metrics,
            drafter=self.small.backend if helps else None,
        )
        self.large = Engine.over(self.loop)

    @property
    def steps(self) -> float:
        return self.metrics.snapshot()["braid_steps_total"]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *trace: object) -> None:
        for engine in (self.large, self.small):
            await engine.aclose(drain=False)
        await eventually(lambda: not engine_threads())


@pytest.mark.parametrize("helps", [True, False])
async def test_a_drafter_that_is_as_good_leaves_nothing_but_to_verify(helps: bool) -> None:
    """About twenty-six forwards without it, a few with it; in later turns, too."""
    said = "".join(chr(fluent(Draw(SamplingSpec(), "output", 9, 0, index, {}))) for index in range(25))
    opening: dict[str, Any] = {"draft_after": 0.0} if helps else {"most_drafted": 0, "guesses": "none"}
    async with Pair(helps=helps) as pair, pair.large.open(views(), seed=9, **opening) as session:
        for text in ("Say it.", "Say more."):
            await session.snapshot(text[:3])
            await session.snapshot(text)
            if helps:
                await eventually(lambda: is_told_all(pair.large, session, text))  # noqa: B023
            before = pair.steps
            reply = await session.commit()
            assert reply["output"] == said
            assert reply.reuse is not None
            if helps:
                assert reply.reuse.accepted >= 20
                assert pair.steps - before <= 8
            else:
                assert reply.reuse.accepted == 0
                assert pair.steps - before >= 24


async def test_a_twin_knows_what_the_large_one_has_said() -> None:
    """And not what it would have said itself."""
    async with Pair(speak=_letter) as pair, pair.large.open(views(), seed=9, draft_after=0.0) as session:
        first = await session.commit("Say it.")
        await session.snapshot("Say more.")
        await eventually(
            lambda: histories(pair.small) == [[("user", "Say it."), ("assistant", first["output"])]]
        )


def histories(engine: Engine) -> list[list[tuple[str, str]]]:
    """What was said before the input, as the sessions of an engine know it."""
    loop: Any = engine.backend
    conversations = [seat.conversation for seat in list(loop._seats.values())]
    return [[(m.role, m.content) for m in c.stage.preamble.history] for c in conversations]


async def test_a_twin_is_told_the_messages_that_its_session_is_told() -> None:
    """Those before the last one, too, whenever they change; what was taken back is not told any more."""
    chat = Chat.of([user("What I was opened with."), *answered("What I said."), user("x")])
    before = Chat(chat.history)
    opened = [("user", "What I was opened with."), ("assistant", "What I said.")]
    async with Pair() as pair, pair.large.open(views(), chat=before, draft_after=0.0) as session:
        for first in ("Hello.", "Hello?"):
            await session.snapshot(messages=[user(first), *answered("Hi."), user("Say it.")])
            await eventually(lambda: histories(pair.small) == [[("user", first), ("assistant", "Hi.")]])  # noqa: B023
            await eventually(lambda: is_told_all(pair.large, session, "Say it."))
        await session.snapshot("Say more.")
        await eventually(lambda: is_told_all(pair.large, session, "Say more."))
        assert histories(pair.small) == [[("user", "Hello?"), ("assistant", "Hi.")]]
        await session.rollback()
        await session.snapshot("Say it.")
        await eventually(lambda: histories(pair.small) == [opened])
        await eventually(lambda: is_told_all(pair.large, session, "Say it."))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answered(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "native"])
async def test_a_drafter_that_talks_nonsense_changes_nothing(name: str) -> None:
    topology = TOPOLOGIES[name](1.0)
    texts = ("Say it.", "Again, please.")
    want = await expected(topology, *texts)
    async with engine(null()) as large, large.open(topology, seed=9, draft_after=0.0) as session:
        for text, answer in zip(texts, want, strict=True):
            for length in range(3, len(text), 3):
                await session.snapshot(text[:length])
                await anyio.sleep(0.02)
            reply = await session.commit(text)
            assert dict(reply.texts) == answer


async def test_several_at_once_are_answered_as_alone_and_the_journal_replays_it() -> None:
    topology = plain(1.0)
    texts = [f"Say it {number} times." for number in range(5)]
    want = [(await expected(topology, text))[0] for text in texts]
    journal, found = Journal(), dict[int, dict[str, str]]()
    policy = SchedulerPolicy(draft_share=0.5)
    async with engine(Engine(stock(), **ROOM), policy=policy, journal=journal) as large:

        async def talk(number: int) -> None:
            async with large.open(topology, seed=9, draft_after=0.01) as session:
                for length in range(1, len(texts[number]), 4):
                    await session.snapshot(texts[number][:length])
                    await anyio.sleep(0.01)
                found[number] = dict((await session.commit(texts[number])).texts)

        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(talk, number)
    assert [found[number] for number in range(5)] == want
    again = replay(EngineCore(LocalBackend(stock(), **ROOM), policy=policy), journal.entries)
    assert sorted(c.transcript.text("output") for c in again.values()) == sorted(w["output"] for w in want)


async def test_what_goes_wrong_with_a_twin_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A forward that fails, an engine without a seat, one that is shut down: no session hears of it."""
    (want,) = await expected(plain(), "Say it.")

    def fail(item: Item) -> None:
        raise RuntimeError("the small network fell over")

    shut = null()
    await shut.aclose()
    for drafter in (null(fail=fail), shut):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "braid"):
            async with engine(drafter) as large:
                for number in (1, 2):
                    async with large.open(plain(), seed=9, draft_after=0.0) as session:
                        await session.snapshot("Say it.")
                        await eventually(lambda: errors(large) >= number)  # noqa: B023
                        assert dict((await session.commit("Say it.")).texts) == want
        assert len(caplog.records) == 1


def errors(large: Engine) -> float:
    assert large.metrics is not None
    return sum(n for name, n in large.metrics.snapshot().items() if name.startswith("braid_drafter_errors"))


async def test_what_a_drafter_takes_is_told_with_the_figures_of_its_engine() -> None:
    policy = SchedulerPolicy(draft_share=0.5)
    async with engine(stock(), policy=policy) as large, large.open(plain(), draft_after=0.0) as session:
        metrics = large.metrics
        assert metrics is not None
        assert metrics.snapshot()["braid_drafter_tokens_total"] == 0
        await session.snapshot("Say it.")
        await eventually(lambda: metrics.snapshot()["braid_drafter_tokens_total"] > len("Say it."))
        figures = metrics.snapshot()
        assert figures["braid_drafter_seconds_total"] > 0
        assert figures["braid_drafter_kv_capacity_bytes"] >= figures["braid_drafter_kv_used_bytes"] > 0
        assert b"braid_drafter_seconds_total" in generate_latest(metrics.registry), "as a server tells it"


async def test_a_twin_has_the_budget_of_its_session() -> None:
    small = null(speak=_letter)
    async with engine(small) as large, large.open(plain(), draft_after=0.0, most_drafted=4) as session:
        await session.snapshot("Say it.")
        loop: Any = small.backend
        await eventually(lambda: loop._seats)
        (seat,) = loop._seats.values()
        await eventually(lambda: (draft := seat.look_at_draft()) is not None and draft.rests)
        assert len(seat.look_at_draft().texts["output"]) <= 5


def _letter(draw: Draw) -> int:
    return 97


async def test_a_twin_goes_with_its_session_and_with_what_was_taken_back() -> None:
    small = null(speak=_letter)
    loop: Any = small.backend
    async with engine(small) as large:
        async with large.open(plain(), draft_after=0.0) as session:
            await session.snapshot("Say it.")
            await eventually(lambda: len(loop._seats) == 1)
            await session.rollback()
            await eventually(lambda: not loop._seats)
            await session.snapshot("Say it.")
            await eventually(lambda: len(loop._seats) == 1)
        await eventually(lambda: not loop._seats)


async def test_native_rows_have_no_drafter() -> None:
    small = null()
    loop: Any = small.backend
    large = EngineLoop(NullBackend(NullModel(codec(), silence_token_id=SILENCE)), drafter=loop)
    async with Engine.over(large) as served, served.open(rows(), input="editable") as session:
        await session.snapshot("Say it.")
        await eventually(lambda: session.draft() is not None)
        assert not loop._seats


async def test_a_session_of_another_process_goes_on_with_a_drafter() -> None:
    """Also one whose first output is closed, which nothing can be suggested to any more."""
    topology = TOPOLOGIES["aloud"]()
    async with engine(None) as first:
        loop: Any = first.backend
        seat = loop.start(topology, {"seed": 9, "ledger": []})
        loop.push(seat.number, "close_stream", "thought")
        lines = [news.line for news in seat.mailbox._news if isinstance(news, LedgerLine)]
    assert lines
    async with engine(null()) as second:
        loop = second.backend
        seat = loop.start(topology, {"seed": 9, "ledger": lines})
        loop.push(seat.number, "snapshot", {"user": "Say it."}, "exact")
        loop.push(seat.number, "commit", {"user": "Say it!"}, "exact")
        await eventually(lambda: seat.look().turn == 1)
        assert seat.transcript.text("output")
