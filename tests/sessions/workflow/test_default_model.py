"""A workflow on the default model: what is typed is answered sooner, and by the same words."""

from __future__ import annotations

import random
import statistics

import anyio
import pytest
import torch

from braid.model.model import Model
from braid.sessions.session import Engine
from braid.sessions.workflow import Prompt, Workflow

QUESTIONS = [
    "What is the capital of France, and which river flows through it?",
    "Sally has 3 apples and buys 4 more. How many apples does she have?",
    "Name two animals that live in the sea and one that lives in trees.",
    "Why is the sky blue on a clear day, and red in the evening?",
    "Translate the word house into Spanish and use it in a sentence.",
]

PAUSE_S = 1.0
"""Between the last key and the commit: a person looks at what is there before sending it."""


def three_stages() -> Workflow:
    return Workflow(
        Prompt("notes", "List the facts in this question, briefly: {question}", max_tokens=20),
        Prompt("answer", "Question: {question}\nNotes: {notes}\nAnswer in one sentence.", max_tokens=20),
        Prompt("title", "Write a title of three words for this text: {answer}", max_tokens=8),
        inputs=["question"],
    )


def keystrokes(rng: random.Random, text: str) -> list[tuple[float, str]]:
    """Seconds before each state of the text box, and the state; now and then a slip, taken back at once."""
    states: list[tuple[float, str]] = []
    for end in range(1, len(text) + 1):
        if rng.random() < 0.04:
            states += [(rng.uniform(0.04, 0.09), text[: end - 1] + "x"), (0.15, text[: end - 1])]
        states.append((rng.uniform(0.04, 0.12) + 0.2 * (text[end - 1] in ",."), text[:end]))
    return states


@pytest.mark.slow
def test_typed_input_is_answered_in_half_the_time(smollm2: Model, capsys: pytest.CaptureFixture[str]) -> None:
    # With two on two cores, the event loop takes one from under the engine's forwards.
    torch.set_num_threads(1)
    workflow = three_stages()
    rng = random.Random(6)
    shares: list[float] = []

    async def run() -> None:
        async with Engine(smollm2, kv_tokens=8192) as engine:
            await workflow.run(engine, "Warm up.")
            for question in QUESTIONS:
                without = await workflow.run(engine, question, guesses="none")
                read_only = await workflow.run(engine, question)
                async with workflow.open(engine) as run:
                    for pause, text in keystrokes(rng, question):
                        await anyio.sleep(pause)
                        await run.snapshot(text)
                    await anyio.sleep(PAUSE_S)
                    result = await run.commit()
                assert result.outputs == without.outputs == read_only.outputs
                shares.append(result.seconds / without.seconds)
                with capsys.disabled():
                    print(
                        f"\n{question}\n{result.seconds:.3f} s of {without.seconds:.3f} s; nothing ahead of the "
                        f"commit, but guesses from what was read: {read_only.seconds:.3f} s\n{result.plan}"
                    )

    anyio.run(run)
    with capsys.disabled():
        print(f"median share {statistics.median(shares):.3f} of {[round(share, 3) for share in shares]}")
    assert statistics.median(shares) <= 0.5
