"""The command line: `braid run`, `braid chat`, `braid serve`, `braid inspect`, `braid check`, `braid bench`.

One file a command; each is imported when it is used, so that `braid --help` is quick and imports no torch. Errors
become a message and an exit code here, and nowhere else.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from braid.cli.report import INTERRUPTED, report
from braid.errors import BraidError

__all__ = ["app", "main"]

COMMANDS = {
    "demo": "See a model read along beside one that takes turns, on one typed problem.",
    "run": "Give a model input while it thinks and answers, and watch its streams.",
    "chat": "Talk with a model that reads while you type, thinks aloud, and can be interrupted.",
    "serve": "Put a model on the network: OpenAI's API, live sessions, a playground.",
    "inspect": "Show a saved transcript: a grid of its streams, its figures, a timeline.",
    "check": "Run the invariants on a model, to know whether it is served rightly.",
    "data": "Build, check, show and convert training data.",
    "train": "Train a model of streams, or its single-stream baseline, from a recipe.",
    "eval": "Measure what streams brought: accuracy, waiting, rows, seconds.",
    "bench": "Measure what a row costs on this machine.",
}
"""Command → what it does. `braid.cli.NAME.app` is the command itself."""

_PARAGRAPH_BREAKS_ONLY = re.compile(r"(?<!\n)\n(?!\n)")
"""Line ends of docstrings, which help would else keep."""


class LazyCommands(typer.core.TyperGroup):
    """Commands whose modules are imported when they run; errors are reported here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in COMMANDS.items():  # for lists and suggestions
            self.add_command(typer.core.TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the arguments name, and import it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(importlib.import_module(f"braid.cli.{name}").app)
            command.name = name
            for each in (command, *getattr(command, "commands", {}).values()):
                each.help = _PARAGRAPH_BREAKS_ONLY.sub(" ", each.help or "")
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it raises on purpose becomes a message and an exit code."""
        try:
            return super().invoke(ctx)
        except BraidError as error:
            raise typer.Exit(report(error, ctx)) from error
        except KeyboardInterrupt:
            typer.echo("\nInterrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=LazyCommands,
    add_completion=False,
    help="Let an open-weight language model read, think and answer at the same time.",
    epilog='Example:  braid run --user "Sally has 3 apples and buys 4 more. How many are there?"',
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from braid import __version__

        typer.echo(f"braid {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _braid(
    ctx: typer.Context,
    version: Annotated[  # its callback acts on it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


def main() -> None:
    """Entry point of the `braid` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(ValueError):
                stream.reconfigure(
                    errors="replace"
                )  # a terminal without Unicode gets question marks, not a crash
    app()
