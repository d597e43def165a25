"""What a request asks of the engine: the topology with its sampling, stops, limits and grammar, and what is written.

OpenAI's defaults count where nobody says otherwise: temperature 1, whereas a topology that sets the sampling of a
stream is left alone but for what the request itself gives.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from braid.engine.core import GuessesOf
from braid.engine.fallback import Decision, fall_back
from braid.errors import ForbiddenError
from braid.server.access import Caller
from braid.server.openai.messages import Conversation, spoken
from braid.server.openai.refusals import naming, refusal
from braid.server.openai.shapes import (
    BraidOptions,
    ChatMessage,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    SamplingFields,
    TextFormat,
    Tool,
)
from braid.server.openai.toolprompt import answer_grammar, call_grammar
from braid.server.service import Service
from braid.streams.grammar import Grammar
from braid.streams.sampling import SamplingSpec
from braid.streams.stream_spec import StreamSpec
from braid.streams.strict import hint
from braid.streams.topology import Topology

__all__ = ["Plan", "Wanted", "chat_plan", "refuse_unserved", "seed_of", "with_settings"]

MAX_SEED = 2**63


@dataclass(frozen=True)
class Wanted:
    """What the answers are to be like.

    Args:
        sampling: What the request says of sampling, by the names of `SamplingSpec`.
        max_tokens: Of each answer; None for the topology's, or the server's.
        stop: Texts that end an answer.
        grammar: What answers are held to.
        logprobs: How many of the likeliest tokens are told with each; None tells nothing.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: Grammar | None = None
    logprobs: int | None = None

    @classmethod
    def of(cls, request: SamplingFields, **others: Any) -> Wanted:
        """What a request says of sampling and stops, and `others`."""
        names = ("temperature", "top_p", "min_p", "repetition_penalty")
        given = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
        if request.top_k:
            given["top_k"] = request.top_k
        if request.logit_bias:
            given["logit_bias"] = request.logit_bias
        stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
        return cls(given, stop=stop, **others)


@dataclass(frozen=True)
class Plan:
    """One session to be run.

    Args:
        conversation: The streams and what is written to them.
        seed: Of all noise; the second answer takes the next one.
        copies: Copies of streams.
        tools: What may be called; without any, answers are not searched for calls.
        is_single: Whether an answer ends with its first call.
        shows_internal: Whether inner streams are told.
        logprobs: Whether the odds of tokens are told.
        salt: Whose cache it is.
        max_rows: After which it is cut short.
        guesses: Whose answers are guesses.
    """

    conversation: Conversation
    seed: int
    copies: Mapping[str, int]
    tools: frozenset[str]
    is_single: bool
    shows_internal: bool
    logprobs: bool
    salt: str
    max_rows: int
    grammar_param: str = "response_format"
    """What is at fault where the grammar cannot be compiled."""
    decision: Decision | None = None
    """Where falling back to one stream was allowed: whether that was done, and why."""
    prediction: str = ""
    """What the answer is likely to say."""
    guesses: GuessesOf = "session"

    @property
    def told(self) -> dict[str, Any]:
        """What a reply tells of the decision, in a field of its own; nothing where there was none."""
        if self.decision is None:
            return {}
        return {"braid": {"fell_back": self.decision.fell_back, "reason": self.decision.reason}}


def refuse_unserved(request: SamplingFields, *fields: str) -> None:
    """Refuse what is known and not served.

    Args:
        request: The request.
        fields: Names of fields that must not be given.

    Raises:
        InputError: One was.
    """
    for name in ("frequency_penalty", "presence_penalty"):
        if getattr(request, name):
            raise refusal(
                name,
                "is not served; leave it out, or use repetition_penalty, which makes repeated tokens less likely",
            )
    for name in fields:
        if getattr(request, name) not in (None, "", [], {}):
            raise refusal(name, "is not served; leave it out")


def seed_of(*seeds: int | None) -> int:
    """The first seed that is given, else a random one."""
    given = next((seed for seed in seeds if seed is not None), None)
    return secrets.randbits(62) if given is None else given % MAX_SEED


def with_settings(topology: Topology, wanted: Wanted, service: Service) -> Topology:
    """The topology with the request's settings on its outputs; grammar, stops and odds on those that clients see."""
    for token in wanted.sampling.get("logit_bias", ()):
        if token >= service.model.codec.vocab_size:
            raise refusal(
                "logit_bias", f"there is no token {token}; ids go to {service.model.codec.vocab_size - 1}"
            )
    if not any(topology.streams[name].visibility == "external" for name in topology.output_names):
        raise refusal("braid.topology", "has no output that may be shown; make one external")
    most = service.settings.max_tokens
    return topology.with_specs(
        {name: _with_output(topology.streams[name], wanted, most) for name in topology.output_names}
    )


def _with_output(spec: StreamSpec, wanted: Wanted, max_tokens: int) -> StreamSpec:
    changes: dict[str, Any] = {"sampling": _sampling(spec.sampling, wanted.sampling)}
    if spec.max_tokens is None:
        changes["max_tokens"] = max_tokens
    if spec.visibility == "external":
        if wanted.max_tokens is not None:
            changes["max_tokens"] = wanted.max_tokens
        if wanted.stop:
            changes["stop"] = (*spec.stop, *wanted.stop)
        if wanted.grammar is not None:
            changes["grammar"] = wanted.grammar
        changes["logprobs"] = wanted.logprobs
    else:
        changes["logprobs"] = None
    return spec.model_copy(update=changes)


