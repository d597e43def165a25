"""Our own backend: spans, layouts, one plan and one forward for all sessions of a step, and the draws."""

from __future__ import annotations

from braid.engine.local.backend import LocalBackend

__all__ = ["LocalBackend"]
