"""What a run tells of itself: its plan, what it has taken and wasted, and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Plan", "StageReport", "StageState", "WorkflowResult"]

StageState = Literal["waiting", "settling", "working", "resting", "ahead", "held", "failed", "done"]
"""`waiting` for what it reads; `settling`, until its input has been stable for long enough, or others leave room;
`working`; `resting`, for its draft's budget is used up; `ahead`, its output is there and may still change; `held`, for
it is not pure and waits for the commit; `failed`; `done`, its output is part of the result."""


@dataclass(frozen=True)
class StageReport:
    """How a stage stands.

    Args:
        name, kind: Which one; `prompt`, `endpoint`, `function` or `effect`.
        state: What it is doing.
        waits_for: What it reads and cannot read yet.
        output: What it has given for its present input; None while there is nothing.
        starts: How often computing was begun.
        kept: How often an edit came to the same input again, whose output was there or under way.
        tokens, seconds: All that was computed: tokens read and said, and time from start to end.
        wasted_tokens, wasted_seconds: The part of it that the present output does not come from.
        error: Why it has failed.
    """

    name: str
    kind: str
    state: StageState
    waits_for: tuple[str, ...] = ()
    output: Any = None
    starts: int = 0
    kept: int = 0
    tokens: int = 0
    seconds: float = 0.0
    wasted_tokens: int = 0
    wasted_seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class Plan:
    """How all stages stand, in the order in which they run; `str` makes a table of it."""

    stages: tuple[StageReport, ...]

    def __getitem__(self, name: str) -> StageReport:
        return next(stage for stage in self.stages if stage.name == name)

    @property
    def tokens(self) -> int:
        """That were computed."""
        return sum(stage.tokens for stage in self.stages)

    @property
    def wasted_tokens(self) -> int:
        """That were computed for nothing."""
        return sum(stage.wasted_tokens for stage in self.stages)

    @property
    def wasted_seconds(self) -> float:
        """That were spent for nothing, of all stages together."""
        return sum(stage.wasted_seconds for stage in self.stages)

    def __str__(self) -> str:
        width = max(len(stage.name) for stage in self.stages)
        return "\n".join(_line(stage, width) for stage in self.stages)


def _line(stage: StageReport, width: int) -> str:
    doing = stage.state
    if stage.waits_for:
        doing += f" for {', '.join(stage.waits_for)}"
    spent = f"{stage.tokens} tokens ({stage.wasted_tokens} wasted), {stage.seconds:.2f} s"
    starts = f"{stage.starts} starts, kept {stage.kept}×"
    return f"{stage.name:<{width}}  {stage.kind:<8}  {doing}: {spent} ({stage.wasted_seconds:.2f} wasted), {starts}"


@dataclass(frozen=True)
class WorkflowResult:
    """What a committed run has given.

    Args:
        outputs: By stage.
        output: That of the workflow's result.
        seconds: From the commit to the last output.
        plan: How the stages stood then: what was computed ahead, and what of it was wasted.
    """

    outputs: Mapping[str, Any]
    output: Any
    seconds: float
    plan: Plan

    def __getitem__(self, stage: str) -> Any:
        return self.outputs[stage]
