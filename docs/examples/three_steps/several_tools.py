"""Step 3, several tools at once: each has streams of its own, and runs while the question is still typed.

braid serve &
python docs/examples/three_steps/several_tools.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio
from figures import Figures
from read_ahead import type_in

import braid
import braid.client

TOPOLOGY = braid.topology(str(Path(__file__).with_suffix(".yaml"))).to_dict()
QUESTION = (
    "What is the weather in Paris today, and when does the next train to Paris leave? My sister and I have a long "
    "weekend, and we would like to know what to pack for it and when to go."
)
RAN: list[tuple[float, float]] = []
"""From when to when each tool ran."""


async def weather(city: str) -> str:
    """Look up the weather of a city."""
    return await slowly(1.0, f"In {city} it is 21 degrees and sunny.")


async def train(city: str) -> str:
    """Look up when the next train to a city leaves."""
    return await slowly(2.0, f"The next train to {city} leaves at noon.")


async def slowly(seconds: float, found: str) -> str:
    """Somebody else's slow service."""
    began = time.perf_counter()
    await anyio.sleep(seconds)
    RAN.append((began, time.perf_counter()))
    return found


async def main(url: str) -> Figures:
    """Ask, and print what wakes, what sleeps, and what is said."""
    figures = Figures(url)
    async with (
        braid.client.connect(url) as client,
        client.open(TOPOLOGY, tools={"weather": weather, "train": train}, show="all") as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(type_in, session, QUESTION, figures)
        async for message in session:
            if message.type == "delta" and message.stream == "output":
                figures.answer_began()
                print(message.text, end="", flush=True)
            elif message.type == "delta":
                figures.said(message.t)
            elif message.type == "state" and message.state in ("active", "asleep"):
                print(f"[row {message.t}: {message.stream} is {message.state}]")
            elif message.type == "turn" and len(RAN) == len(TOPOLOGY["tool_flows"]):
                break
    late = sum(max(0.0, stop - max(begin, figures.ended)) for begin, stop in RAN)
    total = sum(stop - begin for begin, stop in RAN)
    print(f"\n[tools ran {total:.1f} s, {late:.1f} s of it after the question]")
    return figures


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
