"""Several edits at once: between them all is taken over, moved to where it stands, and counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.backend import Op, Splice
from braid.engine.editing.diff import matching_blocks
from braid.engine.editing.splicing import LEAST_SPLICE, WINDOWS, Place, regions_of
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import LedgerLine
from braid.model.moving import moved_tokens
from tests.engine.editing.test_editable import aloud, check_same, core_for, finish, fresh, plain
from tests.engine.harness import step
from tests.properties import examples

REPAIR = WINDOWS["repair"]
LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
OTHERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Of what is written into a text; it has none of them, so that it is clear what has been kept."""


def prose(rng: random.Random, length: int) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(length))


def rewritten(rng: random.Random, text: str, num_edits: int) -> tuple[str, list[tuple[int, int]]]:
    """The text with so many replacements, and what was kept of it: first and last place."""
    cuts = sorted(rng.sample(range(len(text)), 2 * num_edits))
    kept: list[tuple[int, int]] = []
    result, at = "", 0
    for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
        stop = min(stop, start + rng.randint(0, 5))
        kept.append((at, start))
        result += text[at:start] + "".join(rng.choice(OTHERS) for _ in range(rng.randint(1, 5)))
        at = stop
    kept.append((at, len(text)))
    return result + text[at:], kept


class Watched:
    """One session of a core, and what its cache is asked to take over."""

    def __init__(self, topology: Any = None, bound: float = 9.0, **settings: Any) -> None:
        self.topology = topology or plain()
        self.core = core_for(self.topology, **settings)
        self.conversation = self.core.open(self.topology, seed=9, drift_bound=bound, ledger=[])
        self.spliced: list[tuple[str, int, int]] = []
        self.lines: list[Any] = []
        apply = self.core.recording.apply

        def listen(ops: Sequence[Op]) -> list[int]:
            self.spliced += [(op.span, op.start, op.stop) for op in ops if isinstance(op, Splice)]
            return apply(ops)

        self.core.recording.apply = listen  # pyright: ignore[reportAttributeAccessIssue]

    def snapshot(self, texts: str | dict[str, str], mode: str = "repair", steps: int = 12) -> None:
        texts = {"user": texts} if isinstance(texts, str) else texts
        self.core.do(self.conversation, "snapshot", texts, mode)
        for _ in range(steps):
            step(self.core, self.conversation)

    def commit(self) -> None:
        self.core.do(self.conversation, "commit")
        for _ in range(60):
            if self.conversation.edit is None:
                return
            step(self.core, self.conversation)
        raise AssertionError("it is not released")

    def check_places(self, texts: dict[str, str]) -> None:
        """In the first layer keys and values are those of the token in its place, whatever was before it."""
        other = core_for(self.topology)
        expected = other.open(self.topology, seed=9)
        other.do(expected, "tell", texts)
        for core, conversation in ((self.core, self.conversation), (other, expected)):
            while any(lane.queue for lane in conversation.stage.inputs):
                step(core, conversation)
        for label in texts:
            base = other.recording.sessions[expected.number].named[label].base
            for found, exact in zip(
                first_layer(self.core, self.conversation, label, base),
                first_layer(other, expected, label, base),
                strict=True,
            ):
                assert found.shape == exact.shape
                assert float((found - exact).abs().max()) < 1e-4, label

    def tokens(self, label: str) -> str:
        rows = self.conversation.transcript.rows
        return bytes([row.cells[label].token for row in rows if label in row.cells]).decode()


