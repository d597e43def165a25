"""Sessions: what callers use.

`generate.generate` runs one turn on input that is there already. An `Engine` opens live sessions: a `Session` is
written to while it speaks, and iterated over for what happens; `run_live` drives one turn of it from text that comes
in time, at a typist's pace or through a pipe.
"""

from __future__ import annotations

from braid.sessions.feeds import Feed, arriving, typed, whole
from braid.sessions.generate import Result, StreamResult
from braid.sessions.live import LiveResult, run_live
from braid.sessions.session import Engine, Session

__all__ = [
    "Engine",
    "Feed",
    "LiveResult",
    "Result",
    "Session",
    "StreamResult",
    "arriving",
    "run_live",
    "typed",
    "whole",
]
