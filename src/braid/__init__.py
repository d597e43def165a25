"""Braid: a language model that reads, thinks and answers at the same time.

    import braid

    model = braid.load("smollm2-135m")
    result = braid.generate(model, "think-aloud", "Sally has 3 apples and buys 4 more. How many are there?")
    result["output"].text, result["thought"].text, result.metrics.tnft

Names are imported when they are first used, so that `import braid` costs nothing and brings no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from braid import errors
from braid._version import __version__

if TYPE_CHECKING:
    from braid.model.loading import load
    from braid.sessions.generate import Result, generate
    from braid.sessions.session import Engine, Session
    from braid.sessions.workflow import Workflow
    from braid.streams.presets import topology
    from braid.streams.sampling import SamplingSpec
    from braid.streams.topology import Topology
    from braid.streams.transcript import Transcript

__all__ = [
    "Engine",
    "Result",
    "SamplingSpec",
    "Session",
    "Topology",
    "Transcript",
    "Workflow",
    "__version__",
    "errors",
    "generate",
    "load",
    "topology",
]

_HOMES = {
    "Engine": "braid.sessions.session",
    "Result": "braid.sessions.generate",
    "SamplingSpec": "braid.streams.sampling",
    "Session": "braid.sessions.session",
    "Topology": "braid.streams.topology",
    "Transcript": "braid.streams.transcript",
    "Workflow": "braid.sessions.workflow",
    "generate": "braid.sessions.generate",
    "load": "braid.model.loading",
    "topology": "braid.streams.presets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'braid' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
