"""A client of `/v1/live` that does what it is told, mistakes included."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

from braid.client.protocol import parse_message
from tests.server.serving import Serving

__all__ = ["EDITABLE", "ROWS", "TOOLS", "Talk", "ids", "said"]

ROWS: dict[str, Any] = {
    "streams": {
        "user": {"direction": "input"},
        "thought": {"direction": "output", "visibility": "internal"},
        "output": {"direction": "output"},
    }
}
TOOLS: dict[str, Any] = {
    "streams": {
        "user": {"direction": "input"},
        "tool_result": {"direction": "input", "feed": "burst"},
        "tool_call": {"direction": "output", "visibility": "internal"},
        "output": {"direction": "output"},
    }
}
EDITABLE: dict[str, Any] = {"topology": "plain", "input": "editable"}


class Talk:
    """One connection.

    Args:
        server: What it connects to.
        key: Of the caller.
        url: Instead of a server.
    """

    def __init__(self, server: Serving | str, key: str | None = None, **options: Any) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        base = server if isinstance(server, str) else server.ws_url
        connecting = connect(
            f"{base}/v1/live",
            additional_headers=headers,
            proxy=None,
            max_size=None,
            max_queue=None,  # else a connection with unread messages takes ten seconds to close
            close_timeout=1,
            compression=None,
            **options,
        )
        self.socket: ClientConnection = connecting.__enter__()
        self.heard: list[dict[str, Any]] = []
        self.session = ""
        self._ids = (f"q{secrets.token_hex(3)}_{number}" for number in itertools.count(1))

    def send(self, data: Mapping[str, Any] | str | bytes) -> None:
        self.socket.send(json.dumps(data) if isinstance(data, Mapping) else data)

    def hear(self, timeout: float = 20) -> dict[str, Any]:
        message = json.loads(self.socket.recv(timeout=timeout))
        parse_message(message)
        self.heard.append(message)
        return message

    def until(self, wanted: str | Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Everything up to a message of a kind, that one included."""
        holds = wanted if callable(wanted) else lambda message: message["type"] == wanted
        messages = [self.hear()]
        while not holds(messages[-1]):
            messages.append(self.hear())
        return messages

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Send a command; returns its answer."""
        command = {"type": kind, "id": fields.pop("id", None) or next(self._ids), **fields}
        self.send(command)
        answer = self.until(lambda message: message.get("re") == command["id"])[-1]
        if answer["type"] == "opened":
            self.session = answer["session"]
        return answer

    def open(self, **fields: Any) -> dict[str, Any]:
        return self.ask("open", **{"topology": "plain", **fields})

    def turn(self, text: str = "hi", stream: str = "user") -> list[dict[str, Any]]:
        """Write an input, and hear everything to the end of the turn."""
        before = len(self.heard)
        self.ask("write", stream=stream, text=text)
        self.ask("end")
        while not any(message["type"] == "turn" for message in self.heard[before:]):
            self.hear()
        return self.heard[before:]

    def close(self) -> None:
        self.socket.close()

    def cut(self) -> None:
        """As if the cable were cut."""
        self.socket.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def said(messages: list[dict[str, Any]], stream: str = "output") -> str:
    """What a stream has said in these messages."""
    return "".join(m["text"] for m in messages if m["type"] == "delta" and m["stream"] == stream)


def ids(messages: list[dict[str, Any]]) -> list[int]:
    """Ids of the messages that are the session's."""
    return [m["id"] for m in messages if m.get("id") is not None]
