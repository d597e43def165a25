"""Our end of the pipes to a process that measures what Braid has not touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from braid.errors import UnsupportedModelError

__all__ = ["BaselineProcess"]


class BaselineProcess:
    """A script in a process of its own, asked a line of JSON at a time; a context manager.

    The script says hello with its versions once it has loaded the model. It answers each line with one line, and it
    computes only then, so the two sides never share the cores.

    Args:
        script: The file.
        arguments: What it is started with.
        compared: What cannot be compared if it fails, for the message.

    Raises:
        UnsupportedModelError: `transformers` cannot run the model; the message has the end of what it said.
    """

    def __init__(self, script: Path, arguments: Sequence[str], compared: str) -> None:
        self._compared = compared
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (until _stop)
        self._process = subprocess.Popen(
            # -P: the script's own folder is no place to import from, or the package's modules would be found there.
            [sys.executable, "-P", str(script), *arguments],
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

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            UnsupportedModelError: The other side has gone; the message has the end of what it said.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it may have died before it was asked; reading finds out why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return cast("dict[str, Any]", json.loads(line))
        self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().strip().splitlines()
        raise UnsupportedModelError(
            f"transformers alone cannot run this model ({said[-1] if said else 'it said nothing'}), so "
            f"{self._compared} have nothing to be compared with; `braid check` says whether Braid can"
        )

    def _stop(self) -> None:
        """Hang up, and wait until the other side has gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        with suppress(BrokenPipeError):  # something unsent may be left in the buffer
            self._process.stdin.close()
        self._process.stdout.close()
        self._complaints.close()
