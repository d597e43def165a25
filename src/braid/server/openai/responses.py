"""`/v1/responses`: a conversation of items is answered, kept, and gone on with by its id."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from braid.errors import NotFoundError
from braid.server.access import Caller
from braid.server.openai.answers import answer
from braid.server.openai.documented import ERRORS, streamed
from braid.server.openai.plans import Plan, Wanted, chat_plan, refuse_unserved
from braid.server.openai.refusals import refusal
from braid.server.openai.response_events import ResponseBuilder
from braid.server.openai.response_shapes import (
    InputItem,
    NamedFunction,
    ResponseBody,
    ResponseDeleted,
    ResponseEvent,
    ResponseRequest,
    SchemaFormat,
)
from braid.server.openai.response_store import MemoryResponseStore, ResponseStore, StoredResponse
from braid.server.openai.shapes import (
    BraidOptions,
    ChatMessage,
    ContentPart,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextFormat,
    ToolCall,
)
from braid.server.openai.streaming import EventStream, Sink, while_connected
from braid.server.openai.together import seated
from braid.server.service import Service, caller_of, service_of

__all__ = ["router"]

router = APIRouter(tags=["openai"])

_UNSERVED = ("background", "conversation", "prompt")
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")


@router.post("/v1/responses", response_model=ResponseBody, responses=streamed(ResponseEvent))
async def create_response(body: ResponseRequest, request: Request) -> Response:
    """Answer a conversation of items."""
    service, caller = service_of(request), caller_of(request)
    service.require_model(body.model)
    store = _store(request)
    messages = [*_before(body, store, caller), *_messages(body.input)]
    plan = _plan(body, messages, service, caller)
    making = _Making(body, messages, plan, service, caller, store)
    if body.stream:
        return making.as_stream()
    return await while_connected(request, making.whole)


@router.get("/v1/responses/{response_id}", response_model=ResponseBody, responses=ERRORS)
async def retrieve_response(response_id: str, request: Request) -> dict[str, Any]:
    """A response that was kept."""
    stored = _store(request).get(caller_of(request).name, response_id)
    if stored is None:
        raise _missing(response_id)
    return stored.body


@router.delete("/v1/responses/{response_id}", response_model=ResponseDeleted, responses=ERRORS)
async def delete_response(response_id: str, request: Request) -> dict[str, Any]:
    """Forget a response."""
    if not _store(request).remove(caller_of(request).name, response_id):
        raise _missing(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


def _store(request: Request) -> ResponseStore:
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = MemoryResponseStore()
    return state.responses


def _missing(response_id: str) -> NotFoundError:
    error = NotFoundError(
        f"there is no response {response_id!r}; those that were stored are kept until the server ends"
    )
    error.param = "response_id"
    return error


# ---- the request


def _before(body: ResponseRequest, store: ResponseStore, caller: Caller) -> Sequence[ChatMessage]:
    """The conversation that is gone on with."""
    if body.previous_response_id is None:
        return ()
    stored = store.get(caller.name, body.previous_response_id)
    if stored is None:
        error = _missing(body.previous_response_id)
        error.param = "previous_response_id"
        raise error
    return stored.messages


def _messages(given: str | list[InputItem]) -> list[ChatMessage]:
    """The items as messages; a call joins the message before it, a thought the one after it."""
    if isinstance(given, str):
        return [ChatMessage(role="user", content=given)]
    if not given:
        raise refusal("input", "is empty; give it some text")
    messages: list[ChatMessage] = []
    thought: str | None = None
    for number, item in enumerate(given):
        where = f"input[{number}]"
        if item.type == "reasoning":
            thought = _text([*(item.summary or ()), *(item.content or ())], where)
            continue
        message = _message(item, where)
        last = messages[-1] if messages else None
        if item.type == "function_call" and last is not None and last.role == "assistant" and thought is None:
            last.tool_calls = [*(last.tool_calls or ()), *(message.tool_calls or ())]
            continue
        if message.role == "assistant":
            message.reasoning_content, thought = thought, None
        messages.append(message)
    return messages


def _message(item: InputItem, where: str) -> ChatMessage:
    if item.type == "function_call":
        if not (item.call_id and item.name):
            raise refusal(where, "a call needs call_id and name")
        call = {"id": item.call_id, "function": {"name": item.name, "arguments": item.arguments or "{}"}}
        return ChatMessage(role="assistant", tool_calls=[ToolCall.model_validate(call)])
    if item.type == "function_call_output":
        if not item.call_id:
            raise refusal(where, "what came of a call needs its call_id")
        return ChatMessage(role="tool", tool_call_id=item.call_id, content=_text(item.output or "", where))
    if item.role is None:
        raise refusal(where, "a message needs a role, such as user")
    return ChatMessage(role=item.role, content=_text(item.content or "", where))


def _text(content: str | Sequence[ContentPart | str], where: str) -> str:
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for number, part in enumerate(content):
        text = part if isinstance(part, str) else part.refusal if part.type == "refusal" else part.text
        if text is None:
            kind = "" if isinstance(part, str) else part.type
            raise refusal(
                f"{where}.content[{number}]",
                f'this model reads text alone, no {kind!r}; send parts {{"type": "input_text", "text": …}}',
            )
        texts.append(text)
    return "".join(texts)


def _plan(body: ResponseRequest, messages: Sequence[ChatMessage], service: Service, caller: Caller) -> Plan:
    refuse_unserved(body, *_UNSERVED)
    for name in body.include or ():
        if name not in _INCLUDED:
            raise refusal(
                "include", f"{name!r} is not served; what can be included is {', '.join(_INCLUDED)}"
            )
    tells_odds = _LOGPROBS in (body.include or ()) or bool(body.top_logprobs)
    logprobs = (body.top_logprobs or 0) if tells_odds else None
    instructed = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        choice = choice.as_choice()
    return chat_plan(
        service,
        caller,
        messages=[*instructed, *messages],
        wanted=Wanted.of(body, max_tokens=body.max_output_tokens, logprobs=logprobs),
        options=body.braid or BraidOptions(),
        seed=body.seed,
        tools=[tool.as_tool() for tool in body.tools or ()],
        choice=choice,
        is_parallel=body.parallel_tool_calls is not False,
        answer_format=_format(body),
        template_options=body.chat_template_kwargs,
    )


def _format(body: ResponseRequest) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
    wanted = body.text.format if body.text is not None else None
    if not isinstance(wanted, SchemaFormat):
        return wanted
    schema = {"name": wanted.name, "schema": wanted.schema_}
    return JsonSchemaFormat.model_validate({"type": "json_schema", "json_schema": schema})


# ---- the answer


@dataclass(frozen=True)
class _Making:
    """One request.

    Args:
        body: As it came.
        messages: The whole conversation, without instructions.
        plan: Of its answer.
        service, caller, store: Where, for whom, and where it is kept.
    """

    body: ResponseRequest
    messages: list[ChatMessage]
    plan: Plan
    service: Service
    caller: Caller
    store: ResponseStore

    async def whole(self) -> dict[str, Any]:
        """The response when it is complete."""
        return await self._run(ResponseBuilder(self._head()))

    def as_stream(self) -> EventStream:
        """The response as it is made."""
        builder: ResponseBuilder | None = None

        async def run(sink: Sink) -> None:
            nonlocal builder

            async def emit(event: dict[str, Any]) -> None:
                await sink.event(event, event["type"])

            builder = ResponseBuilder(self._head(), emit)
            await self._run(builder)

        async def failed(_sink: Sink, error: dict[str, Any]) -> None:
            assert builder is not None
            await builder.fail(error["error"])

        return EventStream(self.service, run, failed=failed)

    async def _run(self, builder: ResponseBuilder) -> dict[str, Any]:
        has_begun = False

        async def begin() -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                await builder.begin()

        async def tell(part: Any) -> None:
            await begin()  # not before: what is refused has a status of its own
            await builder.take(part)

        with seated(self.caller, 1):
            outcome = await answer(self.service, self.plan, tell)
        await begin()
        return await builder.end(outcome, self._keep)

    def _keep(self, body: dict[str, Any]) -> None:
        if self.body.store is False:
            return
        items = [InputItem.model_validate(item) for item in body["output"]]
        self.store.put(self.caller.name, StoredResponse(body, (*self.messages, *_messages(items))))

    def _head(self) -> dict[str, Any]:
        body = self.body
        sent = body.model_dump(
            mode="json", by_alias=True, include={"tools", "tool_choice", "text", "reasoning"}
        )
        return {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": self.service.model.name,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": sent["reasoning"] or {"effort": None, "summary": None},
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": sent["text"] or {"format": {"type": "text"}},
            "tool_choice": sent["tool_choice"] or "auto",
            "tools": sent["tools"] or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            **self.plan.told,
        }
