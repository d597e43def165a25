"""A turn that was typed: what came when, and what became of it in one way to answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from braid.bench.traces.file import Text, Trace
from braid.bench.typing.machine import Forward
from braid.engine.editing.editable import DRIFT_BOUND
from braid.engine.session.record import News
from braid.errors import EngineError
from braid.streams.entries import Row
from braid.streams.events import Reuse, RowEvent, TurnEvent
from braid.streams.topology import Topology

__all__ = ["Part", "Turn", "TypingRun", "parts_of", "turn_of", "whole_text"]


class Part(NamedTuple):
    """The input of one turn.

    Args:
        events: Seconds, and the whole text then.
        commit_at: Seconds.
    """

    events: tuple[tuple[float, str], ...]
    commit_at: float

    @property
    def pause_s(self) -> float:
        """Seconds from the last snapshot to the commit."""
        return self.commit_at - self.events[-1][0]

    @property
    def text(self) -> str:
        """What is committed."""
        return self.events[-1][1]


@dataclass(frozen=True)
class Turn:
    """A turn, answered in one way.

    Args:
        text, answer: What was committed, and what the external outputs said.
        tokens: Of the answer, its end included.
        pause_s: Seconds from the last snapshot to the commit.
        ttft_s, ttfat_s, done_s: Seconds from the commit to the first token of any output, to the first of an external
            one, and to the end of the turn; None without one.
        forwards: That were under way at the commit or began after it, up to the first answer token.
        prefill, decode: Tokens computed for the turn.
        prefill_after_edit: Of `prefill`, those after the last snapshot came.
        reuse: The engine's own account, of an editable turn.
        drift: How far keys and values really are from the exact ones, where that was compared.
    """

    text: str
    answer: str
    tokens: tuple[int, ...]
    pause_s: float
    ttft_s: float | None
    ttfat_s: float | None
    done_s: float
    forwards: int
    prefill: int
    decode: int
    prefill_after_edit: int
    reuse: Reuse | None = None
    drift: float | None = None

    @property
    def computed(self) -> int:
        """Tokens."""
        return self.prefill + self.decode


@dataclass
class TypingRun:
    """What was measured, turn by turn.

    Args:
        traces: Those that were replayed in all ways.
        turns: By way; a list of turns for each trace, None for one that this way was not asked for.
        clock: `simulated`, or at which speed.
        is_complete: False when it was interrupted.
        failures: What went wrong with traces that are left out, by their ids.
    """

    model: str
    topology: str
    answer_tokens: int
    clock: str
    ways: tuple[str, ...]
    traces: list[Trace] = field(default_factory=list[Trace])
    turns: dict[str, list[list[Turn] | None]] = field(default_factory=dict[str, "list[list[Turn] | None]"])
    is_complete: bool = True
    failures: dict[str, str] = field(default_factory=dict[str, str])
    drift_bound: float = DRIFT_BOUND
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def add(self, trace: Trace, turns: Mapping[str, list[Turn] | None]) -> None:
        """A trace was replayed in all ways."""
        self.traces.append(trace)
        for way in self.ways:
            self.turns.setdefault(way, []).append(turns[way])

    def require_traces(self) -> None:
        """Refuse a run of which nothing is left.

        Raises:
            EngineError: All traces that were tried have failed.
        """
        if self.failures and not self.traces:
            raise EngineError(f"no trace could be replayed: {next(iter(self.failures.values()))}")


def whole_text(text: Text) -> str:
    """One text of a text or of segments."""
    if isinstance(text, str):
        return text
    return "\n\n".join(part for part in text.values() if part.strip())


def parts_of(trace: Trace) -> list[Part]:
    """The turns of a trace."""
    snapshots = tuple((at, whole_text(text)) for at, text in trace.snapshots())
    parts = [Part(snapshots, trace.commit_at)]
    if trace.steer is not None:
        events = tuple((event.at, whole_text(event.text)) for event in trace.steer.events)
        parts.append(Part(events, trace.steer.commit_at))
    return parts


def turn_of(
    part: Part,
    topology: Topology,
    news: Sequence[tuple[float, News]],
    forwards: Sequence[Forward],
    *,
    committed_at: float,
    over_at: float,
    num_before_edit: int,
) -> Turn:
    """What was heard and computed of a turn, as its figures.

    Args:
        part: What was committed.
        topology: Who speaks.
        news: With the second in which it was told, from the commit on.
        forwards: Of the turn, on the same clock.
        committed_at, over_at: On that clock.
        num_before_edit: Forwards before the last snapshot came.
    """
    first = first_answer = None
    texts: list[str] = []
    tokens: list[int] = []
    for at, each in news:
        if not isinstance(each, Row | RowEvent):
            continue
        for label, cell in each.cells.items():
            spec = topology.streams[label.partition("#")[0]]
            if not spec.is_output:
                continue
            first = at if first is None else first
            if spec.visibility == "external":
                first_answer = at if first_answer is None else first_answer
                texts.append(cell.text)
                tokens.append(cell.token)
    until = over_at if first_answer is None else first_answer
    # The step that ends a turn also reads what the next one stands on, which is none of this one's time.
    ended = next(((at, each.reuse) for at, each in news if isinstance(each, TurnEvent)), (over_at, None))
    return Turn(
        part.text,
        "".join(texts),
        tuple(tokens),
        part.pause_s,
        None if first is None else first - committed_at,
        None if first_answer is None else first_answer - committed_at,
        ended[0] - committed_at,
        sum(committed_at < each.ended <= until for each in forwards),
        sum(each.prefill for each in forwards),
        sum(each.decode for each in forwards),
        sum(each.prefill for each in forwards[num_before_edit:]),
        ended[1],
    )
