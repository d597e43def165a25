"""One call from input to answer: `braid.generate`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from braid.engine.core import EngineCore
from braid.engine.costs import costs_of
from braid.engine.fallback import Decision
from braid.engine.fallback import fall_back as fall_back_of
from braid.engine.local import LocalBackend
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import EmptyInputError, InputError
from braid.model.model import Model
from braid.streams.events import Event
from braid.streams.metrics import Metrics, measure
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["ROWS_AFTER_INPUT", "Result", "StreamResult", "decide", "generate", "run_rows", "with_sampling"]

ROWS_AFTER_INPUT = 512
"""Where nobody sets a limit, a turn may make so many rows beyond those that its input takes."""


ALONE = SchedulerPolicy(step_tokens=2048, chunk_tokens=512)
"""Where one session has the engine to itself, nobody waits while it reads a long input."""


@dataclass(frozen=True)
class StreamResult:
    """What one stream held at the end."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """A finished run; `result["output"].text` is what most callers want."""

    transcript: Transcript
    metrics: Metrics
    finished: bool
    """False when `max_rows` cut the run short."""
    seconds: float
    kv_tokens: int
    kv_bytes: int
    streams: Mapping[str, StreamResult] = field(default_factory=dict[str, StreamResult])
    decision: Decision | None = None
    """Where falling back to one stream was allowed: whether that was done, and why."""

    def __getitem__(self, stream: str) -> StreamResult:
        return self.streams[stream]


def generate(
    model: Model,
    topology: str | Topology,
    inputs: Mapping[str, str] | str,
    *,
    max_rows: int | None = None,
    seed: int = 0,
    copies: Mapping[str, int] | None = None,
    sampling: SamplingSpec | Mapping[str, SamplingSpec] | None = None,
    forced: Mapping[str, str] | None = None,
    kv_tokens: int | None = None,
    fall_back: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Give all input, run one turn, return what every stream said.

    Args:
        model: From `braid.load`.
        topology: A preset's name, a YAML file or a `Topology`.
        inputs: Text of each input stream; a plain string is the first input's.
        max_rows: Rows after which the run is cut short; None for `ROWS_AFTER_INPUT` beyond the input's.
        seed: Of all sampling noise.
        copies: Parallel copies of streams that allow them.
        sampling: For all outputs, or for each by name, instead of the topology's.
        forced: Text with which outputs must begin, by stream.
        kv_tokens: Size of the cache, in tokens; None chooses.
        fall_back: Answer with one stream where inner streams would only cost time, see `decide`. The first time this
            measures for about a second what a row costs.
        on_event: Called with every event as it happens.

    Raises:
        EmptyInputError: No input has any text.
        BraidError: Whatever else is wrong, by its own class.

    Example:
        >>> result = generate(model, "plain", "What is the capital of France?")  # doctest: +SKIP
        >>> result["output"].text  # doctest: +SKIP
        'The capital of France is Paris.'
    """
    topology = with_sampling(as_topology(topology), sampling)
    for stream, text in (forced or {}).items():
        topology = _changed(topology, stream, {"prefix": text})
    if isinstance(inputs, str):
        if not topology.input_names:
            raise InputError("the topology has no input stream for this text")
        inputs = {topology.input_names[0]: inputs}
    if not any(inputs.values()):
        raise EmptyInputError(f"all inputs are empty; give text to {' or '.join(topology.input_names)}")
    decision = decide(model, topology, inputs, copies=copies) if fall_back else None
    if decision is not None:
        topology = decision.topology
    core = EngineCore(LocalBackend(model, kv_tokens=kv_tokens, prefix_share=0.0), policy=ALONE)
    conversation = core.open(topology, seed=seed, copies=copies)
    if decision is not None and decision.fell_back:
        conversation.transcript.meta["fell_back"] = decision.reason
        conversation.record.notice("fell_back", decision.reason)
    began = time.perf_counter()
    try:
        for stream, text in inputs.items():
            conversation.write(stream, text)
        conversation.end()
        limit = conversation.num_queued + ROWS_AFTER_INPUT if max_rows is None else max_rows
        run_rows(core, conversation, max_rows=limit, on_event=on_event)
        result = result_of(
            conversation.transcript,
            seconds=time.perf_counter() - began,
            finished=conversation.turn_is_over,
            kv_tokens=conversation.peak_kv_tokens,
            bytes_per_token=core.backend.usage().bytes_per_token,
            decision=decision,
        )
        conversation.close()
        for event in conversation.take_events():
            if on_event is not None:
                on_event(event)
        return result
    finally:
        conversation.close()


