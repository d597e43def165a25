"""What stages give, and a memory of it: the same stage with the same input gives the same output."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

__all__ = ["Asked", "Cost", "Memory", "Output"]

MOST_REMEMBERED = 256
MOST_BYTES = 8 * 2**20


class Cost(NamedTuple):
    """What something has taken."""

    seconds: float = 0.0
    tokens: int = 0

    def plus(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(self.seconds + other.seconds, self.tokens + other.tokens)

    def less(self, other: Cost) -> Cost:
        """What is left without the other; never less than nothing."""
        return Cost(max(0.0, self.seconds - other.seconds), max(0, self.tokens - other.tokens))


@dataclass(frozen=True)
class Output:
    """What a stage has given.

    Args:
        value: Of a prompt its text, of a function what it returned.
        cost: What computing it has taken.
    """

    value: Any
    cost: Cost = field(default_factory=Cost)

    @cached_property
    def size(self) -> int:
        """Roughly its bytes in memory; what cannot be told counts as a thousand."""
        content = content_of(self.value)
        return len(content) if isinstance(content, bytes) else 1000


@dataclass(frozen=True)
class Asked:
    """What a stage is to compute.

    Args:
        values: What it reads, by how that is called.
        prompt: Of a prompt, what is asked.
    """

    values: Mapping[str, Any]
    prompt: str | None = None

    @cached_property
    def key(self) -> Any:
        """Equal for what is asked equally.

        What has no content that could be compared is equal to itself alone, for as long as this object lives.
        """
        if self.prompt is not None:
            return hashlib.sha256(self.prompt.encode("utf-8", "surrogatepass")).digest()
        contents = [(name, content_of(value)) for name, value in self.values.items()]
        if any(content is None for _, content in contents):
            return tuple((name, content or id(self.values[name])) for name, content in contents)
        digest = hashlib.sha256()
        for name, content in contents:
            assert content is not None, "all have content"
            digest.update(f"{name}:{len(content)}:".encode())
            digest.update(content)
        return digest.digest()

    @property
    def can_be_remembered(self) -> bool:
        """Whether its key says the same as its content."""
        return isinstance(self.key, bytes)


def content_of(value: Any) -> bytes | None:
    """A value's content: equal only for what is equal; None where it cannot be told."""
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    try:
        return b"p" + pickle.dumps(value)
    except Exception:  # noqa: BLE001 (objects may refuse with anything)
        return None


class Memory:
    """Remembers outputs by stage and content, the ones used last, within bounds.

    Args:
        most: Outputs that it holds.
        most_bytes: Of all of them together.
    """

    def __init__(self, most: int = MOST_REMEMBERED, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: OrderedDict[tuple[str, Any], Output] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def get(self, stage: str, asked: Asked) -> Output | None:
        """What the stage gave when it was asked this, if that is known."""
        found = self._held.get((stage, asked.key))
        if found is not None:
            self._held.move_to_end((stage, asked.key))
        return found

    def put(self, stage: str, asked: Asked, output: Output) -> None:
        """Remember; the one that was used longest ago is forgotten."""
        if not asked.can_be_remembered or output.size > self._most_bytes:
            return
        key = (stage, asked.key)
        before = self._held.pop(key, None)
        self._held[key] = output
        self.num_bytes += output.size - (0 if before is None else before.size)
        while len(self._held) > self._most or self.num_bytes > self._most_bytes:
            _, gone = self._held.popitem(last=False)
            self.num_bytes -= gone.size
