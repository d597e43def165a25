"""What a workflow is made of: prompts, functions, and where a prompt is answered."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Any

from braid.errors import BraidError, WorkflowError
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology

__all__ = ["Endpoint", "Function", "Prompt", "Reference", "Stage", "spelled"]


@dataclass(frozen=True)
class Reference:
    """What a stage reads: an input, an upstream output, or one JSON field of it.

    Args:
        name: Of the input or stage.
        path: Keys and, in arrays, indices, from the outside in; empty for all of it.
    """

    name: str
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Reference:
        """The reference that is written `name` or `name.key.key`.

        >>> Reference.of("plan.city")
        Reference(name='plan', path=('city',))
        """
        name, *path = text.split(".")
        if not name.isidentifier() or not all(path):
            raise WorkflowError(
                f"{text!r} names nothing; write `name`, or `name.key` for a field of its JSON"
            )
        return cls(name, tuple(path))

    def __str__(self) -> str:
        return ".".join((self.name, *self.path))


@dataclass(frozen=True)
class Endpoint:
    """A server that speaks OpenAI's chat completions, Braid's own among them.

    Args:
        base_url: Of the server, up to and with `/v1`.
        model: Its name there.
        key: The API key, if one is needed.
        timeout_s: Seconds without any news after which a call has failed.
    """

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Prompt:
    """A stage that asks a model.

    Args:
        name: Of the stage.
        template: What is asked: text with `{name}` for an input or an upstream output, `{name.key}` for one field of
            its JSON; braces of the text itself are doubled.
        topology: On Braid, the streams: the prompt is the first input's, the output is that of `output`.
        output: On Braid, whose text the stage gives; None for the first output that is not internal.
        sampling: Greedy where nothing is said.
        seed: Of the sampling noise. The same prompt gets the same answer, which is what makes drafts useful.
        max_tokens: Tokens that the answer may have.
        system: The system prompt.
        endpoint: Where the model is, if it is not the engine's.
        stable_s: Seconds that the prompt must have been unchanged before it is answered ahead of the commit; None for
            0 on Braid, which takes up where it was, and 0.5 at an endpoint, which begins anew.

    Raises:
        WorkflowError: The template cannot be read, or a setting is not for this kind of model.
        TopologyError: There is no such topology.
    """

    name: str
    template: str
    topology: str | Topology = "plain"
    output: str | None = None
    sampling: SamplingSpec | None = None
    seed: int = 0
    max_tokens: int | None = None
    system: str | None = None
    endpoint: Endpoint | None = None
    stable_s: float | None = None
    parts: tuple[tuple[str, Reference | None], ...] = field(init=False, repr=False, compare=False)
    """The template: text, and the reference that follows it."""

    is_pure = True

    def __post_init__(self) -> None:
        _require_name(self.name)
        object.__setattr__(self, "parts", _parts(self.name, self.template))
        if self.endpoint is not None and (self.topology != "plain" or self.output is not None):
            raise WorkflowError(f"stage {self.name}: topology and output are for Braid, not for an endpoint")
        if self.endpoint is not None and self.sampling is not None:
            told = self.sampling.model_dump(exclude_defaults=True).keys() - {"temperature", "top_p", "seed"}
            if told:
                raise WorkflowError(
                    f"stage {self.name}: an endpoint is told temperature, top_p and seed alone, not {', '.join(told)}"
                )
        if self.endpoint is None:
            _ = self.served  # refuses what cannot be

    @property
    def reads(self) -> Mapping[str, Reference]:
        """What it reads, by how it is written."""
        return {str(reference): reference for _, reference in self.parts if reference is not None}

    @property
    def delay_s(self) -> float:
        """Seconds that the prompt must have been unchanged before it is answered ahead."""
        return self.stable_s if self.stable_s is not None else 0.5 if self.endpoint is not None else 0.0

    def rendered(self, values: Mapping[str, Any]) -> str:
        """The prompt.

        Args:
            values: What it reads, by how that is written.
        """
        return "".join(
            text + ("" if reference is None else spelled(values[str(reference)]))
            for text, reference in self.parts
        )

    @cached_property
    def served(self) -> tuple[Topology, str, str]:
        """On Braid: the streams with the stage's settings, the input's name and the output's."""
        topology = as_topology(self.topology)
        outputs = [name for name in topology.output_names if topology.stream(name).visibility == "external"]
        output = self.output or next(iter(outputs or topology.output_names), None)
        if output not in topology.output_names or not topology.input_names:
            raise WorkflowError(
                f"stage {self.name}: the topology needs an input and the output "
                f"{output!r}; it has {', '.join(topology.streams)}"
            )
        changes: dict[str, Any] = {}
        if self.sampling is not None:
            changes["sampling"] = self.sampling
        if self.max_tokens is not None:
            changes["max_tokens"] = self.max_tokens
        specs = {output: topology.streams[output].model_copy(update=changes)}
        topology = topology.with_specs(specs)
        if self.system is not None:
            topology = topology.model_copy(update={"system": self.system})
        return topology, topology.input_names[0], output


