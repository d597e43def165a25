"""Step 2, a thought stream of its own: it thinks while the question is typed, and is watched while it thinks.

braid serve &
python docs/examples/three_steps/own_thought.py http://127.0.0.1:8000
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import anyio
import anyio.to_thread
from figures import Figures
from one_stream import CALL, EXAMPLE, QUESTION, weather
from read_ahead import type_in

import braid
import braid.client

TOPOLOGY = braid.topology(str(Path(__file__).with_suffix(".yaml"))).to_dict()
FORBIDDEN = re.compile("password|card number", re.I)


async def main(url: str) -> Figures:
    """Ask, print the inner streams when they are done, stop a thought that goes astray, answer."""
    figures = Figures(url)
    inner: defaultdict[str, str] = defaultdict(str)
    async with (
        braid.client.connect(url) as client,
        client.open(TOPOLOGY, history=EXAMPLE, show="all") as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(type_in, session, QUESTION, figures)
        async for message in session:
            if message.type == "delta" and message.stream == "output":
                figures.answer_began()
            elif message.type == "delta":
                figures.said(message.t)
                inner[message.stream] += message.text
                if FORBIDDEN.search(inner["thought"]):
                    await session.cancel("thought")
            elif message.type == "state" and message.state == "asleep" and message.stream in inner:
                print(f"[{message.stream}: {inner[message.stream]}]")
                if call := CALL.search(inner.pop(message.stream)):
                    await session.write("result", await anyio.to_thread.run_sync(weather, call[1]))
                    await session.end("result")
            elif message.type == "turn" and session.text("output"):
                break
        print(session.text("output"))
    return figures


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
