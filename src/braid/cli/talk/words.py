"""Which words of a line that is being typed may go to the model: all that are followed by the next one."""

from __future__ import annotations

import re

__all__ = ["split_words"]

_IDEOGRAPH = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_MARK = "\u3099\u309a\ufe00-\ufe0f"
"""What belongs to the ideograph or syllable before it."""

_WORD = re.compile(rf"\s*(?:[{_IDEOGRAPH}][{_MARK}]*|[^\s{_IDEOGRAPH}]+)")
"""A word with the space before it. Scripts that put no spaces between words go a character at a time."""


def split_words(draft: str) -> tuple[str, str, str]:
    """Divide a draft into what may be sent, the space after it, and the word that may still change.

    Args:
        draft: What stands in the input line.

    Returns:
        Whole words, white space, and the rest, which together are the draft. The space is sent with the word after
        it, as tokenizers have it.

    >>> split_words("How many ap"), split_words("ap"), split_words("apples ")
    (('How many', ' ', 'ap'), ('', '', 'ap'), ('', '', 'apples '))
    """
    *before, last = [match.start() for match in _WORD.finditer(draft)] or [0]
    if not before:
        return "", "", draft
    rest = draft[last:].lstrip()
    return draft[:last], draft[last : len(draft) - len(rest)], rest
