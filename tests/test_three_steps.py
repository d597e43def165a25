"""The page on three steps: its files are run against a live server with the default model."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

import braid.client
from braid.model.model import Model
from braid.sessions.session import Engine
from braid.streams import Topology
from tests.server.serving import Serving, test_settings

DOCS = Path(__file__).parents[1] / "docs"
STEPS = DOCS / "examples" / "three_steps"
PAUSE_S = 0.1

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def run(smollm2: Model) -> Iterator[Run]:
    """Runs a step on a server of its own, on which nothing is cached yet; returns its figures."""
    sys.path.insert(0, str(STEPS))
    importlib.import_module("read_ahead").PAUSE_S = PAUSE_S

    def one(name: str) -> Any:
        main = importlib.import_module(name).main
        with served(smollm2) as serving:
            return main(serving.base_url) if name == "one_stream" else anyio.run(main, serving.base_url)

    yield one
    sys.path.remove(str(STEPS))
    for path in STEPS.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture(scope="module")
def start(run: Run) -> Any:
    return run("one_stream")


def served(model: Model) -> Serving:
    return Serving(Engine(model, kv_tokens=4096), test_settings(model=model.name))


def step(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_the_start_thinks_and_calls_before_it_answers(start: Any) -> None:
    assert start.read > 40, "the question is read when it has ended"
    assert start.rows > 10, "thought and call come after it, one after the other"
    assert start.seconds > 1, "and so does the tool"


def test_reading_ahead_leaves_less_to_read(start: Any, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    figures = run("read_ahead")
    assert figures.read < start.read - 10
    assert abs(figures.rows - start.rows) <= 1, "it says what it said before"
    assert "Thought:" in capsys.readouterr().out


def test_a_thought_of_its_own_leaves_less_to_say(
    start: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run("own_thought")
    assert figures.rows < start.rows - 2, "even where most of the thought comes after the question"
    printed = capsys.readouterr().out
    assert "[thought: Thought:" in printed
    assert re.search(r"\[check: (yes|no)\]", printed)
    assert max(printed.index("[thought:"), printed.index("[call:")) < printed.index("Answer:")
    assert "Thought" not in printed[printed.index("Answer:") :]


def test_a_thought_that_goes_astray_is_stopped(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step("own_thought"), "FORBIDDEN", re.compile("I need"))
    run("own_thought")
    printed = capsys.readouterr().out
    thought = re.findall(r"\[thought: (.*?)\]", printed)
    assert len(thought[0]) < len("Thought: I need the weather in Paris.")
    assert "Answer:" in printed


def test_the_output_is_read_without_the_inner_streams(smollm2: Model, run: Run) -> None:
    topology = step("own_thought").TOPOLOGY

    async def heard(url: str) -> set[str]:
        async with (
            braid.client.connect(url) as client,
            client.open(topology) as session,
        ):
            await session.write("user", "I am going to Paris. What is the weather in Paris?")
            await session.write("result", "Result: Paris: sun, 21 degrees.")
            await session.end()
            streams: set[str] = set()
            async for message in session:
                if message.type == "delta":
                    streams.add(message.stream)
                if message.type == "turn":
                    return streams
            raise AssertionError("the session has ended early")

    with served(smollm2) as serving:
        assert anyio.run(heard, serving.base_url) == {"output"}


def test_tools_run_while_the_question_is_typed(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = step("several_tools")
    both_run = anyio.Event()
    running: list[str] = []

    async def together(seconds: float, found: str) -> str:
        """A tool that comes back only when the other one runs, too."""
        running.append(found)
        if len(running) == 2:
            both_run.set()
        with anyio.fail_after(60):
            await both_run.wait()
        module.RAN.append((0.0, seconds))
        return found

    monkeypatch.setattr(module, "slowly", together)
    monkeypatch.setattr(module, "RAN", [])
    run("several_tools")
    printed = capsys.readouterr().out
    at = {
        (stream, state): int(row)
        for row, stream, state in re.findall(r"\[row (\d+): (\w+) is (\w+)\]", printed)
    }
    for tool in ("weather", "train"):
        assert at[f"{tool}_call", "active"] < at["user", "asleep"], "it woke before the question had ended"
        assert at[f"{tool}_call", "active"] < at[f"{tool}_result", "active"]
    assert at["train_call", "active"] < at["weather_result", "active"], "nobody waited for the first result"
    assert "output is active" in printed
    assert "tools ran 3.0 s, 0.0 s of it after the question" in printed


@pytest.mark.parametrize("path", sorted(STEPS.glob("*.yaml")), ids=lambda path: path.name)
def test_the_topologies_load(path: Path) -> None:
    assert Topology.from_yaml(path.read_text()).name == path.stem


def test_the_page_shows_the_files() -> None:
    page = (DOCS / "three-steps.md").read_text()
    shown = re.findall(r"^<!-- from: (\S+) -->\n```\w+\n(.*?)^```$", page, re.M | re.S)
    assert {name for name, _ in shown} >= {f"{path.name}" for path in STEPS.glob("*.yaml")}
    for name, text in shown:
        assert text in (STEPS / name).read_text(), name
    assert [path.name for path in STEPS.glob("*.py") if f"three_steps/{path.name}" not in page] == []
