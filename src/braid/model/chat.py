"""A model's own chat template, taken apart around the text that is still to come.

    <|im_start|>system … <|im_end|> <|im_start|>user ⏎  How many …  <|im_end|> <|im_start|>assistant ⏎  Two. <|im_end|>
    └────────────────── preamble ─────────────────────┘ └ content ┘ └────────── closer ──────────────┘ └ … ┘└ answer_end

Nothing is known of any one template: each part is found by rendering a conversation whose contents are sentinels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

from braid.errors import ChatTemplateError, InputError
from braid.model.codec import TokenizerCodec
from braid.streams.text import IncrementalTokenizer

__all__ = ["USER", "Chat", "ChatFormat", "Message", "fitted"]

BLANK_LINE = "\n\n"
MERGE_REACH = 16
"""A token of the template takes at most so many characters of a content with it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        role: `system`, `user` or `assistant`, or what else the template knows.
        content: its text.
        extra: what else the template may ask of a message, such as `tool_calls` or `tool_call_id`; plain data.
    """

    role: str
    content: str
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])


USER = Message("user", "")


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that a session goes on with.

    Args:
        history: the messages before the input.
        asking: whose message the input is, with an empty content: most often the user's, after a call a tool's.
        options: variables of the template, such as `tools`.
        is_bare: use no template: the input is continued as it is.
        before, after: text of the input's message that stands around what is written. Where a whole message is known
            beforehand, its ends may merge with the template in one token; `fitted` cuts where nothing merges.
    """

    history: tuple[Message, ...] = ()
    asking: Message = USER
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_bare: bool = False
    before: str = ""
    after: str = ""

    @classmethod
    def of(cls, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any] | None = None) -> Chat:
        """Return a conversation of plain messages, whose last one is the input; its content is left to be written.

        Args:
            messages: `{"role": …, "content": …}` each, and what else the template may ask of one.
            options: variables of the template.

        Raises:
            InputError: there is no message, or one has no role, or a content that is not text.
        """
        read = [_message(message, number) for number, message in enumerate(messages)]
        if not read:
            raise InputError("a conversation needs at least one message")
        asking = read[-1]
        return cls(tuple(read[:-1]), Message(asking.role, "", asking.extra), dict(options or {}))

    def to_data(self) -> dict[str, Any]:
        """Return plain data, which `from_data` takes."""
        messages = [_plain(message) for message in (*self.history, self.asking)]
        around = {"before": self.before, "after": self.after}
        return {"messages": messages, "options": dict(self.options), "bare": self.is_bare, **around}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Chat:
        """Return the conversation that plain data spells; raises as `of` does."""
        chat = cls.of(data["messages"], data.get("options"))
        before, after = data.get("before", ""), data.get("after", "")
        return replace(chat, is_bare=bool(data.get("bare")), before=before, after=after)

    def is_asked_as(self, other: Chat) -> bool:
        """Return whether the input's message is the same as another conversation's, but for what is written."""
        return (self.asking, self.before, self.after) == (other.asking, other.before, other.after)

    def message(self, content: str) -> Message:
        """Return the input's message, with what was written."""
        return Message(self.asking.role, f"{self.before}{content}{self.after}", self.asking.extra)


def _message(message: Mapping[str, Any], number: int) -> Message:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InputError(f"message {number} has no role; give it one, such as user")
    if not isinstance(content, str | None):
        raise InputError(f"message {number}: the content is text, not {type(content).__name__}")
    extra = {key: value for key, value in message.items() if key not in ("role", "content")}
    return Message(role, content or "", extra)


def _plain(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.extra}


