"""Computing one stage: on Braid, at an endpoint, or in a function; ahead of the commit, or after it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from braid.errors import SessionClosedError, StageError, WorkflowError
from braid.sessions.session import Reply, Session
from braid.sessions.workflow.outputs import Asked, Cost, Memory, Output
from braid.sessions.workflow.remote import Remote
from braid.sessions.workflow.stages import Function, Prompt
from braid.streams.events import DeltaEvent

if TYPE_CHECKING:
    from braid.engine.core import GuessesOf
    from braid.sessions.session import Engine
    from braid.sessions.workflow.progress import Job, Progress

__all__ = ["Worker"]


class _Resting(Exception):
    """A draft has used up its budget; it goes on when its input changes, or is committed."""


class Worker:
    """Computes what the stages of a run are asked, and remembers it.

    Args:
        engine: For prompts on Braid.
        remote: For prompts at endpoints.
        most_drafted: Tokens that an answer may have ahead of the commit.
        max_parallel: Stages that are computed ahead at the same time.
        guesses: What answers on Braid are guessed from.
    """

    def __init__(
        self,
        engine: Engine | None,
        remote: Remote | None,
        most_drafted: int,
        max_parallel: int,
        guesses: GuessesOf,
    ) -> None:
        self.memory = Memory()
        """What stages have given, by content; it is kept from one commit to the next."""
        self.effects: dict[str, tuple[Asked, Output]] = {}
        """What functions that are not pure have given in the run that is not over yet."""
        self._engine = engine
        self._remote = remote
        self._most_drafted = most_drafted
        self._guesses: GuessesOf = guesses
        self._slots = anyio.Semaphore(max_parallel)

    def require_served(self, stage: Prompt) -> None:
        """Refuse a prompt that nobody here can answer.

        Raises:
            WorkflowError: It is for Braid, and there is no engine.
            BraidError: The engine cannot serve its topology.
        """
        if stage.endpoint is not None:
            return
        if self._engine is None:
            raise WorkflowError(
                f"stage {stage.name} runs on Braid; pass an engine, or give the stage an endpoint"
            )
        topology, _, _ = stage.served
        self._engine.open(topology, input="editable")

    def known(self, progress: Progress, asked: Asked) -> Output | None:
        """What a stage has given when it was asked this before."""
        if progress.kind != "effect":
            return self.memory.get(progress.name, asked)
        done, output = self.effects.get(progress.name, (None, None))
        return output if done is not None and done.key == asked.key else None

    async def work(self, progress: Progress, job: Job, changed: Callable[[], None]) -> None:
        """Do a job, at once if it is needed, else when its input has been stable and there is room.

        Args:
            progress: Of which stage; what comes of it is told there.
            job: What is asked.
            changed: Called when there is something that others may have waited for.
        """
        with job.scope:
            if job.is_committed:
                await self._compute(progress, job, changed)
            else:
                await anyio.sleep(progress.stage.delay_s)
                async with self._slots:
                    await self._compute(progress, job, changed)
        if progress.job is job:
            progress.job = None
        changed()

    async def aclose(self) -> None:
        """Close connections."""
        if self._remote is not None:
            await self._remote.aclose()

    async def _compute(self, progress: Progress, job: Job, changed: Callable[[], None]) -> None:
        def grew(text: str) -> None:
            job.num_pieces += 1
            if progress.job is not job:
                return
            progress.say(text)
            if progress.grew(text):
                changed()

        began, tokens = time.perf_counter(), 0
        job.is_computing = True
        progress.starts += 1
        progress.say("")
        try:
            value, tokens = await self._ask(progress, job, grew)
        except _Resting:
            progress.rests = progress.rests or progress.job is job
        except Exception as error:  # noqa: BLE001 (functions may raise anything)
            if progress.job is job and not job.may_fail:
                progress.error = _told(error, progress.name)
        else:
            output = Output(value, Cost(time.perf_counter() - began, tokens))
            if progress.kind == "effect":
                self.effects[progress.name] = (job.asked, output)
            else:
                self.memory.put(progress.name, job.asked, output)
            progress.gave(job.asked, output)
        finally:
            is_session = progress.kind == "prompt"
            progress.spend(time.perf_counter() - began, 0 if is_session else tokens or job.num_pieces)

    async def _ask(self, progress: Progress, job: Job, grew: Callable[[str], None]) -> tuple[Any, int]:
        """The output, and the tokens that went into it.

        Args:
            progress, job: Of whom, and what.
            grew: Called with all of a text so far whenever there is more of it.
        """
        stage = progress.stage
        if isinstance(stage, Function):
            return await _call(stage, job), 0
        assert job.asked.prompt is not None, "a prompt is asked with one"
        if stage.endpoint is not None:
            assert self._remote is not None, "there is such a stage"
            return await self._remote.ask(stage, job.asked.prompt, grew)
        session = await self._session(progress, stage)
        if not job.is_committed:
            return await _draft(session, stage, job.asked.prompt, grew)
        reply = await _commit(session, stage, job.asked.prompt, grew)
        _, _, output = stage.served
        return reply[output], 0 if reply.reuse is None else reply.reuse.computed - reply.reuse.wasted

    async def _session(self, progress: Progress, stage: Prompt) -> Session:
        """The stage's session: it reads one prompt after another, and is used up by the commit."""
        async with progress.opening:
            if progress.session is not None and progress.session.is_closed:
                progress.retire_session()
            if progress.session is None:
                assert self._engine is not None, "a run without an engine has no such stage"
                topology, _, _ = stage.served
                session = self._engine.open(
                    topology,
                    seed=stage.seed,
                    input="editable",
                    most_drafted=self._most_drafted,
                    guesses=self._guesses,
                    draft_after=0.0,  # a stage begins when its prompt is stable
                )
                progress.session = await session.__aenter__()
            return progress.session


