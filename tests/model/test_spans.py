"""Spans against plain attention, on every architecture; kernels against each other; what must be refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BambaConfig,
    BloomConfig,
    FalconMambaConfig,
    GlmConfig,
    LlamaConfig,
    OlmoConfig,
    Qwen3NextConfig,
    T5Config,
)

from braid.cache import PageGroup
from braid.errors import ContextOverflowError, UnsupportedByBackend, UnsupportedModelError
from braid.model import blocks as blocks_module
from braid.model import clusters as clusters_module
from braid.model import joint as joint_module
from braid.model import large as large_module
from braid.model import layercall as layercall_module
from braid.model.architecture import inspect_architecture
from braid.model.kernels import choose_kernel, reference, sdpa
from braid.model.model import Model
from braid.model.proof import own_logits, prove, span_logits
from braid.model.reads import SpanRead
from tests.engine.harness import codec, stock
from tests.model.networks import _SMALL, ARCHITECTURES, VOCAB, network
from tests.properties import examples

SMALL: dict[str, Any] = _SMALL


@settings(max_examples=examples(40))
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    kernel=st.sampled_from(["reference", "sdpa"]),
    spans=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    bases=st.lists(st.integers(0, 60), min_size=4, max_size=4),
    chunk=st.integers(1, 9),
    area=st.sampled_from([1, 16, 512]),
    jointly=st.booleans(),
    seed=st.integers(0, 99),
)
def test_spans_anywhere_equal_plain_attention(
    architecture: str,
    kernel: Any,
    spans: list[int],
    bases: list[int],
    chunk: int,
    area: int,
    jointly: bool,
    seed: int,
) -> None:
    model = Model(network(architecture), codec(), name=architecture, kernel=kernel)
    token_ids = np.random.default_rng(seed).integers(0, VOCAB, sum(spans)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_module, "WORTH_A_CALL", area)
        found = span_logits(model, token_ids, spans, bases[: len(spans)], chunk, jointly=jointly)
    assert float((found - own_logits(model, token_ids)).abs().max()) <= 1e-6


@pytest.mark.parametrize("wrong", [1, -1, 5])
def test_control_a_wrong_base_is_noticed(wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stock()
    token_ids = list(range(40, 64))
    real = SpanRead.__init__

    def shifted(self: SpanRead, **arguments: Any) -> None:
        arguments["shifts"] = arguments["shifts"] + wrong
        real(self, **arguments)

    monkeypatch.setattr(SpanRead, "__init__", shifted)
    # The same shift on the queries' own span and on all others would cancel out if it were only relative.
    found = span_logits(model, token_ids, (12, 12), (0, 0), 3)
    monkeypatch.undo()
    assert float((found - own_logits(model, token_ids)).abs().max()) > 1e-3


@given(
    st.integers(1, 9),
    st.sampled_from([1, 7, 40, 700, 1300]),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 99),
)
def test_kernels_agree(length: int, keys: int, masked: bool, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(3, 2, length, 16, generator=generator, dtype=dtype)
    k, v = (torch.randn(3, keys, 16, generator=generator, dtype=dtype) for _ in range(2))
    mask = None
    if masked:
        allowed = torch.rand(length, keys, generator=generator) < 0.5
        allowed[:, : keys // 2] &= (
            torch.rand(length, 1, generator=generator) < 0.5
        )  # whole blocks that are hidden
        allowed[:, -1] = True
        mask = torch.zeros(length, keys, dtype=dtype).masked_fill_(~allowed, -torch.inf)
    expected, found = reference(q, k, v, mask, 0.25, None), sdpa(q, k, v, mask, 0.25, None)
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(a, b.to(a.dtype), atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_softcapped_scores_are_the_reference_kernels() -> None:
    assert choose_kernel(None, torch.device("cpu"), softcap=True) is reference
    q = torch.randn(1, 1, 2, 8, dtype=torch.float64)
    plain, capped = reference(q, q[0], q[0], None, 1.0, None)[0], reference(q, q[0], q[0], None, 1.0, 1e9)[0]
    assert torch.allclose(plain, capped)
    assert not torch.allclose(plain, reference(q, q[0], q[0], None, 1.0, 0.5)[0])


# ---- many sessions in one forward


class Fleet:
    """Sessions over one prefix, each with a rest of its own that is cut into two spans.

    Args:
        model: Any model.
        prefix: Its tokens.
        rests: What follows it, a session each.
        base: Where a session's second span is stored, behind its place in the sequence.
        jointly: Attend jointly.
    """

    def __init__(
        self, model: Model, prefix: list[int], rests: list[list[int]], base: int = 0, *, jointly: bool = True
    ) -> None:
        self.model, self.prefix, self.rests, self.base, self.jointly = model, prefix, rests, base, jointly
        self.cache = model.new_cache(
            8 * (len(prefix) + 8) + sum(len(rest) + 16 for rest in rests), page_size=4
        )
        self.root = self.cache.new_list()
        self.slots = self.root.append(len(prefix))
        n = len(prefix)
        zeros = np.zeros(n, dtype=np.int64)
        first = SpanRead(np.arange(n), self.root, np.arange(n), zeros, 1 + np.arange(n), zeros)
        self.forward([first], np.arange(n), self.slots, prefix, [0])
        groups = [PageGroup() for _ in rests]
        self.lists = [[self.root.fork(), *(self.cache.new_list(g) for _ in range(2))] for g in groups]
        self.read = [0 for _ in rests]

    def forward(
        self, reads: Any, positions: Any, slots: Any, tokens: list[int], predict: list[int]
    ) -> torch.Tensor:
        self.plan = self.model.plan(
            self.cache, positions=positions, slots=slots, reads=reads, jointly=self.jointly
        )
        ids = np.array(tokens, dtype=np.int64)
        return self.model.forward(self.plan, ids, positions, np.zeros_like(ids), predict=np.array(predict))

    def step(self, counts: list[int], probe: int | None = None) -> list[torch.Tensor]:
        """Feed so many tokens of each session's rest, or a probe; logits of what each has fed, `[n, V]`."""
        reads: list[SpanRead] = []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[np.ndarray] = []
        fed: list[int] = []
        for session, count in enumerate(counts):
            rest, start = self.rests[session], self.read[session]
            cut = len(rest) // 2
            own = 1 if start < cut else 2
            count = 1 if probe is not None else min(count, (cut if own == 1 else len(rest)) - start)
            fed.append(count)
            if not count:
                continue
            lists = self.lists[session]
            at = len(self.prefix) + start + np.arange(count) + (self.base if own == 2 else 0)
            slots.append(np.full(1, -1) if probe is not None else lists[own].append(count))
            self.read[session] += count if probe is None else 0
            queries = len(tokens) + np.arange(count)
            tokens += [probe] if probe is not None else rest[start : start + count]
            positions += at.tolist()
            stored = (0, len(self.prefix), len(self.prefix) + cut + self.base)
            for index in range(own + 1):
                n = lists[index].length
                stop = np.full(count, n)
                if index == own and probe is None:
                    stop = n - count + 1 + np.arange(count)
                shift = np.full(count, (-self.base if own == 2 else 0) - (-self.base if index == 2 else 0))
                reads.append(
                    SpanRead(
                        queries, lists[index], stored[index] + np.arange(n), np.zeros_like(stop), stop, shift
                    )
                )
        logits = self.forward(
            reads, np.array(positions), np.concatenate(slots), tokens, list(range(len(tokens)))
        )
        return list(logits.split(fed))

    def run(self, counts: list[int]) -> list[torch.Tensor]:
        """Feed all sessions to their ends."""
        found: list[list[torch.Tensor]] = [[] for _ in self.rests]
        while any(read < len(rest) for read, rest in zip(self.read, self.rests, strict=True)):
            for parts, part in zip(found, self.step(counts), strict=True):
                parts.append(part)
            self.cache.pool.check_integrity()
        return [torch.cat(parts) for parts in found]


