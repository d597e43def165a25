"""Every error class has a status and a body, and none of its own making leaks."""

from __future__ import annotations

import pytest

from braid import errors
from braid.errors import BraidError, EngineBusyError, ForbiddenFlowError, RateLimitError
from braid.server.errors import error_body, headers_of, retry_after, status_of

CLASSES = [getattr(errors, name) for name in errors.__all__ if name.endswith(("Error", "Backend"))]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_class_has_a_status(kind: type[BraidError]) -> None:
    error = kind("what is wrong")
    status = status_of(error)
    assert 400 <= status < 600
    body = error_body(error)["error"]
    assert body["message"] == "what is wrong"
    assert body["code"] == kind.code
    assert (retry_after(error) is not None) == (status in (429, 503))


def test_codes_and_exit_codes_are_unique() -> None:
    assert len({kind.code for kind in CLASSES}) == len(CLASSES)
    assert len({kind.exit_code for kind in CLASSES}) == len(CLASSES)


def test_the_nearest_class_above_decides() -> None:
    assert status_of(ForbiddenFlowError("x")) == 400


def test_when_to_try_again() -> None:
    assert headers_of(EngineBusyError("x", 2.3)) == {"retry-after": "3"}
    assert headers_of(RateLimitError("x", 0.1)) == {"retry-after": "1"}
