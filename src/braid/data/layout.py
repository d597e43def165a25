"""From a score to rows: who says what in which row, for one way of arriving.

The clock is that of the engine. A row happens when some stream has a token; while an output is speaking, an input that
arrives slowly leaves gaps; while nobody speaks, the next input token is the next row, however late it comes. A burst
enters in consecutive rows with the outputs silent and unasked, but for the last of them.

What a stream says in row `t` it was asked for in row `t - 1`, so it may depend on what stands in rows up to `t - 1`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from braid.data.row_table import Lane, RowTable, ranges_of
from braid.data.score import Part, Score
from braid.data.tokens import THINK, THINK_END, DataTokenizer
from braid.errors import DataError

__all__ = ["ARRIVALS", "Arrival", "draw_arrival", "lay_out", "serialise"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """How the input comes.

    Args:
        gap: Rows from one input token to the next while somebody speaks; 1 is paced, infinity waits for silence.
        jitter: Chance that a token comes with a gap of its own, from 1 to 12 rows.
        bursts: Chance that a burst begins with a token; its length is drawn up to `longest`.
        longest: Tokens of a burst.
        wait_k: Tokens of input after which outputs are asked first.
    """

    gap: float = 1
    jitter: float = 0.0
    bursts: float = 0.0
    longest: int = 1_000_000
    wait_k: int = 1


ARRIVALS: Mapping[str, Arrival] = {
    "paced": Arrival(),
    "typed": Arrival(gap=math.inf),
    "paste": Arrival(bursts=1.0),
}
"""The three ways that figures are given for."""


def draw_arrival(rng: random.Random) -> Arrival:
    """One of many ways, for training: so a model serves slow typists, quick ones, and pasted text alike."""
    wait_k = 1 if rng.random() < 0.4 else rng.randint(1, 10)
    kind = rng.random()
    if kind < 0.35:
        return Arrival(wait_k=wait_k)
    if kind < 0.6:
        return Arrival(gap=math.inf, wait_k=wait_k)
    if kind < 0.7:
        return Arrival(bursts=1.0)
    if kind < 0.85:
        return Arrival(gap=rng.choice((2, 3, 4)), jitter=0.3, wait_k=wait_k)
    return Arrival(gap=rng.choice((1, 2, math.inf)), jitter=0.2, bursts=0.1, longest=12, wait_k=wait_k)


@dataclass(slots=True)
class _Player:
    """A part that is being played."""

    part: Part
    tokens: list[tuple[int, ...]]
    rows: list[int] = field(default_factory=list[int])
    ids: list[int] = field(default_factory=list[int])
    segment: int = 0
    """Segments that are complete, its end among them."""
    within: int = 0
    asked: list[int] = field(default_factory=list[int])
    """Rows in which it is asked."""

    @property
    def is_done(self) -> bool:
        return self.segment == len(self.tokens)

    def say(self, t: int) -> None:
        tokens = self.tokens[self.segment]
        self.rows.append(t)
        self.ids.append(tokens[self.within])
        self.within += 1
        if self.within == len(tokens):
            self.segment, self.within = self.segment + 1, 0


def lay_out(
    score: Score,
    tokenizer: DataTokenizer,
    arrival: Arrival = ARRIVALS["paced"],
    rng: random.Random | None = None,
    weights: Mapping[str, float] | None = None,
) -> RowTable:
    """Lay a score out in rows.

    Args:
        score: What is said.
        tokenizer: Of the model.
        arrival: How the input comes.
        rng: For what it leaves open.
        weights: Of the loss, by stream.

    Returns:
        The table; every row has a token.

    Raises:
        DataError: Segments wait for each other, or for one that does not exist.
    """
    rng = rng or random.Random(0)
    players = {part.stream: _Player(part, _tokens(part, tokenizer)) for part in score.parts}
    inputs = [p for p in players.values() if p.part.direction == "input"]
    outputs = [p for p in players.values() if p.part.direction == "output"]
    due, burst, t = 0, 0, 0
    while not all(p.is_done for p in players.values()):
        ready = [p for p in outputs if _is_ready(p, players, t)]
        waiting = [p for p in inputs if _may_enter(p, players)]
        if burst and not waiting:
            burst = 0
        if not burst and waiting and not ready and arrival.bursts and rng.random() < arrival.bursts:
            burst = rng.randint(2, arrival.longest) if arrival.longest < 1000 else arrival.longest
        if burst:
            entering, speaking = waiting[:1], []
            burst -= 1
        else:
            entering = waiting if due <= t or not ready else []
            speaking = ready
        if not entering and not speaking:
            stuck = ", ".join(p.part.stream for p in players.values() if not p.is_done)
            raise DataError(f"{score.id}: nothing can be said in row {t}; {stuck} wait for what never comes")
        for player in entering:
            player.say(t)
        if entering:
            due = t + (rng.randint(1, 12) if rng.random() < arrival.jitter else arrival.gap)
        for player in speaking:
            player.say(t)
        is_last = burst == 0 or not any(_may_enter(p, players) for p in inputs)
        if is_last or not entering:
            for player in outputs:
                if _is_awake(player, players, arrival.wait_k):
                    player.asked.append(t)
        t += 1
    weights = weights or {}
    lanes = tuple(
        Lane(p.part.stream, p.rows, p.ids, ranges_of(p.asked), weights.get(p.part.stream, 1.0))
        if p.part.direction == "output"
        else Lane(p.part.stream, p.rows, p.ids, (), 0.0)
        for p in players.values()
    )
    return RowTable(score.id, t, lanes, score.meta)


def _tokens(part: Part, tokenizer: DataTokenizer) -> list[tuple[int, ...]]:
    tokens = [tokenizer.encode(segment.text) for segment in part.segments]
    if part.ends:
        tokens.append((tokenizer.end_id,))
    return tokens


def _is_past(player: _Player, players: Mapping[str, _Player]) -> bool:
    """Whether what the next segment needs has been said; before a row is made, that is in the rows before it."""
    if player.within or player.segment >= len(player.part.segments):
        return True
    after = player.part.segments[player.segment].after
    return all(players[stream].segment >= count for stream, count in after.items())


def _may_enter(player: _Player, players: Mapping[str, _Player]) -> bool:
    return not player.is_done and _is_past(player, players)


def _is_ready(player: _Player, players: Mapping[str, _Player], t: int) -> bool:
    """Whether it speaks in row `t`: it was asked in the row before, and what it says could be known there."""
    if player.is_done or not player.asked or player.asked[-1] != t - 1:
        return False
    if player.segment >= len(player.part.segments):
        # Only its end is left, which waits for the inputs' last words.
        return all(players[s].segment >= len(players[s].part.segments) for s in player.part.reads)
    return _is_past(player, players)


def _is_awake(player: _Player, players: Mapping[str, _Player], wait_k: int) -> bool:
    """Whether it is to be asked: it has begun, or enough of its input has been read, and it has not ended.

    More than there is cannot be waited for, nor more than comes before somebody has spoken.
    """
    if player.is_done or player.asked:
        return not player.is_done
    read = [players[stream] for stream in player.part.reads]
    return sum(len(each.ids) for each in read) >= wait_k or not any(_may_enter(p, players) for p in read)


def serialise(table: RowTable, tokenizer: DataTokenizer, stream: str = "text") -> RowTable:
    """The same example for an ordinary model that takes turns, in one stream.

    What was read comes first, an end token between one input and the next; then what is said. Outputs before the last
    one are the thought:

        question <think> thought </think> answer <end>
        question <end> solution <end> audit <end>

    Args:
        table: An example in rows; only what is said in each stream counts.
        tokenizer: Of the model.
        stream: What the one stream is called.

    Returns:
        One lane, which is asked from the prompt's last token on.
    """
    inputs = [_without_end(lane.ids, tokenizer) for lane in table.lanes if not lane.asked]
    outputs = [_without_end(lane.ids, tokenizer) for lane in table.lanes if lane.asked]
    *thoughts, last = outputs or [[]]
    prompt = [token for ids in inputs for token in (*ids, tokenizer.end_id)]
    said = [*last, tokenizer.end_id]
    if thoughts:
        opening, closing = tokenizer.encode(THINK), tokenizer.encode(THINK_END)
        prompt = [*prompt[:-1], *opening]
        said = [*(token for ids in thoughts for token in ids), *closing, *said]
    ids = [*prompt, *said]
    return RowTable(
        table.id,
        len(ids),
        (Lane(stream, range(len(ids)), ids, ((len(prompt) - 1, len(ids) - 1),)),),
        table.meta,
    )


def _without_end(ids: Sequence[int], tokenizer: DataTokenizer) -> list[int]:
    return list(ids[:-1] if ids and ids[-1] == tokenizer.end_id else ids)
