"""`braid bench`: measurements, each in one go, ending with a line of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from braid.cli.machine import DEFAULT_MODEL, DtypeOption, ModelOption, ThreadsOption, load_model
from braid.cli.progress import progress_bar
from braid.cli.report import INTERRUPTED, JsonOption, print_json

__all__ = ["app", "codewords", "fallback", "overhead", "rows", "serve", "sessions", "training", "typing"]

app = typer.Typer(
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    help="Measure, on this machine. Each measurement ends with a line of JSON; with --json that is all of "
    "standard output.",
)

_ROWS_EXAMPLES = """[bold]Examples[/]

braid bench rows

braid bench rows --model ./my-model --cached 2048 --repeat 50 --json"""

_CODEWORDS_EXAMPLES = """[bold]Examples[/]

braid bench codewords

braid bench codewords --cases 20 --json"""


_SESSIONS_EXAMPLES = """[bold]Examples[/]

braid bench sessions --sessions 1,4,16 --json

braid bench sessions --sessions 16 --vllm figures.json"""

_OVERHEAD_EXAMPLES = """[bold]Examples[/]

braid bench overhead

braid bench overhead --sessions 256 --streams 8 --json"""


_SERVE_EXAMPLES = """[bold]Examples[/]

braid bench serve

braid bench serve --sessions 4 --rounds 5 --json"""

_FALLBACK_EXAMPLES = """[bold]Examples[/]

braid bench fallback

braid bench fallback --topology think-aloud --answer-tokens 32 --json"""

_TRAINING_EXAMPLES = """[bold]Examples[/]

braid bench training

braid bench training recipe.yaml --rounds 30 --threads 2 --json"""

_TYPING_EXAMPLES = """[bold]Examples[/]

braid bench typing --n 20

braid bench typing --kinds middle=2,edits --baselines fresh --json

braid bench typing --traces mine.jsonl --speed 1"""


@app.command(epilog=_ROWS_EXAMPLES)
def rows(
    model: ModelOption = DEFAULT_MODEL,
    cached: Annotated[int, typer.Option(min=16, help="Tokens in the cache before every step.")] = 512,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; every case is timed once a round.")] = 30,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time a row of 1, 2, 4 and 8 streams, and of four probes, beside the stock forward of `transformers`.

    Ours is the full step: plan, forward, sampling. The stock forward runs in a process of its own that Braid has not
    touched; the two take turns, so that noise hits both alike. Median milliseconds; the machine should be idle.
    """
    from braid.bench.rows.run import bench_rows
    from braid.bench.table import print_figures, rows_table

    loaded = load_model(model, dtype=dtype, device="cpu", threads=threads)
    with progress_bar("rounds") as advance:
        figures = bench_rows(loaded, cached=cached, repeat=repeat, on_round=advance).to_dict()
    print_figures(rows_table(figures), to_stderr=json)
    print_json(figures)


