"""The stock `transformers` forward, in a process of its own into which Braid is never imported.

Run by path, never as a module of the package; `stock` starts it and asks over pipes, a line of JSON each:

    braid bench rows                         this process
    {"tokens": 4}                   ──▶      one forward on 4 new tokens behind the cached ones
                                    ◀──      {"ms": 118.2}

It computes only while the other side waits for the answer, so the two never share the cores.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache


class StockForward:
    """A model and a cache that holds so many tokens whenever nothing is being computed.

    Args:
        folder: Of the network.
        dtype: Name of a torch dtype.
        cached: Tokens in the cache.
    """

    def __init__(self, folder: str, dtype: str, cached: int) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
        self._model = model.eval()
        # Without a config every layer keeps all its tokens, so that the cache can always be cropped.
        self._cache: Any = DynamicCache()
        forward = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in forward else "past_key_values"
        self._vocab = int(model.get_input_embeddings().weight.shape[0])
        self._generator = torch.Generator().manual_seed(0)
        self._forward(cached)

    def time(self, tokens: int) -> float:
        """Milliseconds of one forward on so many new tokens, all of whose logits are computed."""
        ids = self._ids(tokens)
        began = time.perf_counter()
        self._forward(tokens, ids)
        ms = (time.perf_counter() - began) * 1e3
        self._cache.crop(-tokens)
        return ms

    @torch.inference_mode()
    def _forward(self, tokens: int, ids: torch.Tensor | None = None) -> None:
        arguments = {self._cache_argument: self._cache}
        self._model(input_ids=self._ids(tokens) if ids is None else ids, use_cache=True, **arguments)

    def _ids(self, tokens: int) -> torch.Tensor:
        return torch.randint(0, self._vocab, (1, tokens), generator=self._generator)


def main() -> None:
    """Load, say hello, answer until the other side hangs up."""
    folder, dtype, threads, cached = sys.argv[1:]
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)  # whatever a library prints is no answer
        torch.set_num_threads(int(threads))
        stock = StockForward(folder, dtype, int(cached))
        hello = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "is_patched": any(name.split(".")[0] == "braid" for name in sys.modules),
        }
        replies.write(json.dumps(hello) + "\n")
        for line in sys.stdin:
            replies.write(json.dumps({"ms": stock.time(int(json.loads(line)["tokens"]))}) + "\n")


if __name__ == "__main__":
    main()
