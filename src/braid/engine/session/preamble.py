"""The shared beginning of all views: the model's chat template around the conversation so far."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import lru_cache

from braid.engine.backend import PREAMBLE, Cell
from braid.engine.editing.diff import common_prefix
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

    def retold(self, history: Sequence[Message], asking: Message) -> Preamble:
        """One of the same session, before another conversation.

        Args:
            history: The messages before the input.
            asking: The input's own, with an empty content.
        """
        twin = self.fork()
        twin.history = list(history)
        twin._format = self._format.asking(asking)  # noqa: SLF001 (of its own class)
        twin._render()  # noqa: SLF001 (of its own class)
        return twin

    def with_cache_of(self, other: Preamble) -> Preamble:
        """The same, where the span holds what another one's holds."""
        twin = self.fork()
        twin._cached = list(other._cached)  # noqa: SLF001 (of its own class)
        twin.is_stale = twin._wanted != twin._cached  # noqa: SLF001 (of its own class)
        return twin

    def says_as(self, other: Preamble) -> bool:
        """Whether another one stands before the same conversation, and has the same behind its input."""
        return self.history == other.history and self._format.chat.is_asked_as(other._format.chat)

    def num_common(self, ids: Sequence[int]) -> int:
        """How many of the wanted tokens other ones begin with."""
        return common_prefix(self._wanted, ids)

    def missing(self, limit: int) -> tuple[int, list[int]]:
        """How many cached tokens still hold, and the next ones after them, at most `limit`; changes nothing."""
        kept = self.num_common(self._cached)
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
    def num_wanted(self) -> int:
        """Tokens that the span should hold."""
        return len(self._wanted)

    @property
    def wanted_ids(self) -> list[int]:
        """The tokens that the span should hold."""
        return list(self._wanted)

    def cells(self, length: int) -> list[Cell]:
        """Its first tokens, as the cache shares them."""
        return [Cell(step, PREAMBLE, token) for step, token in enumerate(self._wanted[:length])]

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
