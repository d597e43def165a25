"""Tools that do not block: calls are issued while the model goes on speaking, results come back when they are ready.

    tool_call lane ── text ──▶ CallParser ── Call ──▶ Toolbox ── ToolResult ──▶ ToolPort ──▶ tool_result stream
                               (calls)                (toolbox: tool, mcp)      (runner)

Nothing here knows the engine: `ToolRunner` is fed with text and writes through a small protocol.
"""

from __future__ import annotations

from braid.sessions.tools.calls import Call, CallParser, call_ids
from braid.sessions.tools.mcp import McpTools
from braid.sessions.tools.runner import ToolPort, ToolRunner, Undelivered
from braid.sessions.tools.tool import Failure, Tool, tool
from braid.sessions.tools.toolbox import Toolbox, ToolResult

__all__ = [
    "Call",
    "CallParser",
    "Failure",
    "McpTools",
    "Tool",
    "ToolPort",
    "ToolResult",
    "ToolRunner",
    "Toolbox",
    "Undelivered",
    "call_ids",
    "tool",
]
