"""Retrieval beside the question: documents have a stream of their own, and may arrive while the user still types.

python docs/examples/documents.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import anyio

import braid.client

TOPOLOGY = {
    "decoding": "views",
    "streams": {
        "document": {"direction": "input", "feed": "burst"},
        "user": {"direction": "input", "priority": "high", "feed": "burst"},
        "output": {
            "direction": "output",
            "wait_k": "end",
            "max_tokens": 48,
        },
    },
}
PAGES = {
    "opening hours": "The museum is open from nine to five. It is closed on Mondays.\n\n",
    "prices": "A ticket costs eight euros. Children under ten pay nothing.\n\n",
}


async def retrieve(session: braid.client.Session) -> None:
    """What a search would find; each page is read in the row after it has come."""
    for page in PAGES.values():
        await anyio.sleep(0.3)
        await session.write("document", page)
    await session.end("document")


async def main(url: str) -> dict[str, str]:
    """Type the question while the documents come in."""
    async with braid.client.connect(url) as client, client.open(topology=TOPOLOGY) as session:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retrieve, session)
            for word in ["How", "much", "does", "a", "ticket", "cost?"]:
                await session.write("user", word + " ")
                await anyio.sleep(0.1)
        await session.end("user")
        await session.wait_for_turn()
        print(session.text("output"))
        return {"output": session.text("output")}


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
