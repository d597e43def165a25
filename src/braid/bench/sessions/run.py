"""What many sessions cost: one batch under one scheduler, beside stock `transformers` and vLLM on the same work.

    ours          EngineCore over LocalBackend: shared prefix, chunked prefill, decode rows of all in one forward
    one by one    `transformers.generate`, a prompt after another     (a)
    batched       `transformers.generate`, all prompts, padded        (b)
    vLLM          from its committed JSON, or a file of one's own     (c)

The contenders take turns in one run, (a) and (b) in a process that Braid has not touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from braid.bench.machine import describe_machine
from braid.bench.sessions.contenders import (
    SessionFigures,
    StockSessions,
    VllmFigures,
    committed_vllm,
    read_vllm,
)
from braid.bench.sessions.workload import Dialogue, Workload, sessions_workload, ten_turns
from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import InputError
from braid.model.model import Model
from braid.streams.presets import topology as preset
from braid.streams.topology import Topology

__all__ = ["COUNTS", "SessionsFigures", "bench_sessions", "converse", "run_sessions"]

COUNTS = (1, 4, 16)


@dataclass(frozen=True)
class OurFigures:
    """Ours has two figures more than the others: what the engine cost beside the forward.

    Args:
        figures: As of all contenders.
        overhead_ms: Milliseconds of a decode step outside the network, of the step of median length.
        step_ms: Milliseconds a decode step in all, median.
    """

    figures: SessionFigures
    overhead_ms: float
    step_ms: float


@dataclass(frozen=True)
class SessionsFigures:
    """Figures of all contenders, by number of sessions."""

    ours: Mapping[int, OurFigures]
    one_by_one: Mapping[int, SessionFigures]
    batched: Mapping[int, SessionFigures]
    vllm: VllmFigures | None
    turns: Mapping[str, int]
    """Tokens that the ten-turn conversation made each prefill."""
    model: str
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Figures, the ratios that the project promises, and the machine."""
        rows: dict[str, Any] = {}
        for count, own in self.ours.items():
            ours, one, many = own.figures, self.one_by_one.get(count), self.batched.get(count)
            theirs = None if self.vllm is None else self.vllm.figures.get(count)
            rows[str(count)] = {
                "ours": {
                    **ours.to_dict(),
                    "overhead_ms": round(own.overhead_ms, 3),
                    "step_ms": round(own.step_ms, 2),
                },
                "one_by_one": None if one is None else one.to_dict(),
                "batched": None if many is None else many.to_dict(),
                "vllm": None if theirs is None else theirs.to_dict(),
                "total_over_one_by_one": _ratio(ours.tokens_per_s, one and one.tokens_per_s),
                "total_over_batched": _ratio(ours.tokens_per_s, many and many.tokens_per_s),
                "decode_over_batched": _ratio(ours.decode_tokens_per_s, many and many.decode_tokens_per_s),
                "decode_over_vllm": _ratio(ours.decode_tokens_per_s, theirs and theirs.decode_tokens_per_s),
                "total_over_vllm": _ratio(ours.tokens_per_s, theirs and theirs.tokens_per_s),
                "kv_over_batched": _ratio(ours.peak_kv_bytes, many and many.peak_kv_bytes),
                "same_answers_as_batched": None if many is None else _same(ours, many),
            }
        return {
            "sessions": rows,
            "ten_turns_prefill": {
                **self.turns,
                "ratio": _ratio(self.turns.get("ours"), self.turns.get("batched")),
            },
            "vllm_machine": None if self.vllm is None else dict(self.vllm.machine),
            "model": self.model,
            "machine": dict(self.machine),
        }


def _ratio(value: float | None, of: float | None) -> float | None:
    return None if not value or not of else round(value / of, 3)


def _same(ours: SessionFigures, theirs: SessionFigures) -> str:
    """How many answers are the same, token by token: near-ties fall differently where sums have another order."""
    equal = sum(a == b for a, b in zip(ours.output_ids, theirs.output_ids, strict=True))
    return f"{equal} of {len(ours.output_ids)}"


def run_sessions(
    model: Model, work: Workload, *, policy: SchedulerPolicy | None = None, rounds: int = 2
) -> OurFigures:
    """Serve the work on one backend, again and again, and take the fastest round.

    The first round also pays for memory that was never touched, as a server pays when it starts. What one round
    leaves in the prefix cache is forgotten before the next.

    Args:
        model: Stock weights with a chat template.
        work: What is asked.
        policy: Of the scheduler.
        rounds: How often.
    """
    longest = max(len(ids) for ids in work.prompt_ids)
    backend = LocalBackend(model, kv_tokens=longest + (len(work.users) + 1) * (longest + work.output_tokens))
    found: list[OurFigures] = []
    for _ in range(rounds):
        if backend.prefixes is not None:
            backend.prefixes.clear()
        found.append(_round(backend, work, policy))
    backend.close()
    return min(found, key=lambda each: each.figures.total_s)


