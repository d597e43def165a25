"""The rules of scores: each can be broken, what breaks none can be laid out, and no score of ours breaks one."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.data.check import check_file, check_score
from braid.data.layout import Arrival, lay_out
from braid.data.score import Part, Score, Segment
from braid.data.score_rules import SCORE_RULES
from braid.data.scores import read_scores, score_from_json, score_to_json
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError
from braid.streams.presets import topology
from tests.data.strategies import arrivals, scores

Data = dict[str, Any]
GOOD: Data = {
    "id": "s-1",
    "parts": [
        {"stream": "user", "direction": "input", "segments": [{"text": "Mia has 3."}, {"text": " And 4."}]},
        {"stream": "thought", "direction": "output", "reads": ["user"],
         "segments": [{"text": "3;", "after": {"user": 1}}, {"text": "7;", "after": {"user": 2}}]},
        {"stream": "output", "direction": "output", "reads": ["user"],
         "segments": [{"text": "7", "after": {"user": 2, "thought": 2}}]},
    ],
}  # fmt: skip


def _at(path: tuple[str | int, ...], value: Any) -> Data:
    """The good score with one value replaced; with the value `...` taken out."""
    data = copy.deepcopy(GOOD)
    holder: Any = data
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return data


def _of(part: int, number: int, key: str) -> tuple[str | int, ...]:
    return "parts", part, "segments", number, key


USER, THOUGHT, OUTPUT = 0, 1, 2
BREACHES: list[tuple[Data, str, str | None, int | None]] = [
    (_at(("colour",), "blue"), "keys", None, None),
    (_at(("parts",), ...), "keys", None, None),
    (_at(("parts", THOUGHT, "segments"), ...), "keys", "thought", None),
    (_at(_of(THOUGHT, 1, "text"), ...), "keys", "thought", 1),
    (_at(_of(THOUGHT, 1, "aftre"), {}), "keys", "thought", 1),
    (_at(("id",), 5), "types", None, None),
    (_at(("meta",), "x"), "types", None, None),
    (_at(("parts",), {}), "types", None, None),
    (_at(("parts", USER), "user"), "types", None, None),
    (_at(("parts", USER, "stream"), ["user"]), "types", None, None),
    (_at(("parts", USER, "direction"), "sideways"), "types", "user", None),
    (_at(("parts", USER, "ends"), 1), "types", "user", None),
    (_at(("parts", OUTPUT, "reads"), "user"), "types", "output", None),
    (_at(("parts", OUTPUT, "segments"), "7"), "types", "output", None),
    (_at(("parts", OUTPUT, "segments", 0), "7"), "types", "output", 0),
    (_at(_of(USER, 1, "text"), 5), "types", "user", 1),
    (_at(_of(OUTPUT, 0, "after"), ["user"]), "types", "output", 0),
    (_at(_of(OUTPUT, 0, "after"), {"user": True}), "types", "output", 0),
    (_at(("parts", OUTPUT, "stream"), "thought"), "streams", "thought", None),
    (_at(("parts", THOUGHT, "stream"), "musing"), "streams", "musing", None),
    (_at(("parts", THOUGHT, "direction"), "input"), "streams", "thought", None),
    (_at(_of(USER, 1, "text"), ""), "text", "user", 1),
    (_at(_of(USER, 1, "text"), "stop <end> here"), "text", "user", 1),
    (_at(_of(THOUGHT, 0, "after"), {"usr": 1}), "after", "thought", 0),
    (_at(_of(THOUGHT, 0, "after"), {"user": 4}), "after", "thought", 0),
    (_at(("parts", OUTPUT, "reads"), ["usr"]), "after", "output", None),
    (_at(("parts", OUTPUT, "reads"), ["thought"]), "after", "output", None),
    (_at(_of(THOUGHT, 0, "after"), {"output": 1}), "waits", "thought", 0),
    (_at(_of(USER, 1, "after"), {"thought": 2}), "waits", "user", 1),
    (_at(_of(USER, 0, "after"), {"thought": 0, "output": 1}), "waits", None, None),
    (_at(("parts", USER, "segments"), ...) | {"parts": []}, "waits", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("bad", "rule", "stream", "segment"), BREACHES)
def test_each_breach_is_found_where_it_is(
    bad: Data, rule: str, stream: str | None, segment: int | None, tokenizer: DataTokenizer,
    lines: Callable[..., Path],
) -> None:  # fmt: skip
    path = lines({**GOOD, "id": "good"}, bad, name="x.scores.jsonl")
    found = list(check_file(path, tokenizer, topology("solve")))
    assert (2, rule, stream, segment) in [(each.line, each.rule, each.stream, each.segment) for each in found]
    assert {each.line for each in found} == {2}
    assert str(found[0]).startswith("line 2")


def test_every_rule_has_a_breach() -> None:
    assert {rule for _, rule, _, _ in BREACHES} | {"json", "id"} == set(SCORE_RULES)


def test_lines_that_are_no_scores_and_ids_that_were_used_before(lines: Callable[..., Path]) -> None:
    path = lines(GOOD, "{", "[]", GOOD, name="x.scores.jsonl")
    found = list(check_file(path))
    assert [(each.line, each.rule) for each in found] == [(2, "json"), (3, "types"), (4, "id")]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (_at(_of(THOUGHT, 0, "after"), {"usr": 1}), "line 2, stream thought, segment 0: it waits for 'usr'"),
        (_at(_of(USER, 1, "text"), ""), "line 2, stream user, segment 1: the text is empty"),
        (_at(_of(USER, 1, "text"), 5), "line 2, stream user, segment 1: text is text"),
    ],
)
def test_the_reader_names_line_stream_and_segment(
    bad: Data, message: str, lines: Callable[..., Path]
) -> None:
    reading = read_scores(lines(GOOD, bad, name="x.scores.jsonl"))
    next(reading)
    with pytest.raises(DataCorruptError, match=message):
        next(reading)


@given(score=scores())
def test_no_score_of_ours_has_a_fault(score: Score, tokenizer: DataTokenizer) -> None:
    assert list(check_score(json.loads(json.dumps(score_to_json(score))), 1, tokenizer)) == []


@st.composite
def _drawn(draw: st.DrawFn) -> Data:
    """Any score, with waits that may be a knot."""
    names = ["user", "document", "thought", "output"][: draw(st.integers(1, 4))]
    wait = st.dictionaries(st.sampled_from(names), st.integers(0, 2), max_size=2)
    parts = [
        {
            "stream": name,
            "direction": draw(st.sampled_from(("input", "output"))),
            "segments": [{"text": "Mia has 3", "after": draw(wait)} for _ in range(draw(st.integers(0, 2)))],
            "ends": draw(st.booleans()),
            "reads": draw(st.lists(st.sampled_from(names), max_size=2)),
        }
        for name in names
    ]
    return {"id": "x", "parts": parts}


@given(data=_drawn(), arrival=arrivals, seed=st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_what_has_no_fault_can_be_laid_out(
    data: Data, arrival: Arrival, seed: int, tokenizer: DataTokenizer
) -> None:
    if not list(check_score(data, 1, tokenizer)):
        table = lay_out(score_from_json(data), tokenizer, arrival, random.Random(seed))
        assert [tokenizer.decode(lane.ids) for lane in table.lanes] == [
            "Mia has 3" * len(part["segments"]) for part in data["parts"]
        ]


def test_a_second_turn_does_not_wait_for_more_input_than_comes(tokenizer: DataTokenizer) -> None:
    user = Part("user", "input", (Segment("3"), Segment("4", {"output": 1})))
    output = Part("output", "output", (Segment("5", {"user": 1}), Segment("6", {"user": 2})), reads=("user",))
    table = lay_out(Score("x", (user, output)), tokenizer, Arrival(wait_k=9))
    assert [tokenizer.decode(lane.ids) for lane in table.lanes] == ["34", "56"]


def test_no_rubbish_makes_it_fail(tokenizer: DataTokenizer) -> None:
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        if isinstance(value, (dict, list)):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                places.append((value, key))
                walk(value[key])

    data = copy.deepcopy(GOOD)
    walk(data)
    for holder, key in places:
        before = holder[key]
        for rubbish in (None, -1, "x", "", [], {}, 1e400, [[]], True, 10**30, [None], {"a": 1}):
            holder[key] = rubbish
            for finding in check_score(data, 1, tokenizer, topology("solve")):
                assert finding.rule in SCORE_RULES
                assert str(finding)
        holder[key] = before
