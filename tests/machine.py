"""What of this machine one process of the tests may use."""

from __future__ import annotations

import os

__all__ = ["THREADS"]

THREADS = max(1, 2 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Threads of the networks for which two pay: two for all processes that share the tests, see `make test`."""
