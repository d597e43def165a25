"""Requests as OpenAI's clients send them: what is understood, what is ignored because it changes no answer.

A field that is not here is refused by name, since nobody can tell what leaving it out would change. Fields that are
known and not served (`frequency_penalty`, `audio`, …) are here so that they can be refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from braid.engine.core import GuessesOf
from braid.server.openai.refusals import naming
from braid.streams.text import require_whole

__all__ = [
    "BraidOptions",
    "ChatMessage",
    "ChatRequest",
    "CompletionRequest",
    "ContentPart",
    "FunctionSpec",
    "IgnoredFields",
    "JsonObjectFormat",
    "JsonSchemaFormat",
    "NamedTool",
    "Prediction",
    "RequestShape",
    "SamplingFields",
    "StreamOptions",
    "TextFormat",
    "Tool",
    "ToolCall",
]

MAX_CHOICES = 128
MAX_TOKENS = 1 << 31

TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
_Bias = Annotated[float, Field(ge=-100, le=100)]
_Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
_Stop = Annotated[str, Field(min_length=1)]
_Stops = Annotated[list[_Stop], Field(max_length=16)]


class RequestShape(BaseModel):
    """What all requests have in common: no unknown fields, no text that no tokenizer could read."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _is_whole(cls, data: Any) -> Any:
        waiting: list[tuple[str, Any]] = [("", data)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, str):
                _require_whole(path, value)
            elif isinstance(value, Mapping):
                for key, inner in cast("Mapping[str, Any]", value).items():
                    _require_whole(path, key)
                    waiting.append((f"{path}.{key}", inner))
            elif isinstance(value, list):
                items = cast("list[Any]", value)
                waiting += [(f"{path}[{number}]", item) for number, item in enumerate(items)]
        return data


def _require_whole(path: str, text: str) -> None:
    if not text.isascii():
        with naming(path.removeprefix(".") or "body"):
            require_whole(text)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


# ---- messages


class ContentPart(BaseModel):
    """A part of a message; only text is read."""

    model_config = ConfigDict(extra="allow")

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(BaseModel):
    """A call that the assistant made.

    Args:
        arguments: A JSON object, as text.
    """

    name: str
    arguments: str


class ToolCall(BaseModel):
    """A call with its id, by which a `tool` message answers it."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(BaseModel):
    """One message. Fields that other servers put into their answers are ignored, so that those can be sent back."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


# ---- tools and formats


class FunctionSpec(BaseModel):
    """A function that the model may call.

    Args:
        parameters: JSON schema of its arguments, an object.
    """

    name: _Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool; all tools are functions."""

    type: Literal["function"]
    function: FunctionSpec


class FunctionName(_Part):
    """Which function is meant."""

    name: str


class NamedTool(_Part):
    """The one tool that has to be called."""

    type: Literal["function"]
    function: FunctionName


class TextFormat(_Part):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(_Part):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(BaseModel):
    """A JSON schema with a name; every answer fits it, `strict` or not."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(_Part):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class Prediction(_Part):
    """What the answer is likely to say, such as a file that is to be changed; it is verified, and changes nothing."""

    type: Literal["content"]
    content: str | list[ContentPart]


class StreamOptions(BaseModel):
    """How a stream is told."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class BraidOptions(_Part):
    """Streams, for callers who want more than one; `openai` clients send it as `extra_body={"braid": {…}}`.

    Args:
        topology: The name of a topology of this server, or one spelled out.
        documents: Texts for the `document` stream, or before the user's where there is none.
        show_internal: Whether inner streams come as `reasoning_content`.
        copies: How many copies of a stream there are.
        seed: Of all noise, where the request itself has none.
        guesses: `tenant`: answers of other requests of the same key that ask for it are guesses for this one. `none`:
            only a `prediction` is guessed.
        fall_back: Answer with one stream where inner streams would only cost time; the reply says whether, and why.
    """

    topology: str | dict[str, Any] | None = None
    documents: list[str] = Field(default_factory=list[str])
    show_internal: bool = False
    copies: dict[str, Annotated[int, Field(ge=1, le=64)]] = Field(default_factory=dict[str, int])
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    guesses: GuessesOf = "session"
    fall_back: bool = False


# ---- requests


class SamplingFields(RequestShape):
    """How tokens are chosen, as all requests say it."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[Annotated[int, Field(ge=0)], _Bias] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: _Stop | _Stops | None = None


class IgnoredFields(RequestShape):
    """Fields that change nothing that this server does."""

    user: str | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None


class ChatRequest(SamplingFields, IgnoredFields):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    braid: BraidOptions | None = None
    store: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: Prediction | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    web_search_options: dict[str, Any] | None = None


class CompletionRequest(SamplingFields, IgnoredFields):
    """`POST /v1/completions`: text that is continued as it is, without a chat template."""

    prompt: str | list[str] | list[int] | list[list[int]]
    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
