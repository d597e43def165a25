"""Evicted and restored equals never evicted; forked equals recomputed; batched equals alone (invariant 2).

A life is a list of acts: write, end, close a stream, cancel, force, step for a few rows. It is lived once in peace and
once with evictions and forks in between, at random moments. The transcripts must be the same to the last token, and
every logit the dense oracle's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.backend import PREAMBLE, Close, Entry, Trim
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session import ground as ground_module
from braid.engine.session import restore
from braid.engine.session.conversation import Conversation
from braid.engine.session.restore import Refill, Refilling, refills
from braid.errors import CacheError, InputError, SessionError
from braid.model.model import Model
from braid.streams.entries import Cell, LifeEvent, Row
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Transcript
from tests.engine.harness import stock, trained
from tests.engine.session.test_rows import row_topologies
from tests.engine.session.test_views import THINK_ALOUD
from tests.engine.witness import TOLERANCE, UNSHRUNK, WitnessCore, drive, told
from tests.properties import examples


class Act(NamedTuple):
    """Something that happens to a session, and then some rows."""

    verb: str
    stream: int
    text: str
    rows: int


acts = st.lists(
    st.builds(
        Act,
        st.sampled_from(
            ["write", "write", "write", "end", "cancel", "force", "force_text", "close_stream", "interrupt"]
        ),
        st.integers(0, 9),
        st.text("ab c", min_size=1, max_size=7),
        st.sampled_from([0, 1, 2, 4, 9]),
    ),
    min_size=2,
    max_size=8,
)
moments = st.sets(st.integers(0, 40), min_size=1, max_size=12)
"""Before which of all steps the session is evicted."""


def perform(conversation: Conversation, core: WitnessCore, act: Act) -> None:
    """Do it; where the state does not allow it nothing happens, in every life alike."""
    inputs = conversation.topology.input_names
    outputs = [lane.label for lane in conversation.stage.outputs]
    labels = [lane.label for lane in conversation.table.lanes]
    try:
        match act.verb:
            case "write":
                core.do(conversation, "write", inputs[act.stream % len(inputs)], act.text)
            case "end":
                core.do(conversation, "end")
            case "force_text":
                core.do(conversation, "force", outputs[act.stream % len(outputs)], act.text)
            case "close_stream":
                core.do(conversation, "close_stream", labels[act.stream % len(labels)])
            case verb:
                core.do(conversation, verb, outputs[act.stream % len(outputs)])
    except (InputError, SessionError):
        return


class Disturbance:
    """Evicts a session before some of its steps.

    Args:
        core: Whose.
        moments: Before which steps.
    """

    def __init__(self, core: WitnessCore, moments: set[int]) -> None:
        self._core = core
        self._moments = moments
        self._num_steps = 0
        self.num_evicted = 0

    def before_step(self, conversation: Conversation) -> None:
        if self._num_steps in self._moments:
            self.num_evicted += int(conversation.kv_tokens > 0)
            self._core.evict(conversation)
        self._num_steps += 1


def live(
    core: WitnessCore,
    conversation: Conversation,
    script: Sequence[Act],
    disturbance: Disturbance | None = None,
) -> None:
    """Live through the acts, and on to the end of the turn."""
    for act in [*script, Act("end", 0, "", 30)]:
        perform(conversation, core, act)
        stop = conversation.t + act.rows
        for _ in range(600):
            if conversation.t >= stop or conversation.is_closed:
                break
            if disturbance is not None:
                disturbance.before_step(conversation)
            was_over, was_working = conversation.turn_is_over, conversation.has_work
            drive(core, conversation, rows=1)
            if not was_working and conversation.turn_is_over == was_over and not conversation.has_work:
                break


def core_for(topology: Topology, architecture: str = "llama", **settings: Any) -> WitnessCore:
    model: Model = trained(topology, architecture) if topology.decoding == "rows" else stock(architecture)
    return WitnessCore(model, kv_tokens=3000, **settings)


def view_topologies() -> st.SearchStrategy[Topology]:
    def build(feed: Any, same_row: Any, reads: Any, max_tokens: int) -> Topology:
        streams: dict[str, StreamSpec] = {}
        for name, spec in THINK_ALOUD.streams.items():
            changes: dict[str, Any] = {"feed": feed} if spec.is_input else {"max_tokens": max_tokens}
            streams[name] = spec.model_copy(update=changes)
        return THINK_ALOUD.model_copy(update={"streams": streams, "same_row": same_row, "reads": reads})

    return st.builds(
        build,
        st.sampled_from(["paced", "burst"]),
        st.sampled_from(["earlier", "none"]),
        st.sampled_from([{}, {"output": ["user", "thought"]}, {"thought": ["user"]}]),
        st.sampled_from([2, 9]),
    )


topologies = st.one_of(row_topologies(), view_topologies())


def check_restored(
    topology: Topology, script: list[Act], when: set[int], seed: int, share: float = 0.0
) -> int:
    peaceful = core_for(topology)
    calm = peaceful.open(topology, seed=seed)
    live(peaceful, calm, script)
    core = core_for(topology, prefix_share=share)
    conversation = core.open(topology, seed=seed)
    disturbance = Disturbance(core, when)
    live(core, conversation, script, disturbance)
    assert told(conversation) == told(calm)
    if core.was_asked(conversation):
        assert core.difference(conversation) <= TOLERANCE
    return disturbance.num_evicted


@settings(max_examples=examples(25), phases=UNSHRUNK)
@given(topologies, acts, moments, st.integers(0, 3))
def test_evicted_and_restored_equals_never_evicted(
    topology: Topology, script: list[Act], when: set[int], seed: int
) -> None:
    check_restored(topology, script, when, seed)


@pytest.mark.slow
@settings(max_examples=600, phases=UNSHRUNK)
@given(topologies, acts, moments, st.integers(0, 3), st.sampled_from([0.0, 0.5]))
def test_evicted_and_restored_equals_never_evicted_at_length(
    topology: Topology, script: list[Act], when: set[int], seed: int, share: float
) -> None:
    check_restored(topology, script, when, seed, share)


@settings(max_examples=examples(8), phases=UNSHRUNK)
@given(topologies, acts, acts, st.sets(st.integers(0, 20), max_size=4), st.booleans(), st.integers(0, 3))
def test_forked_equals_recomputed(
    topology: Topology, before: list[Act], after: list[Act], when: set[int], is_evicted: bool, seed: int
) -> None:
    """A fork, of an evicted session too, lives on as one that did it all itself; so does the session it came from."""
    core = core_for(topology)
    source = core.open(topology, seed=seed)
    live(core, source, before)
    if is_evicted:
        core.evict(source)
    twin = core.fork(source)
    live(core, twin, after, Disturbance(core, when))
    assert core.difference(twin) <= TOLERANCE if core.was_asked(twin) else True
    live(core, source, before)
    alone = core_for(topology)
    for conversation, script in ((twin, [*before, after]), (source, [*before, before])):
        again = alone.open(topology, seed=seed)
        live(alone, again, script[:-1])  # pyright: ignore[reportArgumentType]
        live(alone, again, script[-1])  # pyright: ignore[reportArgumentType]
        assert told(conversation) == told(again)
    if core.was_asked(source):
        assert core.difference(source) <= TOLERANCE


# ---- batched equals alone


policies = st.builds(
    SchedulerPolicy,
    step_tokens=st.sampled_from([5, 17, 64]),
    chunk_tokens=st.sampled_from([3, 16]),
    min_chunk_tokens=st.sampled_from([1, 3]),
    age_steps=st.sampled_from([1, 8]),
    seed=st.integers(0, 9),
)


@settings(max_examples=examples(8), phases=UNSHRUNK)
@given(
    topologies,
    st.lists(
        st.lists(st.text("ab c", min_size=1, max_size=9), min_size=1, max_size=2), min_size=2, max_size=3
    ),
    policies,
    st.randoms(use_true_random=False),
    st.sampled_from([120, 3000]),
)
def test_batched_equals_alone_whatever_the_policy_and_the_order(
    topology: Topology, conversations: list[list[str]], policy: SchedulerPolicy, random: Any, kv_tokens: int
) -> None:
    """Several turns of several sessions; the list that `step` is given is shuffled, and the cache may be too small."""

    def say(core: WitnessCore, conversation: Conversation, text: str) -> None:
        for name in topology.input_names:
            core.do(conversation, "write", name, text)
        core.do(conversation, "end")

    alone = core_for(topology)
    expected: list[Any] = []
    for number, texts in enumerate(conversations):
        conversation = alone.open(topology, seed=number)
        for text in texts:
            say(alone, conversation, text)
            drive(alone, conversation)
        expected.append(told(conversation))
    core = WitnessCore(alone.model, policy=policy, kv_tokens=kv_tokens)
    together = [core.open(topology, seed=number) for number in range(len(conversations))]
    left = {c.number: list(texts) for c, texts in zip(together, conversations, strict=True)}
    demanding: list[int] = []
    for _ in range(3000):
        for conversation in together:
            if conversation.number not in demanding and left[conversation.number]:
                say(core, conversation, left[conversation.number].pop(0))
        random.shuffle(together)
        report = core.step(together)
        demanding = report.demanding
        if report.failures:  # a session that the small cache cannot hold even alone
            assert kv_tokens < 3000 and all(isinstance(error, CacheError) for _, error in report.failures)
            return
        if not demanding and not any(left.values()):
            break
    else:
        raise AssertionError("the sessions never came to rest")
    together.sort(key=lambda c: c.number)
    for conversation, entries in zip(together, expected, strict=True):
        assert told(conversation) == entries
        if core.was_asked(conversation):
            assert core.difference(conversation) <= TOLERANCE


# ---- what refills say


def transcript_of(topology: Topology, *entries: Row | LifeEvent) -> Transcript:
    return Transcript(topology, "test", {}, {}, entries)


PLAIN = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "note": StreamSpec(direction="input"),
        "output": StreamSpec(direction="output"),
    }
)


def row(t: int, **tokens: int) -> Row:
    return Row(t, {label: Cell(token, "") for label, token in tokens.items()})


def test_rows_are_joined_up_to_a_close_and_each_span_comes_once_a_piece() -> None:
    transcript = transcript_of(
        PLAIN,
        row(0, user=1, note=2),
        row(1, user=3, output=4),
        LifeEvent(t=2, kind="close", lane="note"),
        row(2, output=5),
    )
    assert list(refills(7, transcript, None, chunk=100)) == [
        [
            Entry("user", "user", [1, 3], [0, 1]),
            Entry("note", "note", [2], [0]),
            Entry("output", "output", [4], [1]),
        ],
        Close(7, "note"),
        [Entry("output", "output", [5], [2])],
    ]


def test_a_piece_is_about_as_long_as_asked() -> None:
    transcript = transcript_of(PLAIN, *(row(t, user=t, output=t) for t in range(10)))
    pieces = list(refills(0, transcript, None, chunk=4))
    assert [sum(len(e.token_ids) for e in piece) for piece in pieces if isinstance(piece, list)] == [4] * 5


def test_views_begin_with_the_preamble_and_the_last_turn() -> None:
    views = Topology(decoding="views", streams=PLAIN.streams)
    transcript = transcript_of(
        views,
        LifeEvent(t=0, kind="prefill", lane=PREAMBLE, tokens=(8, 9), reason="after 0"),
        row(0, user=1),
        LifeEvent(t=1, kind="close", lane="note"),
        LifeEvent(t=1, kind="turn"),
        row(1, user=2),
        LifeEvent(t=2, kind="prefill", lane="closer:output", tokens=(6,)),
        LifeEvent(t=2, kind="prefill", lane="closer:output", tokens=(7,)),
        row(2, output=3),
    )
    assert list(refills(0, transcript, [8, 9, 10], chunk=2)) == [
        [Entry("", PREAMBLE, [8, 9], [-1, -1])],
        [Entry("", PREAMBLE, [10], [-1])],
        Close(0, "note"),
        [Entry("user", "user", [2], [1]), Entry("output", "closer:output", [6], [1])],
        Trim(0, "closer:output", 0),
        [Entry("output", "closer:output", [7], [1]), Entry("output", "output", [3], [2])],
    ]


def test_a_refilling_counts_what_is_there_again() -> None:
    transcript = transcript_of(
        PLAIN, row(0, user=1, note=2), LifeEvent(t=1, kind="close", lane="note"), row(1, user=3)
    )
    done: list[Any] = []
    refilling = Refilling(0, transcript, None, chunk=100)
    assert refilling.next_piece(done.extend) is not None
    assert refilling.next_piece(done.extend) is refilling.piece, "asking again is harmless"
    refilling.take()
    assert refilling.held == {"user": 1, "note": 1} and not done
    refilling.next_piece(done.extend)
    assert done == [Close(0, "note")] and refilling.held == {"user": 1}
    refilling.take()
    assert refilling.next_piece(done.extend) is None and refilling.held.total() == 2


# ---- what once went wrong

LOUD = SamplingSpec(logit_bias={299: -100.0, 257: -100.0})
NOTED = Topology(
    streams={
        "note": StreamSpec(direction="input"),
        "user": StreamSpec(direction="input"),
        "output": StreamSpec(direction="output", sampling=LOUD, max_tokens=30),
    }
)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stream_that_is_closed_while_its_session_is_out_of_the_cache(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the rows before were read, and is gone from the ones to come."""
    monkeypatch.setattr(ground_module, "REFILL_CHUNK", 6)
    core = core_for(NOTED)
    conversation = core.open(NOTED)
    core.do(conversation, "write", "note", "remember this ")
    core.do(conversation, "write", "user", "hi there you ")
    drive(core, conversation, rows=16)
    core.evict(conversation)
    for _ in range(steps):
        core.step([conversation])
    assert conversation.is_evicted
    core.do(conversation, "close_stream", "note")
    core.do(conversation, "end")
    drive(core, conversation)
    assert conversation.turn_is_over
    assert core.difference(conversation) <= TOLERANCE


