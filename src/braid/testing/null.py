"""A backend without a network: it keeps real books of pages, and says what a script or a hash tells it.

With it the engine can be run thousands of steps a second, so that scheduling, tools, full pools and slow listeners are
tested without a model; and what the engine itself costs is what a step costs on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from braid.cache.pages import PageGroup, PageList, PagePool
from braid.engine.backend import (
    PREAMBLE,
    Answer,
    Ask,
    Capabilities,
    Close,
    Draw,
    Drop,
    Fork,
    Item,
    ItemResult,
    Keep,
    Op,
    Open,
    Recall,
    Splice,
    Stash,
    Trim,
    Usage,
    closer_of,
)
from braid.errors import PoolFullError, UnsupportedByBackend
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.model.codec import TokenizerCodec
    from braid.model.grammar import GrammarCompiler

__all__ = ["NullBackend", "NullModel"]

Speak = Callable[[Draw], int]


@dataclass(frozen=True)
class NullModel:
    """A model of which there is only the tokenizer.

    Args:
        codec: The tokenizer.
        silence_token_id: The class that means silence; None for a stock model.
        name: For people and transcripts.
        max_positions: Positions that a session may have.
    """

    codec: TokenizerCodec
    silence_token_id: int | None = None
    name: str = "null"
    max_positions: int = 1 << 30

    @property
    def probe_id(self) -> int:
        """What a probe embeds."""
        return self.turn_end_id if self.silence_token_id is None else self.silence_token_id

    @property
    def turn_end_id(self) -> int:
        """The token that ends a turn of a stream."""
        return self.codec.end_ids[0]

    @property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars over the tokenizer's vocabulary."""
        from braid.model.grammar import GrammarCompiler

        return GrammarCompiler(self.codec, silence_id=self.silence_token_id)


@dataclass
class _Session:
    topology: Topology
    copies: Mapping[str, int]
    group: PageGroup
    spans: dict[str, PageList]


