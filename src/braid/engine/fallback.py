"""Where streams do not pay: the decision to answer a request with one stream.

    input complete at once ─┐                         ┌─ what was asked for would be lost ──▶ as asked
                            ├──▶ only the answer left ┤
    inner streams serve it ─┘                         └─ nothing: which takes less time? ──▶ the cheaper one

Reading along gains nothing where there is nothing more to come, and a stock model that thinks beside its answer pays
for it: every row holds a token more for each thought, and every stream has a closer of its own to read. The same
topology without its inner streams is then ordinary generation (`plain`), with the same instructions and sampling.

Nothing here computes: what a row costs is measured by `braid.engine.costs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from braid.streams.stream_spec import Trigger
from braid.streams.topology import StreamSpec, Topology

__all__ = ["LEAST_SAVING", "Costs", "Decision", "fall_back"]

LEAST_SAVING = 0.02
"""Share of the time below which two estimates count as equal, and the request is served as it was asked."""

_CHARACTERS = 4
"""Characters of instructions that are taken for a token."""


@dataclass(frozen=True)
class Costs:
    """What computing costs on this machine, with this model.

    Args:
        row_ms: Milliseconds of a row, by the number of its queries; at least one number.
        token_ms: Milliseconds that each further token of an input adds to the forward that reads it.
        closer_tokens: Tokens that stand between the input and each output, its instructions left out.
        answer_tokens: Tokens that an output usually says where it has no limit of its own.
    """

    row_ms: Mapping[int, float]
    token_ms: float
    closer_tokens: int = 16
    answer_tokens: int = 64

    def row(self, queries: int) -> float:
        """Milliseconds of a row of so many queries, by a straight line between, and beyond, what was measured."""
        counts = sorted(self.row_ms)
        if len(counts) == 1:
            return self.row_ms[counts[0]]
        above = next((i for i, count in enumerate(counts) if count >= queries), len(counts) - 1)
        low, high = counts[max(0, above - 1)], counts[max(1, above)]
        slope = (self.row_ms[high] - self.row_ms[low]) / (high - low)
        return max(0.0, self.row_ms[low] + slope * (queries - low))

    def estimate(self, topology: Topology, input_tokens: int) -> float:
        """Milliseconds from a complete input to the end of all answers.

        Every output is taken to start with the end of the input and to say as much as it usually does; inner ones fall
        silent with the last external one, as the engine lets them.

        Args:
            topology: Of views.
            input_tokens: Of all inputs.
        """
        outputs = [topology.streams[name] for name in topology.output_names]
        said = [min(spec.max_tokens or self.answer_tokens, self.answer_tokens) for spec in outputs]
        read = input_tokens + sum(self.closer_tokens + _size(spec.instructions) for spec in outputs)
        heard = [n for n, spec in zip(said, outputs, strict=True) if spec.visibility == "external"]
        rows = max(heard or said, default=0)
        reading = self.row(1) + max(0, read - 1) * self.token_ms
        # The last token of an answer is said in the row after the one that chose it, and read by nobody.
        return reading + sum(self.row(sum(n > t for n in said)) for t in range(rows))


@dataclass(frozen=True)
class Decision:
    """How a request is served.

    Args:
        topology: With which streams.
        fell_back: Whether that is another topology than the one that was asked for.
        reason: Why, in words.
        asked_ms, plain_ms: The estimates of what was asked for and of ordinary generation, in milliseconds; None where
            ordinary generation would not do.
        plain: The streams of ordinary generation; None where it would not do.
    """

    topology: Topology
    fell_back: bool
    reason: str
    asked_ms: float | None = None
    plain_ms: float | None = None
    plain: Topology | None = None


def fall_back(
    topology: Topology,
    *,
    input_tokens: int,
    is_complete: bool,
    costs: Costs | Callable[[], Costs],
    copies: Mapping[str, int] | None = None,
    has_history: bool = False,
    has_tools: bool = False,
    is_trained: bool = False,
) -> Decision:
    """Decide whether a request is served by ordinary generation instead of the streams it asked for.

    Args:
        topology: What was asked for.
        input_tokens: Of all inputs.
        is_complete: Whether all of the input is there, and none of it will be edited.
        costs: Measured on the model; or what measures them, called only where it comes to that.
        copies: Of streams, where more than one was asked for.
        has_history: Whether a conversation goes on.
        has_tools: Whether tools were given.
        is_trained: Whether the model was trained on streams.

    Returns:
        The topology to use, never one that loses something that was asked for.
    """
    given = {
        "more of the input may come, or it may be edited": not is_complete,
        "the model was trained on streams": is_trained,
        "a conversation goes on": has_history,
        "tools were given": has_tools,
        "copies of a stream were asked for": any(count > 1 for count in (copies or {}).values()),
    }
    kept = next((why for why, holds in given.items() if holds), None) or _loss(topology)
    if kept is not None:
        return Decision(topology, False, f"streams as asked for: {kept}")
    plain = _without_inner(topology)
    costs = costs if isinstance(costs, Costs) else costs()
    asked_ms, plain_ms = costs.estimate(topology, input_tokens), costs.estimate(plain, input_tokens)
    figures = f"{plain_ms:.0f} ms against {asked_ms:.0f} ms estimated"
    if plain_ms >= asked_ms * (1 - LEAST_SAVING):
        reason = f"streams as asked for: they cost no more, {figures}"
        return Decision(topology, False, reason, asked_ms, plain_ms, plain)
    inner = " and ".join(_inner(topology))
    reason = (
        f"one stream: all of the input was there at once, so {inner} had nothing to read along; {figures}"
    )
    return Decision(plain, True, reason, asked_ms, plain_ms, plain)


def _size(instructions: str | None) -> int:
    """Tokens of instructions, about."""
    return 0 if instructions is None else -(-len(instructions) // _CHARACTERS)


def _inner(topology: Topology) -> list[str]:
    return [name for name in topology.output_names if topology.streams[name].visibility == "internal"]


def _loss(topology: Topology) -> str | None:
    """What of the request ordinary generation would lose; None if nothing."""
    answers = [name for name in topology.output_names if topology.streams[name].visibility == "external"]
    if topology.decoding == "rows":
        return "these are native rows"
    if len(answers) != 1:
        return f"{len(answers)} external outputs were asked for ({', '.join(answers) or 'none'})"
    if not _inner(topology):
        return "there is one output already"
    if topology.forbid:
        return "flows are forbidden, which the streams keep apart"
    if topology.resolved_tool_flows:
        return f"{topology.resolved_tool_flows[0][0]} calls tools"
    for name, spec in topology.streams.items():
        lost = _loss_of_input(spec) if spec.is_input else _loss_of_output(topology, name, answers[0])
        if lost is not None:
            return f"{name} {lost}"
    return None


def _loss_of_input(spec: StreamSpec) -> str | None:
    return "is to be read a token a row" if spec.feed == "paced" else None


def _loss_of_output(topology: Topology, name: str, answer: str) -> str | None:
    """What would be lost with an inner stream, or of the answer without them."""
    spec = topology.streams[name]
    if spec.held_by:
        return f"is held by {', '.join(spec.held_by)}"
    if name == answer:
        # What wakes the answer may be what is left out; at the end of the input it would come at another time.
        return "waits for a trigger" if isinstance(spec.trigger, Trigger) else None
    if spec.grammar is not None:
        return "has a grammar of its own"
    if spec.prefix is not None:
        return "has a beginning that was given to it"
    if spec.logprobs is not None:
        return "is to tell how likely its tokens are"
    if not topology.reads_pair(answer, name):
        return f"does not serve {answer}, so it is wanted for itself"
    return None


def _without_inner(topology: Topology) -> Topology:
    """The same streams, inner ones left out, the answer beginning when all of the input was read."""
    inner = set(_inner(topology))
    streams: dict[str, StreamSpec] = {}
    for name, spec in topology.streams.items():
        if name not in inner:
            streams[name] = spec if spec.is_input else spec.model_copy(update={"wait_k": "end"})
    reads = {
        reader: tuple(name for name in read if name not in inner)
        for reader, read in topology.reads.items()
        if reader not in inner
    }
    patterns = {
        reader: {name: pattern for name, pattern in row.items() if name not in inner}
        for reader, row in topology.patterns.items()
        if reader not in inner
    }
    return Topology(
        name=None if topology.name is None else f"{topology.name}, plain",
        decoding="views",
        system=topology.system,
        streams=streams,
        same_row=topology.same_row,
        silence=topology.silence,
        reads=reads,
        patterns=patterns,
        tool_flows=topology.tool_flows,
    )
