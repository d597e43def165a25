"""One stream of a topology: who feeds it, when it speaks, how it samples, who sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from braid.streams.grammar import Grammar
from braid.streams.sampling import SamplingSpec
from braid.streams.strict import StrictModel, problem, shown

__all__ = [
    "AdaptiveWait",
    "Direction",
    "Feed",
    "Priority",
    "StreamSpec",
    "Trigger",
    "TriggerField",
    "Visibility",
    "WaitK",
]

Direction = Literal["input", "output"]
Priority = Literal["high", "medium", "low"]
Visibility = Literal["external", "internal"]
Feed = Literal["paced", "burst"]

_Text = Annotated[str, Field(min_length=1)]
_Count = Annotated[int, Field(ge=1, strict=True)]


class Trigger(StrictModel):
    """What wakes a stream: new tokens in another one.

    Args:
        on: the stream that is watched.
        pattern: a regular expression that its new text must contain; None takes any token.
        predicate: name of a function that is given its text and must return True; the function itself is passed when
            the session opens (`predicates={name: function}`).
    """

    on: str
    pattern: _Text | None = None
    predicate: _Text | None = None

    @model_validator(mode="after")
    def _pattern_compiles(self) -> Self:
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                what = f"{shown(self.pattern)} is no regular expression ({error})"
                raise problem(f"{what}; escape what is meant literally", key="pattern") from None
        return self


class AdaptiveWait(StrictModel):
    """Start as soon as the input so far has become predictable enough, or when enough has been read.

    Args:
        measure: what has to be predictable: the first token of the `answer`, or how the `input` goes on, over the last
            four tokens on average. The second costs nothing beside the input's own forward.
        threshold: probability of the likeliest token that counts as sure, above 0 and up to 1.
        max: tokens of input after which the stream starts in any case.
    """

    measure: Literal["answer", "input"] = "answer"
    threshold: float = Field(default=0.5, gt=0, le=1, strict=True)
    max: int = Field(default=32, ge=1, strict=True)


class _AdaptiveForm(StrictModel):
    """How an adaptive wait is spelled outside Python."""

    adaptive: AdaptiveWait


def _read_trigger(value: Any) -> Any:
    if isinstance(value, Trigger) or value == "always":
        return value
    if isinstance(value, Mapping):
        return Trigger.model_validate(cast("Mapping[str, Any]", value))
    raise problem(f"{shown(value)} is no trigger: say 'always' or {{on: stream, pattern: regex}}")


def _read_wait_k(value: Any) -> Any:
    if value == "adaptive":
        return AdaptiveWait()
    if isinstance(value, Mapping):
        return _AdaptiveForm.model_validate(cast("Mapping[str, Any]", value)).adaptive
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is None or value == "end" or is_count or isinstance(value, AdaptiveWait):
        return value
    raise problem(
        f"{shown(value)} is no wait: say how many input tokens (1 or more), 'end', 'adaptive' or "
        "{adaptive: {threshold: 0.5, max: 32}}"
    )


def _spell_wait_k(value: object) -> object:
    if not isinstance(value, AdaptiveWait):
        return value
    changed = value.model_dump(exclude_defaults=True)
    return {"adaptive": changed} if changed else "adaptive"


_ADAPTIVE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"adaptive": AdaptiveWait.model_json_schema()},
    "required": ["adaptive"],
    "additionalProperties": False,
}

TriggerField = Annotated[Literal["always"] | Trigger, BeforeValidator(_read_trigger)]
"""`always`, or the condition that wakes the stream."""

WaitK = Annotated[
    int | Literal["end"] | AdaptiveWait | None,
    BeforeValidator(_read_wait_k),
    PlainSerializer(_spell_wait_k),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"enum": ["end", "adaptive"]},
                _ADAPTIVE_SCHEMA,
                {"type": "null"},
            ],
            "default": None,
        }
    ),
]
"""How long a stream waits for its input: so many tokens, to the `end`, adaptively, or (None) not at all."""


class StreamSpec(StrictModel):
    """One stream of a topology.

    Args:
        direction: who supplies the next token when none is forced: outside (`input`) or the model (`output`).
        priority: which streams are served first when a step cannot serve all.
        visibility: whether clients see its text; internal streams are for the model and the operator.
        max_latency_ms: inputs: milliseconds from a token's arrival until the model has read it.
        feed: inputs: `paced` is one token a row, `burst` all that is queued; None is the decoding's default.
        chunk_size: outputs: tokens in one emitted delta event.
        streaming: outputs: emit while the stream speaks, or all at its end.
        max_streams: outputs: how many parallel copies may exist.
        trigger: outputs: `always`, or what wakes it.
        wait_k: outputs: what it waits for in each turn: so many tokens of its input, its `end`, adaptively, or
            None for no wait.
        sampling: outputs: how tokens are chosen.
        grammar: outputs: the only texts that it may say, as a JSON schema, a regular expression or a Lark grammar.
        stop: outputs: texts that end the turn of this stream.
        max_tokens: outputs: tokens that it may say in one turn.
        logprobs: outputs: tell how likely each token was, and so many of the likeliest others; None tells nothing.
        instructions: outputs of `views`: what this stream is told to do.
        prefix: outputs: text forced at the start of each of its turns.
        held_by: outputs: streams whose verdict may hold it.

    Raises:
        TopologyError: a value lies out of range or belongs to the other direction.
        UnknownKeyError: there is no such setting.
    """

    direction: Direction
    priority: Priority = "medium"
    visibility: Visibility = "external"
    max_latency_ms: float | None = Field(default=None, gt=0, strict=True)
    feed: Feed | None = None
    chunk_size: _Count = 1
    streaming: bool = Field(default=True, strict=True)
    max_streams: _Count = 1
    trigger: TriggerField = "always"
    wait_k: WaitK = None
    sampling: SamplingSpec = SamplingSpec()
    grammar: Grammar | None = None
    stop: tuple[_Text, ...] = ()
    max_tokens: _Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=20, strict=True)] | None = None
    instructions: _Text | None = None
    prefix: _Text | None = None
    held_by: tuple[str, ...] = ()

    @property
    def is_input(self) -> bool:
        """Whether tokens come from outside."""
        return self.direction == "input"

    @property
    def is_output(self) -> bool:
        """Whether the model supplies the tokens."""
        return self.direction == "output"

    @model_validator(mode="after")
    def _fits_its_direction(self) -> Self:
        theirs = _OUTPUT_ONLY if self.is_input else _INPUT_ONLY
        for name in theirs:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "output" if self.is_input else "input"
                what = f"is for {other} streams, and this is an {self.direction}"
                raise problem(f"{what}: leave it out, or make the direction {other}", key=name)
        if not self.streaming and self.chunk_size != 1:
            raise problem("has no meaning while streaming is false: leave one of them out", key="chunk_size")
        return self


_SHARED = {"direction", "priority", "visibility"}
_INPUT_ONLY = ("max_latency_ms", "feed")
_OUTPUT_ONLY = tuple(name for name in StreamSpec.model_fields if name not in _SHARED.union(_INPUT_ONLY))
