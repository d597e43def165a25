"""The format of traces: what is written is read again, and what is wrong is told with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from braid.bench.traces.file import last_edit_of, read_traces, write_traces
from braid.bench.traces.kinds import generate_traces
from braid.errors import DataCorruptError, DataError

PLAIN: dict[str, Any] = {
    "id": "a",
    "kind": "typing",
    "question": "Hi?",
    "events": [{"at": 0.1, "text": "Hi"}, {"at": 0.2, "text": "Hi?"}],
    "commit_at": 0.5,
    "meta": {"last_edit": "append", "changed_fact": False, "pause_before_commit_s": 0.3},
}
FORM: dict[str, Any] = {
    **PLAIN,
    "template": [{"id": "rules", "role": "system", "text": "Be kind."}, {"id": "name"}, {"id": "wish"}],
    "question": {"rules": "Be kind.", "name": "Anna", "wish": "tea"},
    "events": [{"at": 0.1, "text": {"name": "Anna"}}, {"at": 0.2, "text": {"wish": "tea"}}],
}


def written(path: Path, *traces: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, traces)) + "\n")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = list(generate_traces(n=24, seed=4))
    assert write_traces(tmp_path / "t.jsonl", made) == 24
    assert list(read_traces(tmp_path / "t.jsonl")) == made


def test_a_trace_by_hand_needs_only_what_it_has(tmp_path: Path) -> None:
    plain, form = read_traces(written(tmp_path / "t.jsonl", PLAIN, {**FORM, "id": "b"}))
    assert plain.snapshots() == [(0.1, "Hi"), (0.2, "Hi?")]
    assert form.snapshots()[0] == (0.1, {"rules": "Be kind.", "name": "Anna", "wish": ""})
    assert form.snapshots()[1][1] == form.question
    assert form.template is not None
    assert form.template[1].role == "user"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"commit_at": 0.1}, "before the last event"),
        ({"events": [{"at": 0.2, "text": "Hi"}, {"at": 0.2, "text": "Hi?"}]}, "event 1 is at 0.2 s"),
        ({"events": [{"at": -1, "text": "Hi?"}]}, "events.0.at"),
        ({"events": []}, "events"),
        ({"events": [{"at": 0.1, "text": "Ho?"}]}, "not the question"),
        ({"events": [{"at": 0.1, "text": {"name": "Hi?"}}]}, "there is no template"),
        ({"colour": "red"}, "colour"),
        (
            {"meta": {"last_edit": "left", "changed_fact": False, "pause_before_commit_s": 0}},
            "meta.last_edit",
        ),
        ({"version": 2}, "version"),
        (
            {"steer": {"question": "no", "events": [{"at": 0.4, "text": "no"}], "commit_at": 1}},
            "before the first commit",
        ),
        (
            {"steer": {"question": "no", "events": [{"at": 0.6, "text": "n"}], "commit_at": 1}},
            "not its question",
        ),
        ({**FORM, "events": [{"at": 0.1, "text": "Anna"}]}, "names the segments that change"),
        ({**FORM, "events": [{"at": 0.1, "text": {"nmae": "Anna"}}]}, "'nmae'"),
        ({**FORM, "template": [{"id": "name"}, {"id": "name"}]}, "the same id"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = written(tmp_path / "t.jsonl", PLAIN, {**PLAIN, "id": "b", **change})
    with pytest.raises(DataCorruptError, match="line 2") as caught:
        list(read_traces(file))
    assert message in str(caught.value)


def test_two_traces_are_not_called_the_same(tmp_path: Path) -> None:
    with pytest.raises(DataCorruptError, match="line 2: 'a' is the trace of line 1 too"):
        list(read_traces(written(tmp_path / "t.jsonl", PLAIN, PLAIN)))


def test_a_line_that_is_no_json_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", PLAIN)
    file.write_text(file.read_text() + '{"id": ')
    with pytest.raises(DataCorruptError, match=r"line 2.*not JSON"):
        list(read_traces(file))
    with pytest.raises(DataError, match="cannot read"):
        list(read_traces(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("texts", "where"),
    [
        (["", "a"], "append"),
        (["a cat", "a cats"], "append"),
        (["a cats", "a cat"], "append"),
        (["aaa", "aa"], "append"),
        (["a cat", "a hat"], "middle"),
        (["cat", "a cat"], "middle"),
        (["a cat", "cat"], "middle"),
        (["a cat", "a hat", "a hat"], "middle"),
        (["a cat", "a dog"], "append"),
        (["a cat", ""], "append"),
        (["a cat"], "none"),
    ],
)
def test_where_the_last_change_stood(texts: list[str], where: str) -> None:
    assert last_edit_of(texts) == where
