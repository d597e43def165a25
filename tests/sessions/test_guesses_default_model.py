"""Who else may guess what the default model says: earlier requests of a tenant, and a model that drafts for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from braid.model.model import Model
from braid.sessions.session import Engine
from tests.engine.guessing.test_drafter import SLOW, is_told_all
from tests.engine.live import eventually
from tests.sessions.test_editable_default_model import NUM_TOKENS, QUESTIONS, core_for, drive, plain

pytestmark = pytest.mark.slow

SIMILAR = "What is the capital of France, and what is it famous for?"


def asked(
    model: Model, temperature: float, *requests: tuple[str, dict[str, Any]]
) -> Iterator[tuple[int, str]]:
    """Forwards and answer of each of several requests, one after another on one engine."""
    core = core_for(model)
    for text, settings in requests:
        conversation = core.open(plain(temperature), seed=9, **settings)
        before = core.num_steps
        core.do(conversation, "tell", {"user": text})
        drive(core, conversation)
        yield core.num_steps - before, conversation.transcript.text("output")
        core.do(conversation, "close")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_tenant_that_asks_again_waits_for_a_few_forwards(smollm2: Model, temperature: float) -> None:
    shared = {"salt": "a", "guesses": "tenant"}
    first, again, stranger, alone = asked(
        smollm2,
        temperature,
        (QUESTIONS[0], shared),
        (QUESTIONS[0], shared),
        (QUESTIONS[0], {**shared, "salt": "b"}),
        (QUESTIONS[0], {"salt": "a"}),
    )
    assert {first[1], again[1], stranger[1], alone[1]} == {first[1]}
    assert first[0] == stranger[0] == alone[0] >= NUM_TOKENS
    assert again[0] <= first[0] / 3


def test_a_similar_request_gains_where_the_answers_agree(smollm2: Model) -> None:
    shared = {"salt": "a", "guesses": "tenant"}
    _, after = asked(smollm2, 0.0, (QUESTIONS[0], shared), (SIMILAR, shared))
    (alone,) = asked(smollm2, 0.0, (SIMILAR, {}))
    assert after[1] == alone[1]
    assert after[0] < alone[0]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_model_that_drafts_leaves_few_forwards(smollm2: Model, temperature: float) -> None:
    topology = plain(temperature)

    async def answer(is_helped: bool) -> tuple[float, str]:
        async with (
            Engine(smollm2, kv_tokens=2048) as small,
            Engine(smollm2, kv_tokens=2048, policy=SLOW, drafter=small if is_helped else None) as engine,
            engine.open(topology, seed=9, draft_after=0.0, input="editable") as session,
        ):
            await session.snapshot(QUESTIONS[4][:30])
            await session.snapshot(QUESTIONS[4])
            if is_helped:
                await eventually(lambda: is_told_all(engine, session, QUESTIONS[4]))
            assert engine.metrics is not None
            before = engine.metrics.snapshot()["braid_steps_total"]
            reply = await session.commit()
            return engine.metrics.snapshot()["braid_steps_total"] - before, reply["output"]

    without = anyio.run(answer, False)
    helped = anyio.run(answer, True)
    assert helped[1] == without[1]
    assert without[0] >= NUM_TOKENS - 4
    assert helped[0] <= without[0] / 3
