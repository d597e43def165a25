"""Examples by their place: the same place, the same queries; sources by share; files of scores and of row tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from braid.data.build import build, fit_tokenizer
from braid.data.sources import Wish
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError
from braid.train.examples import TEXT, Examples, texts_of
from braid.train.queries import Queries, Weighing
from braid.train.recipe import Form
from tests.train.tiny import read_recipe

COUNT = 12


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stories as scores, as row tables of JSON lines, and as Parquet, with their tokenizer."""
    folder = tmp_path_factory.mktemp("files")
    tokenizer = fit_tokenizer("stories", Wish())
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    for name in ("stories.scores.jsonl", "stories.jsonl", "stories.parquet"):
        build("stories", folder / name, tokenizer=tokenizer, count=COUNT, wish=Wish(seed=1))
    return folder


@pytest.fixture(scope="module")
def tokenizer(files: Path) -> DataTokenizer:
    return DataTokenizer.read(files)


def _examples(folder: Path, tokenizer: DataTokenizer, form: Form = "streams", **options: Any) -> Examples:
    sources = options.pop("examples", [{"builder": "stories", "seed": 1}])
    recipe = read_recipe(folder, examples=sources)
    weighing = Weighing(probe_share=0.5)
    return Examples(
        recipe, tokenizer, form, weighing, start=options.get("start", 0), count=options.get("count", 8)
    )


def _are_equal(left: Queries, right: Queries) -> bool:
    return all(np.array_equal(getattr(left, name), getattr(right, name)) for name in Queries.__slots__)


@pytest.mark.parametrize("form", ["streams", "turns"])
@pytest.mark.parametrize("source", ["builder", "stories.scores.jsonl", "stories.jsonl"])
def test_the_same_place_has_the_same_queries(
    source: str, form: Form, files: Path, tokenizer: DataTokenizer
) -> None:
    told = [{"builder": "stories"} if source == "builder" else {"file": source}]
    first = _examples(files, tokenizer, form, examples=told, count=30)
    again = _examples(files, tokenizer, form, examples=told, count=3, start=17)
    for index in (2, 0, 1):  # in whatever order they are asked for
        assert _are_equal(first[17 + index], again[index])
    assert not _are_equal(first[3], first[4])


def test_sources_are_drawn_by_their_shares(tmp_path: Path, tokenizer: DataTokenizer) -> None:
    told = [{"builder": "stories", "share": 3}, {"builder": "outside", "share": 1}]
    examples = _examples(tmp_path, tokenizer, examples=told, count=2000)
    found = Counter(examples.table(index).id.split("-")[0] for index in range(2000))
    # Five standard deviations of a share of one quarter.
    assert abs(found["outside"] / 2000 - 0.25) < 5 * (0.25 * 0.75 / 2000) ** 0.5
    assert found.total() == found["outside"] + found["stories"] == 2000


@pytest.mark.parametrize("name", ["stories.scores.jsonl", "stories.jsonl", "stories.parquet"])
def test_each_round_through_a_file_has_every_example_once(
    name: str, files: Path, tokenizer: DataTokenizer
) -> None:
    examples = _examples(files, tokenizer, examples=[{"file": name}], count=3 * COUNT)
    ids = [examples.table(index).id for index in range(3 * COUNT)]
    rounds = [ids[start : start + COUNT] for start in range(0, 3 * COUNT, COUNT)]
    assert all(sorted(each) == sorted(ids[:COUNT]) and len(set(each)) == COUNT for each in rounds)
    assert rounds[0] != rounds[1], "each has an order of its own"


@pytest.mark.parametrize("name", ["stories.scores.jsonl", "stories.jsonl"])
def test_turns_are_made_from_any_file(name: str, files: Path, tokenizer: DataTokenizer) -> None:
    """One stream: question, thought, answer; the same whether it comes from scores or from row tables."""
    told = [{"file": name}]
    table = _examples(files, tokenizer, "turns", examples=told).table(0)
    (lane,) = table.lanes
    assert lane.stream == TEXT
    assert list(lane.rows) == list(range(table.num_rows))
    streams = _examples(files, tokenizer, examples=told).table(0)
    said = [token for each in streams.lanes for token in each.ids if token != tokenizer.end_id]
    assert [token for token in lane.ids if token not in _marks(tokenizer)] == said
    ((start, stop),) = lane.asked
    assert tokenizer.decode(lane.ids[: start + 1]).strip().endswith("?")
    assert (stop, lane.ids[-1]) == (len(lane.ids) - 1, tokenizer.end_id)


def _marks(tokenizer: DataTokenizer) -> set[int]:
    return {tokenizer.end_id, *tokenizer.encode("<think>"), *tokenizer.encode("</think>")}


