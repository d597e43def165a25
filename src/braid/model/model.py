"""A loaded language model: the network, its tokenizer, and what it was trained with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from braid.cache import KVCache
from braid.errors import CheckpointConflictError, ContextOverflowError, TokenizerError
from braid.model.architecture import PROVEN, inspect_architecture
from braid.model.attention import ATTENTION, register
from braid.model.checkpoint import TrainedStreams
from braid.model.codec import TokenizerCodec
from braid.model.grammar import GrammarCompiler
from braid.model.kernels import KernelName, choose_kernel
from braid.model.linear import use_row_linear
from braid.model.machine import MachineChoice
from braid.model.plan import Plan, build_plan
from braid.model.proof import prove
from braid.model.reads import Ints, SpanRead

__all__ = ["Model"]


class Model:
    """One network that attends by spans. `braid.load` makes it.

    Args:
        hf: The network, as `transformers` built it. Its attention implementation is set to Braid's.
        codec: Its tokenizer.
        name: For people and transcripts.
        trained: What the checkpoint was trained with; None for stock weights.
        stream_embeddings: `s`, one vector a stream, `[H, D]`; None means zeros.
        choice: dtype, device and threads, and why.
        kernel: Which attention kernel; None chooses.

    Raises:
        UnsupportedModelError: The network cannot be served rightly; the message says why.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        codec: TokenizerCodec,
        *,
        name: str,
        trained: TrainedStreams | None = None,
        stream_embeddings: Tensor | None = None,
        choice: MachineChoice | None = None,
        kernel: KernelName | None = None,
    ) -> None:
        self.architecture = inspect_architecture(hf)
        self.hf = hf.eval()
        self.codec = codec
        self.name = name
        self.trained = trained
        self.choice = choice
        self.dtype = hf.dtype
        self.device = hf.device
        self.kernel = choose_kernel(kernel, self.device, softcap=self.architecture.softcap)
        if stream_embeddings is not None and stream_embeddings.shape[-1] != self.architecture.hidden_size:
            raise CheckpointConflictError(
                f"stream embeddings are {stream_embeddings.shape[-1]} wide, the model "
                f"{self.architecture.hidden_size}; they belong to another model"
            )
        self.stream_embeddings_HD = (
            None if stream_embeddings is None else stream_embeddings.to(self.device, self.dtype)
        )
        register()
        self.hf.set_attn_implementation(ATTENTION)
        self.packed_bytes = use_row_linear(self.hf)
        """Bytes of the copies of weights that make rows quick on a CPU."""
        # A mask of four dimensions is taken as ready-made, so the network builds none; spans ignore it.
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)
        self._grammars: GrammarCompiler | None = None
        self._like = torch.empty(0, dtype=self.dtype, device=self.device)
        if self.architecture.model_type not in PROVEN:
            prove(self)

    @property
    def vocab_size(self) -> int:
        """Number of classes that the head predicts."""
        head = self.hf.get_output_embeddings()
        assert head is not None, "a causal language model has a head"
        return int(head.weight.shape[0])

    @property
    def silence_token_id(self) -> int | None:
        """The class that means silence; None for stock weights, which have none."""
        return None if self.trained is None else self.trained.silence_token_id

    @property
    def turn_end_id(self) -> int:
        """The token that ends a turn of a stream.

        Raises:
            TokenizerError: The tokenizer has none.
        """
        if self.codec.eos_id is not None:
            return self.codec.eos_id
        if self.codec.end_ids:
            return self.codec.end_ids[0]
        raise TokenizerError(f"{self.name} has no end token; set `eos_token` in its tokenizer_config.json")

    @property
    def probe_id(self) -> int:
        """What a probe embeds: silence; for stock weights, which have none, the token that begins or ends a text."""
        if self.silence_token_id is not None:
            return self.silence_token_id
        return self.turn_end_id if self.codec.bos_id is None else self.codec.bos_id

    @property
    def max_positions(self) -> int:
        """Positions that the model was made for."""
        return self.architecture.max_positions

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars over the model's vocabulary."""
        if self._grammars is None:
            self._grammars = GrammarCompiler(
                self.codec, vocab_size=self.vocab_size, silence_id=self.silence_token_id
            )
        return self._grammars

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one kept token takes in the cache."""
        return (
            sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in self.architecture.shapes)
            * self.dtype.itemsize
        )

    def new_cache(self, max_tokens: int, page_size: int = 16) -> KVCache:
        """A key-value cache of this model's shape.

        Args:
            max_tokens: Tokens it must hold at least.
            page_size: Tokens a page.
        """
        return KVCache(
            self.architecture.shapes, max_tokens, dtype=self.dtype, device=self.device, page_size=page_size
        )

    def plan(
        self, cache: KVCache, *, positions: Ints, slots: Ints, reads: list[SpanRead], jointly: bool = True
    ) -> Plan:
        """The plan of one forward; see `build_plan`.

        Raises:
            ContextOverflowError: A position lies beyond what the model was made for.
        """
        if len(positions) and int(positions.max()) >= self.architecture.max_positions:
            raise ContextOverflowError(
                f"position {int(positions.max())} lies beyond the {self.architecture.max_positions} that "
                f"{self.name} was made for; close the session, or start a new one with a summary"
            )
        return build_plan(
            self.architecture,
            cache,
            self.kernel,
            positions=positions,
            slots=slots,
            reads=reads,
            like=self._like,
            jointly=jointly,
        )

    @torch.inference_mode()
    def forward(self, plan: Plan, token_ids: Ints, positions: Ints, streams: Ints, predict: Ints) -> Tensor:
        """One forward pass over new tokens.

        Args:
            plan: Of these tokens.
            token_ids: `[N]`; a probe's is the silence token.
            positions: Stored positions, `[N]`.
            streams: The stream of each token, an index of `s`, `[N]`.
            predict: Indices of the tokens whose successors are asked for, `[n]`.

        Returns:
            Logits, `[n, V]`.
        """
        arguments: dict[str, Any] = {
            "inputs_embeds": self.embed(token_ids, streams)[None],
            "position_ids": torch.from_numpy(positions)[None].to(self.device),
            "attention_mask": self._no_mask,
            "use_cache": False,
            "plan": plan,
        }
        if len(predict) == 0:
            self.hf.base_model(**arguments)
            return torch.empty(0, self.vocab_size, dtype=self.dtype, device=self.device)
        keep = torch.from_numpy(predict).to(self.device)
        return self.hf(logits_to_keep=keep, **arguments).logits[0]

    def embed(self, token_ids: Ints, streams: Ints) -> Tensor:
        """Token embedding plus stream embedding, `[N, D]`."""
        embedded_ND = self.hf.get_input_embeddings()(torch.from_numpy(token_ids).to(self.device))
        if self.stream_embeddings_HD is None:
            return embedded_ND
        return embedded_ND + self.stream_embeddings_HD[torch.from_numpy(streams).to(self.device)]
