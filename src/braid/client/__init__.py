"""Talk with a Braid server: live sessions over a WebSocket. No torch.

    async with braid.client.connect("http://127.0.0.1:8000") as client:
        async with client.open(topology="think-aloud") as session:
            await session.write("user", "Sally has 3 apples.")
            await session.end()
            async for message in session:
                ...

`connect_sync` is the same without `await`; `protocol` is what is said on the wire. For chat completions and responses,
any OpenAI client does.
"""

from __future__ import annotations

from braid.client import protocol
from braid.client.session import Client, Session, connect
from braid.client.sync import SyncClient, SyncSession, connect_sync
from braid.client.tools import ClientTool

__all__ = [
    "Client",
    "ClientTool",
    "Session",
    "SyncClient",
    "SyncSession",
    "connect",
    "connect_sync",
    "protocol",
]
