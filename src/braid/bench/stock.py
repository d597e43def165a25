"""Our end of the pipes to `baseline.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import torch

from braid.errors import UnsupportedModelError

__all__ = ["StockProcess"]


class StockProcess:
    """The stock forward in another process; to be used as a context manager.

    Args:
        folder: Of the network, as `transformers` loads it.
        dtype: Of its weights.
        threads: CPU threads.
        cached: Tokens in its cache.

    Raises:
        UnsupportedModelError: `transformers` cannot run it; the message has the end of what it said.
    """

    def __init__(self, folder: str, dtype: torch.dtype, threads: int, cached: int) -> None:
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (until _stop)
        script = Path(__file__).with_name("baseline.py")
        name = str(dtype).removeprefix("torch.")
        self._process = subprocess.Popen(
            # -P: the script's own folder is no place to import from, or the package's modules would be found there.
            [sys.executable, "-P", str(script), folder, name, str(threads), str(cached)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            hello = self._read()
        except BaseException:
            self._stop()
            raise
        assert not hello.pop("is_patched"), "the baseline has imported braid"
        self.versions = hello
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def time(self, tokens: int) -> float:
        """Milliseconds of one stock forward on so many new tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"tokens": tokens}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["ms"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return cast("dict[str, Any]", json.loads(line))
        self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().strip().splitlines()
        raise UnsupportedModelError(
            f"transformers alone cannot run this model ({said[-1] if said else 'it said nothing'}), so rows have "
            "nothing to be compared with; `braid check` says whether Braid can"
        )

    def _stop(self) -> None:
        """Hang up, and wait until the other side has gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._complaints.close()
