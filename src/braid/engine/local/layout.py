"""Where tokens stand and what they read: the two ways to lay streams out.

`RowLayout` is the model of native checkpoints: a token stands at its row time, and reads all readable streams at
once. `ViewLayout` serves stock models: each lane sees one continuous conversation, whose pieces are spans that
other lanes see elsewhere.

    view of an output   [preamble][inputs][the other outputs][its closer][its own tokens]
    view of an input    [preamble][other inputs][its own tokens]

A token's key and value are computed once, in its own lane's view of that moment, and kept when the view changes:
later input and what others say land before the closer, and everything behind is shifted. What others say stands
before the closer because a model takes all that follows its own header for its own words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from braid.engine.local.span import Span
from braid.engine.local.work import Feed, Sight
from braid.errors import UnsupportedByBackend
from braid.streams.lanes import LaneTable
from braid.streams.patterns import Dense, Pattern, Striped, Window

__all__ = ["Layout", "RowLayout", "ViewLayout"]

Ints = NDArray[np.int64]


class Layout(Protocol):
    """How a session's tokens are placed, and what they read."""

    def place(self, label: str, span: Span, times: Ints, replays: Span | None = None) -> Ints:
        """Stored positions of tokens that are about to enter a span of a lane at these row times, `[n]`.

        With `replays`, a probe asks once more in the place of that span's last token.
        """
        ...

    def sights(self, feed: Feed) -> list[Sight]:
        """What the tokens of a feed read; called after all feeds of the forward have entered their spans."""
        ...


class RowLayout:
    """Native rows: position is row time, shifts are zero.

    Args:
        table: The lanes and who reads whom.
        spans: Of each lane, in the order of the table; None once a lane is closed.
    """

    def __init__(self, table: LaneTable, spans: list[Span | None]) -> None:
        self._table = table
        self._spans = spans

    def place(self, label: str, span: Span, times: Ints, replays: Span | None = None) -> Ints:
        """Row times are the positions."""
        return times

    def sights(self, feed: Feed) -> list[Sight]:
        """All readable streams, each up to the row or through it, as the same-row rule says."""
        reader = self._table.index(feed.label)
        found: list[Sight] = []
        for read, span in enumerate(self._spans):
            if span is None or not self._table.reads(reader, read):
                continue
            own = read == reader
            stop = (
                _own_stop(feed) if own else _stop(span, feed.times, self._table.sees_same_row(reader, read))
            )
            if span is feed.replays:
                stop = stop - 1
            pattern = self._table.pattern(reader, read)
            start = _window_start(span, feed.times, pattern)
            if own and not feed.is_probe:  # a token reads itself, whatever the pattern
                start = np.minimum(start, stop - 1)
            found.append(Sight(feed, span, start, stop, np.zeros_like(stop), pattern))
        return found


