"""Small random networks of every architecture that Braid promises, in float64 so that equality means equality."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

VOCAB = 300
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}


def _config(name: str) -> Any:
    match name:
        case "llama":
            return LlamaConfig(**_SMALL)
        case "qwen2":
            return Qwen2Config(**{k: v for k, v in _SMALL.items() if k != "head_dim"})
        case "qwen3":
            return Qwen3Config(**_SMALL)
        case "mistral-sliding":
            return MistralConfig(**_SMALL, sliding_window=7)
        case "gemma3":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            return Gemma3TextConfig(**_SMALL, sliding_window=6, layer_types=kinds, query_pre_attn_scalar=16)
        case "llama-yarn":
            return LlamaConfig(**_SMALL, rope_parameters=_YARN)
        case "smollm3":
            return SmolLM3Config(**_SMALL, no_rope_layers=[1, 0, 1])
        case "gpt-oss":
            kinds = ["sliding_attention", "full_attention", "sliding_attention"]
            return GptOssConfig(
                **_SMALL,
                num_local_experts=2,
                num_experts_per_tok=1,
                sliding_window=6,
                layer_types=kinds,
                rope_parameters=_YARN,
            )
        case _:
            raise AssertionError(f"no network is called {name}")


ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral-sliding", "gemma3", "llama-yarn", "smollm3", "gpt-oss")


@cache
def network(name: str, seed: int = 0) -> PreTrainedModel:
    """A random network; weights are scaled up so that attention is far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hf = AutoModelForCausalLM.from_config(
            _config(name), dtype=torch.float64, experts_implementation="eager"
        )
        for parameter in hf.parameters():
            if parameter.dim() >= 2:
                parameter.data.mul_(4.0)
            else:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
    _round_frequencies(hf)
    return hf.eval()


def _round_frequencies(hf: PreTrainedModel) -> None:
    """Give every RoPE frequencies of few bits.

    Networks compute angles in float32, whatever their own dtype. With these frequencies the angles are exact, so that
    a comparison in float64 measures the code under test and not the rounding of `position * frequency`.
    """
    for name, buffer in hf.named_buffers():
        if name.endswith("inv_freq"):
            mantissa, exponent = torch.frexp(buffer)
            buffer.copy_(torch.ldexp((mantissa * 2048).round() / 2048, exponent))
