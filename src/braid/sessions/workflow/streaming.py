"""The answer of a committed run as it comes, piece by piece.

    commit ── stages before ──▶ last stage: "Rome", " is", …  ──▶ result
                                └── told ──────────────────┘

What is told cannot be taken back. So nothing is told before all that the last stage reads is there for good, and of a
call that was begun ahead of the commit, and might fail and be made again, nothing before it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.abc

from braid.errors import SessionClosedError
from braid.sessions.workflow.stages import spelled
from braid.sessions.workflow.told import WorkflowResult

if TYPE_CHECKING:
    from braid.sessions.workflow.run import Run

__all__ = ["StreamedResult"]


class StreamedResult:
    """Commits a run, and gives the text of its result while it is written; made by `Run.stream`.

    async with run.stream({"question": "How far is it to Rome?"}) as answer:
        async for text in answer:
            print(text, end="")
    answer.result.output  # the same, whole
    """

    def __init__(self, run: Run, inputs: Mapping[str, str] | str | None) -> None:
        self._run = run
        self._inputs = inputs
        self._result: WorkflowResult | None = None
        self._failure: Exception | None = None
        self._told = ""
        self._news = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def result(self) -> WorkflowResult:
        """What the run has given.

        Raises:
            SessionClosedError: It was left before that was there.
        """
        if self._result is None:
            raise self._failure or SessionClosedError("the run was left before its result was there")
        return self._result

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        await self._tasks.start(self._commit)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None, "it was entered"
        if error is not None:
            self._tasks.cancel_scope.cancel()
        # An error of the caller's own is raised as it is, and not as a member of a group.
        await self._tasks.__aexit__(None, None, None)
        if self._failure is not None and error is None:
            raise self._failure

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            news = self._news
            text = self._run.certain_text if self._result is None else spelled(self._result.output)
            told, self._told = self._told, max(self._told, text, key=len)
            if len(text) > len(told):
                return text[len(told) :]
            if self._failure is not None:
                raise self._failure
            if self._result is not None:
                raise StopAsyncIteration
            await news.wait()

    async def _commit(self, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()  # whoever has entered finds the run committed: up to its first wait this goes on
        try:
            with self._run.listening(self._ring):
                self._result = await self._run.commit(self._inputs)
        except Exception as error:  # noqa: BLE001 (raised where the answer is read, or left)
            self._failure = error
        self._ring()

    def _ring(self) -> None:
        self._news.set()
        self._news = anyio.Event()
