"""Which earlier rows of a readable stream a reader may see, as a function of the distance in rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from braid.errors import TopologyError
from braid.streams.strict import problem, shown

__all__ = ["Dense", "Pattern", "PatternField", "Striped", "Window", "parse_pattern"]


@dataclass(frozen=True, slots=True)
class Dense:
    """All earlier rows; spelled `dense`."""

    def allows(self, distance: int) -> bool:
        """Whether a key `distance` rows back (0 is the same row) may be read."""
        return distance >= 0

    def __str__(self) -> str:
        return "dense"


@dataclass(frozen=True, slots=True)
class Window:
    """The last `n` rows, the current one among them; spelled `window(n)`.

    Args:
        n: rows, at least 1.

    Raises:
        TopologyError: `n` is no positive whole number.
    """

    n: int

    def __post_init__(self) -> None:
        if not _is_count(self.n) or self.n < 1:
            raise TopologyError(f"window({self.n!r}) sees nothing: say how many rows, at least window(1)")

    def allows(self, distance: int) -> bool:
        """Whether a key `distance` rows back (0 is the same row) may be read."""
        return 0 <= distance < self.n

    def __str__(self) -> str:
        return f"window({self.n})"


@dataclass(frozen=True, slots=True)
class Striped:
    """Every `stride`-th row back, from `offset` on; spelled `striped(stride, offset)`.

    Args:
        stride: rows from one visible row to the next, at least 1.
        offset: distance of the nearest visible row, 0 up to `stride - 1`.

    Raises:
        TopologyError: the stride or the offset lies out of range.
    """

    stride: int
    offset: int = 0

    def __post_init__(self) -> None:
        if not (_is_count(self.stride) and _is_count(self.offset)) or self.stride < 1:
            raise TopologyError(f"{self}: the stride must be a whole number of rows, at least striped(1, 0)")
        if not 0 <= self.offset < self.stride:
            raise TopologyError(f"{self} sees nothing: the offset must be 0 to {self.stride - 1}")

    def allows(self, distance: int) -> bool:
        """Whether a key `distance` rows back (0 is the same row) may be read."""
        return distance >= 0 and distance % self.stride == self.offset

    def __str__(self) -> str:
        return f"striped({self.stride}, {self.offset})"


Pattern = Dense | Window | Striped

_COUNT = r"\s*([0-9]{1,9})\s*"
_SPELLING = rf"dense|window\({_COUNT}\)|striped\({_COUNT},{_COUNT}\)"
_HOW = "say 'dense', 'window(16)' or 'striped(4, 1)'"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse_pattern(text: str) -> Pattern:
    """The pattern that a text spells.

    >>> parse_pattern("striped(4, 1)").allows(5)
    True

    Raises:
        TopologyError: the text spells none.
    """
    match = re.fullmatch(_SPELLING, text.strip())
    if match is None:
        raise TopologyError(f"{shown(text)} is no pattern: {_HOW}")
    n, stride, offset = match.groups()
    if n is not None:
        return Window(int(n))
    return Dense() if stride is None else Striped(int(stride), int(offset))


def _read_pattern(value: Any) -> Pattern:
    if isinstance(value, Dense | Window | Striped):
        return value
    if not isinstance(value, str):
        raise problem(f"{shown(value)} is no pattern: {_HOW}")
    try:
        return parse_pattern(value)
    except TopologyError as error:
        raise problem(str(error)) from None  # so that pydantic puts the path in front


PatternField = Annotated[
    Pattern,
    PlainValidator(_read_pattern),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "pattern": f"^({_SPELLING})$"}),
]
"""Field type of a pattern that is spelled as text outside Python."""
