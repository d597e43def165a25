"""`braid data`: build, check, show, convert."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from braid.data.files import sha256_of
from braid.errors import DataCorruptError, DataError, InputError, TokenizerError
from tests.cli.conftest import Braid


@pytest.fixture
def stories(braid: Braid, tmp_path: Path) -> Path:
    out = tmp_path / "stories.jsonl"
    result = braid("data", "build", "stories", "--count", 4, "--seed", 1, "--out", out)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert f"4 examples in {out}" in result.stderr.replace("\n", "")
    return out


@pytest.mark.parametrize("name", ["build", "check", "show", "convert"])
def test_every_command_has_an_example(name: str, braid: Braid) -> None:
    result = braid("data", name, "--help")
    assert result.exit_code == 0
    assert f"braid data {name} " in result.stdout.split("Examples")[1]


def test_what_is_built_stands_beside_its_manifest_and_tokenizer_and_checks(
    stories: Path, braid: Braid
) -> None:
    manifest = json.loads(Path(f"{stories}.manifest.json").read_text())
    assert (manifest["builder"], manifest["count"], manifest["seed"]) == ("stories", 4, 1)
    assert Path(f"{stories}.tokenizer.json").exists()
    result = braid("data", "check", stories, "--topology", "solve", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "file": str(stories),
        "examples": 4,
        "faults": 0,
        "ids_checked": True,
    }


def test_the_same_command_gives_the_same_bytes(stories: Path, braid: Braid) -> None:
    before = [stories.read_bytes(), Path(f"{stories}.tokenizer.json").read_bytes()]
    result = braid("data", "build", "stories", "-n", 4, "--seed", 1, "-o", stories, "--json")
    assert json.loads(result.stdout)["count"] == 4
    assert [stories.read_bytes(), Path(f"{stories}.tokenizer.json").read_bytes()] == before


def test_faults_are_named_and_the_exit_code_tells(stories: Path, braid: Braid) -> None:
    lines = stories.read_text().splitlines()
    third = json.loads(lines[2])
    third["num_rows"] += 1
    stories.write_text("\n".join([*lines[:2], json.dumps(third), "{", lines[0]]) + "\n")
    result = braid("data", "check", stories)
    assert result.exit_code == 1
    told = result.stdout.splitlines()
    assert told[0].startswith(f"line 3, example {third['id']}, row {third['num_rows'] - 1}: ")
    assert told[1].startswith("line 4: this is no JSON")
    assert told[2].startswith("line 5, example ")
    assert "5 examples, 3 faults" in result.stderr
    data = [json.loads(line) for line in braid("data", "check", stories, "--json").stdout.splitlines()]
    assert [each.get("rule") for each in data] == ["empty row", "json", "id", None]
    few = braid("data", "check", stories, "--most", 1)
    assert len(few.stdout.splitlines()) == 1
    assert "2 of them not shown" in few.stderr


def test_scores_are_checked_as_scores(braid: Braid, tmp_path: Path) -> None:
    scores = tmp_path / "a.scores.jsonl"
    assert braid("data", "build", "audit", "-n", 2, "-o", scores).exit_code == 0
    result = braid("data", "check", scores)
    assert (result.exit_code, result.stdout) == (0, "")
    data = json.loads(scores.read_text().splitlines()[1])
    data["parts"][2]["segments"][0]["after"] = {"usr": 1}
    scores.write_text(f"{scores.read_text()}{json.dumps({**data, 'id': 'other'})}\n")
    result = braid("data", "check", scores)
    assert result.exit_code == 1
    assert result.stdout.startswith("line 3, example other, stream audit, segment 0: it waits for 'usr'")
    braid("data", "build", "stories", "-n", 1, "-o", tmp_path / "s.jsonl")
    tokenizer = tmp_path / "s.jsonl.tokenizer.json"
    result = braid("data", "convert", scores, tmp_path / "o.jsonl", "--tokenizer", tokenizer)
    assert result.exit_code == DataCorruptError.exit_code
    assert "line 3, stream audit, segment 0" in result.stderr


def test_an_example_is_shown(stories: Path, braid: Braid) -> None:
    result = braid("data", "show", stories, "--example", 2)
    assert result.exit_code == 0
    assert "thought is asked in rows" in result.stdout
    assert "stories-train-1-1 · " in result.stdout
    data = json.loads(braid("data", "show", stories, "-e", 2, "--json").stdout)
    assert data["text"]["user"].endswith("?")
    missing = braid("data", "show", stories, "-e", 9)
    assert (missing.exit_code, "has no example 9" in missing.stderr) == (DataError.exit_code, True)


def test_there_and_back(stories: Path, braid: Braid, tmp_path: Path) -> None:
    assert braid("data", "convert", stories, tmp_path / "x.parquet").exit_code == 0
    assert braid("data", "convert", tmp_path / "x.parquet", tmp_path / "y.jsonl").exit_code == 0
    assert (tmp_path / "y.jsonl").read_bytes() == stories.read_bytes()


def test_a_conversion_has_a_manifest(stories: Path, braid: Braid, tmp_path: Path) -> None:
    scores, out = tmp_path / "a.scores.jsonl", tmp_path / "o.jsonl"
    braid("data", "build", "audit", "-n", 3, "-o", scores)
    tokenizer = Path(f"{stories}.tokenizer.json")
    options = ["--tokenizer", tokenizer, "--arrival", "typed", "--seed", 5]
    told = json.loads(braid("data", "convert", scores, out, *options, "--json").stdout)
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert told == {"file": str(out), **manifest}
    assert (manifest["layout"], manifest["seed"], manifest["arrival"]) == ("scores", 5, "typed")
    assert (manifest["count"], manifest["sha256"]) == (3, sha256_of(out))
    assert manifest["source"] == {"name": scores.name, "sha256": sha256_of(scores)}
    assert manifest["num_rows"] == sum(json.loads(line)["num_rows"] for line in out.read_text().splitlines())


def test_scores_grids_and_chats_are_laid_out(stories: Path, braid: Braid, tmp_path: Path) -> None:
    tokenizer = Path(f"{stories}.tokenizer.json")
    scores = tmp_path / "a.scores.jsonl"
    assert braid("data", "build", "audit", "-n", 3, "-o", scores, "--split", "faults").exit_code == 0
    grid = tmp_path / "dataset.jsonl"
    grid.write_text('{"num_rows": 2, "token_ids": [[50, 9], [9, 60]]}\n')
    chats = tmp_path / "chats.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    chats.write_text(json.dumps({"messages": messages}) + "\n")
    cases: list[tuple[list[object], int]] = [
        ([scores, "--tokenizer", tokenizer, "--arrival", "typed"], 3),
        ([grid, "--from", "grid", "--silence-id", 9], 1),
        ([chats, "--from", "chats", "--tokenizer", tokenizer], 1),
    ]
    for arguments, count in cases:
        result = braid("data", "convert", arguments[0], tmp_path / "o.jsonl", *arguments[1:], "--json")
        assert (result.exit_code, json.loads(result.stdout)["count"]) == (0, count)
        assert braid("data", "check", tmp_path / "o.jsonl", "--tokenizer", tokenizer).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["build", "storys", "-n", "1", "-o", "x.jsonl"], DataError.exit_code, "did you mean"),
        (["build", "stories", "-o", "x.jsonl"], DataError.exit_code, "--count"),
        (
            ["build", "stories", "-n", "1", "-o", "x.jsonl", "--weight", "thought"],
            InputError.exit_code,
            "NAME=W",
        ),
        (
            ["build", "stories", "-n", "1", "-o", "x.jsonl", "--weight", "thought=nan"],
            InputError.exit_code,
            "from 0 up",
        ),
        (["build", "stories", "-n", "1", "-o", "x.txt"], DataError.exit_code, "ends neither"),
        (
            ["build", "stories", "-n", "1", "-o", "x.jsonl", "--tokenizer", "none"],
            TokenizerError.exit_code,
            "is no",
        ),
        *(
            (["build", *build, "-n", "1", "-o", "x.scores.jsonl"], error.exit_code, message)
            for build, error, message in (
                (["stories", "--wait-k", "3"], DataError, "nothing with --wait-k; it is for solve, chats"),
                (["stories", "--inputs", "user"], DataError, "nothing with --inputs; it is for grid"),
                (["gsm_symbolic", "--judge", "http://127.0.0.1:9/v1"], DataError, "nothing with --judge"),
                (["outside", "--any-step"], DataError, "nothing with --any-step"),
                (["stories", "--judge-model", "x"], InputError, "name it with --judge"),
                (["stories", "--arrival", "typed"], DataError, "neither --arrival nor --weight"),
                (["stories", "--weight", "thought=2"], DataError, "neither --arrival nor --weight"),
            )
        ),
        (["check", "nowhere.jsonl"], DataError.exit_code, "cannot read"),
        (["convert", "nowhere.scores.jsonl", "x.jsonl"], DataError.exit_code, "--tokenizer"),
        (["convert", "nowhere", "x.jsonl", "--from", "grid"], DataError.exit_code, "--silence-id"),
        (["convert", "nowhere", "x.jsonl", "--from", "tea"], DataError.exit_code, "no layout 'tea'"),
    ],
)
def test_what_cannot_be_is_told(
    arguments: list[str],
    code: int,
    message: str,
    braid: Braid,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = braid("data", *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("x")] == []


def test_no_torch_is_imported(tmp_path: Path) -> None:
    program = f"""
import sys, contextlib
from braid.cli import app
with contextlib.suppress(SystemExit):
    app(["data", "build", "stories", "-n", "1", "-o", {str(tmp_path / "x.jsonl")!r}])
with contextlib.suppress(SystemExit):
    app(["data", "show", {str(tmp_path / "x.jsonl")!r}])
print(sorted({{"torch", "transformers"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