def test_a_turn_that_ends_while_its_session_is_being_refilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground_module, "REFILL_CHUNK", 6)
    core = core_for(THINK_ALOUD)
    conversation = core.open(THINK_ALOUD)
    core.do(conversation, "write", "user", "hello there ")
    core.do(conversation, "end")
    drive(core, conversation, rows=16)
    core.evict(conversation)
    core.step([conversation])
    core.step([conversation])
    assert conversation.is_evicted and conversation.kv_tokens
    core.do(conversation, "cancel")
    drive(core, conversation)
    assert conversation.turn_is_over
    core.do(conversation, "write", "user", "and now? ")
    core.do(conversation, "end")
    drive(core, conversation)
    assert core.difference(conversation) <= TOLERANCE


def test_two_sessions_that_are_half_refilled_do_not_block_each_other() -> None:
    """Each needs nearly the whole cache, and what both have filled again is as much as there is."""
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input", feed="burst"),
            "output": StreamSpec(direction="output", sampling=LOUD, max_tokens=3),
        }
    )
    core = WitnessCore(trained(topology), kv_tokens=400)
    both = [core.open(topology) for _ in range(2)]
    for conversation in both:
        core.do(conversation, "write", "user", "long " * 60)
        drive(core, conversation, rows=301)
        core.evict(conversation)
        core.step([conversation])
    for conversation in both:
        core.do(conversation, "end")
    for _ in range(60):
        report = core.step(both)
        assert not report.failures
    assert all(conversation.turn_is_over for conversation in both)
    assert max(core.difference(conversation) for conversation in both) <= TOLERANCE


