"""A tool: something that the model may call, with a schema of what it takes; and Python functions as tools.

    arguments of a call ── pydantic, by the function's own hints ──▶ function ──▶ what it returned
                                     └── they do not fit ──▶ Failure, which says why

A tool tells the model what went wrong by what it returns, a `Failure`; whatever it raises, the toolbox turns into one.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, overload

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from braid.errors import InputError
from braid.streams.strict import hint, shown

__all__ = ["Failure", "Tool", "check_timeout", "tool"]

_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
_MAX_PROBLEMS = 8
"""So many faults of one call are told; a model mends no more at a time."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a tool returns when it could not do what was asked.

    Args:
        message: What went wrong, in words for the model.
    """

    message: str


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that the model may call.

    Args:
        name: Letters, digits and `_ . / : -`, at most 128 of them.
        description: What it does and when to use it, in words for the model.
        parameters: JSON schema of the arguments, which are an object.
        call: Takes the arguments, returns text, anything that JSON can spell, or a `Failure`.
        timeout_s: Seconds that a call may take; None for the toolbox's.

    Raises:
        InputError: The name or the timeout cannot be used.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[[dict[str, Any]], Awaitable[object]]
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"{shown(self.name)} is no name for a tool; use letters, digits and _ . / : -")
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)

    def schema(self) -> dict[str, Any]:
        """The tool as a function schema, in the form of the OpenAI API that chat templates read too."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


def check_timeout(seconds: float) -> None:
    """Refuse a timeout that no call could meet.

    Raises:
        InputError: It is not above 0.
    """
    if not seconds > 0:
        raise InputError(
            f"a timeout of {seconds} s leaves a tool no time; give a number above 0, or math.inf"
        )


@overload
def tool(function: Callable[..., object], /) -> Tool: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float | None = None
) -> Callable[[Callable[..., object]], Tool]: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float | None = None,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a tool of a Python function; it serves as a decorator too, with settings or without.

    A plain function runs in a worker thread, so that it may block. When its call is cancelled or overdue the thread
    is left behind, for Python can stop no thread: the function should have limits of its own.

    Args:
        function: Its signature and type hints give the schema, its docstring the description. Hints may be anything
            that pydantic validates, `Annotated[int, Field(gt=0, description="…")]` included.
        name: The function's own where None.
        description: The docstring where None.
        timeout_s: Seconds that a call may take; None for the toolbox's.

    Raises:
        InputError: The function's parameters cannot be passed by name, or their hints say nothing to pydantic.

    >>> def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> tool(add).parameters["required"]
    ['a']
    """
    if function is None:
        return lambda decorated: _from_function(decorated, name, description, timeout_s)
    return _from_function(function, name, description, timeout_s)


def _from_function(
    function: Callable[..., object], name: str | None, description: str | None, timeout_s: float | None
) -> Tool:
    origin = _unwrapped(function)
    called = name or str(getattr(origin, "__name__", type(function).__name__))
    arguments = _Arguments(function, called)
    return Tool(
        name=called,
        description=inspect.getdoc(origin) or "" if description is None else description,
        parameters=arguments.schema(),
        call=_Caller(function, arguments),
        timeout_s=timeout_s,
    )


def _unwrapped(function: Callable[..., object]) -> object:
    """The function that a `functools.partial` completes; it has the name and the docstring."""
    while isinstance(function, partial):
        function = cast("partial[object]", function).func
    return function


class _Caller:
    """What a tool made of a function does when it is called."""

    def __init__(self, function: Callable[..., object], arguments: _Arguments) -> None:
        self._function = function
        self._arguments = arguments
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - of an object that is called, is that coroutine?
        )

    async def __call__(self, given: dict[str, Any]) -> object:
        checked = self._arguments.check(given)
        if isinstance(checked, Failure):
            return checked
        if self._is_async:
            result = self._function(**checked)
        else:

            def in_thread() -> tuple[object]:
                return (self._function(**checked),)  # in a tuple: trio takes no coroutine from a thread

            # A limiter of its own: how many calls run at once is for the toolbox to say, and a tool that hangs must
            # not use up the threads that all the rest of the program shares.
            (result,) = await anyio.to_thread.run_sync(
                in_thread, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        return await cast("Awaitable[object]", result) if inspect.isawaitable(result) else result


class _Schema(GenerateJsonSchema):
    """JSON schemas for a prompt: without titles that repeat names, silent about defaults that JSON cannot spell."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own name

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class _Arguments:
    """What a function takes, as a pydantic model.

    Fields are numbered and have the parameters' names as aliases: a parameter may be called `schema` or `_id`, which
    a field may not.
    """

    def __init__(self, function: Callable[..., object], name: str) -> None:
        parameters = _parameters(function, name)
        self._names = {f"argument_{i}": parameter.name for i, parameter in enumerate(parameters)}
        fields: dict[str, Any] = {
            field: (parameter.annotation, _field(parameter))
            for field, parameter in zip(self._names, parameters, strict=True)
        }
        config = ConfigDict(extra="forbid")
        try:
            self._model: type[BaseModel] = create_model("Arguments", __config__=config, **fields)
            self._schema = self._model.model_json_schema(schema_generator=_Schema)
        except PydanticUserError as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{name} cannot be a tool: {reason}; use hints of types that JSON can spell"
            ) from error
        for key in ("title", "description"):  # the model's own; the tool has better ones
            self._schema.pop(key, None)

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return self._schema

    def check(self, given: Mapping[str, Any]) -> dict[str, Any] | Failure:
        """The arguments by name, as the hints want them; those not given are left to the function's defaults."""
        try:
            model = self._model.model_validate(given)
        except ValidationError as error:
            return Failure(self._told(error))
        return {
            self._names[field]: getattr(model, field)
            for field in self._names
            if field in model.model_fields_set
        }

    def _told(self, error: ValidationError) -> str:
        problems: list[str] = []
        for detail in error.errors(include_url=False, include_context=False):
            path = ".".join(str(part) for part in detail["loc"])
            if detail["type"] == "extra_forbidden" and len(detail["loc"]) == 1:
                problems.append(f"there is no argument {path!r}; {hint(path, self._names.values())}")
            elif detail["type"] == "missing":
                problems.append(f"{path} is required")
            else:
                problems.append(f"{path}: {detail['msg']}, not {shown(detail['input'])}")
        more = len(problems) - _MAX_PROBLEMS
        if more > 0:
            problems[_MAX_PROBLEMS:] = [f"and {more} more"]
        return f"bad arguments: {'; '.join(problems)}"


def _field(parameter: inspect.Parameter) -> Any:
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return Field(default, alias=parameter.name)


def _parameters(function: Callable[..., object], name: str) -> list[inspect.Parameter]:
    """A function's parameters with their hints resolved."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} cannot be a tool: it has no signature; wrap it in a function") from error
    hints = _hints(function, name)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(
                f"{name} cannot be a tool: {str(parameter)!r} cannot be passed by name; name every parameter"
            )
        parameters.append(parameter.replace(annotation=hints.get(parameter.name, Any)))
    return parameters


def _hints(function: Callable[..., object], name: str) -> dict[str, Any]:
    origin = _unwrapped(function)
    hinted = origin if inspect.isroutine(origin) else type(origin).__call__
    try:
        return typing.get_type_hints(hinted, include_extras=True)
    except (NameError, TypeError) as error:
        raise InputError(
            f"{name} cannot be a tool: its type hints cannot be resolved: {error}; hints must be importable"
        ) from error
