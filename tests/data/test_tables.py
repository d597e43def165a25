"""Row tables in files: what is written is what is read, and nothing is half-written."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from braid.data import tables as tables_module
from braid.data.layout import Arrival, lay_out
from braid.data.row_table import Lane, RowTable
from braid.data.score import Score
from braid.data.tables import FORMATS, count_tables, read_records, read_tables, write_tables
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError
from tests.data.strategies import arrivals, scores


def _plain(tables: Iterator[RowTable] | list[RowTable]) -> list[object]:
    return [table.to_json() for table in tables]


def _many(count: int) -> list[RowTable]:
    return [
        RowTable(
            f"x{i}", 2, (Lane("user", [0], [i], (), 0.0), Lane("output", [1], [i + 1], ((0, 1),))), {"n": i}
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("suffix", FORMATS)
@given(score=scores(), arrival=arrivals)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_is_written_is_read(
    suffix: str, score: Score, arrival: Arrival, tokenizer: DataTokenizer, tmp_path: Path
) -> None:
    table = lay_out(score, tokenizer, arrival, random.Random(1), {"thought": 0.5})
    path = tmp_path / f"rows{suffix}"
    assert write_tables(path, [table, table]) == 2
    assert _plain(read_tables(path)) == _plain([table, table])


@pytest.mark.parametrize("suffix", FORMATS)
def test_many_lines_are_counted_told_and_streamed(suffix: str, tmp_path: Path) -> None:
    path, told = tmp_path / f"rows{suffix}", list[int]()
    assert write_tables(path, iter(_many(2500)), on_progress=told.append) == 2500
    assert told == list(range(1, 2501))
    assert count_tables(path) == 2500
    reading = read_tables(path)
    assert next(reading).id == "x0"
    assert [table.id for table in reading][-1] == "x2499"


@pytest.mark.parametrize("suffix", FORMATS)
def test_datasets_loads_it(suffix: str, table: RowTable, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / f"rows{suffix}"
    write_tables(path, [table, *_many(3)])
    kind = "json" if suffix == ".jsonl" else "parquet"
    loaded = datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.num_rows == 4
    first = loaded[0]
    assert first["num_rows"] == table.num_rows
    assert first["lanes"][0]["ids"] == list(table.lanes[0].ids)
    assert first["lanes"][1]["asked"] == [list(each) for each in table.lanes[1].asked]
    meta = json.loads(first["meta"]) if suffix == ".parquet" else first["meta"]
    assert meta["answer"] == table.meta["answer"]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_write_leaves_what_was_there(
    suffix: str, error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / f"rows{suffix}"
    write_tables(path, _many(2))
    before = path.read_bytes()

    def failing() -> Iterator[RowTable]:
        yield from _many(1200)
        raise error

    with pytest.raises(error):
        write_tables(path, failing())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


_FULL = """
import resource, sys
from braid.data.tables import write_tables
from braid.data.row_table import Lane, RowTable
from braid.errors import DataError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
table = lambda i: RowTable(f"x{i}", 999, (Lane("user", range(999), [i * j % 9973 for j in range(999)], (), 0.0),), {})
try:
    write_tables(sys.argv[1], (table(i) for i in range(3000)))
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_full_disk_is_told_and_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"cannot write {path}")
    assert list(tmp_path.iterdir()) == []


_ENDLESS = """
import itertools, sys
from braid.data.tables import write_tables
from braid.data.row_table import Lane, RowTable
write_tables(sys.argv[1], (RowTable(f"x{i}", 1, (Lane("u", [0], [1], (), 0.0),), {}) for i in itertools.count()))
"""


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)]) as process:
        while not any(each.stat().st_size for each in tmp_path.iterdir()):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not path.exists()


def test_a_line_that_is_no_table_is_named(table: RowTable, lines: Callable[..., Path]) -> None:
    for bad in ("{", '{"id": "x"}', "[]", '"text"'):
        reading = read_tables(lines(table.to_json(), bad))
        next(reading)
        with pytest.raises(DataCorruptError, match=r"rows\.jsonl, line 2"):
            next(reading)


def test_files_that_cannot_be(tmp_path: Path, table: RowTable) -> None:
    with pytest.raises(DataError, match="ends neither in"):
        write_tables(tmp_path / "rows.csv", [table])
    with pytest.raises(DataError, match="cannot read"):
        next(read_tables(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="cannot read"):
        next(read_tables(tmp_path / "none.parquet"))
    with pytest.raises(DataError, match="cannot write"):
        write_tables(tmp_path / "no folder" / "rows.jsonl", [table])
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        write_tables(tmp_path / "folder.jsonl", [table])
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataCorruptError, match="torn"):
        next(read_tables(tmp_path / "torn.parquet"))


@pytest.mark.parametrize("suffix", FORMATS)
def test_what_no_file_can_hold_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{suffix}"
    for table in (
        RowTable("x", 1, (Lane("u", [0], [1], (), float("nan")),), {}),
        RowTable("x", 1, (Lane("u", [0], [1], (), 0.0),), {"score": float("inf")}),
    ):
        with pytest.raises(DataError, match="'x'"):
            write_tables(path, [table])
    assert list(tmp_path.iterdir()) == []


def test_without_pyarrow_parquet_says_what_to_install(
    tmp_path: Path, table: RowTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="pip install"):
        write_tables(tmp_path / "rows.parquet", [table])
    assert tables_module.write_tables(tmp_path / "rows.jsonl", [table]) == 1


def test_records_of_csv_and_lines(tmp_path: Path, lines: Callable[..., Path]) -> None:
    (tmp_path / "t.csv").write_text('user,calm\nHi there.,Wait.\n"Two\nlines"\n')
    assert list(read_records(tmp_path / "t.csv")) == [
        (2, {"user": "Hi there.", "calm": "Wait."}),
        (4, {"user": "Two\nlines", "calm": None}),
    ]
    with pytest.raises(DataCorruptError, match="line 1"):
        list(read_records(lines("[]")))
    with pytest.raises(DataError, match="cannot read"):
        list(read_records(tmp_path / "none.csv"))
