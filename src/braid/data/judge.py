"""A judge for free text: any endpoint that speaks OpenAI's chat completions.

The rules of `braid.data.causality` see numbers, names and words. Whether a sentence of free text draws on what has not
been said yet, only somebody who understands it can tell. The judge is asked one question a step, and answers yes or no.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from braid.errors import DataError, JudgeError

if TYPE_CHECKING:
    import httpx

__all__ = ["ModelJudge"]

_TASK = (
    "You check a piece of reasoning that was written while its question was still being read. You are given what had "
    "been read and said up to then, and the next step. Answer YES if somebody who knows only that could write the "
    "step. Answer NO if the step uses a fact, a number, a name or an intention that is not in it and does not follow "
    "from it. The first word of your answer is YES or NO."
)
_REMINDER = "Answer with one word: YES or NO."
_ANSWER = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_TOO_MANY = 429
"""Status of an endpoint that is asked too much at once."""
_TRIES = 4
"""How often a request is sent that times out, or that a server is too busy for."""


class ModelJudge:
    """Asks a model whether a step could be known. It is called as `braid.data.causality.Judge`.

    Args:
        base_url: Of the endpoint, up to and with `/v1`.
        model: Its name there.
        key: The API key, if one is needed.
        timeout_s: Seconds that an answer may take.
        pause_s: Seconds before a request is sent again; each further pause is twice as long.

    Raises:
        DataError: `httpx` is not installed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str | None = None,
        timeout_s: float = 60.0,
        pause_s: float = 1.0,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise DataError("a judge needs httpx: pip install httpx") from None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.model = model
        self.num_asked = 0
        """Requests that were sent."""
        self._pause_s = pause_s
        self._base_url = base_url.rstrip("/")
        self._client = httpx.Client(headers=headers, timeout=timeout_s)
        self._known: dict[tuple[str, str], bool] = {}

    def __call__(self, past: str, step: str) -> bool:
        """Whether a step could be written by somebody who knows only what came before.

        Args:
            past: What had been read and said.
            step: The next step.

        Raises:
            JudgeError: The endpoint cannot be reached, refuses, or twice answers neither yes nor no.
        """
        if (past, step) not in self._known:
            self._known[past, step] = self._ask(past, step)
        return self._known[past, step]

    def _ask(self, past: str, step: str) -> bool:
        question = f"Read and said so far:\n{past or '(nothing)'}\n\nThe next step:\n{step}"
        messages = [{"role": "system", "content": _TASK}, {"role": "user", "content": question}]
        answer = self._answer(messages)
        found = _verdict(answer)
        if found is None:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": _REMINDER}]
            answer = self._answer(messages)
            found = _verdict(answer)
        if found is None:
            raise JudgeError(f"the judge answered neither yes nor no, asked twice: {answer[:100]!r}")
        return found

    def _answer(self, messages: Sequence[Mapping[str, str]]) -> str:
        import httpx

        try:
            reply = self._sent({"model": self.model, "messages": messages, "temperature": 0})
            reply.raise_for_status()
            return reply.json()["choices"][0]["message"]["content"] or ""
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

    def _sent(self, body: Mapping[str, Any]) -> httpx.Response:
        """The reply to a request; what may pass is waited out, for a build asks thousands of questions."""
        import httpx

        for pause in range(_TRIES - 1):
            self.num_asked += 1
            try:
                reply = self._client.post(f"{self._base_url}/chat/completions", json=body)
            except (httpx.TimeoutException, httpx.NetworkError, httpx.RemoteProtocolError):
                pass
            else:
                if reply.status_code != _TOO_MANY and not reply.is_server_error:
                    return reply
            time.sleep(self._pause_s * 2**pause)
        self.num_asked += 1
        return self._client.post(f"{self._base_url}/chat/completions", json=body)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _verdict(answer: str) -> bool | None:
    """What an answer says, below its reasoning; None where it is neither yes nor no."""
    found = _ANSWER.match(answer.rpartition("</think>")[2])
    return None if found is None else found[1].lower() == "yes"
