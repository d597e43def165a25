"""Files of scores: what is said, before any tokenizer or arrival; one JSON object a line.

    {"id": "s-17", "meta": {"answer": "7"},
     "parts": [{"stream": "user", "direction": "input", "ends": true, "reads": [],
                "segments": [{"text": "Mia has 3 pens.", "after": {}}, …]}, …]}

A score is the source form of an example: the same file can be laid out for another tokenizer, or another arrival.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from braid.data.files import drafted
from braid.data.score import Part, Score, Segment
from braid.data.tables import Progress, json_lines, to_line
from braid.errors import DataCorruptError

__all__ = ["read_scores", "score_from_json", "score_to_json", "write_scores"]


def write_scores(path: str | Path, scores: Iterable[Score], *, on_progress: Progress | None = None) -> int:
    """Write scores to a file of JSON lines, whole or not at all, and return how many there were.

    Raises:
        DataError: The file cannot be written.
    """
    count = 0
    with drafted(path) as file:
        for count, score in enumerate(scores, start=1):
            file.write(to_line(score_to_json(score)))
            if on_progress is not None:
                on_progress(count)
    return count


def read_scores(path: str | Path) -> Iterator[Score]:
    """Scores of a file, one after another.

    Raises:
        DataCorruptError: A line is no score; the message names it.
        DataError: The file cannot be read.
    """
    for line, text in json_lines(path):
        try:
            yield score_from_json(json.loads(text))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataCorruptError(f"{path}, line {line}: this is no score ({what})") from None


def score_to_json(score: Score) -> dict[str, Any]:
    """A score as plain data."""
    return {
        "id": score.id,
        "parts": [
            {
                "stream": part.stream,
                "direction": part.direction,
                "segments": [{"text": each.text, "after": dict(each.after)} for each in part.segments],
                "ends": part.ends,
                "reads": list(part.reads),
            }
            for part in score.parts
        ],
        "meta": dict(score.meta),
    }


def score_from_json(data: Mapping[str, Any]) -> Score:
    """The score of plain data.

    Raises:
        DataCorruptError: A direction is none.
        KeyError, TypeError: It is no score.
    """
    parts: list[Part] = []
    for part in cast("list[Mapping[str, Any]]", data["parts"]):
        if part["direction"] not in ("input", "output"):
            raise DataCorruptError(f"the direction {part['direction']!r} is neither input nor output")
        segments = tuple(Segment(each["text"], dict(each.get("after", {}))) for each in part["segments"])
        reads, ends = tuple(part.get("reads", ())), bool(part.get("ends", True))
        parts.append(Part(part["stream"], part["direction"], segments, ends, reads))
    return Score(data["id"], tuple(parts), data.get("meta") or {})
