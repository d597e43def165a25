"""`generate(…, fall_back=True)`: the answer of ordinary generation, and the result says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braid.engine.fallback import Costs
from braid.model.attention import ATTENTION
from braid.model.model import Model
from braid.sessions import generate as room
from braid.sessions.generate import Result, decide, generate
from braid.streams.events import Event, NoticeEvent
from braid.streams.presets import topology as preset
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import stock, trained

QUESTION = "How many apples are there?"
WARM = SamplingSpec(temperature=1.0)
THOUGHTFUL = Topology(
    decoding="views",
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", max_tokens=9, max_streams=2),
        "output": StreamSpec(direction="output", wait_k="end", max_tokens=9),
    },
)
PLAIN = Topology(
    decoding="views",
    streams={name: spec for name, spec in THOUGHTFUL.streams.items() if name != "thought"},
)
ROWS = Topology(
    streams={"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output", max_tokens=4)}
)


@pytest.fixture(autouse=True)
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of two cost twice as much as rows of one, whatever this machine says."""
    monkeypatch.setattr(room, "costs_of", lambda _: Costs({1: 10.0, 2: 20.0}, 1.0))


def run(model: Model, topology: Topology, **changes: Any) -> Result:
    return generate(model, topology, QUESTION, **{"kv_tokens": 600, **changes})


@pytest.mark.parametrize("sampling", [None, WARM])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_the_answer_is_that_of_ordinary_generation(architecture: str, sampling: SamplingSpec | None) -> None:
    model = stock(architecture)
    fallen = run(model, THOUGHTFUL, fall_back=True, sampling=sampling, seed=3)
    plain = run(model, PLAIN, sampling=sampling, seed=3)
    assert fallen["output"] == plain["output"]
    assert fallen["output"].tokens
    assert fallen.transcript.entries == plain.transcript.entries
    assert set(fallen.streams) == {"user", "output"}


def test_the_answer_is_that_of_transformers() -> None:
    model = stock()
    said = run(model, THOUGHTFUL, fall_back=True)["output"].tokens
    prompt = torch.tensor([[256, *b"user\n", *QUESTION.encode(), 257, *b"\n", 256, *b"assistant\n"]])
    model.hf.set_attn_implementation("sdpa")
    try:
        made = model.hf.generate(  # pyright: ignore[reportCallIssue]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=9,
            do_sample=False,
            pad_token_id=258,
        )
    finally:
        model.hf.set_attn_implementation(ATTENTION)
    assert list(said) == made[0, prompt.shape[1] :].tolist()


def test_it_is_told_why() -> None:
    events: list[Event] = []
    result = run(stock(), THOUGHTFUL, fall_back=True, on_event=events.append)
    assert result.decision is not None
    assert result.decision.fell_back
    assert result.transcript.meta["fell_back"] == result.decision.reason
    notices = [event for event in events if isinstance(event, NoticeEvent)]
    assert [(notice.code, notice.message) for notice in notices] == [("fell_back", result.decision.reason)]
    assert "thought had nothing to read along" in result.decision.reason


def test_by_default_nothing_falls_back() -> None:
    result = run(stock(), THOUGHTFUL)
    assert result.decision is None
    assert result["thought"].tokens
    assert "fell_back" not in result.transcript.meta


@pytest.mark.parametrize(
    "changes", [{"copies": {"thought": 2}}, {"forced": {"thought": "Well"}}], ids=["copies", "forced"]
)
def test_nothing_that_was_asked_for_is_lost(changes: dict[str, Any]) -> None:
    events: list[Event] = []
    result = run(stock(), THOUGHTFUL, fall_back=True, on_event=events.append, **changes)
    assert result.decision is not None
    assert not result.decision.fell_back
    assert any(label.startswith("thought") for label in result.streams)
    assert "fell_back" not in result.transcript.meta
    assert not any(isinstance(event, NoticeEvent) for event in events)


def test_a_beginning_of_the_answer_is_kept() -> None:
    result = run(stock(), THOUGHTFUL, fall_back=True, forced={"output": "So: "})
    assert result.decision is not None
    assert result.decision.fell_back
    assert result["output"].text.startswith("So: ")


def test_a_trained_model_keeps_its_streams() -> None:
    result = run(trained(ROWS), ROWS, fall_back=True)
    assert result.decision is not None
    assert not result.decision.fell_back


def test_a_decision_can_be_had_without_a_run() -> None:
    decision = decide(stock(), "think-aloud", {"user": QUESTION})
    assert decision.fell_back
    assert decision.topology.output_names == ("output",)
    assert decision.topology.streams["output"] == preset("think-aloud").streams["output"]
