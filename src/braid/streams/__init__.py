"""Streams: which there are and who reads whom, what happened in them, and how that is told.

A `Topology` orders named streams; a `Transcript` is the table of what they held, time × streams, and the canonical
record of a session; events are what a client hears while it happens. Nothing here needs a model: this room imports
pydantic and YAML, and no torch.
"""

from __future__ import annotations

from braid.streams.entries import Cell, LifeEvent, Row
from braid.streams.events import Event, event_schema, parse_event
from braid.streams.lanes import Lane, LaneTable
from braid.streams.metrics import Metrics, measure
from braid.streams.patterns import Dense, Striped, Window
from braid.streams.presets import preset_names
from braid.streams.sampling import SamplingSpec
from braid.streams.stream_spec import StreamSpec
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript, TranscriptWriter

__all__ = [
    "Cell",
    "Dense",
    "Event",
    "Lane",
    "LaneTable",
    "LifeEvent",
    "Metrics",
    "Row",
    "SamplingSpec",
    "StreamSpec",
    "Striped",
    "Topology",
    "Transcript",
    "TranscriptWriter",
    "Window",
    "event_schema",
    "measure",
    "parse_event",
    "preset_names",
]
