"""Refusing a request with the name of the field that is at fault."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from braid.errors import InputError, ModelError, TopologyError

__all__ = ["naming", "refusal"]


def refusal(param: str, message: str) -> InputError:
    """An error to raise: what is wrong with that field, and what would work.

    Args:
        param: The field, such as `messages[2].content`.
        message: In words.
    """
    error = InputError(f"{param}: {message}")
    error.param = param
    return error


@contextmanager
def naming(param: str) -> Generator[None]:
    """Say of whatever is refused within that this field was at fault, unless somebody knows it better."""
    try:
        yield
    except (InputError, TopologyError, ModelError) as error:
        error.param = error.param or param
        raise
