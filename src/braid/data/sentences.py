"""Text in sentences that, put together, are the text again."""

from __future__ import annotations

import re

__all__ = ["split_sentences"]

_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s)|\n+(?=\S))")
_SHORT = "mr mrs ms dr prof st vs etc e.g i.e no fig approx inc jr sr"
_ABBREVIATIONS = frozenset(_SHORT.split())


def split_sentences(text: str) -> list[str]:
    r"""Sentences and lines of a text; the space between two belongs to the second.

    >>> split_sentences("Mr. Lee has 2.5 kg. How much is left?")
    ['Mr. Lee has 2.5 kg.', ' How much is left?']
    >>> "".join(split_sentences("1. a\n2. b\n")) == "1. a\n2. b\n"
    True
    """
    pieces: list[str] = []
    start = 0
    for found in _END.finditer(text):
        stop = found.start() if found[0].startswith("\n") else found.end()
        if stop <= start or not text[start:stop].strip() or _is_abbreviated(text[start:stop]):
            continue
        pieces.append(text[start:stop])
        start = stop
    rest = text[start:]
    if rest.strip() or not pieces:
        pieces.append(rest)
    else:
        pieces[-1] += rest
    return [piece for piece in pieces if piece]


def _is_abbreviated(piece: str) -> bool:
    """Whether its last point ends no sentence: `Mr.`, an initial, or the number of a list."""
    if not piece.endswith("."):
        return False
    last = piece[:-1].split()[-1:] or [""]
    word = last[0].strip("(\"'").lower()
    return (
        word in _ABBREVIATIONS
        or (len(word) == 1 and word.isalpha())
        or (word.isdecimal() and piece.strip() == f"{word}.")
    )
