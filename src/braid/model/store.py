"""The folder of converted models: entries appear whole or not at all, whoever builds them and however that ends.

    <root>/models/<key>/              a finished entry
    <root>/models/<key>/entry.json    its manifest: the size of every file, written last
    <root>/models/.<key>.lock         held while an entry is built
    <root>/models/.<key>.<random>/    an entry being built; one left by a process that died is removed by the next

A builder fills a hidden folder beside the entry and one rename publishes it, so readers need no lock.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from braid.errors import ModelError
from braid.model.progress import Progress, Report

__all__ = ["ModelStore", "default_cache_dir", "share"]

_MANIFEST = "entry.json"
_FORMAT = 1
_PATIENCE = 0.5  # seconds to wait for a lock before saying so


def default_cache_dir() -> Path:
    """Where converted models are kept when the caller names no folder: `braid` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "braid"


class ModelStore:
    """Converted models by key.

    Args:
        root: The cache folder; `default_cache_dir()` if None. It is made when something is first built.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._folder = (root or default_cache_dir()).expanduser() / "models"

    def find(self, key: str) -> Path | None:
        """Find a finished entry.

        Args:
            key: The entry's name, fit for a file name.

        Returns:
            Its folder, or None if there is none or its files are not those that were stored.
        """
        entry = self._folder / key
        return entry if _is_whole(entry) else None

    def build(self, key: str, fill: Callable[[Path], None], report: Report) -> Path:
        """Find an entry, or build it. Of several processes that ask at once, one builds and the others wait.

        Args:
            key: The entry's name, fit for a file name.
            fill: Puts the entry's files into the empty folder that it is given.
            report: Told when another process must be waited for.

        Returns:
            The entry's folder.

        Raises:
            ModelError: The cache folder cannot be written; whatever `fill` raises passes through.
        """
        found = self.find(key)
        if found is not None:
            return found
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = self._lock(key, report)
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            found = self.find(key)  # somebody may have built it in the meantime
            return found if found is not None else self._fill(key, fill)
        finally:
            lock.release()

    def _lock(self, key: str, report: Report) -> FileLock:
        lock = FileLock(self._folder / f".{key}.lock")
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            report(Progress("wait", "Waiting for another process that prepares it"))
            lock.acquire()
        return lock

    def _fill(self, key: str, fill: Callable[[Path], None]) -> Path:
        """Build an entry under its lock."""
        entry = self._folder / key
        for abandoned in self._folder.glob(f".{key}.*/"):
            shutil.rmtree(
                abandoned, ignore_errors=True
            )  # a pip that outlived its parent may still write to it
        try:
            draft = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self._folder))
        except OSError as error:
            raise self._unwritable(error) from error
        try:
            fill(draft)
            _write_manifest(draft)
            share(draft)
            if entry.exists():  # damaged, or `find` would have had it
                shutil.rmtree(entry)
            draft.rename(entry)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return entry

    def _unwritable(self, error: OSError) -> ModelError:
        return ModelError(
            f"the model cannot be stored in {self._folder} ({error}): make room or give leave to write there, or "
            "pass cache_dir="
        )


def share(folder: Path) -> None:
    """Let others read a folder made by `mkdtemp`, and weights written by safetensors: both let in the owner alone.

    Args:
        folder: A folder without folders in it.
    """
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _write_manifest(folder: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    (folder / _MANIFEST).write_text(json.dumps({"format": _FORMAT, "files": sizes}, indent=1))


def _is_whole(entry: Path) -> bool:
    """Whether the entry has every file in the size that was stored. Hashing half a gigabyte would cost a second."""
    try:
        manifest = cast("dict[str, Any]", json.loads((entry / _MANIFEST).read_text()))
        sizes = cast("dict[str, int]", manifest["files"])
        return manifest["format"] == _FORMAT and all(
            (entry / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
