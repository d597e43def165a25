"""Spans go to whoever was given, and nowhere without."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from braid.engine.tracing import NO_TRACER, AttributeValue, Tracer


class Recorder:
    """A tracer as OpenTelemetry's: a generator that is made a context manager."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.spans: list[tuple[tuple[str, ...], Mapping[str, AttributeValue]]] = []

    @contextmanager
    def start_as_current_span(
        self, name: str, *, attributes: Mapping[str, AttributeValue] | None = None
    ) -> Iterator[None]:
        self.open.append(name)
        self.spans.append((tuple(self.open), attributes or {}))
        try:
            yield
        finally:
            self.open.pop()


def work(tracer: Tracer) -> None:
    with (
        tracer.start_as_current_span("step", attributes={"rows": 2}),
        tracer.start_as_current_span("forward"),
    ):
        pass


def test_spans_nest_and_carry_attributes() -> None:
    recorder = Recorder()
    work(recorder)
    assert recorder.spans == [(("step",), {"rows": 2}), (("step", "forward"), {})]
    assert not recorder.open


def test_the_null_tracer_swallows_spans_and_no_errors() -> None:
    work(NO_TRACER)
    with pytest.raises(ZeroDivisionError), NO_TRACER.start_as_current_span("step"):
        raise ZeroDivisionError


def test_nothing_is_imported_for_it() -> None:
    code = "import sys, braid.engine.tracing; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
