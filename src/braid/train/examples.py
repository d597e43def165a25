"""The examples of a run, by their place: the same place gives the same queries, whoever asks for it, and when.

So a run that goes on after a kill needs no state of its data, and processes need no talk about who takes which.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np
from torch.utils.data import Dataset

from braid.data.build import arrival_of
from braid.data.check import check_file
from braid.data.layout import ARRIVALS, lay_out, serialise
from braid.data.row_table import RowTable
from braid.data.score import Score
from braid.data.scores import SCORES, read_scores
from braid.data.sources import Wish, find_builder
from braid.data.tables import read_tables
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError
from braid.model.reads import Ints
from braid.streams.topology import Topology
from braid.train.packing import Reading
from braid.train.queries import Queries, Weighing, queries_of
from braid.train.recipe import Form, Recipe, Source

__all__ = ["TEXT", "Examples", "keeps", "reading_of", "texts_of"]

TEXT = "text"
"""What the one stream of a model that takes turns is called."""

_NUMBER = re.compile(r"\d+")
_STRETCH = 2048
"""Examples of a series among which one that keeps the limits is looked for."""


class _Places(Protocol):
    """The examples of one source by their place."""

    def table(self, index: int, form: Form) -> RowTable:
        """In rows."""
        ...

    def text(self, index: int) -> str:
        """What it says, for a tokenizer."""
        ...


@dataclass(frozen=True)
class _Built:
    """Examples of a builder."""

    source: Source
    tokenizer: DataTokenizer | None

    def table(self, index: int, form: Form) -> RowTable:
        assert self.tokenizer is not None
        return _laid_out(self._score(index), self.tokenizer, self.source, form, index)

    def text(self, index: int) -> str:
        return _text_of(self._score(index))

    def _score(self, index: int) -> Score:
        assert self.source.builder is not None
        nth = find_builder(self.source.builder).nth
        assert nth is not None, "the recipe was checked"
        wish = Wish(self.source.seed, self.source.split, faults=self.source.faults)
        if self.source.most_steps is None and self.source.largest is None:
            return nth(wish, index)
        # Each place has a stretch of the series for itself, so that no two of them find the same example.
        for place in range(index * _STRETCH, (index + 1) * _STRETCH):
            score = nth(wish, place)
            if keeps(score, self.source):
                return score
        raise DataError(
            f"{self.source.builder}: none of {_STRETCH} examples in a row keeps most_steps and largest; raise them"
        )


def keeps(score: Score, source: Source) -> bool:
    """Whether an example is within the limits of a source.

    Args:
        score: The example.
        source: With its limits.
    """
    if source.most_steps is not None and score.meta["num_steps"] > source.most_steps:
        return False
    return source.largest is None or all(
        int(number) <= source.largest for number in _NUMBER.findall(_text_of(score))
    )


class _Read:
    """Examples of a file; as many places as it has examples make a round, which has an order of its own."""

    def __init__(self, recipe: Recipe, source: Source, tokenizer: DataTokenizer | None) -> None:
        assert source.file is not None
        path = recipe.at(source.file)
        self._source, self._tokenizer, self._seed = source, tokenizer, recipe.seed
        self._items: list[Score | RowTable] = []
        if tokenizer is not None:
            _refuse_faults(path, tokenizer, recipe.topology)
        self._items.extend(read_scores(path) if path.name.endswith(SCORES) else read_tables(path))
        if not self._items:
            raise DataError(f"{path} has no examples")
        self._round = -1
        self._order: Ints = np.empty(0, np.int64)

    def table(self, index: int, form: Form) -> RowTable:
        item = self._item(index)
        assert self._tokenizer is not None
        if isinstance(item, Score):
            return _laid_out(item, self._tokenizer, self._source, form, index)
        return item if form == "streams" else serialise(item, self._tokenizer, TEXT)

    def text(self, index: int) -> str:
        item = self._item(index)
        if isinstance(item, RowTable):
            raise DataError(
                f"{self._source.file} has tokens already; name their tokenizer in the recipe as tokenizer.file"
            )
        return _text_of(item)

    def _item(self, index: int) -> Score | RowTable:
        number, place = divmod(index, len(self._items))
        if number != self._round:
            self._order = np.random.default_rng((self._seed, number)).permutation(len(self._items))
            self._round = number
        return self._items[self._order[place]]


def _refuse_faults(path: Path, tokenizer: DataTokenizer, topology: Topology) -> None:
    """Raise the first fault of a file, before hours are spent on it."""
    fault = next(check_file(path, tokenizer, topology), None)
    if fault is not None:
        raise DataCorruptError(f"{path}, {fault}; `braid data check` finds all such faults")


def _text_of(score: Score) -> str:
    return "\n".join(part.text for part in score.parts)


def _laid_out(score: Score, tokenizer: DataTokenizer, source: Source, form: Form, index: int) -> RowTable:
    if form == "turns":
        return serialise(lay_out(score, tokenizer, ARRIVALS["paste"]), tokenizer, TEXT)
    rng = random.Random(f"{source.seed}/{index}/arrival")
    return lay_out(score, tokenizer, arrival_of(source.arrival, rng), rng)


class Examples(Dataset[Queries]):
    """The examples of a stage.

    Args:
        recipe: Whose examples they are.
        tokenizer: Of the model.
        form: What they are trained as.
        weighing: What counts how much.
        start: Place of the first one.
        count: How many.
        max_positions: Rows that the network has positions for; None lets them be as long as they are.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: DataTokenizer,
        form: Form,
        weighing: Weighing,
        *,
        start: int = 0,
        count: int = 1,
        max_positions: int | None = None,
    ) -> None:
        self._sources = _sources(recipe, tokenizer)
        self._bounds = _bounds(recipe)
        self._seed, self._tokenizer, self._weighing = recipe.seed, tokenizer, weighing
        self._form: Form = form
        self._start, self._count, self._max_positions = start, count, max_positions
        self.streams = reading_of(recipe.topology, form).streams

    def __len__(self) -> int:
        return self._count

    def table(self, index: int) -> RowTable:
        """An example in rows.

        Args:
            index: Of the example in this stage.
        """
        place = self._start + index
        return _drawn(self._sources, self._bounds, self._seed, place).table(place, self._form)

    def __getitem__(self, index: int) -> Queries:
        place = self._start + index
        table = self.table(index)
        if self._max_positions is not None and table.num_rows > self._max_positions:
            raise DataError(
                f"example {table.id} has {table.num_rows} rows as {self._form}, and the network has "
                f"{self._max_positions} positions; raise network.settings.max_position_embeddings, where it is from "
                "scratch, or leave such examples out (most_steps of a builder, or a file without them)"
            )
        try:
            return queries_of(
                table,
                self.streams,
                self._tokenizer.silence_id,
                self._weighing,
                np.random.default_rng((self._seed, place)),
            )
        except KeyError as error:
            raise DataError(
                f"example {table.id} has a stream {error}, which the topology has not; it has {', '.join(self.streams)}"
            ) from None


def reading_of(topology: Topology, form: Form) -> Reading:
    """Who reads whom, in a form."""
    return Reading.of(topology) if form == "streams" else Reading((TEXT,), np.ones((1, 1), bool), True)


def texts_of(recipe: Recipe) -> Iterator[str]:
    """Text of the first examples, for a tokenizer."""
    sources = _sources(recipe, None)
    bounds = _bounds(recipe)
    for place in range(recipe.tokenizer.texts):
        yield _drawn(sources, bounds, recipe.seed, place).text(place)


def _sources(recipe: Recipe, tokenizer: DataTokenizer | None) -> list[_Places]:
    return [
        _Built(source, tokenizer) if source.builder is not None else _Read(recipe, source, tokenizer)
        for source in recipe.examples
    ]


def _bounds(recipe: Recipe) -> list[float]:
    """Of the sources' shares, added up."""
    return list(accumulate(source.share for source in recipe.examples))


def _drawn(sources: Sequence[_Places], bounds: Sequence[float], seed: int, place: int) -> _Places:
    """The source of the example at a place."""
    if len(sources) == 1:
        return sources[0]
    return random.Random(f"{seed}/{place}/source").choices(sources, cum_weights=bounds)[0]