async def _call(stage: Function, job: Job) -> Any:
    """Call a function; one that is not a coroutine in a thread, for it may take its time."""
    values = job.asked.values
    call = partial(stage.call, **values) if stage.by_name else partial(stage.call, *values.values())
    if inspect.iscoroutinefunction(stage.call):
        return await call()
    value = await anyio.to_thread.run_sync(call)
    return await value if inspect.isawaitable(value) else value


async def _draft(
    session: Session, stage: Prompt, prompt: str, grew: Callable[[str], None]
) -> tuple[str, int]:
    """Have a prompt read, and its answer drafted."""
    _, reads, output = stage.served
    await session.snapshot({reads: prompt})
    draft = None
    while True:
        draft = await session.next_draft(draft)
        if draft is None:
            raise session.error or SessionClosedError("its session was closed")
        if draft.inputs.get(reads) != prompt:
            continue  # of the snapshot before
        text = draft.texts[output]
        if draft.is_complete:
            return text, draft.num_tokens
        grew(text)
        if draft.rests:
            raise _Resting


async def _commit(session: Session, stage: Prompt, prompt: str, grew: Callable[[str], None]) -> Reply:
    """Have a prompt answered; what was read and drafted of it is verified, and kept as far as it holds."""
    _, reads, output = stage.served

    async def listen() -> None:
        async for event in session:
            if isinstance(event, DeltaEvent) and event.stream == output:
                grew(session.text(output))

    reply, failure = None, None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        try:
            reply = await session.commit({reads: prompt})
        except Exception as error:  # noqa: BLE001 (raised again outside of the group, which would wrap it)
            failure = error
        tasks.cancel_scope.cancel()
    if reply is None:
        raise failure or SessionClosedError("its session was closed")
    return reply


def _told(error: Exception, stage: str) -> StageError:
    """The error, with the stage's name."""
    if isinstance(error, StageError):
        return error
    said = str(error) if str(error) else type(error).__name__
    told = StageError(f"stage {stage}: {said}", stage)
    told.__cause__ = error
    return told
