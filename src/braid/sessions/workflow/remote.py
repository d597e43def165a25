"""Prompts that are answered by an endpoint which speaks OpenAI's chat completions, streamed."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from braid.errors import StageError, WorkflowError
from braid.sessions.workflow.stages import Endpoint, Prompt

if TYPE_CHECKING:
    import httpx

__all__ = ["Remote"]


class Remote:
    """Connections to endpoints, one pool each; made in a run and closed with it.

    Raises:
        WorkflowError: `httpx` is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("httpx") is None:
            raise WorkflowError(
                "a stage at an endpoint needs httpx; install it with: pip install 'braid-llm[workflows]'"
            )
        self._clients: dict[Endpoint, httpx.AsyncClient] = {}

    async def ask(self, stage: Prompt, prompt: str, grew: Callable[[str], None]) -> tuple[str, int]:
        """Ask for an answer.

        Args:
            stage: Whose prompt it is.
            prompt: What is asked.
            grew: Called with all of the answer so far whenever more of it has come.

        Returns:
            The answer, and how many tokens the call has taken: those that the endpoint reports, else its pieces.

        Raises:
            StageError: The endpoint cannot be reached, refuses, or breaks off.
        """
        import httpx

        assert stage.endpoint is not None, "it is asked there"
        where = f"stage {stage.name}: the endpoint at {stage.endpoint.base_url}"
        client = self._client(stage.endpoint)
        try:
            async with client.stream("POST", "chat/completions", json=_body(stage, prompt)) as reply:
                if reply.is_error:
                    said = (await reply.aread()).decode(errors="replace")[:200]
                    raise StageError(f"{where} refused with {reply.status_code}: {said}", stage.name)
                answer = _Answer()
                async for line in reply.aiter_lines():
                    if answer.read(line):
                        grew(answer.text)
                answer.end()
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise StageError(f"{where} cannot be reached, or broke off: {said}", stage.name) from error
        if answer.failure is not None:
            raise StageError(f"{where} {answer.failure}", stage.name)
        return answer.text, answer.num_tokens

    def _client(self, endpoint: Endpoint) -> httpx.AsyncClient:
        import httpx

        if endpoint not in self._clients:
            headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
            base = endpoint.base_url.rstrip("/") + "/"
            self._clients[endpoint] = httpx.AsyncClient(
                base_url=base, headers=headers, timeout=endpoint.timeout_s
            )
        return self._clients[endpoint]

    async def aclose(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()


def _body(stage: Prompt, prompt: str) -> dict[str, Any]:
    """The request; greedy where nothing is said, as on Braid."""
    assert stage.endpoint is not None, "it is asked there"
    sampling = stage.sampling
    messages = [] if stage.system is None else [{"role": "system", "content": stage.system}]
    body: dict[str, Any] = {
        "model": stage.endpoint.model,
        "messages": [*messages, {"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0 if sampling is None else sampling.temperature,
        "seed": stage.seed if sampling is None or sampling.seed is None else sampling.seed,
    }
    if sampling is not None and sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if stage.max_tokens is not None:
        body["max_tokens"] = stage.max_tokens
    return body


class _Answer:
    """Gathers an answer from the lines of its stream."""

    def __init__(self) -> None:
        self.text = ""
        self.failure: str | None = None
        """What is wrong with it; the stream is read to its end, for httpx leaves generators open that are left."""
        self._is_whole = False
        self._num_pieces = 0
        self._num_reported: int | None = None

    @property
    def num_tokens(self) -> int:
        return self._num_pieces if self._num_reported is None else self._num_reported

    def read(self, line: str) -> bool:
        """Take a line; returns whether it had any text."""
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or self.failure is not None:
            return False
        if data == "[DONE]":
            self._is_whole = True
            return False
        try:
            text = self._piece(cast("dict[str, Any]", json.loads(data)))
        except (ValueError, AttributeError, LookupError, TypeError):
            self.failure = f"answered with no chat completion: {data[:100]}"
            return False
        self._num_pieces += bool(text)
        self.text += text
        return bool(text)

    def _piece(self, piece: dict[str, Any]) -> str:
        if piece.get("error"):
            self.failure = f"broke off: {str(piece['error'])[:200]}"
        self._num_reported = (piece.get("usage") or {}).get("total_tokens", self._num_reported)
        choice = (piece.get("choices") or [{}])[0]
        self._is_whole = self._is_whole or choice.get("finish_reason") is not None
        return (choice.get("delta") or {}).get("content") or ""

    def end(self) -> None:
        """The stream has ended."""
        if self.failure is None and not self._is_whole:
            self.failure = "broke off in the middle of its answer"
