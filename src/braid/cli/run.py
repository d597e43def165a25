"""`braid run`: a model reads, thinks and answers at the same time."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli.machine import DEFAULT_MODEL, DeviceOption, DtypeOption, ModelOption, ThreadsOption, load_model
from braid.cli.report import INTERRUPTED, JsonOption
from braid.cli.sampling import (
    MinPOption,
    RepetitionPenaltyOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    sampling_of,
)

if TYPE_CHECKING:
    from braid.model.model import Model
    from braid.sessions.feeds import Feed

__all__ = ["app", "run"]

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_EXAMPLES = """[bold]Examples[/]

braid run --user "Sally has 3 apples and buys 4 more. How many are there?" --pace 5

cat letter.txt | braid run --topology plain > answer.txt

braid run --topology chat --user-file question.txt --json --save run.jsonl"""


@app.command(epilog=_EXAMPLES)
def run(
    model: ModelOption = DEFAULT_MODEL,
    topology: Annotated[
        str, typer.Option("--topology", "-t", help="A preset (think-aloud, chat, plain, …) or a YAML file.")
    ] = "think-aloud",
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="What the user says; standard input by default.")
    ] = None,
    user_file: Annotated[Path | None, typer.Option(help="A file with what the user says.")] = None,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="NAME=TEXT", help="Text of another input; may be repeated.")
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(help="Type the user's text at so many tokens a second.", metavar="TOKENS_PER_S"),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many rows; by default 512 after the input.")
    ] = None,
    copies: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Run a stream in parallel copies; may be repeated."),
    ] = None,
    seed: SeedOption = 0,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the cache can hold.", rich_help_panel="Machine")
    ] = None,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    json: JsonOption = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the transcript to this file as it happens; replaces the file.")
    ] = None,
) -> None:
    """Give a model input while it thinks and answers, and watch its streams.

    In a terminal every stream has a lane that grows as rows come. Elsewhere the answer goes to standard output, and
    what the other streams say to standard error. Piped input is read as it arrives. Ctrl-C stops the run; what was
    said so far is kept.
    """
    import anyio

    from braid.cli.inputs import gather_inputs, parse_copies
    from braid.cli.show import choose_show
    from braid.streams.presets import topology as as_topology

    chosen = as_topology(topology)
    texts = gather_inputs(chosen, user, user_file, stream or ())
    sampling = sampling_of(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    _require_pace(pace, texts)
    _require_folder(save)
    num_copies = parse_copies(copies or ())
    loaded = load_model(model, dtype=dtype, device=device, threads=threads)

    from braid.sessions.live import run_live
    from braid.sessions.session import Engine

    session = Engine(loaded, kv_tokens=kv_tokens).open(
        chosen, seed=seed, copies=num_copies, sampling=sampling
    )
    feeds = {name: _feed(text, loaded, pace) for name, text in texts.items()}
    with choose_show(session, as_json=json) as show:
        go = partial(
            run_live, session, feeds, max_rows=max_rows, on_event=show.on_event, stop=_interrupted, save=save
        )
        outcome = anyio.run(go)
        show.finish(outcome, save)
    if outcome.ended_by == "stop":
        raise typer.Exit(INTERRUPTED)


async def _interrupted() -> None:
    """Return at Ctrl-C. A second one falls through, and ends the program at once."""
    import anyio

    try:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                return
    except NotImplementedError:  # on Windows Ctrl-C cancels the run, without a summary
        await anyio.sleep_forever()


def _feed(text: str | None, model: Model, pace: float | None) -> Feed:
    from braid.cli.inputs import stdin_reader
    from braid.sessions.feeds import arriving, typed, whole

    if text is None:
        return arriving(stdin_reader())
    return whole(text) if pace is None else typed(text, model.codec, pace)


def _require_pace(pace: float | None, texts: Mapping[str, str | None]) -> None:
    from braid.errors import InputError

    if pace is None:
        return
    if not 0 < pace < float("inf"):
        raise InputError(f"--pace {pace:g} types nothing; give tokens a second, above 0")
    if None in texts.values():
        raise InputError("standard input has a pace of its own; use --pace with --user or --user-file")


def _require_folder(save: Path | None) -> None:
    """Refuse a file that cannot be made before the model is loaded, and not after."""
    from braid.errors import TranscriptError

    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise TranscriptError(
            f"cannot write the transcript {save}: its folder is not there, or it is one itself"
        )
