"""`braid serve`: a model on the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from braid.cli.machine import DeviceOption, DtypeOption, ThreadsOption
from braid.errors import InputError

if TYPE_CHECKING:
    from braid.server.settings import ServerSettings

__all__ = ["app", "serve"]

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_EXAMPLES = """[bold]Examples[/]

braid serve smollm2-135m                      # http://127.0.0.1:8000, a playground and an OpenAI-compatible API

braid serve --config serve.yaml --port 9000 --print-config

BRAID_SERVE_KEYS='[{"name": "me", "key": "a-long-secret"}]' braid serve --host 0.0.0.0"""


@app.command(epilog=_EXAMPLES)
def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL", help="An alias, a folder, a .gguf file or a hub id (organisation/name)."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings; flags win over it.")] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="The port, 8000 by default; 0 takes any.")] = None,
    topology: Annotated[
        str | None, typer.Option("--topology", "-t", help="What chat requests are served with by default.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(help="An SQLAlchemy URL, or `memory`; where sessions are kept.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens that the cache can hold.", rich_help_panel="Machine")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings, keys hidden, and end.")
    ] = False,
) -> None:
    """Serve a model: OpenAI's API, live sessions, a playground, metrics.

    Every setting can also be given in a file or as BRAID_SERVE_NAME in the environment; --print-config shows them all.
    """
    from braid.server.settings import load_settings

    settings = load_settings(
        config,
        model=model,
        host=host,
        port=port,
        topology=topology,
        database=database,
        log_level=log_level,
        dtype=None if dtype == "auto" else dtype,
        device=None if device == "auto" else device,
        threads=threads,
        kv_tokens=kv_tokens,
    )
    if print_config:
        typer.echo(settings.shown(), nl=False)
        return
    _run(settings)


def _run(settings: ServerSettings) -> None:
    try:
        from braid.server.run import run
    except ModuleNotFoundError as error:
        raise InputError(
            f"`braid serve` needs {error.name}, which is not installed: pip install 'braid-llm[serve]'"
        ) from None
    run(settings)
