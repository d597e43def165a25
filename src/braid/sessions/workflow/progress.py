"""How far one stage of a run is: what it is asked, what it has given, and what is being computed of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio

from braid.errors import BraidError, StageError
from braid.sessions.session import Session
from braid.sessions.workflow.fields import ABSENT, FieldReader, field_of
from braid.sessions.workflow.outputs import Asked, Cost, Output
from braid.sessions.workflow.stages import Reference, Stage
from braid.sessions.workflow.told import StageReport, StageState
from braid.streams.strict import shown

__all__ = ["Job", "Progress"]


@dataclass(eq=False)
class Job:
    """Something that is being computed, or will be.

    Args:
        asked: What.
        is_committed: Whether it was begun after the commit, and is needed.
        scope: What ends it.
    """

    asked: Asked
    is_committed: bool
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_computing: bool = False
    """Whether it has begun, and does not wait any more."""
    may_fail: bool = False
    """Whether it was begun before the commit, and goes on after it: if it fails, another one is begun."""
    num_pieces: int = 0
    """Pieces of an endpoint's answer so far."""


class Progress:
    """One stage of a run.

    Args:
        stage: Which.
        kind: As `Workflow.kind` calls it.
        paths: The fields that other stages read of its output.
    """

    def __init__(self, stage: Stage, kind: str, paths: Iterable[tuple[str, ...]]) -> None:
        self.stage = stage
        self.name = stage.name
        self.kind = kind
        self.asked: Asked | None = None
        """The last thing that it was asked."""
        self.is_current = False
        """Whether that is what it is asked now; False while something upstream is not known."""
        self.waits_for: tuple[str, ...] = ()
        self.output: Output | None = None
        self.error: BraidError | None = None
        self.rests = False
        """Whether a draft ended for want of budget."""
        self.job: Job | None = None
        self.on_text: Callable[[], None] | None = None
        """Called when there is more of what it says after the commit."""
        self._said = ""
        self.session: Session | None = None
        """Of a prompt on Braid: where it is drafted."""
        self.opening = anyio.Lock()
        self.starts = self.kept = 0
        self._paths = tuple(paths)
        self._readers: dict[tuple[str, ...], FieldReader] = {}
        self._spent = Cost()
        """By jobs that have ended, but for what sessions have computed."""
        self._ended_tokens = 0
        """That sessions have computed which are closed."""

    # ---- what it is asked

    def want(self, asked: Asked, known: Output | None) -> None:
        """It is asked this now.

        Args:
            asked: What.
            known: Its output, where that is known from before.
        """
        if self.asked is not None and asked.key == self.asked.key:
            self.kept += not self.is_current
        else:
            self.drop_job()
            self.asked, self.error, self.rests = asked, None, False
            self._set_output(known)
            self.kept += known is not None
        self.is_current = True

    def drop_job(self) -> None:
        """What is being computed is not needed any more."""
        if self.job is not None:
            self.job.scope.cancel()
            self.job = None

    def reset(self) -> None:
        """Forget what it was asked."""
        self.drop_job()
        self.retire_session()
        self.asked, self.is_current, self.waits_for = None, False, ()
        self.error, self.rests = None, False
        self._set_output(None)

    def retire_session(self) -> Session | None:
        """Its session is used up; returns it, to be closed."""
        session, self.session = self.session, None
        if session is not None:
            self._ended_tokens += _computed(session)
        return session

    # ---- what it gives

    @property
    def is_done(self) -> bool:
        """Whether its output is there."""
        return self.is_current and self.output is not None

    def gave(self, asked: Asked, output: Output) -> None:
        """It has given this, and that counts if it is still asked the same."""
        if self.output is None and self.asked is not None and self.asked.key == asked.key:
            self._set_output(output)

    def _set_output(self, output: Output | None) -> None:
        self.output = output
        self._readers = {path: FieldReader(path) for path in self._paths}
        if output is not None and isinstance(output.value, str):
            self.grew(output.value)

    @property
    def said(self) -> str:
        """What a job that was begun after the commit has said so far."""
        return self._said if self.job is not None and self.job.is_committed else ""

    def say(self, text: str) -> None:
        """Its job has said this much so far."""
        self._said = text
        if self.on_text is not None and self.said:
            self.on_text()

    def grew(self, text: str) -> bool:
        """All of its output so far; returns whether a field has been found that somebody waits for."""
        waiting = [reader for reader in self._readers.values() if reader.value is ABSENT]
        found = [reader.read(text) is not ABSENT for reader in waiting]  # all of them read on
        return any(found)

    def read(self, reference: Reference, reader: str) -> Any:
        """What a stage reads of its output; `ABSENT` while that is not there.

        Args:
            reference: What is read.
            reader: The stage that does.

        Raises:
            StageError: The output is complete, and has no such field.
        """
        if not self.is_current:
            return ABSENT
        if not reference.path:
            return ABSENT if self.output is None else self.output.value
        if self.output is None or isinstance(self.output.value, str):
            value = self._readers[reference.path].value
        else:
            value = field_of(self.output.value, reference.path)
        if value is ABSENT and self.output is not None:
            raise StageError(
                f"stage {reader}: {reference} is not in what {self.name} has given: {shown(self.output.value)}",
                reader,
            )
        return value

    # ---- what it takes

    def spend(self, seconds: float, tokens: int) -> None:
        """A job has ended; the tokens are an endpoint's."""
        self._spent = self._spent.plus(Cost(seconds, tokens))

    @property
    def spent(self) -> Cost:
        """All that was computed so far."""
        live = 0 if self.session is None else _computed(self.session)
        return self._spent.plus(Cost(0.0, self._ended_tokens + live))

    @property
    def wasted(self) -> Cost:
        """The part of it that what it gives does not come from."""
        spent, used = self.spent, Cost() if self.output is None else self.output.cost
        if self.output is None and self.session is not None:
            reuse = self.session.look().reuse
            used = Cost(0.0, 0 if reuse is None else reuse.computed - reuse.wasted)
        wasted = spent.less(used)
        if self.kind == "prompt":  # its seconds go into one draft after another, which keep what still holds
            return Cost(spent.seconds * wasted.tokens / max(1, spent.tokens), wasted.tokens)
        return wasted

    def report(self, *, is_over: bool) -> StageReport:
        """How it stands.

        Args:
            is_over: Whether the run is committed.
        """
        spent, wasted = self.spent, self.wasted
        return StageReport(
            self.name,
            self.kind,
            self._state(is_over=is_over),
            self.waits_for,
            self.output.value if self.output is not None and self.is_current else None,
            self.starts,
            self.kept,
            spent.tokens,
            spent.seconds,
            wasted.tokens,
            wasted.seconds,
            None if self.error is None else str(self.error),
        )

    def _state(self, *, is_over: bool) -> StageState:
        if self.error is not None:
            return "failed"
        if not self.is_current:
            return "waiting"
        if self.output is not None:
            return "done" if is_over else "ahead"
        if self.job is None and self.kind == "effect":
            return "held"
        if self.rests:
            return "resting"
        return "working" if self.job is not None and self.job.is_computing else "settling"


def _computed(session: Session) -> int:
    reuse = session.look().reuse
    return 0 if reuse is None else reuse.computed
