"""`braid bench fallback`: where streams do not pay, and whether the engine sees it.

A short question is given at once. Every round answers it once with the streams that were asked for and once with the
one stream to which the engine may fall back, in turns, so that noise on the machine hits both alike. Neither ends its
answer early, so that both say equally much. Beside the seconds stands what the engine estimated and chose.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from braid.bench.machine import describe_machine
from braid.engine.costs import costs_of, endless_bias
from braid.engine.fallback import Decision
from braid.errors import InputError
from braid.model.model import Model
from braid.sessions.generate import decide, generate
from braid.streams.presets import topology as as_topology
from braid.streams.topology import StreamSpec, Topology

__all__ = ["QUESTION", "FallbackFigures", "bench_fallback"]

QUESTION = "What is the capital of France and how large is it?"


@dataclass(frozen=True)
class FallbackFigures:
    """Seconds of every repetition, and the decision.

    Args:
        asked, plain: Seconds, from the input to the last token of the answer.
        asked_rows, plain_rows: Rows of a run.
        decision: What the engine chose.
        row_ms, token_ms: What it had measured.
        same_answers: Whether the run that fell back said what ordinary generation says.
        input_tokens, answer_tokens: Of question and answer.
        model, topology: Names.
    """

    asked: list[float]
    plain: list[float]
    asked_rows: int
    plain_rows: int
    decision: Decision
    row_ms: Mapping[int, float]
    token_ms: float
    same_answers: bool
    input_tokens: int
    answer_tokens: int
    model: str
    topology: str
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """Medians in seconds, the decision with its estimates, and the machine."""
        asked, plain = statistics.median(self.asked), statistics.median(self.plain)
        chosen = plain if self.decision.fell_back else asked
        return {
            "asked_s": round(asked, 4),
            "plain_s": round(plain, 4),
            "asked_over_plain": round(asked / plain, 3),
            "asked_rows": self.asked_rows,
            "plain_rows": self.plain_rows,
            "asked_estimated_s": _seconds(self.decision.asked_ms),
            "plain_estimated_s": _seconds(self.decision.plain_ms),
            "fell_back": self.decision.fell_back,
            "chose_the_faster": chosen <= min(asked, plain),
            "reason": self.decision.reason,
            "same_answers": self.same_answers,
            "row_ms": {str(count): round(ms, 2) for count, ms in self.row_ms.items()},
            "token_ms": round(self.token_ms, 3),
            "input_tokens": self.input_tokens,
            "answer_tokens": self.answer_tokens,
            "repeat": len(self.asked),
            "topology": self.topology,
            "model": self.model,
            "machine": dict(self.machine),
        }


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1e3, 4)


def bench_fallback(
    model: Model,
    *,
    topology: str | Topology = "think-aloud",
    question: str = QUESTION,
    answer_tokens: int = 32,
    repeat: int = 5,
    on_round: Callable[[int, int], None] | None = None,
) -> FallbackFigures:
    """Time a question that is given at once, with streams and without.

    Args:
        model: With stock weights.
        topology: Of views, with inner streams that serve one answer.
        question: The input.
        answer_tokens: Tokens of each answer; inner streams keep their own limits.
        repeat: Rounds, after one that warms up.
        on_round: Called with the rounds done, and how many there are in all.

    Raises:
        InputError: Nothing could be measured, or there is no one stream to fall back to.
        EmptyInputError: There is no question.
    """
    if repeat < 1 or answer_tokens < 1:
        raise InputError("measure at least once, with an answer of a token or more")
    asked = _of_length(model, as_topology(topology), answer_tokens)
    inputs = {asked.input_names[0]: question}
    decision = decide(model, asked, inputs)
    plain = decision.plain
    if plain is None:
        raise InputError(f"there is nothing to compare: {decision.reason}")
    costs = costs_of(model)
    seconds: dict[str, list[float]] = {"asked": [], "plain": []}
    rows: dict[str, int] = {}
    texts: set[str] = set()
    for turn in range(repeat + 1):
        if on_round is not None:
            on_round(turn, repeat + 1)
        for name, streams in (("asked", asked), ("plain", plain)):
            result = generate(model, streams, inputs)
            rows[name] = len(result.transcript.rows)
            if turn:
                seconds[name].append(result.seconds)
            if name == "plain":
                texts.add(result[streams.output_names[0]].text)
    if decision.fell_back:
        texts.add(generate(model, asked, inputs, fall_back=True)[plain.output_names[0]].text)
    return FallbackFigures(
        seconds["asked"],
        seconds["plain"],
        rows["asked"],
        rows["plain"],
        decision,
        costs.row_ms,
        costs.token_ms,
        same_answers=len(texts) == 1,
        input_tokens=len(model.codec.encode(question)[0]),
        answer_tokens=answer_tokens,
        model=model.name,
        topology=asked.name or "a topology of your own",
        machine=describe_machine(),
    )


def _of_length(model: Model, topology: Topology, answer_tokens: int) -> Topology:
    """A topology whose outputs do not end by themselves, and whose answers have so many tokens."""
    never = endless_bias(model)
    outputs: dict[str, StreamSpec] = {}
    for name in topology.output_names:
        spec = topology.streams[name]
        sampling = spec.sampling.model_copy(update={"logit_bias": {**spec.sampling.logit_bias, **never}})
        limit = answer_tokens if spec.visibility == "external" else spec.max_tokens
        outputs[name] = spec.model_copy(update={"sampling": sampling, "max_tokens": limit})
    return topology.with_specs(outputs)
