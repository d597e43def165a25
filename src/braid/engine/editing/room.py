"""Whether all that a snapshot makes of a session can ever be read, and answered.

    preamble │ inputs                              │ closers │ the first token of each answer
    known    │ counted where their length is unsure │ known   │

Beyond the model's context, or in a cache that is smaller, the turn could only fail after its commit, and the session
with it. So it is refused before it takes the place of the snapshot before. A session whose past alone is beyond the
context waits for a snapshot that tells less of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from braid.engine.backend import PREAMBLE, closer_of
from braid.errors import ContextOverflowError, PoolTooSmallError
from braid.streams.text import IncrementalTokenizer

if TYPE_CHECKING:
    from braid.engine.editing.history import History
    from braid.engine.session.conversation import Conversation
    from braid.engine.session.preamble import Preamble
    from braid.model.codec import TokenizerCodec

__all__ = ["has_outgrown", "require_room", "require_room_for_a_turn"]

_PIECE = 4
"""Characters that are tokenised at once, for each token that there is room for."""


def require_room(conversation: Conversation, texts: Mapping[str, str], history: History | None) -> None:
    """Refuse a snapshot that could never be read with what stands around it.

    A text is tokenised only where its length alone does not tell that there is room, and no further than until there
    is none.

    Args:
        conversation: Whose; no turn that was begun with `write` is under way.
        texts: All that its inputs hold with the snapshot.
        history: What it tells of the conversation before; None leaves that as it is.

    Raises:
        ContextOverflowError: It needs more positions than the model was made for.
        PoolTooSmallError: It needs more pages than the cache has.
    """
    books = conversation if conversation.edit is None else conversation.edit.base or conversation
    lanes = {lane.label: lane for lane in books.stage.inputs if not lane.is_closed}
    told = {label: lane.held_over + texts.get(label, "") for label, lane in lanes.items()}
    told = {label: text for label, text in told.items() if text}
    codec, around = conversation.model.codec, _Around(conversation, books, history)
    # No token is less than a byte of the text as the vocabulary spells it.
    if around.lacks({label: len(codec.normalize(text).encode()) for label, text in told.items()}) is None:
        return
    before = "" if around.preamble is None else around.preamble.text
    most = around.most_tokens
    sizes = {label: _num_tokens(codec, before, text, most) for label, text in told.items()}
    lack = around.lacks(sizes)
    if lack is not None:
        raise lack


def has_outgrown(conversation: Conversation) -> bool:
    """Whether what was said before leaves no room in the model's context for any turn; in views, which read it all."""
    preamble = conversation.stage.preamble
    limit = conversation.model.max_positions
    return preamble is not None and sum(_spans_in_views(preamble, conversation, {}).values()) > limit


def require_room_for_a_turn(conversation: Conversation) -> None:
    """Refuse to begin a turn that what was said before leaves no room for.

    Raises:
        ContextOverflowError
    """
    if has_outgrown(conversation):
        model = conversation.model
        raise ContextOverflowError(
            f"what was said before leaves no room for another turn in the {model.max_positions} positions that "
            f"{model.name} was made for: go on in a new session with a summary, or send a snapshot whose messages "
            "leave out the beginning"
        )


@dataclass
class _Around:
    """What a turn's input stands in.

    Args:
        conversation: The session.
        books: The same as it was before the turn.
        history: As for `require_room`.
    """

    conversation: Conversation
    books: Conversation
    history: History | None

    def __post_init__(self) -> None:
        self.preamble = self.books.stage.preamble if self.history is None else self.history.preamble
        usage = self.conversation.backend.usage()
        self._num_pages, self._page_size = usage.pages_total, usage.page_size

    @property
    def most_tokens(self) -> int:
        """More than these there is never room for."""
        limit = self.conversation.model.max_positions
        return min(limit, self._num_pages * self._page_size) if self._num_pages else limit

    def lacks(self, sizes: Mapping[str, int]) -> ContextOverflowError | PoolTooSmallError | None:
        """What there is no room for, if inputs have so many tokens each."""
        model = self.conversation.model
        spans, length = self._in_views(sizes) if self.books.stage.in_views else self._in_rows(sizes)
        if length > model.max_positions:
            return ContextOverflowError(
                "the snapshot, with the conversation before it and the template around it, needs more than the "
                f"{model.max_positions} positions that {model.name} was made for: send a shorter one, or leave out the "
                "beginning of the conversation, or put a summary there; the snapshot before it still counts"
            )
        num_pages = sum(-(-count // self._page_size) for count in spans.values())
        if self._num_pages and num_pages > self._num_pages:  # a backend that does not tell has none
            return PoolTooSmallError(
                "the snapshot, with the conversation before it and the template around it, needs more than the "
                f"{self._num_pages * self._page_size} tokens that the cache holds: send a shorter one, or give the "
                "engine a larger cache (kv_tokens); the snapshot before it still counts"
            )
        return None

    def _in_views(self, sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """Tokens of each span, and positions, once each output has said one token."""
        assert self.preamble is not None, "views have one"
        spans = _spans_in_views(self.preamble, self.books, sizes)
        return spans, sum(spans.values())

    def _in_rows(self, sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """The same in native rows; each input has a token for its end."""
        stage = self.books.stage
        longest = max(
            (size + 1 for label, size in sizes.items() if stage.input(label).feed == "paced"), default=0
        )
        num_rows = (
            1 + longest + sum(size + 1 for label, size in sizes.items() if stage.input(label).feed == "burst")
        )
        spans = {lane.label: lane.num_kept + sizes.get(lane.label, -1) + 1 for lane in stage.inputs}
        spans |= {lane.label: lane.num_kept + 1 for lane in stage.open_outputs()}
        if stage.keeps_silence:
            spans = {lane.label: lane.num_kept + num_rows for lane in (*stage.inputs, *stage.open_outputs())}
        return spans, self.conversation.t + num_rows


def _spans_in_views(preamble: Preamble, books: Conversation, sizes: Mapping[str, int]) -> dict[str, int]:
    """Tokens of each span, once each output has said one token."""
    spans = {PREAMBLE: preamble.num_wanted, **sizes}
    for lane in books.stage.open_outputs():
        spans[lane.label] = 1
        spans[closer_of(lane.label)] = len(preamble.closer_ids(lane.spec))
    return spans


def _num_tokens(codec: TokenizerCodec, before: str, text: str, most: int) -> int:
    """Tokens of a text; of one that has more than `most`, some number above that."""
    tokenizer, size, count = IncrementalTokenizer(codec, before), _PIECE * most, 0
    for start in range(0, len(text), size):
        count += len(tokenizer.write(text[start : start + size]))
        if count > most:
            return count
    return count + len(tokenizer.flush())