def test_row_tables_have_no_text_for_a_tokenizer(files: Path) -> None:
    recipe = read_recipe(files, examples=[{"file": "stories.jsonl"}])
    with pytest.raises(DataError, match=r"tokenizer\.file"):
        next(texts_of(recipe))
    recipe = read_recipe(files, examples=[{"file": "stories.scores.jsonl"}])
    assert "?" in next(texts_of(recipe))


def _broken(files: Path, name: str, text: str) -> None:
    lines = (files / "stories.jsonl").read_text().splitlines()
    (files / name).write_text("\n".join([*lines[:2], text, *lines[3:]]) + "\n")


def test_a_malformed_line_is_named_before_anything_is_trained(files: Path, tokenizer: DataTokenizer) -> None:
    third = json.loads((files / "stories.jsonl").read_text().splitlines()[2])
    third["lanes"][0]["ids"][0] = 99_999
    for name, text in (("torn.jsonl", "{"), ("ids.jsonl", json.dumps(third)), ("shape.jsonl", '{"id": "x"}')):
        _broken(files, name, text)
        with pytest.raises(DataCorruptError, match=rf"{name}, line 3"):
            _examples(files, tokenizer, examples=[{"file": name}])
    (files / "torn.scores.jsonl").write_text('{"id": 1\n')
    with pytest.raises(DataCorruptError, match=r"torn\.scores\.jsonl, line 1"):
        _examples(files, tokenizer, examples=[{"file": "torn.scores.jsonl"}])
    good, bad = (json.loads(line) for line in (files / "stories.scores.jsonl").read_text().splitlines()[:2])
    bad["parts"][1]["segments"][0]["after"] = {"usr": 1}
    (files / "wait.scores.jsonl").write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    with pytest.raises(DataCorruptError, match=r"line 2, .*stream thought, segment 0: it waits for 'usr'"):
        _examples(files, tokenizer, examples=[{"file": "wait.scores.jsonl"}])
    (files / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="has no examples"):
        _examples(files, tokenizer, examples=[{"file": "empty.jsonl"}])
    with pytest.raises(DataError, match="cannot read"):
        _examples(files, tokenizer, examples=[{"file": "nowhere.jsonl"}])


def test_a_stream_that_the_topology_has_not_is_told(files: Path, tokenizer: DataTokenizer) -> None:
    examples = _examples(files, tokenizer, examples=[{"builder": "audit"}])
    with pytest.raises(
        DataError, match=r"has a stream '\w+', which the topology has not; it has user, thought"
    ):
        _ = [examples[index] for index in range(len(examples))]


@pytest.mark.parametrize("builder", ["stories", "audit"])
def test_a_limit_of_steps_leaves_longer_examples_out(
    builder: str, files: Path, tokenizer: DataTokenizer
) -> None:
    told = [{"builder": builder, "most_steps": 2}]
    count = 12
    few = [_examples(files, tokenizer, examples=told, count=count).table(index) for index in range(count)]
    assert all(table.meta["num_steps"] <= 2 for table in few)
    assert len({table.id for table in few}) == count, "each place has an example of its own"
    rest = _examples(files, tokenizer, examples=told, start=5, count=count)
    assert [rest.table(index).id for index in range(4)] == [table.id for table in few[5:9]]
    assert any(
        table.meta["num_steps"] > 2
        for index in range(count)
        if (table := _examples(files, tokenizer, examples=[{"builder": builder}], count=count).table(index))
    )


def test_a_limit_of_numbers_leaves_larger_ones_out(files: Path, tokenizer: DataTokenizer) -> None:
    told = [{"builder": "stories", "largest": 20}]
    examples = _examples(files, tokenizer, examples=told, count=8)
    for index in range(8):
        lanes = examples.table(index).lanes
        said = " ".join(tokenizer.tokenizer.decode(list(lane.ids)) for lane in lanes)
        numbers = [int(number) for number in re.findall(r"\d+", said)]
        assert numbers and max(numbers) <= 20


def test_audits_plant_the_kinds_that_their_source_names(tmp_path: Path) -> None:
    sources = [{"builder": "audit", "faults": ["result"]}, {"builder": "audit"}]
    flags: list[Counter[str]] = []
    for source in sources:
        recipe = read_recipe(tmp_path, examples=[source], tokenizer={"texts": 60})
        said = "\n".join(texts_of(recipe))
        flags.append(Counter(re.findall(r"wrong ?(\w*);", said)))
    assert flags[0].keys() == {"result"}
    assert flags[1].keys() == {"result", "number", "operation"}


def test_a_limit_that_no_example_keeps_is_told(files: Path, tokenizer: DataTokenizer) -> None:
    examples = _examples(files, tokenizer, examples=[{"builder": "stories", "most_steps": 0}])
    with pytest.raises(DataError, match=r"stories: none of 2048 .* keeps most_steps and largest; raise them"):
        examples.table(0)
