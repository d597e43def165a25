"""Requests and answers of `/v1/responses`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from braid.server.openai.shapes import (
    BraidOptions,
    ContentPart,
    IgnoredFields,
    JsonObjectFormat,
    NamedTool,
    SamplingFields,
    StreamOptions,
    TextFormat,
    TokenCount,
    Tool,
)

__all__ = [
    "FunctionTool",
    "InputItem",
    "NamedFunction",
    "ResponseBody",
    "ResponseDeleted",
    "ResponseEvent",
    "ResponseRequest",
    "SchemaFormat",
]


class InputItem(BaseModel):
    """A message, a call, what came of it, or a thought; output items of an earlier response can be sent back."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None


class FunctionTool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def as_tool(self) -> Tool:
        """The same as chat requests spell it."""
        return Tool.model_validate({"type": "function", "function": self.model_dump(exclude={"type"})})


class NamedFunction(BaseModel):
    """The one function that has to be called."""

    type: Literal["function"]
    name: str

    def as_choice(self) -> NamedTool:
        """The same as chat requests spell it."""
        return NamedTool.model_validate({"type": "function", "function": {"name": self.name}})


class SchemaFormat(BaseModel):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """What answers look like."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: str | None = None


class ReasoningOptions(BaseModel):
    """Accepted; how much is thought is up to the topology."""

    model_config = ConfigDict(extra="allow")

    effort: str | None = None
    summary: str | None = None


class ResponseRequest(SamplingFields, IgnoredFields):
    """`POST /v1/responses`."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: TokenCount | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    braid: BraidOptions | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: dict[str, Any] | None = None
    max_tool_calls: int | None = None


# ---- answers


class OutputPart(BaseModel):
    """A part of a message, or of a thought."""

    model_config = ConfigDict(extra="allow")

    type: Literal["output_text", "reasoning_text"]
    text: str


class OutputItem(BaseModel):
    """A message, a call or a thought."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputPart] | None = None


class InputDetails(BaseModel):
    """Tokens of the prompt that were taken from the cache."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Tokens of inner streams."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens, template and end tokens included."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseBody(BaseModel):
    """A response, in whatever state."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None


class ResponseEvent(BaseModel):
    """One server-sent event; what else it holds depends on its type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


class ResponseDeleted(BaseModel):
    """A stored response is gone."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]
