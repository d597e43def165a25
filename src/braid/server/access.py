"""Who is calling, and what they may do: keys, their limits, and web pages of other origins.

    request ── host allowed? ── key known? ── origin allowed? ── rate left? ──▶ Caller

Keys are compared by their digests, in constant time, and appear nowhere else: logs and metrics have names.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from braid.errors import ForbiddenError, RateLimitError, UnauthenticatedError
from braid.server.settings import ServerSettings, is_loopback

__all__ = ["COOKIE", "Caller", "Gate", "Headers"]

Headers = Mapping[str, str]

COOKIE = "braid_visit"
"""Of a browser that gave its key once; it holds no key."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1", "testserver"})
PROTOCOL_PREFIXES = ("openai-insecure-api-key.", "braid-key.")
"""Browsers cannot set headers on a WebSocket; they send the key as a subprotocol."""
MAX_VISITS = 10_000


@dataclass
class _Bucket:
    """So many at once, refilled over a minute."""

    capacity: float
    left: float
    at: float


@dataclass
class Caller:
    """Somebody whose key is known, or anybody where there are none.

    Args:
        name: For logs and metrics.
        sees_internal: Whether inner streams may be shown to them.
        max_sessions: Sessions and requests that may be under way at once; None for no limit.
        per_minute: Requests in a minute; None for no limit.
    """

    name: str
    sees_internal: bool = False
    max_sessions: int | None = None
    per_minute: int | None = None
    num_busy: int = 0
    _bucket: _Bucket | None = field(default=None, repr=False)

    @property
    def salt(self) -> str:
        """What keeps cached prefixes of tenants apart."""
        return self.name

    def spend(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Count a request.

        Raises:
            RateLimitError: There were too many in the last minute.
        """
        if self.per_minute is None:
            return
        now = clock()
        bucket = self._bucket
        if bucket is None:
            bucket = self._bucket = _Bucket(self.per_minute, self.per_minute, now)
        bucket.left = min(bucket.capacity, bucket.left + (now - bucket.at) * bucket.capacity / 60)
        bucket.at = now
        if bucket.left < 1:
            wait = (1 - bucket.left) * 60 / bucket.capacity
            raise RateLimitError(
                f"the key {self.name!r} allows {self.per_minute} requests a minute; try again in {wait:.1f} s",
                wait,
            )
        bucket.left -= 1

    @contextmanager
    def busy(self) -> Generator[None]:
        """Count something as under way.

        Raises:
            RateLimitError: Too much is under way already.
        """
        self.begin()
        try:
            yield
        finally:
            self.end()

    def begin(self) -> None:
        """Count something as under way; raises RateLimitError when too much is already."""
        if self.max_sessions is not None and self.num_busy >= self.max_sessions:
            raise RateLimitError(
                f"the key {self.name!r} allows {self.max_sessions} sessions and requests at once; "
                "finish one, or try again later"
            )
        self.num_busy += 1

    def end(self) -> None:
        """Something is over."""
        self.num_busy -= 1


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Gate:
    """Tells who is calling.

    Args:
        settings: Of the server.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._callers = [
            (
                _digest(key.key.get_secret_value()),
                Caller(key.name, key.internal, key.max_sessions, key.requests_per_minute),
            )
            for key in settings.keys
        ]
        self._anybody = Caller("anybody", settings.internal_without_keys)
        self._visits: dict[str, Caller] = {}
        if settings.allowed_hosts is not None:
            self._hosts: frozenset[str] | None = frozenset(settings.allowed_hosts)
        else:
            self._hosts = LOOPBACK_NAMES if is_loopback(settings.host) else None

    @property
    def needs_keys(self) -> bool:
        """Whether callers have to say who they are."""
        return bool(self._callers)

    def require_host(self, headers: Headers) -> None:
        """Refuse a name that this server is not known by: a page of another site might have been pointed at it.

        Raises:
            ForbiddenError
        """
        host = _name_of(headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            raise ForbiddenError(
                f"this server is not reached as {host!r}; add the name to allowed_hosts, or use "
                f"{', '.join(sorted(self._hosts - {'testserver'}))}"
            )

    def require_origin(self, headers: Headers) -> None:
        """Refuse a web page of another origin; programs send none.

        Raises:
            ForbiddenError
        """
        origin = headers.get("origin")
        if origin is None or origin in self._settings.cors_origins or "*" in self._settings.cors_origins:
            return
        if urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
            raise ForbiddenError(
                f"pages of {origin} may not use this server; add the origin to cors_origins to allow it"
            )

    def caller(self, headers: Headers, cookies: Mapping[str, str]) -> Caller:
        """Who is calling.

        Raises:
            UnauthenticatedError: No key, or an unknown one.
        """
        if not self._callers:
            return self._anybody
        visit = self._visits.get(cookies.get(COOKIE, ""))
        if visit is not None:
            return visit
        key = _key_in(headers)
        if key is None:
            raise UnauthenticatedError("an API key is needed: send it as `Authorization: Bearer KEY`")
        digest, found = _digest(key), None
        for known, caller in self._callers:  # all of them, so that the time tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthenticatedError("this API key is not known")
        return found

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Whether a browser has a cookie of this server already."""
        return cookies.get(COOKIE, "") in self._visits

    def begin_visit(self, caller: Caller) -> str:
        """A token that a browser keeps as its cookie, so that pages and WebSockets of this origin know the caller."""
        while len(self._visits) >= MAX_VISITS:
            del self._visits[next(iter(self._visits))]
        token = secrets.token_urlsafe(32)
        self._visits[token] = caller
        return token


def _key_in(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value:
        return value.strip()
    if scheme.lower() == "basic":  # what a browser asks for: any name, and the key as the password
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    if "api-key" in headers:
        return headers["api-key"]
    for protocol in headers.get("sec-websocket-protocol", "").split(","):
        for prefix in PROTOCOL_PREFIXES:
            if protocol.strip().startswith(prefix):
                return protocol.strip().removeprefix(prefix)
    return None


def _name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower()
