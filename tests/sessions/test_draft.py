"""What a session would answer to a snapshot can be seen before the commit, and is what it answers then."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.session.conversation import Conversation
from braid.errors import InputError, SessionClosedError
from braid.sessions.session import Engine
from tests.engine.editing.test_editable import TOPOLOGIES, core_for, edited, finish, plain
from tests.engine.harness import step, stock
from tests.properties import examples

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def said(conversation: Conversation) -> dict[str, str]:
    return {lane.label: conversation.transcript.text(lane.label) for lane in conversation.stage.outputs}


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_complete_draft_is_what_is_said_after_the_commit(name: str, seed: int) -> None:
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](1.0)
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    stream = topology.input_names[0]
    text = "so"
    for _ in range(rng.randint(1, 4)):
        before, text = text, edited(rng, text) or "so"
        core.do(conversation, "snapshot", {stream: text})
        assert conversation.draft is None or text == before, "nothing is drafted of it yet"
        for _ in range(rng.choice((0, 2, 60))):
            step(core, conversation)
            seen = conversation.draft
            assert seen is None or seen.inputs == {stream: text}
    draft = conversation.draft
    core.do(conversation, "commit")
    finish(core, conversation)
    assert conversation.draft is None
    for label, whole in {} if draft is None else said(conversation).items():
        assert whole.startswith(draft.texts[label])
        assert whole == draft.texts[label] or not draft.is_complete
    if draft is not None and draft.is_complete:
        assert conversation.counts is not None
        used = conversation.counts.computed - conversation.counts.wasted
        assert used - draft.num_tokens <= 2, "no more than the end of the turn is computed"


def test_a_draft_rests_when_its_budget_is_used_up() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, most_drafted=3)
    core.do(conversation, "snapshot", {"user": "So"})
    for _ in range(20):
        step(core, conversation)
    draft = conversation.draft
    assert draft is not None
    assert draft.rests
    assert not draft.is_complete
    core.do(conversation, "rollback")
    assert conversation.draft is None


async def test_drafts_are_waited_for() -> None:
    async with Engine(stock(), kv_tokens=2048) as engine:
        session = engine.open(plain(), input="editable")
        with pytest.raises(SessionClosedError, match="async with"):
            session.draft()
        async with session:
            assert session.draft() is None
            await session.snapshot("Say it")
            draft: Any = None
            seen: list[str] = []
            with anyio.fail_after(60):
                while draft is None or not draft.is_complete:
                    draft = await session.next_draft(draft)
                    seen.append(draft.texts["output"])
                assert session.draft() == draft
                assert all(seen[-1].startswith(text) for text in seen)
                assert session.text("output") == ""
                reply = await session.commit()
                assert reply["output"] == draft.texts["output"]

                async def close() -> None:
                    await anyio.sleep(0.05)
                    await session.close()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(close)
                    assert await session.next_draft() is None


@pytest.mark.parametrize(
    "settings",
    [
        {"draft_after": -0.1},
        {"draft_after": float("nan")},
        {"most_drafted": -1},
        {"drift_bound": -1},
        {"guesses": "all"},
    ],
)
def test_what_a_draft_cannot_be_opened_with(settings: dict[str, Any]) -> None:
    engine = Engine(stock(), kv_tokens=2048)
    with pytest.raises(InputError, match=next(iter(settings))):
        engine.open(plain(), **settings)


@pytest.mark.parametrize(("bound", "is_taken_over"), [(9.0, True), (0.0, False)])
async def test_the_bound_of_the_drift_is_the_callers(bound: float, is_taken_over: bool) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve " * 8
    async with (
        Engine(stock(), kv_tokens=8192) as engine,
        engine.open(plain(), seed=9, most_drafted=1, draft_after=0.0, drift_bound=bound) as session,
    ):
        await session.snapshot({"user": text})
        draft = await session.next_draft()
        while draft is not None and not draft.rests:  # all of it has been read once it rests
            draft = await session.next_draft(draft)
        reuse = (await session.commit({"user": f"zero {text}"}, mode="repair")).reuse
    assert reuse is not None
    assert (reuse.drift is not None) == is_taken_over
