"""vLLM on a CPU with the work of `braid bench sessions`, in the environment that setup.sh makes.

    make_workload.py  ──JSON──▶  run.py  ──JSON──▶  results/MODEL-cpu.json
    Braid's environment          vLLM's environment, into which Braid is never imported

The engine is stepped by hand and every step is stamped, so that one run tells prefill and decode apart:

    ▏          prefill_s            ▕▏               decode_s              ▕
    step … every session has its first token … step … every session has its last

All requests are there when the clock starts; the prefix cache is on, and empty. Of several rounds the fastest counts.
"""

from __future__ import annotations

import argparse
import ctypes.util
import gc
import json
import os
import platform
import statistics
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

MAX_SESSIONS = 16
WARM_UP_TOKENS = 4
KV_GIB = 2

RUN_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # The scheduler stays in this process, so that its count of blocks can be read after every step.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
}


def main() -> None:
    """Read the work, measure it, print one line of JSON."""
    parser = argparse.ArgumentParser(description="Measure vLLM on this CPU; prints one line of JSON.")
    parser.add_argument("work", type=Path, help="what make_workload.py printed")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each number of sessions (3)")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="CPU threads (all cores)"
    )
    parser.add_argument(
        "--executor", choices=("uni", "mp"), default="uni", help="model in this process, or its own"
    )
    parser.add_argument("--block-size", type=int, default=32, help="tokens of a KV block (32)")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))  # asked before OpenMP binds this thread to one of them
    use_fast_libraries(options.threads)
    load = os.getloadavg()[0]  # before this process adds its own
    with os.fdopen(os.dup(1), "w") as reply:
        os.dup2(2, 1)  # whatever a library prints is no figure
        asked = json.loads(options.work.read_text(encoding="utf-8"))
        engine = make_engine(asked["folder"], asked["works"], options.executor, options.block_size)
        runs = {
            str(len(work["prompt_ids"])): {"digest": work["digest"], **measure(engine, work, options.rounds)}
            for work in asked["works"]
        }
        result = {"model": asked["model"], "machine": describe(options, cores, load), "runs": runs}
        reply.write(json.dumps(result) + "\n")


def use_fast_libraries(threads: int) -> None:
    """Start anew with the OpenMP and the allocator that vLLM's guide for CPUs recommends; both must be preloaded."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return  # it has been done, or somebody knows better
    cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:threads])
    openmp = Path(sys.prefix, "lib", "libiomp5.so")
    libraries = [str(openmp) if openmp.is_file() else None, ctypes.util.find_library("tcmalloc_minimal")]
    environment = {
        **os.environ,
        **RUN_ENVIRONMENT,
        "LD_PRELOAD": ":".join(name for name in libraries if name),
        "VLLM_CPU_OMP_THREADS_BIND": cores,
        "OMP_NUM_THREADS": str(threads),
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{cores}]",
        "KMP_BLOCKTIME": "5",  # with these two, vLLM's own choice for workers of their own
        "KMP_TPAUSE": "0",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)  # noqa: S606 (itself, without a shell)


def make_engine(folder: str, works: list[dict[str, Any]], executor: str, block_size: int) -> Any:
    """Load the model: float32, compiled, with prefix caching.

    Args:
        folder: Of the model.
        works: All that it will be given.
        executor: `uni` for this process, `mp` for a worker process.
        block_size: Tokens of a KV block.
    """
    from vllm import LLM

    longest = max(len(ids) + work["output_tokens"] for work in works for ids in work["prompt_ids"])
    llm = LLM(
        model=folder,
        dtype="float32",
        max_num_seqs=MAX_SESSIONS,
        max_model_len=-(-longest // 256) * 256,
        max_num_batched_tokens=4096,
        enable_prefix_caching=True,
        block_size=block_size,
        distributed_executor_backend=executor,
        seed=0,
    )
    return llm.llm_engine


def measure(engine: Any, work: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Warm up, then measure some rounds, each with an empty prefix cache.

    Returns:
        `figures` of the fastest round; of each round the tokens a second, in all and in decode, and the shortest and
        the median step of the decode in milliseconds: far apart, they say that the machine was not idle.
    """
    Run(engine, {**work, "output_tokens": WARM_UP_TOKENS}).finish()
    found: list[dict[str, Any]] = []
    steps: list[dict[str, float]] = []
    for _ in range(rounds):
        assert engine.reset_prefix_cache(), "something is still running"
        run = Run(engine, work)
        run.finish()
        found.append(run.figures())
        steps.append(run.decode_step_ms())
    return {
        "rounds": {
            **{name: [each[name] for each in found] for name in ("tokens_per_s", "decode_tokens_per_s")},
            "decode_step_ms": steps,
        },
        "figures": min(found, key=lambda each: each["total_s"]),
    }