def test_an_evicted_session_rests_until_it_has_rows_to_make() -> None:
    core = core_for(THINK_ALOUD)
    conversation = core.open(THINK_ALOUD)
    core.do(conversation, "write", "user", "hello ")
    drive(core, conversation)
    core.evict(conversation)
    assert not conversation.turn_is_over and not conversation.has_work
    for _ in range(3):
        report = core.step([conversation])
        assert not report.worked and not report.demanding
    assert conversation.is_evicted and conversation.kv_tokens == 0


def test_an_evicted_session_whose_preamble_is_not_there_yet_still_ends_its_turn() -> None:
    core = core_for(THINK_ALOUD)
    conversation = core.open(THINK_ALOUD)
    core.do(conversation, "write", "document", "hello ")
    core.do(conversation, "close_stream", "document")
    core.evict(conversation)
    assert not conversation.turn_is_over
    drive(core, conversation)
    assert conversation.turn_is_over and conversation.is_evicted


def test_a_start_that_was_cancelled_leaves_no_closer_behind() -> None:
    """The forced one writes its own, and the oracle reads one too."""
    core = core_for(THINK_ALOUD)
    conversation = core.open(THINK_ALOUD)
    core.do(conversation, "write", "user", "hello there ")
    core.do(conversation, "end")
    while conversation.stage.output("output").phase == "waiting":
        core.step([conversation])
    before = conversation.kv_tokens
    core.do(conversation, "cancel", "output")
    assert conversation.kv_tokens < before
    core.do(conversation, "force", "output", "so ")
    core.evict(conversation)
    drive(core, conversation)
    assert conversation.transcript.text("output").startswith("so ")
    assert core.difference(conversation) <= TOLERANCE


