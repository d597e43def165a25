"""`braid inspect`: look at a saved transcript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braid.cli.report import JsonOption, print_json

if TYPE_CHECKING:
    from braid.streams.metrics import Metrics
    from braid.streams.transcript import Transcript

__all__ = ["app", "inspect"]

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_EXAMPLES = """[bold]Examples[/]

braid inspect run.jsonl

braid inspect run.jsonl --svg run.svg"""


@app.command(epilog=_EXAMPLES)
def inspect(
    file: Annotated[
        Path, typer.Argument(help="A transcript, as `braid run --save` writes it.", show_default=False)
    ],
    svg: Annotated[
        Path | None, typer.Option(help="Also draw a timeline into this file.", metavar="OUT")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a saved transcript: a grid of its streams over time, and its figures."""
    from braid.streams.metrics import measure
    from braid.streams.transcript import Transcript

    transcript = Transcript.load(file)
    metrics = measure(transcript)
    if transcript.damage is not None:
        typer.secho(f"Warning: {transcript.damage}", fg="yellow", err=True)
    if svg is not None:
        _draw(transcript, svg)
    if json:
        _print_json(transcript, metrics)
    else:
        _print_grid(transcript, metrics)


def _draw(transcript: Transcript, path: Path) -> None:
    from braid.errors import InputError
    from braid.streams.timeline import timeline_svg

    try:
        path.write_text(timeline_svg(transcript), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    typer.secho(f"Timeline drawn into {path}", dim=True, err=True)


def _print_grid(transcript: Transcript, metrics: Metrics) -> None:
    from rich.console import Console

    from braid.streams.render import render_grid

    console = Console()
    # Not through rich: the grid has its colours, and is as wide as the screen already.
    typer.echo(render_grid(transcript, console.width, color=console.color_system is not None))
    name = transcript.topology.name or "unnamed topology"
    tokens = " · ".join(f"{stream} {number:,}" for stream, number in metrics.tokens.items())
    tnft = "no answer" if metrics.tnft is None else f"TNFT {metrics.tnft}"
    typer.echo(
        f"\n{transcript.model}, {name} · {metrics.rows:,} rows · {tokens} · {tnft} · MSL {metrics.msl:,}"
    )


def _print_json(transcript: Transcript, metrics: Metrics) -> None:
    from dataclasses import asdict

    data: dict[str, Any] = {
        "model": transcript.model,
        "topology": transcript.topology.name,
        "damage": transcript.damage,
        "text": {lane.label: transcript.text(lane.label) for lane in transcript.lanes.lanes},
        **asdict(metrics),
        "tnft": metrics.tnft,
    }
    print_json(data)
