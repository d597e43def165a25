"""The one attention function that `transformers` calls in every layer, for every architecture."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from braid.errors import UnsupportedByBackend, UnsupportedModelError
from braid.model.plan import Plan

__all__ = ["ATTENTION", "register"]

ATTENTION = "braid"
"""The name under which spans are registered with `transformers`."""


def span_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: Plan | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend by the plan that was passed to the network's `forward`.

    The mask that the network built is ignored: the plan alone says who reads whom.
    """
    if plan is None:
        raise UnsupportedByBackend(
            "this network attends by spans and needs a plan; for a plain forward, call "
            "`set_attn_implementation('sdpa')` on it first"
        )
    layer = module.layer_idx
    assert isinstance(layer, int)
    if sliding_window is not None and plan.layers[layer].window != sliding_window:
        raise UnsupportedModelError(
            f"layer {layer} asks for a window of {sliding_window}, its configuration for {plan.layers[layer].window}"
        )
    usual = float(query.shape[-1]) ** -0.5
    return plan.attend(layer, query, key, value, usual if scaling is None else scaling, softcap, s_aux), None


def register() -> None:
    """Make `attn_implementation="braid"` known to `transformers`; harmless when repeated."""
    AttentionInterface.register(ATTENTION, span_attention)
