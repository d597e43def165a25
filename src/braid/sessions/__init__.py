"""Sessions: what callers use.

`generate.generate` runs one turn on input that is there already. An `Engine` opens live sessions: a `Session` is
written to while it speaks, and iterated over for what happens; `run_live` drives one turn of it from text that comes
in time, at a typist's pace or through a pipe. `tools` are what a session's `tool_call` streams may call.
"""

from __future__ import annotations

from braid.engine.journal import Journal
from braid.engine.loop import Dropped, EngineLimits
from braid.engine.scheduler import SchedulerPolicy
from braid.sessions.feeds import Feed, arriving, typed, whole
from braid.sessions.generate import Result, StreamResult
from braid.sessions.live import LiveResult, run_live
from braid.sessions.session import Engine, Session

__all__ = [
    "Dropped",
    "Engine",
    "EngineLimits",
    "Feed",
    "Journal",
    "LiveResult",
    "Result",
    "SchedulerPolicy",
    "Session",
    "StreamResult",
    "arriving",
    "run_live",
    "typed",
    "whole",
]
