"""Functions of the client that the model may call: what the model is told of them, and running one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import anyio.to_thread
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs, to_jsonable_python

from braid.client.protocol import ToolSpec
from braid.errors import InputError

__all__ = ["ClientTool", "Tools", "as_tools"]

Tools = Mapping[str, "Callable[..., Any] | ClientTool"]
"""By the name that the model calls: a function, or one with a description and schema of one's own."""


class ClientTool:
    """A function that runs where the client is.

    Args:
        function: Its type hints give the schema, its docstring the description. One that is not async runs in a
            thread, so that it may block.
        description: Instead of the docstring.
        parameters: JSON schema, instead of what the hints say.

    Raises:
        InputError: The parameters cannot be described.

    >>> def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> ClientTool(add).spec("add").parameters["required"]
    ['a']
    """

    def __init__(
        self,
        function: Callable[..., Any],
        description: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._is_async = inspect.iscoroutinefunction(function)
        self._description = description if description is not None else inspect.getdoc(function) or ""
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
            schema = self._adapter.json_schema() if parameters is None else dict(parameters)
        except (PydanticUserError, NameError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"this cannot be a tool: {reason}; use hints of types that JSON can spell"
            ) from error
        if schema.get("type") != "object":
            raise InputError("this cannot be a tool: its parameters cannot be passed by name; name every one")
        self._parameters = schema

    def spec(self, name: str) -> ToolSpec:
        """What the model is told.

        Raises:
            InputError: It cannot have that name.
        """
        try:
            return ToolSpec(name=name, description=self._description, parameters=self._parameters)
        except ValidationError:
            raise InputError(
                f"no tool can be called {name!r}; use up to 64 letters, digits, underscores, dots and hyphens"
            ) from None

    async def run(self, arguments: Mapping[str, Any]) -> tuple[Any, str | None]:
        """Call it; returns what it has found, as JSON has it, or what went wrong, in words for the model."""
        given = ArgsKwargs((), dict(arguments))
        try:
            if self._is_async:
                value = await self._adapter.validate_python(given)
            else:
                value = await anyio.to_thread.run_sync(
                    self._adapter.validate_python, given, abandon_on_cancel=True
                )
            return to_jsonable_python(value), None
        except ValidationError as error:
            told = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors(include_url=False)
            )
            return None, f"bad arguments: {told}"
        except Exception as error:  # noqa: BLE001 (whatever a tool raises is its result)
            return None, f"{type(error).__name__}: {error}"


def as_tools(tools: Tools | None) -> dict[str, ClientTool]:
    """Each as a `ClientTool`."""
    return {
        name: given if isinstance(given, ClientTool) else ClientTool(given)
        for name, given in (tools or {}).items()
    }
