"""What the OpenAPI document says of routes whose answers are built as plain data."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from braid.server.openai.replies import ErrorBody

__all__ = ["ERRORS", "streamed"]

_STATUSES = {
    400: "The request cannot be served; `param` says which field.",
    401: "No key, or an unknown one.",
    403: "The key does not allow it.",
    404: "There is nothing of this name.",
    413: "The request is too large.",
    429: "Too much at once; `Retry-After` says when to try again.",
    503: "Not now.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text} for status, text in _STATUSES.items()
}
"""Answers that any route may give."""


def streamed(event: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The answers of a route that streams where it is asked to.

    Args:
        event: What each server-sent event holds.
    """
    schema = {"type": "string", "description": f"Server-sent events; the data of each is a {event.__name__}."}
    told = {
        "description": "The answer, whole or streamed.",
        "content": {"text/event-stream": {"schema": schema}},
    }
    return {200: told, **ERRORS}
