"""Is a network served rightly? Spans against the network's own attention, on the network itself.

Architectures that the tests prove skip this; any other is compared once, when it is loaded, and refused if it differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from braid.errors import UnsupportedModelError
from braid.model.attention import ATTENTION
from braid.model.reads import SpanRead

if TYPE_CHECKING:
    from braid.model.model import Model

__all__ = ["own_logits", "prove", "span_logits"]

_RELATIVE_BOUND = {torch.float64: 1e-5, torch.float32: 1e-3}


def own_logits(model: Model, token_ids: Sequence[int]) -> Tensor:
    """Logits of one sequence by the network's own eager attention, `[L, V]`."""
    model.hf.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            return model.hf(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits[
                0
            ]
    finally:
        model.hf.set_attn_implementation(ATTENTION)


def span_logits(
    model: Model,
    token_ids: Sequence[int],
    spans: Sequence[int],
    bases: Sequence[int],
    chunk: int,
    *,
    jointly: bool = True,
) -> Tensor:
    """Logits of the same sequence, cut into spans that are stored at positions of their own.

    Args:
        model: Any model.
        token_ids: The sequence, `L`.
        spans: Length of each span; they add up to `L`.
        bases: Stored position of each span's first token. Where a base is not the span's place in the sequence,
            reading it takes a shift.
        chunk: New tokens a forward.
        jointly: Let small forwards be attended jointly, or read by read, as large ones are.

    Returns:
        `[L, V]`.
    """
    cache = model.new_cache(len(token_ids) + 4 * len(spans), page_size=4)
    lists = [cache.new_list() for _ in spans]
    offsets = np.cumsum([0, *spans])
    logits: list[Tensor] = []
    for own, length in enumerate(spans):
        for start in range(0, length, chunk):
            stop = min(length, start + chunk)
            index = np.arange(start, stop, dtype=np.int64)
            slots = lists[own].append(stop - start)
            reads = [
                SpanRead(
                    queries=np.arange(stop - start, dtype=np.int64),
                    pages=lists[read],
                    positions=bases[read] + np.arange(lists[read].length, dtype=np.int64),
                    start=np.zeros_like(index),
                    stop=index + 1 if read == own else np.full_like(index, spans[read]),
                    shifts=np.full_like(index, (offsets[own] - bases[own]) - (offsets[read] - bases[read])),
                )
                for read in range(own + 1)
            ]
            positions = bases[own] + index
            plan = model.plan(cache, positions=positions, slots=slots, reads=reads, jointly=jointly)
            new = np.asarray(token_ids[offsets[own] + start : offsets[own] + stop], dtype=np.int64)
            logits.append(
                model.forward(plan, new, positions, np.zeros_like(index), predict=np.arange(stop - start))
            )
    for pages in lists:
        pages.release()
    return torch.cat(logits)


def prove(model: Model) -> float:
    """Compare spans with the network's own attention.

    Returns:
        The largest difference of a logit, as a share of their spread.

    Raises:
        UnsupportedModelError: They differ; the network would be served wrongly.
    """
    token_ids = np.random.default_rng(0).integers(0, min(model.vocab_size, 10_000), 24).tolist()
    bases = (0, 10, 17) if model.architecture.shift_refusal is not None else (0, 3, 40)
    embeddings, model.stream_embeddings_HD = model.stream_embeddings_HD, None
    try:
        expected = own_logits(model, token_ids)
        ways = [
            span_logits(model, token_ids, (10, 7, 7), bases, chunk=4, jointly=way) for way in (True, False)
        ]
    finally:
        model.stream_embeddings_HD = embeddings
    difference = max(float((found - expected).abs().max() / expected.std()) for found in ways)
    if not difference <= _RELATIVE_BOUND.get(model.dtype, 0.15):
        raise UnsupportedModelError(
            f"{model.name} ({model.architecture.model_type}) computes other logits by spans than by its own attention: "
            f"they differ by {difference:.2g} of their spread. Its attention does something that Braid does not know; "
            "use an architecture that is proven (Llama, Qwen2, Qwen3, Mistral, Gemma3, SmolLM3, GPT-OSS)"
        )
    return difference
