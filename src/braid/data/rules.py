"""What holds of every row table, whoever made it. The names of the rules stand in brackets in what `check` prints.

    row        t-1        t
    output   asked? ───▶ token      what is said in `t` was asked for in `t - 1`

A stream may be forced (a prompt, a header), but only from the example's first row on, without a gap: later, a token
that nobody asked for would train nothing, and tells of a builder's mistake.

An end token ends a stream's turn. The next turn begins with an input token after all that had spoken have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, cast

from braid.data.row_table import Lane, RowTable
from braid.data.tokens import DataTokenizer
from braid.streams.strict import hint, shown
from braid.streams.topology import Topology

__all__ = ["RULES", "Broken", "broken_keys", "broken_objects", "broken_order", "broken_rules", "turn_ends"]

RULES = {
    "json": "a line is JSON",
    "keys": "an example and its lanes have the keys of the format, and no others",
    "types": "what stands there is of the right kind",
    "id": "no two examples have the same id",
    "streams": "streams are those of the topology, in its order, each once",
    "rows": "a lane has a row for each token; rows rise strictly and lie in the example",
    "empty row": "every row has a token",
    "vocabulary": "ids are tokens of the tokenizer, and none is silence or padding",
    "asked": "ranges are in order, apart, within the example, of an output, and none is after an end",
    "unasked": "an output's token was asked for in the row before, or is forced from the first row on",
    "after end": "nothing follows an end token in the same turn",
    "weight": "weights are numbers from 0 up; an input has none",
}
"""Rule → what it asks."""

_MOST_OF_A_KIND = 5
"""A lane that is wrong throughout says so a few times, not a thousand."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that does not hold.

    Args:
        rule: One of `RULES`, or of `braid.data.score_rules.SCORE_RULES`.
        message: What is wrong.
        stream, row, segment: Where, if it is anywhere.
    """

    rule: str
    message: str
    stream: str | None = None
    row: int | None = None
    segment: int | None = None


def broken_keys(
    data: Mapping[str, Any],
    wanted: Sequence[str],
    what: str,
    stream: str | None = None,
    *,
    optional: Sequence[str] = (),
) -> Iterator[Broken]:
    """Keys that are missing, or that the format has not.

    Args:
        data: An object of the format.
        wanted: The keys that it must have.
        what: What to call it.
        stream: Where it stands.
        optional: Keys that it may have.
    """
    for key in wanted:
        if key not in data:
            yield Broken("keys", f"{what} has no key {key!r}", stream)
    known = (*wanted, *optional)
    for key in data:
        if key not in known:
            yield Broken("keys", f"{what} has an unknown key {key!r}; {hint(key, known)}", stream)


def broken_objects(
    value: object, plural: str, singular: str, shape: Callable[[Mapping[str, Any], int], Iterator[Broken]]
) -> Iterator[Broken]:
    """What is wrong with a list of objects.

    Args:
        value: What should be one.
        plural, singular: What to call it, and each of it by its place.
        shape: Of an object and its place: what is wrong with it.
    """
    if not isinstance(value, list):
        yield Broken("types", f"{plural} is a list, not {shown(value)}")
        return
    for place, each in enumerate(cast("list[Any]", value)):
        if isinstance(each, Mapping):
            yield from shape(cast("Mapping[str, Any]", each), place)
        else:
            yield Broken("types", f"{singular} {place} is an object, not {shown(each)}")


def broken_order(names: Sequence[str], what: str, topology: Topology | None) -> Iterator[Broken]:
    """Streams that there are twice, that the topology has not, or that stand in another order than there.

    Args:
        names: Of the streams of an example.
        what: What the example has of them, in the plural.
        topology: Without it, only what there is twice is told.
    """
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            yield Broken("streams", f"there are {names.count(name)} {what} of this stream", name)
    if topology is None:
        return
    order = list(topology.streams)
    for name in names:
        if name not in order:
            yield Broken("streams", f"the topology has no such stream; it has {', '.join(order)}", name)
    places = [order.index(name) for name in names if name in order]
    for place, following in pairwise(places):
        if following < place:
            yield Broken(
                "streams", f"it stands after {order[place]}, but before it in the topology", order[following]
            )


def broken_rules(
    table: RowTable, tokenizer: DataTokenizer | None = None, topology: Topology | None = None
) -> Iterator[Broken]:
    """Every rule that a row table breaks, whose shape is right."""
    yield from broken_order([lane.stream for lane in table.lanes], "lanes", topology)
    sound: list[Lane] = []
    for lane in table.lanes:
        broken = list(_rows(lane, table.num_rows))
        yield from broken
        if not broken:
            sound.append(lane)
    if len(sound) == len(table.lanes):
        yield from _empty_rows(table)
    ends = turn_ends(table, sound, tokenizer.end_id, topology) if tokenizer is not None else {}
    for lane in sound:
        if tokenizer is not None:
            yield from _vocabulary(lane, tokenizer)
        yield from _asked(lane, table.num_rows, is_input=_is_input(lane, topology))
        yield from _unasked(lane, is_input=_is_input(lane, topology))
        yield from _after_end(lane, ends.get(lane.stream, ()))


def _is_input(lane: Lane, topology: Topology | None) -> bool:
    if topology is not None and lane.stream in topology.streams:
        return topology.streams[lane.stream].is_input
    return not lane.asked and lane.weight == 0


def _rows(lane: Lane, num_rows: int) -> Iterator[Broken]:
    if len(lane.rows) != len(lane.ids):
        yield Broken("rows", f"it has {len(lane.rows)} rows and {len(lane.ids)} ids", lane.stream)
        return
    before = -1
    for row in lane.rows:
        if row <= before:
            yield Broken("rows", f"row {row} comes after row {before}; rows rise strictly", lane.stream, row)
            return
        before = row
    if lane.rows and lane.rows[-1] >= num_rows:
        row = lane.rows[-1]
        yield Broken("rows", f"row {row} is beyond the example's {num_rows} rows", lane.stream, row)


def _empty_rows(table: RowTable) -> Iterator[Broken]:
    filled = sorted({row for lane in table.lanes for row in lane.rows})
    count = table.num_rows - len(filled)
    rest = f" ({count} such rows in all)" if count > 1 else ""
    gaps = (range(before + 1, after) for before, after in pairwise([-1, *filled, table.num_rows]))
    for row in islice(chain.from_iterable(gaps), _MOST_OF_A_KIND):
        yield Broken("empty row", f"no stream has a token in this row{rest}; squeeze it out", None, row)


def _vocabulary(lane: Lane, tokenizer: DataTokenizer) -> Iterator[Broken]:
    size = tokenizer.tokenizer.get_vocab_size()
    names = {tokenizer.silence_id: "silence"} | (
        {tokenizer.pad_id: "padding"} if tokenizer.pad_id is not None else {}
    )
    told = 0
    for row, token in zip(lane.rows, lane.ids, strict=True):
        if 0 <= token < size and token not in names:
            continue
        what = f"is {names[token]}, which takes no slot" if token in names else f"is beyond the {size} tokens"
        yield Broken("vocabulary", f"the id {token} {what}", lane.stream, row)
        told += 1
        if told == _MOST_OF_A_KIND:
            return


def _asked(lane: Lane, num_rows: int, *, is_input: bool) -> Iterator[Broken]:
    if is_input and lane.asked:
        yield Broken("asked", "it is an input, which is never asked", lane.stream, lane.asked[0][0])
    if is_input and lane.weight:
        yield Broken(
            "weight", f"it is an input, and has the weight {lane.weight}; inputs have 0", lane.stream
        )
    before = 0
    for start, stop in lane.asked:
        if start >= stop:
            yield Broken("asked", f"[{start}, {stop}] is no range", lane.stream, start)
        elif start < before:
            yield Broken(
                "asked",
                f"[{start}, {stop}] begins before the last one ends, in row {before}",
                lane.stream,
                start,
            )
        if stop > num_rows:
            yield Broken(
                "asked", f"[{start}, {stop}] is beyond the example's {num_rows} rows", lane.stream, num_rows
            )
        before = max(before, stop)


def _unasked(lane: Lane, *, is_input: bool) -> Iterator[Broken]:
    """Tokens that nobody asked for, but those that are forced from the first row on."""
    if is_input:
        return
    ranges = sorted(lane.asked)
    asked_to = place_of_range = told = 0
    for place, row in enumerate(lane.rows):
        # Of the ranges that begin before the row, the one that goes on longest; however long it says it is.
        while place_of_range < len(ranges) and ranges[place_of_range][0] < row:
            asked_to = max(asked_to, ranges[place_of_range][1])
            place_of_range += 1
        is_forced = row == place and (not lane.asked or lane.asked[0][0] >= row)
        if row <= asked_to or is_forced:
            continue
        yield Broken("unasked", f"it speaks, but was not asked in row {row - 1}", lane.stream, row)
        told += 1
        if told == _MOST_OF_A_KIND:
            return


def turn_ends(
    table: RowTable, lanes: Sequence[Lane], end_id: int, topology: Topology | None = None
) -> dict[str, list[tuple[int, int]]]:
    """By stream: the rows of its end tokens, and the row in which its next turn begins, `num_rows` if there is none.

    Args:
        table: An example.
        lanes: Those of its lanes whose rows are right.
        end_id: The token that ends a turn.
        topology: Says which streams are inputs; without it, those that are never asked.
    """
    ends: dict[str, list[tuple[int, int]]] = {}
    ended: dict[str, int] = {}
    events = [
        (row, _is_input(lane, topology), lane.stream, token == end_id)
        for lane in lanes
        for row, token in zip(lane.rows, lane.ids, strict=True)
    ]
    # An output that is asked takes part in the turn before it has said a word.
    events += [(start, False, lane.stream, False) for lane in lanes for start, _ in lane.asked]
    spoken: set[str] = set()
    for row, is_input, stream, is_end in sorted(events):
        is_over = bool(spoken) and all(name in ended and ended[name] < row for name in spoken)
        if is_input and is_over and stream in ended:
            for name, at in ended.items():
                ends.setdefault(name, []).append((at, row))
            ended.clear()
            spoken.clear()
        spoken.add(stream)
        if is_end:
            ended.setdefault(stream, row)
    for name, at in ended.items():
        ends.setdefault(name, []).append((at, table.num_rows))
    return ends


def _after_end(lane: Lane, ends: Sequence[tuple[int, int]]) -> Iterator[Broken]:
    for end, turn in ends:
        late = next((row for row in lane.rows if end < row < turn), None)
        if late is not None:
            yield Broken("after end", f"it had ended its turn in row {end}", lane.stream, late)
        for start, stop in lane.asked:
            first = max(start, end)
            if first < min(stop, turn):
                yield Broken("asked", f"it had ended its turn in row {end}, and is asked", lane.stream, first)
                break
