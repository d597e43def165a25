"""Files of row tables: JSON lines, or Parquet; by the ending of the name.

Both have the same columns, and `datasets.load_dataset` reads both. JSON lines are for people, and for tools that read
one line after another; Parquet is for size. In Parquet `meta` is a column of JSON text, since what it holds differs
from builder to builder.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from braid.data.files import drafted
from braid.data.row_table import RowTable
from braid.errors import DataCorruptError, DataError

__all__ = [
    "FORMATS",
    "Progress",
    "count_tables",
    "json_lines",
    "raw_parquet",
    "raw_tables",
    "read_records",
    "read_tables",
    "to_line",
    "write_tables",
]

FORMATS = (".jsonl", ".parquet")
_ROWS_OF_A_GROUP = 1000

Progress = Callable[[int], None]
"""Is told how many examples are done."""


def write_tables(path: str | Path, tables: Iterable[RowTable], *, on_progress: Progress | None = None) -> int:
    """Write row tables to a file, whole or not at all.

    Args:
        path: Its ending decides the format: `.jsonl` or `.parquet`.
        tables: One after another; they are not gathered.
        on_progress: Is called after each.

    Returns:
        How many there were.

    Raises:
        DataError: The file cannot be written, its format is unknown, or Parquet needs pyarrow.
    """
    suffix = _suffix(path)
    counted = _Counted(tables, on_progress)
    if suffix == ".parquet":
        _write_parquet(path, counted)
    else:
        with drafted(path) as file:
            for table in counted:
                file.write(to_line(table.to_json()))
    return counted.count


def read_tables(path: str | Path) -> Iterator[RowTable]:
    """Row tables of a file, one after another.

    What is in them is not checked but for its shape, see `braid.data.check`.

    Raises:
        DataCorruptError: A line is no row table; the message names it.
        DataError: The file cannot be read.
    """
    for line, data in raw_tables(path):
        try:
            yield RowTable.from_json(cast("Mapping[str, Any]", data))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataCorruptError(
                f"{path}, line {line}: this is no row table ({what}); `braid data check` finds all such lines"
            ) from None


def raw_tables(path: str | Path) -> Iterator[tuple[int, object]]:
    """Line and plain data of each example; in Parquet, its place from 1.

    Raises:
        DataCorruptError: A line is no JSON.
        DataError: The file cannot be read.
    """
    if _suffix(path) == ".parquet":
        for place, data in enumerate(raw_parquet(Path(path)), start=1):
            yield place, _with_meta(data, Path(path))
        return
    yield from _json_values(path)


def read_records(path: str | Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Line and record of any table: CSV with a header, Parquet, or else JSON lines, by the ending of the name.

    In CSV the line is that on which the record ends, in Parquet its place from 1.

    Raises:
        DataCorruptError: A line is no record.
        DataError: The file cannot be read.
    """
    match Path(path).suffix:
        case ".csv":
            yield from _csv_records(Path(path))
        case ".parquet":
            yield from enumerate(raw_parquet(Path(path)), start=1)
        case _:
            for line, record in _json_values(path):
                if not isinstance(record, Mapping):
                    raise DataCorruptError(f"{path}, line {line}: a record is an object")
                yield line, cast("Mapping[str, Any]", record)


def _csv_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            for record in reader:
                if None in record:
                    columns = len(reader.fieldnames or ())
                    raise DataCorruptError(
                        f"{path}, line {reader.line_num}: it has more cells than the header's {columns}; "
                        "a cell with a comma or a line break stands in quotes"
                    )
                yield reader.line_num, record
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def _json_values(path: str | Path) -> Iterator[tuple[int, object]]:
    for line, text in json_lines(path):
        try:
            yield line, json.loads(text)
        except ValueError as error:
            raise DataCorruptError(f"{path}, line {line}: this is no JSON: {error}") from None


def json_lines(path: str | Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    yield line, text
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def count_tables(path: str | Path) -> int:
    """How many examples a file has.

    Raises:
        DataError: The file cannot be read.
    """
    if _suffix(path) == ".parquet":
        with _opened(Path(path)) as file:
            return file.metadata.num_rows
    return sum(1 for _ in json_lines(path))


def to_line(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """Plain data as a line of JSON.

    Args:
        data: Of an example.
        name: What to call it in a message, if it has no `id`.

    Raises:
        DataError: It holds what JSON has no word for, such as NaN.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"the example {data.get('id', name)!r} cannot be written as JSON: {error}") from None


class _Counted:
    """Passes examples on and counts them."""

    def __init__(self, tables: Iterable[RowTable], on_progress: Progress | None) -> None:
        self.count = 0
        self._tables = tables
        self._on_progress = on_progress

    def __iter__(self) -> Iterator[RowTable]:
        for table in self._tables:
            yield table
            self.count += 1
            if self._on_progress is not None:
                self._on_progress(self.count)


def _suffix(path: str | Path) -> str:
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise DataError(f"{path} ends neither in .jsonl nor in .parquet, which are the formats of row tables")
    return suffix


# ---- Parquet


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            "Parquet needs pyarrow: pip install 'braid-llm[data]'; .jsonl works without"
        ) from None
    return pyarrow, parquet


def _schema() -> Any:
    arrow, _ = _pyarrow()
    numbers = arrow.list_(arrow.int32())
    lane = arrow.struct(
        [
            ("stream", arrow.string()),
            ("rows", numbers),
            ("ids", numbers),
            ("asked", arrow.list_(numbers)),
            ("weight", arrow.float64()),
        ]
    )
    return arrow.schema(
        [
            ("id", arrow.string()),
            ("num_rows", arrow.int32()),
            ("lanes", arrow.list_(lane)),
            ("meta", arrow.string()),
        ]
    )


def _write_parquet(path: str | Path, tables: Iterable[RowTable]) -> None:
    arrow, parquet = _pyarrow()
    schema = _schema()

    def flush(group: list[dict[str, Any]]) -> None:
        try:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
        except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError) as error:
            raise DataError(f"an example cannot be written to {path}: {error}") from None

    with drafted(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        group: list[dict[str, Any]] = []
        for table in tables:
            data = table.to_json()
            if not all(math.isfinite(lane["weight"]) for lane in data["lanes"]):
                raise DataError(f"the example {table.id!r} has a weight that is no number")
            group.append({**data, "meta": to_line(data["meta"], table.id).decode().strip()})
            if len(group) == _ROWS_OF_A_GROUP:
                flush(group)
                group = []
        flush(group)


def _opened(path: Path) -> Any:
    arrow, parquet = _pyarrow()
    try:
        return parquet.ParquetFile(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except arrow.ArrowInvalid as error:
        raise DataCorruptError(f"{path} is no Parquet file, or is torn: {error}") from None


def raw_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The records of any Parquet file.

    Raises:
        DataCorruptError: It is damaged.
        DataError: It cannot be read.
    """
    arrow, _ = _pyarrow()
    with _opened(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_ROWS_OF_A_GROUP):
                yield from batch.to_pylist()
        except (arrow.ArrowInvalid, OSError) as error:
            raise DataCorruptError(f"{path} is damaged: {error}") from None


def _with_meta(data: dict[str, Any], path: Path) -> dict[str, Any]:
    if isinstance(data.get("meta"), str):
        try:
            data["meta"] = json.loads(data["meta"])
        except ValueError as error:
            raise DataCorruptError(f"{path}: the meta of {data.get('id')!r} is no JSON: {error}") from None
    return data
