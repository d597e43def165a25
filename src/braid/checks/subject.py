"""The model under test: as it is, with streams put on, and as `transformers` alone would run it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.local.work import Feed
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.model.attention import ATTENTION
from braid.model.checkpoint import TrainedStreams, TrainedTopology
from braid.model.linear import RowLinear
from braid.model.model import Model
from braid.model.plan import Plan
from braid.sessions.generate import ALONE
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.testing import ReferenceLogits

__all__ = [
    "NEVER",
    "RecordingBackend",
    "RecordingCore",
    "Subject",
    "drive",
    "largest_difference",
]

NEVER = -1e9
"""A logit bias that no logit outweighs."""

BOUNDS = {torch.float64: 1e-4, torch.float32: 1e-3, torch.float16: 0.25, torch.bfloat16: 2.0}
"""The largest difference of a logit from the oracle's, which is computed in the same number format.

`transformers` keeps norms, rotations and softmax in float32, also in a float64 network. Bfloat16 has eight bits: of a
logit of 30, which is common, one rounding takes 0.06, and there are a dozen a layer.
"""


class Subject:
    """One model, and the ways in which the checks use it.

    Args:
        model: The model under test.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.stock = model if model.trained is None else self._twin(None, None)
        self.bound = BOUNDS[model.dtype]

    def _twin(self, trained: TrainedStreams | None, embeddings_HD: Tensor | None) -> Model:
        """The same network, trained with something else."""
        model = self.model
        twin = Model(
            model.hf,
            model.codec,
            name=model.name,
            trained=trained,
            stream_embeddings=embeddings_HD,
            choice=model.choice,
        )
        twin.kernel = model.kernel
        return twin

    def dressed(self, topology: Topology) -> Model:
        """The same network as if it had been trained with the topology: a silence class and random embeddings."""
        generator = torch.Generator().manual_seed(0)
        embed: Any = self.model.hf.get_input_embeddings()
        scale = 0.3 * float(embed.weight.detach().float().std())
        shape = len(topology.streams), self.model.architecture.hidden_size
        embeddings_HD = scale * torch.randn(shape, generator=generator)
        streams = TrainedStreams(topology=TrainedTopology.of(topology), silence_token_id=self.silence_id)
        return self._twin(streams, embeddings_HD)

    @cached_property
    def silence_id(self) -> int:
        """The class that means silence: the checkpoint's, or the last one that is no control token."""
        if self.model.silence_token_id is not None:
            return self.model.silence_token_id
        codec = self.model.codec
        taken = codec.control_ids | set(codec.end_ids)
        return next(i for i in reversed(range(self.model.vocab_size)) if i not in taken)

    @cached_property
    def even_bias(self) -> float:
        """A bias for silence with which the model, at temperature 1, speaks in about half of the rows."""
        ids = torch.randint(0, self.model.vocab_size, (1, 48), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode(), self.as_stock() as network:
            logits_LV = network(input_ids=ids.to(self.model.device)).logits[0].double()
        gap_L = torch.logsumexp(logits_LV, -1) - logits_LV[:, self.silence_id]
        return float(gap_L.median())

    def chatty(self, silence_bias: float, seed: int = 0) -> SamplingSpec:
        """Sampling that never ends a turn, and is silent the more the larger the bias."""
        bias = dict.fromkeys(self.model.codec.end_ids, NEVER) | {self.silence_id: silence_bias}
        return SamplingSpec(temperature=1.0, logit_bias=bias, seed=seed)

    def endless(self) -> SamplingSpec:
        """Greedy sampling that never ends a turn."""
        return SamplingSpec(logit_bias=dict.fromkeys(self.model.codec.end_ids, NEVER))

    @contextmanager
    def as_stock(self) -> Generator[Any]:
        """The network with the attention and the linear layers that `transformers` alone would give it."""
        hf = self.model.hf
        switched: list[Any] = [module for module in hf.modules() if type(module) is RowLinear]
        for module in switched:
            module.__class__ = nn.Linear
        hf.set_attn_implementation("sdpa" if getattr(hf, "_supports_sdpa", False) else "eager")
        try:
            yield hf
        finally:
            hf.set_attn_implementation(ATTENTION)
            for module in switched:
                module.__class__ = RowLinear


class RecordingBackend(LocalBackend):
    """Keeps the logits of every lane that was asked, by (row, lane).

    Args:
        model: The network.
        kv_tokens, page_size, prefix_share: Of the cache.
        disguised: Lanes whose tokens are replaced by others on their way into the network.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_tokens: int,
        page_size: int = 8,
        prefix_share: float = 0.0,
        disguised: Sequence[str] = (),
    ) -> None:
        super().__init__(model, kv_tokens=kv_tokens, page_size=page_size, prefix_share=prefix_share)
        self.logits: ReferenceLogits = {}
        self.probes: set[tuple[int, str]] = set()
        self._disguised = frozenset(disguised)

    def _forward(self, plan: Plan, feeds: Sequence[Feed]) -> Tensor:
        feeds = [self._disguise(feed) for feed in feeds]
        logits_NV = super()._forward(plan, feeds)
        row = 0
        for feed in feeds:
            if feed.ask is None:
                continue
            row += len(feed.token_ids) if feed.asks_all else 1
            key = (int(feed.times[-1]), feed.label)
            self.logits[key] = logits_NV[row - 1].clone()
            if feed.is_probe and feed.replays is None:
                self.probes.add(key)
        return logits_NV

    def _disguise(self, feed: Feed) -> Feed:
        if feed.label not in self._disguised or feed.is_probe:
            return feed
        other: NDArray[np.int64] = (feed.token_ids * 31 + 7) % self.model.vocab_size
        return replace(feed, token_ids=other)


class RecordingCore(EngineCore):
    """A core over a `RecordingBackend`; takes what that takes, and a scheduler's policy."""

    def __init__(self, model: Model, *, policy: SchedulerPolicy = ALONE, **settings: Any) -> None:
        self.recording = RecordingBackend(model, **settings)
        super().__init__(self.recording, policy=policy)
        self.model = model
        self.cache = self.recording.cache

    @property
    def logits(self) -> ReferenceLogits:
        """By (row, lane)."""
        return self.recording.logits

    @property
    def probes(self) -> set[tuple[int, str]]:
        """Those of the logits that a probe asked for."""
        return self.recording.probes


def drive(core: RecordingCore, conversation: Conversation, rows: int) -> None:
    """Step until there is nothing to do, or for about so many rows."""
    stop = conversation.t + rows
    while conversation.t < stop and (conversation.has_work or not conversation.turn_is_over):
        report = core.step([conversation])
        core.cache.pool.check_integrity()
        for _, error in report.failures:
            raise error
        if not report.worked and not conversation.has_work:
            return


def largest_difference(found: ReferenceLogits, expected: ReferenceLogits) -> float:
    """The largest absolute difference of a logit; every one that was found must be expected."""
    assert found, "nobody was asked"
    assert set(found) <= set(expected), "the engine and the oracle disagree about who was asked"
    return max(float((found[key].double() - expected[key].double()).abs().max()) for key in found)
