"""From a builder's name to a file and its manifest: the same wish gives the same bytes.

    seed ─▶ scores ─▶ arrival drawn for each ─▶ rows ─▶ file, and FILE.manifest.json

Each example draws from a generator of its own, named by seed, builder and place, so that a longer file begins with the
shorter one.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braid._version import __version__
from braid.data.causality import Verdict
from braid.data.files import sha256_of, write_text
from braid.data.layout import ARRIVALS, Arrival, draw_arrival, lay_out
from braid.data.row_table import RowTable
from braid.data.score import Score
from braid.data.scores import SCORES, write_scores
from braid.data.sources import Wish, find_builder
from braid.data.tables import write_tables
from braid.data.tokens import DataTokenizer, train_tokenizer
from braid.errors import DataError
from braid.streams.strict import hint

__all__ = [
    "ARRIVAL_MIX",
    "Manifest",
    "arrival_of",
    "build",
    "fit_tokenizer",
    "laid_out",
    "manifest_path",
]

ARRIVAL_MIX = "mixed"
"""Every example draws a way of arriving of its own."""

_MOST_FRUITLESS = 1000
"""Examples left out in a row, after which a builder is given up."""


@dataclass
class Manifest:
    """How a file was made; it stands beside it.

    Args:
        builder, split, seed, wait_k: As wished.
        source: The file that was read, without its folder, and its SHA-256; None if there was none.
        arrival: `mixed`, or one of `paced`, `typed`, `paste`.
        count: Examples in the file.
        left_out: Examples that were not, because a step could not be known.
        moved: Steps that the causality validator moved.
        splits: Split that an example says it belongs to → how many.
        num_rows, num_tokens, num_asked: Of all examples together.
        tokenizer: Its fingerprint; None for scores.
        sha256: Of the file.
        braid: The version that made it.
    """

    builder: str
    split: str
    seed: int
    wait_k: int
    source: Mapping[str, str] | None
    arrival: str | None
    count: int = 0
    left_out: int = 0
    moved: int = 0
    splits: dict[str, int] = field(default_factory=dict[str, int])
    num_rows: int = 0
    num_tokens: int = 0
    num_asked: int = 0
    tokenizer: str | None = None
    sha256: str = ""
    braid: str = __version__

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


def manifest_path(path: str | Path) -> Path:
    """Where the manifest of a file stands."""
    return Path(f"{path}.manifest.json")


def build(
    builder: str,
    out: str | Path,
    *,
    tokenizer: DataTokenizer | None = None,
    count: int | None = None,
    wish: Wish | None = None,
    arrival: str = ARRIVAL_MIX,
    weights: Mapping[str, float] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Build a file of examples, and write its manifest beside it.

    Args:
        builder: One of `braid.data.sources.BUILDERS`.
        out: The file: `.jsonl` or `.parquet` for row tables, `.scores.jsonl` for scores.
        tokenizer: Of the model; scores need none.
        count: Examples; all that a file gives if None.
        wish: What is to be built.
        arrival: `mixed`, or one way for all.
        weights: Of the loss, by stream.
        on_progress: Is told how many examples are done.

    Returns:
        The manifest.

    Raises:
        DataError: The builder, the wish or the file cannot be; what was there before is untouched.
    """
    wish = wish or Wish()
    chosen = find_builder(builder)
    is_scores = str(out).endswith(SCORES)
    _require_arrival(arrival)
    if count is None and wish.source is None:
        raise DataError(f"{builder} without a source never ends; say how many examples with --count")
    if tokenizer is None and not is_scores:
        raise DataError(f"row tables need a tokenizer; write scores ({SCORES}) without one")
    source = {"name": wish.source.name, "sha256": sha256_of(wish.source)} if wish.source is not None else None
    manifest = Manifest(builder, wish.split, wish.seed, wish.wait_k, source, None if is_scores else arrival)
    scores = itertools.islice(_kept(chosen.scores(wish), manifest, is_strict=wish.is_strict), count)
    if is_scores or tokenizer is None:
        manifest.count = write_scores(out, scores, on_progress=on_progress)
    else:
        manifest.tokenizer = tokenizer.fingerprint
        series = f"{wish.seed}/{builder}"
        tables = laid_out(scores, tokenizer, arrival, series=series, weights=weights)
        manifest.count = write_tables(out, _measured(tables, manifest), on_progress=on_progress)
    manifest.sha256 = sha256_of(out)
    write_text(manifest_path(out), json.dumps(manifest.to_json(), indent=2, ensure_ascii=False) + "\n")
    return manifest


def fit_tokenizer(
    builder: str, wish: Wish | None = None, *, size: int = 4096, texts: int = 1000
) -> DataTokenizer:
    """A tokenizer trained on what a builder makes, for a model that is trained from scratch.

    Args:
        builder: One of `braid.data.sources.BUILDERS`.
        wish: What is to be built.
        size: Tokens at most.
        texts: Examples that it is trained on.
    """
    wish = wish or Wish()
    scores = find_builder(builder).scores(wish)
    told = [each.score if isinstance(each, Verdict) else each for each in itertools.islice(scores, texts)]
    return DataTokenizer(train_tokenizer((part.text for score in told for part in score.parts), size=size))


def arrival_of(name: str, rng: random.Random) -> Arrival:
    """The way of arriving of one example: drawn, or the one that is named."""
    return draw_arrival(rng) if name == ARRIVAL_MIX else ARRIVALS[name]


def laid_out(
    scores: Iterable[Score],
    tokenizer: DataTokenizer,
    arrival: str,
    *,
    series: str,
    weights: Mapping[str, float] | None = None,
) -> Iterator[RowTable]:
    """Scores in rows, each with its own way of arriving.

    Args:
        scores: What is said.
        tokenizer: Of the model.
        arrival: `mixed`, or one way for all.
        series: Names the series that they belong to: the same name and id draw the same way.
        weights: Of the loss, by stream.
    """
    for score in scores:
        rng = random.Random(f"{series}/{score.id}/arrival")
        yield lay_out(score, tokenizer, arrival_of(arrival, rng), rng, weights)


def _require_arrival(name: str) -> None:
    known = (ARRIVAL_MIX, *ARRIVALS)
    if name not in known:
        raise DataError(f"there is no arrival {name!r}; {hint(name, known)}")


def _kept(found: Iterator[Score | Verdict], manifest: Manifest, *, is_strict: bool) -> Iterator[Score]:
    """The scores whose steps could be known, counted."""
    fruitless = 0
    for each in found:
        if isinstance(each, Verdict):
            if is_strict and not each.holds:
                manifest.left_out += 1
                fruitless += 1
                if fruitless == _MOST_FRUITLESS:
                    raise DataError(
                        f"{manifest.builder}: {fruitless} examples in a row have steps that could not be known, such "
                        f"as {each.impossible[0].text!r}; --any-step keeps them, a judge may see more"
                    )
                continue
            manifest.moved += len(each.moved)
        score = each.score if isinstance(each, Verdict) else each
        fruitless = 0
        split = str(score.meta.get("split", manifest.split))
        manifest.splits[split] = manifest.splits.get(split, 0) + 1
        yield score


def _measured(tables: Iterator[RowTable], manifest: Manifest) -> Iterator[RowTable]:
    """The tables, their sizes added to the manifest as they pass."""
    for table in tables:
        manifest.num_rows += table.num_rows
        manifest.num_tokens += table.num_tokens
        manifest.num_asked += sum(lane.num_asked for lane in table.lanes)
        yield table
