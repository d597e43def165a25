"""Refusing a request with the name of the field that is at fault."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from braid.errors import InputError, ModelError, TopologyError

__all__ = ["naming", "read_as", "refusal"]

Shape = TypeVar("Shape", bound=BaseModel)


def refusal(param: str, message: str) -> InputError:
    """An error to raise: what is wrong with that field, and what would work.

    Args:
        param: The field, such as `messages[2].content`.
        message: In words.
    """
    error = InputError(f"{param}: {message}")
    error.param = param
    return error


def read_as(shape: type[Shape], data: object, where: str) -> Shape:
    """Data in its shape.

    Args:
        shape: What it must look like.
        data: As it came.
        where: The field that it stands in.

    Raises:
        InputError: It does not; `param` says where.
    """
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise refusal(".".join(map(str, (where, *first["loc"]))), first["msg"]) from None


@contextmanager
def naming(param: str) -> Generator[None]:
    """Say of whatever is refused within that this field was at fault, unless somebody knows it better."""
    try:
        yield
    except (InputError, TopologyError, ModelError) as error:
        error.param = error.param or param
        raise
