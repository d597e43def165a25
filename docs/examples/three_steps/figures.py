"""What the steps print: how much lies between the end of the question and the first word of the answer.

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
        self._began = 0.0
        self._read_before = 0
        self.read = 0
        """Tokens of input and of templates that were computed between the two."""
        self.rows = 0
        """Forward passes between the two in which something was said."""
        self.seconds = 0.0
        """Between the two."""

    def question_ended(self) -> None:
        """Call just before the end of the question is told."""
        self._read_before = self._num_read()
        self.rows = 0
        self._began = time.perf_counter()

    def row(self) -> None:
        """Call at each row in which the model says something that is not yet the answer."""
        self.rows += 1

    def answer_began(self) -> None:
        """Call at the first token of the answer."""
        self.seconds = time.perf_counter() - self._began
        self.read = self._num_read() - self._read_before
        print(
            f"after the question: {self.read} tokens read, {self.rows} rows said, "
            f"then the answer, {self.seconds:.1f} s after it"
        )

    def _num_read(self) -> int:
        text = httpx.get(f"{self._url}/metrics").text
        counts = re.findall(r'^braid_tokens_total\{kind="(?:input|prefill)"\} (\S+)$', text, re.M)
        return int(sum(map(float, counts)))
