"""A model's own chat template, taken apart around the text that is still to come.

    <|im_start|>system … <|im_end|> <|im_start|>user ⏎  How many …  <|im_end|> <|im_start|>assistant ⏎  Two. <|im_end|>
    └────────────────── preamble ─────────────────────┘ └ content ┘ └────────── closer ──────────────┘ └ … ┘└ answer_end

Nothing is known of any one template: each part is found by rendering a conversation whose contents are sentinels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from braid.errors import ChatTemplateError
from braid.model.codec import TokenizerCodec

__all__ = ["ChatFormat", "Message"]

BLANK_LINE = "\n\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Args:
        role: `system`, `user` or `assistant`, or what else the template knows.
        content: its text.
    """

    role: str
    content: str


class ChatFormat:
    """The parts of a model's chat template.

    `preamble(history) + content + closer(history)` is what `apply_chat_template` makes of the history and one more
    user message, with the assistant's header at the end; only a template that trims its contents needs them trimmed.

    Args:
        codec: the model's tokenizer.
        system: the system prompt. Where the template knows no such role, it opens the first user message.
        options: further variables of the template, such as `enable_thinking`.
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
        is_bare: bool = False,
    ) -> None:
        self._codec = codec
        self._system = system
        self._options = dict(options or {})
        self._is_bare = is_bare
        self._has_system_role = not is_bare and self._takes_system()
        self.preamble()  # so that a template that cannot be taken apart is refused at once

    @classmethod
    def bare(cls, codec: TokenizerCodec, system: str | None = None) -> ChatFormat:
        """Return a format for plain text: nothing around it, and blank lines between contents."""
        return cls(codec, system, is_bare=True)

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
        answer = _sentinel("Answer", _contents(history, self._system))
        messages = [*history, Message("user", "Q"), Message("assistant", answer)]
        return _split(self._render(messages, self._system, answer_next=False), answer)[1]

    def encode_preamble(self, history: Sequence[Message] = ()) -> list[int]:
        """Return the tokens of the preamble; control tokens that contents spell are not parsed."""
        mask = _Mask(self._codec, _contents(history, self._system))
        return mask.encode(self._preamble(mask.hide_all(history), mask.hide(self._system)))

    def encode_closer(self, history: Sequence[Message] = (), instructions: str | None = None) -> list[int]:
        """Return the tokens of the closer; control tokens that contents spell are not parsed."""
        mask = _Mask(self._codec, _contents(history, self._system, instructions))
        return mask.encode(
            self._closer(mask.hide_all(history), mask.hide(self._system), mask.hide(instructions))
        )

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
        contents = _contents(history, system)
        content, order = _sentinel("User", contents), _sentinel("System", contents)
        messages = [*history, Message("user", content), Message("system", order)]
        try:
            found = _split(self._render(messages, system), content)
        except ChatTemplateError:
            found = None  # no system message may follow, then
        if found and found[0] == before and found[1].count(order) == 1:
            return found[1].replace(order, instructions)
        return f"{BLANK_LINE}{instructions}{after}"

    def _around_content(self, history: Sequence[Message], system: str | None) -> tuple[str, str]:
        """Return what the template puts before and after the content of the next user message."""
        content = _sentinel("User", _contents(history, system))
        return _split(self._render([*history, Message("user", content)], system), content)

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
        rendered = [{"role": message.role, "content": message.content} for message in messages]
        if system is not None and self._has_system_role:
            rendered.insert(0, {"role": "system", "content": system})
        elif system is not None:
            first = next(message for message in rendered if message["role"] == "user")
            first["content"] = system + BLANK_LINE + first["content"]
        return self._codec.render_chat(rendered, answer_next=answer_next, options=self._options)


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
            Message(message.role, self._hide(message.content, control_only=message.role == "assistant"))
            for message in messages
        ]

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


def _sentinel(name: str, contents: Iterable[str]) -> str:
    """Return a word that no content contains."""
    everything = BLANK_LINE.join(contents)
    number = 0
    while f"Braid{name}{number}Z" in everything:
        number += 1
    return f"Braid{name}{number}Z"
