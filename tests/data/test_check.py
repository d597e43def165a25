"""The checker: every rule has a way to break it, and no layout of ours breaks one."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.builders.audit import audit_score
from braid.data.builders.solve import solve_score
from braid.data.check import check_data, check_file, check_table
from braid.data.layout import ARRIVALS, Arrival, lay_out, serialise
from braid.data.row_table import Lane, RowTable
from braid.data.rules import RULES
from braid.data.score import Score
from braid.data.stories import tell
from braid.data.tables import write_tables
from braid.data.tokens import DataTokenizer
from braid.streams.presets import topology
from tests.data.strategies import arrivals, scores

SOLVE = topology("solve")
Data = dict[str, Any]
USER, THOUGHT, OUTPUT = 0, 1, 2


def _lane(data: Data, number: int) -> Data:
    return data["lanes"][number]


def _first_pause(data: Data) -> tuple[int, int]:
    """Where in the thought's rows a token does not follow another, after the first one."""
    rows = _lane(data, THOUGHT)["rows"]
    place = next(i for i in range(1, len(rows)) if rows[i] > rows[i - 1] + 1)
    return place, rows[place]


# ---- each breaks a good table in one way, and says which rule and where: (rule, stream, row)

Breach = Callable[[Data, DataTokenizer], tuple[str, str | None, int | None]]
BREACHES: dict[str, Breach] = {}


def breach(make: Breach) -> Breach:
    BREACHES[make.__name__] = make
    return make


