"""Errors on the wire: each class of `braid.errors` has one HTTP status, and one body that OpenAI's clients understand.

    {"error": {"message": "…", "type": "invalid_request_error", "param": null, "code": "input.unknown_stream"}}

A mistake of ours is logged with the request's id; the client is told the id and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from braid import errors
from braid.errors import BraidError

__all__ = [
    "INTERNAL",
    "depth_of",
    "error_body",
    "headers_of",
    "logged_as",
    "mistake_body",
    "param_of",
    "retry_after",
    "status_of",
]

INTERNAL = "internal"
"""The wire code of a mistake of ours."""

_STATUS: dict[type[BraidError], int] = {
    errors.BraidError: 500,
    errors.InputError: 400,
    errors.TopologyError: 400,
    errors.TranscriptError: 500,
    errors.ModelError: 500,
    errors.ModelNotFoundError: 404,
    errors.UnsupportedModelError: 400,
    errors.ChatTemplateError: 400,
    errors.CheckpointConflictError: 400,
    errors.ContextOverflowError: 400,
    errors.CacheError: 500,
    errors.PoolFullError: 503,
    errors.PoolTooSmallError: 400,
    errors.SessionError: 409,
    errors.SessionClosedError: 410,
    errors.QueueFullError: 429,
    errors.EngineError: 500,
    errors.EngineBusyError: 429,
    errors.EngineClosedError: 503,
    errors.ServerError: 500,
    errors.UnauthenticatedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.RateLimitError: 429,
    errors.TooLargeError: 413,
    errors.ConnectionLostError: 502,
    errors.UnsupportedByBackend: 400,
}
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    410: "conflict_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_BUSY = 1.0
"""Seconds until another try, where nobody knows better."""


def status_of(error: BraidError) -> int:
    """The HTTP status of an error: that of its class, or of the nearest one above."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def retry_after(error: BraidError) -> float | None:
    """Seconds after which another try may succeed; None where it will not."""
    if status_of(error) not in (429, 503):
        return None
    return getattr(error, "retry_after_s", _BUSY)


def error_body(error: BraidError, param: str | None = None) -> dict[str, Any]:
    """What the client is told."""
    kind = _TYPES.get(status_of(error), "server_error")
    return {"error": {"message": str(error), "type": kind, "param": param or error.param, "code": error.code}}


def mistake_body(message: str) -> dict[str, Any]:
    """What the client is told of a mistake of ours: that it was one, and nothing of what it was."""
    return {"error": {"message": message, "type": "server_error", "param": None, "code": INTERNAL}}


def logged_as(request: str) -> str:
    """The words for a mistake that the log has under a request's number."""
    return f"an internal error; the server's log has it as {request}"


def param_of(place: Sequence[str | int], body: object) -> str:
    """The field that a place in a request means, such as `messages[2].content`.

    Args:
        place: Where a check has failed, as pydantic tells it: with the names of the kinds that it has tried.
        body: What was sent, in which those names do not occur.
    """
    param, at = "", body
    for number, part in enumerate(place[1:], 1):
        if isinstance(at, Mapping) and part in at:
            param, at = f"{param}.{part}", cast("Mapping[Any, object]", at)[part]
        elif isinstance(at, list) and isinstance(part, int):
            param, at = f"{param}[{part}]", cast("list[object]", at)[part]
        elif number == len(place) - 1 and isinstance(at, Mapping):
            param = f"{param}.{part}"  # what is missing
    return param.removeprefix(".") or ".".join(map(str, place[1:] or place))


def depth_of(param: str) -> int:
    """How many steps lead to a field."""
    return param.count(".") + param.count("[")


def headers_of(error: BraidError) -> dict[str, str]:
    """Headers that belong to an error."""
    wait = retry_after(error)
    headers = {} if wait is None else {"retry-after": str(max(1, math.ceil(wait)))}
    if status_of(error) == 401:
        headers["www-authenticate"] = 'Bearer, Basic realm="braid", charset="UTF-8"'
    return headers
