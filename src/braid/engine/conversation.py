"""One session: its verbs, and the rows that come of them.

    write, end, interrupt, …     change queues and phases; nothing is computed
    prepare()                    takes from the queues what enters the next rows, records them, says what to compute
    advance()                    gives every lane that was asked its next token, or silence

A verb takes effect in the next row. `prepare` asks the pool before it changes anything: when the pool is full it
raises, and the same call succeeds later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from braid.cache import KVCache
from braid.engine.assembly import Entry, assemble, require_pages
from braid.engine.lanes import InputLane, OutputLane
from braid.engine.layout import Layout, RowLayout, ViewLayout
from braid.engine.preamble import Preamble
from braid.engine.record import Record
from braid.engine.sampler import Draw, sample
from braid.engine.span import Span, new_span
from braid.engine.starts import is_unread, may_start, require_supported
from braid.engine.policy import Backlog, RowPlan, next_rows
from braid.engine.work import Work
from braid.errors import (
    ContextOverflowError,
    DirectionError,
    EmptyInputError,
    NothingToForceError,
    SessionClosedError,
    StreamClosedError,
)
from braid.model.checkpoint import reconcile
from braid.model.model import Model
from braid.streams.entries import Cell
from braid.streams.events import Event
from braid.streams.lanes import LaneTable
from braid.streams.text import IncrementalTokenizer
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["Conversation"]


class Conversation:
    """The state of one session on one model. Synchronous, and without threads or clocks.

    Args:
        model, cache: What computes and what remembers.
        topology: The streams; what the checkpoint was trained with wins over it.
        seed: Of all sampling noise.
        copies: Parallel copies of streams that allow them.
        prefill_chunk: New input tokens that one forward may take.
        forces_answers: At quiescence, make an external output speak that has not answered in this turn.

    Raises:
        CheckpointConflictError: The topology contradicts the checkpoint.
        UnsupportedByBackend: The topology asks for what this engine cannot do.
        UnsupportedModelError: Views on a model whose positions cannot be shifted.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        topology: Topology,
        *,
        seed: int = 0,
        copies: Mapping[str, int] | None = None,
        prefill_chunk: int = 512,
        forces_answers: bool = True,
    ) -> None:
        if model.trained is not None:
            topology = reconcile(model.trained, topology)
        for name, spec in topology.streams.items():
            require_supported(name, spec)
        self.model = model
        self.topology = topology
        self.table: LaneTable = topology.lanes(copies)
        self.seed = seed
        self.t = 0
        self.turn = 0
        self.is_closed = False
        self.forces_answers = forces_answers
        self._prefill_chunk = prefill_chunk
        self.peak_kv_tokens = 0
        """The most tokens that the cache kept for this session."""
        self._in_turn = False
        self._was_quiescent = False
        self._cache = cache
        transcript = Transcript(topology=topology, model=model.name, copies=dict(copies or {}), meta={"seed": seed})
        self.record = Record(transcript)
        self._open_lanes()

    def _open_lanes(self) -> None:
        """Spans, lanes and the layout; spans come last, so that a refusal leaves no page behind."""
        table, views = self.table, self.topology.decoding == "views"
        lanes = list(table.lanes)
        if views and len([lane for lane in lanes if table.spec(lane.index).is_output]) > 1:
            self.model.architecture.require_shifts()
        spans: list[Span | None] = [new_span(self._cache, table.stream_index(lane.index)) for lane in lanes]
        self.spans = spans
        default_feed = "burst" if views else "paced"
        self.inputs: list[InputLane] = []
        self.outputs: list[OutputLane] = []
        for lane, span in zip(lanes, spans, strict=True):
            spec = table.spec(lane.index)
            assert span is not None
            if spec.is_input:
                feed = "paced" if self.topology.silence == "kept" else spec.feed or default_feed
                tokenizer = IncrementalTokenizer(self.model.codec)
                self.inputs.append(InputLane(lane, spec, span, tokenizer, feed))
            else:
                closer = new_span(self._cache, table.stream_index(lane.index)) if views else None
                self.outputs.append(OutputLane(lane, spec, span, self.model.codec, closer))
        self.preamble: Preamble | None = None
        try:
            if views:
                self.preamble = Preamble(self.model.codec, self.topology.system, new_span(self._cache, 0))
                closers = {lane.label: lane.closer for lane in self.outputs if lane.closer is not None}
                layout = ViewLayout(table, spans, self.preamble.span, closers)
            else:
                layout = RowLayout(table, spans)
        except BaseException:
            self._release()
            raise
        self._layout: Layout = layout
        for lane in lanes:
            self.record.life(0, "open", lane.label)
            self.record.state(0, lane.label, "created")

    # ---- verbs

    def write(self, stream: str, text: str) -> None:
        """Add text to an input; trailing text that could still merge with what follows is held back.

        Raises:
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
        """
        lane = self._input(stream)
        if not text:
            return
        if not self._in_turn:
            self._begin_turn()
        if lane.has_ended or not lane.text:
            self.record.state(self.t, lane.label, "active")
        lane.has_ended = False
        lane.text += text
        lane.queue.extend(lane.tokenizer.write(text))

    def flush(self, stream: str, reason: str = "deadline") -> bool:
        """Feed what `write` holds back, as it is; the token boundary is then where the text happens to end.

        Returns:
            Whether there was anything.
        """
        lane = self._input(stream)
        held = lane.tokenizer.flush()
        if held:
            lane.queue.extend(held)
            self.record.life(self.t, "flush", lane.label, text="".join(text for _, text in held), reason=reason)
            self.record.notice(self.t, "flush", f"held text was fed without waiting for what follows ({reason})", stream)
        return bool(held)

    def end(self, stream: str | None = None) -> None:
        """Say that an input, or every one, is complete for this turn.

        Raises:
            EmptyInputError: No input has any text in this turn.
        """
        lanes = [self._input(stream)] if stream is not None else [lane for lane in self.inputs if not lane.is_closed]
        self._require_open()
        if not any(lane.text for lane in self.inputs):
            raise EmptyInputError(
                f"{stream or 'the input'} ended without any text; write something to "
                f"{' or '.join(self.topology.input_names) or 'an input stream'} first"
            )
        for lane in lanes:
            if lane.has_ended or not lane.text:
                continue
            lane.queue.extend(lane.tokenizer.flush())
            lane.has_ended = True
            if self.topology.decoding == "rows":
                lane.queue.append((self.model.turn_end_id, ""))
            self.record.life(self.t, "end", lane.label)
            self.record.state(self.t, lane.label, "asleep", "ended")

    def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all."""
        for lane in self._outputs(stream):
            if lane.is_awake:
                lane.pending = (self.model.turn_end_id, True)
                lane.forced.clear()
                lane.phase = "speaking"
                self.record.life(self.t, "interrupt", lane.label)

    def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        for lane in self._outputs(stream):
            if lane.phase not in ("asleep", "closed"):
                self.record.life(self.t, "cancel", lane.label)
                self._sleep(lane, "cancelled")

    def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak.

        Args:
            stream: Its label.
            text: What to say; None lets the model choose, with silence masked once.

        Raises:
            NothingToForceError: The session has read nothing yet, so that there is nothing to answer.
        """
        (lane,) = self._outputs(stream)
        if lane.phase == "asleep":
            lane.phase = "waiting"
        if text is not None:
            ids = self.model.codec.encode(text)[0]
            lane.forced.extend(ids)
            if lane.phase == "silent" and lane.forced:
                lane.pending, lane.phase = (lane.forced.popleft(), True), "speaking"
        elif lane.phase == "silent":
            self._draw_aloud(lane)
        if lane.phase == "waiting":
            if not any(other.num_read or other.queue for other in self.inputs):
                raise NothingToForceError(f"nothing has been read yet, so {stream} cannot speak; write some input first")
            lane.force_start = True
        self.record.life(self.t, "force", lane.label, text=text or "")

    def close_stream(self, stream: str) -> None:
        """Close one stream; its pages are free at once, and later rows do not read it."""
        index = self.table.index(stream)
        span = self.spans[index]
        if span is None:
            return
        for lane in (*self.inputs, *self.outputs):
            if lane.lane.index != index:
                continue
            if isinstance(lane, OutputLane):
                self._sleep(lane, "closed")
                lane.phase = "closed"
                if lane.closer is not None:
                    lane.closer.trim(0)
            else:
                lane.is_closed = True
                lane.queue.clear()
        span.release()
        self.spans[index] = None
        self.record.life(self.t, "close", stream)
        self.record.state(self.t, stream, "closed")

    def close(self, reason: str = "closed") -> None:
        """Give all pages back; harmless when repeated."""
        if self.is_closed:
            return
        for lane in self.outputs:
            self.record.send(lane)
        self.is_closed = True
        self._release()
        self.record.closed(self.t, reason)

    # ---- asking

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self.record.transcript

    @property
    def turn_is_over(self) -> bool:
        """Whether no turn is under way."""
        return not self._in_turn

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session."""
        spans = [span for span in self.spans if span is not None]
        spans += [lane.closer for lane in self.outputs if lane.closer is not None and lane.phase != "closed"]
        spans += [self.preamble.span] if self.preamble is not None else []
        return 0 if self.is_closed else sum(len(span) for span in spans)

    @property
    def has_work(self) -> bool:
        """Whether the next step would compute something."""
        if self.is_closed:
            return False
        rows, starters = self._next_rows()
        is_stale = self.preamble is not None and self.preamble.is_stale
        return is_stale or rows is not None or bool(starters)

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        return self.record.take()

    # ---- the step

    def prepare(self) -> Work | None:
        """What the next forward computes for this session; None when there is nothing to do.

        Raises:
            PoolFullError: The pool is full; nothing was changed.
            ContextOverflowError: A position would lie beyond the model's context.
        """
        if self.is_closed:
            return None
        if self.preamble is not None and self.preamble.is_stale:
            work = self._prefill_preamble()
            if work.feeds:
                return work
        for lane in self.outputs:
            if self.topology.decoding == "views" and lane.phase == "speaking" and is_unread(lane, self.table, self.outputs):
                self._sleep(lane, "nobody is left to read it")
        rows, starters = self._next_rows()
        if rows is None and not starters:
            self._settle()
            rows, starters = self._next_rows()
            if rows is None and not starters:
                return None
        self._require_room(rows, starters)
        self._was_quiescent = False
        for lane in starters:
            self._wake(lane)
        work = assemble(self._layout, self._enter(rows, starters))
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.kv_tokens)
        return work

    def draws(self, work: Work) -> list[Draw]:
        """How the lanes that the work asks about are to be drawn."""
        by_label = {lane.label: lane for lane in self.outputs}
        return [self._draw(by_label[label]) for label in work.predicted]

    def advance(self, work: Work, tokens: Sequence[int], logits_NV: Tensor) -> None:
        """Give the drawn tokens to their lanes.

        Args:
            work: What was computed.
            tokens: One a predicted lane.
            logits_NV: The logits that they were drawn from.
        """
        by_label = {lane.label: lane for lane in self.outputs}
        silence = self.model.silence_token_id
        for row, (label, token) in enumerate(zip(work.predicted, tokens, strict=True)):
            lane = by_label[label]
            if not lane.is_awake or lane.pending is not None:
                continue  # a verb came in between
            if token == silence:
                lane.phase, lane.last_logits_V = "silent", logits_NV[row]
            else:
                lane.phase, lane.pending = "speaking", (token, False)

    # ---- inside

    def _prefill_preamble(self) -> Work:
        """Bring the shared preamble up to date with the conversation so far."""
        assert self.preamble is not None
        span = self.preamble.span
        kept, ids = self.preamble.missing(self._prefill_chunk)
        require_pages(self._cache, [(span, len(ids))])
        span.trim(kept)
        self.preamble.has_cached(kept + len(ids))
        self.record.life(self.t, "prefill", "preamble", tokens=tuple(ids), text=self.preamble.text, reason=f"after {kept}")
        return assemble(self._layout, [Entry("", span, ids, [self.t - 1] * len(ids))] if ids else [])

    def _next_rows(self) -> tuple[RowPlan | None, list[OutputLane]]:
        backlogs = [Backlog(lane.label, len(lane.queue), lane.feed) for lane in self.inputs if not lane.is_closed]
        is_speaking = any(lane.phase == "speaking" for lane in self.outputs)
        rows = next_rows(backlogs, is_speaking=is_speaking, budget=self._prefill_chunk)
        if not self._in_turn or (rows is not None and not rows.outputs):
            return rows, []
        waiting = [lane for lane in self.outputs if lane.phase == "waiting"]

        def entering(label: str) -> int:
            return 0 if rows is None else rows.count(label)

        starters = [w for w in waiting if may_start(w, self.table, self.inputs, self.outputs, entering)]
        if rows is None and self.topology.decoding == "rows":
            starters = []  # a row of probes alone does not exist
        return rows, starters

    def _require_room(self, rows: RowPlan | None, starters: Sequence[OutputLane]) -> None:
        """Ask the pool and the model's context; nothing is changed."""
        needs = [] if rows is None else [(lane.span, rows.count(lane.label)) for lane in self.inputs]
        if rows is not None and rows.outputs:
            needs += [(lane.span, 1) for lane in self.outputs if lane.phase == "speaking"]
            if self.topology.silence == "kept":
                needs += [(lane.span, 1) for lane in (*self.inputs, *self.outputs) if lane.label not in rows.row]
        if self.preamble is not None:
            needs += [(l.closer, len(self.preamble.closer_ids(l.spec))) for l in starters if l.closer is not None]
        require_pages(self._cache, [(span, count) for span, count in needs if count])
        num_new = sum(count for _, count in needs)
        length = self.kv_tokens + num_new if self.preamble is not None else self.t + (rows.num_rows if rows else 0)
        if length > self.model.architecture.max_positions:
            raise ContextOverflowError(
                f"the session would grow to {length} positions; {self.model.name} was made for "
                f"{self.model.architecture.max_positions}: close it, or go on in a new session with a summary"
            )

    def _wake(self, lane: OutputLane) -> None:
        """A waiting output begins its turn."""
        if lane.spec.prefix:
            lane.forced.extendleft(reversed(self.model.codec.encode(lane.spec.prefix)[0]))
        lane.phase, lane.force_start = "silent", False
        self.record.life(self.t, "wake", lane.label)
        self.record.state(self.t, lane.label, "active")

    def _enter(self, rows: RowPlan | None, starters: Sequence[OutputLane]) -> list[Entry]:
        """Take tokens from the queues into rows, record these, and say what is to be computed.

            burst rows   a  a  a  b  b          one stream after another
            last row              .  b  + outputs  (silent ones are probed; waking ones ask for the first time)
        """
        entries: list[Entry] = []
        last: dict[str, Cell] = {}
        if rows is not None:
            entries, last = self._enter_inputs(rows)
        speaking = [lane for lane in self.outputs if lane.phase == "speaking" and lane not in starters]
        silent = [lane for lane in self.outputs if lane.phase == "silent" and lane not in starters]
        finished: list[tuple[OutputLane, str]] = []
        if rows is None or not rows.outputs:
            speaking, silent = [], []
        for lane in speaking:
            assert lane.pending is not None, "a lane that speaks has a token"
            token, is_forced = lane.pending
            text, finish = lane.say(token)
            last[lane.label] = Cell(token, text, is_forced)
            if finish is not None:
                finished.append((lane, finish))
            predict = finish is None and lane.pending is None
            entries.append(Entry(lane.label, lane.span, [token], [self.t], predict=predict))
        if last and self.topology.silence == "kept":
            entries += self._keep_silence(last, [*silent, *(lane for lane in starters if not lane.forced)])
        if last:
            self.record.row(self.t, last)
            self.t += 1
        t = self.t - 1  # of the row that was entered last
        if self.topology.silence == "dropped":
            entries += [self._ask(lane, t) for lane in silent]
        entries += [entry for lane in starters for entry in self._ask_first(lane, t)]
        for lane in speaking:
            self.record.said(t, lane, last[lane.label])
        for lane, reason in finished:
            self._sleep(lane, reason)
        return entries

    def _ask_first(self, lane: OutputLane, t: int) -> list[Entry]:
        """What a waking lane needs before it can speak: its closer, or a first probe; a forced beginning no probe."""
        entries: list[Entry] = []
        if lane.closer is not None and self.preamble is not None:
            ids = self.preamble.closer_ids(lane.spec)
            text = self.preamble.closer_text(lane.spec)
            self.record.life(self.t, "prefill", f"closer:{lane.label}", tokens=ids, text=text)
            if ids:
                entries.append(Entry(lane.label, lane.closer, ids, [t] * len(ids), predict=not lane.forced))
            elif not lane.forced:
                entries.append(self._ask_again(lane, t))
        elif not lane.forced and self.topology.silence == "dropped":
            entries.append(self._ask(lane, t))
        if lane.forced:
            lane.pending, lane.phase = (lane.forced.popleft(), True), "speaking"
        return entries

    def _ask_again(self, lane: OutputLane, t: int) -> Entry:
        """Without a template there is nothing between input and answer: ask once more what follows the input."""
        last = max(
            (other for other in self.inputs if len(other.span) and self.table.reads(lane.lane.index, other.lane.index)),
            key=lambda other: other.lane.index,
        )
        return Entry(lane.label, lane.span, [last.last_token], [t], is_probe=True, predict=True, replays=last.span)

    def _enter_inputs(self, rows: RowPlan) -> tuple[list[Entry], dict[str, Cell]]:
        """The inputs' tokens: those of the burst are recorded here, those of the last row are returned."""
        by_label = {lane.label: lane for lane in self.inputs}
        tokens: dict[str, list[int]] = {lane.label: [] for lane in self.inputs}
        times: dict[str, list[int]] = {lane.label: [] for lane in self.inputs}

        def enter(label: str, t: int) -> Cell:
            token, text = by_label[label].queue.popleft()
            by_label[label].num_read += 1
            by_label[label].last_token = token
            tokens[label].append(token)
            times[label].append(t)
            return Cell(token, text, True)

        for label, count in rows.burst:
            for _ in range(count):
                self.record.row(self.t, {label: enter(label, self.t)})
                self.t += 1
        last = {label: enter(label, self.t) for label in rows.row}
        entries = [
            Entry(label, lane.span, tokens[label], times[label]) for label, lane in by_label.items() if tokens[label]
        ]
        return entries, last

    def _ask(self, lane: OutputLane, t: int) -> Entry:
        """A probe."""
        return Entry(lane.label, lane.span, [self.model.probe_id], [t], is_probe=True, predict=True)

    def _keep_silence(self, row: dict[str, Cell], silent: Sequence[OutputLane]) -> list[Entry]:
        """Where silence is kept, every open input and awake output without a token in the row gets a silence token."""
        idle = [lane for lane in self.inputs if not lane.is_closed and lane.label not in row]
        entries = [Entry(lane.label, lane.span, [self.model.probe_id], [self.t]) for lane in idle]
        entries += [replace(self._ask(lane, self.t), is_probe=False) for lane in silent]
        row.update({entry.label: Cell(self.model.probe_id, "") for entry in entries})
        return entries

    def _settle(self) -> None:
        """Nothing is queued and nobody speaks: is the session quiescent, or its turn over?"""
        if not self._in_turn or not all(lane.is_drained for lane in self.inputs):
            return
        silent = [lane for lane in self.outputs if lane.phase == "silent"]
        if silent:
            owing = [lane for lane in silent if lane.spec.visibility == "external" and not lane.has_answered]
            if not self._was_quiescent:
                self._was_quiescent = True
                self.record.quiescent(self.t)
            for lane in owing if self.forces_answers else ():
                self._draw_aloud(lane)
                self.record.life(self.t, "force", lane.label, reason="quiescent")
            if owing:
                return
        for lane in silent:
            self._sleep(lane, "silent")
        self._end_turn()

    def _begin_turn(self) -> None:
        self._in_turn = True
        self._was_quiescent = False
        for lane in self.inputs:
            lane.text, lane.num_read, lane.has_ended = "", 0, False
            lane.tokenizer = IncrementalTokenizer(self.model.codec)
        for lane in self.outputs:
            lane.begin_turn()

    def _end_turn(self) -> None:
        self._in_turn = False
        self.record.turn(self.t, self.turn)
        self.turn += 1
        if self.preamble is None:
            return
        said = "".join(lane.text for lane in self.inputs)
        answers = [lane.turn_text for lane in self.outputs if lane.spec.visibility == "external"]
        self.preamble.remember(said, "".join(answers))
        for span in (*self.spans, *(lane.closer for lane in self.outputs)):
            if span is not None:
                span.trim(0)

    def _sleep(self, lane: OutputLane, reason: str) -> None:
        lane.phase, lane.pending = "asleep", None
        lane.forced.clear()
        self.record.send(lane)
        self.record.life(self.t, "sleep", lane.label, reason=reason)
        self.record.state(self.t, lane.label, "asleep", reason)

    def _draw_aloud(self, lane: OutputLane) -> None:
        """Draw from the logits after which the lane chose silence, with silence masked."""
        assert lane.last_logits_V is not None
        silence = self.model.silence_token_id
        banned = () if silence is None else (silence,)
        (token,) = sample(lane.last_logits_V[None], [replace(self._draw(lane), banned=banned)])
        lane.pending, lane.phase = (token, False), "speaking"

    def _draw(self, lane: OutputLane) -> Draw:
        silence = self.model.silence_token_id
        return Draw(
            spec=lane.spec.sampling,
            lane=lane.label,
            seed=self.seed if lane.spec.sampling.seed is None else lane.spec.sampling.seed,
            turn=self.turn,
            index=lane.index,
            counts=lane.counts,
            exempt=() if silence is None else (silence,),
        )

    def _require_open(self) -> None:
        if self.is_closed:
            raise SessionClosedError("the session is closed; open a new one (its transcript can still be saved)")

    def _input(self, stream: str) -> InputLane:
        self._require_open()
        index = self.table.index(stream)
        for lane in self.inputs:
            if lane.lane.index == index:
                if lane.is_closed:
                    raise StreamClosedError(f"{stream} is closed; the open inputs are {self._open_names()}")
                return lane
        raise DirectionError(
            f"{stream} is an output, which the model speaks; inputs are {', '.join(self.topology.input_names)}. "
            "To put words into an output's mouth, use force(stream, text)"
        )

    def _open_names(self) -> str:
        return ", ".join(lane.label for lane in self.inputs if not lane.is_closed) or "none"

    def _outputs(self, stream: str | None) -> list[OutputLane]:
        """One output by label, or all that are not closed."""
        self._require_open()
        if stream is None:
            return [lane for lane in self.outputs if lane.phase != "closed"]
        index = self.table.index(stream)
        for lane in self.outputs:
            if lane.lane.index == index:
                if lane.phase == "closed":
                    raise StreamClosedError(f"{stream} is closed; open a new session to hear it again")
                return [lane]
        raise DirectionError(f"{stream} is an input, which the model reads; outputs are {', '.join(self.topology.output_names)}")

    def _release(self) -> None:
        spans = [*self.spans, *(lane.closer for lane in self.outputs)]
        spans += [self.preamble.span] if self.preamble is not None else []
        for span in spans:
            if span is not None:
                span.release()
        self.spans[:] = [None] * len(self.spans)
