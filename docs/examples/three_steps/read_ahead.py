"""Step 1, read ahead: the same agent, and its question is read while it is typed.

braid serve &
python docs/examples/three_steps/read_ahead.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import anyio
import anyio.to_thread
from figures import Figures
from one_stream import CALL, EXAMPLE, QUESTION, weather

import braid.client

PAUSE_S = 0.25
"""Between two words, about as fast as people type."""


async def type_in(session: braid.client.Session, text: str, figures: Figures) -> None:
    """Send a question word by word, and then its end."""
    for word in text.split(" "):
        await session.write("user", word + " ")
        await anyio.sleep(PAUSE_S)
    figures.question_ended()
    await session.end("user")


async def main(url: str) -> Figures:
    """Ask word by word, call, answer."""
    figures = Figures(url)
    async with (
        braid.client.connect(url) as client,
        client.open("plain", history=EXAMPLE) as session,
    ):
        await type_in(session, QUESTION, figures)
        said = ""
        async for message in session:
            if message.type == "delta" and message.text:
                said += message.text
                figures.answer_began() if said.startswith("Answer") else figures.said(message.t)
            elif message.type == "turn":
                print(said)
                call, said = CALL.search(said), ""
                if call is None:
                    break
                await session.write("user", await anyio.to_thread.run_sync(weather, call[1]))
                await session.end("user")
    return figures


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