@app.command(epilog=_CODEWORDS_EXAMPLES)
def codewords(
    model: ModelOption = DEFAULT_MODEL,
    cases: Annotated[int, typer.Option(min=1, help="Words × phrasings, for each place of the word.")] = 100,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Count how often a writer repeats a code word that only another stream holds; several minutes.

    The word is forced into the thinker, or typed by the user in the middle of the answer. Compared with the same
    texts in one ordinary prompt, and with the writer's `reads` blocked, where nothing may come through.
    """
    from braid.bench.table import codewords_table, print_figures
    from braid.checks.codewords import measure_codewords

    loaded = load_model(model, dtype=dtype, threads=threads)
    with progress_bar("sessions") as advance:
        found = measure_codewords(loaded, cases=cases, on_progress=advance)
    figures: dict[str, Any] = {place: row.to_dict() for place, row in found.items()}
    print_figures(codewords_table(figures), to_stderr=json)
    print_json({**figures, "model": loaded.name})


@app.command(epilog=_SESSIONS_EXAMPLES)
def sessions(
    model: ModelOption = DEFAULT_MODEL,
    sessions: Annotated[str, typer.Option(help="Numbers of sessions, separated by commas.")] = "1,4,16",
    system_tokens: Annotated[int, typer.Option(min=16, help="Tokens of the system prompt in common.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 128,
    vllm: Annotated[
        Path | None, typer.Option(help="Figures that bench/vllm/run.py wrote; else the committed ones.")
    ] = None,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Serve many sessions with a system prompt in common, beside `transformers.generate` and vLLM; some minutes.

    `transformers` runs one prompt after another, and all in a padded batch, in a process that Braid has not touched;
    all in one run. vLLM's figures were measured apart, see bench/vllm. The machine should be idle.
    """
    from braid.bench.sessions.run import bench_sessions
    from braid.bench.table import print_figures, sessions_table
    from braid.cli.inputs import counts_of

    counts = counts_of(sessions)
    loaded = load_model(model, dtype=dtype, device="cpu", threads=threads)
    with progress_bar("measurements") as advance:
        figures = bench_sessions(
            loaded,
            counts=counts,
            vllm=vllm,
            system_tokens=system_tokens,
            output_tokens=output_tokens,
            on_progress=advance,
        ).to_dict()
    print_figures(sessions_table(figures), to_stderr=json)
    print_json(figures)


@app.command(epilog=_OVERHEAD_EXAMPLES)
def overhead(
    model: ModelOption = DEFAULT_MODEL,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that speak.")] = 64,
    streams: Annotated[int, typer.Option(min=2, help="Streams of each, all with a token in every row.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed.")] = 300,
    json: JsonOption = False,
) -> None:
    """Time the engine itself: steps on a backend that computes nothing. Only the model's tokenizer is used."""
    from braid.bench.overhead import bench_overhead
    from braid.bench.table import overhead_table, print_figures

    codec = load_model(model, dtype="auto", device="cpu", threads=None).codec
    figures = bench_overhead(codec, sessions=sessions, streams=streams, steps=steps).to_dict()
    print_figures(overhead_table(figures), to_stderr=json)
    print_json(figures)


@app.command(epilog=_SERVE_EXAMPLES)
def serve(
    model: ModelOption = DEFAULT_MODEL,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions at once.")] = 16,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each; the fastest counts.")] = 3,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Compare `braid serve`, in a process of its own, with the engine alone; and time the way to the socket.

    The same sessions on the engine in this process and as streamed chat completions over HTTP, in turns; then live
    sessions, from an event of the engine to the byte on the socket. The machine should be idle.
    """
    from braid.bench.serving import bench_serving
    from braid.bench.table import print_figures, serving_table

    loaded = load_model(model, dtype="auto", device="cpu", threads=threads)
    with progress_bar("measurements") as advance:
        figures = bench_serving(
            loaded, model, sessions=sessions, output_tokens=output_tokens, rounds=rounds, on_progress=advance
        ).to_dict()
    print_figures(serving_table(figures), to_stderr=json)
    print_json({**figures, "model": loaded.name})


@app.command(epilog=_FALLBACK_EXAMPLES)
def fallback(
    model: ModelOption = DEFAULT_MODEL,
    topology: Annotated[str, typer.Option(help="A preset of views, or a YAML file.")] = "think-aloud",
    question: Annotated[
        str | None, typer.Option(help="What is asked at once; a question of 12 tokens by default.")
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 32,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; both are timed once a round.")] = 5,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time a short question that is given at once, with streams and with one stream, and show what the engine chooses.

    Streams do not pay there: a thought has nothing to read along. `braid.generate(…, fall_back=True)` estimates both
    from what rows cost on this machine, and takes the cheaper one where nothing that was asked for is lost.
    """
    from braid.bench.fallback import QUESTION, bench_fallback
    from braid.bench.table import fallback_table, print_figures

    loaded = load_model(model, dtype=dtype, threads=threads)
    with progress_bar("rounds") as advance:
        figures = bench_fallback(
            loaded,
            topology=topology,
            question=QUESTION if question is None else question,
            answer_tokens=answer_tokens,
            repeat=repeat,
            on_round=advance,
        ).to_dict()
    print_figures(fallback_table(figures), to_stderr=json)
    print_json(figures)


