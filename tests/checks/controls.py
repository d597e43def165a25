"""Backends that are wrong in one way each, for the conformance suite to find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from braid.cache import PageList
from braid.engine.backend import (
    Ask,
    Capabilities,
    Cell,
    Close,
    Draw,
    Drop,
    Fork,
    Item,
    ItemResult,
    Op,
    Open,
    Splice,
    Trim,
)
from braid.engine.local import LocalBackend
from braid.engine.local.layout import RowLayout, ViewLayout
from braid.engine.local.span import Span
from braid.engine.local.spans import SessionSpans
from braid.engine.local.work import Feed, Sight, Work
from braid.model.plan import Plan
from braid.streams.lanes import LaneTable

# ---- where tokens stand, and what they read


class LaidOut(LocalBackend):
    """Lays every session out in its own way."""

    def lay_out(self, layout: Any) -> None:
        raise NotImplementedError

    def _apply(self, op: Op) -> int:
        done = super()._apply(op)
        if isinstance(op, Open):
            self.lay_out(self.sessions[op.session].layout)
        elif isinstance(op, Fork):
            self.lay_out(self.sessions[op.twin].layout)
        return done


class _FlatRows(RowLayout):
    def place(self, label: str, span: Span, times: Any, replays: Span | None = None) -> Any:
        return times * len(self._table) + self._table.index(label)


class FlatPositions(LaidOut):
    """Tokens of one row stand one behind the other, as in a flat sequence."""

    def lay_out(self, layout: Any) -> None:
        if isinstance(layout, RowLayout):
            layout.__class__ = _FlatRows


class _NosyTable(LaneTable):
    def sees_same_row(self, i: int, j: int) -> bool:
        return True


class WrongSameRow(LaidOut):
    """All tokens of a row see each other."""

    def lay_out(self, layout: Any) -> None:
        layout._table = _NosyTable(layout._table.topology, layout._table.lanes)


class _Unshifted(ViewLayout):
    def sights(self, feed: Feed) -> list[Sight]:
        return [replace(sight, shifts=sight.shifts * 0) for sight in super().sights(feed)]


class ForgetsShifts(LaidOut):
    """In views a token is read where it is stored, and not where the reader sees it."""

    def lay_out(self, layout: Any) -> None:
        if isinstance(layout, ViewLayout):
            layout.__class__ = _Unshifted


class _LeakyTable(LaneTable):
    def reads(self, i: int, j: int) -> bool:
        pair = self.lanes[i].stream, self.lanes[j].stream
        return pair == ("thought", "document") or super().reads(i, j)


class LetsThoughtsRead(LaidOut):
    """A thought reads the document, whoever forbids it."""

    def lay_out(self, layout: Any) -> None:
        layout._table = _LeakyTable(layout._table.topology, layout._table.lanes)


class KeepsProbes(LocalBackend):
    """Silence stays in the cache, and is read."""

    def _assemble(self, item: Item) -> Work | BaseException:
        kept = [e if e.keep or e.replays else e._replace(keep=True) for e in item.entries]
        return super()._assemble(item._replace(entries=kept))


# ---- batches


class OneStreamForACrowd(LocalBackend):
    """When three sessions or more are in a step, all tokens get the first stream's embedding."""

    _is_crowded = False

    def _compute(self, pairs: Sequence[tuple[Item, Work]]) -> list[ItemResult]:
        self._is_crowded = len(pairs) > 2
        return super()._compute(pairs)

    def _forward(self, plan: Plan, feeds: Sequence[Feed]) -> Tensor:
        streams = [feed.span.stream for feed in feeds]
        for feed in feeds:
            feed.span.stream *= not self._is_crowded
        logits_NV = super()._forward(plan, feeds)
        for feed, stream in zip(feeds, streams, strict=True):
            feed.span.stream = stream
        return logits_NV


class ForgetsShiftsBesideRows(LocalBackend):
    """Views are computed without shifts in steps that have rows too."""

    _is_mixed = False

    def _compute(self, pairs: Sequence[tuple[Item, Work]]) -> list[ItemResult]:
        self._is_mixed = len({self.sessions[item.session].topology.decoding for item, _ in pairs}) > 1
        return super()._compute(pairs)

    def _plan(self, feeds: Sequence[Feed], sights: Sequence[Sight]) -> Plan:
        if self._is_mixed:
            sights = [replace(sight, shifts=sight.shifts * 0) for sight in sights]
        return super()._plan(feeds, sights)


# ---- lives


class _Writable(PageList):
    __slots__ = ()

    def _must_copy_last(self) -> bool:
        return False


class ForkSharesWritablePages(LocalBackend):
    """Both sessions write to the page that they share."""

    def _apply(self, op: Op) -> int:
        done = super()._apply(op)
        if isinstance(op, Fork):
            for session in (op.session, op.twin):
                for span in self.sessions[session]:
                    span.pages.__class__ = _Writable
        return done


class DropFreesNothing(LocalBackend):
    """A session begins anew, and its pages are nobody's."""

    def _apply(self, op: Op) -> int:
        if isinstance(op, Drop):
            old = self.sessions[op.session]
            self.sessions[op.session] = SessionSpans(self.cache, old.topology, old.copies, old.namespace)
            self.lost = old
            return 0
        return super()._apply(op)


class TrimsTooLittle(LocalBackend):
    """One token more than was said is kept."""

    def _apply(self, op: Op) -> int:
        if isinstance(op, Trim):
            op = op._replace(length=min(op.length + 1, len(self._span(op.session, op.span))))
        return super()._apply(op)


