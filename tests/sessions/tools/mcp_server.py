"""An MCP server for the tests: run as a script it speaks over standard input and output, imported it is `server`."""

from __future__ import annotations

import os
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent

server = MCPServer("braid-tests")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def place() -> dict[str, Any]:
    """A place, as data."""
    return {"city": "Nice", "sea": True}


@server.tool(structured_output=False)
def mixed() -> CallToolResult:
    """Text and a picture."""
    image = ImageContent(type="image", data="AAAA", mime_type="image/png")
    return CallToolResult(content=[TextContent(type="text", text="look:"), image])


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no such city")


@server.tool()
def environment(variable: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(variable, "(none)")


@server.tool()
async def hang() -> str:
    """Never answer."""
    await anyio.sleep_forever()
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


if __name__ == "__main__":
    server.run()
