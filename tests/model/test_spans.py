"""Spans against plain attention, on every architecture; kernels against each other; what must be refused."""

from __future__ import annotations

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

from braid.errors import ContextOverflowError, UnsupportedByBackend, UnsupportedModelError
from braid.model import joint as joint_module
from braid.model import plan as plan_module
from braid.model.architecture import inspect_architecture
from braid.model.kernels import choose_kernel, reference, sdpa
from braid.model.model import Model
from braid.model.proof import own_logits, prove, span_logits
from braid.model.reads import SpanRead
from tests.engine.harness import codec, stock
from tests.model.networks import _SMALL, ARCHITECTURES, VOCAB, network

SMALL: dict[str, Any] = _SMALL


@settings(max_examples=40)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    kernel=st.sampled_from(["reference", "sdpa"]),
    spans=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    bases=st.lists(st.integers(0, 60), min_size=4, max_size=4),
    chunk=st.integers(1, 9),
    area=st.sampled_from([0, 16, 1 << 16]),
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
        patch.setattr(plan_module, "MASKED_AREA", area)  # ragged reads, split and whole
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
    q, k, v = (torch.randn(1, 3, n, 16, generator=generator, dtype=dtype) for n in (length, keys, keys))
    mask = None
    if masked:
        allowed = torch.rand(length, keys, generator=generator) < 0.5
        allowed[:, : keys // 2] &= (
            torch.rand(length, 1, generator=generator) < 0.5
        )  # whole blocks that are hidden
        allowed[:, -1] = True
        mask = torch.zeros(length, keys, dtype=dtype).masked_fill_(~allowed, -torch.inf)[None, None]
    expected, found = reference(q, k, v, mask, 0.25, None), sdpa(q, k, v, mask, 0.25, None)
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(a, b.to(a.dtype), atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_softcapped_scores_are_the_reference_kernels() -> None:
    assert choose_kernel(None, torch.device("cpu"), softcap=True) is reference
    q = torch.randn(1, 1, 2, 8, dtype=torch.float64)
    plain, capped = reference(q, q, q, None, 1.0, None)[0], reference(q, q, q, None, 1.0, 1e9)[0]
    assert torch.allclose(plain, capped)
    assert not torch.allclose(plain, reference(q, q, q, None, 1.0, 0.5)[0])


def test_a_span_read_by_many_lanes_is_attended_once() -> None:
    model = stock()
    cache = model.new_cache(64)
    shared = cache.new_list()
    shared.append(20)
    own = [shared.fork(), shared.fork()]  # two sessions over one prefix
    slots = np.concatenate([pages.append(1) for pages in own])
    reads = [
        SpanRead(
            queries=np.array([i]),
            pages=pages,
            positions=np.arange(21),
            start=np.array([0]),
            stop=np.array([21]),
            shifts=np.array([0]),
        )
        for i, pages in enumerate(own)
    ]
    positions = np.array([20, 20])
    plan = model.plan(cache, positions=positions, slots=slots, reads=reads, jointly=False)
    (kind,) = plan.kinds.values()
    assert next(read.last - read.first for read in kind.reads if read.length >= 16) == 2


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
    monkeypatch.setattr(joint_module, "rotate", lambda apply, states, cos, sin: states)
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
