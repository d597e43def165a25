"""Which characters of a vocabulary stick together: where no token can ever span two neighbours, text may be cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

__all__ = ["SENTENCEPIECE_SPACE", "SPACES", "Boundaries"]

SPACES = " \t\n\r"
SENTENCEPIECE_SPACE = "\u2581"

UTF8_UNIT = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]?|[\xe0-\xef][\x80-\xbf]{0,2}|[\xf0-\xf4][\x80-\xbf]{0,3}|[\x80-\xbf]{1,3}|.",
    re.DOTALL,
)
# An entry can only join a pair of interest if it has white space past its start, or more than one non-ASCII byte.
MAY_JOIN = re.compile(rb".[ \t\n\r]|[\x80-\xff][\xe3-\xe9]", re.DOTALL)


class Boundaries:
    """Which pairs of neighbouring characters some vocabulary entry joins.

    Only pairs at which text may be cut are kept: a visible character before white space, and two ideographs. Entries
    of byte-level vocabularies may begin or end inside a character; such a fragment stands for all characters that it
    is the end, or the start, of.

    Args:
        pieces: text of every vocabulary entry.
    """

    def __init__(self, pieces: Iterable[bytes | str]) -> None:
        self._joined: set[tuple[bytes, bytes]] = set()
        for piece in pieces:
            entry = piece if isinstance(piece, bytes) else piece.replace(SENTENCEPIECE_SPACE, " ").encode()
            if MAY_JOIN.search(entry):
                self._add(UTF8_UNIT.findall(entry))

    def _add(self, units: list[bytes]) -> None:
        for left, right in itertools.pairwise(units):
            is_space = right in b" \t\n\r" and left not in b" \t\n\r"
            if is_space or (left[0] >= 0x80 and 0xE3 <= right[0] <= 0xE9):
                self._joined.add((left, right))

    def is_joined(self, left: str, right: str) -> bool:
        """Whether some entry has `left` directly before `right` (one character each)."""
        ends, starts = left.encode(), right.encode()
        return any(
            (ends[i:], starts[: j + 1]) in self._joined for i in range(len(ends)) for j in range(len(starts))
        )
