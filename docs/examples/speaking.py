"""Voice-style typing: words arrive one by one, the model takes notes from the first ones on, then answers.

braid serve &
python docs/examples/speaking.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import anyio

import braid.client

TEXT = "I have three apples and I buy four more at the market. How many apples do I have now?"
PAUSE_S = 0.25
"""About how fast people speak."""


async def main(url: str) -> dict[str, str]:
    """Speak, word by word, and listen meanwhile."""
    async with (
        braid.client.connect(url) as client,
        client.open(topology="think-aloud", show="all") as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(speak, session)
        async for message in session:
            if message.type == "delta":
                print(f"{message.stream:>8}  {message.text!r}")
            elif message.type == "turn":
                print(f"the first answer token came {message.tnft} rows after the last word")
                break
        return {stream: session.text(stream) for stream in ("thought", "output")}


async def speak(session: braid.client.Session) -> None:
    """As a speech recogniser would send it."""
    for word in TEXT.split():
        await session.write("user", word + " ")
        await anyio.sleep(PAUSE_S)
    await session.end()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
