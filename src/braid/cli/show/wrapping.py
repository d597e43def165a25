"""Text that grows at its end, broken into lines once and for all; and made safe for a terminal."""

from __future__ import annotations

import re

from rich.cells import cell_len, chop_cells

__all__ = ["Wrapped", "printable"]

_TURNS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""Marks that turn the direction of reading, for all that follows."""

_SAFE: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"},
    ord("\r"): None,
    0x7F: "␡",
    **dict.fromkeys([*range(0x80, 0xA0), *_TURNS], "�"),
}

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")


def printable(text: str) -> str:
    r"""The text without anything that moves the cursor, colours or turns the reading direction.

    >>> printable("a\tb\x1b[2J")
    'a\tb␛[2J'
    """
    return text.translate(_SAFE)


class Wrapped:
    """Breaks text between words as it comes; all lines but the last are final.

    Args:
        width: Columns.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._lines: list[str] = []
        self._line = ""
        """The last line, up to the word that may still grow."""
        self._word = ""

    @property
    def lines(self) -> list[str]:
        """All lines; the last one may still change."""
        last = self._line + self._word
        return [*self._lines, last] if last else list(self._lines)

    def add(self, text: str) -> None:
        """Go on with more text."""
        for part in _PARTS.findall(printable(text).replace("\t", "    ")):
            if part == "\n":
                self._break()
            elif part.isspace():
                self._line += self._word + part
                self._word = ""
            else:
                self._grow(part)

    def take(self, *, all_of_it: bool = False) -> list[str]:
        """Return the lines that are final, and forget them.

        Args:
            all_of_it: Also the last line, as far as it goes.
        """
        if all_of_it and (self._line or self._word):
            self._break()
        taken, self._lines = self._lines, []
        return taken

    def _break(self) -> None:
        self._lines.append((self._line + self._word).rstrip())
        self._line = self._word = ""

    def _grow(self, part: str) -> None:
        self._word += part
        if cell_len(self._line) + cell_len(self._word) <= self.width:
            return
        if self._line.strip():
            self._lines.append(self._line.rstrip())
            self._line = ""
        if cell_len(self._line) + cell_len(self._word) > self.width:  # a word that no line can hold
            *full, self._word = chop_cells(self._line + self._word, self.width)
            self._lines += full
            self._line = ""