class ChatFormat:
    """The parts of a model's chat template.

    `preamble(history) + content + closer(history)` is what `apply_chat_template` makes of the history and one more
    user message, with the assistant's header at the end; only a template that trims its contents needs them trimmed.

    Args:
        codec: the model's tokenizer.
        system: the system prompt. Where the template knows no such role, it opens the first user message.
        options: further variables of the template, such as `enable_thinking`.
        chat: whose message comes next, and what is known of it.
        is_bare: use no template (see `bare`).

    Raises:
        ChatTemplateError: if there is no template, or it does not leave contents as they are.
    """

    def __init__(
        self,
        codec: TokenizerCodec,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        chat: Chat | None = None,
        is_bare: bool = False,
    ) -> None:
        self._codec = codec
        self.chat = Chat() if chat is None else chat
        """Whose message comes next, and what is known of it."""
        self._system = system
        self._options = dict(options or {})
        self._is_bare = is_bare
        self._has_system_role = not is_bare and self._takes_system()
        if self.chat.asking == USER:
            self.preamble()  # so that a template that cannot be taken apart is refused at once

    @classmethod
    def bare(cls, codec: TokenizerCodec, system: str | None = None) -> ChatFormat:
        """Return a format for plain text: nothing around it, and blank lines between contents."""
        return cls(codec, system, is_bare=True)

    def after_first_turn(self) -> ChatFormat:
        """Return the format of a conversation that goes on: from now on it is the user who asks."""
        if self.chat == Chat():
            return self
        twin = copy(self)
        twin.chat = Chat()
        return twin

    def asking(self, message: Message) -> ChatFormat:
        """Return the same format where another message comes next; its content is left to be written."""
        twin = copy(self)
        twin.chat = Chat() if self._is_bare else Chat(asking=message)
        return twin

    def preamble(self, history: Sequence[Message] = ()) -> str:
        """Return everything before the content of the next user message.

        Args:
            history: the messages before it.
        """
        return self._preamble(history, self._system)

    def closer(self, history: Sequence[Message] = (), instructions: str | None = None) -> str:
        """Return everything after the content of the next user message, the assistant's header included.

        Args:
            history: the messages before it.
            instructions: what one stream is told to do: a system message after the user's where the template allows
                that, else the end of the user's message, after a blank line.
        """
        return self._closer(history, self._system, instructions)

    def answer_end(self, history: Sequence[Message] = ()) -> str:
        """Return what the template puts after the content of the assistant's message.

        Args:
            history: the messages before the next user message.
        """
        if self._is_bare:
            return ""
        answer = _sentinel("Answer", _texts(history, self._system))
        messages = [*history, Message("user", "Q"), Message("assistant", answer)]
        return _split(self._render(messages, self._system, answer_next=False), answer)[1]

    def encode_preamble(self, history: Sequence[Message] = ()) -> list[int]:
        """Return the tokens of the preamble; control tokens that contents spell are not parsed."""
        mask = self._mask(history)
        twin = self._hidden(mask)
        hidden = mask.hide_all(history), mask.hide(self._system)
        return mask.encode(twin._preamble(*hidden))  # noqa: SLF001 (of its own class)

    def encode_whole(self, history: Sequence[Message], content: str) -> list[int]:
        """Return the tokens of everything: preamble, a content that is known beforehand, and closer."""
        mask = self._mask(history, content)
        message = self._hidden(mask).chat.message(mask.hide(content) or "")
        return mask.encode(self._render([*mask.hide_all(history), message], mask.hide(self._system)))

    def _mask(self, history: Sequence[Message], *others: str | None) -> _Mask:
        """Return what hides markers in all that is not the template's."""
        around = (self.chat.before, self.chat.after)
        return _Mask(self._codec, _texts(history, self._system, *around, *others))

    def _hidden(self, mask: _Mask) -> ChatFormat:
        """Return this format with the markers hidden in what is known of the next message."""
        if not (self.chat.before or self.chat.after):
            return self
        twin = copy(self)
        before, after = mask.hide(self.chat.before) or "", mask.hide(self.chat.after) or ""
        twin.chat = replace(self.chat, before=before, after=after)
        return twin

    def encode_closer(self, history: Sequence[Message] = (), instructions: str | None = None) -> list[int]:
        """Return the tokens of the closer; control tokens that contents spell are not parsed."""
        mask = self._mask(history, instructions)
        twin = self._hidden(mask)
        hidden = mask.hide_all(history), mask.hide(self._system), mask.hide(instructions)
        return mask.encode(twin._closer(*hidden))  # noqa: SLF001 (of its own class)

    def _preamble(self, history: Sequence[Message], system: str | None) -> str:
        if self._is_bare:
            return "".join(content + BLANK_LINE for content in _contents(history, system) if content)
        return self._around_content(history, system)[0]

    def _closer(self, history: Sequence[Message], system: str | None, instructions: str | None) -> str:
        if self._is_bare:
            return f"{BLANK_LINE}{instructions}{BLANK_LINE}" if instructions else ""
        before, after = self._around_content(history, system)
        if instructions is None:
            return after
        if not self._has_system_role:
            return f"{BLANK_LINE}{instructions}{after}"
        contents = [*_texts(history, system), self.chat.before, self.chat.after]
        content, order = _sentinel("User", contents), _sentinel("System", contents)
        messages = [*history, self.chat.message(content), Message("system", order)]
        try:
            found = _split(self._render(messages, system), content)
        except ChatTemplateError:
            found = None  # no system message may follow, then
        if found and found[0] == before and found[1].count(order) == 1:
            return found[1].replace(order, instructions)
        return f"{BLANK_LINE}{instructions}{after}"

    def _around_content(self, history: Sequence[Message], system: str | None) -> tuple[str, str]:
        """Return what the template puts before and after the content of the next user message."""
        content = _sentinel("User", [*_texts(history, system), self.chat.before, self.chat.after])
        return _split(self._render([*history, self.chat.message(content)], system), content)

    def _takes_system(self) -> bool:
        """Whether the template has a place for a system prompt."""
        order, content = _sentinel("System", ()), _sentinel("User", ())
        messages = [{"role": "system", "content": order}, {"role": "user", "content": content}]
        try:
            text = self._codec.render_chat(messages, answer_next=True, options=self._options)
        except ChatTemplateError:
            return False
        return text.count(order) == 1 and text.index(order) < text.find(content)

    def _render(self, messages: Sequence[Message], system: str | None, *, answer_next: bool = True) -> str:
        """Render a conversation under a system prompt."""
        rendered = [_plain(message) for message in messages]
        if system is not None and self._has_system_role:
            rendered.insert(0, {"role": "system", "content": system})
        elif system is not None:
            first = next((message for message in rendered if message["role"] == "user"), rendered[0])
            first["content"] = system + BLANK_LINE + first["content"]
        return self._codec.render_chat(rendered, answer_next=answer_next, options=self._options)


