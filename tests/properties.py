"""How thoroughly the costly properties are tried."""

from __future__ import annotations

import os

__all__ = ["examples"]


def examples(count: int) -> int:
    """Of so many examples a third in the default run, all in `make thorough`."""
    return count if os.environ.get("BRAID_THOROUGH") else -(-count // 3)
