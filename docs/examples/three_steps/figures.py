"""What each step prints: how much lies between the end of the question and the first word of the answer.

Tokens are counted by the server (`/metrics`), so the figures are right only while it serves nobody else.
"""

from __future__ import annotations

import re
import time

import httpx

__all__ = ["Figures"]


class Figures:
    """Counts from the end of the question to the beginning of the answer.

    Args:
        url: Of the server.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._rows: set[int] = set()
        self._read_before = 0
        self.ended = 0.0
        """When the question ended."""
        self.read = 0
        """Tokens of input and of templates that were computed between the two."""
        self.rows = 0
        """Rows between the two in which something was said, however many streams spoke."""
        self.seconds: float | None = None
        """Between the two; None until the answer has begun."""

    def question_ended(self) -> None:
        """Call just before the end of the question is told."""
        self._read_before = self._num_read()
        self._rows.clear()
        self.ended = time.perf_counter()

    def said(self, t: int) -> None:
        """Call with the row of whatever is said that is not the answer."""
        self._rows.add(t)

    def answer_began(self) -> None:
        """Call with every piece of the answer; the first one counts."""
        if self.seconds is not None:
            return
        self.seconds = time.perf_counter() - self.ended
        self.read = self._num_read() - self._read_before
        self.rows = len(self._rows)
        print(f"[question to answer: {self.read} tokens read, {self.rows} rows said, {self.seconds:.1f} s]")

    def _num_read(self) -> int:
        text = httpx.get(f"{self._url}/metrics").text
        counts = re.findall(r'^braid_tokens_total\{kind="(?:input|prefill)"\} (\S+)$', text, re.M)
        return int(sum(map(float, counts)))
