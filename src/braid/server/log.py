"""The server's log: a JSON object a line, on standard error, without a word of what users and models say.

{"at": "2026-11-30T01:02:03.004Z", "level": "info", "event": "request", "request": "r_…", "status": 200, …}
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["Log", "set_up"]

_NAME = "braid.server"


class Log:
    """Writes events with fields; one for the server, all of whose parts share it.

    Args:
        tells_text: Whether `text` fields are written, too.
    """

    def __init__(self, *, tells_text: bool = False) -> None:
        self._logger = logging.getLogger(_NAME)
        self._tells_text = tells_text

    def info(self, event: str, *, text: str | None = None, **fields: Any) -> None:
        """Something happened."""
        self._write(logging.INFO, event, text, fields)

    def warning(self, event: str, *, text: str | None = None, **fields: Any) -> None:
        """Somebody should look at this at some time."""
        self._write(logging.WARNING, event, text, fields)

    def mistake(self, event: str, error: BaseException, **fields: Any) -> None:
        """A mistake of ours, with where it happened; not with its message, which may quote a prompt."""
        frames: list[str] = []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            frames.append(f"{code.co_filename.rpartition('braid')[2]}:{trace.tb_lineno} {code.co_name}")
            trace = trace.tb_next
        where = {"error": type(error).__name__, "where": frames[-8:]}
        self._write(logging.ERROR, event, str(error), {**fields, **where})

    def _write(self, level: int, event: str, text: str | None, fields: dict[str, Any]) -> None:
        if text is not None and self._tells_text:
            fields = {**fields, "text": text}
        self._logger.log(level, event, extra={"fields": fields})


class _AsJson(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        at = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        if fields is None:  # of a library
            line |= {"event": "log", "logger": record.name, "message": record.getMessage()}
        else:
            line |= {"event": record.getMessage(), **fields}
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send the log to a stream, as JSON.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        stream: Standard error by default.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_AsJson())
    for name in (_NAME, "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper() if name == _NAME else "WARNING")
    logging.getLogger("uvicorn.access").handlers = []
    logging.getLogger("uvicorn.access").propagate = False
