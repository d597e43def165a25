"""What one session could do next, as far as its lanes tell; nothing is changed by asking.

queues, speakers ──▶ policy.next_rows ──▶ rows                       ┐
waiting outputs  ──▶ starts.why_start ──▶ who wakes with them        ├ NextRows ──▶ Demand ──▶ scheduler
adaptive waits   ──▶ what has entered ──▶ who is asked for sureness  ┘    ▲
                                                             within(grant)└──────────────────── Grant
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from braid.engine.scheduler import Demand, Grant
from braid.engine.session.lanes import RANKS, OutputLane
from braid.engine.session.policy import Backlog, RowPlan, next_rows
from braid.engine.session.rowmaker import NextRows
from braid.engine.session.stage import Stage
from braid.engine.session.starts import Predicate, asks_first, num_entered, why_start
from braid.streams.stream_spec import AdaptiveWait, Trigger

__all__ = ["coming_rows", "demand_of_piece", "demand_of_rows", "within"]


def coming_rows(stage: Stage, now: float, *, in_turn: bool, predicates: Mapping[str, Predicate]) -> NextRows:
    """What the queues make of the next rows, and the outputs that wake, or are asked, with them.

    Args:
        stage: The lanes.
        now: The moment, on the engine's clock; it decides what is overdue.
        in_turn: Whether a turn is under way, in which outputs may wake.
        predicates: What triggers may ask.
    """
    may_hurry = not stage.keeps_silence  # no burst where every row holds a token of every lane
    backlogs = [
        Backlog(
            lane.label,
            len(lane.queue),
            "burst" if lane.feed == "burst" or (lane.overdue_at <= now and may_hurry) else "paced",
            lane.rank,
        )
        for lane in stage.inputs
        if lane.queue
    ]
    rows = next_rows(backlogs, is_speaking=stage.is_speaking, budget=1 << 30)
    if not in_turn:
        return NextRows(rows)
    aloud = (
        [lane for lane in stage.outputs if lane.must_speak and lane.phase == "silent"] if rows is None else []
    )
    if rows is None and stage.keeps_silence:
        return NextRows(None, (), (), aloud)  # asking others would take a row of silence alone
    waiting = [lane for lane in stage.outputs if lane.phase == "waiting"]
    if not waiting:
        return NextRows(rows, (), (), aloud)

    def entering(label: str) -> int:
        return 0 if rows is None else rows.count(label)

    starters: list[tuple[OutputLane, str]] = []
    curious: list[OutputLane] = []
    for lane in waiting:
        why = why_start(lane, stage.table, stage.inputs, stage.outputs, entering, predicates)
        if why is not None:
            starters.append((lane, why))
        elif isinstance(lane.spec.wait_k, AdaptiveWait) and not isinstance(lane.spec.trigger, Trigger):
            has_news = num_entered(lane, stage.table, stage.inputs, entering) > lane.asked_after
            if has_news and (rows is not None or asks_first(lane)):
                curious.append(lane)
    return NextRows(rows, starters, curious, aloud)


def within(coming: NextRows, grant: Grant) -> NextRows:
    """As much of it as the grant allows; outputs join only in the last row of a whole burst."""
    rows = coming.rows
    num_burst = 0 if rows is None else rows.num_burst
    if grant.makes_row and grant.input_tokens >= num_burst:
        return coming
    left = min(grant.input_tokens, num_burst)
    burst: list[tuple[str, int]] = []
    for label, count in () if rows is None else rows.burst:
        if left:
            burst.append((label, min(count, left)))
            left -= burst[-1][1]
    return NextRows(RowPlan(tuple(burst), (), False)) if burst else NextRows()


def demand_of_rows(number: int, stage: Stage, coming: NextRows) -> Demand:
    """How many tokens come next, and how urgent they are.

    Args:
        number: The session's.
        stage: Its lanes.
        coming: Its next rows.
    """
    rows = coming.rows
    row_tokens, rank, input_rank = len(coming.aloud), 2, 2
    if rows is None or rows.outputs:
        for lane in stage.outputs:
            if lane.phase in ("speaking", "silent"):
                row_tokens += 1
                rank = min(rank, lane.rank)
    for lane in (*(lane for lane, _ in coming.starters), *coming.curious):
        rank = min(rank, lane.rank)
        row_tokens += 1 if stage.preamble is None else len(stage.preamble.closer_ids(lane.spec))
    num_burst = 0
    if rows is not None:
        num_burst = rows.num_burst
        row_tokens += len(rows.row)
        for lane in stage.inputs:
            if lane.label in rows.row:
                rank = min(rank, lane.rank)
        if rows.burst:
            first = stage.lane(rows.burst[0][0])
            input_rank = first.rank
    return Demand(number, row_tokens, num_burst, rank, input_rank, _overdue_at(stage))


def demand_of_piece(number: int, stage: Stage, num_tokens: int, *, is_whole: bool) -> Demand:
    """Of what all lanes stand on, as urgent as the most urgent of them.

    Args:
        number: The session's.
        stage: Its lanes.
        num_tokens: That are missing.
        is_whole: Whether they are computed together; else in pieces, like input.
    """
    rank = min(RANKS[spec.priority] for spec in stage.topology.streams.values())
    if is_whole:
        return Demand(number, num_tokens, 0, rank, 2, _overdue_at(stage))
    return Demand(number, 0, num_tokens, 2, rank, _overdue_at(stage))


def _overdue_at(stage: Stage) -> float:
    return min((lane.overdue_at for lane in stage.inputs), default=math.inf)
