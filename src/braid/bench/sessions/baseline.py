"""Stock `transformers.generate` with the work of `braid bench sessions`, in a process that never imports Braid.

Run by path, never as a module of the package; `contenders` starts it and asks over pipes, a line of JSON each:

    braid bench sessions                               this process
    {"mode": "one_by_one", "prompt_ids": …}   ──▶      one `generate` after another, a prompt each
    {"mode": "batched", "prompt_ids": …}      ──▶      one `generate` for all, padded on the left
    {"mode": "dialogue", "users": …}          ──▶      a `generate` a turn, each with the whole conversation so far
                                              ◀──      figures

A stopping criterion that never stops stamps every step, so one call tells prefill and decode apart:

    ▏ prefill_s ▕▏        decode_s        ▕
    generate … first token … second … … last token

It computes only while the other side waits for the answer, so the two never share the cores.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from jinja2 import TemplateError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

WARM_UP_TOKENS = 2


class Stamps(StoppingCriteria):
    """Remembers when each token was drawn; stops nothing."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        """Stamp; nobody is done."""
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


@dataclass(frozen=True)
class Call:
    """One `generate`: its answers, how long its parts took in seconds, and the bytes of its cache at the end."""

    output_ids: list[list[int]]
    prefill_s: float
    decode_s: float
    total_s: float
    kv_bytes: int


class StockGenerate:
    """A model that answers as `transformers` alone has it: sdpa, greedy.

    Args:
        folder: Of the network and, for `dialogue`, its tokenizer.
        dtype: Name of a torch dtype.
    """

    def __init__(self, folder: str, dtype: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
        )
        self._model = model.eval()
        ends = model.generation_config.eos_token_id
        self._end_ids: list[int] = [] if ends is None else ends if isinstance(ends, list) else [ends]
        # The checkpoint's own settings may sample, penalise or stop; here nothing but what is asked for counts.
        model.generation_config = GenerationConfig()
        self._tokenizer: Any = None
        self._folder = folder

    def one_by_one(self, prompt_ids: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Answer one prompt after another."""
        self._generate(prompt_ids[:1], WARM_UP_TOKENS)
        return _figures(prompt_ids, [self._generate([ids], output_tokens) for ids in prompt_ids])

    def batched(self, prompt_ids: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Answer all prompts in one call."""
        self._generate(prompt_ids, WARM_UP_TOKENS)
        return _figures(prompt_ids, [self._generate(prompt_ids, output_tokens)])

    def dialogue(self, system: str, users: list[str], output_tokens: int) -> dict[str, Any]:
        """Answer turn by turn, the whole conversation in each prompt; end tokens end an answer."""
        if self._tokenizer is None:
            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
        tokenizer = self._tokenizer
        messages: list[dict[str, str]] = []
        prompt_tokens: list[int] = []
        answers: list[str] = []
        for user in users:
            messages.append({"role": "user", "content": user})
            prompt = tokenizer.encode(self._render(system, messages), add_special_tokens=False)
            call = self._generate([prompt], output_tokens, self._end_ids)
            answers.append(tokenizer.decode(call.output_ids[0], skip_special_tokens=True))
            messages.append({"role": "assistant", "content": answers[-1]})
            prompt_tokens.append(len(prompt))
        return {"prefill_tokens": sum(prompt_tokens), "prompt_tokens": prompt_tokens, "answers": answers}

    def _render(self, system: str, messages: list[dict[str, str]]) -> str:
        """The chat template's text; where it knows no system role, the prompt opens the first user message."""
        try:
            asked = [{"role": "system", "content": system}, *messages]
            return self._tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        except TemplateError:
            first = {"role": "user", "content": f"{system}\n\n{messages[0]['content']}"}
            asked = [first, *messages[1:]]
            return self._tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)

    @torch.inference_mode()
    def _generate(
        self, prompt_ids: list[list[int]], output_tokens: int, end_ids: list[int] | None = None
    ) -> Call:
        longest = max(map(len, prompt_ids))
        pad = end_ids[0] if end_ids else 0  # masked, so any token will do
        ids_BL = torch.tensor([[pad] * (longest - len(ids)) + ids for ids in prompt_ids])
        mask_BL = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids])
        settings = GenerationConfig(
            do_sample=False,
            max_new_tokens=output_tokens,
            eos_token_id=end_ids or None,
            pad_token_id=pad,
            return_dict_in_generate=True,
            use_cache=True,
        )
        stamps = Stamps()
        gc.collect()
        gc.disable()
        try:
            began = time.perf_counter()
            done: Any = self._model.generate(
                input_ids=ids_BL,
                attention_mask=mask_BL,
                generation_config=settings,
                stopping_criteria=StoppingCriteriaList([stamps]),
            )
            total_s = time.perf_counter() - began
        finally:
            gc.enable()
        first, last = stamps.times[0], stamps.times[-1]
        # Newer versions call the field `cache`.
        cache = done["cache"] if "cache" in done else done["past_key_values"]
        return Call(
            done["sequences"][:, longest:].tolist(), first - began, last - first, total_s, kv_bytes(cache)
        )


def kv_bytes(cache: Any) -> int:
    """Bytes of all keys and values in a cache, padding included."""
    return sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))


def _figures(prompt_ids: list[list[int]], calls: list[Call]) -> dict[str, Any]:
    """What `contenders.SessionFigures` holds; calls follow each other, so the largest cache is the peak."""
    output_ids = [ids for call in calls for ids in call.output_ids]
    tokens = sum(map(len, output_ids))
    decode_s, total_s = sum(call.decode_s for call in calls), sum(call.total_s for call in calls)
    return {
        "sessions": len(prompt_ids),
        "prefill_s": sum(call.prefill_s for call in calls),
        "decode_s": decode_s,
        "total_s": total_s,
        "output_tokens": tokens,
        "prefill_tokens": sum(map(len, prompt_ids)),
        "peak_kv_bytes": max(call.kv_bytes for call in calls),
        "tokens_per_s": tokens / total_s,
        # The prefill brought the first token of each.
        "decode_tokens_per_s": (tokens - len(output_ids)) / decode_s if decode_s else 0.0,
        "output_ids": output_ids,
    }


def main() -> None:
    """Load, say hello, answer until the other side hangs up."""
    folder, dtype, threads = sys.argv[1:]
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)  # whatever a library prints is no answer
        torch.set_num_threads(int(threads))
        stock = StockGenerate(folder, dtype)
        hello = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "is_patched": any(name.split(".")[0] == "braid" for name in sys.modules),
        }
        replies.write(json.dumps(hello) + "\n")
        modes = {"one_by_one": stock.one_by_one, "batched": stock.batched, "dialogue": stock.dialogue}
        for line in sys.stdin:
            request = json.loads(line)
            replies.write(json.dumps(modes[request.pop("mode")](**request)) + "\n")


if __name__ == "__main__":
    main()
