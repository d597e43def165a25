"""Editable turns: whatever the snapshots were, a committed turn is the one of a session that was told the text at once."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.conversation import Conversation
from braid.errors import EditAfterConsumed, EmptyInputError, RegimeError
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import SILENCE, chatty, step, stock, trained

USER = StreamSpec(direction="input")


def output(temperature: float = 0.0, **changes: Any) -> StreamSpec:
    sampling = SamplingSpec(temperature=temperature, seed=3)
    return StreamSpec(direction="output", sampling=sampling, max_tokens=12, **changes)


def plain(temperature: float = 0.0) -> Topology:
    return Topology(decoding="views", streams={"user": USER, "output": output(temperature, wait_k="end")})


def aloud(temperature: float = 0.0) -> Topology:
    return Topology(
        decoding="views",
        streams={
            "user": USER,
            "document": USER,
            "thought": output(temperature, visibility="internal", wait_k=2),
            "output": output(temperature, wait_k="end", instructions="Say."),
        },
    )


def native(temperature: float = 0.0) -> Topology:
    bias = 2.0
    thought = StreamSpec(
        direction="output", visibility="internal", sampling=chatty(bias, seed=5), max_tokens=9
    )
    answer = StreamSpec(direction="output", sampling=chatty(bias, seed=6), max_tokens=9)
    return Topology(streams={"user": USER, "thought": thought, "output": answer})


TOPOLOGIES = {"plain": plain, "aloud": aloud, "native": native}


def core_for(topology: Topology, **settings: Any) -> RecordingCore:
    model = stock() if topology.decoding == "views" else trained(topology)
    return RecordingCore(model, **{"kv_tokens": 2048, **settings})


def edited(rng: random.Random, text: str) -> str:
    """One edit of a text, anywhere in it."""
    place = rng.randint(0, len(text))
    kind = rng.random()
    piece = "".join(rng.choice("abc xyzäß✓ ,.") for _ in range(rng.randint(1, 4)))
    if kind < 0.45:
        return text + piece
    if kind < 0.65:
        return text[:place] + piece + text[place:]
    if kind < 0.85:
        return text[:place] + text[min(len(text), place + rng.randint(1, 4)) :]
    return text[:place] + piece + text[min(len(text), place + 2) :]


def finish(core: RecordingCore, conversation: Conversation) -> None:
    for _ in range(300):
        if conversation.turn_is_over and not conversation.has_work:
            return
        step(core, conversation)
    raise AssertionError("the turn does not end")


def rows_of(conversation: Conversation) -> list[str]:
    """The transcript, line by line; how the preamble was cut into pieces is no part of it."""
    return [str(entry) for entry in conversation.transcript.entries if "prefill" not in str(entry)[:60]]


def fresh(topology: Topology, texts: dict[str, str], turns: int = 1) -> tuple[RecordingCore, Conversation]:
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    for _ in range(turns):
        core.do(conversation, "tell", {name: text for name, text in texts.items() if text})
        finish(core, conversation)
    return core, conversation


def check_same(
    core: RecordingCore, found: Conversation, other: RecordingCore, expected: Conversation
) -> None:
    assert rows_of(found) == rows_of(expected)
    difference = max(
        float((core.logits[key].double() - logits.double()).abs().max())
        for key, logits in other.logits.items()
    )
    assert difference < 1e-3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_turn_is_that_of_a_fresh_session(name: str, temperature: float, seed: int) -> None:
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](temperature)
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    texts = {stream: "" for stream in topology.input_names}
    for _ in range(rng.randint(1, 8)):
        stream = rng.choice(list(texts))
        texts[stream] = edited(rng, texts[stream])
        core.do(conversation, "snapshot", {stream: texts[stream]})
        for _ in range(rng.choice((0, 1, 3, 20))):
            assert not step(core, conversation) or conversation.t == 0
    if not any(texts.values()):
        texts[topology.input_names[0]] = "so"
    core.do(conversation, "commit", texts)
    finish(core, conversation)
    check_same(core, conversation, *fresh(topology, texts))
