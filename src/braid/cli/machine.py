"""The options that say which model, and how it is run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from braid.model.model import Model

__all__ = ["DEFAULT_MODEL", "DeviceOption", "DtypeOption", "ModelOption", "ThreadsOption", "load_model"]

DEFAULT_MODEL = "smollm2-135m"

_PANEL = "Machine"

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", help="An alias, a folder, a .gguf file or a hub id (organisation/name)."),
]
DtypeOption = Annotated[
    str, typer.Option(help="auto, float32, bfloat16, float16 or float64.", rich_help_panel=_PANEL)
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …", rich_help_panel=_PANEL)]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="CPU threads; by default what OMP_NUM_THREADS says, or as many as there are cores.",
        rich_help_panel=_PANEL,
    ),
]


def load_model(name: str, *, dtype: str = "auto", device: str = "auto", threads: int | None = None) -> Model:
    """Load a model, and say on standard error how it will be run.

    `BRAID_HOME` is the folder of converted models, where it is set.

    Raises:
        ModelError, InputError: As `braid.load`.
    """
    from braid.model.loading import load, models_home

    model = load(name, dtype=dtype, device=device, threads=threads, cache_dir=models_home())
    if model.choice is not None:
        typer.secho(f"{model.name} on {model.choice.reason}", err=True, dim=True)
    return model
