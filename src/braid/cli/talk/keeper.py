"""Where transcripts of conversations are kept."""

from __future__ import annotations

import datetime
from pathlib import Path

from braid.streams.transcript import Transcript

__all__ = ["Keeper"]


class Keeper:
    """Writes the transcript of one conversation after another, each to a file of its own.

    Args:
        path: The file of the first; the second goes to `NAME-2`, and so on. None names them by the time.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.written: list[Path] = []
        """The files so far."""
        self._number = 1

    def next(self) -> None:
        """Another conversation begins."""
        self._number += 1

    def write(self, transcript: Transcript) -> Path:
        """Write a transcript whole, in place of what is in the file.

        Raises:
            TranscriptError: It cannot be written.
        """
        if self.path is None:
            path = Path(f"chat-{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}.jsonl")
        elif self._number == 1:
            path = self.path
        else:
            path = self.path.with_stem(f"{self.path.stem}-{self._number}")
        transcript.save(path)
        if path not in self.written:
            self.written.append(path)
        return path
