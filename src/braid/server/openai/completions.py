"""`POST /v1/completions`: text that is continued as it is, by one session a prompt and choice."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from braid.model.codec import TokenizerCodec
from braid.server.access import Caller
from braid.server.openai.answers import Gathered, Outcome, Part, Said, Tokens, answer, gathered
from braid.server.openai.documented import streamed
from braid.server.openai.messages import Conversation, bare
from braid.server.openai.odds import as_completion
from braid.server.openai.plans import Plan, Wanted, refuse_unserved, seed_of, with_settings
from braid.server.openai.refusals import refusal
from braid.server.openai.replies import Completion
from braid.server.openai.shapes import CompletionRequest
from braid.server.openai.streaming import DONE, EventStream, Sink, while_connected
from braid.server.openai.together import run_all, seated
from braid.server.service import Service, caller_of, service_of
from braid.streams.presets import topology as preset

__all__ = ["router"]

router = APIRouter(tags=["openai"])

DEFAULT_TOKENS = 16
"""What OpenAI's clients expect where they do not say."""
MAX_PROMPTS = 128


@router.post("/v1/completions", response_model=Completion, responses=streamed(Completion))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Go on with a text, or with several."""
    service, caller = service_of(request), caller_of(request)
    service.require_model(body.model)
    completion = _planned(body, service, caller)
    if body.stream:
        shows_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return EventStream(service, partial(completion.stream, shows_usage))
    return await while_connected(request, completion.whole)


def _planned(body: CompletionRequest, service: Service, caller: Caller) -> _Completion:
    refuse_unserved(body, "suffix")
    if body.best_of not in (None, 0, 1, body.n):
        raise refusal("best_of", "is not served; leave it out, and choose among n answers yourself")
    if body.echo and body.logprobs is not None:
        raise refusal("logprobs", "of the prompt are not served; leave out echo or logprobs")
    if body.max_tokens == 0:
        raise refusal("max_tokens", "must be 1 or more")
    wanted = Wanted.of(body, max_tokens=body.max_tokens or DEFAULT_TOKENS, logprobs=body.logprobs)
    topology = with_settings(preset("plain"), wanted, service)
    seed = seed_of(body.seed)
    prompts = _prompts(body, service.model.codec)
    plans: list[Plan] = []
    for text in prompts:
        spoken = bare(topology, text)
        conversation = Conversation(topology, spoken.chat, spoken.inputs)
        plans.append(
            Plan(
                conversation,
                seed,
                copies={},
                tools=frozenset(),
                is_single=False,
                shows_internal=False,
                logprobs=body.logprobs is not None,
                salt=caller.salt,
                max_rows=service.settings.max_rows,
            )
        )
    return _Completion(service, caller, prompts, plans, body.n or 1, echoes=bool(body.echo))


def _prompts(body: CompletionRequest, codec: TokenizerCodec) -> list[str]:
    """The prompts as text.

    Raises:
        InputError: There is none, an empty one, or tokens that no text has.
    """
    given = body.prompt
    if isinstance(given, str):
        prompts: list[str] = [given]
    elif not given:
        raise refusal("prompt", "is empty; give it some text")
    elif isinstance(given[0], str):
        prompts = cast("list[str]", given)
    elif isinstance(given[0], int):
        prompts = [_decoded(cast("list[int]", given), codec)]
    else:
        prompts = [_decoded(tokens, codec) for tokens in cast("list[list[int]]", given)]
    if len(prompts) > MAX_PROMPTS:
        raise refusal(
            "prompt", f"holds {len(prompts)} prompts, and may hold {MAX_PROMPTS}; send several requests"
        )
    if not all(prompts):
        raise refusal("prompt", "is empty; give it some text")
    return prompts


def _decoded(tokens: list[int], codec: TokenizerCodec) -> str:
    if any(not 0 <= token < codec.vocab_size for token in tokens):
        raise refusal("prompt", f"holds ids that are no tokens; they go from 0 to {codec.vocab_size - 1}")
    text = codec.decode(tokens)
    if codec.encode(text)[0] != tokens:
        raise refusal("prompt", "these tokens are not how their text is tokenised; send the text instead")
    return text


@dataclass
class _Completion:
    """One request.

    Args:
        prompts, plans: One each.
        num_answers: To each prompt.
        echoes: Whether an answer begins with its prompt.
    """

    service: Service
    caller: Caller
    prompts: list[str]
    plans: list[Plan]
    num_answers: int
    echoes: bool
    head: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.service.model.name,
        }

    @property
    def _places(self) -> list[tuple[int, int]]:
        """Prompt and answer of each choice."""
        return [(prompt, number) for prompt in range(len(self.plans)) for number in range(self.num_answers)]

    async def whole(self) -> dict[str, Any]:
        """The continuations when they are complete."""
        places = self._places
        with seated(self.caller, len(places)) as most:
            jobs = [partial(gathered, self.service, self.plans[prompt], number) for prompt, number in places]
            answers = await run_all(jobs, most)
        choices = [self._choice(index, place[0], answers[index]) for index, place in enumerate(places)]
        return {**self.head, "choices": choices, "usage": self._usage([whole.outcome for whole in answers])}

    def _choice(self, index: int, prompt: int, whole: Gathered) -> dict[str, Any]:
        text = self.prompts[prompt] + whole.text if self.echoes else whole.text
        logprobs = as_completion(whole.odds, 0) if self.plans[prompt].logprobs else None
        return {"index": index, "text": text, "finish_reason": whole.outcome.reason, "logprobs": logprobs}

    async def stream(self, shows_usage: bool, sink: Sink) -> None:
        """The continuations as they come."""
        places = self._places
        with seated(self.caller, len(places)) as most:
            jobs = [partial(self._stream_one, sink, index, *place) for index, place in enumerate(places)]
            outcomes = await run_all(jobs, most)
        if shows_usage:
            await sink.event({**self.head, "choices": [], "usage": self._usage(outcomes)})
        await sink.raw(DONE)

    async def _stream_one(self, sink: Sink, index: int, prompt: int, number: int) -> Outcome:
        offset = 0

        async def tell(part: Part) -> None:
            nonlocal offset
            if isinstance(part, Said):
                logprobs = as_completion(part.odds, offset) if part.odds else None
                offset += len(part.text)
                await sink.event(self._chunk(index, part.text, None, logprobs))

        if self.echoes:
            await sink.event(self._chunk(index, self.prompts[prompt], None, None))
        outcome = await answer(self.service, self.plans[prompt], tell, number)
        await sink.event(self._chunk(index, "", outcome.reason, None))
        return outcome

    def _chunk(
        self, index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": logprobs}
        return {**self.head, "choices": [choice]}

    def _usage(self, outcomes: list[Outcome]) -> dict[str, Any]:
        """All together; a prompt is counted once, however many answers it has."""
        total = Tokens()
        for (_, number), outcome in zip(self._places, outcomes, strict=True):
            tokens = outcome.tokens
            shared = tokens if number == 0 else Tokens(0, 0, tokens.said, tokens.thought)
            total += shared
        return total.as_usage()
