"""Our own backend: one model and one cache in this process.

    assemble()       entries → feeds and sights, per item            (numpy)
    plan()           the sights of all items as one plan             (numpy → tensors)
    Model.forward()  one pass over all new tokens
    sample()         one draw an ask

Closed prefixes are shared through a radix tree, whose key holds all that decides keys and values: the weights, the
stream embeddings, the topology's reads, patterns, same-row and silence rules, and a tenant's salt.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from braid.cache import KVCache, PrefixPath, PrefixTree, namespace
from braid.engine.backend import (
    Answer,
    Ask,
    Capabilities,
    Cell,
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
)
from braid.engine.local.assembly import assemble
from braid.engine.local.sampler import sample
from braid.engine.local.span import Span
from braid.engine.local.spans import SessionSpans
from braid.engine.local.work import Feed, Sight, Work
from braid.errors import PoolFullError, UnsupportedByBackend
from braid.model.checkpoint import reconcile
from braid.model.model import Model
from braid.model.moving import Excerpt, deviation, excerpt, move_tokens
from braid.model.plan import Plan
from braid.model.reads import SpanRead
from braid.streams.patterns import Striped
from braid.streams.topology import Topology

__all__ = ["LocalBackend"]

Ints = NDArray[np.int64]


class LocalBackend:
    """Computes with one `Model`, on the caller's thread.

    Args:
        model: The network.
        kv_tokens: Tokens that the cache must hold; None takes what the model's context allows, at most 16,384.
        page_size: Tokens a page.
        prefix_share: The largest share of the pages that prefixes without a session may hold; 0 shares nothing.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_tokens: int | None = None,
        page_size: int = 16,
        prefix_share: float = 0.5,
    ) -> None:
        self.model = model
        if kv_tokens is None:
            kv_tokens = min(model.architecture.max_positions, 16_384)
        self.cache: KVCache = model.new_cache(kv_tokens, page_size)
        self.sessions: dict[int, SessionSpans] = {}
        max_pages = int(prefix_share * self.cache.pool.num_pages)
        self.prefixes = PrefixTree(self.cache.pool, max_pages=max_pages) if max_pages else None
        self.num_computed = 0
        """New tokens of all forwards so far, probes included."""
        self.network_s = 0.0
        """Seconds in the network so far; all else of a step is planning, drawing and books."""
        self._reserved_pages = 0

    # ---- who there is

    def capabilities(self) -> Capabilities:
        """All; views of several outputs, and edits, where the model's positions can be shifted."""
        can_shift = self.model.architecture.shift_refusal is None
        return Capabilities(views=can_shift, edits=can_shift, prefixes=self.prefixes is not None)

    def settle(self, topology: Topology) -> Topology:
        """The topology, completed by what the checkpoint was trained with."""
        return topology if self.model.trained is None else reconcile(self.model.trained, topology)

    def apply(self, ops: Sequence[Op]) -> list[int]:
        """Change who there is, one operation after another."""
        return [self._apply(op) for op in ops]

    def _apply(self, op: Op) -> int:
        match op:
            case Open(session, topology, copies, salt):
                self._open(session, topology, copies, salt)
            case Fork(session, twin):
                self.sessions[twin] = self.sessions[session].fork()
            case Trim(session, span, length):
                self._span(session, span).trim(length)
            case Drop(session):
                self.sessions[session].drop()
            case Close(session, None):
                gone = self.sessions.pop(session, None)
                if gone is not None:
                    gone.release()
            case Close(session, lane) if lane is not None:
                self.sessions[session].close_lane(lane)
            case Recall(session, cells):
                return self._recall(self.sessions[session], cells)
            case Keep(session, cells):
                return self._keep(self.sessions[session], cells)
            case Stash(session, span):
                self.sessions[session].stash(span)
            case Splice(session, span, start, stop, times):
                self._splice(self.sessions[session], span, start, stop, times)
            case _:
                raise AssertionError(f"unknown operation {op!r}")
        return 0

    def _open(self, session: int, topology: Topology, copies: Mapping[str, int], salt: str) -> None:
        assert session not in self.sessions, f"session {session} is open already"
        if (
            topology.decoding == "views"
            and len(topology.output_names) + sum(copies.values()) - len(copies) > 1
        ):
            self.model.architecture.require_shifts()
        key = namespace(self._weights_key(), _rules_key(topology, copies), salt.encode())
        self.sessions[session] = SessionSpans(self.cache, topology, copies, key)

    def _weights_key(self) -> bytes:
        """Which weights compute: a change in place, such as a merged adapter, changes it."""
        digest = hashlib.blake2b(digest_size=16)
        for name, weight in self.model.hf.named_parameters():
            identity = f"{name}\x1f{weight.data_ptr()}\x1f{weight._version}\x1f{tuple(weight.shape)}"  # noqa: SLF001
            digest.update(identity.encode())
        if self.model.stream_embeddings_HD is not None:
            digest.update(self.model.stream_embeddings_HD.float().cpu().numpy().tobytes())
        return digest.digest()

    def _span(self, session: int, name: str) -> Span:
        return self.sessions[session].named[name]

    # ---- edits

    def _splice(self, spans: SessionSpans, name: str, start: int, stop: int, times: Sequence[int]) -> None:
        if self.model.architecture.shift_refusal is not None:
            raise UnsupportedByBackend(
                f"this model cannot take over what stands behind an edit: {self.model.architecture.shift_refusal}; "
                "trim the span, and go on from there"
            )
        span, old = spans.named[name], spans.stashed[name]
        positions = span.base + len(span) + np.arange(stop - start, dtype=np.int64)
        distance = int(positions[0] - old.positions[start])
        slots = span.append(positions, np.asarray(times, dtype=np.int64))
        move_tokens(self.model.architecture, self.cache, old.pages.slots(start, stop), slots, distance)

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        """How far the keys and values of tokens are from those that were put aside."""
        now, before = self._span(session, span), self.sessions[session].stashed[span]
        return deviation(
            self.model.architecture,
            self.cache,
            before.pages.slots(old, old + stop - start),
            now.pages.slots(start, stop),
            int(now.positions[start] - before.positions[old]),
        )

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> Excerpt:
        """Copies of keys and values of a few tokens."""
        named = self.sessions[session].named
        slots = np.concatenate([named[span].pages.slots(index, index + 1) for span, index in places])
        positions = np.array([named[span].positions[index] for span, index in places], dtype=np.int64)
        return excerpt(self.model.architecture, self.cache, slots, positions)

    def deviation_between(self, found: object, right: object) -> float:
        """How far the keys and values of one excerpt are from those of another one."""
        assert isinstance(found, Excerpt)
        assert isinstance(right, Excerpt)
        return found.deviation(self.model.architecture, right)

    # ---- room

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        """Promise room for so many more tokens of these spans, until the next step is over."""
        named = self.sessions[session].named
        pages = sum(named[name].pages.pages_needed(count) for name, count in needs if count)
        if pages:
            pool = self.cache.pool
            pool.require(pages)
            if not pool.can_allocate(pages + self._reserved_pages):
                raise PoolFullError(
                    f"the key-value pool is full: {pages} pages needed, and all but "
                    f"{pool.num_free - self._reserved_pages} of {pool.num_free} free ones are promised for this step"
                )
            self._reserved_pages += pages

    def usage(self) -> Usage:
        """What the cache holds."""
        pool = self.cache.pool
        usage = Usage(pool.num_used, pool.num_pages, pool.page_size, self.cache.bytes_per_token)
        if self.prefixes is None:
            return usage
        stats = self.prefixes.stats
        return Usage(
            pool.num_used,
            pool.num_pages,
            pool.page_size,
            self.cache.bytes_per_token,
            prefix_tokens=self.prefixes.num_tokens,
            prefix_lookups=stats.lookups,
            prefix_hits=stats.hits,
            prefix_hit_tokens=stats.hit_tokens,
            prefix_evicted_tokens=stats.evicted_tokens,
        )

    def release_prefixes(self, num_pages: int) -> int:
        """Forget shared prefixes, least recently used first."""
        if self.prefixes is None or not num_pages:
            return 0
        # More than what nobody else uses is asked of the tree only when there is nothing left to spare: it would let go
        # of everything, so that no session owes a copy of a page to it.
        spare = self.prefixes.num_evictable
        if spare:
            return self.prefixes.evict(min(num_pages, spare))
        held = self.prefixes.num_pages
        self.prefixes.clear()
        return held

    def close(self) -> None:
        """Give everything back."""
        for session in list(self.sessions):
            self._apply(Close(session))
        if self.prefixes is not None:
            self.prefixes.clear()

    # ---- prefixes

    def _recall(self, spans: SessionSpans, cells: Sequence[Cell]) -> int:
        if self.prefixes is None or not cells:
            return 0
        path, names = _path(spans, cells)
        match = self.prefixes.match(spans.namespace, path)
        held = sum(len(spans.named[name]) for name in names.values())
        if match.length <= held:
            return held
        times = path.steps[: match.length]
        for number, pages in match.fork(spans.group).items():
            own = times[path.lists[: match.length] == number]
            span = spans.named[names[number]]
            span.adopt(pages, own, own)
        return match.length

    def _keep(self, spans: SessionSpans, cells: Sequence[Cell]) -> int:
        if self.prefixes is None or not cells:
            return 0
        path, names = _path(spans, cells)
        lists = {number: spans.named[name].pages for number, name in names.items()}
        return self.prefixes.insert(spans.namespace, path, lists)

    # ---- the step

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        """One forward for all items."""
        self._reserved_pages = 0
        marks = [self._lengths(item) for item in items]
        works: list[Work | BaseException] = [self._assemble(item) for item in items]
        ready = [index for index, work in enumerate(works) if isinstance(work, Work) and work.feeds]
        results = [
            ItemResult(error=work) if isinstance(work, BaseException) else ItemResult() for work in works
        ]
        try:
            answers = self._compute([(items[i], works[i]) for i in ready])  # pyright: ignore[reportArgumentType]
        except Exception:  # noqa: BLE001 (whose fault it was shows when each computes alone)
            # Slots are assigned by now, so that trying again is safe.
            answers = [self._alone(items[i], works[i]) for i in ready]  # pyright: ignore[reportArgumentType]
        for index, result in zip(ready, answers, strict=True):
            results[index] = result
        for item, lengths, result in zip(items, marks, results, strict=True):
            self._forget_rejected(item, lengths, result)
        return results

    def _lengths(self, item: Item) -> dict[str, int]:
        if item.kind not in ("verify", "score"):
            return {}
        return {entry.span: len(self._span(item.session, entry.span)) for entry in item.entries}

    def _assemble(self, item: Item) -> Work | BaseException:
        spans = self.sessions[item.session]
        try:
            return assemble(
                spans.layout,
                spans.named.__getitem__,
                item.entries,
                asks_all=item.kind in ("verify", "score"),
            )
        except Exception as error:  # noqa: BLE001 (reported as this item's own, so that the others go on)
            return error

    def _alone(self, item: Item, work: Work) -> ItemResult:
        try:
            return self._compute([(item, work)])[0]
        except Exception as error:  # noqa: BLE001 (reported as this item's own)
            return ItemResult(error=error)

    def _compute(self, pairs: Sequence[tuple[Item, Work]]) -> list[ItemResult]:
        if not pairs:
            return []
        feeds = [feed for _, work in pairs for feed in work.feeds]
        plan = self._plan(feeds, [sight for _, work in pairs for sight in work.sights])
        began = time.perf_counter()
        logits_NV = self._forward(plan, feeds)
        self.network_s += time.perf_counter() - began
        self.num_computed += sum(len(feed.token_ids) for feed in feeds)
        asked: list[_Asked] = []
        row = 0
        for feed in feeds:
            if feed.ask is not None:
                count = len(feed.token_ids) if feed.asks_all else 1
                asked.append(_Asked(feed, feed.ask, row, count))
                row += count
        drawn = iter(_draw(logits_NV, asked))
        results: list[ItemResult] = []
        for item, work in pairs:
            found = [next(drawn) for feed in work.feeds if feed.ask is not None]
            results.append(ItemResult(tuple(_answer(item, logits_NV, one) for one in found)))
        return results

    def _plan(self, feeds: Sequence[Feed], sights: Sequence[Sight]) -> Plan:
        starts = np.cumsum([0, *(len(feed.token_ids) for feed in feeds)])
        first = {id(feed): int(start) for feed, start in zip(feeds, starts, strict=False)}
        return self.model.plan(
            self.cache,
            positions=np.concatenate([feed.positions for feed in feeds]),
            slots=np.concatenate([feed.slots for feed in feeds]),
            reads=[_span_read(sight, first[id(sight.feed)]) for sight in sights],
        )

    def _forward(self, plan: Plan, feeds: Sequence[Feed]) -> Tensor:
        predict: list[int] = []
        start = 0
        for feed in feeds:
            stop = start + len(feed.token_ids)
            if feed.ask is not None:
                predict += range(start, stop) if feed.asks_all else [stop - 1]
            start = stop
        return self.model.forward(
            plan,
            token_ids=np.concatenate([feed.token_ids for feed in feeds]),
            positions=np.concatenate([feed.positions for feed in feeds]),
            streams=np.concatenate([np.full(len(feed.token_ids), feed.span.stream) for feed in feeds]),
            predict=np.asarray(predict, dtype=np.int64),
        )

    def _forget_rejected(self, item: Item, lengths: Mapping[str, int], result: ItemResult) -> None:
        """Of drafts, what was not accepted; of what was scored, everything; of what failed, everything too."""
        if not lengths:
            return
        accepted = iter(result.answers)
        for entry in item.entries:
            length = lengths[entry.span]
            if item.kind == "verify" and result.error is None:
                answer = next(accepted) if entry.ask is not None else None
                length += len(entry.token_ids) if answer is None else 1 + answer.accepted
            self._span(item.session, entry.span).trim(length)


