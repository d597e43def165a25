"""The default model, preset `plain`: greedy equals `transformers.generate`, token for token (invariant 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from braid.engine.core import EngineCore
from braid.engine.local.backend import LocalBackend
from braid.model.attention import ATTENTION
from braid.model.model import Model
from braid.sessions.generate import generate, run_rows
from braid.streams.presets import topology
from braid.streams.topology import Topology
from tests.properties import examples

PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Sally has 3 apples and buys 4 more. How many apples does she have?",
    "Explain photosynthesis to a child.",
    "def fibonacci(n):\n    # complete this function\n",
    "List three uses of a paper clip.",
    "Übersetze ins Englische: Guten Morgen, wie geht es dir?",
    "今天天气怎么样？",
    "Why is the sky blue? 🌤️ Answer in one sentence.",
    "Give me a recipe for pancakes,\n\nwith  exact\tamounts.",
)
NUM_TOKENS = examples(64)
TIE = 2e-3
"""Where the two likeliest tokens are closer than this in float32, either is right (design, section 10)."""


@contextmanager
def attending_plainly(model: Model) -> Iterator[None]:
    model.hf.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.hf.set_attn_implementation(ATTENTION)


def generated(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    num_tokens: int = NUM_TOKENS,
) -> tuple[list[int], list[float], int]:
    """What transformers generates, how far apart the two likeliest tokens were each time, and the prompt's length."""
    prompt = model.codec.hf.apply_chat_template(
        list(messages), tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with attending_plainly(model), torch.inference_mode():
        made = model.hf.generate(
            **prompt,
            max_new_tokens=num_tokens,
            do_sample=False,
            output_scores=True,
            return_dict_in_generate=True,
        )
    length = prompt["input_ids"].shape[1]
    tops = [scores[0].topk(2).values for scores in made.scores]
    return made.sequences[0, length:].tolist(), [float(top[0] - top[1]) for top in tops], length


def assert_same(found: list[int], expected: list[int], gaps: list[float], excused: list[str]) -> None:
    for at, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            assert gaps[at] < TIE, f"token {at}: {ours} instead of {theirs}, which leads by {gaps[at]:.4f}"
            excused.append(f"token {at}, a lead of {gaps[at]:.5f}")
            return  # after a tie the two go different ways
    assert len(found) == len(expected)


def test_plain_equals_generate_on_ten_prompts(smollm2: Model, capsys: pytest.CaptureFixture[str]) -> None:
    plain = limited()
    excused: list[str] = []
    for prompt in PROMPTS:
        expected, gaps, _ = generated(smollm2, [{"role": "user", "content": prompt}])
        result = generate(smollm2, plain, prompt, max_rows=2000)
        assert_same(list(result["output"].tokens), expected, gaps, excused)
        assert result["user"].text == prompt
    with capsys.disabled():
        print(
            f"\n{len(PROMPTS)} prompts × {NUM_TOKENS} tokens equal transformers.generate; excused ties: {excused}"
        )
    assert len(excused) <= len(PROMPTS) * NUM_TOKENS / 1000


def test_plain_equals_generate_in_a_three_turn_conversation(smollm2: Model) -> None:
    backend = LocalBackend(smollm2)
    core = EngineCore(backend)
    conversation = core.open(limited())
    messages: list[dict[str, str]] = []
    excused: list[str] = []
    for said in ("My name is Ada and I like tea.", "What do I like?", "And what is my name?"):
        messages.append({"role": "user", "content": said})
        expected, gaps, _ = generated(smollm2, messages)
        before = len(conversation.transcript.tokens("output"))
        conversation.write("user", said)
        conversation.end()
        run_rows(core, conversation, max_rows=400)
        found = [token for _, token in conversation.transcript.tokens("output")[before:]]
        assert_same(found, expected, gaps, excused)
        messages.append({"role": "assistant", "content": smollm2.codec.decode(found)})
    assert not excused
    conversation.close()
    backend.cache.pool.check_integrity()


def limited() -> Topology:
    """Preset `plain`, as long as the comparison."""
    plain = topology("plain")
    output = plain.streams["output"].model_copy(update={"max_tokens": NUM_TOKENS})
    return plain.model_copy(update={"streams": {**plain.streams, "output": output}})
