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
from braid.data.rules import Broken
from braid.data.score import Part, Score, Segment
from braid.data.score_rules import broken_score, broken_shape
from braid.data.tables import Progress, json_lines, to_line
from braid.errors import DataCorruptError

__all__ = ["SCORES", "read_scores", "score_from_json", "score_to_json", "write_scores"]

SCORES = ".scores.jsonl"
"""Ending of files of scores, which need no tokenizer and no arrival."""


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
        DataCorruptError: A line is no score, or one that cannot be laid out; the message names it, stream and segment.
        DataError: The file cannot be read.
    """
    for line, text in json_lines(path):
        try:
            data = json.loads(text)
        except ValueError as error:
            raise DataCorruptError(f"{path}, line {line}: this is no JSON: {error}") from None
        _refuse(next(broken_shape(data), None), f"{path}, line {line}")
        score = score_from_json(data)
        _refuse(next(broken_score(score), None), f"{path}, line {line}")
        yield score


def _refuse(broken: Broken | None, where: str) -> None:
    if broken is not None:
        places = (("stream", broken.stream), ("segment", broken.segment))
        told = "".join(f", {what} {place}" for what, place in places if place is not None)
        raise DataCorruptError(f"{where}{told}: {broken.message}; `braid data check` finds all such faults")


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
    """The score of plain data; what is in it is not checked, see `braid.data.score_rules`."""
    parts = tuple(
        Part(
            part["stream"],
            part["direction"],
            tuple(Segment(each["text"], dict(each.get("after", {}))) for each in part["segments"]),
            part.get("ends", True),
            tuple(part.get("reads", ())),
        )
        for part in cast("list[Mapping[str, Any]]", data["parts"])
    )
    return Score(data["id"], parts, data.get("meta") or {})