class _Asked(NamedTuple):
    """A feed that asks, and where its logits lie."""

    feed: Feed
    ask: Ask
    row: int
    num_rows: int


class _Drawn(NamedTuple):
    asked: _Asked
    tokens: tuple[int, ...]


def _draw(logits_NV: Tensor, asked: Sequence[_Asked]) -> list[_Drawn]:
    """Draw for all who ask, in one call."""
    rows: list[int] = []
    draws: list[Draw] = []
    for one in asked:
        draws += one.ask.draws
        rows += range(one.row + one.num_rows - len(one.ask.draws), one.row + one.num_rows)
    whole = len(rows) == len(logits_NV)
    index = torch.tensor(rows, dtype=torch.long, device=logits_NV.device)
    tokens = iter(sample(logits_NV if whole else logits_NV[index], draws))
    return [_Drawn(one, tuple(next(tokens) for _ in one.ask.draws)) for one in asked]


def _answer(item: Item, logits_NV: Tensor, drawn: _Drawn) -> Answer:
    one, tokens = drawn
    ask = one.ask
    if item.kind == "score":
        log_LV = torch.log_softmax(logits_NV[one.row : one.row + one.num_rows].double(), -1)
        said = torch.from_numpy(one.feed.token_ids[1:]).to(log_LV.device)
        return Answer(logprob=float(log_LV[:-1].gather(1, said[:, None]).sum()))
    accepted = 0
    if item.kind == "verify":
        candidates = [int(token) for token in one.feed.token_ids[1:]]
        while accepted < len(candidates) and tokens[accepted] == candidates[accepted]:
            accepted += 1
    token = tokens[accepted if item.kind == "verify" else -1] if tokens else -1
    if not (ask.logprobs or ask.entropy or ask.confidence):
        return Answer(token, accepted=accepted)
    row = one.row + (accepted if item.kind == "verify" else one.num_rows - 1)
    log_V = torch.log_softmax(logits_NV[row].double(), -1)
    top = log_V.topk(min(max(ask.logprobs, 1), len(log_V)))
    named = tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    return Answer(
        token,
        logprob=float(log_V[token]) if token >= 0 else 0.0,
        top=named[: ask.logprobs],
        entropy=float(-(log_V.exp() * log_V).nansum()) if ask.entropy else 0.0,
        confidence=float(top.values[0].exp()),
        accepted=accepted,
    )