def _sampling(stated: SamplingSpec, given: Mapping[str, Any]) -> SamplingSpec:
    unstated = SamplingSpec()
    fields = {name: getattr(stated, name) for name in SamplingSpec.model_fields}
    if stated == unstated:
        fields["temperature"] = 1.0
    fields |= given
    fields["temperature"] = float(fields["temperature"])
    if fields["temperature"] == 0:  # the likeliest token is among those that any of these leaves
        fields |= {"top_k": None, "top_p": None, "min_p": None}
    return SamplingSpec(**fields)


# ---- chats


def chat_plan(
    service: Service,
    caller: Caller,
    *,
    messages: Sequence[ChatMessage],
    wanted: Wanted,
    options: BraidOptions,
    seed: int | None,
    tools: Sequence[Tool] = (),
    choice: str | NamedTool | None = None,
    is_parallel: bool = True,
    answer_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None,
    template_options: Mapping[str, Any] | None = None,
    prediction: str = "",
) -> Plan:
    """Plan the answer to a conversation.

    Args:
        service, caller: Where, and for whom.
        messages: The conversation.
        wanted: Sampling and limits; the grammar follows from tools and format.
        options: The streams that are asked for.
        seed: Of the noise; None for any.
        tools: What may be called.
        choice: `none`, `auto`, `required` or one tool.
        is_parallel: Whether several calls may be made at once.
        answer_format: What an answer that is no call looks like.
        template_options: Further variables of the chat template.
        prediction: What the answer is likely to say.

    Raises:
        InputError: The request contradicts itself; `param` says where.
        ForbiddenError: Inner streams were asked for, and may not be shown to this caller.
    """
    if options.show_internal and not caller.sees_internal:
        error = ForbiddenError(
            "inner streams may not be shown to you; leave show_internal out, or use a key with `internal: true`"
        )
        error.param = "braid.show_internal"
        raise error
    with naming("braid.topology"):
        topology = (
            service.default_topology if options.topology is None else service.topology(options.topology)
        )
    try:
        guesses = service.guesses(options.guesses)
    except ForbiddenError as error:
        error.param = "braid.guesses"
        raise
    offered = _offered(tools, choice)
    grammar = _grammar(offered, choice, answer_format, is_single=not is_parallel)
    conversation = spoken(
        topology,
        messages,
        service.model.codec,
        tools=offered,
        documents=options.documents,
        options=template_options,
    )
    asked = Wanted(wanted.sampling, wanted.max_tokens, wanted.stop, grammar, wanted.logprobs)
    settled = with_settings(conversation.topology, asked, service)
    copies, decision = options.copies, None
    if options.fall_back:
        decision = _decided(service, settled, conversation, options, has_tools=bool(offered))
        left_out = settled.streams.keys() - decision.topology.streams.keys()
        copies = {name: count for name, count in copies.items() if name not in left_out}
        settled = decision.topology
    return Plan(
        Conversation(settled, conversation.chat, conversation.inputs),
        seed_of(seed, options.seed),
        copies,
        frozenset(tool.function.name for tool in offered),
        not is_parallel,
        options.show_internal,
        wanted.logprobs is not None,
        caller.salt,
        service.settings.max_rows,
        "tools" if offered else "response_format",
        decision,
        prediction,
        guesses,
    )


def _decided(
    service: Service,
    topology: Topology,
    conversation: Conversation,
    options: BraidOptions,
    *,
    has_tools: bool,
) -> Decision:
    """Whether a request is better served by one stream; its whole input is there."""
    why = None
    if options.show_internal:
        why = "inner streams are to be shown"
    elif service.model.silence_token_id is not None:
        why = "the model was trained on streams"
    elif service.costs is None:
        why = "this server has not measured what rows cost; with the setting fall_back it does when it starts"
    if why is not None or service.costs is None:
        return Decision(topology, False, f"streams as asked for: {why}")
    return fall_back(
        topology,
        input_tokens=sum(len(service.model.codec.encode(text)[0]) for text in conversation.inputs.values()),
        is_complete=True,
        costs=service.costs,
        copies=options.copies,
        has_history=conversation.chat is not None and bool(conversation.chat.history),
        has_tools=has_tools,
    )


def _offered(tools: Sequence[Tool], choice: str | NamedTool | None) -> Sequence[Tool]:
    """The tools that the model is told of."""
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise refusal("tools", "two tools have the same name; give each its own")
    if choice == "none":
        return ()
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise refusal(
            "tool_choice", f"there is no tool {choice.function.name!r}; {hint(choice.function.name, names)}"
        )
    if choice == "required" and not tools:
        raise refusal("tool_choice", "is required, and there is no tool; give `tools`, or leave it out")
    return tools


def _grammar(
    tools: Sequence[Tool],
    choice: str | NamedTool | None,
    answer_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None,
    *,
    is_single: bool,
) -> Grammar | None:
    """What answers are held to: calls where they must call, else the format; with tools to choose, one of the two."""
    functions = {tool.function.name: tool.function.parameters for tool in tools}
    if isinstance(choice, NamedTool):
        return call_grammar({choice.function.name: functions[choice.function.name]}, is_single=True)
    if choice == "required":
        return call_grammar(functions, is_single=is_single)
    if answer_format is None or isinstance(answer_format, TextFormat):
        return None
    schema = answer_format.json_schema.schema_ if isinstance(answer_format, JsonSchemaFormat) else None
    if functions:
        return call_grammar(
            functions, is_single=is_single, answer={"type": "object"} if schema is None else schema
        )
    return answer_grammar(schema, "response_format")
