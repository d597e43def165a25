"""Is a file of row tables, or of scores, what training takes it for? Every fault is named by its line and place there.

Three layers, each of which needs the one before: a line is JSON (`json`), the JSON has the keys and types of a row
table or a score (`keys`, `types`), and what it says can be (all other rules, in `braid.data.rules` and
`braid.data.score_rules`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from braid.data.row_table import RowTable
from braid.data.rules import Broken, broken_keys, broken_objects, broken_rules
from braid.data.score_rules import broken_score, broken_shape
from braid.data.scores import SCORES, score_from_json
from braid.data.tables import json_lines, raw_tables
from braid.data.tokens import DataTokenizer
from braid.streams.strict import shown
from braid.streams.topology import Topology

__all__ = ["Finding", "check_data", "check_file", "check_score", "check_table"]

_TABLE_KEYS = ("id", "num_rows", "lanes", "meta")
_LANE_KEYS = ("stream", "rows", "ids", "asked", "weight")


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a file.

    Args:
        line: Of the file, from 1; in Parquet the place of the example.
        example: Its id, as far as there is one.
        stream: Where the fault is, if it is in one.
        row: Likewise.
        rule: The short name of the rule that is broken.
        message: What is wrong.
        segment: Of a score, its place in the stream, from 0.
    """

    line: int
    example: str | None
    stream: str | None
    row: int | None
    rule: str
    message: str
    segment: int | None = None

    @classmethod
    def of(cls, broken: Broken, line: int, example: str | None) -> Finding:
        """A rule that does not hold, at its place in the file."""
        return cls(line, example, broken.stream, broken.row, broken.rule, broken.message, broken.segment)

    def __str__(self) -> str:
        told = (("line", self.line), ("example", self.example), ("stream", self.stream), ("row", self.row))
        places = [
            f"{what} {place}" for what, place in (*told, ("segment", self.segment)) if place is not None
        ]
        return f"{', '.join(places)}: {self.message} [{self.rule}]"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__}


def check_file(
    path: str | Path,
    tokenizer: DataTokenizer | None = None,
    topology: Topology | None = None,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[Finding]:
    """Every fault of a file, in the order of its lines.

    Args:
        path: A file of row tables; or of scores, where its name ends in `.scores.jsonl`.
        tokenizer: Of the model; without it, ids and ends of turns are not checked, nor the tokens of a score's text.
        topology: Of the model; without it, an output is a stream that is asked or has a weight.
        on_progress: Is told how many examples are checked.

    Raises:
        DataError: The file cannot be read at all.
    """
    first_lines: dict[str, int] = {}
    check = check_score if Path(path).name.endswith(SCORES) else check_data
    for done, (line, data) in enumerate(_lines(Path(path)), start=1):
        if isinstance(data, Finding):
            yield data
        else:
            yield from check(data, line, tokenizer, topology)
            name = cast("Mapping[str, Any]", data).get("id") if isinstance(data, Mapping) else None
            if isinstance(name, str):
                first = first_lines.setdefault(name, line)
                if first != line:
                    yield Finding(line, name, None, None, "id", f"the id was used before, in line {first}")
        if on_progress is not None:
            on_progress(done)


def check_data(
    data: object, line: int = 1, tokenizer: DataTokenizer | None = None, topology: Topology | None = None
) -> Iterator[Finding]:
    """The faults of one example as plain data; of its content only where its shape is right."""
    shape = list(_shape(data, line))
    yield from shape
    if not shape:
        yield from check_table(RowTable.from_json(cast("Mapping[str, Any]", data)), line, tokenizer, topology)


def check_score(
    data: object, line: int = 1, tokenizer: DataTokenizer | None = None, topology: Topology | None = None
) -> Iterator[Finding]:
    """The faults of one score as plain data; of its content only where its shape is right."""
    shape = list(broken_shape(data))
    name = cast("Mapping[str, Any]", data).get("id") if isinstance(data, Mapping) else None
    content = (
        () if shape else broken_score(score_from_json(cast("Mapping[str, Any]", data)), tokenizer, topology)
    )
    for broken in (*shape, *content):
        yield Finding.of(broken, line, name if isinstance(name, str) else None)


def check_table(
    table: RowTable, line: int = 1, tokenizer: DataTokenizer | None = None, topology: Topology | None = None
) -> Iterator[Finding]:
    """The faults of one row table whose shape is right."""
    for broken in broken_rules(table, tokenizer, topology):
        yield Finding.of(broken, line, table.id)


def _lines(path: Path) -> Iterator[tuple[int, object]]:
    """Plain data of each line, or the finding that it is none."""
    if path.suffix != ".jsonl":
        yield from raw_tables(path)
        return
    for line, text in json_lines(path):
        try:
            yield line, json.loads(text)
        except ValueError as error:
            yield line, Finding(line, None, None, None, "json", f"this is no JSON: {error}")


# ---- shape


def _shape(data: object, line: int) -> Iterator[Finding]:
    if not isinstance(data, Mapping):
        yield Finding(line, None, None, None, "types", f"an example is an object, not {shown(data)}")
        return
    table = cast("Mapping[str, Any]", data)
    name = table["id"] if isinstance(table.get("id"), str) else None
    lanes = broken_objects(table.get("lanes", []), "lanes", "lane", _lane_shape)
    for broken in (*_table_shape(table), *lanes):
        yield Finding.of(broken, line, name)


def _table_shape(table: Mapping[str, Any]) -> Iterator[Broken]:
    yield from broken_keys(table, _TABLE_KEYS, "an example")
    if "id" in table and not (isinstance(table["id"], str) and table["id"]):
        yield Broken("types", f"id is text, not {shown(table['id'])}")
    if "num_rows" in table and not (_is_count(table["num_rows"]) and table["num_rows"]):
        yield Broken("types", f"num_rows is a whole number from 1 up, not {shown(table['num_rows'])}")
    if "meta" in table and not isinstance(table["meta"], Mapping):
        yield Broken("types", f"meta is an object, not {shown(table['meta'])}")


def _lane_shape(lane: Mapping[str, Any], place: int) -> Iterator[Broken]:
    stream = lane.get("stream")
    name = stream if isinstance(stream, str) else None
    yield from broken_keys(lane, _LANE_KEYS, f"lane {place}", name)
    if "stream" in lane and not (name and isinstance(stream, str)):
        yield Broken("types", f"the stream of lane {place} is text, not {shown(stream)}")
    for key in ("rows", "ids"):
        if key in lane and not _is_counts(lane[key]):
            yield Broken("types", f"{key} is a list of whole numbers from 0 up", name)
    if "asked" in lane and not _is_ranges(lane["asked"]):
        yield Broken("types", "asked is a list of pairs [start, stop] of whole numbers", name)
    weight = lane.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        yield Broken("types", f"weight is a number, not {shown(weight)}", name)
    elif not (math.isfinite(weight) and weight >= 0):
        yield Broken("weight", f"weight is a number from 0 up, not {weight}", name)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(
        type(each) is int and each >= 0 for each in cast("list[Any]", value)
    )


def _is_ranges(value: object) -> bool:
    if not isinstance(value, list):
        return False
    return all(_is_counts(each) and len(each) == 2 for each in cast("list[Any]", value))
