"""Files that are written whole or not at all.

What is written goes into a draft beside the file, and takes the file's name when it is complete: a full disk, an
interrupt or a killed process never leaves half a file under that name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from braid.errors import DataError

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
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            yield file
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; what was there is untouched"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # also after Ctrl-C; once renamed there is none
            draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        DataError: It cannot be written.
    """
    with drafted(path) as file:
        file.write(text.encode())


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a file, in hex.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
