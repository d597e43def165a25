"""Random topologies, each of them valid."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from braid.streams.grammar import Grammar
from braid.streams.influence import influences
from braid.streams.patterns import Dense, Pattern, Striped, Window
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import AdaptiveWait, StreamSpec, Topology, Trigger, WaitK

# Names that YAML 1.1 or 1.2 would take for something else are wanted here.
NAMES = [
    "user",
    "document",
    "tool_result",
    "thought",
    "tool_call",
    "output",
    "audit",
    "on",
    "No",
    "null",
    "e1",
    "a-b",
]

# Topologies are large to draw, and machines that run tests are busy.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

texts = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["1e3", "on", "a: b", " x", "\n", "- y", "{", "#", "7", "~"]
)
counts = st.integers(1, 9)
unit = st.floats(0.01, 1)


def sampling_specs() -> st.SearchStrategy[SamplingSpec]:
    filters = st.fixed_dictionaries(
        {"temperature": st.floats(1e-6, 10)},
        optional={"top_k": counts, "top_p": unit, "min_p": st.floats(0, 0.99)},
    )
    rest = st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.floats(1e-3, 3),
            "logit_bias": st.dictionaries(st.integers(0, 10**6), st.floats(-100, 100), max_size=2),
            "silence_bias": st.floats(-100, 100),
            "seed": st.integers(0, 2**63 - 1),
        },
    )
    return st.builds(lambda a, b: SamplingSpec(**a, **b), st.just({}) | filters, rest)


def _json() -> st.SearchStrategy[Any]:
    leaf = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
    )
    return st.recursive(
        leaf, lambda each: st.lists(each, max_size=2) | st.dictionaries(texts, each, max_size=2)
    )


def grammars() -> st.SearchStrategy[Grammar]:
    schemas = st.just(True) | st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", "null", ["array", "string"]]),
            "const": _json(),
            "enum": st.lists(_json(), max_size=2),
            "properties": st.dictionaries(texts, st.booleans() | st.just({"type": "number"}), max_size=2),
        },
    )
    regexes = st.sampled_from(["[0-9]+", "yes|no", r"\d{2}\.", "#", " x", "\n", "on", "7", r"\p{Lu}"])
    larks = st.sampled_from(['start: "a"', "start: a\na: /b+/\n%ignore / /\n"])
    return (
        schemas.map(lambda schema: Grammar(json_schema=schema))
        | regexes.map(lambda regex: Grammar(regex=regex))
        | larks.map(lambda lark: Grammar(lark=lark))
    )


def patterns() -> st.SearchStrategy[Pattern]:
    striped = counts.flatmap(lambda stride: st.builds(Striped, st.just(stride), st.integers(0, stride - 1)))
    return st.just(Dense()) | st.builds(Window, counts) | striped


def waits() -> st.SearchStrategy[WaitK]:
    return st.none() | counts | st.just("end") | st.builds(AdaptiveWait, threshold=unit, max=counts)


def _input_spec() -> st.SearchStrategy[dict[str, Any]]:
    optional = {
        "priority": st.sampled_from(["high", "low"]),
        "visibility": st.sampled_from(["external", "internal"]),
        "max_latency_ms": st.floats(0.5, 1e7),
        "feed": st.sampled_from(["paced", "burst"]),
    }
    return st.fixed_dictionaries({"direction": st.just("input")}, optional=optional)


def _output_spec(names: list[str], before: list[str], *, reads_input: bool, in_views: bool) -> Any:
    """Triggers name only streams in `before`, so that none waits for itself."""
    optional = {
        "priority": st.sampled_from(["high", "low"]),
        "visibility": st.sampled_from(["external", "internal"]),
        "chunk_size": counts,
        "max_streams": counts,
        "sampling": sampling_specs(),
        "grammar": grammars(),
        "stop": st.lists(texts, max_size=2).map(tuple),
        "max_tokens": counts,
        "prefix": texts,
        "held_by": st.lists(st.sampled_from(names), max_size=2, unique=True).map(tuple),
    }
    if before:
        pattern = st.none() | st.sampled_from(["a+", r"\d", "on"])
        optional["trigger"] = st.builds(Trigger, on=st.sampled_from(before), pattern=pattern)
    if reads_input:
        optional["wait_k"] = waits()
    if in_views:
        optional["instructions"] = texts
    return st.fixed_dictionaries({"direction": st.just("output")}, optional=optional)


@st.composite
def topologies(draw: st.DrawFn, decoding: str | None = None) -> Topology:
    """A valid topology of two to six streams, with rules of all kinds."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True))
    in_views = (decoding or draw(st.sampled_from(["rows", "views"]))) == "views"
    is_input = draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    is_input[0], is_input[-1] = draw(st.sampled_from([(True, False), (False, True)]))
    inputs = [name for name, flag in zip(names, is_input, strict=True) if flag]
    reads = draw(
        st.fixed_dictionaries(
            {},
            optional={
                name: st.lists(st.sampled_from(inputs if in_views and name in inputs else names), unique=True)
                for name in names
            },
        )
    )
    streams: dict[str, StreamSpec] = {}
    for at, name in enumerate(names):
        reads_input = bool(set(reads.get(name, inputs)) & set(inputs))
        others = [other for other in names if other != name]
        output = _output_spec(others, names[:at], reads_input=reads_input, in_views=in_views)
        streams[name] = StreamSpec(**draw(_input_spec() if name in inputs else output))
    fields: dict[str, Any] = {
        "streams": streams,
        "reads": {reader: tuple(read) for reader, read in reads.items()},
        "decoding": "views" if in_views else "rows",
        "same_row": draw(st.sampled_from(["earlier", "none"])),
        "silence": "dropped" if in_views else draw(st.sampled_from(["dropped", "kept"])),
        "name": draw(st.none() | texts),
        "description": draw(st.none() | texts),
        "system": draw(st.none() | texts) if in_views else None,
    }
    calls = st.tuples(
        st.sampled_from([name for name in names if name not in inputs]), st.sampled_from(inputs)
    )
    fields["tool_flows"] = draw(st.none() | st.lists(calls, max_size=2).map(tuple))
    bare = Topology(**fields)
    pairs = [(reader, read) for reader in names for read in bare.readable(reader)]
    chosen = draw(st.dictionaries(st.sampled_from(pairs), patterns(), max_size=3))
    by_reader: dict[str, dict[str, Pattern]] = {}
    for (reader, read), pattern in chosen.items():
        by_reader.setdefault(reader, {})[read] = pattern
    reach = influences(bare)
    safe = [(source, sink) for sink in names for source in names if source not in reach[sink]]
    forbid = draw(st.lists(st.sampled_from(safe), max_size=2)) if safe else []
    return Topology(**fields | {"patterns": by_reader, "forbid": tuple(forbid)})
