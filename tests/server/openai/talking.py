"""Servers without a network, and OpenAI's own clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from openai import OpenAI

from tests.server.serving import Serving, null_engine, test_settings

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather in Paris?"}]


@contextmanager
def serving(
    *output: str,
    script: Mapping[str, Sequence[str]] | None = None,
    settings: Mapping[str, Any] | None = None,
    **engine: Any,
) -> Iterator[Serving]:
    """A server whose `output` says this, turn by turn; or whose streams say what a script tells."""
    made = null_engine(script=script or {"output": output}, **engine)
    with Serving(made, test_settings(**(settings or {}))) as server:
        yield server


@contextmanager
def talking(*output: str, **settings: Any) -> Iterator[OpenAI]:
    """The official client of such a server."""
    with serving(*output, **settings) as server, client_of(server) as client:
        yield client


def client_of(server: Serving, key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0)