def decide(
    model: Model,
    topology: str | Topology,
    inputs: Mapping[str, str],
    *,
    copies: Mapping[str, int] | None = None,
) -> Decision:
    """Whether a request whose whole input is there is better served by one stream, by what rows cost here.

    For a session that is told everything at once, open it with the decision's `topology`.

    Args:
        model, topology, copies: As for `generate`.
        inputs: Text of each input stream.

    Returns:
        The topology to use, the reason in words, and both estimates. What was asked for is never lost but for the inner
        streams themselves.
    """
    return fall_back_of(
        as_topology(topology),
        input_tokens=sum(len(model.codec.encode(text)[0]) for text in inputs.values()),
        is_complete=True,
        costs=lambda: costs_of(model),
        copies=copies,
        is_trained=model.trained is not None,
    )


def run_rows(
    core: EngineCore,
    conversation: Conversation,
    *,
    max_rows: int,
    on_event: Callable[[Event], None] | None = None,
) -> None:
    """Step until the turn is over, or so many rows were made.

    Args:
        core, conversation: What runs.
        max_rows: More rows than these only a burst of input makes, which is not cut.
        on_event: Called with every event as it happens.

    Raises:
        BraidError: What ended the run.
    """

    def publish(_: object) -> None:
        for event in conversation.take_events():
            if on_event is not None:
                on_event(event)

    stop = conversation.t + max_rows
    while not conversation.turn_is_over and conversation.t < stop:
        report = core.step([conversation], publish=publish)
        for _, error in report.failures:
            raise error
        if not report.worked and not conversation.has_work:
            break
    conversation.demand()  # an answer that ended in the very last row is complete, and the turn over
    publish(None)


def result_of(
    transcript: Transcript,
    *,
    seconds: float,
    finished: bool,
    kv_tokens: int,
    bytes_per_token: int,
    decision: Decision | None = None,
) -> Result:
    """Gather a run's streams and figures."""
    streams = {
        lane.label: StreamResult(
            text=transcript.text(lane.label),
            tokens=tuple(token for _, token in transcript.tokens(lane.label)),
        )
        for lane in transcript.lanes.lanes
    }
    return Result(
        transcript=transcript,
        metrics=measure(transcript),
        finished=finished,
        seconds=seconds,
        kv_tokens=kv_tokens,
        kv_bytes=kv_tokens * bytes_per_token,
        streams=streams,
        decision=decision,
    )


def with_sampling(topology: Topology, sampling: SamplingSpec | Mapping[str, SamplingSpec] | None) -> Topology:
    """A topology with other sampling parameters.

    Raises:
        UnknownStreamError, InputError: A name that is no output's.
    """
    if sampling is None:
        return topology
    if isinstance(sampling, SamplingSpec):
        sampling = dict.fromkeys(topology.output_names, sampling)
    for name, spec in sampling.items():
        topology = _changed(topology, name, {"sampling": spec})
    return topology


def _changed(topology: Topology, stream: str, update: Mapping[str, object]) -> Topology:
    """A topology with one output's settings changed."""
    if topology.stream(stream).is_input:
        raise InputError(
            f"{stream} is an input and says nothing; outputs are {', '.join(topology.output_names)}"
        )
    return topology.with_specs({stream: topology.streams[stream].model_copy(update=dict(update))})