def _round(backend: LocalBackend, work: Workload, policy: SchedulerPolicy | None) -> OurFigures:
    """All sessions are opened and written to before the clock's first step."""
    sessions = len(work.users)
    computed_before = backend.num_computed
    core = EngineCore(backend, policy=policy)
    topology = sized(preset("plain"), work.system, work.output_tokens)
    conversations = [core.open(topology) for _ in work.users]
    for conversation, user in zip(conversations, work.users, strict=True):
        conversation.write("user", user)
        conversation.end()
    outputs = [conversation.stage.outputs[0] for conversation in conversations]
    for output in outputs:
        output.end_ids = frozenset()  # as the others: an end token is kept, and the answer goes on
    peak_pages, prefill_tokens, first_s, drawn_at_first = 0, 0, 0.0, 0
    steps: list[tuple[float, float]] = []
    began = time.perf_counter()
    while any(not conversation.turn_is_over for conversation in conversations):
        in_network = backend.network_s
        report = core.step(conversations)
        in_network = backend.network_s - in_network
        if report.failures:
            raise report.failures[0][1]
        peak_pages = max(peak_pages, backend.cache.pool.num_used)
        if first_s:
            steps.append((report.seconds, in_network))
        elif all(output.index or output.pending for output in outputs):
            first_s = time.perf_counter() - began
            drawn_at_first = sum(output.index + int(output.pending is not None) for output in outputs)
        if not report.worked:
            break
        if all(len(c.transcript.tokens("output")) >= work.output_tokens for c in conversations):
            break  # what follows is the next turn's history
    total_s = time.perf_counter() - began
    answers = [[token for _, token in c.transcript.tokens("output")] for c in conversations]
    prefill_tokens = backend.num_computed - computed_before - sum(map(len, answers))
    steps.sort()
    middle = steps[len(steps) // 2] if steps else (0.0, 0.0)
    drawn = sum(map(len, answers))
    decode_s = total_s - first_s
    for conversation in conversations:
        conversation.close()
    figures = SessionFigures(
        sessions=sessions,
        prefill_s=first_s,
        decode_s=decode_s,
        total_s=total_s,
        output_tokens=drawn,
        prefill_tokens=prefill_tokens,
        peak_kv_bytes=peak_pages * backend.cache.pool.page_size * backend.cache.bytes_per_token,
        tokens_per_s=drawn / total_s,
        decode_tokens_per_s=(drawn - drawn_at_first) / decode_s if decode_s else 0.0,
        output_ids=answers,
    )
    return OurFigures(figures, (middle[0] - middle[1]) * 1e3, middle[0] * 1e3)


def sized(topology: Topology, system: str, output_tokens: int) -> Topology:
    """The topology under a system prompt, with answers of at most so many tokens."""
    spec = topology.streams["output"].model_copy(update={"max_tokens": output_tokens})
    return topology.with_specs({"output": spec}).model_copy(update={"system": system})


def converse(model: Model, talk: Dialogue) -> int:
    """Hold a conversation, and count the tokens that were prefilled: all that was computed but not drawn.

    Args:
        model: Stock weights with a chat template.
        talk: What the user says.
    """
    backend = LocalBackend(model)
    core = EngineCore(backend)
    conversation = core.open(sized(preset("plain"), talk.system, talk.output_tokens))
    for said in talk.users:
        conversation.write("user", said)
        conversation.end()
        _drive(core, conversation)
    drawn = len(conversation.transcript.tokens("output"))
    core.close()
    return backend.num_computed - drawn


def _drive(core: EngineCore, conversation: Conversation) -> None:
    while not conversation.turn_is_over:
        report = core.step([conversation])
        if report.failures:
            raise report.failures[0][1]


def bench_sessions(
    model: Model,
    *,
    counts: tuple[int, ...] = COUNTS,
    vllm: Path | None = None,
    system_tokens: int = 512,
    output_tokens: int = 128,
    policy: SchedulerPolicy | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> SessionsFigures:
    """Measure all contenders, in turns.

    Args:
        model: Stock weights on a CPU.
        counts: How many sessions.
        vllm: A file that `bench/vllm/run.py` wrote; None takes the committed one, where it is of this model.
        system_tokens, output_tokens: Of the workload.
        policy: Of our scheduler.
        on_progress: Called with the measurements done, and how many there are in all.

    Raises:
        InputError: No counts, or the model is not on a CPU.
        UnsupportedModelError: `transformers` alone cannot run the model.
    """
    if not counts or min(counts) < 1:
        raise InputError("give numbers of sessions, such as 1,4,16")
    if model.device.type != "cpu":
        raise InputError(
            f"{model.name} is on {model.device}; sessions are timed on a CPU: load it with device='cpu'"
        )
    path = committed_vllm(model.name) if vllm is None else vllm
    theirs = None if path is None else read_vllm(path)
    ours: dict[int, OurFigures] = {}
    one_by_one: dict[int, SessionFigures] = {}
    batched: dict[int, SessionFigures] = {}
    total, done = 3 * len(counts) + 1, 0

    def advance() -> None:
        nonlocal done
        done += 1
        if on_progress is not None:
            on_progress(done, total)

    folder = str(model.hf.name_or_path)
    with StockSessions(folder, model.dtype, torch.get_num_threads()) as stock:
        warm = sessions_workload(model.codec, 1, system_tokens=system_tokens, output_tokens=4)
        run_sessions(model, warm, policy=policy)
        stock.batched(warm)
        for count in counts:
            work = sessions_workload(
                model.codec, count, system_tokens=system_tokens, output_tokens=output_tokens
            )
            ours[count] = run_sessions(model, work, policy=policy)
            advance()
            batched[count] = stock.batched(work)
            advance()
            one_by_one[count] = stock.one_by_one(work)
            advance()
        talk = ten_turns(model.codec, system_tokens=system_tokens)
        turns = {"ours": converse(model, talk), "batched": stock.dialogue(talk).prefill_tokens}
        advance()
    return SessionsFigures(ours, one_by_one, batched, theirs, turns, model.name, describe_machine())
