"""What programs are told: errors with their exit codes, and JSON where it is asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from braid.errors import BraidError

__all__ = ["INTERRUPTED", "JsonOption", "print_json", "report"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

_JSON = "braid.json"


def _remember(ctx: typer.Context, value: bool) -> bool:
    ctx.meta[_JSON] = value  # shared with the parent context, where errors are reported
    return value


JsonOption = Annotated[
    bool, typer.Option("--json", callback=_remember, help="Print JSON for programs, one object a line.")
]
"""The `--json` option of every command that has one."""


def print_json(data: Mapping[str, Any]) -> None:
    """Print an object on a line of its own."""
    typer.echo(json.dumps(data, ensure_ascii=False))


def report(error: BraidError, ctx: Any) -> int:
    """Tell the user what is wrong: in words on standard error, with `--json` as an event on standard output too.

    Args:
        error: What was raised.
        ctx: The context of the command line.

    Returns:
        The exit code.
    """
    if ctx.meta.get(_JSON):
        from braid.streams.events import ErrorEvent

        typer.echo(ErrorEvent(code=error.code, message=str(error)).to_json())
    typer.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    typer.secho(str(error), fg="red", err=True)
    return error.exit_code
