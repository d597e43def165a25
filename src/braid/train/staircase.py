"""Attention over a packed batch: every query reads a prefix of its reader's keys, and itself.

The key of a probe is read by the probe alone; so self is a column of its own for every query, and probes need nothing
else. One softmax over `[prefix, self]` is the merge of the two by their log-sum-exp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from braid.errors import UnsupportedByBackend

__all__ = ["STAIRCASE", "register", "staircase"]

STAIRCASE = "braid_training"
TILE = 1 << 26
"""Scores computed at once; a longer document is attended a tile of queries after another."""


def staircase(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    plan: dict[str, Any] | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function of training; shapes as `transformers` gives them, batch 1.

    Args:
        query: `[1, A, S, D]`.
        key, value: `[1, K, S, D]`.
        plan: Of `packing.pack`, with `masks`: those made so far in this forward, by window.

    Returns:
        `[1, S, A, D]`.
    """
    if plan is None:
        raise UnsupportedByBackend("a network that is trained on streams needs the plan of its batch")
    scale = float(query.shape[-1]) ** -0.5 if scaling is None else scaling
    queries_SAD, keys_SKD, values_SKD = (each[0].transpose(0, 1) for each in (query * scale, key, value))
    groups = queries_SAD.shape[1] // keys_SKD.shape[1]
    if groups > 1:
        keys_SKD = keys_SKD.repeat_interleave(groups, 1)
        values_SKD = values_SKD.repeat_interleave(groups, 1)
    own_SA = (queries_SAD * keys_SKD).sum(-1)
    parts: list[Tensor] = []
    for reader, hidden in zip(plan["readers"], _masks(plan, sliding_window), strict=True):
        queries, keys = reader["queries"], reader["keys"]
        keys_NALD = keys_SKD[keys].transpose(1, 2)
        values_NALD = values_SKD[keys].transpose(1, 2)
        num_documents, num_queries = queries.shape
        step = max(1, TILE // max(1, num_documents * queries_SAD.shape[1] * keys.shape[1]))
        pieces: list[Tensor] = []
        for start in range(0, num_queries, step):
            index = queries[:, start : start + step]
            given = (
                queries_SAD[index].transpose(1, 2),
                keys_NALD,
                values_NALD,
                own_SA[index].transpose(1, 2),
                values_SKD[index].transpose(1, 2),
                hidden[:, None, start : start + step],
                softcap,
                s_aux,
            )
            is_one = step >= num_queries
            piece = _attend(*given) if is_one else checkpoint(_attend, *given, use_reentrant=False)
            pieces.append(piece)
        attended = pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2)
        parts.append(attended.transpose(1, 2).flatten(0, 1)[reader["valid"]])
    return torch.cat(parts)[plan["inverse"]][None], None


def _masks(plan: dict[str, Any], window: int | None) -> list[Tensor]:
    """What the queries of each reader do not see; made by the first of the layers that have this window."""
    made: dict[int | None, list[Tensor]] = plan["masks"]
    if window not in made:
        made[window] = [_mask(reader, plan["rows"], window) for reader in plan["readers"]]
    return made[window]


def _mask(reader: dict[str, Tensor], rows: Tensor, window: int | None) -> Tensor:
    """What the queries of a reader do not see, `[documents, queries, keys]`."""
    queries, keys, counts = reader["queries"], reader["keys"], reader["counts"]
    hidden = torch.arange(keys.shape[1], device=keys.device) >= counts[:, :, None]
    if "hidden" in reader:
        hidden |= reader["hidden"]
    if window is not None:
        hidden |= rows[keys][:, None, :] <= (rows[queries] - window)[:, :, None]
    return hidden


def _attend(
    queries_NARD: Tensor,
    keys_NALD: Tensor,
    values_NALD: Tensor,
    own_NAR: Tensor,
    own_values_NARD: Tensor,
    hidden_N1RL: Tensor,
    softcap: float | None,
    sinks_A: Tensor | None,
) -> Tensor:
    scores = queries_NARD @ keys_NALD.transpose(-1, -2)
    own = own_NAR[..., None]
    if softcap is not None:
        scores, own = torch.tanh(scores / softcap) * softcap, torch.tanh(own / softcap) * softcap
    columns = [scores.masked_fill(hidden_N1RL, -torch.inf), own]
    if sinks_A is not None:
        columns.append(sinks_A.view(1, -1, 1, 1).expand(*own.shape))
    num_keys = scores.shape[-1]
    weights = torch.cat(columns, -1).softmax(-1)
    return weights[..., :num_keys] @ values_NALD + weights[..., num_keys : num_keys + 1] * own_values_NARD


def register() -> None:
    """Make it known to `transformers`; harmless when repeated."""
    AttentionInterface.register(STAIRCASE, staircase)