# ---- controls


def broken_life(monkeypatch: pytest.MonkeyPatch, breaks: Any) -> float:
    """How far off the logits are after an eviction, if refilling is done wrongly."""
    real = refills

    def wrong(*arguments: Any, **named: Any) -> Iterator[Refill]:
        yield from breaks(list(real(*arguments, **named)))

    monkeypatch.setattr(restore, "refills", wrong)
    monkeypatch.setattr(ground_module, "REFILL_CHUNK", 8)
    core = core_for(NOTED)
    conversation = core.open(NOTED)
    core.do(conversation, "write", "note", "remember this ")
    core.do(conversation, "write", "user", "hi there you ")
    drive(core, conversation, rows=18)
    core.evict(conversation)
    core.do(conversation, "end")
    for _ in range(100):
        core.step([conversation])
    assert conversation.turn_is_over
    return core.difference(conversation)


def test_the_life_of_the_controls_is_a_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_life(monkeypatch, lambda pieces: pieces) <= TOLERANCE


def test_control_a_skipped_piece_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_life(monkeypatch, lambda pieces: [pieces[0], *pieces[2:]]) > 1e-3


def test_control_tokens_in_the_wrong_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(pieces: list[Any]) -> list[Any]:
        return [
            [entry._replace(times=[t + 1 for t in entry.times]) for entry in piece]
            if isinstance(piece, list)
            else piece
            for piece in pieces
        ]

    assert broken_life(monkeypatch, late) > 1e-3


def test_control_the_wrong_order_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a later row reads must be there before it is computed."""
    assert broken_life(monkeypatch, lambda pieces: pieces[::-1]) > 1e-3
