"""A causal language model that is trained on streams: its network unchanged, stream vectors and silence beside it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from braid.train.staircase import STAIRCASE, register

__all__ = ["StreamNetwork"]


class StreamNetwork(nn.Module):
    """What the Trainer trains.

    The vectors that only streams have, one for each stream and silence's own, are parameters of their own, so that they
    can learn at another pace than the rest; `settle` writes silence back into the network's tables.

    Args:
        hf: The network, as `transformers` built it.
        num_streams: Rows of the stream embeddings; 0 for a network without streams.
        silence_id: The class that means silence; None for a network without streams.
    """

    def __init__(self, hf: PreTrainedModel, num_streams: int, silence_id: int | None) -> None:
        super().__init__()
        register()
        hf.set_attn_implementation(STAIRCASE)
        self.hf = hf
        self.config = hf.config
        self.silence_id = silence_id
        table: nn.Embedding = _table(hf)
        width = table.embedding_dim
        self.stream_embeddings = (
            nn.Parameter(torch.zeros(num_streams, width, dtype=hf.dtype)) if num_streams else None
        )
        self.silence = nn.Parameter(torch.zeros(width, dtype=hf.dtype)) if silence_id is not None else None
        if self.silence is not None:
            with torch.no_grad():
                self.silence.copy_(table.weight[silence_id])
        self.register_buffer("_no_mask", torch.zeros(1, 1, 1, 1, dtype=torch.bool), persistent=False)

    def forward(
        self,
        ids: Tensor,
        streams: Tensor,
        rows: Tensor,
        plan: dict[str, Any],
        asked: Tensor,
        targets: Tensor,
        weights: Tensor,
        num_items_in_batch: Tensor | float | None = None,
    ) -> dict[str, Tensor]:
        """The loss of a packed batch; see `packing.pack` for the arguments.

        Args:
            num_items_in_batch: Sum of the weights of all batches that make up one step; None takes this batch's own.

        Returns:
            `loss`.
        """
        logits = self.logits(ids, streams, rows, plan, asked)
        exact = logits.float() if logits.dtype.itemsize < 4 else logits
        losses = F.cross_entropy(exact, targets, reduction="none")
        total = weights.sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": (losses * weights).sum() / total}

    def logits(
        self, ids: Tensor, streams: Tensor, rows: Tensor, plan: dict[str, Any], asked: Tensor
    ) -> Tensor:
        """Logits of the queries that are asked, `[n, V]`."""
        embedded = self.hf.get_input_embeddings()(ids)
        if self.silence is not None:
            embedded = torch.where((ids == self.silence_id)[:, None], self.silence, embedded)
        if self.stream_embeddings is not None:
            embedded = embedded + self.stream_embeddings[streams]
        told = self.hf(
            inputs_embeds=embedded[None],
            position_ids=rows[None],
            attention_mask=self._no_mask,
            use_cache=False,
            plan=plan,
            logits_to_keep=asked,
            output_hidden_states=self.silence is not None,
        )
        logits: Tensor = told.logits[0]
        if self.silence is None:
            return logits
        silent = told.hidden_states[-1][0, asked] @ self.silence
        return logits.index_copy(1, torch.tensor([self.silence_id], device=logits.device), silent[:, None])

    @torch.no_grad()
    def settle(self) -> None:
        """Write what silence has learned into the network's own tables, which are what is saved."""
        if self.silence is None:
            return
        head = self.hf.get_output_embeddings()
        assert isinstance(head, nn.Linear), "a causal language model has a head"
        _table(self.hf).weight[self.silence_id] = self.silence
        head.weight[self.silence_id] = self.silence


def _table(hf: PreTrainedModel) -> nn.Embedding:
    table = hf.get_input_embeddings()
    assert isinstance(table, nn.Embedding), "a language model has a table of its tokens"
    return table
