"""vLLM on a CPU with the work of `braid bench sessions`, in the environment that setup.sh makes.

    make_workload.py  ──JSON──▶  run.py  ──JSON──▶  results/*.json
    (Braid's environment)        (vLLM's environment; Braid is not imported)

The engine is stepped by hand and every step stamped, so that prefill and decode are told apart in one run:

    ▏ prefill_s ▕▏                  decode_s                   ▕
    step, step … until every session has its first token … until every session has its last

All requests are there when the clock starts. The prefix cache is on and empty then; the weights are warm. The scheduler runs in this
process, so that its count of blocks can be read after each step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROUNDS = 3
MAX_SESSIONS = 16


def make_engine(model: str, executor: str, block_size: int, max_len: int) -> Any:
    """vLLM's engine, float32, its scheduler in this process.

    Args:
        model: Folder of the model.
        executor: `mp` for a worker process of its own with bound threads, `uni` for this process.
        block_size: Tokens of a KV block.
        max_len: Longest prompt and answer together.
    """
    from vllm import LLM

    llm = LLM(
        model=model,
        dtype="float32",
        max_num_seqs=MAX_SESSIONS,
        max_model_len=max_len,
        max_num_batched_tokens=4096,
        enable_prefix_caching=True,
        block_size=block_size,
        distributed_executor_backend=executor,
        seed=0,
    )
    return llm.llm_engine


class Stamps:
    """One measured run: when each step ended, and what it brought."""

    def __init__(self, engine: Any, work: dict[str, Any]) -> None:
        self._engine = engine
        self._pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        self._prompts: list[list[int]] = work["prompt_ids"]
        self._output_tokens: int = work["output_tokens"]
        self.output_ids: list[list[int]] = [[] for _ in self._prompts]
        self.cached = [0] * len(self._prompts)
        self.prefill_s = self.total_s = 0.0
        self.peak_blocks = 0

    def run(self) -> None:
        """Add all requests, then step until the last is done."""
        from vllm import SamplingParams, TokensPrompt

        settings = SamplingParams(temperature=0.0, max_tokens=self._output_tokens, ignore_eos=True, detokenize=False)
        began = time.perf_counter()
        for index, ids in enumerate(self._prompts):
            self._engine.add_request(str(index), TokensPrompt(prompt_token_ids=ids), settings)
        while self._engine.has_unfinished_requests():
            for reply in self._engine.step():
                index = int(reply.request_id)
                self.output_ids[index] = list(reply.outputs[0].token_ids)
                self.cached[index] = reply.num_cached_tokens or 0
            now = time.perf_counter() - began
            # The last step frees its blocks; up to then, what was handed out is in use.
            self.peak_blocks = max(self.peak_blocks, self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks())
            if not self.prefill_s and all(self.output_ids):
                self.prefill_s = now
                self.early = sum(map(len, self.output_ids)) - len(self._prompts)
        self.total_s = now

    def figures(self, block_bytes: int) -> dict[str, Any]:
        """The fields of `SessionFigures`."""
        sessions, decode_s = len(self._prompts), self.total_s - self.prefill_s
        tokens = sum(map(len, self.output_ids))
        return {
            "sessions": sessions,
            "prefill_s": round(self.prefill_s, 4),
            "decode_s": round(decode_s, 4),
            "total_s": round(self.total_s, 4),
            "output_tokens": tokens,
            "prefill_tokens": sum(map(len, self._prompts)) - sum(self.cached),
            "peak_kv_bytes": self.peak_blocks * block_bytes,
            "tokens_per_s": round(tokens / self.total_s, 2),
            "decode_tokens_per_s": round((tokens - sessions - self.early) / decode_s, 2),
            "output_ids": self.output_ids,
        }