class Run:
    """One run of some sessions.

    Args:
        engine: vLLM's.
        work: Prompts, and how many tokens to answer each with.
    """

    def __init__(self, engine: Any, work: dict[str, Any]) -> None:
        self._engine = engine
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._prompts: list[list[int]] = work["prompt_ids"]
        self._output_tokens: int = work["output_tokens"]
        self._output_ids: list[list[int]] = [[] for _ in self._prompts]
        self._cached = [0] * len(self._prompts)
        self._prefill_s = self._total_s = 0.0
        self._decode_steps: list[float] = []
        self._tokens_of_prefill = 0
        self._peak_blocks = 0

    def finish(self) -> None:
        """Add all requests, then step until the last is done."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        settings = SamplingParams(
            temperature=0.0, max_tokens=self._output_tokens, ignore_eos=True, detokenize=False
        )
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        for index, ids in enumerate(self._prompts):
            self._engine.add_request(str(index), TokensPrompt(prompt_token_ids=ids), settings)
        while self._engine.has_unfinished_requests():
            self._step()
            before, self._total_s = self._total_s, time.perf_counter() - began
            if self._prefill_s:
                self._decode_steps.append(self._total_s - before)
            elif all(self._output_ids):
                self._prefill_s = self._total_s
                self._tokens_of_prefill = sum(map(len, self._output_ids))
        gc.enable()

    def _step(self) -> None:
        for reply in self._engine.step():
            index = int(reply.request_id)
            self._output_ids[index] = list(reply.outputs[0].token_ids)
            self._cached[index] = reply.num_cached_tokens or 0
        pool = self._scheduler.kv_cache_manager.block_pool
        # One block is a placeholder that is never handed out. A step that ends a request has freed its blocks by now,
        # but all end together here, and the step before had as many, or one a session less.
        self._peak_blocks = max(self._peak_blocks, pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def decode_step_ms(self) -> dict[str, float]:
        """The shortest and the median step after the prefill."""
        steps = self._decode_steps
        return {"min": round(min(steps) * 1e3, 1), "median": round(statistics.median(steps) * 1e3, 1)}

    def figures(self) -> dict[str, Any]:
        """What `SessionFigures` in `braid.bench.sessions.contenders` holds."""
        tokens, decode_s = sum(map(len, self._output_ids)), self._total_s - self._prefill_s
        (group,) = self._scheduler.kv_cache_config.kv_cache_groups
        block_bytes = group.kv_cache_spec.page_size_bytes * len(group.layer_names)
        return {
            "sessions": len(self._prompts),
            "prefill_s": round(self._prefill_s, 4),
            "decode_s": round(decode_s, 4),
            "total_s": round(self._total_s, 4),
            "output_tokens": tokens,
            "prefill_tokens": sum(map(len, self._prompts)) - sum(self._cached),
            "peak_kv_bytes": self._peak_blocks * block_bytes,
            "tokens_per_s": round(tokens / self._total_s, 2),
            "decode_tokens_per_s": round((tokens - self._tokens_of_prefill) / decode_s, 2),
            "output_ids": self._output_ids,
        }


def describe(options: argparse.Namespace, cores: int, load: float) -> dict[str, Any]:
    """Processor, versions, and what vLLM was told."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    preloaded = [Path(name).name for name in os.environ["LD_PRELOAD"].split(":") if name]
    return {
        "cpu": next(names, platform.machine()),
        "cores": cores,
        "threads": options.threads,
        "load": round(load, 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "vllm": f"vllm-cpu {version('vllm-cpu')}",
        "date": datetime.now(UTC).date().isoformat(),
        "settings": {
            "dtype": "float32",
            "max_num_seqs": MAX_SESSIONS,
            "prefix_caching": True,
            "block_size": options.block_size,
            "executor": options.executor,
            "rounds": options.rounds,
            "preloaded": preloaded,
        },
    }


if __name__ == "__main__":
    main()
