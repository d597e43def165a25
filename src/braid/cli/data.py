"""`braid data`: build, check, show and convert training data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braid.cli.progress import progress_bar
from braid.cli.report import JsonOption, print_json

if TYPE_CHECKING:
    from braid.data.causality import Judge
    from braid.data.tokens import DataTokenizer

__all__ = ["FAULTY", "app", "build", "check", "convert", "show"]

FAULTY = 1
"""Exit code when a file has faults."""

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Build, check, show and convert training data: which token stands in which row of which stream.",
)

_BUILD_EXAMPLES = """[bold]Examples[/]

braid data build stories --count 1000 --seed 1 --out stories.jsonl

braid data build chats --source chats.jsonl --wait-k 3 --tokenizer ./my-model --out chats.parquet

braid data build audit --count 500 --split faults --out audit.scores.jsonl"""

_CHECK_EXAMPLES = """[bold]Examples[/]

braid data check stories.jsonl

braid data check chats.parquet --tokenizer ./my-model --topology solve --json"""

_SHOW_EXAMPLES = """[bold]Examples[/]

braid data show stories.jsonl

braid data show stories.jsonl --example 12"""

_CONVERT_EXAMPLES = """[bold]Examples[/]

braid data convert stories.jsonl stories.parquet

braid data convert audit.scores.jsonl audit.jsonl --tokenizer ./my-model --arrival typed

