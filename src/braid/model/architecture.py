"""What a loaded network is made of, as far as spans care; and what cannot be served rightly.

Nothing here knows a model by heart: layers, windows and RoPEs are read off the configuration and the modules.
What cannot be shifted or masked exactly is refused here, with the reason.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from braid.cache.kv import LayerShape
from braid.errors import UnsupportedModelError

__all__ = ["PROVEN", "Architecture", "LayerKind", "inspect_architecture"]

PROVEN = frozenset({"llama", "qwen2", "qwen3", "mistral", "gemma3_text", "smollm3", "gpt_oss"})
"""Model types whose spans the tests compare with plain attention; others are compared when they are loaded."""

_ATTENDING_LAYERS = frozenset({"full_attention", "sliding_attention"})
_FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn", "proportional"})


class LayerKind(NamedTuple):
    """What the plan must know of a layer; layers of one kind share one plan."""

    window: int | None
    """A query reads keys fewer than so many view positions behind it; None: all of them."""
    rope: str | None
    """Which RoPE rotates the layer's queries: a layer type, `"default"`, or None for layers without RoPE."""


@dataclass(frozen=True)
class Architecture:
    """The attention layers of one network."""

    model_type: str
    layers: tuple[LayerKind, ...]
    shapes: tuple[LayerShape, ...]
    num_heads: int
    hidden_size: int
    max_positions: int
    softcap: bool
    shift_refusal: str | None
    """Why spans cannot be shifted on this model; None when they can."""
    rotary: nn.Module | None
    apply_rotary: Callable[..., tuple[Tensor, Tensor]] | None

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The distinct layer kinds, in order of appearance."""
        return tuple(dict.fromkeys(self.layers))

    def require_shifts(self) -> None:
        """Raise unless spans can be shifted.

        Raises:
            UnsupportedModelError: With the reason, and what works instead.
        """
        if self.shift_refusal is not None:
            raise UnsupportedModelError(
                f"{self.model_type}: {self.shift_refusal}. Views and edits need shifts; native rows "
                "(a topology with `decoding: rows`) work without them"
            )


def inspect_architecture(hf: PreTrainedModel) -> Architecture:
    """Read the attention layers off a loaded network.

    Args:
        hf: A causal language model of `transformers`.

    Raises:
        UnsupportedModelError: The network has layers that cannot be masked exactly.
    """
    config: Any = hf.config.get_text_config(decoder=True)
    model_type = str(config.model_type)

    def refuse(reason: str, advice: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{model_type} cannot be served: {reason}. {advice}")

    if getattr(hf.config, "is_encoder_decoder", False):
        raise refuse(
            "it is an encoder–decoder, whose input is not a stream of the decoder", "Use a decoder-only model"
        )
    layer_types: list[str] = list(getattr(config, "layer_types", None) or [])
    strange = sorted(set(layer_types) - _ATTENDING_LAYERS)
    if strange:
        raise refuse(
            f"it has {', '.join(strange)} layers, whose state cannot be masked, shared or rolled back by stream",
            "Use a model in which every layer is softmax attention (Llama, Qwen2, Qwen3, Mistral, Gemma3, …)",
        )
    if not getattr(hf, "_supports_attention_backend", False):
        raise refuse(
            "its attention does not go through transformers' attention interface",
            "State-space, linear-attention and ALiBi models are of this sort; use a RoPE model",
        )
    attentions = _attention_modules(hf, int(config.num_hidden_layers))
    if len(attentions) != int(config.num_hidden_layers):
        raise refuse(
            f"{len(attentions)} of its {config.num_hidden_layers} layers have self-attention",
            "Use a model in which every layer has",
        )
    rotary = next((m for name, m in hf.named_modules() if name.rsplit(".", 1)[-1] == "rotary_emb"), None)
    apply_rotary = getattr(sys.modules[type(attentions[0]).__module__], "apply_rotary_pos_emb", None)
    layers = tuple(
        LayerKind(_window(config, layer_types, i), _rope_key(config, layer_types, i, attention, rotary))
        for i, attention in enumerate(attentions)
    )
    return Architecture(
        model_type=model_type,
        layers=layers,
        shapes=tuple(_layer_shape(config, attention) for attention in attentions),
        num_heads=int(config.num_attention_heads),
        hidden_size=int(config.hidden_size),
        max_positions=int(getattr(config, "max_position_embeddings", None) or 1 << 30),
        softcap=getattr(config, "attn_logit_softcapping", None) is not None,
        shift_refusal=_shift_refusal(config, rotary, apply_rotary),
        rotary=rotary,
        apply_rotary=apply_rotary,
    )


def _attention_modules(hf: PreTrainedModel, num_layers: int) -> list[nn.Module]:
    """The self-attention module of each layer, by layer index."""
    found: dict[int, nn.Module] = {}
    for module in hf.modules():
        index = getattr(module, "layer_idx", None)
        is_attention = "attention" in type(module).__name__.lower() and hasattr(module, "scaling")
        if is_attention and isinstance(index, int) and 0 <= index < num_layers:
            found[index] = module
    return [found[i] for i in sorted(found)]


def _window(config: Any, layer_types: list[str], layer: int) -> int | None:
    """The layer's sliding window, if it has one."""
    window = getattr(config, "sliding_window", None)
    if layer_types:
        return int(window) if layer_types[layer] == "sliding_attention" and window else None
    return int(window) if window and getattr(config, "use_sliding_window", True) else None


