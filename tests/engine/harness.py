"""Small models to run sessions on, and what the tests of the engine share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from braid.checks.subject import RecordingCore
from braid.engine.session.conversation import Conversation
from braid.model import joint
from braid.model.checkpoint import TrainedStreams, TrainedTopology
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.streams.events import Event
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.testing import ReferenceLogits
from tests.fakes import byte_tokenizer
from tests.model.networks import network

SILENCE = 299
"""The class that means silence in trained test models; no byte and no control token."""


@cache
def codec() -> TokenizerCodec:
    return TokenizerCodec(byte_tokenizer())


def stock(architecture: str = "llama") -> Model:
    """A model with stock weights: no silence, no stream embeddings."""
    return Model(network(architecture), codec(), name=architecture)


def trained(topology: Topology, architecture: str = "llama", seed: int = 0) -> Model:
    """A model that says it was trained with the topology, with random stream embeddings."""
    generator = torch.Generator().manual_seed(seed)
    hf = network(architecture)
    embeddings = torch.randn(len(topology.streams), hf.config.hidden_size, generator=generator)
    streams = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=SILENCE)
    return Model(hf, codec(), name=architecture, trained=streams, stream_embeddings=embeddings)


def chatty(silence_bias: float, seed: int = 0, **changes: object) -> SamplingSpec:
    """Sampling that is random enough to speak and to fall silent now and then."""
    return SamplingSpec(temperature=1.0, logit_bias={SILENCE: silence_bias}, seed=seed, **changes)  # pyright: ignore[reportArgumentType]


@contextmanager
def attending(jointly: bool) -> Iterator[None]:
    """Let small forwards be attended jointly, as they are, or read by read, as large ones are."""
    with pytest.MonkeyPatch.context() as patch:
        if not jointly:
            patch.setattr(joint, "JOINT_AREA", 0)
        yield


def step(core: RecordingCore, *conversations: Conversation) -> list[Event]:
    """One step, checked: the pool's books are right, and whoever cannot go on raises."""
    report = core.step(conversations)
    core.cache.pool.check_integrity()
    if core.recording.prefixes is not None:
        core.recording.prefixes.check_integrity()
    for _, error in report.failures:
        raise error
    return [event for conversation in conversations for event in conversation.take_events()]


def drive(core: RecordingCore, *conversations: Conversation, max_rows: int = 200) -> list[Event]:
    """Step until nobody has anything to do, or for so many rows."""
    events: list[Event] = []
    while busy := [
        c for c in conversations if c.t < max_rows and (c.has_work or not (c.turn_is_over or c.is_closed))
    ]:
        fresh = step(core, *busy)
        events += fresh
        if not fresh and not any(c.has_work for c in busy):
            break
    return events


def largest_difference(found: ReferenceLogits, expected: ReferenceLogits) -> float:
    """The largest absolute difference; every logit that was found must be expected."""
    assert found, "nothing was computed"
    assert set(found) <= set(expected), sorted(set(found) - set(expected))[:5]
    return max(float((found[key] - expected[key]).abs().max()) for key in found)
