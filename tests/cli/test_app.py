"""The command line as a program: help, start-up, pipes, signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from braid import __version__
from braid.cli import COMMANDS
from braid.streams.transcript import Transcript
from tests.cli.conftest import Braid
from tests.cli.test_run import TEXTS

HEAVY = {"torch", "transformers", "safetensors", "huggingface_hub"}
PROGRAM = [sys.executable, "-m", "braid"]


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [*PROGRAM, *map(str, arguments), "--threads", "1"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)


def test_version(braid: Braid) -> None:
    assert braid("--version").stdout == f"braid {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(arguments: list[str], braid: Braid) -> None:
    result = braid(*arguments)
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f" {name} " in result.stdout


@pytest.mark.parametrize(
    "name", ["run", "chat", "inspect", "check", "bench rows", "bench sessions", "bench overhead"]
)
def test_every_command_has_an_example(name: str, braid: Braid) -> None:
    result = braid(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"braid {name} " in result.stdout.split("Examples")[1]


def test_an_unknown_command_is_answered_with_the_nearest(braid: Braid) -> None:
    result = braid("inspcet")
    assert result.exit_code == 2
    assert "inspect" in result.stderr


def test_help_and_inspect_import_no_torch() -> None:
    program = f"""
import contextlib, io, sys
from braid.cli import app
lines = ["--help", "run --help", "chat --help", "check --help", "bench --help", "inspect no-such-file"]
for arguments in map(str.split, lines):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        app(arguments)
print(sorted({HEAVY!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_piped_input_is_read_as_it_arrives(tiny: Path, duet: Path, tmp_path: Path) -> None:
    """Random pieces, cut within characters, with pauses; the thinker speaks before the last piece is sent."""
    text = "".join(TEXTS.values())
    rest, saved = text.encode(), tmp_path / "run.jsonl"
    rng = random.Random(0)
    arguments = ("-m", tiny, "-t", duet, "--stream", "document=x", "--save", saved)
    with start("run", *arguments) as process:
        assert process.stdin is not None
        head, rest = rest[:9], rest[9:]
        process.stdin.write(head)
        process.stdin.flush()
        wait_until(lambda: saved.exists() and '"thought":[' in saved.read_text(errors="replace"))
        while rest:
            size = rng.choice([1, 2, 3, 700])
            process.stdin.write(rest[:size])
            process.stdin.flush()
            rest = rest[size:]
            time.sleep(rng.choice([0, 0.001]))
        process.stdin.close()
        assert process.wait(60) == 0
    assert Transcript.load(saved).text("user").encode() == text.encode()


def test_ctrl_c_keeps_what_was_said(tiny: Path, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    arguments = (
        "-m",
        tiny,
        "-t",
        "plain",
        "--user",
        "Hello",
        "--max-rows",
        "16000",
        "--save",
        saved,
        "--json",
    )
    with start("run", *arguments) as process:
        wait_until(lambda: saved.exists() and saved.read_text().count('"output":[') > 5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Interrupted after" in err
    assert b"Traceback" not in err
    assert out.splitlines()[-1].startswith(b'{"event":"summary"')
    transcript = Transcript.load(saved)
    assert transcript.damage is None
    assert transcript.text("user") == "Hello"
    assert len(transcript.tokens("output")) > 5


def test_the_process_ends_while_its_input_stays_open(tiny: Path, short: Path, tmp_path: Path) -> None:
    """A limit ends the run though the pipe could still bring more."""
    reader, writer = os.pipe()
    try:
        os.write(writer, b"Hello there")  # the last word is held back until it is certain to be whole
        command = [*PROGRAM, "run", "-m", str(tiny), "-t", str(short), "--max-rows", "3", "--threads", "1"]
        done = subprocess.run(command, stdin=reader, capture_output=True, timeout=60, check=False)
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 0
    assert b"Stopped after" in done.stderr


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
