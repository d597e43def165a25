"""`braid chat`: a conversation in which both may speak at once."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from braid.cli.machine import DEFAULT_MODEL, DeviceOption, DtypeOption, ThreadsOption, load_model
from braid.cli.report import JsonOption
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
    from braid.cli.talk import ChatController
    from braid.streams.topology import Topology

__all__ = ["app", "chat"]

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_EXAMPLES = """[bold]Examples[/]

braid chat smollm2-135m

braid chat ./my-model --topology chat --whole --save talk.jsonl

echo "What is the capital of France?" | braid chat smollm2-135m --topology plain"""

_TYPING_LATENCY_MS = 50.0
"""A word that was typed is whole, so that the tokenizer need not wait for the next one to be sure of it."""


@app.command(epilog=_EXAMPLES)
def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="An alias, a folder, a .gguf file or a hub id (organisation/name)."
        ),
    ] = DEFAULT_MODEL,
    topology: Annotated[
        str, typer.Option("--topology", "-t", help="A preset (think-aloud, chat, plain, …) or a YAML file.")
    ] = "think-aloud",
    whole: Annotated[
        bool, typer.Option("--whole", help="Send a line at Enter, and not word by word as it is typed.")
    ] = False,
    read_ahead: Annotated[
        bool | None,
        typer.Option(
            "--read-ahead/--no-read-ahead",
            help="Keep a question in the line until Enter, and read and draft ahead of it; by default where the "
            "topology has one input and one output, so that nothing is said before Enter anyway.",
        ),
    ] = None,
    mode: Annotated[
        Literal["exact", "repair", "reuse"],
        typer.Option(
            help="What may be kept behind an edit of a question that is read ahead: nothing, all that has drifted "
            "little, or nearly all of it."
        ),
    ] = "exact",
    save: Annotated[
        Path | None,
        typer.Option(help="Write the transcript to this file after every turn; replaces the file."),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, help="End an answer after so many rows without input; by default 512."),
    ] = None,
    copies: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Run a stream in parallel copies; may be repeated."),
    ] = None,
    theme: Annotated[
        Literal["auto", "light", "dark"], typer.Option(help="Colours of the screen; F2 changes them.")
    ] = "auto",
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
) -> None:
    """Talk with a model that reads while you type, thinks beside its answer, and can be interrupted.

    In a terminal, what you type goes to the model word by word, also while it speaks, or is read ahead until you press
    Enter, see --read-ahead; F1 has the keys. Elsewhere each line of standard input is a turn: answers go to standard
    output, and what inner streams say to standard error. With --json, every event is a line of standard output.
    """
    from braid.cli.inputs import parse_copies
    from braid.cli.talk import ChatController
    from braid.errors import InputError
    from braid.streams.presets import topology as as_topology

    on_screen = not json and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    chosen, main = as_topology(topology), _main_input(as_topology(topology))
    reads_ahead = _reads_ahead(chosen, read_ahead, whole=whole, on_screen=on_screen)
    if mode != "exact" and not reads_ahead:
        raise InputError(
            f"--mode {mode} is for questions that are read ahead, and here none is; leave it out, or see --read-ahead"
        )
    is_live = on_screen and not whole and not reads_ahead
    chosen = _for_typing(chosen, main) if is_live else chosen
    sampling = sampling_of(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty
    )
    num_copies = parse_copies(copies or ())
    _require_folder(save)
    typer.secho(f"Loading {model} …", err=True, dim=True)
    loaded = load_model(model, dtype=dtype, device=device, threads=threads)

    from braid.sessions.generate import ROWS_AFTER_INPUT
    from braid.sessions.session import Engine

    engine = Engine(loaded, kv_tokens=kv_tokens)
    controller = ChatController(
        partial(engine.open, chosen, seed=seed, copies=num_copies, sampling=sampling),
        main=main,
        is_live=is_live,
        reads_ahead=reads_ahead,
        mode=mode,
        max_rows=max_rows or ROWS_AFTER_INPUT,
        save=save,
    )
    try:
        if on_screen:
            _on_screen(controller, f"{loaded.name} · {chosen.name or topology}", theme)
        else:
            _in_lines(controller, as_json=json)
    finally:
        for path in controller.keeper.written:
            typer.secho(f"Saved to {path}; look at it with: braid inspect {path}", err=True, dim=True)


def _on_screen(controller: ChatController, name: str, theme: Literal["auto", "light", "dark"]) -> None:
    from braid.cli.talk.app import ChatApp

    ChatApp(controller, name=name, theme=theme).run()
    if controller.error is not None:
        raise controller.error


def _in_lines(controller: ChatController, *, as_json: bool) -> None:
    import anyio

    from braid.cli.inputs import stdin_reader
    from braid.cli.talk.line_mode import LineMode, lines_of
    from braid.sessions.feeds import arriving

    prompt = f"{controller.main}> " if sys.stdin.isatty() else ""
    mode = LineMode(controller, sys.stdout, sys.stderr, prompt=prompt, as_json=as_json)
    anyio.run(mode.run, lines_of(arriving(stdin_reader())))


def _main_input(topology: Topology) -> str:
    """The stream that a person speaks in: `user`, or the first input where none has this name."""
    from braid.errors import InputError

    if not topology.input_names:
        raise InputError("this topology has no input stream, so that nobody can talk to it")
    return "user" if "user" in topology.input_names else topology.input_names[0]


def _reads_ahead(topology: Topology, wanted: bool | None, *, whole: bool, on_screen: bool) -> bool:
    """Whether a question may change until Enter, and is read ahead until then.

    Raises:
        InputError: It is wanted, and there are inputs besides the one that a person speaks in, or lines come whole.
    """
    from braid.errors import InputError

    has_one_input = len(topology.input_names) == 1
    if wanted and not has_one_input:
        raise InputError(
            f"--read-ahead is for topologies with one input, and this one has {', '.join(topology.input_names)}; "
            "leave it out"
        )
    if wanted and not on_screen:
        raise InputError(
            "--read-ahead is for a terminal, where a line may change until Enter; in a pipe and with --json each line "
            "comes whole: leave it out"
        )
    suits = on_screen and has_one_input and len(topology.output_names) == 1 and not whole
    return suits if wanted is None else wanted


def _for_typing(topology: Topology, main: str) -> Topology:
    """The topology with an input that does not hold back words that are typed."""
    spec = topology.streams[main]
    if spec.max_latency_ms is not None:
        return topology
    return topology.with_specs({main: spec.model_copy(update={"max_latency_ms": _TYPING_LATENCY_MS})})


def _require_folder(save: Path | None) -> None:
    """Refuse a file that cannot be made before the model is loaded, and not after."""
    from braid.errors import TranscriptError

    if save is not None and (save.is_dir() or not save.parent.is_dir()):
        raise TranscriptError(
            f"cannot write the transcript {save}: its folder is not there, or it is one itself"
        )
