"""Optional tracing: spans around the work of the engine, for any tracer of OpenTelemetry's shape.

Nothing is imported for it. Pass `opentelemetry.trace.get_tracer("braid")`, or anything else with the one method of
`Tracer`; without one, `NO_TRACER` does nothing and costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

__all__ = ["NO_TRACER", "AttributeValue", "Tracer"]

AttributeValue = str | bool | int | float
"""What a span may say about itself."""


class Tracer(Protocol):
    """What starts spans; the tracers of OpenTelemetry do."""

    def start_as_current_span(
        self, name: str, *, attributes: Mapping[str, AttributeValue] | None = None
    ) -> AbstractContextManager[Any]:
        """Return a context manager whose body is the span; spans that begin inside become its children.

        Args:
            name: What is being done.
            attributes: What is known about it when it begins.
        """
        ...


class _NoTracer:
    """A tracer that records nothing."""

    _span: AbstractContextManager[None] = nullcontext()

    def start_as_current_span(
        self, name: str, *, attributes: Mapping[str, AttributeValue] | None = None
    ) -> AbstractContextManager[Any]:
        """Do nothing."""
        del name, attributes
        return self._span


NO_TRACER: Tracer = _NoTracer()
"""For who traces nothing."""
