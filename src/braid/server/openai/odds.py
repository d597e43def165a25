"""How likely tokens were, as OpenAI's clients read it: the tokens of answers alone, and without those that end one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from braid.model.codec import TokenizerCodec
from braid.streams.events import DeltaEvent

__all__ = ["LEAST", "OddsTeller", "as_completion"]

LEAST = -9999.0
"""Told for what is impossible: JSON knows no infinity."""

_SPACE = "\u2581"


class OddsTeller:
    """Tells the odds of one lane's tokens.

    Tokens of a stop string are drawn before anybody knows that it is one: where there are stop strings, tokens wait
    until their text has been told.

    Args:
        codec: Spells tokens.
        waits: Whether they have to wait for their text.
        num_others: How many of the likeliest tokens are told with each.
    """

    def __init__(self, codec: TokenizerCodec, num_others: int, *, waits: bool) -> None:
        self._codec = codec
        self._num_others = num_others
        self._waits = waits
        self._waiting: deque[dict[str, Any]] = deque()
        self._owed = 0
        """Bytes of text that were told, and whose tokens were not."""

    def take(self, delta: DeltaEvent) -> list[dict[str, Any]]:
        """The odds that may be told now."""
        for odds in delta.odds or ():
            if odds is None or odds.token in self._codec.end_ids:
                continue
            others = [self._entry(token, logprob) for token, logprob in odds.top[: self._num_others]]
            entry = self._entry(odds.token, odds.logprob)
            if entry["bytes"] is not None:
                self._waiting.append({**entry, "top_logprobs": others})
        self._owed += len(delta.text.encode())
        told: list[dict[str, Any]] = []
        while self._waiting and (not self._waits or len(self._waiting[0]["bytes"]) <= self._owed):
            told.append(self._waiting.popleft())
            self._owed -= len(told[-1]["bytes"])
        return told

    def rest(self, *, is_stopped: bool) -> list[dict[str, Any]]:
        """The odds that still wait; none of a stop string's."""
        told = [] if is_stopped else list(self._waiting)
        self._waiting.clear()
        return told

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._codec.piece(token)
        if piece is None:
            return {"token": "", "bytes": None, "logprob": max(logprob, LEAST)}
        spelled = piece if isinstance(piece, bytes) else piece.replace(_SPACE, " ").encode()
        text = spelled.decode(errors="replace")
        return {"token": text, "bytes": list(spelled), "logprob": max(logprob, LEAST)}


def as_completion(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, Any]:
    """The same in the shape of completions.

    Args:
        entries: The odds.
        offset: Characters of the text before the first of them.
    """
    offsets: list[int] = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in entry["top_logprobs"]} for entry in entries
        ],
        "text_offset": offsets,
    }