@settings(max_examples=examples(60))
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    prefix=st.integers(1, 30),
    sizes=st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12)), min_size=2, max_size=6),
    base=st.sampled_from([0, 0, 7]),
    joint_area=st.sampled_from([0, 120, 1 << 17]),
    block_area=st.sampled_from([1, 200, 1 << 16]),
    worth=st.sampled_from([1, 4, 100]),
    small=st.sampled_from([(2, 8, 256), (0, 1, 5)]),
    seed=st.integers(0, 99),
)
def test_many_sessions_in_one_forward_equal_plain_attention(
    architecture: str,
    prefix: int,
    sizes: list[tuple[int, int]],
    base: int,
    joint_area: int,
    block_area: int,
    worth: int,
    small: tuple[int, int, int],
    seed: int,
) -> None:
    model = Model(network(architecture), codec(), name=architecture)
    random = np.random.default_rng(seed)
    begin, *rests = (random.integers(0, VOCAB, n).tolist() for n in (prefix, *(size for size, _ in sizes)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joint_module, "JOINT_AREA", joint_area)
        patch.setattr(blocks_module, "BLOCK_AREA", block_area)
        patch.setattr(clusters_module, "WORTH_SHARING", worth)
        patch.setattr(large_module, "WORTH_A_CALL", worth)
        for name, value in zip(("SHORT_RUNS", "LONG_RUN", "MAX_QUERIES"), small, strict=True):
            patch.setattr(blocks_module, name, value)
        fleet = Fleet(model, begin, rests, base)
        found = fleet.run([count for _, count in sizes])
        probed = fleet.step([1 for _ in rests], probe=5)
    for rest, logits, probe in zip(rests, found, probed, strict=True):
        expected = own_logits(model, [*begin, *rest, 5])[prefix:]
        assert float((torch.cat((logits, probe)) - expected).abs().max()) <= 1e-6


def test_a_session_does_not_change_by_one_bit_when_another_does() -> None:
    model = Model(deepcopy(network("llama")).float(), codec(), name="llama")
    random = np.random.default_rng(0)
    begin, *rests = (random.integers(0, VOCAB, n).tolist() for n in (70, 30, 25, 28))
    other = [rests[0], random.integers(0, VOCAB, 25).tolist(), rests[2]]
    before, after = (Fleet(model, begin, each, base=3).run([1, 1, 4]) for each in (rests, other))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("with_sinks", [False, True])
@torch.inference_mode()
def test_both_ways_agree_on_soft_limits_and_sinks(softcap: float | None, with_sinks: bool) -> None:
    model = Model(network("llama"), codec(), name="llama", kernel="reference")
    outs: list[torch.Tensor] = []
    for jointly in (True, False):
        fleet = Fleet(model, list(range(20)), [[3, 4], [5, 6], [7, 8]], jointly=jointly)
        fleet.step([1, 1, 1])
        generator = torch.Generator().manual_seed(1)
        q, k, v = (
            torch.randn(1, heads, 3, 16, generator=generator, dtype=torch.float64) for heads in (4, 2, 2)
        )
        for pool in (*fleet.cache.keys_KSD, *fleet.cache.values_KSD):
            pool.copy_(torch.randn(pool.shape, generator=generator, dtype=torch.float64))
        sinks = torch.randn(4, generator=generator, dtype=torch.float64) if with_sinks else None
        outs.append(fleet.plan.attend(0, q, k, v, 0.25, softcap, sinks))
    assert outs[0].shape == (1, 3, 4, 16)
    assert torch.allclose(outs[0], outs[1], atol=1e-12)


# ---- what must be refused


def tiny(config: Any, seq2seq: bool = False) -> Any:
    auto = AutoModelForSeq2SeqLM if seq2seq else AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.float32)


