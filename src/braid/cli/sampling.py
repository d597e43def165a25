"""The options that say how the outputs of a command choose their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from braid.streams.sampling import SamplingSpec

__all__ = [
    "MinPOption",
    "RepetitionPenaltyOption",
    "SeedOption",
    "TemperatureOption",
    "TopKOption",
    "TopPOption",
    "sampling_of",
]

_PANEL = "Sampling"

SeedOption = Annotated[int, typer.Option(min=0, help="Of all sampling noise.", rich_help_panel=_PANEL)]
TemperatureOption = Annotated[float | None, typer.Option(help="0 is greedy.", rich_help_panel=_PANEL)]
TopKOption = Annotated[int | None, typer.Option(help="Of the likeliest tokens.", rich_help_panel=_PANEL)]
TopPOption = Annotated[float | None, typer.Option(help="Of this probability.", rich_help_panel=_PANEL)]
MinPOption = Annotated[
    float | None, typer.Option(help="As likely, relative to the likeliest.", rich_help_panel=_PANEL)
]
RepetitionPenaltyOption = Annotated[
    float | None, typer.Option(help="Above 1 repeats less.", rich_help_panel=_PANEL)
]


def sampling_of(**given: Any) -> SamplingSpec | None:
    """Sampling parameters for all outputs; None leaves them to the topology.

    Raises:
        SamplingError: They contradict each other, or lie out of range.
    """
    from braid.streams.sampling import SamplingSpec

    chosen = {name: value for name, value in given.items() if value is not None}
    return SamplingSpec(**chosen) if chosen else None
