"""`/v1/realtime`: OpenAI's Realtime protocol, for text.

    session.update, conversation.item.create, response.create, response.cancel   ─▶
                                             ◀─  response.created, response.output_text.delta, …, response.done

A connection is one conversation. While a response is under way the client may go on: add items for the next one, or
cancel it; what it has said by then stays in the conversation. Audio is refused in words.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

import anyio
import anyio.abc
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.websockets import WebSocket, WebSocketDisconnect

from braid.errors import BraidError, InputError
from braid.server.access import Caller
from braid.server.errors import error_body, mistake_body
from braid.server.openai.answers import Called, Part, Said, Thought, Tokens, answer
from braid.server.openai.plans import Plan, Wanted, chat_plan
from braid.server.openai.realtime_items import Item, Items, new_id, read_item, to_messages
from braid.server.openai.refusals import read_as, refusal
from braid.server.openai.response_shapes import FunctionTool, NamedFunction
from braid.server.openai.shapes import BraidOptions
from braid.server.service import Service, caller_of, service_of

__all__ = ["router"]

router = APIRouter(tags=["openai"])


class _Settings(BaseModel):
    """What a session, or one response, asks for; what only audio needs is taken and not used."""

    model_config = ConfigDict(extra="ignore")

    instructions: str | None = None
    output_modalities: list[Literal["text", "audio"]] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    braid: BraidOptions | None = None

    def over(self, below: _Settings) -> _Settings:
        """These, and where they say nothing, those below."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return below.model_copy(update=given)


