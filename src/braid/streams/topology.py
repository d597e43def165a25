"""The topology: the ordered streams, who reads whom, the same-row rule, and what is forbidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from braid.errors import TopologyError, UnknownStreamError
from braid.streams.consistency import check_consistency
from braid.streams.influence import refuse_forbidden_flows
from braid.streams.lanes import LaneTable
from braid.streams.patterns import Dense, Pattern, PatternField, Striped, Window
from braid.streams.sampling import SamplingSpec
from braid.streams.stream_spec import AdaptiveWait, Direction, StreamSpec, Trigger, WaitK
from braid.streams.strict import Frozen, FrozenMap, StrictModel, hint, problem, shown, translated
from braid.streams.yaml_form import dump_yaml, load_yaml

__all__ = [
    "AdaptiveWait",
    "Decoding",
    "Dense",
    "Direction",
    "Pattern",
    "SameRow",
    "SamplingSpec",
    "SilenceRule",
    "StreamSpec",
    "Striped",
    "Topology",
    "Trigger",
    "WaitK",
    "Window",
]

SameRow = Literal["earlier", "none"]
SilenceRule = Literal["dropped", "kept"]
Decoding = Literal["rows", "views"]

_Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


def _read_pair(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and len(cast("Sequence[Any]", value)) == 2:
        return cast(object, value)
    raise problem(f"{shown(value)} is no pair; name two streams, as in [document, tool_call]")


_Pair = Annotated[tuple[str, str], BeforeValidator(_read_pair)]


class Topology(StrictModel):
    """Which streams there are, in the order `h` that rows have, and who may read, wake and hold whom.

    Args:
        streams: settings by name; the order is part of the topology.
        name: what to call it.
        description: what it is for.
        decoding: `rows` (native rows of a model trained on streams) or `views` (training-free, stock models).
        system: the system prompt of a stock model; `views` only.
        same_row: whether a token sees the `earlier` streams of its own row, or `none` of them.
        silence: whether silence is `dropped` (it costs no KV) or `kept` as a token that is read.
        reads: for each reader that is named, the streams that it reads beside itself. Outputs that are not
            named read all streams, inputs that are not named read all inputs. A stream that names itself lets
            its copies read each other.
        patterns: reader → read → which rows of it are seen; dense where it says nothing.
        forbid: pairs (source, sink): nothing that `source` holds may ever influence `sink`.
        tool_flows: pairs (call, result): an output whose calls come back in an input. None means `tool_call`
            and `tool_result`, where there are such streams.

    Raises:
        TopologyError: the topology contradicts itself; the message says what would work.
        UnknownKeyError: there is no such setting.
        ForbiddenFlowError: a flow that `forbid` names could happen.

    >>> user, output = StreamSpec(direction="input"), StreamSpec(direction="output")
    >>> Topology(streams={"user": user, "output": output}).readable("output")
    ('user', 'output')
    """

    name: str | None = None
    description: str | None = None
    decoding: Decoding = "rows"
    system: str | None = None
    streams: Frozen[_Name, StreamSpec]
    same_row: SameRow = "earlier"
    silence: SilenceRule = "dropped"
    reads: Frozen[str, tuple[str, ...]] = FrozenMap()
    patterns: Frozen[str, Frozen[str, PatternField]] = FrozenMap()
    forbid: tuple[_Pair, ...] = ()
    tool_flows: tuple[_Pair, ...] | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        check_consistency(self)
        refuse_forbidden_flows(self)
        return self

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """The topology that a YAML text spells; raises what the constructor raises."""
        return cls.from_dict(load_yaml(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The topology that plain data spells, as YAML or JSON give it; raises what the constructor raises."""
        if not isinstance(cast(object, data), Mapping):
            raise TopologyError(f"a topology is a mapping with the key `streams`, not {shown(data)}")
        try:
            # Not cls(**data), which cannot even be called when a key is no text.
            return cls.model_validate(data)
        except ValidationError as error:
            raise translated(error, cls.refusal) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON, that `from_dict` reads back to an equal topology, without defaults."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """YAML that `from_yaml` reads back to an equal topology; defaults are left out."""
        return dump_yaml(self.to_dict())

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """The JSON schema of what `from_dict` reads, for editors and other languages."""
        return cls.model_json_schema()

    @property
    def input_names(self) -> tuple[str, ...]:
        """The input streams, in order."""
        return tuple(name for name, spec in self.streams.items() if spec.is_input)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The output streams, in order."""
        return tuple(name for name, spec in self.streams.items() if spec.is_output)

    @property
    def resolved_tool_flows(self) -> tuple[tuple[str, str], ...]:
        """`tool_flows`, or what is taken for it where it is None."""
        if self.tool_flows is not None:
            return self.tool_flows
        is_usual = "tool_call" in self.output_names and "tool_result" in self.input_names
        return (("tool_call", "tool_result"),) if is_usual else ()

    def stream(self, name: str) -> StreamSpec:
        """The settings of a stream.

        Raises:
            UnknownStreamError: there is none of that name; the message names the nearest.
        """
        if name not in self.streams:
            raise UnknownStreamError(f"there is no stream {name!r}; {hint(name, self.streams)}")
        return self.streams[name]

    def with_specs(self, specs: Mapping[str, StreamSpec]) -> Self:
        """The topology with other settings for some of its streams; nothing is checked anew."""
        return self.model_copy(update={"streams": FrozenMap({**self.streams, **specs})})

    def readable(self, reader: str) -> tuple[str, ...]:
        """The streams that a stream reads, itself among them, in the topology's order.

        Raises:
            UnknownStreamError: there is no such reader.
        """
        spec = self.stream(reader)
        default = self.input_names if spec.is_input else tuple(self.streams)
        chosen = {reader, *self.reads.get(reader, default)}
        return tuple(name for name in self.streams if name in chosen)

    def reads_pair(self, reader: str, read: str) -> bool:
        """Whether one stream reads another.

        Raises:
            UnknownStreamError: one of them does not exist.
        """
        self.stream(read)
        return read in self.readable(reader)

    def pattern(self, reader: str, read: str) -> Pattern:
        """Which rows of `read` are seen by `reader`, given that it reads it.

        Raises:
            UnknownStreamError: one of them does not exist.
        """
        self.stream(reader)
        self.stream(read)
        return self.patterns.get(reader, {}).get(read, Dense())

    def lanes(self, copies: Mapping[str, int] | None = None) -> LaneTable:
        """The lanes of a session with this topology.

        Args:
            copies: how many copies of a stream there are; one where it says nothing.

        Raises:
            UnknownStreamError: `copies` names a stream that there is not.
            InputError: a stream cannot have that many copies.
        """
        return LaneTable.of(self, copies)

    def __eq__(self, other: object) -> bool:
        # Mappings are equal in any order, but the order of streams is the order of a row.
        if not isinstance(other, Topology):
            return NotImplemented
        return super().__eq__(other) and tuple(self.streams) == tuple(other.streams)

    def __hash__(self) -> int:
        return hash((tuple(self.streams.items()), self.decoding, self.same_row, self.silence, self.reads))
