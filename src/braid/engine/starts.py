"""When an output may begin its turn, and when it has nothing left to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from braid.engine.lanes import InputLane, OutputLane
from braid.errors import UnsupportedByBackend
from braid.streams.lanes import LaneTable
from braid.streams.stream_spec import AdaptiveWait, StreamSpec, Trigger

__all__ = ["is_unread", "may_start", "require_supported"]


def require_supported(name: str, spec: StreamSpec) -> None:
    """Refuse what this engine cannot honour yet.

    Raises:
        UnsupportedByBackend: An adaptive wait, or a guard that holds the stream.
    """
    if isinstance(spec.wait_k, AdaptiveWait):
        raise UnsupportedByBackend(
            f"{name}: this backend has no adaptive wait_k; give a number of tokens, or `end`"
        )
    if spec.held_by:
        raise UnsupportedByBackend(f"{name}: this backend has no guards; remove `held_by`")


def may_start(
    lane: OutputLane,
    table: LaneTable,
    inputs: Sequence[InputLane],
    outputs: Sequence[OutputLane],
    entering: Callable[[str], int],
) -> bool:
    """Whether a waiting output begins with the rows that are being made.

    Args:
        lane: The output.
        table: Who reads whom.
        inputs, outputs: All lanes of the session.
        entering: How many tokens enter an input with these rows.
    """
    if lane.force_start:
        return any(other.num_read + entering(other.label) for other in inputs)
    if isinstance(lane.spec.trigger, Trigger) and not _is_triggered(lane.spec.trigger, outputs, inputs):
        return False
    read = [other for other in inputs if table.reads(lane.lane.index, other.lane.index)]
    num_read = sum(other.num_read + entering(other.label) for other in read)
    if not read:
        return any(other.num_read + entering(other.label) for other in inputs) or not inputs
    has_all = all(other.ends_with(entering(other.label)) for other in read)
    wait = lane.spec.wait_k
    if wait == "end":
        return num_read > 0 and has_all
    needed = 1 if wait is None else wait
    assert isinstance(needed, int), "adaptive waits are refused when the session opens"
    return num_read >= needed or (num_read > 0 and has_all)


def is_unread(lane: OutputLane, table: LaneTable, outputs: Sequence[OutputLane]) -> bool:
    """Whether an internal output speaks to readers that have all finished: nobody will read what it says next."""
    if lane.spec.visibility == "external":
        return False
    readers = [
        other for other in outputs if other is not lane and table.reads(other.lane.index, lane.lane.index)
    ]
    externals = [other for other in readers if other.spec.visibility == "external"]
    return bool(externals) and all(other.phase in ("asleep", "closed") for other in externals)


def _is_triggered(trigger: Trigger, outputs: Sequence[OutputLane], inputs: Sequence[InputLane]) -> bool:
    texts = [lane.turn_text for lane in outputs if lane.lane.stream == trigger.on and lane.has_answered]
    texts += [lane.text for lane in inputs if lane.lane.stream == trigger.on and lane.num_read]
    return any(trigger.pattern is None or re.search(trigger.pattern, text) for text in texts)