class _ResponseSettings(_Settings):
    """Of one response.

    Args:
        conversation: `none` keeps it out of the conversation.
        input: Items instead of the conversation's.
        metadata: Given back.
    """

    conversation: Literal["auto", "none"] = "auto"
    input: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Hold one conversation."""
    service = service_of(socket)
    service.require_model(socket.query_params.get("model"))
    offered = socket.scope.get("subprotocols", [])
    await socket.accept(subprotocol="realtime" if "realtime" in offered else None)
    with service.connections.labels("/v1/realtime").track_inprogress():
        await _Connection(socket, service, caller_of(socket)).run()


class _Connection:
    """One client."""

    def __init__(self, socket: WebSocket, service: Service, caller: Caller) -> None:
        self.service = service
        self.caller = caller
        self.items = Items()
        self.settings = _Settings(output_modalities=["text"])
        self.conversation = new_id("conv")
        self._id = new_id("sess")
        self._socket = socket
        self._sending = anyio.Lock()
        self._response: _Response | None = None
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Serve it until it leaves."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await self.send("session.created", session=self._session())
                while True:
                    await self._take(await self._receive())
        except* (WebSocketDisconnect, anyio.BrokenResourceError):
            pass  # it has left

    async def _receive(self) -> str | bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        return cast("bytes", message.get("bytes") or b"") if text is None else cast("str", text)

    async def send(self, kind: str, **fields: Any) -> None:
        """Tell the client something."""
        event = {"type": kind, "event_id": new_id("event"), **fields}
        async with self._sending:
            await self._socket.send_text(json.dumps(event, ensure_ascii=False))

    async def refuse(self, error: BraidError, event_id: str | None = None) -> None:
        """Tell the client what is wrong; the connection goes on."""
        told = error_body(error)["error"]
        await self.send("error", error={**told, "event_id": event_id})

    async def _take(self, frame: str | bytes) -> None:
        event_id: str | None = None
        try:
            event = _as_object(frame)
            given = event.get("event_id")
            event_id = given if isinstance(given, str) else None
            await self._do(event)
        except BraidError as error:
            await self.refuse(error, event_id)
        except (WebSocketDisconnect, anyio.BrokenResourceError):
            raise
        except Exception as error:  # noqa: BLE001 (ours: told as such, and the conversation goes on)
            self.service.log.mistake("mistake", error, path="/v1/realtime")
            told = mistake_body("an internal error")["error"]
            await self.send("error", error={**told, "event_id": event_id})

    async def _do(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        handlers: dict[str, Callable[[Mapping[str, Any]], Awaitable[None]]] = {
            "session.update": self._update,
            "conversation.item.create": self._create_item,
            "conversation.item.retrieve": self._retrieve_item,
            "conversation.item.delete": self._delete_item,
            "response.create": self._respond,
            "response.cancel": self._cancel,
        }
        if isinstance(kind, str) and kind in handlers:
            await handlers[kind](event)
        elif isinstance(kind, str) and ("audio" in kind or kind == "conversation.item.truncate"):
            raise refusal(
                "type", f"{kind!r} is for audio, and this server speaks text; send conversation.item.create"
            )
        else:
            raise refusal(
                "type", f"{kind!r} is nothing that this server knows; it takes {', '.join(handlers)}"
            )

    # ---- the session

    def _session(self) -> dict[str, Any]:
        data = self.settings.model_dump(exclude_none=True, exclude={"braid", "modalities"})
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": self._id,
            "model": self.service.model.name,
            "instructions": "",
            "tools": [],
            "tool_choice": "auto",
            "max_output_tokens": "inf",
            **data,
        }

    async def _update(self, event: Mapping[str, Any]) -> None:
        update = read_as(_Settings, _given(event, "session"), "session")
        _require_text(update, "session")
        self.settings = update.over(self.settings)
        await self.send("session.updated", session=self._session())

    # ---- items

    async def _create_item(self, event: Mapping[str, Any]) -> None:
        await self.add_item(read_item(event.get("item")), event.get("previous_item_id"))

    async def add_item(self, item: Item, after: str | None = None, *, is_done: bool = True) -> None:
        """Put an item into the conversation, and say so."""
        before = self.items.add(item, after)
        await self.send("conversation.item.added", previous_item_id=before, item=item)
        if is_done:
            await self.send("conversation.item.done", previous_item_id=before, item=item)

    async def _retrieve_item(self, event: Mapping[str, Any]) -> None:
        await self.send("conversation.item.retrieved", item=self.items.get(str(event.get("item_id"))))

    async def _delete_item(self, event: Mapping[str, Any]) -> None:
        item_id = str(event.get("item_id"))
        self.items.delete(item_id)
        await self.send("conversation.item.deleted", item_id=item_id)

    # ---- responses

    async def _respond(self, event: Mapping[str, Any]) -> None:
        asked = read_as(_ResponseSettings, _given(event, "response"), "response")
        _require_text(asked, "response")
        if self._response is not None:
            raise InputError(
                f"{self._response.id} is still under way; wait for its response.done, or send response.cancel"
            )
        items = list(self.items) if asked.input is None else [self._referred(item) for item in asked.input]
        plan = self._plan(asked.over(self.settings), items)
        self._response = _Response(self, plan, asked)
        assert self._tasks is not None
        self._tasks.start_soon(self._answer, self._response)

    def _referred(self, data: dict[str, Any]) -> Item:
        """An item of a response's own input; it may refer to one of the conversation."""
        if data.get("type") == "item_reference":
            return self.items.get(str(data.get("id")))
        return read_item(data)

    def _plan(self, settings: _Settings, items: list[Item]) -> Plan:
        messages = to_messages(items, settings.instructions)
        if not messages or messages[-1].role in ("assistant", "system"):
            raise refusal(
                "response",
                "there is nothing to answer; create an item of the user, or of a function's output, first",
            )
        limit = settings.max_output_tokens
        sampling = {} if settings.temperature is None else {"temperature": settings.temperature}
        choice = settings.tool_choice
        if isinstance(choice, NamedFunction):
            choice = choice.as_choice()
        return chat_plan(
            self.service,
            self.caller,
            messages=messages,
            wanted=Wanted(sampling, max_tokens=limit if isinstance(limit, int) else None),
            options=settings.braid or BraidOptions(),
            seed=None,
            tools=[tool.as_tool() for tool in settings.tools or ()],
            choice=choice,
            is_parallel=settings.parallel_tool_calls is not False,
        )

    async def _answer(self, response: _Response) -> None:
        try:
            with response.scope:
                await response.run()
        except WebSocketDisconnect:
            return
        finally:
            self._response = None
        await response.finish()

    async def _cancel(self, event: Mapping[str, Any]) -> None:
        named = event.get("response_id")
        if self._response is None or named not in (None, self._response.id):
            raise InputError("no such response is under way; there is nothing to cancel")
        self._response.scope.cancel()


