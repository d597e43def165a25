"""The conversation of a Realtime connection: items in order, and what they are as chat messages.

message (user)  ─▶ message (assistant) ─▶ function_call ─▶ function_call_output ─▶ …
                                          └──── one assistant message ───┘ └ tool ┘
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from braid.errors import NotFoundError
from braid.server.openai.refusals import read_as, refusal
from braid.server.openai.shapes import ChatMessage

__all__ = ["Items", "new_id", "read_item", "to_messages"]

MAX_ITEMS = 10_000

Item = dict[str, Any]


def new_id(kind: str) -> str:
    """An id that nothing else has."""
    return f"{kind}_{secrets.token_hex(12)}"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")

    type: str
    text: str | None = None


class _Shape(BaseModel):
    """What is read of an item; the rest is the client's own."""

    model_config = ConfigDict(extra="ignore")

    id: str | None = Field(default=None, min_length=1, max_length=64)
    type: str
    role: str | None = None
    content: list[_Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


_TEXT_PARTS = {"user": "input_text", "system": "input_text", "assistant": "output_text"}


def read_item(data: object) -> Item:
    """An item as a client sends it, completed.

    Raises:
        InputError: It is none that is known, or holds what is no text.
    """
    shape = read_as(_Shape, data, "item")
    item: Item = {"id": shape.id or new_id("item"), "object": "realtime.item", "type": shape.type}
    if shape.type == "message":
        return {**item, "status": "completed", **_message(shape)}
    if shape.type == "function_call":
        if not shape.name or shape.arguments is None:
            raise refusal("item", "a function_call has a name and arguments")
        call = {"call_id": shape.call_id or new_id("call"), "name": shape.name, "arguments": shape.arguments}
        return {**item, "status": "completed", **call}
    if shape.type == "function_call_output":
        if not shape.call_id or shape.output is None:
            raise refusal("item", "a function_call_output has a call_id and an output")
        return {**item, "status": "completed", "call_id": shape.call_id, "output": shape.output}
    raise refusal("item.type", f"is message, function_call or function_call_output, not {shape.type!r}")


def _message(shape: _Shape) -> dict[str, Any]:
    kind = _TEXT_PARTS.get(shape.role or "")
    if kind is None:
        raise refusal("item.role", f"is user, assistant or system, not {shape.role!r}")
    parts: list[dict[str, Any]] = []
    for number, part in enumerate(shape.content or ()):
        if part.type not in ("input_text", "output_text", "text") or part.text is None:
            raise refusal(
                f"item.content.{number}",
                f'this model reads text alone, no {part.type!r}; send {{"type": "{kind}", "text": …}}',
            )
        parts.append({"type": kind, "text": part.text})
    return {"role": shape.role, "content": parts}


class Items:
    """Items in the order of the conversation."""

    def __init__(self) -> None:
        self._items: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Put an item in its place.

        Args:
            item: From `read_item`, or one that a response makes.
            after: Id of the one before it, `root` for the beginning; None for the end.

        Returns:
            Id of the one before it.

        Raises:
            InputError: Its id is taken, or there are too many.
            NotFoundError: There is nothing with the id `after`.
        """
        if any(other["id"] == item["id"] for other in self._items):
            raise refusal("item.id", f"{item['id']!r} is taken; leave it out, or choose another")
        if len(self._items) >= MAX_ITEMS:
            raise refusal(
                "item", f"a conversation has at most {MAX_ITEMS} items; delete some, or begin another"
            )
        place = len(self._items) if after is None else 0 if after == "root" else self._place(after) + 1
        self._items.insert(place, item)
        return self._items[place - 1]["id"] if place else None

    def get(self, item_id: str) -> Item:
        """One item; raises NotFoundError."""
        return self._items[self._place(item_id)]

    def delete(self, item_id: str) -> None:
        """Forget an item; raises NotFoundError."""
        del self._items[self._place(item_id)]

    def _place(self, item_id: str) -> int:
        for place, item in enumerate(self._items):
            if item["id"] == item_id:
                return place
        raise NotFoundError(f"there is no item {item_id!r} in this conversation")


def to_messages(items: Sequence[Mapping[str, Any]], instructions: str | None) -> list[ChatMessage]:
    """Items as chat messages; calls that follow each other, and the words before them, are one message.

    Args:
        items: In order.
        instructions: The system prompt; None, or empty, for none.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        match item["type"]:
            case "function_call":
                call = {
                    "id": item["call_id"],
                    "type": "function",
                    "function": {"name": item["name"], "arguments": item["arguments"]},
                }
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
            case _:
                text = "".join(part["text"] for part in item["content"])
                messages.append({"role": item["role"], "content": text})
    return [ChatMessage.model_validate(message) for message in messages]