@dataclass(frozen=True, init=False)
class Function:
    """A stage that calls a Python function.

    Args:
        name: Of the stage.
        call: The function, or coroutine function. One that is not a coroutine runs in a thread. A pure one must not
            change what it is given.
        reads: What each of its parameters is given, as it is written in templates; None: each parameter is given
            what has its name. A plain sequence is given in its order, without names.
        is_pure: Whether all that it does is to return what follows from its arguments. A function that is not pure is
            called once, after the commit, never ahead of it.
        stable_s: Seconds that its arguments must have been unchanged before it is called ahead of the commit.

    Raises:
        WorkflowError: The parameters cannot be told.
    """

    name: str
    call: Callable[..., Any]
    reads: Mapping[str, Reference] = field(default_factory=dict[str, Reference])
    is_pure: bool = True
    stable_s: float = 0.0
    by_name: bool = True
    """Whether the arguments are given by name."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        reads: Mapping[str, str] | Sequence[str] | None = None,
        pure: bool = True,
        stable_s: float = 0.0,
    ) -> None:
        _require_name(name)
        if reads is None:
            reads = {each: each for each in _parameters(name, call)}
        by_name = isinstance(reads, Mapping)
        if not isinstance(reads, Mapping):
            reads = {each: each for each in reads}
        found = {parameter: Reference.of(text) for parameter, text in reads.items()}
        for key, value in (
            ("name", name),
            ("call", call),
            ("reads", found),
            ("is_pure", pure),
            ("stable_s", stable_s),
            ("by_name", by_name),
        ):
            object.__setattr__(self, key, value)

    @property
    def delay_s(self) -> float:
        """Seconds that its arguments must have been unchanged before it is called ahead."""
        return self.stable_s


Stage = Prompt | Function


def spelled(value: Any) -> str:
    """A value as it stands in a prompt: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _require_name(name: str) -> None:
    if not name.isidentifier():
        raise WorkflowError(f"a stage cannot be called {name!r}; use letters, digits and underscores")


def _parameters(name: str, call: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        raise WorkflowError(
            f"stage {name}: the function does not say what it takes; name it in `reads`"
        ) from None
    if any(each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in parameters):
        raise WorkflowError(f"stage {name}: the function takes any arguments; name what it reads in `reads`")
    return [each.name for each in parameters if each.default is each.empty]


def _parts(name: str, template: str) -> tuple[tuple[str, Reference | None], ...]:
    try:
        pieces = list(Formatter().parse(template))
    except ValueError as error:
        raise WorkflowError(
            f"stage {name}: the template cannot be read ({error}); double its own braces"
        ) from None
    parts: list[tuple[str, Reference | None]] = []
    for text, found, form, conversion in pieces:
        if form or conversion:
            raise WorkflowError(
                f"stage {name}: {{{found}}} has a format, and templates have none; double the text's own braces"
            )
        try:
            parts.append((text, None if found is None else Reference.of(found)))
        except BraidError as error:
            raise WorkflowError(f"stage {name}: {error}; double the text's own braces") from None
    return tuple(parts)
