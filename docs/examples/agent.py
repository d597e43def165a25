"""An agent whose tools do not block: it goes on speaking while a tool runs, and reads the result when it is there.

python docs/examples/agent.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import yaml

import braid.client

TOPOLOGY = yaml.safe_load((Path(__file__).parent / "stock-agent.yaml").read_text())


async def weather(city: str) -> str:
    """Look up the weather of a city."""
    await anyio.sleep(1)  # somebody else's slow service
    return f"In {city} it is 21 degrees and sunny."


async def main(url: str) -> dict[str, str]:
    """Ask, and print what happens in which row."""
    async with (
        braid.client.connect(url) as client,
        client.open(topology=TOPOLOGY, tools={"weather": weather}, show="all") as session,
    ):
        await session.write("user", "What is the weather in Paris today?")
        await session.end()
        is_read = False
        async for message in session:
            if message.type == "tool_call":
                print(f"\n[calls {message.name} {message.arguments}, and goes on]")
            elif message.type == "state" and message.stream == "tool_result" and message.state == "active":
                is_read = True
                print("\n[the result is there]")
            elif message.type == "delta" and message.stream == "output":
                print(message.text, end="", flush=True)
            elif message.type == "turn" and is_read:
                break
        return {"output": session.text("output"), "tool_call": session.text("tool_call")}


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