@breach
def unknown_key(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["colour"] = "blue"
    return "keys", None, None


@breach
def missing_key(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    del data["num_rows"]
    return "keys", None, None


@breach
def unknown_key_of_a_lane(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, THOUGHT)["wieght"] = 1.0
    return "keys", "thought", None


@breach
def missing_key_of_a_lane(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    del _lane(data, OUTPUT)["asked"]
    return "keys", "output", None


@breach
def id_that_is_no_text(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["id"] = 7
    return "types", None, None


@breach
def no_rows_at_all(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["num_rows"] = 0
    return "types", None, None


@breach
def a_token_that_is_a_float(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, USER)["ids"][0] = 1.0
    return "types", "user", None


@breach
def a_row_that_is_true(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, USER)["rows"][1] = True
    return "types", "user", None


@breach
def a_range_of_three(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, OUTPUT)["asked"][0].append(9)
    return "types", "output", None


@breach
def rows_that_do_not_rise(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    rows = _lane(data, USER)["rows"]
    rows[3] = rows[2]
    return "rows", "user", rows[2]


@breach
def a_row_beyond(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, OUTPUT)["rows"][-1] = data["num_rows"] + 4
    return "rows", "output", data["num_rows"] + 4


@breach
def more_ids_than_rows(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, THOUGHT)["ids"].append(99)
    return "rows", "thought", None


@breach
def an_empty_row(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["num_rows"] += 1
    return "empty row", None, data["num_rows"] - 1


@breach
def an_id_beyond_the_vocabulary(data: Data, tokenizer: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, USER)["ids"][2] = tokenizer.tokenizer.get_vocab_size()
    return "vocabulary", "user", _lane(data, USER)["rows"][2]


@breach
def silence_that_takes_a_slot(data: Data, tokenizer: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, THOUGHT)["ids"][1] = tokenizer.silence_id
    return "vocabulary", "thought", _lane(data, THOUGHT)["rows"][1]


@breach
def ranges_that_overlap(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    start, stop = lane["asked"][0]
    lane["asked"] = [[start, stop - 3], [stop - 4, stop]]
    return "asked", "thought", stop - 4


@breach
def an_empty_range(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    lane["asked"].insert(0, [0, 0])
    return "asked", "thought", 0


@breach
def asked_beyond_the_rows(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, OUTPUT)
    end = lane["rows"][-1]
    lane["ids"][-1] = lane["ids"][-2]  # no end any more, after which it might not be asked anyway
    lane["asked"].append([max(end, lane["asked"][-1][1]), data["num_rows"] + 1])
    return "asked", "output", data["num_rows"]


@breach
def an_input_that_is_asked(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, USER)["asked"] = [[2, 4]]
    return "asked", "user", 2


@breach
def asked_after_its_end(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    end = lane["rows"][-1]
    assert end < data["num_rows"] - 1
    lane["asked"][-1][1] = end + 1
    return "asked", "thought", end


@breach
def a_token_that_nobody_asked_for(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    _, row = _first_pause(data)
    start, stop = lane["asked"][0]
    assert len(lane["asked"]) == 1
    lane["asked"] = [[start, row - 1], [row, stop]]
    return "unasked", "thought", row


@breach
def a_first_token_that_nobody_asked_for(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    row = lane["rows"][0]
    assert row > 0
    lane["asked"][0][0] = row
    return "unasked", "thought", row


@breach
def a_token_after_the_end(data: Data, tokenizer: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, THOUGHT)
    place, row = _first_pause(data)
    lane["ids"][place - 1] = tokenizer.end_id
    lane["asked"] = [[lane["asked"][0][0], lane["rows"][place - 1]], [row - 1, lane["asked"][-1][1]]]
    return "after end", "thought", row


@breach
def user_goes_on_after_the_end(data: Data, tokenizer: DataTokenizer) -> tuple[str, str | None, int | None]:
    lane = _lane(data, USER)
    lane["ids"][4] = tokenizer.end_id
    return "after end", "user", lane["rows"][5]


@breach
def a_stream_that_there_is_not(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, THOUGHT)["stream"] = "musing"
    return "streams", "musing", None


@breach
def streams_in_another_order(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["lanes"][1], data["lanes"][2] = data["lanes"][2], data["lanes"][1]
    return "streams", "thought", None


@breach
def a_stream_twice(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    data["lanes"].append(copy.deepcopy(_lane(data, OUTPUT)))
    return "streams", "output", None


@breach
def a_weight_below_zero(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, OUTPUT)["weight"] = -0.5
    return "weight", "output", None


@breach
def a_weight_that_is_no_number(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, OUTPUT)["weight"] = float("nan")
    return "weight", "output", None


@breach
def an_input_with_a_weight(data: Data, _: DataTokenizer) -> tuple[str, str | None, int | None]:
    _lane(data, USER)["weight"] = 1.0
    return "weight", "user", None


@pytest.mark.parametrize("name", BREACHES)
def test_each_breach_is_found_where_it_is(
    name: str, table: RowTable, tokenizer: DataTokenizer, lines: Callable[..., Path]
) -> None:
    good, bad = table.to_json(), copy.deepcopy(table.to_json())
    good["id"] = "good"
    rule, stream, row = BREACHES[name](bad, tokenizer)
    found = list(check_file(lines(good, bad), tokenizer, SOLVE))
    assert found, "the breach was not found"
    assert {finding.line for finding in found} == {2}
    places = [(finding.rule, finding.stream, finding.row) for finding in found]
    assert (rule, stream, row) in places
    assert str(next(each for each in found if each.rule == rule)).startswith("line 2")


def test_every_rule_has_a_breach(table: RowTable, tokenizer: DataTokenizer) -> None:
    broken = {BREACHES[name](copy.deepcopy(table.to_json()), tokenizer)[0] for name in BREACHES}
    assert broken | {"json", "id"} == set(RULES)  # these two are about lines, and tested below


def test_lines_that_are_no_json_are_named_and_the_rest_is_checked(
    table: RowTable, lines: Callable[..., Path]
) -> None:
    good = table.to_json()
    found = list(check_file(lines(good, '{"id": "half', "7", {**good, "id": "other", "num_rows": -1})))
    assert [(finding.line, finding.rule) for finding in found] == [(2, "json"), (3, "types"), (4, "types")]
    assert found[2].example == "other"


def test_an_id_that_was_used_before(table: RowTable, lines: Callable[..., Path]) -> None:
    good = table.to_json()
    found = list(check_file(lines(good, {**good, "id": "b"}, good)))
    assert [(finding.line, finding.rule) for finding in found] == [(3, "id")]
    assert "line 1" in found[0].message


def test_progress_and_parquet(table: RowTable, tokenizer: DataTokenizer, tmp_path: Path) -> None:
    bad = RowTable("bad", table.num_rows + 1, table.lanes, table.meta)
    write_tables(tmp_path / "x.parquet", [table, bad])
    told: list[int] = []
    found = list(check_file(tmp_path / "x.parquet", tokenizer, SOLVE, on_progress=told.append))
    assert [(finding.line, finding.rule) for finding in found] == [(2, "empty row")]
    assert told == [1, 2]


@given(score=scores(), arrival=arrivals, seed=st.integers(0, 9))
@settings(max_examples=120, deadline=None)
def test_any_layout_of_any_story_passes(
    score: Score, arrival: Arrival, seed: int, tokenizer: DataTokenizer
) -> None:
    table = lay_out(score, tokenizer, arrival, random.Random(seed))
    assert list(check_table(table, 1, tokenizer)) == []
    plain = json.loads(json.dumps(table.to_json()))
    assert list(check_data(plain, 1, tokenizer)) == []


def test_the_baseline_passes_and_its_prompt_is_forced(tokenizer: DataTokenizer) -> None:
    score = solve_score(tell(1, 1), "b")
    table = serialise(lay_out(score, tokenizer), tokenizer)
    text = tokenizer.tokenizer.decode(list(table.lanes[0].ids), skip_special_tokens=False)
    thought = score.part("thought").text
    assert text == f"{score.part('user').text}<think>{thought}</think>{score.part('output').text}<end>"
    ((start, stop),) = table.lanes[0].asked
    assert tokenizer.tokenizer.id_to_token(table.lanes[0].ids[start]) == "<think>"
    assert stop == len(table.lanes[0].ids) - 1
    assert list(check_table(table, 1, tokenizer)) == []


def test_an_audit_in_turns_reads_the_finished_solution(tokenizer: DataTokenizer) -> None:
    score = audit_score(tell(1, 1), "a", random.Random(1))
    for arrival in (ARRIVALS["paced"], ARRIVALS["paste"]):  # how it arrived makes no difference
        table = serialise(lay_out(score, tokenizer, arrival), tokenizer)
        text = tokenizer.tokenizer.decode(list(table.lanes[0].ids), skip_special_tokens=False)
        assert text == "<end>".join([*(part.text for part in score.parts), ""])


def _two_turns(tokenizer: DataTokenizer, second: tuple[int, ...]) -> RowTable:
    end = tokenizer.end_id
    user = Lane("user", [0, 1, 4, 5], [9, end, 9, end], (), 0.0)
    output = Lane(
        "output",
        [2, 3, *second],
        [9, end, *[9] * (len(second) - 1), end],
        ((1, 3), (second[0] - 1, second[-1])),
    )
    return RowTable("t", max(second) + 1, (user, output), {})


def test_a_second_turn_is_no_fault_but_speaking_before_it_is(tokenizer: DataTokenizer) -> None:
    assert list(check_table(_two_turns(tokenizer, (6, 7)), 1, tokenizer)) == []
    rules = [finding.rule for finding in check_table(_two_turns(tokenizer, (4, 6)), 1, tokenizer)]
    assert rules  # it is asked in row 3, in which its first turn has ended
    assert set(rules) <= {"asked", "unasked", "after end"}


def _mutants(data: Data, rng: random.Random) -> Iterator[Data]:
    """The same data with one value replaced by rubbish, anywhere."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, (dict, list)):
            keys = list(value) if isinstance(value, dict) else range(len(value))
            for key in keys:
                places.append((value, key))
                walk(value[key])

    walk(data)
    for _ in range(150):
        holder, key = rng.choice(places)
        before = holder[key]
        holder[key] = rng.choice([None, -1, "x", [], {}, 1e400, [[]], True, 10**30, [None], {"a": 1}])
        yield data
        holder[key] = before


def test_no_rubbish_makes_it_fail(table: RowTable, tokenizer: DataTokenizer) -> None:
    for mutant in _mutants(copy.deepcopy(table.to_json()), random.Random(0)):
        for finding in check_data(mutant, 1, tokenizer, SOLVE):
            assert finding.rule in RULES
            assert str(finding)


_SMALL = """
import json, resource, sys
from braid.data.check import check_file
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
print(sorted({finding.rule for finding in check_file(sys.argv[1])}))
"""


@pytest.mark.parametrize("key", ["asked", "num_rows"])
def test_a_number_of_a_line_costs_no_time_and_no_memory(
    key: str, table: RowTable, lines: Callable[..., Path]
) -> None:
    data = table.to_json()
    if key == "num_rows":
        data["num_rows"] = 10**11
    else:
        _lane(data, OUTPUT)["asked"] = [[0, 10**11]]
    done = subprocess.run(
        [sys.executable, "-c", _SMALL, str(lines(data))], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ("['empty row']" if key == "num_rows" else "['asked']")


@given(
    rows=st.sets(st.integers(0, 30), min_size=1),
    ranges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4),
)
def test_unasked_tokens_are_those_before_which_no_range_lies(
    rows: set[int], ranges: list[tuple[int, int]]
) -> None:
    lane = Lane("output", sorted(rows), [1] * len(rows), ranges)
    forced = [row for place, row in enumerate(lane.rows) if row == place and lane.asked[0][0] >= row]
    wanted = [row for row in lane.rows if row - 1 not in lane.asked_rows and row not in forced]
    found = [each.row for each in check_table(RowTable("x", 31, (lane,))) if each.rule == "unasked"]
    assert found == wanted[:5]
