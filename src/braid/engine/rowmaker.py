"""Makes rows: takes tokens from the queues, records them, and says what the forward has to compute.

burst rows   a  a  a  b  b              one input after another
last row                 b  + outputs   those that speak say their token;
                                        those that are silent are probed;
                                        those that wake are asked for the first time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from braid.engine.assembly import Entry, assemble, require_pages
from braid.engine.lanes import OutputLane
from braid.engine.policy import RowPlan
from braid.engine.record import Record
from braid.engine.span import Span
from braid.engine.stage import Stage
from braid.engine.work import Work
from braid.errors import ContextOverflowError
from braid.streams.entries import Cell

__all__ = ["Made", "RowMaker"]


@dataclass(frozen=True)
class Made:
    """Rows that were made."""

    work: Work
    finished: tuple[tuple[OutputLane, str], ...]
    """Outputs whose turn is over with what they said in these rows, and why."""


class RowMaker:
    """Turns a row plan into work.

    Args:
        stage: The lanes.
        record: Where rows are entered.
    """

    def __init__(self, stage: Stage, record: Record) -> None:
        self._stage = stage
        self._record = record

    def require_room(self, rows: RowPlan | None, starters: Sequence[OutputLane]) -> None:
        """Ask the pool and the model's context; nothing is changed.

        Raises:
            PoolFullError, PoolTooSmallError, ContextOverflowError
        """
        stage = self._stage
        needs: list[tuple[Span, int]] = []
        if rows is not None:
            needs += [(lane.span, rows.count(lane.label)) for lane in stage.inputs]
        if rows is not None and rows.outputs:
            kept = stage.keeps_silence
            needs += [(lane.span, 1) for lane in stage.inputs if kept and lane.label not in rows.row]
            needs += [
                (lane.span, 1)
                for lane in stage.outputs
                if lane.phase == "speaking" or (kept and lane.is_awake)
            ]
            needs += [(lane.span, 1) for lane in starters if kept]
        if stage.preamble is not None:
            closers = [(lane.closer, len(stage.preamble.closer_ids(lane.spec))) for lane in starters]
            needs += [(closer, count) for closer, count in closers if closer is not None]
        length = self._record.t + (rows.num_rows if rows is not None else 0)
        if stage.in_views:
            length = stage.kv_tokens + sum(count for _, count in needs)
        limit = stage.model.architecture.max_positions
        if length > limit:
            raise ContextOverflowError(
                f"the session would grow to {length} positions; {stage.model.name} was made for {limit}: close it, "
                "or go on in a new session with a summary"
            )
        require_pages(stage.cache, [(span, count) for span, count in needs if count])

    def make(self, rows: RowPlan | None, starters: Sequence[OutputLane]) -> Made:
        """Enter the rows, if any, and wake the starters. `require_room` has been asked.

        Args:
            rows: What enters; None wakes starters without a row: a closer, or a probe at the last row, asks them.
            starters: Outputs that begin their turn.
        """
        stage, record = self._stage, self._record
        for lane in starters:
            self._wake(lane)
        entries: list[Entry] = []
        row: dict[str, Cell] = {}
        if rows is not None:
            entries, row = self._enter_inputs(rows)
        joins = rows is not None and rows.outputs
        speaking = [
            lane for lane in stage.outputs if joins and lane.phase == "speaking" and lane not in starters
        ]
        silent = [lane for lane in stage.outputs if joins and lane.phase == "silent" and lane not in starters]
        finished: list[tuple[OutputLane, str]] = []
        for lane in speaking:
            entry, row[lane.label], finish = self._say(lane)
            entries.append(entry)
            if finish is not None:
                finished.append((lane, finish))
        if stage.keeps_silence and row:
            entries += self._keep_silence(row, [*silent, *(lane for lane in starters if not lane.forced)])
        if row:
            record.row(row)
        t = record.t - 1  # of the row that was entered last
        if not stage.keeps_silence:
            entries += [self._probe(lane, t) for lane in silent]
        for lane in starters:
            entries += self._ask_first(lane, t)
        for lane in speaking:
            record.said(t, lane, row[lane.label])
        return Made(assemble(stage.layout, entries), tuple(finished))

    def prefill_preamble(self, limit: int) -> Work:
        """Bring the shared preamble up to date with the conversation so far, at most so many tokens at once.

        Raises:
            PoolFullError: Nothing was changed.
        """
        stage, record = self._stage, self._record
        assert stage.preamble is not None
        span = stage.preamble.span
        kept, ids = stage.preamble.missing(limit)
        require_pages(stage.cache, [(span, len(ids))])
        span.trim(kept)
        stage.preamble.has_cached(kept + len(ids))
        record.life(
            "prefill", "preamble", tokens=tuple(ids), text=stage.preamble.text, reason=f"after {kept}"
        )
        return assemble(stage.layout, [Entry("", span, ids, [record.t - 1] * len(ids))] if ids else [])

    def _wake(self, lane: OutputLane) -> None:
        """A waiting output begins its turn."""
        if lane.spec.prefix:
            lane.forced.extendleft(reversed(self._stage.model.codec.encode(lane.spec.prefix)[0]))
        lane.phase, lane.force_start = "silent", False
        if lane.closer is not None:
            lane.closer.trim(0)  # of a start that was cancelled before it spoke
        self._record.life("wake", lane.label)
        self._record.state(lane.label, "active")

    def _enter_inputs(self, rows: RowPlan) -> tuple[list[Entry], dict[str, Cell]]:
        """The inputs' tokens: those of the burst are recorded here, those of the last row are returned."""
        record = self._record
        by_label = {lane.label: lane for lane in self._stage.inputs}
        tokens: dict[str, list[int]] = {label: [] for label in by_label}
        times: dict[str, list[int]] = {label: [] for label in by_label}

        def enter(label: str) -> Cell:
            token, text = by_label[label].read()
            tokens[label].append(token)
            times[label].append(record.t)
            return Cell(token, text, True)

        for label, count in rows.burst:
            for _ in range(count):
                record.row({label: enter(label)})
        row = {label: enter(label) for label in rows.row}
        spans = {label: lane.span for label, lane in by_label.items() if tokens[label]}
        return [Entry(label, span, tokens[label], times[label]) for label, span in spans.items()], row

    def _say(self, lane: OutputLane) -> tuple[Entry, Cell, str | None]:
        """The token of an output that speaks, and why its turn is over with it, if it is."""
        assert lane.pending is not None, "a lane that speaks has a token"
        token, is_forced = lane.pending
        text, finish = lane.say(token)
        predict = finish is None and not lane.knows_next
        entry = Entry(lane.label, lane.span, [token], [self._record.t], predict=predict)
        return entry, Cell(token, text, is_forced), finish

    def _probe(self, lane: OutputLane, t: int) -> Entry:
        return Entry(lane.label, lane.span, [self._stage.model.probe_id], [t], is_probe=True, predict=True)

    def _keep_silence(self, row: dict[str, Cell], silent: Sequence[OutputLane]) -> list[Entry]:
        """Where silence is kept, every open input and awake output without a token in the row gets a silence token."""
        probe_id, t = self._stage.model.probe_id, self._record.t
        idle = [lane for lane in self._stage.inputs if not lane.is_closed and lane.label not in row]
        entries = [Entry(lane.label, lane.span, [probe_id], [t]) for lane in idle]
        entries += [replace(self._probe(lane, t), is_probe=False) for lane in silent]
        row.update({entry.label: Cell(probe_id, "") for entry in entries})
        return entries

    def _ask_first(self, lane: OutputLane, t: int) -> list[Entry]:
        """What a waking lane needs before it can speak: its closer, or a first probe; a forced beginning no probe."""
        preamble = self._stage.preamble
        is_forced = bool(lane.forced)
        entries: list[Entry] = []
        if lane.closer is not None and preamble is not None:
            ids, text = preamble.closer_ids(lane.spec), preamble.closer_text(lane.spec)
            self._record.life("prefill", f"closer:{lane.label}", tokens=ids, text=text)
            if ids:
                entries.append(Entry(lane.label, lane.closer, ids, [t] * len(ids), predict=not is_forced))
            elif not is_forced:
                entries.append(self._ask_again(lane, t))
        elif not is_forced and not self._stage.keeps_silence:
            entries.append(self._probe(lane, t))
        if is_forced:
            lane.pending, lane.phase = (lane.forced.popleft(), True), "speaking"
        return entries

    def _ask_again(self, lane: OutputLane, t: int) -> Entry:
        """Without a template there is nothing between input and answer: ask once more what follows the input."""
        table = self._stage.table
        inputs = [i for i in self._stage.inputs if i.num_read and not i.is_closed]
        read = [i for i in inputs if table.reads(lane.lane.index, i.lane.index)]
        last = max(read, key=lambda other: other.lane.index)
        return replace(self._probe(lane, t), token_ids=[last.last_token], replays=last.span)
