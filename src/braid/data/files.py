"""Files of training data: written whole or not at all, and known by their hash."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from braid.errors import DataError
from braid.streams.whole_file import whole_file

__all__ = ["drafted", "sha256_of", "write_text"]


@contextmanager
def drafted(path: str | Path) -> Generator[BinaryIO]:
    """Open a draft of a file for writing; at the end of the block it becomes the file.

    Args:
        path: Of the file; what is there is replaced.

    Raises:
        DataError: It cannot be written; what was there is untouched.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder; name a file in it")
    try:
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; what was there is untouched"
        ) from error


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        DataError: It cannot be written.
    """
    with drafted(path) as file:
        file.write(text.encode())


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file, in hex; of a folder, that of the names and hashes of its files.

    Raises:
        DataError: It cannot be read.
    """
    if Path(path).is_dir():
        files = sorted(each for each in Path(path).iterdir() if each.is_file())
        told = "".join(f"{sha256_of(each)}  {each.name}\n" for each in files)
        return hashlib.sha256(told.encode()).hexdigest()
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
