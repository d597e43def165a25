"""A run of a workflow: its input may change until it is committed, and what can be known before is computed before.

    snapshot {"question": …} ──▶ refresh ──▶ what is each stage asked now?
                                   ▲             the same as before: what it computes, or has, is kept
      a stage has given its output │             known from before: its output is taken from memory
      (or a field that is read)    │             else, as soon as it may: computed
                                   └─────────────────────────┘
    commit                                       the same, but nothing is held back any more

Before the commit and after it the same thing happens, with the same rules of what a stage is asked; so what a run gives
is what it gives when nothing is computed ahead: each output follows from what its stage is asked, and from that alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc
import anyio.lowlevel

from braid.engine.core import GuessesOf, require_guesses_of
from braid.errors import (
    EditAfterConsumed,
    EmptyInputError,
    InputError,
    SessionClosedError,
    StageError,
    UnknownStreamError,
)
from braid.sessions.workflow.draw import mermaid
from braid.sessions.workflow.fields import ABSENT, field_of
from braid.sessions.workflow.outputs import Asked
from braid.sessions.workflow.progress import Job, Progress
from braid.sessions.workflow.remote import Remote
from braid.sessions.workflow.stages import Prompt, Reference
from braid.sessions.workflow.streaming import StreamedResult
from braid.sessions.workflow.told import Plan, WorkflowResult
from braid.sessions.workflow.work import Worker
from braid.streams.strict import hint

if TYPE_CHECKING:
    from braid.sessions.session import Engine
    from braid.sessions.workflow.graph import Workflow

__all__ = ["Run"]


class Run:
    """One run after another of a workflow; made by `Workflow.open`.

    async with workflow.open(engine) as run:
        await run.snapshot({"question": "How far is it to"})
        await run.snapshot({"question": "How far is it to Rome?"})
        result = await run.commit()
    """

    def __init__(
        self,
        workflow: Workflow,
        engine: Engine | None,
        *,
        most_drafted: int,
        max_parallel: int,
        guesses: GuessesOf,
    ) -> None:
        require_guesses_of(guesses)
        if max_parallel < 1 or most_drafted < 0:
            raise InputError("max_parallel must be at least 1, and most_drafted at least 0")
        self.workflow = workflow
        is_remote = any(workflow.kind(name) == "endpoint" for name in workflow.order)
        self._may_draft = most_drafted > 0
        self._worker = Worker(engine, Remote() if is_remote else None, most_drafted, max_parallel, guesses)
        self._inputs: dict[str, str] = {}
        self._progress = {
            name: Progress(stage, workflow.kind(name), workflow.fields_of(name))
            for name, stage in ((name, workflow.stages[name]) for name in workflow.order)
        }
        self._tasks: anyio.abc.TaskGroup | None = None
        self._changed = anyio.Event()
        self._is_committed = self._is_over = False
        self._is_idle = True
        """Whether nothing is computed before the next snapshot or commit."""
        for stage in workflow.stages.values():
            if isinstance(stage, Prompt):
                self._worker.require_served(stage)

    # ---- verbs

    async def snapshot(self, inputs: Mapping[str, str] | str) -> None:
        """Say what the inputs hold by now, as long as it may still change; the newest snapshot counts.

        Args:
            inputs: By name, those that are not named as before; a plain string is the first one's.

        Raises:
            UnknownStreamError: There is no such input.
            EditAfterConsumed: The run is committed, and being answered.
            SessionClosedError: The run has not been entered, or was left.
        """
        self._take(inputs)
        self._refresh()
        await anyio.lowlevel.checkpoint()

    async def commit(self, inputs: Mapping[str, str] | str | None = None) -> WorkflowResult:
        """Say that the inputs will not change any more, and wait for what the stages give.

        Afterwards a snapshot begins the next run. Where a stage has failed, the inputs are as before: `commit` tries
        again, a snapshot changes them. A stage with side effects that has run by then does not run again for the
        same input.

        Args:
            inputs: A last snapshot.

        Raises:
            EmptyInputError: An input has never been given.
            StageError: A stage has failed; the message begins with its name.
            What `snapshot` raises.
        """
        self._take(inputs or {})
        missing = [name for name in self.workflow.inputs if name not in self._inputs]
        if missing:
            raise EmptyInputError(f"the input {missing[0]} was never given; send a snapshot with it first")
        began = time.perf_counter()
        self._is_committed = True
        for progress in self._progress.values():
            progress.error, progress.rests = None, False
            job = progress.job
            if job is not None and job.is_computing and progress.kind in ("function", "endpoint"):
                job.may_fail = True
            else:
                progress.drop_job()
        try:
            self._refresh()
            await self._until_done()
        except BaseException:
            await self._reset()
            raise
        outputs = {name: self._given(progress) for name, progress in self._progress.items()}
        self._is_over = True
        seconds = time.perf_counter() - began
        plan = self.plan()
        await self._rest()
        self._worker.effects.clear()
        return WorkflowResult(outputs, outputs[self.workflow.result], seconds, plan)

    def stream(self, inputs: Mapping[str, str] | str | None = None) -> StreamedResult:
        """Commit, and hear the text of the result while it is written: to be entered with `async with`.

        Args:
            inputs: A last snapshot. What `commit` raises is raised where the text is read, or left.
        """
        return StreamedResult(self, inputs)

    async def rollback(self) -> None:
        """Take back all snapshots, and what was computed of them; harmless when there were none.

        Raises:
            EditAfterConsumed: The run is committed, and being answered.
        """
        self._require_open()
        self._inputs.clear()
        self._worker.effects.clear()
        self._is_over = False
        await self._reset()

    # ---- asking

    def plan(self) -> Plan:
        """What each stage waits for or has, and what it has taken and wasted."""
        return Plan(tuple(progress.report(is_over=self._is_over) for progress in self._progress.values()))

    def draw(self) -> str:
        """The graph as Mermaid text, with what each stage is doing."""
        return mermaid(self.workflow, self.plan())

    @property
    def certain_text(self) -> str:
        """What the stage of the result has said since the commit, as far as that cannot be taken back."""
        progress = self._progress[self.workflow.result]
        before = (
            self._progress[name] for name in self.workflow.upstream(progress.name) if name in self._progress
        )
        is_certain = self._is_committed and progress.is_current and all(other.is_done for other in before)
        return progress.said if is_certain else ""

    @contextmanager
    def listening(self, ring: Callable[[], None]) -> Generator[None]:
        """Have somebody called whenever the stage of the result has said more."""
        progress = self._progress[self.workflow.result]
        progress.on_text = ring
        try:
            yield
        finally:
            progress.on_text = None

    async def settled(self) -> Plan:
        """Wait until nothing more can be computed ahead of the commit; for tests, and for those who watch."""
        while any(progress.job is not None for progress in self._progress.values()):
            await self._changed.wait()
        return self.plan()

    # ---- life

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None, "it was entered"
        tasks, self._tasks = self._tasks, None
        tasks.cancel_scope.cancel()
        try:
            await tasks.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self._rest()
                await self._worker.aclose()

    # ---- what is asked

    def _take(self, inputs: Mapping[str, str] | str) -> None:
        self._require_open()
        if isinstance(inputs, str):
            if not self.workflow.inputs:
                raise InputError("the workflow has no input for this text")
            inputs = {self.workflow.inputs[0]: inputs}
        for name, text in inputs.items():
            if name not in self.workflow.inputs:
                raise UnknownStreamError(f"there is no input {name!r}; {hint(name, self.workflow.inputs)}")
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] (whoever has no checker)
                raise InputError(f"the input {name} must be text, not {type(text).__name__}")
        if self._is_over:
            self._is_over = False
            self._inputs.clear()
            for progress in self._progress.values():
                progress.reset()
        self._inputs.update(inputs)
        self._is_idle = False

    def _require_open(self) -> None:
        if self._tasks is None:
            raise SessionClosedError("the run is not open; use `async with workflow.open(…) as run`")
        if self._is_committed:
            raise EditAfterConsumed("this run is committed and being answered; wait for its result")

    def _refresh(self) -> None:
        """Tell every stage what it is asked now, and begin what may be begun."""
        if self._tasks is None or self._is_over or self._is_idle:
            return
        for progress in self._progress.values():
            try:
                asked = self._asked_of(progress)
            except StageError as error:
                progress.is_current, progress.error = False, error
                continue
            if asked is None:
                progress.is_current, progress.error = False, None
                continue
            known = None
            if progress.asked is None or progress.asked.key != asked.key:
                known = self._worker.known(progress, asked)
            progress.want(asked, known)
            if self._may_start(progress):
                self._start(self._tasks, progress, asked)
        self._ring()

    def _asked_of(self, progress: Progress) -> Asked | None:
        """What a stage is asked; None while something that it reads is not there."""
        stage = progress.stage
        values = {name: self._value(reference, stage.name) for name, reference in stage.reads.items()}
        progress.waits_for = tuple(
            str(stage.reads[name]) for name, value in values.items() if value is ABSENT
        )
        if progress.waits_for:
            return None
        return Asked(values, stage.rendered(values) if isinstance(stage, Prompt) else None)

    def _value(self, reference: Reference, reader: str) -> Any:
        if reference.name in self._progress:
            return self._progress[reference.name].read(reference, reader)
        if reference.name not in self._inputs:
            return ABSENT
        value = field_of(self._inputs[reference.name], reference.path)
        if value is ABSENT and self._is_committed:
            raise StageError(f"stage {reader}: the input {reference.name} has no field {reference}", reader)
        return value

    def _may_start(self, progress: Progress) -> bool:
        if progress.output is not None or progress.job is not None or progress.error is not None:
            return False
        if self._is_committed:
            has_failed = any(other.error is not None for other in self._progress.values())
            return not has_failed and (progress.kind != "effect" or self._is_certain)
        may_begin = progress.kind != "effect" and (progress.kind != "endpoint" or self._may_draft)
        return may_begin and not progress.rests

    @property
    def _is_certain(self) -> bool:
        """Whether nothing can fail any more before the first side effect."""
        before = self.workflow.before_effects
        return all(self._progress[name].is_done for name in before)

    # ---- computing

    def _start(self, tasks: anyio.abc.TaskGroup, progress: Progress, asked: Asked) -> None:
        progress.job = Job(asked, self._is_committed)
        tasks.start_soon(self._worker.work, progress, progress.job, self._refresh)

    # ---- waiting, and the end

    def _ring(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _until_done(self) -> None:
        """Wait until all outputs are there, or a stage has failed and no side effect is under way."""
        while True:
            failed = next((p.error for p in self._progress.values() if p.error is not None), None)
            if failed is not None and not any(
                p.kind == "effect" and p.job is not None for p in self._progress.values()
            ):
                raise failed
            if failed is None and all(progress.is_done for progress in self._progress.values()):
                return
            await self._changed.wait()

    @staticmethod
    def _given(progress: Progress) -> Any:
        assert progress.output is not None, "all outputs are there"
        return progress.output.value

    async def _rest(self) -> None:
        """Compute nothing more, and hold no session; outputs stay."""
        self._is_committed = False
        for progress in self._progress.values():
            progress.drop_job()
            session = progress.retire_session()
            if session is not None:
                await session.close()

    async def _reset(self) -> None:
        """Stand as if nothing had been computed, but for what is remembered."""
        self._is_idle = True
        await self._rest()
        for progress in self._progress.values():
            progress.reset()
        self._ring()
