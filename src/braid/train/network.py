"""A causal language model that is trained on streams: its network unchanged, stream vectors and silence beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from braid.train.staircase import STAIRCASE, register

__all__ = ["StreamNetwork", "token_tables"]


class StreamNetwork(nn.Module):
    """What the Trainer trains.

    The vectors that only streams have, one for each stream and silence's own, are parameters of their own, so that they
    can learn at another pace than the rest; `settled` puts silence back into the network's tables.

    Args:
        hf: The network, as `transformers` built it.
        num_streams: Rows of the stream embeddings; 0 for a network without streams.
        silence_id: The class that means silence; None for a network without streams.
    """

    accepts_loss_kwargs = True
    """For the Trainer: the loss is normalised by what it counts over a whole step."""

    def __init__(self, hf: PreTrainedModel, num_streams: int, silence_id: int | None) -> None:
        super().__init__()
        register()
        hf.set_attn_implementation(STAIRCASE)
        self.hf = hf
        self.config = hf.config
        self.silence_id = silence_id
        table, head = token_tables(hf)
        self.is_tied = head.weight is table.weight
        width, dtype = table.embedding_dim, table.weight.dtype
        self.stream_embeddings = (
            nn.Parameter(torch.zeros(num_streams, width, dtype=dtype)) if num_streams else None
        )
        self.silence = self.silence_head = None
        if silence_id is not None:
            self.silence = nn.Parameter(table.weight[silence_id].detach().clone())
            if not self.is_tied:
                self.silence_head = nn.Parameter(head.weight[silence_id].detach().clone())
        self.register_buffer("_no_mask", torch.zeros(1, 1, 1, 1, dtype=torch.bool), persistent=False)

    @property
    def _no_split_modules(self) -> Any:
        """For FSDP: what is shared out as one."""
        return getattr(self.hf, "_no_split_modules", None)

    @property
    def weights_dtype(self) -> torch.dtype:
        """Of its weights."""
        return next(self.parameters()).dtype

    @property
    def max_positions(self) -> int:
        """Rows that an example may have."""
        config = self.config.get_text_config(decoder=True)
        return int(getattr(config, "max_position_embeddings", None) or 1 << 30)

    @property
    def own_parameters(self) -> dict[str, nn.Parameter]:
        """What only streams have, by name."""
        return {name: each for name, each in self.named_parameters() if not name.startswith("hf.")}

    def forward(
        self,
        ids: Tensor,
        streams: Tensor,
        rows: Tensor,
        plan: dict[str, Any],
        asked: Tensor,
        targets: Tensor,
        weights: Tensor,
        total: float,
        num_items_in_batch: Tensor | float | None = None,
    ) -> dict[str, Tensor]:
        """The loss of a packed batch; see `packing.pack` for the arguments.

        Args:
            num_items_in_batch: Sum of the totals of all batches that make up one step; None takes this batch's own.

        Returns:
            `loss`.
        """
        logits = self.logits(ids, streams, rows, plan, asked)
        exact = logits.float() if logits.dtype.itemsize < 4 else logits
        losses = F.cross_entropy(exact, targets, reduction="none")
        divisor = total if num_items_in_batch is None else num_items_in_batch
        return {"loss": (losses * weights).sum() / divisor}

    def logits(
        self, ids: Tensor, streams: Tensor, rows: Tensor, plan: dict[str, Any], asked: Tensor
    ) -> Tensor:
        """Logits of the queries that are asked, `[n, V]`."""
        table, head = token_tables(self.hf)
        embedded = table(ids)
        if self.silence is not None:
            scale = getattr(table, "embed_scale", None)
            silence = self.silence if scale is None else self.silence * scale.to(self.silence.dtype)
            embedded = torch.where((ids == self.silence_id)[:, None], silence, embedded)
        if self.stream_embeddings is not None:
            embedded = embedded + self.stream_embeddings[streams]
        told = self.hf(
            inputs_embeds=embedded[None],
            position_ids=rows[None],
            attention_mask=self._no_mask,
            use_cache=False,
            plan={**plan, "masks": {}},  # which its layers share
            logits_to_keep=asked,
            output_hidden_states=self.silence is not None,
        )
        logits: Tensor = told.logits[0]
        if self.silence is None:
            return logits
        silence = self.silence if self.silence_head is None else self.silence_head
        silent = told.hidden_states[-1][0, asked] @ silence
        bias: Any = head.bias
        silent = _finished(self.config, silent if bias is None else silent + bias[self.silence_id])
        place = torch.tensor([self.silence_id], device=logits.device)
        return logits.index_copy(1, place, silent[:, None].to(logits.dtype))

    def take_silence(self) -> None:
        """Take silence from the network's tables, where `settled` put it."""
        if self.silence is None:
            return
        table, head = token_tables(self.hf)
        with torch.no_grad():
            self.silence.copy_(table.weight[self.silence_id])
            if self.silence_head is not None:
                self.silence_head.copy_(head.weight[self.silence_id])

    def settled(self, state: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Weights of the network alone, with what silence has learned in its tables.

        Args:
            state: Of the whole, where it had to be gathered; this one's own if None.
        """
        state = self.state_dict() if state is None else state
        weights = {name.removeprefix("hf."): each for name, each in state.items() if name.startswith("hf.")}
        names = {id(module): f"{name}.weight" for name, module in self.hf.named_modules()}
        table, head = (names[id(module)] for module in token_tables(self.hf))
        if self.is_tied:
            weights.pop(head, None)  # the table under another name
        if self.silence_id is not None:
            weights[table] = _with_row(weights[table], self.silence_id, state["silence"])
            if not self.is_tied:
                weights[head] = _with_row(weights[head], self.silence_id, state["silence_head"])
        return weights


def _with_row(table: Tensor, row: int, value: Tensor) -> Tensor:
    return torch.cat([table[:row], value.to(table)[None], table[row + 1 :]])


def _finished(config: Any, logits: Tensor) -> Tensor:
    """What some architectures still do to their logits; silence's own skip the network's head."""
    scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    cap = getattr(config, "final_logit_softcapping", None)
    if scale is not None:
        logits = logits * scale
    if divisor is not None:
        logits = logits / divisor
    return logits if cap is None else torch.tanh(logits / cap) * cap


def token_tables(hf: Any) -> tuple[nn.Embedding, nn.Linear]:
    """The table of a network's tokens, and its head; one and the same weight where they are tied."""
    table, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    assert isinstance(table, nn.Embedding), "a language model has a table of its tokens"
    assert isinstance(head, nn.Linear), "a causal language model has a head"
    return table, head
