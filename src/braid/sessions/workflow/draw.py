"""A workflow as a picture: Mermaid text, which many viewers of Markdown draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braid.sessions.workflow.told import Plan, StageState

if TYPE_CHECKING:
    from braid.sessions.workflow.graph import Workflow

__all__ = ["mermaid"]

_SHAPES = {"prompt": '["{}"]', "endpoint": '[/"{}"/]', "function": '("{}")', "effect": '[["{}"]]'}

_FILLS: dict[StageState, str] = {
    "waiting": "#eeeeee",
    "settling": "#eeeeee",
    "held": "#e6def5",
    "working": "#fff2cc",
    "resting": "#fff2cc",
    "ahead": "#d9ead3",
    "done": "#b6d7a8",
    "failed": "#f4cccc",
}


def mermaid(workflow: Workflow, plan: Plan | None = None) -> str:
    """The graph; with a plan, each stage says what it is doing.

    Args:
        workflow: The graph.
        plan: Of a run of it.
    """
    lines = ["graph LR", *(f'    {_id(name)}(["{name}"])' for name in workflow.inputs)]
    for name in workflow.order:
        label = name if plan is None else f"{name}<br/>{plan[name].state}"
        lines.append(f"    {_id(name)}{_SHAPES[workflow.kind(name)].format(label)}")
    for name in workflow.order:
        for reference in dict.fromkeys(workflow.stages[name].reads.values()):
            arrow = f"-->|{'.'.join(reference.path)}|" if reference.path else "-->"
            lines.append(f"    {_id(reference.name)} {arrow} {_id(name)}")
    if plan is not None:
        lines += [f"    style {_id(s.name)} fill:{_FILLS[s.state]},color:#000" for s in plan.stages]
    return "\n".join(lines)


def _id(name: str) -> str:
    """A name that Mermaid takes for nothing else, as it would `end`."""
    return f"n_{name}"
