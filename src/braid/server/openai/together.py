"""Several answers to one request, side by side as far as there is room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import anyio

from braid.server.access import Caller

__all__ = ["MOST", "run_all", "seated"]

MOST = 8
"""Sessions that one request has at once."""

Value = TypeVar("Value")


@contextmanager
def seated(caller: Caller, num_answers: int) -> Generator[int]:
    """Count the sessions of a request as under way; yields how many may run at once.

    Raises:
        RateLimitError: Too much is under way already.
    """
    most = min(num_answers, MOST, caller.max_sessions or MOST)
    with ExitStack() as stack:
        for _ in range(most):
            stack.enter_context(caller.busy())
        yield most


async def run_all(jobs: Sequence[Callable[[], Awaitable[Value]]], most: int) -> list[Value]:
    """Run jobs, so many at once; the first failure ends all of them and is raised."""
    if len(jobs) == 1:
        return [await jobs[0]()]
    done: dict[int, Value] = {}
    failures: list[Exception] = []
    places = anyio.CapacityLimiter(most)
    async with anyio.create_task_group() as tasks:

        async def run(number: int, job: Callable[[], Awaitable[Value]]) -> None:
            async with places:
                try:
                    done[number] = await job()
                except Exception as error:  # noqa: BLE001 (raised below: not out of a task group)
                    failures.append(error)
                    tasks.cancel_scope.cancel()

        for number, job in enumerate(jobs):
            tasks.start_soon(run, number, job)
    if failures:
        raise failures[0]
    return [done[number] for number in range(len(jobs))]
