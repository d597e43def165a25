"""The door: nobody without a key, nothing too large, no mistake of ours in an answer, no text in the log."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from braid.server.log import set_up
from braid.server.settings import ApiKey
from tests.server.serving import Serving, null_engine, test_settings

KEY = "a-very-long-secret"
PROMPT = "my secret prompt"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    set_up("debug", stream)
    yield stream
    set_up("error", io.StringIO())


def lines(log: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


@pytest.fixture
def guarded() -> Iterator[Serving]:
    key = ApiKey(key=KEY, name="me", requests_per_minute=1000)  # pyright: ignore[reportArgumentType]
    with Serving(null_engine(), test_settings(keys=(key,))) as server:
        yield server


def routes(router: Any) -> Iterator[Any]:
    """Every route, those of included routers too."""
    for route in router.routes:
        if hasattr(route, "original_router"):
            yield from routes(route.original_router)
        elif hasattr(route, "routes"):
            yield from routes(route)
        else:
            yield route


def test_no_route_without_a_key(guarded: Serving) -> None:
    tried = 0
    for route in routes(guarded.app):
        if isinstance(route, WebSocketRoute) or type(route).__name__ == "APIWebSocketRoute":
            with pytest.raises(InvalidStatus) as caught:
                connect(guarded.ws_url + route.path.replace("{", "").replace("}", ""))
            assert caught.value.response.status_code == 401
            tried += 1
        elif isinstance(route, Route | APIRoute):
            for method in route.methods or ():
                answer = httpx.request(
                    method, guarded.base_url + route.path.replace("{", "").replace("}", "")
                )
                assert answer.status_code == 401, (method, route.path)
                assert (
                    "key" in answer.headers["www-authenticate"].lower() or method == "HEAD" or answer.json()
                )
                tried += 1
    assert tried >= 4
    assert httpx.get(guarded.base_url + "/nowhere").status_code == 401
    assert httpx.get(guarded.base_url + "/health", headers={"authorization": f"Bearer {KEY}"}).is_success


def test_routes_that_were_opened() -> None:
    key = ApiKey(key=KEY, name="me")  # pyright: ignore[reportArgumentType]
    settings = test_settings(keys=(key,), open_routes=("/health",))
    with Serving(null_engine(), settings) as server:
        assert httpx.get(server.base_url + "/health").is_success
        assert httpx.get(server.base_url + "/ready").status_code == 401


def test_a_browser_gives_its_key_once(guarded: Serving) -> None:
    with httpx.Client(base_url=guarded.base_url) as browser:
        first = browser.get("/health")
        assert first.status_code == 401
        assert "Basic" in first.headers["www-authenticate"]
        assert browser.get("/health", auth=("me", KEY)).is_success
        cookie = next(iter(browser.cookies.jar))
        assert KEY not in (cookie.value or "")
        assert browser.get("/health").is_success
        assert "set-cookie" not in browser.get("/health", auth=("me", KEY)).headers


def test_mistakes_of_ours_tell_nothing(log: io.StringIO) -> None:
    with Serving(null_engine(), test_settings()) as server:

        async def broken() -> None:
            raise RuntimeError(PROMPT)

        server.app.add_api_route("/broken", broken)
        answer = httpx.get(server.base_url + "/broken")
    assert answer.status_code == 500
    assert PROMPT not in answer.text
    assert answer.json()["error"]["code"] == "internal"
    assert answer.headers["x-request-id"] in answer.text
    assert PROMPT not in log.getvalue()
    (mistake,) = [line for line in lines(log) if line["event"] == "mistake"]
    assert mistake["error"] == "RuntimeError"
    assert mistake["request"] == answer.headers["x-request-id"]


def test_the_log_has_text_when_it_is_asked_for(log: io.StringIO) -> None:
    with Serving(null_engine(), test_settings(log_text=True)) as server:
        server.service.log.info("said", text=PROMPT)
    with Serving(null_engine(), test_settings()) as server:
        server.service.log.info("unsaid", text=PROMPT)
    by_event = {str(line["event"]): line for line in lines(log)}
    assert by_event["said"]["text"] == PROMPT
    assert "text" not in by_event["unsaid"]


def test_no_secret_in_the_log(guarded: Serving, log: io.StringIO) -> None:
    httpx.get(guarded.base_url + "/health", headers={"authorization": f"Bearer {KEY}"})
    httpx.get(guarded.base_url + "/health", headers={"authorization": "Bearer wrong-but-secret"})
    assert "request" in log.getvalue()
    assert KEY not in log.getvalue()
    assert "wrong-but-secret" not in log.getvalue()


def test_a_body_that_is_too_large_is_refused() -> None:
    with Serving(null_engine(), test_settings(max_body_bytes=1000)) as server:

        async def take(data: dict[str, str]) -> None:
            pass

        server.app.add_api_route("/take", take, methods=["POST"])
        assert httpx.post(server.base_url + "/take", json={"x": "y" * 900}).is_success
        for content in (b'{"x": "' + b"y" * 2000 + b'"}', iter([b'{"x": "', b"y" * 2000, b'"}'])):
            answer = httpx.post(
                server.base_url + "/take", content=content, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 413, answer.text
            assert "1000 bytes" in answer.json()["error"]["message"]


def test_the_wrong_host_and_origin() -> None:
    with Serving(null_engine(), test_settings()) as server:
        assert httpx.get(server.base_url + "/health", headers={"host": "evil.example"}).status_code == 403
        headers = {"origin": "http://evil.example"}
        assert httpx.post(server.base_url + "/health", headers=headers).status_code == 403
        assert (
            "access-control-allow-origin"
            not in httpx.get(server.base_url + "/health", headers=headers).headers
        )


def test_cors_for_those_who_are_named() -> None:
    with Serving(null_engine(), test_settings(cors_origins=("https://app.example",))) as server:
        headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
        answer = httpx.options(server.base_url + "/v1/models", headers=headers)
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        refused = httpx.options(
            server.base_url + "/v1/models", headers={**headers, "origin": "https://evil.example"}
        )
        assert refused.status_code == 403


def test_wrong_paths_and_methods() -> None:
    with Serving(null_engine(), test_settings()) as server:
        assert httpx.get(server.base_url + "/nowhere").json()["error"]["code"] == "server.not_found"
        answer = httpx.delete(server.base_url + "/health")
        assert answer.status_code == 405
        assert "DELETE" in answer.json()["error"]["message"]


def test_metrics_of_server_and_engine() -> None:
    with Serving(null_engine(), test_settings()) as server:
        httpx.get(server.base_url + "/health")
        text = httpx.get(server.base_url + "/metrics").text
    assert 'braid_requests_total{caller="anybody",route="/health",status="200"} 1.0' in text


def test_every_answer_is_safe_to_show() -> None:
    with Serving(null_engine(), test_settings()) as server:
        headers = httpx.get(server.base_url + "/health").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers
