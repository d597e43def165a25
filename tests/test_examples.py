"""The examples of the docs, run as they are against a live server with the default model."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anyio
import pytest

from braid.model.model import Model
from braid.sessions.session import Engine
from tests.server.serving import Serving, test_settings

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture(scope="module")
def url(smollm2: Model) -> Iterator[str]:
    with Serving(Engine(smollm2, kv_tokens=4096), test_settings(model=smollm2.name)) as serving:
        yield serving.base_url


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_example_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "agent",
        "audit",
        "calculator",
        "documents",
        "speaking",
    }


def test_speaking(url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("speaking")
    monkeypatch.setattr(module, "PAUSE_S", 0.1)
    said = anyio.run(module.main, url)
    assert said["thought"]
    assert said["output"]
    assert "rows after the last word" in capsys.readouterr().out


def test_the_agent_goes_on_while_its_tool_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = anyio.run(example("agent").main, url)
    assert '"Paris"' in said["tool_call"]
    printed = capsys.readouterr().out
    called, read = printed.index("[calls weather"), printed.index("[the result is there]")
    assert called < read


def test_documents(url: str) -> None:
    assert "eight" in anyio.run(example("documents").main, url)["output"]


def test_code_and_audit(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = anyio.run(example("audit").main, url)
    assert "def " in said["output"]
    assert said["audit"]
    assert "[audit is active" in capsys.readouterr().out


def test_running_code_feeds_back(url: str) -> None:
    said = anyio.run(example("calculator").main, url)
    assert said["code"].endswith("=")
    assert said["output"]


def test_the_calculator_runs_nothing_but_arithmetic() -> None:
    calculate = example("calculator").calculate
    assert calculate("2 + 3 * 4 - 1") == 13
    for code in ("__import__('os')", "2 ** 9", "a + 1", "print(1)"):
        with pytest.raises(SyntaxError):
            calculate(code)
