"""The stock forward of `transformers` in another process, beside which rows are timed."""

from __future__ import annotations

from pathlib import Path

import torch

from braid.bench.process import BaselineProcess

__all__ = ["StockProcess"]


class StockProcess(BaselineProcess):
    """The stock forward in another process; to be used as a context manager.

    Args:
        folder: Of the network, as `transformers` loads it.
        dtype: Of its weights.
        threads: CPU threads.
        cached: Tokens in its cache.

    Raises:
        UnsupportedModelError: `transformers` cannot run it; the message has the end of what it said.
    """

    def __init__(self, folder: str, dtype: torch.dtype, threads: int, cached: int) -> None:
        name = str(dtype).removeprefix("torch.")
        super().__init__(
            Path(__file__).with_name("baseline.py"), [folder, name, str(threads), str(cached)], "rows"
        )

    def time(self, tokens: int) -> float:
        """Milliseconds of one stock forward on so many new tokens."""
        return float(self.ask({"tokens": tokens})["ms"])
