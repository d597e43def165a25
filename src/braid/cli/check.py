"""`braid check`: is this model served rightly?"""

from __future__ import annotations

from typing import Annotated

import typer

from braid.cli.machine import DeviceOption, DtypeOption, ThreadsOption, load_model
from braid.cli.report import JsonOption

__all__ = ["FAILED", "app", "check"]

FAILED = 1
"""Exit code when an invariant does not hold."""

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

_EXAMPLES = """[bold]Examples[/]

braid check smollm2-135m

braid check ./my-model --backend --json | tail -n 1"""


@app.command(epilog=_EXAMPLES)
def check(
    model: Annotated[
        str, typer.Argument(help="An alias, a folder, a .gguf file or a hub id.", show_default=False)
    ],
    dtype: DtypeOption = "auto",
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    backend: Annotated[
        bool,
        typer.Option(
            "--backend", help="Also run the conformance suite of backends, with this model's weights."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the invariants on a model, and say which of them hold.

    Rows and views are compared with a dense recomputation, greedy answers with `transformers`; silence must cost no
    cache, forbidden streams must change no bit, pages must not get lost. With --backend also what is the code's and not
    the model's: batches, forks, eviction, shared prefixes, drafts, sampling, full caches. Exit code 1 when something
    does not hold.
    """
    import json as encoder

    from braid.checks.run import check_model
    from braid.checks.show import CheckShow
    from braid.engine.local import LocalBackend

    loaded = load_model(model, dtype=dtype, device=device, threads=threads)
    show = CheckShow(to_stderr=json)
    report = check_model(
        loaded, backend=LocalBackend if backend else None, on_start=show.start, on_finding=show.finding
    )
    show.finish(report)
    typer.echo(encoder.dumps(report.to_dict()))
    if not report.ok:
        raise typer.Exit(FAILED)
