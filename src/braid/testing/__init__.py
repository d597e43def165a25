"""What tests of Braid, and of things built on it, need: the dense oracle, and a backend that computes nothing.

oracle   a transcript's logits, recomputed densely, with none of the engine's code
null     a backend without a network: scripted or hashed tokens, real page books
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braid.testing.null import NullBackend, NullModel
    from braid.testing.oracle import ReferenceLogits, reference_logits

__all__ = ["NullBackend", "NullModel", "ReferenceLogits", "reference_logits"]

_HOMES = {
    "NullBackend": "braid.testing.null",
    "NullModel": "braid.testing.null",
    "ReferenceLogits": "braid.testing.oracle",
    "reference_logits": "braid.testing.oracle",
}


def __getattr__(
    name: str,
) -> Any:  # the null backend needs no torch, so the oracle is imported when it is asked for
    if name not in _HOMES:
        raise AttributeError(f"module 'braid.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
