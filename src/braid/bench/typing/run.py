"""`braid bench typing`: what reading and drafting ahead bring to somebody who types, and what they cost.

Each trace is replayed once for each way to answer, in turns, so that noise on the machine hits all alike; every way has
an engine and a cache of its own, and answers greedily. With the simulated clock a forward takes what it really took
on this machine, and time in which there is nothing to do is skipped, see `braid.bench.typing.machine`. Ways that wait
for the commit then take seconds; those that draft while somebody types leave little to be skipped. With a speed, the
traces are played to a running engine in real time (`braid.bench.typing.live`).

The segments of a template are joined by blank lines, those without text left out. What is typed while the answer to the
first input comes waits for its end, as the application would hold it; its times count from its own commit.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from braid.bench.machine import describe_machine
from braid.bench.traces.file import Trace
from braid.bench.typing.machine import Machine, deviation_of
from braid.bench.typing.turns import Part, Turn, TypingRun, parts_of, turn_of
from braid.bench.typing.ways import WAYS, Way, make_way
from braid.engine.editing.editable import DRIFT_BOUND
from braid.engine.scheduler import SchedulerPolicy
from braid.errors import BraidError, EngineError, InputError
from braid.model.model import Model
from braid.sessions.generate import with_sampling
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology

__all__ = [
    "ANSWER_TOKENS",
    "DEFAULT_WAYS",
    "WARM_UP",
    "kv_tokens_for",
    "ordered_ways",
    "replay",
    "run_typing",
    "sized",
]

ANSWER_TOKENS = 48
"""The longest answer. The traces ask for a sentence or less; longer answers cost time in every way, and most of all in
`fresh`, and are the same in all of them after the first token."""

DEFAULT_WAYS = ("ahead", "read-ahead", "repair", "none", "append", "fresh")

_PATIENCE = 8
"""Steps without a forward, after which nothing more is expected of a session that says it has something to do."""


# ---- one trace, one way


def replay(machine: Machine, way: Way, trace: Trace) -> list[Turn]:
    """Replay a trace on a simulated clock.

    Args:
        machine: Of the way.
        way: How it is answered.
        trace: What is typed.

    Returns:
        Its turns.
    """
    return [turn for turn, _ in _replayed(machine, way, trace, copies=False)]


def _replayed(
    machine: Machine, way: Way, trace: Trace, *, copies: bool
) -> list[tuple[Turn, list[Tensor] | None]]:
    """Also the keys and values of the input when it was committed and read, where they could be had."""
    machine.reset()
    found: list[tuple[Turn, list[Tensor] | None]] = []
    way.begin()
    try:
        for part in parts_of(trace):
            turn, held = _Replay(machine, way, part, copies).run()
            found.append((turn, held))
            way.remember(part.text, turn.answer)
    finally:
        way.end()
    return found


class _Replay:
    """One turn."""

    def __init__(self, machine: Machine, way: Way, part: Part, copies: bool) -> None:
        self._machine, self._way, self._part, self._copies = machine, way, part, copies
        self._coming = deque(part.events)
        self._is_committed = False
        self._first_forward = len(machine.forwards)
        self._edited_at = 0
        """Forwards before the last snapshot came."""
        self._committed_at = 0
        """News before the commit."""
        self._held: list[Tensor] | None = None
        self._num_idle = 0
        """Steps without a forward since something happened."""

    def run(self) -> tuple[Turn, list[Tensor] | None]:
        machine, way = self._machine, self._way
        while True:
            self._deliver()
            if self._is_committed and way.is_over:
                return self._turn(), self._held
            if way.has_work or self._is_committed:
                self._look()
                self._num_idle = 0 if way.step(self._commit_meanwhile) else self._num_idle + 1
                self._look()
                if self._num_idle <= _PATIENCE:
                    continue
                if self._is_committed:
                    raise EngineError("a committed turn is not over, and nothing of it is computed any more")
            self._num_idle = 0
            coming = self._coming[0][0] if self._coming else self._part.commit_at
            quiet_at = way.conversation.quiet_at(machine.now)
            machine.now = max(machine.now, coming if quiet_at is None else min(coming, quiet_at))

    def _deliver(self) -> None:
        """What has come until now."""
        machine, way = self._machine, self._way
        while self._coming and self._coming[0][0] <= machine.now:
            _, text = self._coming.popleft()
            if not self._coming:
                self._edited_at = len(machine.forwards)
            way.hear(text)
        if self._is_due(machine.now):
            self._look()
            self._commit()

    def _is_due(self, now: float) -> bool:
        """Whether the commit comes next, and has come by then."""
        return not self._coming and not self._is_committed and self._part.commit_at <= now

    def _commit(self) -> None:
        self._committed_at = len(self._machine.news)
        self._way.commit(self._part.text)
        self._is_committed = True
        self._num_idle = 0  # steps before it that had to wait say nothing of those behind it

    def _commit_meanwhile(self, now: float) -> None:
        """Commit in the middle of a forward that has just ended, if it came by then."""
        if self._is_due(now):
            self._machine.now = self._part.commit_at
            self._commit()

    def _look(self) -> None:
        """Copy what the cache holds of the input, once it is final and read, and before the turn ends."""
        if not self._copies or self._held is not None or self._coming:
            return
        if not self._way.has_read(self._part.text):
            return
        conversation = self._way.conversation
        self._held = self._machine.backend.held(conversation.number, self._way.stream)

    def _turn(self) -> Turn:
        machine = self._machine
        return turn_of(
            self._part,
            self._way.topology,
            machine.news[self._committed_at :],
            machine.forwards[self._first_forward :],
            committed_at=self._part.commit_at,
            over_at=machine.now,
            num_before_edit=self._edited_at - self._first_forward,
        )


# ---- all traces, all ways


def run_typing(
    model: Model,
    traces: Sequence[Trace],
    *,
    ways: Sequence[str] = DEFAULT_WAYS,
    topology: str | Topology = "plain",
    answer_tokens: int = ANSWER_TOKENS,
    drift_bound: float = DRIFT_BOUND,
    on_trace: Callable[[int, int, str], None] | None = None,
) -> TypingRun:
    """Replay traces on a simulated clock.

    Args:
        model: Answers.
        traces: What is typed.
        ways: Of `WAYS`; `none` is always among them. `repair` and `reuse` are asked where the last edit was in the
            middle.
        topology: Of views; its first input is typed.
        answer_tokens: The longest answer.
        drift_bound: The most that what is taken over behind an edit may have drifted.
        on_trace: Is told how many traces are done, of how many, and which comes.

    Returns:
        All turns. After Ctrl-C those of the traces that were finished; what went wrong with a trace is among its
        `failures`.

    Raises:
        InputError: There is no trace, or no such way.
        EngineError: No trace could be replayed.
    """
    chosen = ordered_ways(ways)
    if not traces:
        raise InputError("there is no trace to replay")
    if answer_tokens < 1:
        raise InputError("an answer has at least one token")
    streams = sized(as_topology(topology), answer_tokens)
    stream = streams.input_names[0]
    room = kv_tokens_for(model, traces, answer_tokens)
    seats: dict[str, tuple[Machine, Way]] = {}
    for name in chosen:
        # A request of `fresh` is somebody's request, whatever becomes of it; the others' drafts yield to whoever comes.
        policy = SchedulerPolicy(draft_tokens=SchedulerPolicy.step_tokens) if name == "fresh" else None
        machine = Machine(model, kv_tokens=room, policy=policy, drift_bound=drift_bound)
        seats[name] = machine, make_way(name, machine, streams, stream, answer_tokens)
    run = TypingRun(
        model.name,
        streams.name or "a topology of your own",
        answer_tokens,
        "simulated",
        chosen,
        drift_bound=drift_bound,
    )
    with contextlib.suppress(KeyboardInterrupt):
        run.is_complete = False
        for machine, way in seats.values():
            replay(machine, way, WARM_UP)
        for number, trace in enumerate(traces):
            if on_trace is not None:
                on_trace(number, len(traces), trace.id)
            try:
                run.add(trace, _in_all_ways(seats, trace))
            except BraidError as error:  # an hour of other traces is not lost with it
                run.failures[trace.id] = str(error)
        run.is_complete = True
    run.require_traces()
    run.machine = describe_machine()
    return run


def ordered_ways(ways: Sequence[str]) -> tuple[str, ...]:
    """The ways in their order, `none` among them.

    Raises:
        InputError: There is no such way.
    """
    unknown = [name for name in ways if name not in WAYS]
    if unknown:
        raise InputError(f"there is no way to answer called {unknown[0]!r}; there are {', '.join(WAYS)}")
    return tuple(name for name in WAYS if name in ways or name == "none")


def kv_tokens_for(model: Model, traces: Sequence[Trace], answer_tokens: int) -> int:
    """Tokens of a cache that holds the longest session, once more what is put aside of it, and its prefixes."""
    longest = max(
        sum(max(len(model.codec.encode(text)[0]) for text in _longest(part)) for part in parts_of(trace))
        for trace in traces
    )
    return 3 * (longest + 2 * answer_tokens) + 512


def _longest(part: Part) -> Iterator[str]:
    """The longest text of a part, and what is committed."""
    yield max((text for _, text in part.events), key=len)
    yield part.text


def _in_all_ways(seats: Mapping[str, tuple[Machine, Way]], trace: Trace) -> dict[str, list[Turn] | None]:
    found: dict[str, list[Turn] | None] = {}
    exact: list[list[Tensor] | None] = []
    for name, (machine, way) in seats.items():
        if name in ("repair", "reuse") and trace.meta.last_edit != "middle":
            found[name] = None
            continue
        try:
            replayed = _replayed(machine, way, trace, copies=trace.meta.last_edit == "middle")
        except BraidError as error:
            raise EngineError(f"{trace.id}, {name}: {error}") from error
        found[name] = [turn for turn, _ in replayed]
        if name == "ahead":
            exact = [held for _, held in replayed]
        elif name in ("repair", "reuse") and exact:
            found[name] = [
                _with_drift(turn, held, other) for (turn, held), other in zip(replayed, exact, strict=True)
            ]
    return found


def _with_drift(turn: Turn, held: list[Tensor] | None, exact: list[Tensor] | None) -> Turn:
    if held is None or exact is None:
        return turn
    return replace(turn, drift=deviation_of(held, exact))


def sized(topology: Topology, answer_tokens: int) -> Topology:
    """The topology, greedy, with answers of so many tokens at most."""
    streams = with_sampling(topology, SamplingSpec())
    external = [name for name in streams.output_names if streams.streams[name].visibility == "external"]
    return streams.with_specs(
        {name: streams.streams[name].model_copy(update={"max_tokens": answer_tokens}) for name in external}
    )


WARM_UP = Trace.model_validate(
    {
        "id": "warm-up",
        "kind": "typing",
        "question": "Is it so?",
        "events": [{"at": 0.1, "text": "Is it"}, {"at": 0.4, "text": "Is it so?"}],
        "commit_at": 1.0,
        "meta": {"last_edit": "append", "changed_fact": False, "pause_before_commit_s": 0.6},
    }
)
