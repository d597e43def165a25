"""The engine: many live sessions, one forward pass for all that they do next.

    core          the step: schedule → prepare → compute → advance
    scheduler     who may do how much in it
    session       one session: its verbs, and the rows that come of them
    loop          the engine by itself, in a thread of its own
    backend       what is asked of whoever computes; `local` is ours
    journal       the event log, which can be replayed
    editing       input that may still change
    guessing      what may come next, verified several tokens at a time

Nothing here but `local` knows tensors.
"""

from __future__ import annotations

from braid.engine.core import EngineCore
from braid.engine.session.conversation import Conversation

__all__ = ["Conversation", "EngineCore"]