class _Response:
    """One answer: a message, calls, or both."""

    def __init__(self, connection: _Connection, plan: Plan, asked: _ResponseSettings) -> None:
        self.id = new_id("resp")
        self.scope = anyio.CancelScope()
        self._connection = connection
        self._plan = plan
        self._metadata = asked.metadata
        self._is_kept = asked.conversation == "auto"
        self._output: list[Item] = []
        self._message: Item | None = None
        self._status = "cancelled"
        self._details: dict[str, Any] | None = {"type": "cancelled", "reason": "client_cancelled"}
        self._tokens = Tokens()

    async def run(self) -> None:
        """Answer; whoever cancels the scope ends it where it stands."""
        connection = self._connection
        await connection.send("response.created", response=self._described("in_progress"))
        try:
            with connection.caller.busy():
                outcome = await answer(connection.service, self._plan, self._take)
        except BraidError as error:
            told = error_body(error)["error"]
            self._status, self._details = "failed", {"type": "failed", "error": told}
            return
        self._tokens = outcome.tokens
        if outcome.reason == "length":
            self._status, self._details = "incomplete", {"type": "incomplete", "reason": "max_output_tokens"}
        else:
            self._status, self._details = "completed", None

    async def finish(self) -> None:
        """Say how it ended."""
        await self._end_message("completed" if self._status == "completed" else "incomplete")
        await self._connection.send("response.done", response=self._described(self._status))

    async def _take(self, part: Part) -> None:
        match part:
            case Said(text) if text:
                await self._say(text)
            case Called():
                await self._end_message("completed")
                await self._call(part)
            case Said() | Thought():
                return

    async def _say(self, text: str) -> None:
        if self._message is None:
            self._message = {
                "id": new_id("item"),
                "object": "realtime.item",
                "type": "message",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
            await self._begin_item(self._message)
            self._message["content"] = [{"type": "output_text", "text": ""}]
            await self._tell("response.content_part.added", part={"type": "text", "text": ""})
        self._message["content"][0]["text"] += text
        await self._tell("response.output_text.delta", delta=text)

    async def _end_message(self, status: str) -> None:
        message = self._message
        if message is None:
            return
        text = message["content"][0]["text"]
        message["status"] = status
        await self._tell("response.output_text.done", text=text)
        await self._tell("response.content_part.done", part={"type": "text", "text": text})
        self._message = None
        await self._end_item(message)

    async def _call(self, called: Called) -> None:
        item: Item = {
            "id": new_id("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
            "call_id": called.id,
            "name": called.name,
            "arguments": "",
        }
        await self._begin_item(item)
        where = {"response_id": self.id, "item_id": item["id"], "output_index": len(self._output) - 1}
        of_call = {**where, "call_id": called.id}
        send = self._connection.send
        await send("response.function_call_arguments.delta", delta=called.arguments, **of_call)
        await send(
            "response.function_call_arguments.done", arguments=called.arguments, name=called.name, **of_call
        )
        item |= {"arguments": called.arguments, "status": "completed"}
        await self._end_item(item)

    async def _begin_item(self, item: Item) -> None:
        self._output.append(item)
        await self._tell_item("response.output_item.added", item)
        if self._is_kept:
            await self._connection.add_item(item, is_done=False)

    async def _end_item(self, item: Item) -> None:
        await self._tell_item("response.output_item.done", item)
        if self._is_kept:
            await self._connection.send("conversation.item.done", item=item)

    async def _tell_item(self, kind: str, item: Item) -> None:
        index = self._output.index(item)
        await self._connection.send(kind, response_id=self.id, output_index=index, item=item)

    async def _tell(self, kind: str, **fields: Any) -> None:
        assert self._message is not None
        where = {"response_id": self.id, "item_id": self._message["id"], "content_index": 0}
        await self._connection.send(kind, output_index=self._output.index(self._message), **where, **fields)

    def _described(self, status: str) -> dict[str, Any]:
        tokens = self._tokens
        usage = {
            "input_tokens": tokens.prompt,
            "output_tokens": tokens.said,
            "total_tokens": tokens.prompt + tokens.said,
            "input_token_details": {
                "cached_tokens": tokens.cached,
                "text_tokens": tokens.prompt,
                "audio_tokens": 0,
            },
            "output_token_details": {"text_tokens": tokens.said, "audio_tokens": 0},
        }
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": None if status == "in_progress" else self._details,
            "output": [] if status == "in_progress" else self._output,
            "output_modalities": ["text"],
            "conversation_id": self._connection.conversation if self._is_kept else None,
            "metadata": self._metadata,
            "usage": None if status == "in_progress" else usage,
            **self._plan.told,
        }


def _as_object(frame: str | bytes) -> dict[str, Any]:
    if isinstance(frame, bytes):
        raise InputError("events are JSON text; this is a binary frame")
    try:
        data: object = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is no event: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise InputError("this is no event: events are JSON objects")
    return cast("dict[str, Any]", data)


def _given(event: Mapping[str, Any], name: str) -> object:
    """A part of an event; leaving it out, and null, say nothing."""
    return {} if event.get(name) is None else event[name]


def _require_text(settings: _Settings, where: str) -> None:
    """Refuse what would be answered by voice."""
    for name in ("output_modalities", "modalities"):
        wanted = getattr(settings, name)
        if wanted is not None and "text" not in wanted:
            raise refusal(f"{where}.{name}", 'this server speaks text; ask for ["text"]')
