"""Code and audit: one stream writes code, another reads it as it is written and says what it thinks of it.

The auditor cannot influence what it audits: the topology forbids that flow, and the server proves it before it opens.

    python docs/examples/audit.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import anyio

import braid.client

TOPOLOGY = {
    "decoding": "views",
    "streams": {
        "user": {"direction": "input", "feed": "burst"},
        "output": {
            "direction": "output",
            "priority": "high",
            "wait_k": "end",
            "max_tokens": 80,
            "instructions": "Write only the Python code that the user asks for.",
        },
        "audit": {
            "direction": "output",
            "priority": "low",
            "visibility": "internal",
            "trigger": {"on": "output", "pattern": "def "},
            "max_tokens": 48,
            "instructions": "Say in one sentence whether the code above is safe to run.",
        },
    },
    "reads": {"output": ["user"], "audit": ["user", "output"]},
    "forbid": [["audit", "output"]],
}


async def main(url: str) -> dict[str, str]:
    """Ask for code; print it, and the audit beside it."""
    async with (
        braid.client.connect(url) as client,
        client.open(topology=TOPOLOGY, show="all") as session,
    ):
        await session.write("user", "Write a Python function that adds two numbers.")
        await session.end()
        async for message in session:
            if message.type == "state" and message.stream == "audit":
                print(f"\n[audit is {message.state}: {message.reason}]")
            elif message.type == "delta":
                print(message.text if message.stream == "output" else f"‹{message.text}›", end="", flush=True)
            elif message.type == "turn":
                break
        return {stream: session.text(stream) for stream in ("output", "audit")}


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