def test_an_encoder_decoder_is_refused() -> None:
    config = T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder–decoder"):
        inspect_architecture(tiny(config, seq2seq=True))


def test_a_state_space_model_is_refused() -> None:
    config = FalconMambaConfig(
        vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=1, intermediate_size=16
    )
    with pytest.raises(UnsupportedModelError, match="cannot be served"):
        inspect_architecture(tiny(config))


def test_linear_attention_layers_are_refused() -> None:
    config = Qwen3NextConfig(
        **{k: v for k, v in SMALL.items() if k not in ("bos_token_id", "eos_token_id", "pad_token_id")},
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, shared_expert_intermediate_size=8,
        linear_num_value_heads=2, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="linear_attention"):
        inspect_architecture(tiny(config))


def test_alibi_is_refused() -> None:
    config = BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedModelError, match="attention interface"):
        inspect_architecture(tiny(config))


def test_dynamic_rope_serves_rows_and_refuses_shifts() -> None:
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    hf = tiny(LlamaConfig(**SMALL, rope_parameters=parameters))
    architecture = inspect_architecture(hf)
    with pytest.raises(UnsupportedModelError, match="dynamic RoPE changes"):
        architecture.require_shifts()
    model = Model(hf, codec(), name="dynamic")
    with pytest.raises(UnsupportedModelError, match="decoding: rows"):
        span_logits(model, list(range(8)), (4, 4), (0, 0), 4)
    assert prove(model) < 1e-3


@pytest.mark.parametrize("config", [OlmoConfig, GlmConfig])
def test_an_unproven_architecture_is_compared_when_it_is_loaded(config: Any) -> None:
    hf = tiny(config(**SMALL, **({"partial_rotary_factor": 0.5} if config is GlmConfig else {})))
    model = Model(hf, codec(), name="unproven")
    assert prove(model) < 1e-3


def test_an_unproven_architecture_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = tiny(OlmoConfig(**SMALL))
    monkeypatch.setattr(layercall_module, "rotate", lambda apply, states, cos, sin: states)
    with pytest.raises(UnsupportedModelError, match="differ by"):
        Model(hf, codec(), name="strange")


def test_a_forward_without_a_plan_says_what_to_do() -> None:
    model = stock()
    with pytest.raises(UnsupportedByBackend, match="set_attn_implementation"):
        model.hf(input_ids=torch.tensor([[1, 2]]), use_cache=False)


def test_positions_beyond_the_context_are_refused() -> None:
    model = stock()
    cache = model.new_cache(16)
    with pytest.raises(ContextOverflowError, match="4096"):
        model.plan(cache, positions=np.array([4096]), slots=np.array([0]), reads=[])


def test_bamba_is_refused_for_its_state_space_layers() -> None:
    config = BambaConfig(
        **{k: v for k, v in SMALL.items() if k != "head_dim"},
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=24,
        mamba_d_state=4,
    )
    with pytest.raises(UnsupportedModelError):
        inspect_architecture(tiny(config))
