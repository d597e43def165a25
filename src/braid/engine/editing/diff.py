"""What changed from one list of tokens to another.

    a   The cat sat on the mat .          edits(a, b)   [1:2] → dog
    b   The dog sat on the old mat .                    [5:5] → old
        └┬┘                     └┬┘
     common prefix          common suffix

What both begin and end with is passed over at the speed of comparing slices. The few changes between are found by
Myers' greedy method (E. W. Myers, "An O(ND) difference algorithm and its variations", 1986), whose work is that of
the length times the changes; where there are many, the whole middle is one change, since little of it could be kept.

`matching_blocks` asks for long runs alone, and finds them behind large changes, too, such as a page that was pasted: by
pieces that stand in each list once, the longest series of which in one order is taken, and made longer on both sides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Block", "Edit", "apply", "common_prefix", "common_suffix", "edits", "matching_blocks"]

MOST_CHANGES = 256
"""Tokens deleted and inserted, beyond which the middle is one change."""

FEW_CHANGES = 64
"""Beyond so many, long runs are looked for by pieces that stand in each list once: that takes milliseconds."""

_BLOCK = 256
_PIECE, _STRIDE = 16, 8
"""Tokens of such a piece, and how far apart they begin: of a run of 24 tokens, one at least lies within it."""


class Block(NamedTuple):
    """A run that two lists have in common: its place in each, and its length."""

    old: int
    new: int
    length: int


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a list of tokens.

    Args:
        start, stop: What is replaced, in the old list; nothing where they are equal.
        new: What stands there instead; nothing if it was deleted.
    """

    start: int
    stop: int
    new: tuple[int, ...]


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many tokens two lists, or characters two texts, begin with in common."""
    most = min(len(a), len(b))
    at = 0
    while at + _BLOCK <= most and a[at : at + _BLOCK] == b[at : at + _BLOCK]:
        at += _BLOCK
    while at < most and a[at] == b[at]:
        at += 1
    return at


def common_suffix(a: Sequence[object], b: Sequence[object], start: int = 0) -> int:
    """How many tokens two lists, or characters two texts, end with in common, the first `start` of each left out.

    Args:
        a, b: Of one type: two lists, tuples or texts.
        start: Most often their common prefix, so that nothing is counted twice.
    """
    most = min(len(a), len(b)) - start
    count = 0
    while (
        count + _BLOCK <= most
        and a[len(a) - count - _BLOCK : len(a) - count] == b[len(b) - count - _BLOCK : len(b) - count]
    ):
        count += _BLOCK
    while count < most and a[len(a) - count - 1] == b[len(b) - count - 1]:
        count += 1
    return count


def edits(
    a: Sequence[int], b: Sequence[int], *, most_changes: int = MOST_CHANGES, least_kept: int = 1
) -> list[Edit]:
    """The replacements that make one list of another: few, from left to right, none next to another.

    Args:
        a: What is there.
        b: What shall be.
        most_changes: Tokens deleted and inserted in the middle, beyond which it is replaced as a whole.
        least_kept: Kept tokens between two changes; where there are fewer, the two become one.

    Returns:
        None at all if the lists are equal. `apply` undoes the comparison.

    >>> edits([1, 2, 3, 4, 5], [1, 9, 3, 4, 6, 5])
    [Edit(start=1, stop=2, new=(9,)), Edit(start=4, stop=4, new=(6,))]
    """
    a, b = tuple(a), tuple(b)
    start = common_prefix(a, b)
    end = common_suffix(a, b, start)
    old, new = a[start : len(a) - end], b[start : len(b) - end]
    if not old and not new:
        return []
    kept = _kept(old, new, most_changes) if old and new else []
    found: list[Edit] = []
    at_old = at_new = 0
    for in_old, in_new, length in [*kept, (len(old), len(new), 0)]:
        if in_old > at_old or in_new > at_new:
            found.append(Edit(start + at_old, start + in_old, new[at_new:in_new]))
        at_old, at_new = in_old + length, in_new + length
    return _joined(found, a, least_kept)


def matching_blocks(a: Sequence[object], b: Sequence[object], least: int) -> list[Block]:
    """Long runs that two lists have in common, in one order in both, none over another.

    Args:
        a, b: What was there, and what is.
        least: Tokens that a run must have. Behind many changes only runs of 24 and more are found, and of text that
            repeats itself not all.

    >>> matching_blocks("abcdefgh", "abcd--efgh", 3)
    [Block(old=0, new=0, length=4), Block(old=4, new=6, length=4)]
    """
    start = common_prefix(a, b)
    end = common_suffix(a, b, start)
    old, new = a[start : len(a) - end], b[start : len(b) - end]
    kept: Sequence[tuple[int, int, int]] = []
    if min(len(old), len(new)) >= least:
        kept = _kept(old, new, FEW_CHANGES) or _anchored(old, new)
    runs = [Block(0, 0, start)]
    runs += [Block(start + in_old, start + in_new, length) for in_old, in_new, length in kept]
    runs.append(Block(len(a) - end, len(b) - end, end))
    found: list[Block] = []
    end_old = end_new = 0
    for x, y, length in runs:
        back = 0  # of as many changes one may keep the beginning of a run elsewhere
        while x - back > end_old and y - back > end_new and a[x - back - 1] == b[y - back - 1]:
            back += 1
        if length + back >= max(1, least):
            found.append(Block(x - back, y - back, length + back))
            end_old, end_new = x + length, y + length
    return found


def apply(a: Sequence[int], changes: Iterable[Edit]) -> list[int]:
    """What a list becomes.

    Args:
        a: The old list.
        changes: From left to right, as `edits` gives them.
    """
    result: list[int] = []
    at = 0
    for change in changes:
        assert at <= change.start <= change.stop <= len(a), "edits are in order, and inside of the list"
        result.extend(a[at : change.start])
        result.extend(change.new)
        at = change.stop
    result.extend(a[at:])
    return result


def _kept(a: Sequence[object], b: Sequence[object], most_changes: int) -> list[tuple[int, int, int]]:
    """The runs that stay: place in a, place in b, length. None if the changes are too many.

    A diagonal is a place in a less a place in b. `reach` has the farthest place in a on each diagonal that so many
    changes come to; the rounds are remembered, and the way is read backwards out of them.
    """
    reach = {1: 0}
    rounds: list[dict[int, int]] = []
    for changes in range(min(most_changes, len(a) + len(b)) + 1):
        rounds.append(reach)
        now: dict[int, int] = {}
        for diagonal in range(-changes, changes + 1, 2):
            if diagonal < -len(b) or diagonal > len(a):
                continue
            x = _from(reach, diagonal)
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            now[diagonal] = x
            if x == len(a) and y == len(b):
                return _way_back(rounds, x, y)
        reach = now
    return []


def _from(reach: dict[int, int], diagonal: int) -> int:
    """Where a diagonal is come upon with one more change: an insertion from above it, or a deletion from below."""
    return max(reach.get(diagonal + 1, -1), reach.get(diagonal - 1, -2) + 1)


def _way_back(rounds: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for reach in reversed(rounds):
        diagonal = x - y
        begin = _from(reach, diagonal)
        if x > begin:
            runs.append((begin, begin - diagonal, x - begin))
        is_insertion = reach.get(diagonal + 1, -1) >= begin
        x = begin if is_insertion else begin - 1
        y = x - (diagonal + 1 if is_insertion else diagonal - 1)
    return runs[::-1]


def _anchored(a: Sequence[object], b: Sequence[object]) -> list[tuple[int, int, int]]:
    """Runs around pieces that stand once in each list: place in a, place in b, length."""
    in_a: dict[tuple[object, ...], int] = {}
    for at in range(0, len(a) - _PIECE + 1, _STRIDE):
        piece = tuple(a[at : at + _PIECE])
        in_a[piece] = -1 if piece in in_a else at
    in_b: dict[int, int] = {}
    for at in range(len(b) - _PIECE + 1):
        place = in_a.get(tuple(b[at : at + _PIECE]), -1)
        if place >= 0:
            in_b[place] = -1 if place in in_b else at
    anchors = _longest_ascending([pair for pair in sorted(in_b.items()) if pair[1] >= 0])
    runs: list[tuple[int, int, int]] = []
    end_a = end_b = 0
    for x, y in anchors:
        if x < end_a or y < end_b:
            continue
        length = _PIECE
        while x + length < len(a) and y + length < len(b) and a[x + length] == b[y + length]:
            length += 1
        runs.append((x, y, length))
        end_a, end_b = x + length, y + length
    return runs


def _longest_ascending(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of pairs that ascend in their first number, the longest series that ascends in the second one, too."""
    ends: list[int] = []
    """Of each length, the smallest second number that a series of that length ends with."""
    last: list[int] = []
    before: list[int] = []
    for index, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [second]
        last[length : length + 1] = [index]
    series: list[tuple[int, int]] = []
    at = last[-1] if last else -1
    while at >= 0:
        series.append(pairs[at])
        at = before[at]
    return series[::-1]


def _joined(found: Sequence[Edit], a: Sequence[int], least_kept: int) -> list[Edit]:
    joined: list[Edit] = []
    for change in found:
        if joined and change.start - joined[-1].stop < least_kept:
            last = joined.pop()
            between = tuple(a[last.stop : change.start])
            joined.append(Edit(last.start, change.stop, last.new + between + change.new))
        else:
            joined.append(change)
    return joined