@app.command(epilog=_TRAINING_EXAMPLES)
def training(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="A recipe, in YAML; that of the default model if left out.", show_default=False),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Queries of a step; as many as the recipe's batch has if left out.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; every kind is timed once a round.")] = 15,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Time an optimiser's step of streams beside the single-stream baseline's, at equal queries.

    Queries are kept tokens and probes. Timed are the recipe's last stage of streams, the same with every stream
    reading every other, and the same in one stream; they take turns in one process. The machine should be idle.
    """
    from braid.bench.table import print_figures, training_table
    from braid.bench.training import bench_training
    from braid.model.machine import choose
    from braid.model.sources import PACKAGED
    from braid.train.recipe import Recipe

    wanted = Recipe.read(PACKAGED["braid-stories"] / "recipe.yaml" if recipe is None else recipe)
    if threads is not None:
        import torch

        torch.set_num_threads(choose(threads=threads).threads)
    with progress_bar("rounds") as advance:
        figures = bench_training(wanted, queries=queries, rounds=rounds, on_round=advance).to_dict()
    print_figures(training_table(figures), to_stderr=json)
    print_json(figures)


@app.command(epilog=_TYPING_EXAMPLES)
def typing(
    model: ModelOption = DEFAULT_MODEL,
    traces: Annotated[
        Path | None, typer.Option(help="A file of traces; made ones if left out.", show_default=False)
    ] = None,
    n: Annotated[
        int, typer.Option("--n", min=1, help="Made traces, or the first so many of the file.")
    ] = 100,
    seed: Annotated[int, typer.Option(help="Of the made traces.")] = 0,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of made traces, each with its share if not 1: typing,middle=2. A mix of all by default.",
            show_default=False,
        ),
    ] = None,
    baselines: Annotated[
        str, typer.Option(help="What is measured beside it: read-ahead, append, fresh; none is always.")
    ] = "read-ahead,append,fresh",
    mode: Annotated[
        str,
        typer.Option(
            help="Of one more way, where the last edit is in the middle: repair or reuse; exact adds none."
        ),
    ] = "repair",
    answer_tokens: Annotated[
        int,
        typer.Option(
            min=1, help="The longest answer; every way but the first token pays for a longer one alike."
        ),
    ] = 48,
    topology: Annotated[str, typer.Option(help="A preset of views, or a YAML file.")] = "plain",
    speed: Annotated[
        float | None,
        typer.Option(
            help="Play in real time, so many times as fast as it was typed; else the clock skips what is idle.",
            show_default=False,
        ),
    ] = None,
    llama_server: Annotated[
        str | None,
        typer.Option(help="Address of a llama.cpp server with the same model.", show_default=False),
    ] = None,
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Replay people who type, and compare reading and drafting ahead with what applications do without.

    Every trace is answered in every way, in turns. Forwards take what they really take; time in which there is nothing
    to do is skipped. Ways that draft leave little of it, so that all ways together take about three times as long as
    was typed. Ctrl-C ends it with what was measured so far. The machine should be idle.
    """
    from braid.bench.typing.command import bench_typing, chosen_traces, chosen_ways
    from braid.bench.typing.table import typing_markdown

    wanted = chosen_traces(traces, n=n, seed=seed, kinds=kinds)
    ways = chosen_ways(baselines, mode)
    loaded = load_model(model, dtype=dtype, device="cpu", threads=threads)
    with progress_bar("traces") as advance:
        figures = bench_typing(
            loaded,
            wanted,
            ways=ways,
            topology=topology,
            answer_tokens=answer_tokens,
            speed=speed,
            llama_server=llama_server,
            on_progress=advance,
        )
    typer.echo(typing_markdown(figures), err=json)
    print_json(figures)
    if not figures["is_complete"]:
        raise typer.Exit(INTERRUPTED)
    if figures["failures"]:
        raise typer.Exit(1)
