"""Files that are written whole or not at all.

What is written goes into a part beside the file, and takes the file's name when it is complete: a full disk, an
interrupt or a killed process never leaves half a file under that name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """Open what becomes the file at the end of the block; what was there before is replaced.

    Raises:
        OSError: It cannot be written; what was there is untouched.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):  # also after Ctrl-C; once renamed there is none
            part.unlink(missing_ok=True)
