"""From a builder's name to a file and its manifest: the same wish gives the same bytes.

    seed ─▶ scores ─▶ arrival drawn for each ─▶ rows ─▶ file, and FILE.manifest.json

Each example draws from a generator of its own, named by seed, builder and place, so that a longer file begins with the
shorter one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from braid.data.causality import Verdict
from braid.data.files import sha256_of
from braid.data.layout import ARRIVALS, Arrival, draw_arrival, lay_out
from braid.data.manifest import BuildManifest
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
    "arrival_of",
    "build",
    "fit_tokenizer",
    "laid_out",
    "require_arrival",
    "source_of",
]

ARRIVAL_MIX = "mixed"
"""Every example draws a way of arriving of its own."""

_MOST_FRUITLESS = 1000
"""Examples left out in a row, after which a builder is given up."""


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
) -> BuildManifest:
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
    require_arrival(arrival)
    if count is None and wish.source is None:
        raise DataError(f"{builder} without a source never ends; say how many examples with --count")
    if tokenizer is None and not is_scores:
        raise DataError(f"row tables need a tokenizer; write scores ({SCORES}) without one")
    if is_scores and (weights or arrival != ARRIVAL_MIX):
        raise DataError("scores have neither --arrival nor --weight; write row tables (.jsonl, .parquet)")
    found = chosen.scores(wish)
    manifest = BuildManifest(
        source=source_of(wish.source) if wish.source is not None else None,
        seed=wish.seed,
        arrival=None if is_scores else arrival,
        builder=builder,
        split=wish.split,
        wait_k=wish.wait_k,
        inputs=wish.inputs,
        faults=wish.faults,
        any_step=not wish.is_strict,
        judge=wish.judge_model,
        weights=weights or {},
    )
    scores = itertools.islice(_kept(found, manifest, is_strict=wish.is_strict), count)
    if is_scores or tokenizer is None:
        manifest.count = write_scores(out, scores, on_progress=on_progress)
    else:
        manifest.tokenizer = tokenizer.fingerprint
        series = f"{wish.seed}/{builder}"
        tables = laid_out(scores, tokenizer, arrival, series=series, weights=weights)
        manifest.count = write_tables(out, manifest.measured(tables), on_progress=on_progress)
    manifest.write(out)
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

    Raises:
        DataError: A weight is of a stream that no score has as an output.
    """
    outputs: set[str] = set()
    for score in scores:
        rng = random.Random(f"{series}/{score.id}/arrival")
        outputs |= {part.stream for part in score.parts if part.direction == "output"}
        yield lay_out(score, tokenizer, arrival_of(arrival, rng), rng, weights)
    unknown = sorted(set(weights or ()) - outputs)
    if unknown and outputs:
        raise DataError(
            f"no example has an output {unknown[0]!r} to be weighted; {hint(unknown[0], outputs)}"
        )


def source_of(path: Path) -> dict[str, str]:
    """Name and SHA-256 of what was read, as a manifest tells them; no path of a machine."""
    return {"name": path.resolve().name, "sha256": sha256_of(path)}


def require_arrival(name: str) -> None:
    """Refuse an arrival that there is not.

    Raises:
        DataError: It is neither `mixed` nor one of `ARRIVALS`.
    """
    known = (ARRIVAL_MIX, *ARRIVALS)
    if name not in known:
        raise DataError(f"there is no arrival {name!r}; {hint(name, known)}")


def _kept(found: Iterator[Score | Verdict], manifest: BuildManifest, *, is_strict: bool) -> Iterator[Score]:
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
