"""A chat request becomes streams.

    system ─┐                                 views    topology.system, Chat(history, asking), the last content ▶ user
    user    ├─▶ as the template takes them ─▶
    calls   │                                 rows     each role ▶ the input stream of its name, else ▶ user
    results ┘

What a model's template knows of (a system role, tools, calls, results) is left to it, word for word, so that the prompt
is what `apply_chat_template` makes of the messages. What it would drop or refuse is written as text instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from braid.errors import ChatTemplateError
from braid.model.chat import BLANK_LINE, Chat, fitted
from braid.model.codec import TokenizerCodec
from braid.server.openai.refusals import refusal
from braid.server.openai.shapes import ChatMessage, Tool, ToolCall
from braid.server.openai.toolprompt import spelled_call, tools_as_text
from braid.streams.topology import Topology

__all__ = ["Conversation", "TemplateTraits", "bare", "spoken", "traits_of"]

_WORD = "BraidProbe7"
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _WORD,
        "description": "",
        "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": ""}}},
    },
}
EMPTY_RESULT = '""'
"""What a tool has said that said nothing; an input must have some text."""


@dataclass(frozen=True)
class TemplateTraits:
    """What a chat template does with parts of a conversation, found by trying.

    Args:
        exists: Whether there is one.
        shows_tools: It tells the model of `tools`.
        keeps_calls: It writes the assistant's `tool_calls`.
        takes_text_arguments: Arguments may stay the text that they are.
        has_tool_role: It writes what a `tool` message says.
        trims: It strips the ends of contents.
    """

    exists: bool
    shows_tools: bool = False
    keeps_calls: bool = False
    takes_text_arguments: bool = False
    has_tool_role: bool = False
    trims: bool = False


@dataclass(frozen=True)
class Conversation:
    """What a session is opened with, and what is written to it.

    Args:
        topology: With the system prompt, where it belongs there.
        chat: In views, what the first turn goes on with.
        inputs: Text by input stream.
    """

    topology: Topology
    chat: Chat | None
    inputs: Mapping[str, str]


@lru_cache(maxsize=8)
def traits_of(codec: TokenizerCodec) -> TemplateTraits:
    """Try out a model's chat template."""
    if codec.chat_template is None:
        return TemplateTraits(exists=False)
    user = {"role": "user", "content": "Q"}
    call = {"id": "call_000000001", "type": "function", "function": {"name": _WORD, "arguments": {"a": 1}}}
    said: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    as_text = {**call, "function": {"name": _WORD, "arguments": '{"a":1}'}}
    text_call: list[dict[str, Any]] = [user, {**said, "tool_calls": [as_text]}]
    answered = {"role": "tool", "name": _WORD, "tool_call_id": "call_000000001", "content": _WORD}
    keeps_calls = _WORD in _tried(codec, [user, said])
    before: list[dict[str, Any]] = [user, said if keeps_calls else {"role": "assistant", "content": "A"}]
    shown, hidden = _tried(codec, [*before, answered]), _tried(codec, [*before, {**answered, "content": "R"}])
    return TemplateTraits(
        exists=True,
        shows_tools=_WORD in _tried(codec, [user], {"tools": [_TOOL]}),
        keeps_calls=keeps_calls,
        takes_text_arguments='{"a":1}' in _tried(codec, text_call),
        has_tool_role=shown.count(_WORD) == hidden.count(_WORD) + 1,
        trims=f"{_WORD} \n" not in _tried(codec, [{"role": "user", "content": f"{_WORD} \n"}]),
    )


def _tried(
    codec: TokenizerCodec, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None
) -> str:
    try:
        return codec.render_chat(messages, answer_next=True, options=options)
    except ChatTemplateError:
        return ""