class RecallsLessThanItSays(LocalBackend):
    """The last of the tokens that are said to be held is not."""

    def _recall(self, spans: SessionSpans, cells: Sequence[Cell]) -> int:
        found = super()._recall(spans, cells)
        if found:
            span = spans.named[cells[found - 1].span]
            span.trim(len(span) - 1)
        return found


class SharesBetweenTenants(LocalBackend):
    """The salt is not part of the key."""

    def _apply(self, op: Op) -> int:
        return super()._apply(op._replace(salt="") if isinstance(op, Open) else op)


class CloseKeepsLanes(LocalBackend):
    """A stream that is closed is read no more, and stays in the cache."""

    def _apply(self, op: Op) -> int:
        if isinstance(op, Close) and op.lane is not None:
            spans = self.sessions[op.session]
            spans.lanes[spans.table.index(op.lane)] = None
            spans.named.pop(op.lane, None)
            return 0
        return super()._apply(op)


# ---- drafts


class AcceptsOneTooMany(LocalBackend):
    """Of a draft that is wrong somewhere, the first wrong token is accepted."""

    def _compute(self, pairs: Sequence[tuple[Item, Work]]) -> list[ItemResult]:
        results = super()._compute(pairs)
        for index, (item, _) in enumerate(pairs):
            if item.kind == "verify":
                most = len(item.entries[0].token_ids) - 1
                answers = [a._replace(accepted=min(a.accepted + 1, most)) for a in results[index].answers]
                results[index] = ItemResult(tuple(answers))
        return results


class KeepsWhatItScored(LocalBackend):
    """What was scored stays in the cache."""

    def _forget_rejected(self, item: Item, *rest: Any) -> None:
        if item.kind != "score":
            super()._forget_rejected(item, *rest)


# ---- draws


class Redrawing(LocalBackend):
    """Draws in another way than it is asked to."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        raise NotImplementedError

    def _own(self, item: Item, num_items: int) -> Item:
        def changed(ask: Ask | None) -> Ask | None:
            draws = () if ask is None else tuple(self.redraw(draw, num_items) for draw in ask.draws)
            return None if ask is None else ask._replace(draws=draws)

        return item._replace(entries=[entry._replace(ask=changed(entry.ask)) for entry in item.entries])

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        return super().step([self._own(item, len(items)) for item in items])


class NoiseOfTheBatch(Redrawing):
    """The more sessions there are in a step, the other the noise."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        return replace(draw, seed=draw.seed + num_items)


class OneNoiseForAllTurns(Redrawing):
    """Every turn has the same noise."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        return replace(draw, turn=0)


class IgnoresBans(Redrawing):
    """What may not be drawn is drawn."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        return replace(draw, banned=())


class IgnoresMinP(Redrawing):
    """Unlikely classes are not left out."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        return replace(draw, spec=draw.spec.model_copy(update={"min_p": None}))


class TakesHalfTheTemperature(Redrawing):
    """The temperature is too low by half."""

    def redraw(self, draw: Draw, num_items: int) -> Draw:
        return replace(draw, spec=draw.spec.model_copy(update={"temperature": draw.spec.temperature / 2}))


# ---- room, failures, refusals


class PromisesTwice(LocalBackend):
    """What was promised to others in this step is promised again."""

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        self._reserved_pages = 0
        super().reserve(session, needs)


class FailsTogether(LocalBackend):
    """When one item fails, all do."""

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        results = super().step(items)
        error = next((result.error for result in results if result.error is not None), None)
        return results if error is None else [ItemResult(error=error)] * len(items)


class TakesEdits(LocalBackend):
    """What it cannot do is done without a word, and without effect."""

    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), edits=False)

    def _apply(self, op: Op) -> int:
        return 0 if isinstance(op, Splice) else super()._apply(op)


MAIN: dict[type[LocalBackend], set[str]] = {
    FlatPositions: {"rows_equal_dense"},
    WrongSameRow: {"rows_equal_dense", "views_equal_dense"},
    KeepsProbes: {"rows_equal_dense", "probes_keep_nothing"},
    ForkSharesWritablePages: {"forked_equals_recomputed"},
    DropFreesNothing: {"refilled_equals_kept"},
    RecallsLessThanItSays: {"recalled_equals_computed"},
    AcceptsOneTooMany: {"verify_equals_decoding"},
    # Drafts survive only because their noise is that of one-by-one decoding, which here it is not.
    NoiseOfTheBatch: {"noise_is_keyed", "verify_equals_decoding"},
}
"""What is wrong, and the checks that must say so; all others must not."""

MORE: dict[type[LocalBackend], set[str]] = {
    ForgetsShifts: {"views_equal_dense"},
    OneStreamForACrowd: {"batched_equals_alone"},
    ForgetsShiftsBesideRows: {"mixed_equals_alone"},
    LetsThoughtsRead: {"others_change_no_bit"},
    TrimsTooLittle: {"trimmed_equals_fresh"},
    SharesBetweenTenants: {"recalled_equals_computed"},
    KeepsWhatItScored: {"score_equals_decoding"},
    IgnoresBans: {"draws_obey"},
    IgnoresMinP: {"draws_obey"},
    TakesHalfTheTemperature: {"draws_obey"},
    OneNoiseForAllTurns: {"noise_is_keyed"},
    PromisesTwice: {"full_pool_refuses"},
    FailsTogether: {"failures_stay_alone"},
    CloseKeepsLanes: {"close_frees_everything"},
    TakesEdits: {"excluded_is_refused"},
}
"""More of the same, for what the first leave out."""
