"""Workflows: small graphs of model calls that are computed ahead while their input is still being typed.

graph      what reads what, checked            stages     prompts, functions, endpoints
run        snapshots, the commit, the plan     progress   how far each stage is
work       computing one stage                 remote     at an endpoint
fields     one field of JSON as it grows       outputs    what is remembered, by content
told       plans and results                   draw       Mermaid
streaming  the result while it is written
"""

from __future__ import annotations

from braid.sessions.workflow.graph import Workflow
from braid.sessions.workflow.run import Run
from braid.sessions.workflow.stages import Endpoint, Function, Prompt
from braid.sessions.workflow.streaming import StreamedResult
from braid.sessions.workflow.told import Plan, StageReport, WorkflowResult

__all__ = [
    "Endpoint",
    "Function",
    "Plan",
    "Prompt",
    "Run",
    "StageReport",
    "StreamedResult",
    "Workflow",
    "WorkflowResult",
]
