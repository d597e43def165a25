"""Who is let in: hosts, keys, origins, limits."""

from __future__ import annotations

import base64

import pytest

from braid.errors import ForbiddenError, RateLimitError, UnauthenticatedError
from braid.server.access import COOKIE, Caller, Gate
from braid.server.settings import ApiKey, ServerSettings

KEY, OTHER = "a-very-long-secret", "another-long-secret"


def gate(**settings: object) -> Gate:
    keys = (
        ApiKey(key=KEY, name="me", internal=True),  # pyright: ignore[reportArgumentType]
        ApiKey(key=OTHER, name="you"),  # pyright: ignore[reportArgumentType]
    )
    return Gate(ServerSettings(**{"keys": keys, "database": "memory", **settings}))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"authorization": "Basic " + base64.b64encode(f"any:{KEY}".encode()).decode()},
        {"api-key": KEY},
        {"sec-websocket-protocol": f"realtime, openai-insecure-api-key.{KEY}"},
        {"sec-websocket-protocol": f"braid, braid-key.{KEY}"},
    ],
)
def test_ways_to_send_a_key(headers: dict[str, str]) -> None:
    assert gate().caller(headers, {}).name == "me"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Digest {KEY}"},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
    ],
)
def test_anybody_else_is_told_that_a_key_is_needed(headers: dict[str, str]) -> None:
    with pytest.raises(UnauthenticatedError, match="key") as caught:
        gate().caller(headers, {})
    assert KEY not in str(caught.value)


def test_a_browser_that_came_with_a_key_comes_back_without() -> None:
    door = gate()
    token = door.begin_visit(door.caller({"authorization": f"Bearer {OTHER}"}, {}))
    assert KEY not in token
    assert door.caller({}, {COOKIE: token}).name == "you"
    with pytest.raises(UnauthenticatedError):
        door.caller({}, {COOKIE: token + "x"})


def test_without_keys_everybody_is_the_operator_or_not() -> None:
    assert gate(keys=()).caller({}, {}).sees_internal
    assert not gate(keys=(), internal_without_keys=False).caller({}, {}).sees_internal


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_on_loopback_it_has_loopback_names(host: str) -> None:
    gate().require_host({"host": host})


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example:80"])
def test_a_name_that_was_pointed_at_it_is_refused(host: str) -> None:
    with pytest.raises(ForbiddenError, match="allowed_hosts"):
        gate().require_host({"host": host})


def test_other_names_where_it_listens_to_all_or_is_told() -> None:
    gate(host="0.0.0.0").require_host({"host": "braid.example"})
    gate(allowed_hosts=("braid.example",)).require_host({"host": "braid.example:443"})
    with pytest.raises(ForbiddenError):
        gate(host="0.0.0.0", allowed_hosts=("braid.example",)).require_host({"host": "localhost"})


def test_pages_of_other_origins() -> None:
    gate().require_origin({"host": "localhost:8000"})
    gate().require_origin({"host": "localhost:8000", "origin": "http://localhost:8000"})
    gate(cors_origins=("https://app.example",)).require_origin({"host": "x", "origin": "https://app.example"})
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:9000",
        "http://localhost:8000.evil.example",
    ):
        with pytest.raises(ForbiddenError, match="cors_origins"):
            gate().require_origin({"host": "localhost:8000", "origin": origin})


def test_so_many_a_minute() -> None:
    now = [0.0]
    caller = Caller("me", per_minute=60)
    for _ in range(60):
        caller.spend(lambda: now[0])
    with pytest.raises(RateLimitError, match="60 requests a minute") as caught:
        caller.spend(lambda: now[0])
    assert caught.value.retry_after_s == pytest.approx(1.0)
    now[0] = 1.0
    caller.spend(lambda: now[0])
    with pytest.raises(RateLimitError):
        caller.spend(lambda: now[0])


def test_so_many_at_once() -> None:
    caller = Caller("me", max_sessions=1)
    with caller.busy(), pytest.raises(RateLimitError, match="1 sessions"), caller.busy():
        pass
    with caller.busy():
        pass
    assert caller.num_busy == 0
