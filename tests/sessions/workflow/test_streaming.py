"""The result of a run while it is written: piece by piece the same as whole, and nothing of it is taken back."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.errors import EditAfterConsumed, EmptyInputError, SessionClosedError, StageError
from braid.sessions.session import Engine
from braid.sessions.workflow import Function, Prompt, Run, StreamedResult, Workflow
from braid.streams.sampling import SamplingSpec
from tests.engine.harness import stock
from tests.properties import examples

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


SAMPLING = SamplingSpec(temperature=1.0)


def prompts(**settings: Any) -> Workflow:
    return Workflow(
        Prompt("first", "A: {question}", sampling=SAMPLING, max_tokens=5, seed=3),
        Prompt("second", "B: {question} {first}", sampling=SAMPLING, max_tokens=24, seed=4),
        inputs=["question"],
        **settings,
    )


async def read(answer: StreamedResult, most: int = 1000) -> None:
    """Read so many pieces, and fail at the next one."""
    async with answer:
        async for _ in answer:
            most -= 1
            if not most:
                raise ZeroDivisionError


async def leave(answer: StreamedResult) -> None:
    async with answer:
        pass


async def pieces_of(run: Run, inputs: str | None = None) -> tuple[list[str], Any]:
    async with run.stream(inputs) as answer:
        pieces = [text async for text in answer]
    return pieces, answer.result


@settings(max_examples=examples(6), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_the_pieces_are_the_result(seed: int) -> None:
    rng = random.Random(seed)
    workflow = prompts()

    async def run() -> None:
        async with Engine(stock(), kv_tokens=4096) as engine, workflow.open(engine) as run:
            for text in ("Why", "So it goes", "Why"):
                await run.snapshot(text[:-1])
                await anyio.sleep(rng.choice([0, 0.02]))
                if rng.random() < 0.4:
                    await run.snapshot(text)
                    await run.settled()
                pieces, result = await pieces_of(run, text)
                assert "".join(pieces) == result.output
                assert all(pieces)
                assert result.outputs == (await workflow.run(engine, text)).outputs

    anyio.run(run)


async def test_an_answer_comes_in_pieces() -> None:
    async with Engine(stock(), kv_tokens=4096) as engine, prompts().open(engine, most_drafted=0) as run:
        pieces, result = await pieces_of(run, "Why?")
        assert len(pieces) > 3
        assert run.plan()["second"].state == "done"
        assert result.output == "".join(pieces)


async def test_what_was_known_before_comes_at_once() -> None:
    async with Engine(stock(), kv_tokens=4096) as engine, prompts().open(engine) as run:
        await run.snapshot("Why?")
        await run.settled()
        pieces, result = await pieces_of(run)
        assert pieces == [result.output]


async def test_what_is_no_text_is_told_as_json() -> None:
    workflow = Workflow(Function("count", lambda question: {"n": len(question)}), inputs=["question"])
    async with workflow.open() as run:
        assert (await pieces_of(run, "Why?"))[0] == ['{"n": 4}']


async def test_nothing_is_told_before_all_that_the_last_stage_reads_is_there() -> None:
    """And while a side effect behind it is still under way, its text is told."""
    may_go = anyio.Event()

    async def send(second: str) -> str:
        await may_go.wait()
        return second

    workflow = Workflow(
        *prompts().stages.values(), Function("send", send, pure=False), inputs=["question"], result="second"
    )
    async with Engine(stock(), kv_tokens=4096) as engine, workflow.open(engine, most_drafted=0) as run:
        heard = ""
        async with run.stream("Why?") as answer:
            async for text in answer:
                heard += text
                assert run.plan()["first"].output is not None
                may_go.set()
        assert heard == answer.result.output


@pytest.mark.parametrize("reads_on", [True, False])
async def test_what_fails_is_raised_once_as_it_is(reads_on: bool) -> None:
    def fail(second: str) -> str:
        raise ValueError("no")

    workflow = Workflow(*prompts().stages.values(), Function("send", fail, pure=False), inputs=["question"],
                        result="second")  # fmt: skip
    async with Engine(stock(), kv_tokens=4096) as engine, workflow.open(engine) as run:
        answer = run.stream("Why?")
        with pytest.raises(StageError, match="stage send: no"):
            await read(answer) if reads_on else await leave(answer)
        with pytest.raises(StageError):
            _ = answer.result
        with pytest.raises(StageError):
            await run.commit()


async def test_mistakes_are_those_of_a_commit() -> None:
    async with Engine(stock(), kv_tokens=4096) as engine, prompts().open(engine) as run:
        with pytest.raises(EmptyInputError):
            await pieces_of(run)
        async with run.stream("Why?") as answer:
            with pytest.raises(EditAfterConsumed):
                await run.snapshot("So?")
        assert answer.result.output


async def test_whoever_leaves_by_an_error_ends_the_commit() -> None:
    async with Engine(stock(), kv_tokens=4096) as engine, prompts().open(engine) as run:
        answer = run.stream("Why?")
        with pytest.raises(ZeroDivisionError):
            await read(answer, most=1)
        with pytest.raises(SessionClosedError):
            _ = answer.result
        assert (await run.commit("Why?")).output
