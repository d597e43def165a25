"""The shared beginning of all views: the model's chat template around the conversation so far."""

from __future__ import annotations

from copy import copy
from functools import lru_cache

from braid.model.chat import Chat, ChatFormat, Message
from braid.model.codec import TokenizerCodec
from braid.streams.stream_spec import StreamSpec

__all__ = ["Preamble"]


class Preamble:
    """What stands before the inputs, and the closers that stand behind them.

    When a turn ends, the answer becomes history: the template is rendered anew, and what has changed since the
    common beginning is prefilled, so that the next turn reads the last answer.

    Args:
        codec: The model's tokenizer. Without a chat template, text is continued as it is.
        system: System prompt; None leaves it to the template.
        chat: The conversation that the first turn goes on with.
    """

    def __init__(self, codec: TokenizerCodec, system: str | None, chat: Chat | None = None) -> None:
        chat = Chat() if chat is None else chat
        self.history: list[Message] = list(chat.history)
        self._cached: list[int] = []
        if codec.chat_template is None or chat.is_bare:
            self._format = ChatFormat.bare(codec)
        else:
            self._format = ChatFormat(codec, system, chat.options, chat=chat)
        self._closers = lru_cache(maxsize=64)(self._render_closer)
        self.text = ""
        self._wanted: list[int] = []
        self._render()

    def _render(self) -> None:
        self.text = self._format.preamble(self.history)
        self._wanted = self._format.encode_preamble(self.history)
        self.is_stale = self._wanted != self._cached

    def remember(self, said: str, answered: str) -> None:
        """Make a turn history."""
        self.history += [self._format.chat.message(said), Message("assistant", answered)]
        self._format = self._format.after_first_turn()
        self._closers.cache_clear()
        self._render()

    def missing(self, limit: int) -> tuple[int, list[int]]:
        """How many cached tokens still hold, and the next ones after them, at most `limit`; changes nothing."""
        kept = 0
        for old, new in zip(self._cached, self._wanted, strict=False):
            if old != new:
                break
            kept += 1
        return kept, self._wanted[kept : kept + limit]

    @property
    def num_cached(self) -> int:
        """Tokens that the span holds."""
        return len(self._cached)

    @property
    def cached_ids(self) -> list[int]:
        """The tokens that the span holds, or held when it was dropped from the cache."""
        return list(self._cached)

    @property
    def wanted_ids(self) -> list[int]:
        """The tokens that the span should hold."""
        return list(self._wanted)

    def fork(self) -> Preamble:
        """A second one that goes on by itself."""
        twin = copy(self)
        twin.history = list(self.history)
        twin._closers = lru_cache(maxsize=64)(twin._render_closer)  # noqa: SLF001 (of its own class)
        return twin

    def has_cached(self, length: int) -> None:
        """Note that the span now holds so many of the wanted tokens."""
        self._cached = self._wanted[:length]
        self.is_stale = self._cached != self._wanted

    def closer_text(self, spec: StreamSpec) -> str:
        """Turn closer, the stream's own instructions, assistant header."""
        return self._closers(spec.instructions)[0]

    def closer_ids(self, spec: StreamSpec) -> tuple[int, ...]:
        """The same in tokens."""
        return self._closers(spec.instructions)[1]

    def _render_closer(self, instructions: str | None) -> tuple[str, tuple[int, ...]]:
        text = self._format.closer(self.history, instructions)
        return text, tuple(self._format.encode_closer(self.history, instructions))
