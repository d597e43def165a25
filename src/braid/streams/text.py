"""Text in pieces: tokenise what cannot change any more, detokenise what is whole.

    "How many app" ─► IncrementalTokenizer ─► How, ␣many        held back: "␣app"
    "les"          ─►                      ─►                   held back: "␣apples"
    " are"         ─►                      ─► ␣apples           held back: "␣are"

**Where text may be cut.** A tokenizer normalises, splits into words, and then merges inside each word. No token can
span two characters that no vocabulary entry has side by side, so a cut between such a pair splits the merges into two
independent halves. What is left is how words are split, and that is the one assumption made here: *where text is
split into words to the left of a white-space character or inside a run of ideographs depends on nothing further to
the right, and to the right of it only on the last words to the left*. It holds for all patterns published with GPT-2,
Llama 3, Qwen, DeepSeek and o200k, for SentencePiece and for BERT. Each cut is therefore

- before ASCII white space that follows a visible character, or between two ideographs (`Cuts`);
- at a pair that no vocabulary entry joins, in the normalised form (`braid.streams.boundaries`);
- confirmed by the tokenizer: no token of the text in context straddles it.

A chunk is tokenised between its neighbours (the last two words to the left, one character to the right and a stand-in
for what may follow), whose tokens are then dropped by their offsets, so that no prefix-space rule, look-ahead or strip
rule can tell the chunk from the middle of the whole text.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol
from weakref import WeakKeyDictionary

from braid.errors import InputError
from braid.streams.boundaries import SENTENCEPIECE_SPACE, SPACES, Boundaries

__all__ = ["Codec", "Cuts", "IncrementalDetokenizer", "IncrementalTokenizer", "boundaries_of"]

VISIBLE = "x"  # stands for what may follow, so that rules that strip the end of a text leave the cut alone
CONTEXT_WORDS = 2
# Left neighbours to try, in order, where the true one would merge with what follows (after a forced flush).
NEUTRAL_CONTEXTS = ("\n", "a", ".", "1", " ", "")

Cuts = Literal["pairs", "words", "never"]
"""`pairs`: tokens on the two sides of a pair that no entry joins are independent, as merges are. `words`: only those
of different words are, since the model weighs a word as a whole (Unigram: rounding may tip a tie). `never`: a text is
one word.
"""


class Codec(Protocol):
    """What Braid needs of a tokenizer."""

    @property
    def byte_level(self) -> bool:
        """Whether decoding joins the bytes of all tokens before it reads them as UTF-8."""
        ...

    @property
    def cuts(self) -> Cuts:
        """Where text may be cut: at any joinless pair, between words only, or never."""
        ...

    def encode(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token ids and their character ranges in `text`; control tokens are never parsed out of it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text of tokens: nothing cleaned up, control tokens skipped."""
        ...

    def piece(self, token: int) -> bytes | str | None:
        """Return what one token adds: bytes that need company, or text, or None for a control token."""
        ...

    def pieces(self) -> Iterable[bytes | str]:
        """Return the text of every vocabulary entry, added tokens included, with all that it may swallow."""
        ...

    def normalize(self, text: str) -> str:
        """Return the text as the vocabulary spells it."""
        ...


_BOUNDARIES: WeakKeyDictionary[Codec, Boundaries] = WeakKeyDictionary()


def boundaries_of(codec: Codec) -> Boundaries:
    """Return the boundaries of a codec's vocabulary, worked out once a codec."""
    known = _BOUNDARIES.get(codec)
    if known is None:
        known = _BOUNDARIES[codec] = Boundaries(codec.pieces())
    return known