braid data convert ./dataset.jsonl rows.jsonl --from grid --streams user,output --inputs user --silence-id 151643"""

_JUDGE_MODEL = "default"

TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        help="A tokenizer.json, or a model's folder; by default the one beside the file.", metavar="PATH"
    ),
]
SeedOption = Annotated[int, typer.Option(help="The same seed gives the same bytes.")]
ArrivalOption = Annotated[
    str, typer.Option(help="How the input comes: mixed, paced, typed or paste; mixed draws for each example.")
]
SilenceOption = Annotated[str, typer.Option(help="The tokenizer's token for silence.", metavar="TOKEN")]
EndOption = Annotated[str, typer.Option(help="Its token for the end of a turn.", metavar="TOKEN")]


@app.command(epilog=_BUILD_EXAMPLES)
def build(
    builder: Annotated[
        str,
        typer.Argument(
            help="stories, audit, outside, isolation, solve, grid, chats, gsm_symbolic, knights_knaves, syllogism or "
            "propositional_logic.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="A .jsonl or .parquet of row tables, or a .scores.jsonl.", show_default=False
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="How many; all that a source file has if left out."),
    ] = None,
    seed: SeedOption = 0,
    split: Annotated[
        str,
        typer.Option(
            help="Of stories: train, numbers, structure or wording; of audit also faults; of outside: train, questions."
        ),
    ] = "train",
    source: Annotated[
        Path | None,
        typer.Option(help="The file that solve, chats, grid and isolation are built from.", metavar="FILE"),
    ] = None,
    tokenizer: TokenizerOption = None,
    silence: SilenceOption = "<silence>",
    end: EndOption = "<end>",
    arrival: ArrivalOption = "mixed",
    wait_k: Annotated[
        int,
        typer.Option(
            min=1, help="Segments of the question of chats and solve that are read before the thought begins."
        ),
    ] = 1,
    inputs: Annotated[
        str, typer.Option(help="Streams of a grid that are not learned, by commas.", metavar="NAMES")
    ] = "system,user",
    weight: Annotated[
        list[str] | None, typer.Option(help="Weight of a stream's loss; may be repeated.", metavar="NAME=W")
    ] = None,
    any_step: Annotated[
        bool, typer.Option("--any-step", help="Keep examples with steps that could not be known.")
    ] = False,
    judge: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible endpoint that judges free text.", metavar="URL")
    ] = None,
    judge_model: Annotated[str, typer.Option(help="The judge's model.", metavar="NAME")] = _JUDGE_MODEL,
    json: JsonOption = False,
) -> None:
    """Build a file of examples, and a manifest of how it was made beside it.

    Without --tokenizer one is trained on the examples' own text and written beside the file, for a model that is
    trained from scratch. The judge's API key is read from BRAID_JUDGE_KEY.
    """
    from braid.data.build import build, fit_tokenizer
    from braid.data.files import write_text
    from braid.data.scores import SCORES
    from braid.data.sources import Wish, find_builder

    find_builder(builder)
    factors = _weights(weight or ())
    with ExitStack() as stack:
        judging = _judge(judge, judge_model, stack)
        wish = Wish(
            seed,
            split,
            source,
            wait_k,
            _names(inputs),
            not any_step,
            judging,
            judge_model=judge_model if judge is not None else None,
        )
        tokens: DataTokenizer | None = None
        if not str(out).endswith(SCORES):
            tokens = _tokenizer(tokenizer, silence, end) if tokenizer else fit_tokenizer(builder, wish)
        advance = stack.enter_context(progress_bar("examples", count))
        manifest = build(
            builder,
            out,
            tokenizer=tokens,
            count=count,
            wish=wish,
            arrival=arrival,
            weights=factors,
            on_progress=advance,
        )
    if tokens is not None and tokenizer is None:
        write_text(_own_tokenizer(out), tokens.tokenizer.to_str())
    _say(manifest.to_json(), json, f"{manifest.count:,} examples in {out}" + _beside(manifest.to_json()))


@app.command(epilog=_CHECK_EXAMPLES)
def check(
    file: Annotated[Path, typer.Argument(help="A file of row tables, or of scores.", show_default=False)],
    tokenizer: TokenizerOption = None,
    silence: SilenceOption = "<silence>",
    end: EndOption = "<end>",
    topology: Annotated[
        str | None,
        typer.Option("--topology", "-t", help="A preset or a YAML file: the streams that there may be."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="Faults that are printed; the rest are counted.")] = 100,
    json: JsonOption = False,
) -> None:
    """Check a file of row tables or scores, and name line, stream and row or segment of each fault.

    Without a tokenizer, ids and ends of turns are not checked. Exit code 1 when there are faults.
    """
    from braid.data.check import check_file
    from braid.streams.presets import topology as as_topology

    tokens = _tokenizer_for(file, tokenizer, silence, end)
    chosen = as_topology(topology) if topology is not None else None
    found = examples = 0
    with progress_bar("examples") as advance:

        def count(done: int) -> None:
            nonlocal examples
            examples = done
            advance(done)

        for finding in check_file(file, tokens, chosen, on_progress=count):
            found += 1
            if found <= most:
                if json:
                    print_json(finding.to_json())
                else:
                    typer.echo(str(finding))
    note = "" if tokens is not None else "; ids were not checked, for there is no tokenizer"
    more = f", {found - most:,} of them not shown" if found > most else ""
    summary = {"file": str(file), "examples": examples, "faults": found, "ids_checked": tokens is not None}
    _say(summary, json, f"{examples:,} examples, {found:,} faults{more}{note}")
    if found:
        raise typer.Exit(FAULTY)


@app.command(epilog=_SHOW_EXAMPLES)
def show(
    file: Annotated[Path, typer.Argument(help="A file of row tables.", show_default=False)],
    example: Annotated[int, typer.Option("--example", "-e", min=1, help="Which one, from 1.")] = 1,
    tokenizer: TokenizerOption = None,
    silence: SilenceOption = "<silence>",
    end: EndOption = "<end>",
    json: JsonOption = False,
) -> None:
    """Show an example as a grid: a line a stream, time from left to right."""
    import itertools
    import json as encoder

    from rich.console import Console

    from braid.data.show import render_table
    from braid.data.tables import read_tables
    from braid.errors import DataError

    table = next(itertools.islice(read_tables(file), example - 1, None), None)
    if table is None:
        raise DataError(f"{file} has no example {example}")
    tokens = _tokenizer_for(file, tokenizer, silence, end)
    if json:
        text = {lane.stream: tokens.decode(lane.ids) for lane in table.lanes} if tokens is not None else {}
        print_json({**table.to_json(), "text": text})
        return
    console = Console()
    # Not through rich: the grid has its colours, and is as wide as the screen already.
    typer.echo(render_table(table, tokens, console.width, color=console.color_system is not None))
    meta = encoder.dumps(dict(table.meta), ensure_ascii=False)
    typer.echo(f"\n{table.id} · {table.num_rows:,} rows · {table.num_tokens:,} tokens · {meta}")


@app.command(epilog=_CONVERT_EXAMPLES)
def convert(
    file: Annotated[Path, typer.Argument(help="What is read.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="A .jsonl or .parquet of row tables.", show_default=False)],
    layout: Annotated[
        str,
        typer.Option(
            "--from", help="rows, scores, chats, grid, npz or stream-data; told by the name if auto."
        ),
    ] = "auto",
    tokenizer: TokenizerOption = None,
    silence: SilenceOption = "<silence>",
    end: EndOption = "<end>",
    streams: Annotated[
        str, typer.Option(help="Names of the streams of grid and npz, by commas.", metavar="NAMES")
    ] = "user,output",
    inputs: Annotated[
        str, typer.Option(help="Streams of grids that are not learned, by commas.", metavar="NAMES")
    ] = "user",
    silence_id: Annotated[
        int | None, typer.Option(help="What stands in silent slots of grids; by default the tokenizer's.")
    ] = None,
    end_id: Annotated[
        int | None, typer.Option(help="What ends a turn in grids; by default the tokenizer's.")
    ] = None,
    arrival: ArrivalOption = "mixed",
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Convert other layouts, and scores, to row tables; and row tables between JSON lines and Parquet.

    A manifest of how it was made is written beside the file.
    """
    from braid.data.convert import convert

    tokens = _tokenizer_for(file, tokenizer, silence, end)
    with progress_bar("examples") as advance:
        manifest = convert(
            file,
            out,
            None if layout == "auto" else layout,
            tokenizer=tokens,
            streams=_names(streams),
            inputs=_names(inputs),
            silence_id=silence_id,
            end_id=end_id,
            arrival=arrival,
            seed=seed,
            on_progress=advance,
        )
    _say({"file": str(out), **manifest.to_json()}, json, f"{manifest.count:,} examples in {out}")


