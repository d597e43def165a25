"""What each class of a model's head says, in bytes; for those who must match text before it is said."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from braid.model.codec import TokenizerCodec
from braid.streams.strict import shown

__all__ = ["Vocabulary"]


@dataclass(frozen=True)
class Vocabulary:
    """The classes of a head, those that the tokenizer does not know among them.

    Attributes:
        codec: The tokenizer.
        bytes_V: What each adds to a text that has begun; nothing for what is no text (control tokens, markers, ends,
            silence, classes without a token).
        names: The markers that are no control tokens (`<tool_call>`), with their spelling.
        is_sayable_V: Whether it adds text, or is such a marker.
        is_end_V: Whether it ends an answer.
        drops_space_V: Whether decoding takes off the space that it begins with, where it is the first of a text.
        is_unclear_V: Whether, as the first of a text, it says something else altogether.
        silence_id: The class that means silence, or None.
    """

    codec: TokenizerCodec
    bytes_V: tuple[bytes, ...]
    names: dict[int, bytes]
    is_sayable_V: NDArray[np.bool_]
    is_end_V: NDArray[np.bool_]
    drops_space_V: NDArray[np.bool_]
    is_unclear_V: NDArray[np.bool_]
    silence_id: int | None

    @classmethod
    def of(cls, codec: TokenizerCodec, size: int, silence_id: int | None = None) -> Vocabulary:
        """Read a tokenizer's vocabulary. It is read whole, which takes microseconds a token.

        Args:
            codec: The tokenizer.
            size: Classes of the head, `V`.
            silence_id: The class that means silence.
        """
        is_no_text = codec.marker_ids | set(codec.end_ids) | {silence_id}
        anchor = next((i for i in range(size) if _is_solid(codec, i)), None)
        bytes_V = tuple(b"" if i in is_no_text else _bytes_inside(codec, anchor, i) for i in range(size))
        drops_space_V, is_unclear_V = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        if not codec.byte_level:  # whose bytes are the same everywhere
            for token, inside in enumerate(bytes_V):
                at_start = codec.decode([token]).encode() if inside.isascii() or len(inside) > 1 else inside
                if inside and at_start != inside:
                    drops_space_V[token] = at_start == inside[1:] and inside[:1] == b" "
                    is_unclear_V[token] = not drops_space_V[token]
        named = codec.marker_ids - codec.control_ids - set(codec.end_ids) - {silence_id}
        names = {i: str(codec.hf.convert_ids_to_tokens(i)).encode() for i in sorted(named) if i < size}
        is_sayable_V = np.fromiter((bool(text) for text in bytes_V), np.bool_, size)
        is_sayable_V[list(names)] = True
        is_end_V = np.zeros(size, np.bool_)
        is_end_V[[i for i in codec.end_ids if i < size]] = True
        return cls(
            codec, bytes_V, names, is_sayable_V, is_end_V, drops_space_V, is_unclear_V, silence_id=silence_id
        )

    @property
    def size(self) -> int:
        """Number of classes, `V`."""
        return len(self.bytes_V)

    def shown(self, token: int) -> str:
        """A class as a message shows it."""
        text = self.codec.piece(token) if 0 <= token < self.size else None
        return f"token {token}" if text is None else f"token {token} ({shown(text)})"


def _is_solid(codec: TokenizerCodec, token: int) -> bool:
    """Whether a token says a word, and the same at the start of a text as inside it."""
    piece = codec.piece(token)
    return isinstance(piece, str) and piece.isalnum() and piece.isascii() and codec.decode([token]) == piece


def _bytes_inside(codec: TokenizerCodec, anchor: int | None, token: int) -> bytes:
    """The bytes that a token adds after the anchor, a token that is known to be solid."""
    piece = codec.piece(token)
    if piece is None:
        return b""
    if isinstance(piece, bytes):
        return piece
    if anchor is None:
        return codec.decode([token]).encode()
    return codec.decode([anchor, token]).removeprefix(codec.decode([anchor])).encode()
