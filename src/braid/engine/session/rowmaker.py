"""Makes rows: takes tokens from the queues, records them, and says what the forward has to compute.

burst rows   a  a  a  b  b              one input after another
last row                 b  + outputs   those that speak say their token;
                                        those that are silent are probed;
                                        those that wake are asked for the first time
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from braid.engine.backend import PREAMBLE, Ask, Draw, Entry, closer_of
from braid.engine.session.lanes import InputLane, OutputLane, Waiting
from braid.engine.session.policy import RowPlan
from braid.engine.session.record import Record
from braid.engine.session.stage import Stage
from braid.engine.session.starts import asks_first
from braid.streams.entries import Cell

__all__ = ["Made", "NextRows", "RowMaker", "enter_preamble"]

_SURE = Ask(confidence=True)


class NextRows(NamedTuple):
    """What a session could do next."""

    rows: RowPlan | None = None
    """Rows; None when nothing is queued and nobody speaks."""
    starters: Sequence[tuple[OutputLane, str]] = ()
    """Outputs that begin their turn with them, and why."""
    curious: Sequence[OutputLane] = ()
    """Outputs in an adaptive wait that are asked whether they are sure by now."""
    aloud: Sequence[OutputLane] = ()
    """Silent outputs that have to speak and are asked again, where there is no row to ask them in."""

    @property
    def is_something(self) -> bool:
        """Whether there is anything to compute."""
        return self.rows is not None or bool(self.starters or self.curious or self.aloud)


class Made(NamedTuple):
    """Rows that were made."""

    entries: list[Entry]
    finished: list[tuple[OutputLane, str]]
    """Outputs whose turn is over with what they said in these rows, and why."""
    read: list[Waiting]
    """The input tokens that entered."""


def enter_preamble(stage: Stage, record: Record, kept: int, ids: Sequence[int]) -> None:
    """Note that the shared preamble holds `ids` behind the `kept` first tokens."""
    preamble = stage.preamble
    assert preamble is not None
    is_last = kept + len(ids) == len(preamble.wanted_ids)
    preamble.has_cached(kept + len(ids))
    # The text stands beside the last piece alone, or a long preamble would be in the transcript once a piece.
    text = preamble.text if is_last else ""
    record.life("prefill", PREAMBLE, tokens=tuple(ids), text=text, reason=f"after {kept}")


class RowMaker:
    """Turns what comes next into entries.

    Args:
        stage: The lanes.
        record: Where rows are entered.
        draw: How a lane's next token is to be drawn.
    """

    def __init__(self, stage: Stage, record: Record, draw: Callable[[OutputLane], Draw]) -> None:
        self._stage = stage
        self._record = record
        self._draw = draw
        self._is_plain = not stage.keeps_silence

    def needs(self, coming: NextRows) -> list[tuple[str, int]]:
        """Tokens that will be kept, by span; each span once, since two parts of a page may be more than one page."""
        stage, rows = self._stage, coming.rows
        needs: list[tuple[str, int]] = []
        if rows is not None:
            entering = Counter(dict(rows.burst))
            entering.update(rows.row)
            needs += entering.items()
        if rows is not None and rows.outputs:
            kept = stage.keeps_silence
            for lane in stage.outputs:
                if lane.phase == "speaking" or (kept and lane.phase == "silent"):
                    needs.append((lane.label, 1))
            if kept:
                needs += [
                    (lane.label, 1)
                    for lane in stage.inputs
                    if lane.label not in rows.row and not lane.is_closed
                ]
                needs += [(lane.label, 1) for lane, _ in coming.starters]
        if stage.preamble is not None and (coming.starters or coming.curious):
            waking = [
                *(lane for lane, _ in coming.starters),
                *(c for c in coming.curious if asks_first(c)),
            ]
            needs += [(closer_of(lane.label), len(stage.preamble.closer_ids(lane.spec))) for lane in waking]
        return needs

    def make(self, coming: NextRows) -> Made:
        """Enter the rows, if any, and wake the starters; there is room for all that `needs` says.

        Without rows starters are woken all the same: a closer, or a probe at the last row, asks them.
        """
        stage, record, rows = self._stage, self._record, coming.rows
        starters = [lane for lane, _ in coming.starters]
        speaking: list[OutputLane] = []
        silent: list[OutputLane] = []
        if rows is not None and rows.outputs:
            for lane in stage.outputs:
                if lane.phase == "speaking":
                    speaking.append(lane)
                elif lane.phase == "silent":
                    silent.append(lane)
        entries: list[Entry] = []
        read: list[Waiting] = []
        row: dict[str, Cell] = {}
        if rows is not None:
            self._enter_inputs(rows, entries, row, read)
        for lane, why in coming.starters:  # with the last row, into however many pieces a burst was cut
            self._wake(lane, why)
        finished: list[tuple[OutputLane, str]] = []
        for lane in speaking:
            entry, cell, finish = self._say(lane)
            entries.append(entry)
            row[lane.label] = cell
            if finish is not None:
                finished.append((lane, finish))
        if stage.keeps_silence and row:
            entries += self._keep_silence(row, [*silent, *(lane for lane in starters if not lane.forced)])
        if row:
            record.row(row)
        t = record.t - 1  # of the row that was entered last
        if self._is_plain:
            entries += [self._probe(lane, t) for lane in silent]
        for lane in coming.aloud:
            entries.append(self._ask_aloud(lane, t))
        for lane in starters:
            entries += self._ask_first(lane, t)
        for lane in coming.curious:
            self._ask_whether_sure(lane, t, entries)
        for lane in speaking:
            record.said(t, lane, row[lane.label])
        return Made(entries, finished, read)

    def prefill_preamble(self, kept: int, ids: Sequence[int]) -> list[Entry]:
        """Bring the shared preamble up to date with the conversation so far: `ids` follow the `kept` first tokens."""
        enter_preamble(self._stage, self._record, kept, ids)
        return [Entry("", PREAMBLE, ids, [self._record.t - 1] * len(ids))] if ids else []

    def _wake(self, lane: OutputLane, why: str) -> None:
        """A waiting output begins its turn."""
        if lane.spec.prefix:
            lane.forced.extendleft(reversed(self._stage.model.codec.encode(lane.spec.prefix)[0]))
        lane.phase, lane.force_start = "silent", False
        self._record.life("wake", lane.label, reason=why)
        self._record.state(lane.label, "active", why)

    def _enter_inputs(
        self, rows: RowPlan, entries: list[Entry], row: dict[str, Cell], read: list[Waiting]
    ) -> None:
        """The inputs' tokens: those of the burst are recorded here, those of the last row are left in `row`."""
        record = self._record
        if not rows.burst:
            for label in rows.row:
                waiting = self._input(label).read()
                read.append(waiting)
                row[label] = Cell(waiting.token, waiting.text, True)
                entries.append(Entry(label, label, (waiting.token,), (record.t,)))
            return
        tokens: dict[str, list[int]] = {}
        times: dict[str, list[int]] = {}

        def enter(label: str) -> Cell:
            waiting = self._input(label).read()
            read.append(waiting)
            tokens.setdefault(label, []).append(waiting.token)
            times.setdefault(label, []).append(record.t)
            return Cell(waiting.token, waiting.text, True)

        for label, count in rows.burst:
            for _ in range(count):
                record.row({label: enter(label)})
        row.update({label: enter(label) for label in rows.row})
        ordered = [lane.label for lane in self._stage.inputs if lane.label in tokens]
        entries += [Entry(label, label, tokens[label], times[label]) for label in ordered]

    def _input(self, label: str) -> InputLane:
        lane = self._stage.lane(label)
        assert isinstance(lane, InputLane)
        return lane

    def _say(self, lane: OutputLane) -> tuple[Entry, Cell, str | None]:
        """The token of an output that speaks, and why its turn is over with it, if it is."""
        assert lane.pending is not None, "a lane that speaks has a token"
        token, is_forced = lane.pending
        text, finish = lane.say(token, self._record.t)
        is_asked = finish is None and not lane.knows_next
        ask = self._ask(lane) if is_asked else None
        label = lane.label
        return (
            Entry(label, label, (token,), (self._record.t,), True, ask),
            Cell(token, text, is_forced),
            finish,
        )

    def _ask(self, lane: OutputLane) -> Ask:
        """What comes next in the lane, and how likely that is where it is to be told."""
        wanted = lane.spec.logprobs
        return Ask((self._draw(lane),), logprobs=0 if wanted is None else max(1, wanted))

    def _probe(self, lane: OutputLane, t: int, ask: Ask | None = None) -> Entry:
        label = lane.label
        ask = self._ask(lane) if ask is None else ask
        return Entry(label, label, (self._stage.model.probe_id,), (t,), False, ask)

    def _keep_silence(self, row: dict[str, Cell], silent: Sequence[OutputLane]) -> list[Entry]:
        """Where silence is kept, every open input and awake output without a token in the row gets a silence token."""
        probe_id, t = self._stage.model.probe_id, self._record.t
        idle = [lane for lane in self._stage.inputs if not lane.is_closed and lane.label not in row]
        entries = [Entry(lane.label, lane.label, (probe_id,), (t,)) for lane in idle]
        entries += [self._probe(lane, t)._replace(keep=True) for lane in silent]
        for lane in (*idle, *silent):
            lane.num_kept += 1
        for lane in silent:
            lane.last_token, lane.last_t = probe_id, t
        row.update({entry.lane: Cell(probe_id, "") for entry in entries})
        return entries

    def _ask_aloud(self, lane: OutputLane, t: int) -> Entry:
        """A silent lane that has to speak is asked once more, in the place of what it answered with silence."""
        probe = self._probe(lane, t)
        return probe._replace(token_ids=(lane.last_token,), replays=lane.label) if lane.last_t == t else probe

    def _ask_first(self, lane: OutputLane, t: int, ask: Ask | None = None) -> list[Entry]:
        """What a waking lane needs before it can speak: its closer, or a first probe; a forced beginning no probe."""
        preamble = self._stage.preamble
        is_forced = bool(lane.forced)
        ask = None if is_forced else ask or self._ask(lane)
        entries: list[Entry] = []
        if preamble is not None:
            ids = preamble.closer_ids(lane.spec)
            if lane.phase != "waiting":
                text = preamble.closer_text(lane.spec)
                self._record.life("prefill", closer_of(lane.label), tokens=ids, text=text)
            lane.closer_len = len(ids)
            if ids:
                entries.append(Entry(lane.label, closer_of(lane.label), ids, [t] * len(ids), True, ask))
            elif ask is not None:
                entries.append(self._ask_again(lane, t, ask))
        elif ask is not None and self._is_plain:
            entries.append(self._probe(lane, t, ask))
        if is_forced:
            lane.pending, lane.phase = (lane.forced.popleft(), True), "speaking"
        return entries

    def _ask_whether_sure(self, lane: OutputLane, t: int, entries: list[Entry]) -> None:
        """In an adaptive wait: ask how sure the model is of the first token, or of what the input says next."""
        stage = self._stage
        read = [i for i in stage.inputs if stage.table.reads(lane.lane.index, i.lane.index)]
        lane.asked_after = sum(other.num_read for other in read)
        if asks_first(lane):
            entries += self._ask_first(lane, t, _SURE)
            return
        labels = {other.label for other in read}
        last = max((i for i, entry in enumerate(entries) if entry.span in labels), default=None)
        if last is not None:
            entries[last] = entries[last]._replace(ask=_SURE)

    def _ask_again(self, lane: OutputLane, t: int, ask: Ask) -> Entry:
        """Without a template there is nothing between input and answer: ask once more what follows the input."""
        table = self._stage.table
        inputs = [i for i in self._stage.inputs if i.num_read and not i.is_closed]
        read = [i for i in inputs if table.reads(lane.lane.index, i.lane.index)]
        last = max(read, key=lambda other: other.lane.index)
        return self._probe(lane, t, ask)._replace(token_ids=(last.last_token,), replays=last.label)
