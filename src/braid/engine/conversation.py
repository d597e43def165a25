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
from braid.engine.lanes import InputLane, OutputLane
from braid.engine.policy import Backlog, RowPlan, next_rows
from braid.engine.record import Record
from braid.engine.rowmaker import RowMaker
from braid.engine.sampler import Draw, sample
from braid.engine.stage import Stage
from braid.engine.starts import is_unread, may_start
from braid.engine.work import Work
from braid.errors import EmptyInputError, NothingToForceError, SessionClosedError
from braid.model.model import Model
from braid.streams.events import Event
from braid.streams.text import require_whole
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
        self.stage = Stage(model, cache, topology, copies)
        self.model = model
        self.topology = self.stage.topology
        self.table = self.stage.table
        self.seed = seed
        self.turn = 0
        self.is_closed = False
        self.forces_answers = forces_answers
        self.peak_kv_tokens = 0
        """The most tokens that the cache kept for this session."""
        self._prefill_chunk = prefill_chunk
        self._in_turn = False
        self._was_quiescent = False
        self.record = Record(Transcript(self.topology, model.name, dict(copies or {}), {"seed": seed}))
        self._rows = RowMaker(self.stage, self.record)
        for lane in self.table.lanes:
            self.record.life("open", lane.label)
            self.record.state(lane.label, "created")

    # ---- verbs

    def write(self, stream: str, text: str) -> None:
        """Add text to an input; trailing text that could still merge with what follows is held back.

        Raises:
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
        """
        lane = self._input(stream)
        require_whole(text)
        if not text:
            return
        if not self._in_turn:
            self._begin_turn()
        if lane.has_ended or not lane.text:
            self.record.state(lane.label, "active")
        lane.has_ended = False
        lane.text += text
        lane.queue.extend(lane.tokenizer.write(text))

    def flush(self, stream: str, reason: str = "deadline") -> bool:
        """Feed what `write` holds back, as it is; the token boundary is then where the text happens to end.

        Returns:
            Whether there was anything.
        """
        lane = self._input(stream)
        if not self._in_turn:  # what is held then is the beginning of the next one
            return False
        held = lane.tokenizer.flush()
        if held:
            lane.queue.extend(held)
            self.record.life("flush", lane.label, text="".join(text for _, text in held), reason=reason)
            self.record.notice(
                "flush", f"held text was fed without waiting for what follows ({reason})", stream
            )
        return bool(held)

    def end(self, stream: str | None = None) -> None:
        """Say that an input, or every one, is complete for this turn.

        Raises:
            EmptyInputError: No input has any text in this turn.
        """
        self._require_open()
        inputs = self.stage.inputs
        lanes = (
            [self._input(stream)] if stream is not None else [lane for lane in inputs if not lane.is_closed]
        )
        if not self._in_turn and any(lane.held_over.strip() for lane in inputs):
            self._begin_turn()
        if not any(lane.text for lane in inputs):
            raise EmptyInputError(
                f"{stream or 'the input'} ended without any text; write something to "
                f"{' or '.join(self.topology.input_names) or 'an input stream'} first"
            )
        for lane in lanes:
            if lane.has_ended or not lane.text:
                continue
            lane.queue.extend(lane.tokenizer.flush())
            lane.has_ended = True
            if not self.stage.in_views:
                lane.queue.append((self.model.turn_end_id, ""))
            self.record.life("end", lane.label)
            self.record.state(lane.label, "asleep", "ended")

    def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all."""
        for lane in self._outputs(stream):
            if lane.is_awake:
                lane.pending, lane.phase = (self.model.turn_end_id, True), "speaking"
                lane.forced.clear()
                self.record.life("interrupt", lane.label)

    def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        for lane in self._outputs(stream):
            if lane.phase != "asleep":
                self.record.life("cancel", lane.label)
                self._sleep(lane, "cancelled")

    def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak.

        Args:
            stream: Its label.
            text: What to say; None lets the model choose, with silence masked once.

        Raises:
            NothingToForceError: Nothing was written in this turn, or the stream has finished in it.
        """
        (lane,) = self._outputs(stream)
        if not self._in_turn or not any(other.text for other in self.stage.inputs):
            raise NothingToForceError(
                f"nothing was written in this turn, so {stream} cannot speak; write some input first"
            )
        if lane.phase == "asleep" and lane.has_answered:
            raise NothingToForceError(
                f"{stream} has finished in this turn; it speaks again in the next one, after more input"
            )
        if lane.phase == "asleep":
            lane.phase = "waiting"
        if text is not None:
            lane.forced.extend(self.model.codec.encode(text)[0])
        is_drawn = lane.pending is not None and not lane.pending[1]
        if lane.forced and (lane.phase == "silent" or (lane.phase == "speaking" and is_drawn)):
            lane.pending, lane.phase = (lane.forced.popleft(), True), "speaking"
        elif lane.phase == "silent" and lane.last_logits_V is not None:
            self._draw_aloud(lane)
        elif lane.phase == "waiting":
            lane.force_start = True
        self.record.life("force", lane.label, text=text or "")

    def close_stream(self, stream: str) -> None:
        """Close one stream; its pages are free at once, and later rows do not read it. Harmless when repeated."""
        self._require_open()
        index = self.table.index(stream)
        lane = next(lane for lane in (*self.stage.inputs, *self.stage.outputs) if lane.lane.index == index)
        if self.stage.spans[index] is None:
            return
        if isinstance(lane, OutputLane):
            self._sleep(lane, "closed")
        self.stage.close_lane(lane)
        self.record.life("close", stream)
        self.record.state(stream, "closed")

    def close(self, reason: str = "closed") -> None:
        """Give all pages back; harmless when repeated."""
        if self.is_closed:
            return
        for lane in self.stage.open_outputs():
            if lane.is_awake:
                self._sleep(lane, reason)
        self.is_closed = True
        self.stage.release()
        self.record.closed(reason)

    # ---- asking

    @property
    def t(self) -> int:
        """The next row."""
        return self.record.t

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
        return self.stage.kv_tokens

    @property
    def num_queued(self) -> int:
        """Input tokens that have not entered a row yet."""
        return sum(len(lane.queue) for lane in self.stage.inputs)

    @property
    def has_work(self) -> bool:
        """Whether the next step would compute something."""
        if self.is_closed:
            return False
        rows, starters = self._next_rows()
        return self._preamble_is_stale or rows is not None or bool(starters)

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        return self.record.take()

    # ---- the step

    def prepare(self) -> Work | None:
        """What the next forward computes for this session; None when there is nothing to do.

        Raises:
            PoolFullError, PoolTooSmallError: The pool has no room; nothing was changed.
            ContextOverflowError: A position would lie beyond the model's context; nothing was changed.
        """
        if self.is_closed:
            return None
        if self._preamble_is_stale and (work := self._rows.prefill_preamble(self._prefill_chunk)).feeds:
            return self._counted(work)
        self._retire_unread()
        rows, starters = self._next_rows()
        if rows is None and not starters:
            self._settle()
            rows, starters = self._next_rows()
        if rows is None and not starters:
            return None
        self._rows.require_room(rows, starters)
        self._was_quiescent = False
        made = self._rows.make(rows, starters)
        for lane, reason in made.finished:
            self._sleep(lane, reason)
        return self._counted(made.work)

    def draws(self, work: Work) -> list[Draw]:
        """How the lanes that the work asks about are to be drawn."""
        by_label = {lane.label: lane for lane in self.stage.outputs}
        return [self._draw(by_label[label]) for label in work.predicted]

    def advance(self, work: Work, tokens: Sequence[int], logits_NV: Tensor) -> None:
        """Give the drawn tokens to their lanes.

        Args:
            work: What was computed.
            tokens: One a predicted lane.
            logits_NV: The logits that they were drawn from.
        """
        by_label = {lane.label: lane for lane in self.stage.outputs}
        silence = self.model.silence_token_id
        for row, (label, token) in enumerate(zip(work.predicted, tokens, strict=True)):
            lane = by_label[label]
            if not lane.is_awake or lane.pending is not None:
                continue  # a verb came in between
            if lane.forced:
                lane.phase, lane.pending = "speaking", (lane.forced.popleft(), True)
            elif token == silence:
                lane.phase, lane.last_logits_V = "silent", logits_NV[row]
            else:
                lane.phase, lane.pending = "speaking", (token, False)

    # ---- inside

    @property
    def _preamble_is_stale(self) -> bool:
        return self.stage.preamble is not None and self.stage.preamble.is_stale

    def _counted(self, work: Work) -> Work:
        self.peak_kv_tokens = max(self.peak_kv_tokens, self.kv_tokens)
        return work

    def _next_rows(self) -> tuple[RowPlan | None, list[OutputLane]]:
        """What the queues make of the next rows, and the outputs that wake with them."""
        stage = self.stage
        backlogs = [
            Backlog(lane.label, len(lane.queue), lane.feed) for lane in stage.inputs if not lane.is_closed
        ]
        is_speaking = any(lane.phase == "speaking" for lane in stage.outputs)
        rows = next_rows(backlogs, is_speaking=is_speaking, budget=self._prefill_chunk)
        if not self._in_turn or (rows is not None and not rows.outputs):
            return rows, []
        if rows is None and stage.keeps_silence:
            return None, []  # asking would take a row of silence alone

        def entering(label: str) -> int:
            return 0 if rows is None else rows.count(label)

        waiting = [lane for lane in stage.outputs if lane.phase == "waiting"]
        return rows, [w for w in waiting if may_start(w, self.table, stage.inputs, stage.outputs, entering)]

    def _retire_unread(self) -> None:
        """In views, an inner output whose readers have all finished thinks for nobody."""
        for lane in self.stage.outputs if self.stage.in_views else ():
            if lane.phase == "speaking" and is_unread(lane, self.table, self.stage.outputs):
                self._sleep(lane, "nobody is left to read it")

    def _settle(self) -> None:
        """Nothing is queued and nobody speaks: is the turn over, or the session quiescent?"""
        outputs = self.stage.open_outputs()
        if not self._in_turn or any(lane.queue for lane in self.stage.inputs):
            return
        left = [lane for lane in outputs if lane.phase != "asleep" and not lane.may_never_start]
        if not left and any(lane.phase == "asleep" for lane in outputs):
            self._end_turn()  # whoever goes on writing begins the next one
            return
        if not all(lane.is_drained for lane in self.stage.inputs):
            return
        silent = [lane for lane in outputs if lane.phase == "silent"]
        if silent and not self._was_quiescent:
            self._was_quiescent = True
            self.record.quiescent()
        owing = [lane for lane in silent if lane.spec.visibility == "external" and not lane.has_answered]
        for lane in owing if self.forces_answers else ():
            self._draw_aloud(lane)
            self.record.life("force", lane.label, reason="quiescent")
        if owing:
            return
        for lane in silent:
            self._sleep(lane, "silent")
        self._end_turn()

    def _begin_turn(self) -> None:
        self._in_turn = True
        self._was_quiescent = False
        before = self.stage.preamble.text if self.stage.preamble is not None else ""
        for lane in self.stage.inputs:
            if not lane.is_closed:
                lane.begin_turn(before)
        for lane in self.stage.outputs:
            lane.begin_turn()

    def _end_turn(self) -> None:
        self._in_turn = False
        self.record.turn(self.turn)
        self.turn += 1
        for lane in self.stage.inputs:
            lane.end_turn()
        if self.stage.preamble is not None:
            said = "".join(lane.text for lane in self.stage.inputs)
            answers = [
                lane.turn_text for lane in self.stage.open_outputs() if lane.spec.visibility == "external"
            ]
            self.stage.preamble.remember(said, "".join(answers))
            self.stage.clear_turn()

    def _sleep(self, lane: OutputLane, reason: str) -> None:
        lane.phase, lane.pending = "asleep", None
        lane.forced.clear()
        rest = lane.rest()
        self.record.send(lane, rest)
        self.record.life("sleep", lane.label, text=rest, reason=reason)
        self.record.state(lane.label, "asleep", reason)

    def _draw_aloud(self, lane: OutputLane) -> None:
        """Draw from the logits after which the lane chose silence, with silence masked."""
        assert lane.last_logits_V is not None, "a silent lane was asked"
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
            raise SessionClosedError(
                "the session is closed; open a new one (its transcript can still be saved)"
            )

    def _input(self, stream: str) -> InputLane:
        self._require_open()
        return self.stage.input(stream)

    def _outputs(self, stream: str | None) -> list[OutputLane]:
        """One output by label, or all that are not closed."""
        self._require_open()
        return self.stage.open_outputs() if stream is None else [self.stage.output(stream)]
