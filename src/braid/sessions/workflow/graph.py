"""A workflow: a small graph of model calls and functions, checked before anything runs.

    question ─▶ plan ──city──▶ weather ─▶ answer ─▶ send
                  └──────────────────────────┘

A stage names what it reads, and that is all there is to say of the graph's edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from braid.engine.editing.editable import MOST_DRAFTED
from braid.errors import WorkflowError
from braid.sessions.workflow.draw import mermaid
from braid.sessions.workflow.stages import Function, Stage
from braid.streams.strict import hint

if TYPE_CHECKING:
    from braid.engine.core import GuessesOf
    from braid.sessions.session import Engine
    from braid.sessions.workflow.run import Run
    from braid.sessions.workflow.told import WorkflowResult

__all__ = ["Workflow"]


class Workflow:
    """Stages that read inputs and one another.

    Args:
        stages: In any order.
        inputs: Names of what the caller gives.
        result: The stage whose output is the workflow's; None for the last one that is given.

    Raises:
        WorkflowError: Two have one name, a stage reads what there is not, or stages read one another in a circle.

    >>> from braid.sessions import Prompt
    >>> workflow = Workflow(
    ...     Prompt("draft", "Answer: {question}"),
    ...     Prompt("short", "Shorten: {draft}"),
    ...     inputs=["question"],
    ... )
    >>> workflow.order
    ('draft', 'short')
    """

    def __init__(self, *stages: Stage, inputs: Sequence[str], result: str | None = None) -> None:
        self.inputs = tuple([inputs] if isinstance(inputs, str) else inputs)
        self.stages: dict[str, Stage] = {}
        for stage in stages:
            if stage.name in self.stages or stage.name in self.inputs:
                raise WorkflowError(
                    f"there are two of the name {stage.name!r}; each stage and input has its own"
                )
            self.stages[stage.name] = stage
        if not stages:
            raise WorkflowError("a workflow needs at least one stage")
        self.result = stages[-1].name if result is None else result
        if self.result not in self.stages:
            raise WorkflowError(f"there is no stage {self.result!r}; {hint(self.result, self.stages)}")
        self.order = self._sorted()

    def upstream(self, stage: str) -> tuple[str, ...]:
        """The inputs and stages that a stage reads, each once."""
        return tuple(dict.fromkeys(reference.name for reference in self.stages[stage].reads.values()))

    def fields_of(self, stage: str) -> tuple[tuple[str, ...], ...]:
        """The fields that other stages read of a stage's output."""
        references = [ref for other in self.stages.values() for ref in other.reads.values()]
        return tuple(dict.fromkeys(ref.path for ref in references if ref.name == stage and ref.path))

    @cached_property
    def before_effects(self) -> frozenset[str]:
        """The stages that no side effect comes before."""
        after: set[str] = set()
        for name in self.order:
            if self.kind(name) == "effect" or after.intersection(self.upstream(name)):
                after.add(name)
        return frozenset(self.order) - after

    def open(
        self,
        engine: Engine | None = None,
        *,
        most_drafted: int = MOST_DRAFTED,
        max_parallel: int = 4,
        guesses: GuessesOf = "session",
    ) -> Run:
        """A run, to be entered with `async with`, whose input may change until it is committed.

        Args:
            engine: What answers prompts that name no endpoint.
            most_drafted: Tokens that an answer on Braid may have ahead of the commit, in each draft; with 0 prompts are
                only read ahead. An endpoint is asked for the whole answer.
            max_parallel: Stages that are computed ahead at the same time.
            guesses: As for `Engine.open`; `none` draws every token of an answer on Braid by itself.

        Raises:
            WorkflowError: There is a prompt for Braid, and no engine.
            BraidError: The engine cannot serve a stage's topology.
        """
        from braid.sessions.workflow.run import Run

        return Run(self, engine, most_drafted=most_drafted, max_parallel=max_parallel, guesses=guesses)

    async def run(
        self, engine: Engine | None, inputs: Mapping[str, str] | str, *, guesses: GuessesOf = "session"
    ) -> WorkflowResult:
        """Run once, with nothing computed ahead.

        Args:
            engine: As for `open`.
            inputs: All of them; a plain string is the first one's.
            guesses: As for `open`.

        Raises:
            EmptyInputError: An input is missing.
            StageError: A stage has failed.
        """
        async with self.open(engine, most_drafted=0, guesses=guesses) as run:
            return await run.commit(inputs)

    def draw(self) -> str:
        """The graph as Mermaid text."""
        return mermaid(self)

    def __repr__(self) -> str:
        return f"Workflow({' → '.join(self.order)})"

    # ---- inside

    def _sorted(self) -> tuple[str, ...]:
        """The stages, each behind what it reads."""
        done: dict[str, None] = {}
        for name in self.stages:
            self._visit(name, (), done)
        return tuple(done)

    def _visit(self, name: str, path: tuple[str, ...], done: dict[str, None]) -> None:
        path = (*path, name)
        if name in path[:-1]:
            circle = " → ".join(path[path.index(name) :])
            raise WorkflowError(f"stages read one another in a circle, {circle}; one of them has to begin")
        if name in done:
            return
        for other in self.upstream(name):
            if other in self.inputs:
                continue
            if other not in self.stages:
                known: dict[str, Any] = {**self.stages, **dict.fromkeys(self.inputs)}
                raise WorkflowError(
                    f"stage {name} reads {other!r} ({' → '.join((*path, other))}), which is neither a stage nor an "
                    f"input; {hint(other, known)}"
                )
            self._visit(other, path, done)
        done[name] = None

    def kind(self, name: str) -> str:
        """`prompt`, `endpoint`, `function` or `effect`."""
        stage = self.stages[name]
        if isinstance(stage, Function):
            return "function" if stage.is_pure else "effect"
        return "prompt" if stage.endpoint is None else "endpoint"
