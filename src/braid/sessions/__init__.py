"""Sessions: what callers use.

`generate.generate` runs one turn on input that is there already. An `Engine` opens live sessions: a `Session` is
written to while it speaks, and iterated over for what happens; `run_live` drives one turn of it from text that comes
in time, at a typist's pace or through a pipe. `tools` are what a session's `tool_call` streams may call. A `Workflow`
is a graph of model calls that is computed ahead while its input is still being typed.
"""

from __future__ import annotations

from braid.engine.journal import Journal
from braid.engine.loop import Dropped, EngineLimits
from braid.engine.scheduler import SchedulerPolicy
from braid.sessions.feeds import Feed, arriving, typed, whole
from braid.sessions.generate import Result, StreamResult
from braid.sessions.live import LiveResult, run_live
from braid.sessions.session import Engine, Session
from braid.sessions.template import Segment, Template
from braid.sessions.workflow import Endpoint, Function, Prompt, Workflow, WorkflowResult

__all__ = [
    "Dropped",
    "Endpoint",
    "Engine",
    "EngineLimits",
    "Feed",
    "Function",
    "Journal",
    "LiveResult",
    "Prompt",
    "Result",
    "SchedulerPolicy",
    "Segment",
    "Session",
    "StreamResult",
    "Template",
    "Workflow",
    "WorkflowResult",
    "arriving",
    "run_live",
    "typed",
    "whole",
]
