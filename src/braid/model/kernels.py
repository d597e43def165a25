"""Attention kernels: many queries against some keys, with the log-sum-exp that merging several of these takes.

A kernel is a function `(queries, keys, values, mask, scaling, softcap) -> (out, lse)`:

    queries [K, G, L, D]   G heads share a KV head, whose keys are not repeated for them
    keys    [K, T, D]      values [K, T, D]
    mask    [L, T]         added to the scores (0 or -inf), or None when every query reads every key
    out     [K, G, L, D]   lse [K, G, L] in float32, or in float64 where the queries are

What is returned for a query that reads nothing has no meaning.

`reference` is plain mathematics in any dtype and the oracle of the tests; `sdpa` is PyTorch's flash attention for
CPUs, which returns the log-sum-exp beside its output. A kernel for GPUs (`flex`, `flashinfer`) enters here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Kernel", "KernelName", "choose_kernel", "reference", "sdpa"]

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float | None], tuple[Tensor, Tensor]]
KernelName = Literal["reference", "sdpa"]


def reference(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Softmax attention written out."""
    num_kv_heads, group, _, _ = queries.shape
    scores = (queries.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, (group, -1)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).to(values.dtype)
    return (weights.flatten(1, 2) @ values).view(num_kv_heads, group, -1, values.shape[2]), lse


def sdpa(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """PyTorch's flash attention for CPUs."""
    assert softcap is None, "choose_kernel gives softcapped models the reference kernel"
    shape = (*queries.shape[:2], *keys.shape[1:])  # repeated for each head in name only
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 (no public one has lse)
        queries,
        keys[:, None].expand(shape),
        values[:, None].expand(shape),
        0.0,
        False,
        attn_mask=mask,
        scale=scaling,
    )
    return out, lse


def choose_kernel(name: KernelName | None, device: torch.device, *, softcap: bool) -> Kernel:
    """The kernel by name, or the fastest that is exact here when None."""
    if name is None:
        name = "sdpa" if device.type == "cpu" and not softcap else "reference"
    return {"reference": reference, "sdpa": sdpa}[name]