# ---- options


def _own_tokenizer(file: Path) -> Path:
    return Path(f"{file}.tokenizer.json")


def _tokenizer_for(file: Path, path: Path | None, silence: str, end: str) -> DataTokenizer | None:
    """The tokenizer that is named, or the one beside the file; None if there is neither."""
    if path is None and not _own_tokenizer(file).exists():
        return None
    return _tokenizer(path or _own_tokenizer(file), silence, end)


def _tokenizer(path: Path, silence: str, end: str) -> DataTokenizer:
    from braid.data.tokens import DataTokenizer
    from braid.errors import TokenizerError

    try:
        return DataTokenizer.read(path, silence=silence, end=end)
    except KeyError as error:
        raise TokenizerError(f"{path}: {error.args[0]}; name others with --silence and --end") from None
    except Exception as error:  # noqa: BLE001  (tokenizers raises a bare Exception for whatever is wrong)
        raise TokenizerError(f"{path} is no tokenizer.json, and no folder that has one: {error}") from None


def _judge(url: str | None, model: str, stack: ExitStack) -> Judge | None:
    from braid.errors import InputError

    if url is None:
        if model != _JUDGE_MODEL:
            raise InputError(f"--judge-model {model} is asked at an endpoint; name it with --judge")
        return None
    import os

    from braid.data.judge import ModelJudge

    return stack.enter_context(ModelJudge(url, model, key=os.environ.get("BRAID_JUDGE_KEY")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _weights(values: Sequence[str]) -> dict[str, float]:
    import math

    from braid.errors import InputError

    weights: dict[str, float] = {}
    for value in values:
        name, _, number = value.partition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            raise InputError(f"--weight {value}: give NAME=W, such as thought=0.5") from None
        if not (math.isfinite(weights[name]) and weights[name] >= 0):
            raise InputError(f"--weight {value}: a weight is a number from 0 up")
    return weights


# ---- what is said


def _beside(manifest: dict[str, Any]) -> str:
    parts = [
        f"{manifest[key]:,} {what}" for key, what in (("left_out", "left out"), ("moved", "steps moved"))
    ]
    return f" ({', '.join(parts)})" if manifest["left_out"] or manifest["moved"] else ""


def _say(data: dict[str, Any], as_json: bool, text: str) -> None:
    if as_json:
        print_json(data)
    else:
        typer.secho(text, dim=True, err=True)
