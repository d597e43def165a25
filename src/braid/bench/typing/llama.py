"""`llama.cpp`'s own server as one more way to answer, if somebody runs one with the same model.

It is asked as an application would: whenever it is free, the newest text is sent to `/completion` with `cache_prompt`
and no token of an answer, so that its cache holds it; the commit sends the final text, and the answer is streamed. Its
own template is applied by `/apply-template`. Requests take what they take; time between them is skipped, as elsewhere.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from braid.bench.traces.file import Trace
from braid.bench.typing.turns import Part, Turn, parts_of
from braid.errors import ConnectionLostError, InputError

__all__ = ["LlamaServer"]

_PATIENCE_S = 300.0


class LlamaServer:
    """A server of llama.cpp.

    Args:
        url: Its address.
        answer_tokens: The longest answer.

    Raises:
        InputError: It is no address.
        ConnectionLostError: It does not answer.
    """

    def __init__(self, url: str, answer_tokens: int) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url!r} is no address of a server; give one such as http://127.0.0.1:8080")
        self._url = url.rstrip("/")
        self._answer_tokens = answer_tokens
        self._ask("/health")

    def replay(self, trace: Trace) -> list[Turn]:
        """Replay a trace.

        Raises:
            ConnectionLostError: It does not answer, or with what is no completion.
        """
        messages: list[dict[str, str]] = []
        turns: list[Turn] = []
        now = 0.0
        for part in parts_of(trace):
            now, turn = self._turn(part, messages, now)
            turns.append(turn)
            said = {"role": "user", "content": part.text}
            messages += [said, {"role": "assistant", "content": turn.answer}]
        return turns

    def _turn(self, part: Part, messages: Sequence[Mapping[str, str]], now: float) -> tuple[float, Turn]:
        coming, prefill, newest = deque(part.events), 0, ""
        before_edit = 0
        while coming and now < part.commit_at:
            now = max(now, coming[0][0])
            while coming and coming[0][0] <= now:
                newest = coming.popleft()[1]
            if now >= part.commit_at or not newest.strip():
                continue
            before_edit = prefill
            began = time.perf_counter()
            answer = self._complete(self._prompt(messages, newest), 0)
            now += time.perf_counter() - began
            prefill += _count(answer, "prompt_n")
        now = max(now, part.commit_at)
        began, first, texts = time.perf_counter(), None, list[str]()
        last: dict[str, Any] = {}
        for last in self._stream(self._prompt(messages, part.text)):
            if last.get("content"):
                first = time.perf_counter() if first is None else first
                texts.append(str(last["content"]))
        prefill += _count(last, "prompt_n")
        ttft = None if first is None else now + first - began - part.commit_at
        now += time.perf_counter() - began
        turn = Turn(
            part.text,
            "".join(texts),
            (),
            part.pause_s,
            ttft,
            ttft,
            now - part.commit_at,
            0,
            prefill,
            _count(last, "predicted_n"),
            prefill - before_edit,
        )
        return now, turn

    def _prompt(self, messages: Sequence[Mapping[str, str]], text: str) -> str:
        body = {"messages": [*messages, {"role": "user", "content": text}]}
        return str(self._ask("/apply-template", body).get("prompt", ""))

    def _complete(self, prompt: str, tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": tokens, "cache_prompt": True, "temperature": 0.0}
        return self._ask("/completion", body)

    def _stream(self, prompt: str) -> Iterator[dict[str, Any]]:
        body = {
            "prompt": prompt,
            "n_predict": self._answer_tokens,
            "cache_prompt": True,
            "temperature": 0.0,
            "stream": True,
        }
        for line in self._lines("/completion", body):
            if line.startswith(b"data: "):
                yield self._read(line.removeprefix(b"data: "))

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return self._read(b"".join(self._lines(path, body)))

    def _lines(self, path: str, body: Mapping[str, Any] | None) -> Iterator[bytes]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers)  # noqa: S310 (it was checked)
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:  # noqa: S310
                yield from response
        except OSError as error:
            raise self._lost(error) from error

    def _read(self, data: bytes) -> dict[str, Any]:
        try:
            return cast("dict[str, Any]", json.loads(data))
        except ValueError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ConnectionLostError:
        return ConnectionLostError(
            f"the llama.cpp server at {self._url} did not answer as one ({error}); start it with "
            "llama-server --model … and give its address, such as http://127.0.0.1:8080"
        )


def _count(answer: Mapping[str, Any], what: str) -> int:
    """Tokens that a request computed, as the server told."""
    timings: Any = answer.get("timings")
    value: Any = timings.get(what, 0) if isinstance(timings, dict) else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return max(0, int(value))
