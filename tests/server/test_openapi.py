"""Schemathesis on the OpenAPI document: whatever it makes up is answered, and none of it is a mistake of ours."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.serving import Serving, null_engine, test_settings

RIGHT = {"model": "null", "messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi"}
EXAMPLES = int(os.environ.get("BRAID_OPENAPI_EXAMPLES", "40"))


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    engine = null_engine(script={"output": ["Hello."]})
    with Serving(engine, test_settings(max_tokens=8, admission_timeout_s=1.0)) as serving:
        yield serving


def test_no_request_that_fits_the_document_is_our_mistake(server: Serving) -> None:
    document = httpx.get(f"{server.base_url}/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    statuses: Counter[str] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.label == "GET /metrics":
            continue

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=operation.as_strategy(), is_right=st.booleans())
        def answers(case: Any, is_right: bool) -> None:
            if is_right and isinstance(case.body, dict):  # or hardly anything would be answered
                case.body |= {name: value for name, value in RIGHT.items() if name in case.body}
            response = case.call(base_url=server.base_url)
            statuses[f"{operation.label} {response.status_code}"] += 1  # noqa: B023 (called in this round)
            assert response.status_code < 500, response.text

        answers()
    print(dict(statuses))
    assert statuses["POST /v1/chat/completions 200"]
    assert statuses["POST /v1/chat/completions 400"]
    assert sum(statuses.values()) >= 6 * EXAMPLES


def test_the_document_tells_of_every_route(server: Serving) -> None:
    paths = httpx.get(f"{server.base_url}/openapi.json").json()["paths"]
    for path in (
        "/v1/models",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/live/schema",
        "/health",
        "/ready",
        "/metrics",
    ):
        assert path in paths