def fitted(codec: TokenizerCodec, system: str | None, chat: Chat, content: str) -> tuple[Chat, str]:
    """Cut a whole message so that its pieces are tokenised as the whole, also where its ends merge with the template.

    Args:
        codec: the model's tokenizer.
        system: the system prompt.
        chat: the conversation; nothing is known of its input yet.
        content: of the input's message, at least one character.

    Returns:
        The conversation with the ends of the content that belong to the template's tokens, most often none, and the
        rest, which is to be written. As it was, where no cut near the ends would do.
    """
    if codec.chat_template is None or chat.is_bare:
        return chat, content
    wanted = ChatFormat(codec, system, chat.options, chat=chat).encode_whole(chat.history, content)
    reach = range(min(MERGE_REACH, len(content)))
    for start in reach:
        first = _Pieces(codec, system, replace(chat, before=content[:start]), content[start:])
        if wanted[: len(first.front)] != first.front:
            continue
        if wanted == first.all():
            return first.chat, first.content
        for stop in reach[1 : len(content) - start]:
            cut = len(content) - stop
            both = replace(first.chat, after=content[cut:])
            last = _Pieces(codec, system, both, content[start:cut])
            if wanted == last.all():
                return last.chat, last.content
    return chat, content


class _Pieces:
    """The tokens of a conversation, piece by piece, as a session reads them."""

    def __init__(self, codec: TokenizerCodec, system: str | None, chat: Chat, content: str) -> None:
        self.chat, self.content = chat, content
        self._format = ChatFormat(codec, system, chat.options, chat=chat)
        preamble = self._format.encode_preamble(chat.history)
        tokenizer = IncrementalTokenizer(codec, self._format.preamble(chat.history))
        read = [token for token, _ in (*tokenizer.write(content), *tokenizer.flush())]
        self._tokens = preamble + read
        self.front = preamble + read[:-MERGE_REACH]
        """All of them that an end of the content cannot change."""

    def all(self) -> list[int]:
        """With what stands behind the input."""
        return self._tokens + self._format.encode_closer(self.chat.history)


