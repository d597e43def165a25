"""`POST /v1/chat/completions`: a conversation is answered, at once or as it comes, by one session a choice."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from braid.server.access import Caller
from braid.server.openai.answers import (
    Called,
    Gathered,
    Outcome,
    Part,
    Said,
    Thought,
    Tokens,
    answer,
    gathered,
)
from braid.server.openai.documented import streamed
from braid.server.openai.plans import Plan, Wanted, chat_plan, refuse_unserved
from braid.server.openai.refusals import refusal
from braid.server.openai.replies import ChatChunk, ChatCompletion
from braid.server.openai.shapes import BraidOptions, ChatRequest, Prediction
from braid.server.openai.streaming import DONE, EventStream, Sink, while_connected
from braid.server.openai.together import run_all, seated
from braid.server.service import Service, caller_of, service_of

__all__ = ["router"]

router = APIRouter(tags=["openai"])

_UNSERVED = ("audio", "functions", "function_call", "web_search_options")


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=streamed(ChatChunk))
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    service, caller = service_of(request), caller_of(request)
    service.require_model(body.model)
    plan = _plan(body, service, caller)
    chat = _Chat(service, caller, plan, body.n or 1)
    if body.stream:
        shows_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return EventStream(service, partial(chat.stream, shows_usage))
    return await while_connected(request, chat.whole)


def _plan(body: ChatRequest, service: Service, caller: Caller) -> Plan:
    refuse_unserved(body, *_UNSERVED)
    if body.modalities is not None and body.modalities != ["text"]:
        raise refusal("modalities", 'answers are text; leave it out, or send ["text"]')
    if body.top_logprobs is not None and not body.logprobs:
        raise refusal("top_logprobs", "needs logprobs: true; add it, or leave this out")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    wanted = Wanted.of(body, max_tokens=body.max_completion_tokens or body.max_tokens, logprobs=logprobs)
    return chat_plan(
        service,
        caller,
        messages=body.messages,
        wanted=wanted,
        options=body.braid or BraidOptions(),
        seed=body.seed,
        tools=body.tools or (),
        choice=body.tool_choice,
        is_parallel=body.parallel_tool_calls is not False,
        answer_format=body.response_format,
        template_options=body.chat_template_kwargs,
        prediction=_predicted(body.prediction),
    )


def _predicted(prediction: Prediction | None) -> str:
    """The text of a prediction."""
    if prediction is None:
        return ""
    if isinstance(prediction.content, str):
        return prediction.content
    for part in prediction.content:
        if part.type != "text" or part.text is None:
            raise refusal("prediction.content", f"has a part of type {part.type!r}; predictions are text")
    return "".join(part.text or "" for part in prediction.content)


class _Chat:
    """One request.

    Args:
        service, caller, plan: Where, for whom, and what.
        num_answers: Choices that are asked for.
    """

    def __init__(self, service: Service, caller: Caller, plan: Plan, num_answers: int) -> None:
        self._service = service
        self._caller = caller
        self._plan = plan
        self._num_answers = num_answers
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": service.model.name,
        }

    async def whole(self) -> dict[str, Any]:
        """The answers when they are complete."""
        with seated(self._caller, self._num_answers) as most:
            jobs = [
                partial(gathered, self._service, self._plan, number) for number in range(self._num_answers)
            ]
            answers = await run_all(jobs, most)
        choices = [self._choice(number, whole) for number, whole in enumerate(answers)]
        usage = _usage([whole.outcome for whole in answers])
        return {**self._head, "choices": choices, "usage": usage, **self._plan.told}

    def _choice(self, number: int, whole: Gathered) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": whole.text, "refusal": None}
        if whole.calls and not whole.text:
            message["content"] = None
        if whole.thought:
            message["reasoning_content"] = whole.thought
        if whole.calls:
            message["tool_calls"] = [_spelled(call) for call in whole.calls]
        return {
            "index": number,
            "message": message,
            "finish_reason": whole.outcome.reason,
            "logprobs": {"content": whole.odds, "refusal": None} if self._plan.logprobs else None,
        }

    async def stream(self, shows_usage: bool, sink: Sink) -> None:
        """The answers as they come."""
        self._head["object"] = "chat.completion.chunk"
        with seated(self._caller, self._num_answers) as most:
            jobs = [partial(self._stream_one, sink, number) for number in range(self._num_answers)]
            outcomes = await run_all(jobs, most)
        if shows_usage:
            await sink.event({**self._head, "choices": [], "usage": _usage(outcomes)})
        await sink.raw(DONE)

    async def _stream_one(self, sink: Sink, number: int) -> Outcome:
        num_calls = 0
        has_begun = False

        async def tell(part: Part) -> None:
            nonlocal num_calls, has_begun
            delta: dict[str, Any] = {} if has_begun else {"role": "assistant", "content": ""}
            has_begun = True
            odds: list[dict[str, Any]] = []
            match part:
                case Said(text, odds):
                    delta["content"] = text
                case Thought(text):
                    delta["reasoning_content"] = text
                case Called():
                    delta["tool_calls"] = [{"index": num_calls, **_spelled(part)}]
                    num_calls += 1
            await sink.event(self._chunk(number, delta, odds=odds))

        outcome = await answer(self._service, self._plan, tell, number)
        if not has_begun:
            await tell(Said(""))
        await sink.event({**self._chunk(number, {}, outcome.reason), **self._plan.told})
        return outcome

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        reason: str | None = None,
        odds: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": number,
            "delta": delta,
            "finish_reason": reason,
            "logprobs": {"content": odds, "refusal": None} if self._plan.logprobs and odds else None,
        }
        return {**self._head, "choices": [choice]}


def _spelled(call: Called) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(outcomes: list[Outcome]) -> dict[str, Any]:
    """All answers together; the prompt that they share is counted once, as it is read once."""
    first = outcomes[0].tokens
    said = sum((outcome.tokens for outcome in outcomes), Tokens())
    return replace(said, prompt=first.prompt, cached=first.cached).as_usage()
