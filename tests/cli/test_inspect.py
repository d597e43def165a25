"""`braid inspect`: the grid, the figures, the picture, and what was lost."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from braid.streams.entries import Cell, LifeEvent, Row
from braid.streams.presets import topology
from braid.streams.transcript import Transcript
from tests.cli.conftest import Braid, events


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A short run with a thinker."""
    transcript = Transcript(topology("think-aloud"), "toy")
    transcript.append(LifeEvent(0, "open", "user"))
    transcript.append(Row(0, {"user": Cell(1, "How", True)}))
    transcript.append(Row(1, {"user": Cell(2, " many?", True), "thought": Cell(3, "3+4")}))
    transcript.append(Row(2, {"thought": Cell(4, "=7"), "output": Cell(5, "Seven 你")}))
    transcript.append(LifeEvent(3, "turn"))
    path = tmp_path / "run.jsonl"
    transcript.save(path)
    return path


def test_the_grid_and_the_figures(saved: Path, braid: Braid) -> None:
    result = braid("inspect", saved)
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines() if line.strip()}
    assert "How" in lines["user"]
    assert "3+4" in lines["thought"]
    assert "Seven" in lines["output"]
    assert "toy, think-aloud · 3 rows · user 2 · thought 2 · output 1 · TNFT 0 · MSL 2" in result.stdout
    assert result.stderr == ""


def test_json(saved: Path, braid: Braid) -> None:
    (data,) = events(braid("inspect", saved, "--json"))
    assert data["text"] == {"user": "How many?", "thought": "3+4=7", "output": "Seven 你"}
    assert (data["rows"], data["msl"], data["tnft"], data["damage"]) == (3, 2, 0, None)
    assert data["tokens"] == {"user": 2, "thought": 2, "output": 1}


def test_the_timeline(saved: Path, braid: Braid, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    assert braid("inspect", saved, "--svg", picture).exit_code == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert braid("inspect", saved, "--svg", tmp_path / "no" / "run.svg").exit_code == 10


def test_a_torn_last_line_is_reported(saved: Path, braid: Braid) -> None:
    saved.write_bytes(saved.read_bytes()[:-9])
    result = braid("inspect", saved)
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: ")
    (data,) = events(braid("inspect", saved, "--json"))
    assert data["damage"]