def require_whole(text: str) -> None:
    """Refuse text that no tokenizer can read.

    Raises:
        InputError: It holds half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text holds a lone surrogate at character {error.start}; send whole characters (UTF-8)"
        ) from None


class IncrementalTokenizer:
    """Tokenises text that arrives in pieces as if it had come at once.

    Tokens are released as soon as no later text can change them. The cost is linear in the text.

    Args:
        codec: the tokenizer.
        before: text that stands directly before the first piece and is tokenised already, such as the end of a
            template; it only keeps the first token from being taken for the start of a text.

    Example:
        >>> from braid.streams.text import IncrementalTokenizer
        >>> tokenizer = IncrementalTokenizer(codec)  # doctest: +SKIP
        >>> tokenizer.write("How many app"), tokenizer.held  # doctest: +SKIP
        ([(1128, 'How'), (800, ' many')], ' app')
    """

    def __init__(self, codec: Codec, before: str = "") -> None:
        self._codec = codec
        self._boundaries = boundaries_of(codec)
        self._context = before
        self._held = ""
        self._num_scanned = 1  # cuts at positions below this were looked for already
        self._retry_len = 0  # after a cut that the tokenizer did not confirm, wait for this much text
        self._orphan = ""  # text that yielded no token (a normaliser dropped it); the next token carries it

    @property
    def held(self) -> str:
        """The text that is still held back."""
        return self._held

    def write(self, text: str) -> list[tuple[int, str]]:
        """Add text; return the tokens that can no longer change, each with the source text that it covers.

        Args:
            text: the next piece, of any length.

        Returns:
            Pairs of token id and text. Where several tokens share one character, the last one carries it.

        Raises:
            InputError: if the text holds half a surrogate pair, which no tokenizer can read.
        """
        require_whole(text)
        self._held += text
        cut = self._last_cut()
        if cut is None or len(self._held) < self._retry_len:
            return []
        tokens = self._tokenize(cut)
        if tokens is None:
            self._retry_len = 2 * len(self._held)
        else:
            self._release(cut)
        return tokens or []

    def flush(self) -> list[tuple[int, str]]:
        """Return tokens for all that is held back, final or not; equals the whole text's only at its end."""
        tokens = self._tokenize(len(self._held)) if self._held else []
        assert tokens is not None, "a flush has no right neighbour to straddle"
        self._release(len(self._held))
        return tokens

    def _release(self, cut: int) -> None:
        """Move text that was tokenised into the left context, of which the last words are kept."""
        past = self._context + self._held[:cut]
        start, words = len(past), 0
        while start > 0 and words < CONTEXT_WORDS:
            start -= 1
            words += start > 0 and self._is_cut(past, start)
        self._context, self._held = past[start:], self._held[cut:]
        self._num_scanned, self._retry_len = 1, 0

    def _last_cut(self) -> int | None:
        """Return the last position at which the held text may be cut, looking only at new positions."""
        first, stop = self._num_scanned, len(self._held)
        self._num_scanned = max(first, stop)
        return next((i for i in range(stop - 1, first - 1, -1) if self._is_cut(self._held, i)), None)

    def _is_cut(self, text: str, at: int) -> bool:
        """Whether text may be cut before position `at`, as far as the vocabulary goes."""
        left, right = text[at - 1], text[at]
        if _is_ideograph(left) and _is_ideograph(right):
            return self._codec.cuts == "pairs" and not self._boundaries.is_joined(left, right)
        if (
            self._codec.cuts == "never"
            or right not in SPACES
            or left.isspace()
            or left == SENTENCEPIECE_SPACE
        ):
            return False
        start = at - 1
        while _may_compose(text[start]):
            start -= 1
            if start < max(0, at - 16):
                return False
        seen = self._codec.normalize(text[start : at + 1] + VISIBLE).replace(SENTENCEPIECE_SPACE, " ")
        if len(seen) < 3 or seen[-1] != VISIBLE or seen[-2] not in SPACES or seen[-3].isspace():
            return False
        return not self._boundaries.is_joined(seen[-3], seen[-2])

    def _tokenize(self, cut: int) -> list[tuple[int, str]] | None:
        """Tokenise the held text up to `cut` in context; None if a token straddles the cut."""
        text, right = self._held[:cut], self._held[cut : cut + 1]
        neighbour = right and right + VISIBLE
        for context in (self._context, *NEUTRAL_CONTEXTS):
            start, stop = len(context), len(context) + cut
            ids, offsets = self._codec.encode(context + text + neighbour)
            if any(a < stop < b for a, b in offsets):
                return None
            if not any(a < start < b for a, b in offsets):
                chunk = [(i, a - start) for i, (a, _) in zip(ids, offsets, strict=True) if start <= a < stop]
                return self._with_text(chunk, text)
        raise AssertionError("an empty context cannot be straddled")

    def _with_text(self, chunk: list[tuple[int, int]], text: str) -> list[tuple[int, str]]:
        """Share a chunk's text among its tokens: each one's reaches to where the next one starts."""
        if not chunk:
            self._orphan += text
            return []
        tokens: list[tuple[int, str]] = []
        at = 0
        for index, (token, _) in enumerate(chunk):
            is_last = index + 1 == len(chunk)
            stop = len(text) if is_last else max(at, chunk[index + 1][1])
            tokens.append((token, text[at:stop]))
            at = stop
        tokens[0] = (tokens[0][0], self._orphan + tokens[0][1])
        self._orphan = ""
        return tokens


class IncrementalDetokenizer:
    """Turns tokens into text as they come, never splitting a character; together equal to decoding all at once.

    Args:
        codec: the tokenizer. Where its decoding is not byte-level, runs of single-byte tokens are held until they
            end, because one bad byte spoils the whole run.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._context: list[
            int
        ] = []  # released tokens that keep rules for the start of a text away from new ones
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Add one token; return the text that is now certain, which may be empty."""
        piece = self._codec.piece(token)
        if piece is None:
            return ""
        if self._codec.byte_level:
            return self._utf8.decode(piece if isinstance(piece, bytes) else piece.encode())
        self._pending.append(token)
        return "" if isinstance(piece, bytes) else self._release()

    def flush(self) -> str:
        """Return what is still held; a character that was cut off comes as U+FFFD."""
        if self._codec.byte_level:
            return self._utf8.decode(b"", final=True)
        return self._release() if self._pending else ""

    def _release(self) -> str:
        before = self._codec.decode(self._context) if self._context else ""
        text = self._codec.decode(self._context + self._pending)
        assert text.startswith(before), "text that was released has changed"
        # A context that decodes to nothing would not absorb the rule that drops the first space of a text.
        is_solid = self._codec.decode(self._pending) != ""
        self._context = self._pending if is_solid else self._context + self._pending
        self._pending = []
        return text[len(before) :]


def _is_ideograph(char: str) -> bool:
    """Whether this is a Han character that no normal form changes."""
    return "\u4e00" <= char <= "\u9fff" or "\u3400" <= char <= "\u4dbf"


def _may_compose(char: str) -> bool:
    """Whether a normaliser may join this character to the one before it (marks, Hangul vowels and finals)."""
    return char > "\u02ff" and (unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff")