class NullBackend:
    """Implements `Backend`.

    Args:
        model: The tokenizer and its special tokens.
        speak: Which token is drawn; None draws letters by a hash of the draw's seed, lane, turn and index.
        script: Instead, by stream: what it says in each turn, before its end token.
        kv_tokens, page_size: Of the pool.
        confidence: What every ask for confidence is told.
        fail: Called with every item before it is computed; what it raises is the item's error.
    """

    def __init__(
        self,
        model: NullModel,
        *,
        speak: Speak | None = None,
        script: Mapping[str, Sequence[str]] | None = None,
        kv_tokens: int = 1 << 20,
        page_size: int = 16,
        confidence: float = 1.0,
        fail: Callable[[Item], None] | None = None,
    ) -> None:
        self.model = model
        self.pool = PagePool(-(-kv_tokens // page_size), page_size)
        self.batches: list[list[tuple[int, str, int]]] = []
        """Of every step: session, kind and tokens of each item; kept only when `is_watched`."""
        self.is_watched = False
        self._sessions: dict[int, _Session] = {}
        self._letters = model.codec.encode("abcdefghijklmnopqrstuvwxyz")[0]
        self._script = script
        self._speak = speak or (self._scripted if script is not None else self._hashed)
        self._confidence = confidence
        self._fail = fail
        self._reserved = 0

    # ---- who there is

    def capabilities(self) -> Capabilities:
        """All but shared prefixes, verification and edits."""
        return Capabilities(prefixes=False, verify=False)

    def settle(self, topology: Topology) -> Topology:
        """As it is."""
        return topology

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Change who there is."""
        for op in ops:
            self._apply(op)
        return [0] * len(ops)

    def _apply(self, op: Op) -> None:
        match op:
            case Open(session, topology, copies):
                self._sessions[session] = self._open(topology, copies)
            case Fork(session, twin):
                source = self._sessions[session]
                self._sessions[twin] = copy = self._open(source.topology, source.copies)
                for name in [name for name in copy.spans if name not in source.spans]:
                    copy.spans.pop(name).release()
                for name, pages in source.spans.items():
                    copy.spans[name].release()
                    copy.spans[name] = pages.fork(group=copy.group)
            case Trim(session, span, length):
                self._sessions[session].spans[span].trim(length)
            case Drop(session):
                self._drop(self._sessions[session])
            case Close(session, None):
                gone = self._sessions.pop(session, None)
                for pages in () if gone is None else gone.spans.values():
                    pages.release()
            case Close(session, lane) if lane is not None:
                spans = self._sessions[session].spans
                for name in (lane, closer_of(lane)):
                    pages = spans.pop(name, None)
                    if pages is not None:
                        pages.release()
            case Recall() | Keep():
                return
            case Stash() | Splice():
                raise UnsupportedByBackend("this backend cannot edit the middle of a span")
            case _:
                raise AssertionError(f"unknown operation {op!r}")

    def _open(self, topology: Topology, copies: Mapping[str, int]) -> _Session:
        group = PageGroup()
        table = topology.lanes(copies)
        names = [lane.label for lane in table.lanes]
        if topology.decoding == "views":
            names += [closer_of(lane.label) for lane in table.lanes if table.spec(lane.index).is_output]
            names.append(PREAMBLE)
        return _Session(topology, copies, group, {name: self.pool.new_list(group) for name in names})

    def _drop(self, session: _Session) -> None:
        fresh = self._open(session.topology, session.copies)
        for pages in session.spans.values():
            pages.release()
        session.spans, session.group = fresh.spans, fresh.group

    # ---- room

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        """Promise room."""
        spans = self._sessions[session].spans
        pages = sum(spans[name].pages_needed(count) for name, count in needs)
        if pages:
            self.pool.require(pages)
            if not self.pool.can_allocate(pages + self._reserved):
                raise PoolFullError("the free pages are promised for this step")
            self._reserved += pages

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        """It has no keys."""
        raise UnsupportedByBackend("this backend has no keys that could be compared")

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> object:
        """It has no keys."""
        raise UnsupportedByBackend("this backend has no keys that could be kept")

    def deviation_between(self, found: object, right: object) -> float:
        """It has no keys."""
        raise UnsupportedByBackend("this backend has no keys that could be compared")

    def usage(self) -> Usage:
        """What the pool holds."""
        return Usage(self.pool.num_used, self.pool.num_pages, self.pool.page_size)

    def release_prefixes(self, num_pages: int) -> int:
        """There are none."""
        return 0

    def close(self) -> None:
        """Give everything back."""
        for session in list(self._sessions):
            self._apply(Close(session))

    # ---- the step

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        """Keep what is to be kept, and draw."""
        self._reserved = 0
        if self.is_watched:
            self.batches.append([(item.session, item.kind, item.num_tokens) for item in items])
        return [self._step(item) for item in items]

    def _step(self, item: Item) -> ItemResult:
        try:
            if self._fail is not None:
                self._fail(item)
        except Exception as error:  # noqa: BLE001 (reported as this item's own)
            return ItemResult(error=error)
        spans = self._sessions[item.session].spans
        answers: list[Answer] = []
        for entry in item.entries:
            if entry.keep:
                spans[entry.span].grow(len(entry.token_ids))
            if entry.ask is not None:
                answers.append(self._answer(entry.ask))
        return ItemResult(tuple(answers))

    def _answer(self, ask: Ask) -> Answer:
        token = self._speak(ask.draws[-1]) if ask.draws else -1
        return Answer(token, 0.0, (), 0.0, self._confidence)

    def _scripted(self, draw: Draw) -> int:
        assert self._script is not None
        turns = self._script.get(draw.lane.partition("#")[0], ())
        said = turns[draw.turn] if draw.turn < len(turns) else ""
        tokens = self.model.codec.encode(said)[0]
        silence = self.model.silence_token_id
        if not said and silence is not None and silence not in draw.banned:
            return silence
        return tokens[draw.index] if draw.index < len(tokens) else self.model.turn_end_id

    def _hashed(self, draw: Draw) -> int:
        text = f"{draw.seed}\x1f{draw.lane}\x1f{draw.turn}\x1f{draw.index}".encode()
        return self._letters[hashlib.blake2b(text, digest_size=1).digest()[0] % len(self._letters)]