class ViewLayout:
    """Training-free views.

    Args:
        table: The lanes and who reads whom.
        spans: Of each lane, in the order of the table; None once a lane is closed.
        preamble: The template's text before the inputs, with the conversation so far.
        closers: Of each output lane, by label.

    Raises:
        UnsupportedByBackend: A striped pattern, which has no meaning where positions are not row times; or an
            input that reads an output.
    """

    def __init__(
        self, table: LaneTable, spans: list[Span | None], preamble: Span, closers: Mapping[str, Span]
    ) -> None:
        self._table = table
        self._spans = spans
        self._preamble = preamble
        self._closers = closers
        pairs = [(i, j) for i in range(len(spans)) for j in range(len(spans)) if table.reads(i, j)]
        if any(table.spec(i).is_input and table.spec(j).is_output for i, j in pairs):
            raise UnsupportedByBackend(
                "in views an input cannot read an output, whose place lies behind it; remove that from `reads`, or use "
                "a topology with `decoding: rows`"
            )
        if any(isinstance(table.pattern(i, j), Striped) for i, j in pairs):
            raise UnsupportedByBackend(
                "striped patterns count row times, which are not positions in views; use dense or window(n), "
                "or a topology with `decoding: rows`"
            )

    def place(self, label: str, span: Span, times: Ints, replays: Span | None = None) -> Ints:
        """The next ones of the span.

        A span that is empty takes as its base the place where it stands in its lane's view just then, so that in a
        plain conversation no shift is ever needed.
        """
        if not len(span):
            before = self._order(label, span)[:-1]
            span.base = int(sum(self._visible(label, other, times[:1])[0] for other in before))
        first = span.base + len(span) - int(replays is not None and not len(span))
        return first + np.arange(len(times), dtype=np.int64)

    def sights(self, feed: Feed) -> list[Sight]:
        """The lane's view, as far as each token sees it."""
        order = self._order(feed.label, feed.span)
        offset = np.zeros(len(feed.times), dtype=np.int64)
        shifts: list[Ints] = []
        stops: list[Ints] = []
        for span in order:
            # From where the span is stored to where this token sees it; what asks again at the beginning of its span
            # stands one place before the base, which is that of the tokens that follow, maybe in the same forward.
            asks_again = span is feed.span and feed.replays is not None and not feed.start
            shifts.append(offset - span.base + int(asks_again))
            stop = _own_stop(feed) if span is feed.span else self._visible(feed.label, span, feed.times)
            stop = stop - int(span is feed.replays)
            stops.append(stop)
            offset = offset + stop
        own_shift = shifts[-1]
        found: list[Sight] = []
        for span, shift, stop in zip(order, shifts, stops, strict=True):
            first = _window_start(span, feed.times, self._pattern(feed, span))
            own = span is feed.span
            if own and not feed.is_probe:
                first = np.minimum(first, stop - 1)
            found.append(Sight(feed, span, first, stop, own_shift - shift))
        return found

    def _order(self, label: str, own: Span) -> list[Span]:
        """The spans of a lane's view, up to and with the one whose tokens look."""
        if own is self._preamble:
            return [own]
        reader = self._table.index(label)
        readable = [j for j in range(len(self._spans)) if j != reader and self._table.reads(reader, j)]
        view: list[Span | None] = [self._preamble]
        view += [self._spans[j] for j in readable if self._table.spec(j).is_input]
        if self._table.spec(reader).is_output:
            view += [self._spans[j] for j in readable if self._table.spec(j).is_output]
            if own is not self._closers[label]:
                view.append(self._closers[label])
        return [*(span for span in view if span is not None), own]

    def _visible(self, label: str, span: Span, times: Ints) -> Ints:
        """How many tokens of a span a lane sees in each of these rows, `[n]`."""
        read = self._lane_of(span)
        if read is None:  # the preamble, or the lane's own closer
            return np.full(len(times), len(span), dtype=np.int64)
        return _stop(span, times, self._table.sees_same_row(self._table.index(label), read))

    def _pattern(self, feed: Feed, span: Span) -> Pattern:
        read = self._lane_of(span)
        if read is None or self._lane_of(feed.span) is None:  # template text reads, and is read, whole
            return Dense()
        return self._table.pattern(self._table.index(feed.label), read)

    def _lane_of(self, span: Span) -> int | None:
        return next((j for j, other in enumerate(self._spans) if other is span), None)


def _own_stop(feed: Feed) -> Ints:
    """Of its own span a kept token reads what came before it and itself; a probe all that came before it."""
    n = len(feed.token_ids)
    if feed.is_probe:
        return np.full(n, feed.start, dtype=np.int64)
    return feed.start + np.arange(1, n + 1, dtype=np.int64)


def _stop(span: Span, times: Ints, same_row: bool) -> Ints:
    """One past the last token that rows before `times`, or through them, hold."""
    return np.searchsorted(span.times, times, side="right" if same_row else "left").astype(np.int64)


def _window_start(span: Span, times: Ints, pattern: Pattern) -> Ints:
    if isinstance(pattern, Window):
        return np.searchsorted(span.times, times - pattern.n, side="right").astype(np.int64)
    return np.zeros(len(times), dtype=np.int64)