def first_layer(
    core: RecordingCore, conversation: Conversation, label: str, base: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys, as if the span began at a position, and values."""
    span = core.recording.sessions[conversation.number].named[label]
    assert span.positions.tolist() == list(range(span.base, span.base + len(span)))
    architecture = core.model.architecture
    slots = np.asarray(span.pages.slots(0, len(span)))
    return moved_tokens(architecture, core.cache, 0, slots, base - span.base)


# ---- what is planned


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9), window=st.integers(1, 12))
def test_what_is_computed_and_what_is_taken_over_make_the_new_input(seed: int, window: int) -> None:
    rng = random.Random(seed)
    old = prose(rng, rng.randint(1, 400))
    new = old
    for _ in range(rng.randint(0, 6)):
        place = rng.randint(0, len(new))
        new = new[:place] + prose(rng, rng.randint(0, 9)) + new[place + rng.randint(0, 9) :]
    done = rng.randint(0, len(new))
    stop = max(done, len(new) - 1)
    places = [Place("user", index) for index in range(len(old))]
    blocks = matching_blocks(old, new, window + LEAST_SPLICE)
    at, last = done, -1
    for region in regions_of(places, blocks, done, stop, window):
        assert region.before >= region.window == window, "the whole window is computed"
        at += region.before
        (part,) = region.parts()
        assert part.length >= LEAST_SPLICE
        assert part.start > last, "in the order in which it was"
        assert old[part.start : part.start + part.length] == new[at : at + part.length]
        assert region.edge.start + region.edge.length == part.start
        at, last = at + part.length, part.start + part.length - 1
        assert at <= stop, "the last token is computed"


# ---- what is taken over


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_between_edits_exactly_what_was_kept_is_taken_over(seed: int) -> None:
    rng = random.Random(seed)
    text = prose(rng, rng.randint(100, 500))
    changed, kept = rewritten(rng, text, rng.randint(1, 4))
    watched = Watched()
    watched.snapshot(text)
    before = watched.conversation.counts.computed  # pyright: ignore[reportOptionalMemberAccess]
    watched.snapshot(changed)
    expected: list[tuple[str, int, int]] = []
    for number, (start, stop) in enumerate(kept):
        stop -= stop == len(text)
        if number and stop - start >= REPAIR + LEAST_SPLICE:
            expected.append(("user", start + REPAIR, stop))
    assert watched.spliced == expected
    num_over = sum(stop - start for _, start, stop in expected)
    watched.commit()
    watched.check_places({"user": changed})
    counts = watched.conversation.counts
    assert counts is not None
    assert counts.fallbacks == 0
    assert counts.repaired == REPAIR * len(expected)
    assert (counts.drift is None) == (not expected)
    assert counts.read == counts.reused == len(changed)
    common = kept[0][1]
    # Besides the input, the answer's closer and tokens are computed once more.
    answer = counts.computed - before - (len(changed) - common - num_over)
    assert 0 <= answer <= 64
    finish(watched.core, watched.conversation)
    assert watched.tokens("user") == changed


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9), mode=st.sampled_from(["repair", "reuse"]))
def test_without_any_drift_allowed_all_is_as_in_a_fresh_session(seed: int, mode: str) -> None:
    rng = random.Random(seed)
    text = prose(rng, rng.randint(100, 400))
    watched = Watched(bound=0.0)
    watched.snapshot(text, mode)
    for _ in range(rng.randint(1, 2)):
        text, _ = rewritten(rng, text, rng.randint(1, 3))
        watched.snapshot(text, mode, steps=rng.choice((1, 2, 12)))
    watched.commit()
    finish(watched.core, watched.conversation)
    assert watched.spliced == []
    check_same(watched.core, watched.conversation, *fresh(plain(), {"user": text}))


def test_two_edits_far_apart_cost_two_windows() -> None:
    text = prose(random.Random(1), 1200)
    changed = text[:100] + "ONE" + text[100:1000] + "TWO" + text[1000:]
    watched = Watched(kv_tokens=4096)
    watched.snapshot(text)
    read = watched.core.recording.num_computed
    watched.snapshot(changed, steps=3)
    watched.core.do(watched.conversation, "commit")
    computed = watched.core.recording.num_computed - read
    said = watched.conversation.edit.num_drafted if watched.conversation.edit is not None else 0
    closer = watched.conversation.stage.output("output").closer_len
    assert len(watched.spliced) == 2
    assert computed <= 2 * REPAIR + 6 + 1 + closer + said


@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_edits_of_two_streams_at_once(seed: int) -> None:
    rng = random.Random(seed)
    watched = Watched(aloud())
    texts = {"user": prose(rng, 200), "document": prose(rng, 250)}
    watched.snapshot(texts)
    changed = {label: rewritten(rng, text, 2)[0] for label, text in texts.items()}
    watched.snapshot(changed)
    watched.commit()
    watched.check_places(changed)
    finish(watched.core, watched.conversation)
    assert {label: watched.tokens(label) for label in changed} == changed


def test_a_window_that_ends_at_the_end_of_a_stream_is_compared_within_the_other() -> None:
    """The last token of the first stream is in the window, so that all of the second is taken over."""
    rng = random.Random(2)
    texts = {"user": prose(rng, 100), "document": prose(rng, 100)}
    watched = Watched(aloud())
    watched.snapshot(texts)
    for cut in (30, 33, 40):
        texts = {**texts, "user": texts["user"][: 100 - cut] + "X" + texts["user"][100 - cut :]}
        watched.snapshot(texts)
    watched.commit()
    watched.check_places(texts)
    assert any(label == "document" for label, _, _ in watched.spliced)


# ---- what comes in between


@pytest.mark.parametrize("topology", [plain(), aloud()], ids=["plain", "aloud"])
@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_newer_snapshots_and_a_commit_in_the_middle(topology: Any, seed: int) -> None:
    """Whenever they come, each token stands in its place, and a turn in `exact` mode is that of a fresh session."""
    rng = random.Random(seed)
    watched = Watched(topology)
    streams = topology.input_names
    texts = {stream: prose(rng, rng.randint(100, 250)) for stream in streams}
    watched.snapshot(texts)
    for _ in range(rng.randint(1, 5)):
        stream = rng.choice(streams)
        texts = {**texts, stream: rewritten(rng, texts[stream], rng.randint(1, 3))[0]}
        mode = rng.choice(("repair", "repair", "reuse"))
        watched.snapshot({stream: texts[stream]}, mode, steps=rng.choice((0, 1, 2, 3, 12)))
        if rng.random() < 0.1:
            watched.core.evict(watched.conversation)
    is_exact = rng.random() < 0.5
    if is_exact:
        watched.snapshot(texts, "exact", steps=0)
    watched.commit()
    watched.check_places(texts)
    counts = watched.conversation.counts
    assert counts is not None
    assert counts.read == sum(map(len, texts.values())) == counts.reused + counts.recomputed
    finish(watched.core, watched.conversation)
    assert not watched.core.recording.sessions[watched.conversation.number].stashed
    if is_exact:
        assert counts.drift is None
        assert counts.repaired == 0
        check_same(watched.core, watched.conversation, *fresh(topology, texts))


def test_exact_while_nothing_is_taken_over_yet_takes_nothing_over() -> None:
    rng = random.Random(4)
    text = prose(rng, 200)
    changed = text[:20] + "X" + text[20:100] + "Y" + text[100:]
    watched = Watched()
    watched.snapshot(text)
    watched.snapshot(changed, steps=1)
    watched.snapshot(changed, "exact")
    watched.commit()
    finish(watched.core, watched.conversation)
    assert watched.spliced == []
    check_same(watched.core, watched.conversation, *fresh(plain(), {"user": changed}))


@pytest.mark.parametrize("steps", range(7))
def test_a_ledger_leads_through_several_edits(steps: int) -> None:
    rng = random.Random(5)
    text = prose(rng, 300)
    changed = text[:40] + "X" + text[40:120] + "Y" + text[120:220] + "Z" + text[220:]
    watched = Watched()
    core, conversation = watched.core, watched.conversation
    watched.snapshot(text)
    core.do(conversation, "commit", {"user": changed}, "repair")
    lines: list[Any] = []
    for _ in range(steps):
        lines += [news.line for news in conversation.take_news() if isinstance(news, LedgerLine)]
        core.step([conversation])
    lines += [news.line for news in conversation.take_news() if isinstance(news, LedgerLine)]
    other = core_for(plain())
    resumed = other.open(plain(), seed=9, ledger=lines, drift_bound=9.0)
    finish(other, resumed)
    said = [row.cells["user"].token for row in resumed.transcript.rows if "user" in row.cells]
    assert bytes(said).decode() == changed


# ---- what has drifted, and what there is no room for


def test_a_region_that_has_drifted_too_far_is_computed_and_the_others_are_not() -> None:
    rng = random.Random(6)
    text = prose(rng, 400)
    changed = text[:40] + "X" + text[40:200] + "Y" + text[200:]
    watched = Watched(bound=0.5)
    core, real = watched.core, watched.core.recording.deviation
    asked: list[int] = []

    def deviation(session: int, span: str, start: int, stop: int, old: int) -> float:
        asked.append(old)
        return 0.9 if old < 195 else min(0.1, real(session, span, start, stop, old))

    core.recording.deviation = deviation  # pyright: ignore[reportAttributeAccessIssue]
    watched.snapshot(text)
    watched.snapshot(changed, steps=16)
    assert asked == [40 + REPAIR - 8, 40 + 2 * REPAIR - 8, 40 + 4 * REPAIR - 8, 200 + REPAIR - 8], (
        "it is widened"
    )
    assert watched.spliced == [("user", 200 + REPAIR, 399)]
    watched.commit()
    counts = watched.conversation.counts
    assert counts is not None
    assert (counts.fallbacks, counts.repaired) == (1, REPAIR)
    assert counts.drift is not None
    assert 0 < counts.drift <= 0.1
    watched.check_places({"user": changed})


def test_the_estimate_adds_up_regions_and_not_the_keys_of_one_change() -> None:
    rng = random.Random(7)
    text = prose(rng, 400)
    changed = text[:40] + "X" + text[40:200] + "Y" + text[200:]
    watched = Watched(bound=0.25)
    watched.core.recording.deviation = lambda *_: 0.1  # pyright: ignore[reportAttributeAccessIssue]
    watched.snapshot(text)
    watched.snapshot(changed)
    counts = watched.conversation.counts
    assert counts is not None
    assert counts.drift == pytest.approx(0.2)
    for typed in ("Z", "ZZ", "ZZZ", "ZZZZ"):
        watched.snapshot(typed + changed)
        assert counts.drift == pytest.approx(0.2), "it is compared with what was put aside before all keys"
    assert not counts.fallbacks
    further = "ZZZZ" + changed[:320] + "Q" + changed[320:]
    watched.snapshot(further)
    assert counts.fallbacks == 1
    assert counts.drift is None, "a third region would be too much on what is kept before it: all is computed"
    watched.commit()
    finish(watched.core, watched.conversation)
    check_same(watched.core, watched.conversation, *fresh(plain(), {"user": further}))


def test_what_was_taken_over_before_an_edit_is_computed_when_it_alone_has_drifted_too_far() -> None:
    rng = random.Random(8)
    text = prose(rng, 400)
    first = text[:40] + "X" + text[40:]
    second = first[:200] + "Y" + first[200:]
    watched = Watched(bound=0.15)
    watched.core.recording.deviation = lambda *_: 0.1  # pyright: ignore[reportAttributeAccessIssue]
    watched.snapshot(text)
    watched.snapshot(first)
    watched.snapshot(second)
    watched.commit()
    counts = watched.conversation.counts
    assert counts is not None
    assert counts.drift is None
    finish(watched.core, watched.conversation)
    check_same(watched.core, watched.conversation, *fresh(plain(), {"user": second}))


@pytest.mark.parametrize("is_committed", [False, True])
def test_where_there_is_no_room_beside_what_was_put_aside_all_is_computed(is_committed: bool) -> None:
    """A pool that holds the prompt once, and not twice."""
    rng = random.Random(9)
    text = prose(rng, 300)
    changed = "X" + text[:150] + "Y" + text[150:]
    watched = Watched(kv_tokens=400)
    watched.snapshot(text)
    watched.snapshot(changed, steps=0)
    if not is_committed:
        for _ in range(12):
            step(watched.core, watched.conversation)
    watched.commit()
    counts = watched.conversation.counts
    assert counts is not None
    assert counts.fallbacks >= 1
    assert counts.read == len(changed) == counts.reused + counts.recomputed
    finish(watched.core, watched.conversation)
    assert watched.tokens("user") == changed


def test_what_was_put_aside_is_let_go_when_the_turn_is_told() -> None:
    rng = random.Random(10)
    text = prose(rng, 300)
    watched = Watched()
    watched.snapshot(text)
    watched.snapshot("X" + text[:150] + "Y" + text[150:])
    assert len(watched.spliced) == 2
    spans = watched.core.recording.sessions[watched.conversation.number]
    assert spans.stashed
    watched.commit()
    finish(watched.core, watched.conversation)
    assert not spans.stashed
