"""How an input came to be, snapshot by snapshot: the format, and traces that are made."""

from braid.bench.traces.file import Trace, read_traces, write_traces
from braid.bench.traces.kinds import generate_traces

__all__ = ["Trace", "generate_traces", "read_traces", "write_traces"]
