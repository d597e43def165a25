"""A run gives what it gives without anything ahead, whatever was typed before; and it leaves nothing behind."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.loop import EngineLoop
from braid.errors import (
    EditAfterConsumed,
    EmptyInputError,
    InputError,
    SessionClosedError,
    StageError,
    UnknownStreamError,
)
from braid.sessions.session import Engine
from braid.sessions.workflow import Function, Prompt, Workflow
from braid.streams.sampling import SamplingSpec
from braid.testing import NullBackend, NullModel
from tests.engine.harness import codec, stock

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


def sessions_of(engine: Engine) -> int:
    backend = engine.backend
    assert isinstance(backend, EngineLoop)
    return len(backend._seats)


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not is_so():  # noqa: ASYNC110 (what is waited for rings no bell)
            await anyio.sleep(0.005)


def prompts(temperature: float = 0.0) -> Workflow:
    """Three prompts and a function, on a model with random weights."""
    sampling = SamplingSpec(temperature=temperature)
    return Workflow(
        Prompt("first", "A: {question}", sampling=sampling, max_tokens=5, seed=3),
        Prompt("second", "B: {question} {first}", sampling=sampling, max_tokens=5, seed=4),
        Function("length", lambda first, second: len(first) * 100 + len(second)),
        Prompt("third", "C: {second} {length}", sampling=sampling, max_tokens=5, seed=5),
        inputs=["question"],
    )


def edited(rng: random.Random, text: str) -> str:
    place = rng.randint(0, len(text))
    return (
        text[:place] + rng.choice(["a", "é✓", " so", ""]) + text[min(len(text), place + rng.randint(0, 2)) :]
    )


# ---- the same result


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@settings(max_examples=4)
@given(seed=st.integers(0, 10**9))
def test_a_run_gives_what_it_gives_without_anything_ahead(temperature: float, seed: int) -> None:
    rng = random.Random(seed)
    workflow = prompts(temperature)

    async def run() -> None:
        async with Engine(stock(), kv_tokens=4096) as engine, workflow.open(engine) as run:
            for _ in range(2):
                text = "Why"
                for _ in range(rng.randint(0, 4)):
                    text = edited(rng, text) or "so"
                    await run.snapshot(text)
                    await anyio.sleep(rng.choice([0, 0, 0.02]))
                    if rng.random() < 0.3:
                        await run.settled()
                result = await run.commit(text)
                assert result.outputs == (await workflow.run(engine, text)).outputs
                assert sessions_of(engine) == 0

    anyio.run(run)


class Slow:
    """Functions that take their time, and count their calls."""

    def __init__(self, seconds: Callable[[], float] = lambda: 0.0) -> None:
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.running = 0
        self.most_running = 0
        self._seconds = seconds

    def __call__(self, name: str) -> Callable[..., Any]:
        async def call(*values: Any) -> str:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await anyio.sleep(self._seconds())
            finally:
                self.running -= 1
            self.calls[(name, *map(str, values))] += 1
            return f"{name}({','.join(map(str, values))})"

        return call


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9))
def test_side_effects_happen_once_whatever_was_typed(seed: int) -> None:
    rng = random.Random(seed)
    slow = Slow(lambda: rng.choice([0, 0, 0.001, 0.002]))
    sent: list[str] = []

    def send(both: str) -> int:
        sent.append(both)
        return len(sent)

    workflow = Workflow(
        Function("left", slow("left"), reads=["a"]),
        Function("right", slow("right"), reads=["b", "left"]),
        Function("both", slow("both"), reads=["left", "right"], stable_s=rng.choice([0, 0.001])),
        Function("send", send, pure=False),
        Function("told", slow("told"), reads=["send"]),
        inputs=["a", "b"],
    )

    async def run() -> None:
        async with workflow.open(max_parallel=rng.choice([1, 2])) as run:
            for number in range(1, 3):
                texts = {"a": "", "b": ""}
                for _ in range(rng.randint(0, 5)):
                    texts[rng.choice("ab")] = rng.choice(["x", "y", "z"])
                    await run.snapshot(texts)
                    await anyio.sleep(rng.choice([0, 0.001, 0.004]))
                assert len(sent) == number - 1, "nothing is sent before the commit"
                left = f"left({texts['a']})"
                both = f"both({left},right({texts['b']},{left}))"
                result = await run.commit(texts)
                assert (result["both"], result["send"], result.output) == (both, number, f"told({number})")
        assert len(sent) == 2
        assert slow.running == 0

    anyio.run(run)


# ---- what is kept


async def test_what_still_holds_after_an_edit_is_kept() -> None:
    slow = Slow()
    workflow = Workflow(
        Function("words", lambda question: question.split()),
        Function("count", slow("count"), reads=["words"]),
        Function("shout", slow("shout"), reads=["question"]),
        inputs=["question"],
    )
    async with workflow.open() as run:
        for text in ("how far", "how  far", "how far", "how far is it", "how far"):
            await run.snapshot(text)
            await run.settled()
        plan = run.plan()
        assert (plan["count"].starts, plan["count"].kept) == (2, 2)
        assert plan["shout"].starts == 3
        assert all(stage.state == "ahead" for stage in plan.stages)
        result = await run.commit()
        assert all(calls == 1 for calls in slow.calls.values())
        assert result.plan["shout"].starts == 3
        assert all(stage.state == "done" for stage in result.plan.stages)
        again = await run.commit("how far is it")
        assert again.plan["shout"].starts == 3, "outputs are remembered from one commit to the next"


async def test_a_stage_begins_with_the_field_that_it_reads() -> None:
    async with Engine.over(loop({"output": ['{"city": "Rome", "rest": "' + "x" * 60 + '"}']})) as engine:
        seen: list[tuple[str, bool]] = []

        def look(city: str) -> str:
            seen.append((city, run.plan()["plan"].output is None))
            return city.upper()

        workflow = Workflow(
            Prompt("plan", "{question}"),
            Function("look", look, reads={"city": "plan.city"}),
            inputs=["question"],
        )
        async with workflow.open(engine) as run:
            await run.snapshot("Where")
            await run.settled()
            assert seen == [("Rome", True)], "before the plan was complete"
            assert (await run.commit("Where?")).output == "ROME"
            assert len(seen) == 1, "the field is the same"
        seen.clear()
        async with workflow.open(engine, most_drafted=0) as run:
            assert (await run.commit("Where?")).output == "ROME"
        assert seen == [("Rome", True)], "after the commit, too"


async def test_a_field_that_never_comes_is_told_at_the_commit_alone() -> None:
    workflow = Workflow(
        Function("plan", lambda question: {"town": question}),
        Function("look", lambda city: city, reads={"city": "plan.city"}),
        inputs=["question"],
    )
    async with workflow.open() as run:
        await run.snapshot("x")
        await run.settled()
        assert "plan.city" in str(run.plan()["look"].error)
        with pytest.raises(StageError, match=r"stage look: plan.city is not in what plan has given") as told:
            await run.commit()
        assert told.value.stage == "look"


async def test_what_is_not_yet_stable_waits() -> None:
    slow = Slow()
    workflow = Workflow(Function("late", slow("late"), reads=["question"], stable_s=0.2), inputs=["question"])
    async with workflow.open() as run:
        for number in range(5):
            await run.snapshot(str(number))
            await anyio.sleep(0.01)
            assert run.plan()["late"].state == "settling"
        await run.settled()
        assert slow.calls == {("late", "4"): 1}
        assert (await run.commit("5")).seconds < 0.2, "after the commit nothing waits"


async def test_so_many_stages_are_computed_ahead_at_once() -> None:
    slow = Slow(lambda: 0.01)
    names = [f"s{number}" for number in range(6)]
    workflow = Workflow(
        *(Function(name, slow(name), reads=["question"]) for name in names), inputs=["question"]
    )
    async with workflow.open(max_parallel=2) as run:
        await run.snapshot("x")
        await run.settled()
        assert slow.most_running == 2
        await run.commit("y")
        assert slow.most_running == 6


async def test_what_is_under_way_at_the_commit_goes_on() -> None:
    slow = Slow(lambda: 0.1)
    is_down = [True]

    async def fails_once(question: str) -> str:
        was_down, is_down[0] = is_down[0], False
        await anyio.sleep(0.1)
        if was_down:
            raise OSError("down")
        return question

    workflow = Workflow(
        Function("slow", slow("slow"), reads=["question"]),
        Function("fails_once", fails_once),
        inputs=["question"],
    )
    async with workflow.open() as run:
        await run.snapshot("x")
        await until(lambda: slow.running == 1 and not is_down[0])
        result = await run.commit()
    assert result.outputs == {"slow": "slow(x)", "fails_once": "x"}
    assert slow.calls == {("slow", "x"): 1}
    assert (result.plan["slow"].starts, result.plan["fails_once"].starts) == (1, 2)


async def test_a_draft_stays_in_its_budget() -> None:
    async with Engine.over(loop({"output": ["a long answer, longer than its budget"]})) as engine:
        workflow = Workflow(Prompt("a", "{q}"), Function("n", len, reads=["a"]), inputs=["q"])
        async with workflow.open(engine, most_drafted=5) as run:
            await run.snapshot("x")
            await run.settled()
            assert run.plan()["a"].state == "resting"
            assert run.plan()["n"].waits_for == ("a",)
            assert (await run.commit()).output == 37


# ---- errors


async def test_errors_ahead_are_silent_until_the_stage_is_needed() -> None:
    is_down = True

    def fails(question: str) -> str:
        if question == "bad" or is_down:
            raise KeyError(question)
        return question

    workflow = Workflow(Function("fails", fails), inputs=["question"])
    async with workflow.open() as run:
        await run.snapshot("good")
        await run.settled()
        assert run.plan()["fails"].state == "failed"
        is_down = False
        assert (await run.commit()).output == "good"
        await run.snapshot("bad")
        await run.settled()
        with pytest.raises(StageError, match="stage fails: 'bad'") as told:
            await run.commit()
        assert isinstance(told.value.__cause__, KeyError)
        await run.snapshot("fine")
        assert (await run.commit()).output == "fine"


async def test_a_commit_that_failed_can_be_tried_again_and_sends_nothing_twice() -> None:
    sent: list[str] = []
    is_down = True

    def after(send: None, question: str) -> str:
        if is_down:
            raise OSError("down")
        return question

    workflow = Workflow(
        Function("send", lambda question: sent.append(question), pure=False),
        Function("after", after),
        inputs=["question"],
    )
    async with workflow.open() as run:
        with pytest.raises(StageError, match="stage after: down"):
            await run.commit("a")
        with pytest.raises(StageError, match="stage after: down"):
            await run.commit()
        assert sent == ["a"]
        is_down = False
        assert (await run.commit()).output == "a"
        assert sent == ["a"]
        await run.commit("a")
        assert sent == ["a", "a"], "another run"


async def test_nothing_is_sent_where_another_stage_has_failed() -> None:
    sent: list[str] = []

    async def fails(question: str) -> str:
        await anyio.sleep(0.02)
        raise OSError("down")

    workflow = Workflow(
        Function("send", lambda question: sent.append(question), pure=False),
        Function("fails", fails),
        inputs=["question"],
    )
    with pytest.raises(StageError, match="stage fails"):
        await workflow.run(None, "x")
    assert sent == []


async def test_misuse() -> None:
    slow = Slow(lambda: 0.05)
    workflow = Workflow(Function("slow", slow("slow"), reads=["a", "b"]), inputs=["a", "b"])
    run = workflow.open()
    with pytest.raises(SessionClosedError, match="async with"):
        await run.snapshot("x")
    async with run:
        await run.rollback()
        with pytest.raises(EmptyInputError, match="input a was never given"):
            await run.commit()
        with pytest.raises(UnknownStreamError, match="did you mean"):
            await run.snapshot({"bb": "x"})
        with pytest.raises(InputError, match="must be text"):
            await run.snapshot({"a": 3})  # pyright: ignore[reportArgumentType]
        await run.snapshot("x")
        with pytest.raises(EmptyInputError, match="input b"):
            await run.commit()

        async def edit() -> None:
            await anyio.sleep(0.01)
            for verb in (run.snapshot("y"), run.commit("y"), run.rollback()):
                with pytest.raises(EditAfterConsumed):
                    await verb

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(edit)
            assert (await run.commit({"b": "z"})).output == "slow(x,z)"
        with pytest.raises(EmptyInputError, match="input a"):
            await run.commit({"b": "z"})
    with pytest.raises(SessionClosedError):
        await run.snapshot("x")


async def test_an_empty_prompt_is_told_with_its_stage() -> None:
    workflow = Workflow(Prompt("first", "{question}", max_tokens=3), inputs=["question"])
    async with Engine.over(loop()) as engine, workflow.open(engine) as run:
        await run.snapshot("")
        with pytest.raises(StageError, match="stage first: the committed input is empty"):
            await run.commit()
        assert sessions_of(engine) == 0


# ---- nothing is left


def loop(script: dict[str, list[str]] | None = None, seconds: float = 0.0) -> EngineLoop:
    """An engine without a network that says the same to everything, so many seconds a forward."""
    script = script or {"output": ["one two three"]}
    backend = NullBackend(NullModel(codec()), script=script, fail=lambda _: time.sleep(seconds))
    return EngineLoop(backend)


async def test_what_is_cancelled_or_left_leaves_nothing() -> None:
    slow = Slow(lambda: 60.0)
    ended = threading.Event()

    def blocking(a: str) -> str:
        time.sleep(0.05)
        ended.set()
        return a

    workflow = Workflow(
        Prompt("a", "{q}"),
        Prompt("b", "{a} {q}"),
        Function("blocking", blocking),
        Function("slow", slow("slow"), reads=["b", "blocking"]),
        inputs=["q"],
    )
    async with Engine.over(loop()) as engine:
        async with workflow.open(engine) as run:
            await run.snapshot("x")
            await until(lambda: slow.running == 1)
            assert sessions_of(engine) == 2
            await run.rollback()
            assert sessions_of(engine) == 0
            assert run.plan()["a"].state == "waiting"
            await run.snapshot("y")
            await until(lambda: slow.running == 1)
        assert sessions_of(engine) == slow.running == 0
        with anyio.move_on_after(0.3) as scope:
            async with workflow.open(engine) as run:
                await run.commit("z")
        assert scope.cancelled_caught
        assert sessions_of(engine) == slow.running == 0
        async with workflow.open(engine) as run:
            with anyio.move_on_after(0.3):
                await run.commit("z")
            assert sessions_of(engine) == 0
            await until(lambda: slow.running == 0)
            await run.snapshot("w")
        with suppress(ZeroDivisionError):
            async with workflow.open(engine) as run:
                await run.snapshot("z")
                raise ZeroDivisionError
        assert sessions_of(engine) == 0
    assert ended.is_set()


async def test_waste_is_told() -> None:
    async with Engine.over(loop()) as engine:
        workflow = Workflow(Prompt("a", "{q}"), Function("n", len, reads=["a"]), inputs=["q"])
        async with workflow.open(engine) as run:
            for text in ("one thing", "another thing"):
                await run.snapshot(text)
                await run.settled()
            plan = (await run.commit()).plan
            without = (await workflow.run(engine, "another thing", guesses="none")).plan
        assert without.wasted_tokens == 0
        assert plan.tokens - plan.wasted_tokens == without.tokens
        assert plan["a"].wasted_tokens > 10
        assert plan["a"].wasted_seconds > 0
        assert plan.tokens == plan["a"].tokens
        assert str(plan).splitlines()[0].startswith("a  prompt    done: ")
        assert 'n_a["a<br/>done"]' in run.draw()


async def test_an_answer_that_was_there_before_the_commit_takes_no_time() -> None:
    async with Engine.over(loop(seconds=0.004)) as engine:
        workflow = Workflow(
            Prompt("a", "{q}"), Prompt("b", "{a}, {q}"), Prompt("c", "{b}; {a}"), inputs=["q"]
        )
        without = await workflow.run(engine, "What is it, then?")
        async with workflow.open(engine) as run:
            for end in range(4, 18):
                await run.snapshot("What is it, then?"[:end])
                await anyio.sleep(0.01)
            await run.settled()
            result = await run.commit()
        assert result.outputs == without.outputs
        assert result.seconds <= 0.25 * without.seconds
