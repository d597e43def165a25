"""Answers as OpenAI's clients read them. The routes build plain data; these say what that looks like."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from braid.server.openai.shapes import ToolCall

__all__ = [
    "ChatChunk",
    "ChatCompletion",
    "Completion",
    "ErrorBody",
    "FinishReason",
    "ModelEntry",
    "ModelList",
    "Usage",
]

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    """What went wrong, and which field is at fault."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """Every answer that is no success."""

    error: ErrorDetail


class ModelEntry(BaseModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelEntry]


class PromptDetails(BaseModel):
    """Tokens of the prompt that were taken from the cache."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Tokens of inner streams; tokens of the prediction that were right, and those that were tried and were wrong."""

    reasoning_tokens: int
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(BaseModel):
    """Tokens, template and end tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(BaseModel):
    """One of the likeliest tokens at a place."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprob(TopLogprob):
    """A token of the answer, and what else was likely."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(BaseModel):
    """How likely the tokens of an answer were."""

    content: list[TokenLogprob] | None
    refusal: None = None


class AnswerMessage(BaseModel):
    """What the assistant says; `reasoning_content` are inner streams, where they were asked for."""

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(BaseModel):
    """One of the answers that were asked for."""

    index: int
    message: AnswerMessage
    finish_reason: FinishReason
    logprobs: ChoiceLogprobs | None


class FellBack(BaseModel):
    """Whether a request that allowed it was answered with one stream, and why."""

    fell_back: bool
    reason: str


class ChatCompletion(BaseModel):
    """A chat request's whole answer; `braid` where `braid.fall_back` was asked for."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    braid: FellBack | None = None


class CalledFunction(BaseModel):
    """A whole call; calls come in one piece each."""

    name: str
    arguments: str


class ToolCallDelta(BaseModel):
    """A new call."""

    index: int
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatDelta(BaseModel):
    """What is new."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    """News of one of the answers."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None
    logprobs: ChoiceLogprobs | None


class ChatChunk(BaseModel):
    """One server-sent event of a streamed answer; the last has the usage and no choice, where that is asked for.

    `braid` comes with the end of a choice, where `braid.fall_back` was asked for.
    """

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None
    braid: FellBack | None = None


class OldLogprobs(BaseModel):
    """How likely the tokens were, as completions tell it."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(BaseModel):
    """How one prompt goes on; `finish_reason` is null while it does."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: OldLogprobs | None


class Completion(BaseModel):
    """How the prompts go on, whole or a piece."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None
