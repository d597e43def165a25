"""Attention kernels: queries of one group against one extent of keys, with the log-sum-exp for the merge.

A kernel is a function `(queries, keys, values, mask, scaling, softcap) -> (out, lse)`:

    queries [1, K, L, D]   the G heads that share a KV head are folded into L, so that no key is repeated
    keys    [1, K, T, D]   values [1, K, T, D]
    mask    [1, 1, L, T]   added to the scores (0 or -inf), or None when every query reads every key
    out     [1, K, L, D]   lse [1, K, L] in float32, or in float64 where the queries are

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
    scores = (queries @ keys.transpose(-1, -2)) * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    return (torch.exp(scores - lse[..., None]).to(values.dtype) @ values), lse


def sdpa(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """PyTorch's flash attention for CPUs."""
    assert softcap is None, "choose_kernel gives softcapped models the reference kernel"
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 (no public one has lse)
        queries, keys, values, 0.0, False, attn_mask=mask, scale=scaling
    )
    return out, lse


def choose_kernel(name: KernelName | None, device: torch.device, *, softcap: bool) -> Kernel:
    """The kernel by name, or the fastest that is exact here when None."""
    if name is None:
        name = "sdpa" if device.type == "cpu" and not softcap else "reference"
    return {"reference": reference, "sdpa": sdpa}[name]
