"""When an output may begin its turn, why, and when it has nothing left to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from braid.engine.backend import Capabilities
from braid.engine.session.lanes import InputLane, OutputLane
from braid.errors import InputError, UnsupportedByBackend
from braid.streams.lanes import LaneTable
from braid.streams.patterns import Dense
from braid.streams.stream_spec import AdaptiveWait, Trigger
from braid.streams.strict import hint
from braid.streams.topology import Topology

__all__ = [
    "Predicate",
    "asks_first",
    "decide_wait",
    "is_unread",
    "note_sureness",
    "num_entered",
    "require_supported",
    "why_start",
]

Predicate = Callable[[str], bool]
"""Whether the text of a watched stream wakes the one that watches."""


def require_supported(
    topology: Topology, can: Capabilities, predicates: Mapping[str, Predicate], silence_token_id: int | None
) -> None:
    """Refuse what this engine, or the backend and the model under it, cannot honour.

    Raises:
        SamplingError: A bias of silence, and the model cannot be silent.
        UnsupportedByBackend: A guard that holds a stream, or what the backend's capabilities exclude.
        InputError: A trigger names a predicate that was not given.
    """
    if topology.decoding == "rows" and not can.rows:
        raise UnsupportedByBackend("this backend has no native rows; use a topology with `decoding: views`")
    if topology.decoding == "views" and not can.views and len(topology.output_names) > 1:
        raise UnsupportedByBackend(
            "this backend has no views of several outputs; use `plain`, or native rows"
        )
    if not can.patterns and any(
        not isinstance(pattern, Dense) for row in topology.patterns.values() for pattern in row.values()
    ):
        raise UnsupportedByBackend("this backend has no patterns; leave `patterns` out")
    for name, spec in topology.streams.items():
        sampling = spec.sampling.of_model(silence_token_id)
        if spec.held_by:
            raise UnsupportedByBackend(f"{name}: this engine has no guards; remove `held_by`")
        if (sampling.repetition_penalty != 1.0 or sampling.logit_bias) and not can.penalties:
            raise UnsupportedByBackend(f"{name}: this backend has no penalties and biases; leave them out")
        if spec.grammar is not None and not can.grammars:
            raise UnsupportedByBackend(f"{name}: this backend has no grammars; leave `grammar` out")
        if isinstance(spec.wait_k, AdaptiveWait) and not can.statistics:
            raise UnsupportedByBackend(
                f"{name}: this backend has no adaptive wait_k; give a number of tokens, or `end`"
            )
        wanted = spec.trigger.predicate if isinstance(spec.trigger, Trigger) else None
        if wanted is not None and wanted not in predicates:
            raise InputError(
                f"{name}: its trigger asks for the predicate {wanted!r}, which was not given; pass "
                f"predicates={{{wanted!r}: function}} when the session opens"
                + (f" ({hint(wanted, predicates)})" if predicates else "")
            )


def num_entered(
    lane: OutputLane, table: LaneTable, inputs: Sequence[InputLane], entering: Callable[[str], int]
) -> int:
    """Tokens of this turn that the inputs which a lane reads will hold with the rows that are being made."""
    read = [other for other in inputs if table.reads(lane.lane.index, other.lane.index)] or inputs
    return sum(other.num_read + entering(other.label) for other in read)


def why_start(
    lane: OutputLane,
    table: LaneTable,
    inputs: Sequence[InputLane],
    outputs: Sequence[OutputLane],
    entering: Callable[[str], int],
    predicates: Mapping[str, Predicate],
) -> str | None:
    """Why a waiting output begins with the rows that are being made; None while it has to wait.

    Args:
        lane: The output.
        table: Who reads whom.
        inputs, outputs: All lanes of the session.
        entering: How many tokens enter an input with these rows.
        predicates: What triggers may ask.
    """
    num_read = num_entered(lane, table, inputs, entering)
    if lane.force_start:
        anything = any(other.num_read + entering(other.label) for other in inputs)
        return "forced" if anything else None
    trigger = lane.spec.trigger
    if isinstance(trigger, Trigger) and not _is_triggered(trigger, outputs, inputs, entering, predicates):
        return None
    why = f"{trigger.on} triggered it" if isinstance(trigger, Trigger) else ""
    read = [other for other in inputs if table.reads(lane.lane.index, other.lane.index)]
    if not read:
        return (why or "it reads no input") if num_read or not inputs else None
    if num_read == 0:
        return None
    if all(other.ends_with(entering(other.label)) for other in read):
        return why or "the input has ended"
    wait = lane.spec.wait_k
    if wait == "end":
        return None
    if isinstance(wait, AdaptiveWait):
        return lane.ready_because or (f"{wait.max} tokens were read" if num_read >= wait.max else None)
    needed = 1 if wait is None else wait
    return (why or f"wait_k: {needed} tokens were read") if num_read >= needed else None


def asks_first(lane: OutputLane) -> bool:
    """Whether an adaptive wait asks for the first token, and not how predictable the input is."""
    return getattr(lane.spec.wait_k, "measure", "answer") == "answer"


def note_sureness(
    source: InputLane, outputs: Sequence[OutputLane], table: LaneTable, confidence: float
) -> None:
    """Of an input's last token: how sure the model is of what it says next.

    Args:
        source: The input.
        outputs: Those that may wait for it.
        table: Who reads whom.
        confidence: The probability of the likeliest token.
    """
    for lane in outputs:
        wait = lane.spec.wait_k
        if lane.phase != "waiting" or not isinstance(wait, AdaptiveWait) or asks_first(lane):
            continue
        if table.reads(lane.lane.index, source.lane.index):
            lane.sureness.append(confidence)
            mean = sum(lane.sureness) / len(lane.sureness)
            if len(lane.sureness) == lane.sureness.maxlen and mean >= wait.threshold:
                lane.ready_because = (
                    f"the input is predictable (p = {mean:.2f}, wanted {wait.threshold:.2f}) "
                    f"after {lane.asked_after} tokens"
                )


def decide_wait(lane: OutputLane, confidence: float) -> None:
    """In an adaptive wait: is the model sure of the answer's first token?

    Args:
        lane: Who waits.
        confidence: The probability of that token.
    """
    wait = lane.spec.wait_k
    assert isinstance(wait, AdaptiveWait), "it was asked because of that"
    if confidence >= wait.threshold:
        lane.ready_because = (
            f"sure of its first token (p = {confidence:.2f}, wanted {wait.threshold:.2f}) "
            f"after {lane.asked_after} tokens"
        )


def is_unread(lane: OutputLane, table: LaneTable, outputs: Sequence[OutputLane]) -> bool:
    """Whether an internal output speaks to readers that have all finished: nobody will read what it says next."""
    if lane.spec.visibility == "external":
        return False
    readers = [
        other for other in outputs if other is not lane and table.reads(other.lane.index, lane.lane.index)
    ]
    externals = [other for other in readers if other.spec.visibility == "external"]
    return bool(externals) and all(other.phase in ("asleep", "closed") for other in externals)


def _is_triggered(
    trigger: Trigger,
    outputs: Sequence[OutputLane],
    inputs: Sequence[InputLane],
    entering: Callable[[str], int],
    predicates: Mapping[str, Predicate],
) -> bool:
    texts = [lane.turn_text for lane in outputs if lane.lane.stream == trigger.on and lane.has_answered]
    for lane in inputs:
        count = entering(lane.label)
        if lane.lane.stream == trigger.on and lane.num_read + count:
            texts.append(lane.text_with(count))
    if trigger.pattern is not None:
        texts = [text for text in texts if re.search(trigger.pattern, text)]
    if trigger.predicate is not None:
        texts = [text for text in texts if predicates[trigger.predicate](text)]
    return bool(texts)