class _Mask:
    """Hides markers in contents while a template is rendered, and tokenises what comes out with them as plain text."""

    def __init__(self, codec: TokenizerCodec, contents: Iterable[str]) -> None:
        self._codec = codec
        self._stem = _sentinel("Mask", contents)
        self._hidden: list[str] = []

    def hide_all(self, messages: Iterable[Message]) -> list[Message]:
        """Return messages with their markers hidden.

        What the assistant said keeps those that are no control tokens, because its template may look for them.
        """
        return [
            Message(message.role, *self._hide_message(message, control_only=message.role == "assistant"))
            for message in messages
        ]

    def _hide_message(self, message: Message, *, control_only: bool) -> tuple[str, dict[str, Any]]:
        content = self._hide(message.content, control_only=control_only)
        return content, self._hide_all_text(message.extra, control_only)

    def _hide_all_text(self, data: Any, control_only: bool) -> Any:
        """Return plain data with the markers in all of its texts hidden."""
        if isinstance(data, str):
            return self._hide(data, control_only=control_only)
        if isinstance(data, Mapping):
            items = cast("Mapping[str, Any]", data).items()
            return {key: self._hide_all_text(value, control_only) for key, value in items}
        if isinstance(data, list):
            return [self._hide_all_text(value, control_only) for value in cast("list[Any]", data)]
        return data

    def hide(self, content: str | None) -> str | None:
        """Return a content with its markers hidden."""
        return None if content is None else self._hide(content, control_only=False)

    def _hide(self, content: str, *, control_only: bool) -> str:
        parts: list[str] = []
        at = 0
        for start, stop in self._codec.marker_spans(content, control_only=control_only):
            parts += [content[at:start], f"{self._stem}{len(self._hidden)}X"]
            self._hidden.append(content[start:stop])
            at = stop
        return "".join((*parts, content[at:]))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a rendered text, hidden markers put back as plain text."""
        literals: list[tuple[int, int]] = []
        first, *rest = text.split(self._stem)
        shown = first
        for part in rest:
            number, _, after = part.partition("X")
            marker = self._hidden[int(number)]
            literals.append((len(shown), len(shown) + len(marker)))
            shown += marker + after
        return self._codec.encode_template(shown, literals)


def _split(text: str, sentinel: str) -> tuple[str, str]:
    """Return what stands before and after a sentinel."""
    if text.count(sentinel) != 1:
        fault = "repeats a content" if sentinel in text else "does not leave contents as they are"
        raise ChatTemplateError(
            f"the chat template {fault}, so it cannot be taken apart; use another template "
            "(`tokenizer.chat_template`) or plain text (ChatFormat.bare, the `plain` preset)"
        )
    before, _, after = text.partition(sentinel)
    return before, after


def _contents(history: Iterable[Message], *others: str | None) -> list[str]:
    return [*(other for other in others if other is not None), *(message.content for message in history)]


def _texts(history: Sequence[Message], *others: str | None) -> list[str]:
    """Return all text that stands in messages, in their contents or elsewhere."""
    return [*_contents(history, *others), *(str(message.extra) for message in history if message.extra)]


def _sentinel(name: str, contents: Iterable[str]) -> str:
    """Return a word that no content contains."""
    everything = BLANK_LINE.join(contents)
    number = 0
    while f"Braid{name}{number}Z" in everything:
        number += 1
    return f"Braid{name}{number}Z"
