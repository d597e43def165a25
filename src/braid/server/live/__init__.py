"""Live sessions on `/v1/live`, which outlive connections and the server.

engine ── news ──▶ LiveSession ── lines, messages ──▶ Store        committed first,
                      ▲   └───────── Feed ──▶ Connection ──▶ client     told afterwards
client ── commands ───┘
"""

from __future__ import annotations

from braid.server.live.hub import Hub
from braid.server.live.routes import router

__all__ = ["Hub", "router"]