def spoken(
    topology: Topology,
    messages: Sequence[ChatMessage],
    codec: TokenizerCodec,
    *,
    tools: Sequence[Tool] = (),
    documents: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Conversation:
    """Share a conversation out to the streams of a topology.

    Args:
        topology: The streams.
        messages: The whole conversation so far; the last one is answered.
        codec: The model's tokenizer, with its template.
        tools: What the model may call.
        documents: Texts beside the conversation.
        options: Further variables of the template, such as `enable_thinking`.

    Raises:
        InputError: A message holds what is no text, or there is nothing to answer.
    """
    traits = traits_of(codec)
    if topology.decoding != "views":  # there is no template, and results have a stream of their own
        traits = replace(traits, keeps_calls=False, has_tool_role=True, trims=False)
    written = _written(messages, traits)
    variables = dict(options or {})
    shown = [tool.model_dump(exclude_none=True) for tool in tools]
    if tools and traits.shows_tools and topology.decoding == "views":
        variables["tools"] = shown
    elif tools:
        written = _with_system(written, tools_as_text(shown))
    whole = _Whole(topology, written, messages[-1].role, list(documents), variables, traits, codec)
    return whole.as_views() if topology.decoding == "views" else whole.as_rows()


# ---- what the template takes


def _written(messages: Sequence[ChatMessage], traits: TemplateTraits) -> list[dict[str, Any]]:
    """The messages as plain data that the template can be given; results without a role of theirs are joined."""
    written: list[dict[str, Any]] = []
    was_result = False
    for number, message in enumerate(messages):
        entry = _entry(message, f"messages[{number}]", traits)
        is_result = message.role == "tool" and not traits.has_tool_role
        if written and was_result and entry["role"] == "user":
            written[-1]["content"] += "\n" + entry["content"]  # templates may want roles to alternate
        else:
            written.append(entry)
        was_result = is_result
    return written


def _entry(message: ChatMessage, where: str, traits: TemplateTraits) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    content = _text_of(message, where)
    entry: dict[str, Any] = {"role": role, "content": content}
    if message.name is not None:
        entry["name"] = message.name
    if role == "assistant":
        if message.reasoning_content:
            entry["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            if traits.keeps_calls:
                entry["tool_calls"] = [_call(call, traits) for call in message.tool_calls]
            else:
                calls = [spelled_call(call.function.name, _read(call)) for call in message.tool_calls]
                entry["content"] = "\n".join(filter(None, [content, *calls]))
    elif role == "tool":
        entry["content"] = content or EMPTY_RESULT
        if traits.has_tool_role:
            entry["tool_call_id"] = message.tool_call_id or ""
        else:
            entry["role"] = "user"
            entry["content"] = f"<tool_response>\n{entry['content']}\n</tool_response>"
    return entry


def _text_of(message: ChatMessage, where: str) -> str:
    if message.content is None:
        return message.refusal or ""
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for number, part in enumerate(message.content):
        text = part.text if part.type in ("text", "input_text", "output_text") else None
        text = part.refusal if part.type == "refusal" else text
        if text is None:
            raise refusal(
                f"{where}.content[{number}]",
                f'this model reads text alone, no {part.type!r}; send parts {{"type": "text", "text": …}}',
            )
        texts.append(text)
    return "".join(texts)


def _call(call: ToolCall, traits: TemplateTraits) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    if not traits.takes_text_arguments:
        arguments = _read(call)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _read(call: ToolCall) -> Any:
    """The arguments as data; text that is no JSON stays as the model wrote it."""
    try:
        return json.loads(call.function.arguments or "{}")
    except ValueError:
        return call.function.arguments


def _with_system(written: Sequence[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """The messages with a text at the end of the system prompt."""
    first = written[0]
    if first["role"] == "system" and len(written) > 1:
        joined = BLANK_LINE.join(filter(None, [first["content"], text]))
        return [{**first, "content": joined}, *written[1:]]
    return [{"role": "system", "content": text}, *written]


# ---- what the streams take


@dataclass(frozen=True)
class _Whole:
    """All that is to be shared out."""

    topology: Topology
    written: list[dict[str, Any]]
    last_role: str
    documents: list[str]
    options: dict[str, Any]
    traits: TemplateTraits
    codec: TokenizerCodec
    inputs: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def as_views(self) -> Conversation:
        """The template keeps the conversation; the last message is written."""
        system, rest = self._split_system()
        topology = self.topology
        if system is not None and "system" in topology.input_names:
            self._put("system", system)
        elif system is not None and self.traits.exists:
            topology = topology.model_copy(
                update={"system": BLANK_LINE.join(filter(None, [topology.system, system]))}
            )
        elif system is not None:
            rest.insert(0, {"role": "system", "content": system})
        last = rest[-1]
        for text in self.documents:
            self._put("document", text)
        content = last["content"].strip() if self.traits.trims else last["content"]
        self._put("tool_result" if self.last_role == "tool" else "user", content)
        self._require_text(content)
        chat = Chat.of([*rest[:-1], {**last, "content": ""}], self.options)
        inputs = self._texts()
        if len(inputs) == 1 and self.traits.exists:
            ((stream, text),) = inputs.items()
            chat, text = fitted(self.codec, topology.system, chat, text)
            inputs = {stream: text}
        return Conversation(topology, chat, inputs)

    def as_rows(self) -> Conversation:
        """Each role goes to the stream of its name; there is no template, so what lacks one goes to the user's."""
        speaks_for_itself = any(message["role"] == "assistant" for message in self.written)
        for text in self.documents:
            self._put("document", text)
        for message in self.written:
            role, content = message["role"], message["content"]
            stream = {"tool": "tool_result"}.get(role, role)
            if role != "assistant" and stream in self.topology.input_names and stream != "user":
                self._put(stream, content)
            elif speaks_for_itself and role != "system" and content:
                self._put("user", f"{role.capitalize()}: {content}")
            else:
                self._put("user", content)
        self._require_text(self.written[-1]["content"])
        return Conversation(self.topology, None, self._texts())

    def _split_system(self) -> tuple[str | None, list[dict[str, Any]]]:
        """The leading system messages, unless there is nothing else, and the rest."""
        number = 0
        while number + 1 < len(self.written) and self.written[number]["role"] == "system":
            number += 1
        texts = [message["content"] for message in self.written[:number]]
        return (BLANK_LINE.join(texts) if texts else None), list(self.written[number:])

    def _put(self, stream: str, text: str) -> None:
        names = self.topology.input_names
        if stream not in names:
            stream = "user" if "user" in names else names[0]
        if text:
            self.inputs.setdefault(stream, []).append(text)

    def _texts(self) -> dict[str, str]:
        """By stream, in the order of rows."""
        return {
            name: BLANK_LINE.join(self.inputs[name])
            for name in self.topology.input_names
            if name in self.inputs
        }

    def _require_text(self, content: str) -> None:
        if not content:
            raise refusal(
                "messages", "the last message has no text, so there is nothing to answer; give it some"
            )


def bare(topology: Topology, text: str) -> Conversation:
    """A text that is continued as it is."""
    stream = topology.input_names[0]
    return Conversation(topology, replace(Chat(), is_bare=True), {stream: text})
