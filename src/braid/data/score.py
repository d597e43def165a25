"""A score: what each stream says, in segments, and what must have been read before each of them.

Like a musical score it fixes the order of things and leaves the tempo open. How fast the input arrives, and so in which
row each token falls, is decided when it is laid out in rows (`braid.data.layout`).

    user      Mia has 3 pens.   She buys 4 more.   How many …?
    thought                  3;               3+4=7;
    output                                                   7
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Part", "Score", "Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a stream's text that is said without waiting for others.

    Args:
        text: Not empty.
        after: Stream → how many of its segments must have been read before this one begins.
    """

    text: str
    after: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Part:
    """What one stream says.

    Args:
        stream: Its name.
        direction: `input` parts arrive, `output` parts are what the model learns to say.
        segments: In order.
        ends: Whether its turn ends with the last one; the end is a token, too.
        reads: The input streams that it waits for, where a wait is counted in tokens.
    """

    stream: str
    direction: Literal["input", "output"]
    segments: tuple[Segment, ...]
    ends: bool = True
    reads: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All that it says."""
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Score:
    """One example, before it is laid out.

    Args:
        id: Of the example, unique in its file.
        parts: In the order of the topology's streams.
        meta: What a reader, a grader or a report wants to know; JSON.
    """

    id: str
    parts: tuple[Part, ...]
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def part(self, stream: str) -> Part:
        """The part of a stream.

        Raises:
            KeyError: It has none.
        """
        for part in self.parts:
            if part.stream == stream:
                return part
        raise KeyError(stream)

    @property
    def streams(self) -> Sequence[str]:
        """Those that have a part."""
        return [part.stream for part in self.parts]
