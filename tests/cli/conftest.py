"""A tiny model on disk, topologies that finish soon, and the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from braid.cli import app
from tests.model.folders import save_tiny

SHORT = """
name: short
decoding: views
streams:
  user: {direction: input, feed: burst}
  output: {direction: output, wait_k: end, max_tokens: 3}
"""

DUET = """
name: duet
decoding: views
streams:
  document: {direction: input, feed: burst}
  user: {direction: input, feed: burst}
  thought: {direction: output, visibility: internal, wait_k: 2, max_tokens: 12, max_streams: 2}
  output: {direction: output, wait_k: end, max_tokens: 6}
"""

Braid = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, one token a byte and a long context."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, max_position_embeddings=32_768)
    return folder


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ordinary answer of three tokens."""
    return _write(tmp_path_factory, "short.yaml", SHORT)


@pytest.fixture(scope="session")
def duet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two inputs, a thinker and an answer."""
    return _write(tmp_path_factory, "duet.yaml", DUET)


def _write(factory: pytest.TempPathFactory, name: str, text: str) -> Path:
    path = factory.mktemp("topology") / name
    path.write_text(text)
    return path


@pytest.fixture
def braid() -> Braid:
    """Run a command line in this process: `braid("run", "--user", "Hi", input=b"…")`."""

    def run(*arguments: object, stdin: bytes | None = None) -> Result:
        threads = ["--threads", "1"] if arguments[:1] == ("run",) and "--threads" not in arguments else []
        return CliRunner().invoke(app, [*map(str, arguments), *threads], input=stdin)

    return run


def events(result: Result) -> list[dict[str, Any]]:
    """The events that a command has printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]
