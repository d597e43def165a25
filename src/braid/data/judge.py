"""A judge for free text: any endpoint that speaks OpenAI's chat completions.

The rules of `braid.data.causality` see numbers, names and words. Whether a sentence of free text draws on what has not
been said yet, only somebody who understands it can tell. The judge is asked one question a step, and answers yes or no.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any, Self

from braid.errors import DataError, JudgeError

__all__ = ["ModelJudge"]

_TASK = (
    "You check a piece of reasoning that was written while its question was still being read. You are given what had "
    "been read and said up to then, and the next step. Answer YES if somebody who knows only that could write the "
    "step. Answer NO if the step uses a fact, a number, a name or an intention that is not in it and does not follow "
    "from it. The first word of your answer is YES or NO."
)
_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


class ModelJudge:
    """Asks a model whether a step could be known. It is called as `braid.data.causality.Judge`.

    Args:
        base_url: Of the endpoint, up to and with `/v1`.
        model: Its name there.
        key: The API key, if one is needed.
        timeout_s: Seconds that an answer may take.

    Raises:
        DataError: `httpx` is not installed.
    """

    def __init__(self, base_url: str, model: str, *, key: str | None = None, timeout_s: float = 60.0) -> None:
        try:
            import httpx
        except ImportError:
            raise DataError("a judge needs httpx: pip install httpx") from None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.model = model
        self.num_asked = 0
        """Questions that were sent."""
        self._base_url = base_url.rstrip("/")
        self._client = httpx.Client(headers=headers, timeout=timeout_s)
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, past: str, step: str) -> bool:
        """Whether a step could be written by somebody who knows only what came before.

        Args:
            past: What had been read and said.
            step: The next step.

        Raises:
            JudgeError: The endpoint cannot be reached, refuses, or answers neither yes nor no.
        """
        if (past, step) not in self._known:
            self._known[past, step] = self._ask(past, step)
        return self._known[past, step]

    def _ask(self, past: str, step: str) -> bool:
        import httpx

        question = f"Read and said so far:\n{past or '(nothing)'}\n\nThe next step:\n{step}"
        messages = [{"role": "system", "content": _TASK}, {"role": "user", "content": question}]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": 0}
        self.num_asked += 1
        try:
            reply = self._client.post(f"{self._base_url}/chat/completions", json=body)
            reply.raise_for_status()
            answer = reply.json()["choices"][0]["message"]["content"]
        except httpx.HTTPStatusError as error:
            raise JudgeError(
                f"the judge at {self._base_url} refused with {error.response.status_code}: {error.response.text[:200]}"
            ) from None
        except httpx.HTTPError as error:
            raise JudgeError(f"the judge at {self._base_url} cannot be reached: {error}") from None
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise JudgeError(
                f"the judge at {self._base_url} answered with no chat completion: {error!r}"
            ) from None
        found = _ANSWER.match(answer or "")
        if found is None:
            raise JudgeError(f"the judge answered neither yes nor no: {str(answer)[:100]!r}")
        return found[1].lower() == "yes"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