def _rope_key(
    config: Any, layer_types: list[str], layer: int, attention: nn.Module, rotary: nn.Module | None
) -> str | None:
    """The name under which the layer's rotation is found; None for a layer without RoPE."""
    if rotary is None or not getattr(attention, "use_rope", True):
        return None
    per_type = layer_types and isinstance(getattr(rotary, "rope_type", None), dict)
    if not per_type:
        return "default"
    return layer_types[layer] if config.rope_parameters.get(layer_types[layer]) is not None else None


def _layer_shape(config: Any, attention: nn.Module) -> LayerShape:
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    head_dim = getattr(attention, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return LayerShape(heads, int(head_dim), int(head_dim))


def _shift_refusal(config: Any, rotary: nn.Module | None, apply_rotary: Any) -> str | None:
    """Why an extra rotation of the queries would not be a shift of positions."""
    if rotary is None:
        return "positions are not rotary, so a cached key cannot be moved"
    types = getattr(rotary, "rope_type", "default")
    named = set(types.values()) if isinstance(types, dict) else {types}
    unfixed = sorted(str(t) for t in named - _FIXED_ROPES)
    if unfixed:
        return f"its {', '.join(unfixed)} RoPE changes its frequencies with the length, so shifted keys would disagree"
    if apply_rotary is None:
        return "its rotation is not `apply_rotary_pos_emb`, so a query cannot be rotated further"
    parameters = list(inspect.signature(apply_rotary).parameters)
    if parameters[:4] != ["q", "k", "cos", "sin"] or "unsqueeze_dim" not in parameters:
        return "its `apply_rotary_pos_emb` takes other arguments than query, key, cosine and sine"
    return None


def rope_scaling(rotary: nn.Module, rope: str) -> float:
    """The factor by which this RoPE lengthens what it rotates (YaRN's attention scaling; 1 for most)."""
    name = "attention_scaling" if rope == "default" else f"{rope}_attention_scaling"
    return float(getattr(rotary, name, 1.0))


def rope_tables(rotary: nn.Module, rope: str, positions_L: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, of unit norm, of the model's own RoPE at any positions, negative ones included.

    Args:
        rotary: The model's rotary module.
        rope: A `LayerKind.rope`.
        positions_L: Integer positions, `[L]`.
        like: A tensor of the dtype and device wanted.

    Returns:
        `(cos, sin)`, each `[1, L, D]` as the model's `apply_rotary_pos_emb` takes them.
    """
    arguments: dict[str, Any] = {} if rope == "default" else {"layer_type": rope}
    cos, sin = rotary(like, positions_L[None].to(like.device), **arguments)
    scaling = rope_scaling(rotary, rope)
    return (cos, sin) if scaling == 1.0 else (cos / scaling, sin / scaling)


def rotate(
    apply_rotary: Callable[..., tuple[Tensor, Tensor]], states: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Rotate `[1 or K, L, *, D]` states by tables `[1, L, D]` with the model's own rotation."""
    nothing = states[..., :0, :]
    return apply_rotary(states, nothing, cos, sin, unsqueeze_dim=2)[0]