def _span_read(sight: Sight, first: int) -> SpanRead:
    return SpanRead(
        queries=first + np.arange(len(sight.stop), dtype=np.int64),
        pages=sight.span.pages,
        positions=sight.span.positions,
        start=sight.start,
        stop=sight.stop,
        shifts=sight.shifts,
        stride=sight.pattern.stride if isinstance(sight.pattern, Striped) else 1,
        offset=sight.pattern.offset if isinstance(sight.pattern, Striped) else 0,
        own=sight.span is sight.feed.span and not sight.feed.is_probe,
    )


def _rules_key(topology: Topology, copies: Mapping[str, int]) -> bytes:
    """Who reads whom and when: all of a topology that decides keys and values."""
    pairs = [
        f"{reader}<{read}:{topology.pattern(reader, read)}"
        for reader in topology.streams
        for read in topology.readable(reader)
    ]
    own = [f"{reader}={','.join(topology.reads.get(reader, ()))}" for reader in topology.streams]
    rules = [topology.decoding, topology.same_row, topology.silence, *topology.streams, *pairs, *own]
    rules += [f"{name}*{count}" for name, count in sorted(copies.items())]
    return "\x1f".join(rules).encode()


def _path(spans: SessionSpans, cells: Sequence[Cell]) -> tuple[PrefixPath, dict[int, str]]:
    """The cells as a path through the tree, and the span of each of its lists."""
    number = {name: spans.number(name) for name in dict.fromkeys(cell.span for cell in cells)}
    path = PrefixPath(
        steps=np.array([cell.step for cell in cells], dtype=np.int64),
        lists=np.array([number[cell.span] for cell in cells], dtype=np.int64),
        tokens=np.array([cell.token for cell in cells], dtype=np.int64),
    )
    return path, {index: name for name, index in number.items()}
