"""Token text as it may be shown: one line, nothing that moves the cursor, turns the reading direction or hides."""

from __future__ import annotations

import unicodedata

__all__ = ["cell_text", "fit", "num_cells"]

_SIGNS = {" ": "·", "\n": "⏎", "\t": "⇥", "\x7f": "␡"}


def cell_text(text: str, token: int) -> str:
    r"""Return the text of a cell with everything in it visible; a token without text shows its id.

    >>> cell_text(" how\n", 7), cell_text("\x1b[2J", 7), cell_text("", 2)
    ('·how⏎', '␛[2J', '#2')
    """
    return "".join(map(_visible, text)) or f"#{token}"


def num_cells(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, width: int) -> str:
    """Return a text cut to at most `width` columns, with an ellipsis if it was longer."""
    if num_cells(text) <= width:
        return text
    kept = text[:width]  # each character takes a column, but for marks, which may go too
    while num_cells(kept) >= width:
        kept = kept[:-1]
    return kept + "…"


def _visible(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char < " ":
        return chr(0x2400 + ord(char))
    category = unicodedata.category(char)
    if category[0] == "M":
        return "◌" + char  # a mark alone would join the frame around it
    if category[0] in "CZ":
        return f"\\u{ord(char):04x}"
    return char
