"""Builds a response from the parts of an answer, and tells each step as an event.

    created, in_progress
      output_item.added ─▶ content_part.added ─▶ output_text.delta … ─▶ .done ─▶ content_part.done ─▶ item.done
      output_item.added ─▶ function_call_arguments.delta ─▶ .done ─▶ item.done
    completed, incomplete or failed

A thought and a message may be under way at once: streams speak at the same time, and items have indices.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from braid.server.openai.answers import Called, Outcome, Part, Said, Thought

__all__ = ["ResponseBuilder"]

Emit = Callable[[dict[str, Any]], Awaitable[None]]


class ResponseBuilder:
    """One response in the making.

    Args:
        head: The response without its output.
        emit: Takes each event; None where nobody wants to know.
    """

    def __init__(self, head: dict[str, Any], emit: Emit | None = None) -> None:
        self.body: dict[str, Any] = {**head, "status": "in_progress", "output": []}
        self._emit = emit
        self._number = 0
        self._open: dict[str, int] = {}
        """Which item is under way, by its type."""

    async def begin(self) -> None:
        """The answer is under way."""
        await self._tell("response.created", response=self.body)
        await self._tell("response.in_progress", response=self.body)

    async def take(self, part: Part) -> None:
        """Add what is new."""
        match part:
            case Said(text, odds):
                item, place = await self._item("message")
                piece = item["content"][0]
                piece["text"] += text
                piece["logprobs"] += odds
                if text:
                    await self._tell("response.output_text.delta", **place, delta=text, logprobs=odds)
            case Thought(text):
                item, place = await self._item("reasoning")
                item["content"][0]["text"] += text
                await self._tell("response.reasoning_text.delta", **place, delta=text)
            case Called():
                await self._close("message")
                await self._call(part)

    async def end(self, outcome: Outcome, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """The answer is complete, or as long as it may be; returns the response.

        Args:
            outcome: How it ended.
            keep: Takes the response before anybody hears that it is complete.
        """
        if not self.body["output"]:
            await self._item("message")
        is_cut = outcome.reason == "length"
        for kind in list(self._open):
            await self._close(kind, "incomplete" if is_cut else "completed")
        tokens = outcome.tokens
        self.body["usage"] = {
            "input_tokens": tokens.prompt,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens": tokens.said,
            "output_tokens_details": {"reasoning_tokens": tokens.thought},
            "total_tokens": tokens.prompt + tokens.said,
        }
        self.body["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
        keep(self.body)
        await self._tell(f"response.{self.body['status']}", response=self.body)
        return self.body

    async def fail(self, error: dict[str, Any]) -> None:
        """It has failed; told once it was under way."""
        self.body["status"] = "failed"
        self.body["error"] = {"code": error["code"], "message": error["message"]}
        await self._tell("response.failed", response=self.body)

    async def _item(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The item of a kind that is under way, begun where there is none, and where its text is."""
        output: list[dict[str, Any]] = self.body["output"]
        if kind not in self._open:
            is_message = kind == "message"
            item: dict[str, Any] = {"id": _new_id("msg" if is_message else "rs"), "type": kind}
            item |= {"status": "in_progress", "content": []}
            item |= {"role": "assistant"} if is_message else {"summary": []}
            self._open[kind] = len(output)
            output.append(item)
            await self._tell("response.output_item.added", output_index=self._open[kind], item=item)
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if is_message:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            await self._tell("response.content_part.added", **self._place(kind), part=part)
            item["content"].append(part)
        return output[self._open[kind]], self._place(kind)

    def _place(self, kind: str) -> dict[str, Any]:
        index = self._open[kind]
        return {"item_id": self.body["output"][index]["id"], "output_index": index, "content_index": 0}

    async def _close(self, kind: str, status: str = "completed") -> None:
        if kind not in self._open:
            return
        place = self._place(kind)
        item = self.body["output"][self._open.pop(kind)]
        part = item["content"][0]
        item["status"] = status
        if kind == "message":
            await self._tell(
                "response.output_text.done", **place, text=part["text"], logprobs=part["logprobs"]
            )
        else:
            await self._tell("response.reasoning_text.done", **place, text=part["text"])
        await self._tell("response.content_part.done", **place, part=part)
        await self._tell("response.output_item.done", output_index=place["output_index"], item=item)

    async def _call(self, call: Called) -> None:
        output: list[dict[str, Any]] = self.body["output"]
        item: dict[str, Any] = {"id": _new_id("fc"), "type": "function_call", "status": "in_progress"}
        item |= {"call_id": call.id, "name": call.name, "arguments": ""}
        place = {"item_id": item["id"], "output_index": len(output)}
        output.append(item)
        await self._tell("response.output_item.added", output_index=place["output_index"], item=item)
        await self._tell("response.function_call_arguments.delta", **place, delta=call.arguments)
        item |= {"arguments": call.arguments, "status": "completed"}
        await self._tell(
            "response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments
        )
        await self._tell("response.output_item.done", output_index=place["output_index"], item=item)

    async def _tell(self, kind: str, **fields: Any) -> None:
        if self._emit is not None:
            await self._emit({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"
