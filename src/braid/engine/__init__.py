"""The engine: which tokens enter the next rows, one forward for all of them, and a draw for every stream.

A `Conversation` holds the state of one session and decides, without tensors, what is computed next; an `EngineCore`
plans the forward, runs it, samples, and hands the tokens back. Neither knows threads or clocks.
"""

from __future__ import annotations

from braid.engine.conversation import Conversation
from braid.engine.core import EngineCore

__all__ = ["Conversation", "EngineCore"]
