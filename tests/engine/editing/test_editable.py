"""Editable turns: whatever the snapshots were, a committed turn is that of a session that was told the text at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.core import EngineCore
from braid.engine.editing.diff import common_prefix
from braid.engine.guessing.ahead import MOST_AHEAD
from braid.engine.journal import Journal, replay
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import LedgerLine, Row
from braid.errors import ContextOverflowError, EditAfterConsumed, EmptyInputError, RegimeError
from braid.streams.sampling import SamplingSpec
from braid.streams.stream_spec import AdaptiveWait
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, chatty, codec, step, stock, trained
from tests.properties import examples

USER = StreamSpec(direction="input")


def output(temperature: float = 0.0, **changes: Any) -> StreamSpec:
    sampling = SamplingSpec(temperature=temperature, seed=3)
    return StreamSpec(direction="output", sampling=sampling, max_tokens=12, **changes)


def plain(temperature: float = 0.0) -> Topology:
    return Topology(decoding="views", streams={"user": USER, "output": output(temperature, wait_k="end")})


def aloud(temperature: float = 0.0) -> Topology:
    return Topology(
        decoding="views",
        streams={
            "user": USER,
            "document": USER,
            "thought": output(temperature, visibility="internal", wait_k=2),
            "output": output(temperature, wait_k="end", instructions="Say."),
        },
    )


def native(temperature: float = 0.0) -> Topology:
    bias = 2.0
    thought = StreamSpec(
        direction="output", visibility="internal", sampling=chatty(bias, seed=5), max_tokens=9
    )
    answer = StreamSpec(direction="output", sampling=chatty(bias, seed=6), max_tokens=9)
    return Topology(streams={"user": USER, "thought": thought, "output": answer})


TOPOLOGIES = {"plain": plain, "aloud": aloud, "native": native}


def core_for(topology: Topology, **settings: Any) -> RecordingCore:
    model = stock() if topology.decoding == "views" else trained(topology)
    return RecordingCore(model, **{"kv_tokens": 2048, **settings})


def edited(rng: random.Random, text: str) -> str:
    """One edit of a text, anywhere in it."""
    place = rng.randint(0, len(text))
    kind = rng.random()
    piece = "".join(rng.choice("abc xyzäß✓ ,.") for _ in range(rng.randint(1, 4)))
    if kind < 0.45:
        return text + piece
    if kind < 0.65:
        return text[:place] + piece + text[place:]
    if kind < 0.85:
        return text[:place] + text[min(len(text), place + rng.randint(1, 4)) :]
    return text[:place] + piece + text[min(len(text), place + 2) :]


def finish(core: RecordingCore, conversation: Conversation) -> None:
    for _ in range(300):
        if conversation.turn_is_over and not conversation.has_work:
            return
        step(core, conversation)
    raise AssertionError("the turn does not end")


def rows_of(conversation: Conversation) -> list[str]:
    """The transcript, line by line; how the preamble was cut into pieces is no part of it."""
    return [str(entry) for entry in conversation.transcript.entries if "prefill" not in str(entry)[:60]]


def lines_from(conversation: Conversation) -> list[Any]:
    """What has been written to its ledger since the last call."""
    return [news.line for news in conversation.take_news() if isinstance(news, LedgerLine)]


def fresh(topology: Topology, texts: dict[str, str], turns: int = 1) -> tuple[RecordingCore, Conversation]:
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    for _ in range(turns):
        core.do(conversation, "tell", {name: text for name, text in texts.items() if text})
        finish(core, conversation)
    return core, conversation


def check_same(
    core: RecordingCore, found: Conversation, other: RecordingCore, expected: Conversation
) -> None:
    assert rows_of(found) == rows_of(expected)
    difference = max(
        float((core.logits[key].double() - logits.double()).abs().max())
        for key, logits in other.logits.items()
    )
    assert difference < 1e-3


def check_script(name: str, temperature: float, seed: int) -> None:
    """Snapshots at random, then a commit: the rows and logits are those of a session that is told the text at once."""
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](temperature)
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    texts = dict.fromkeys(topology.input_names, "")
    for _ in range(rng.randint(1, 8)):
        stream = rng.choice(list(texts))
        texts[stream] = edited(rng, texts[stream])
        core.do(conversation, "snapshot", {stream: texts[stream]})
        for _ in range(rng.choice((0, 1, 3, 20))):
            step(core, conversation)
            assert conversation.t == 0, "a draft is not told"
    if not any(texts.values()):
        texts[topology.input_names[0]] = "so"
    core.do(conversation, "commit", texts)
    finish(core, conversation)
    check_same(core, conversation, *fresh(topology, texts))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(12), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_turn_is_that_of_a_fresh_session(name: str, temperature: float, seed: int) -> None:
    check_script(name, temperature, seed)


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(12), deadline=None)
@given(
    seed=st.integers(0, 10**9),
    pause=st.integers(0, 25),
    last=st.sampled_from(["as it was", "once more", "changed"]),
)
def test_a_commit_in_the_middle_of_a_forward_changes_nothing(
    name: str, seed: int, pause: int, last: str
) -> None:
    """Whether what was drafted can be heard at once, or has to be led to another text first."""
    topology = TOPOLOGIES[name](float(seed % 2))
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    texts = {name: edited(random.Random(seed), "What now") for name in topology.input_names}
    core.do(conversation, "snapshot", texts)
    for _ in range(pause):
        step(core, conversation)
    told = None if last == "as it was" else texts
    if last == "changed":
        texts[topology.input_names[0]] += "?"

    def commit(_: Sequence[Conversation]) -> None:
        if conversation.turn_is_over:
            core.do(conversation, "commit", told)

    core.step([conversation], publish=commit)
    finish(core, conversation)
    check_same(core, conversation, *fresh(topology, texts))


def test_a_draft_is_heard_at_its_commit_whoever_is_computing() -> None:
    """A person who has committed does not wait for a forward: not for that of the draft, and not for others'."""
    core = core_for(plain())
    conversation, other = (core.open(plain(), seed=9) for _ in range(2))
    core.do(conversation, "snapshot", {"user": "So?"})
    for _ in range(8):
        step(core, conversation)
    core.do(other, "tell", {"user": "And?"})
    heard: list[int] = []

    def commit(_: Sequence[Conversation]) -> None:
        if not heard:
            core.do(conversation, "commit")
            heard.append(sum(isinstance(news, Row) for news in conversation.take_news()))

    core.step([conversation, other], publish=commit)
    assert heard[0] >= 5
    assert not conversation.turn_is_over
    lines = conversation.transcript.entries
    finish(core, conversation)
    assert conversation.transcript.entries[: len(lines)] == lines


def test_what_was_drafted_of_an_older_text_is_not_heard_at_a_commit() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {"user": "So?"})
    for _ in range(8):
        step(core, conversation)
    core.do(conversation, "commit", {"user": "No?"})
    assert not any(isinstance(news, Row) for news in conversation.take_news())


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_ten_thousand_scripts(name: str) -> None:
    """The same, 10,000 times in all, greedy and sampled in turns."""
    for number in range(-(-10_000 // len(TOPOLOGIES))):
        check_script(name, number % 2, number)


# ---- what stands behind an edit

LONG = "".join(f"{number} bottles of beer on the wall, " for number in range(12))


def spliced(
    mode: str, bound: float, edits: list[str], topology: Topology | None = None
) -> tuple[RecordingCore, Conversation]:
    topology = topology or plain()
    core = core_for(topology)
    conversation = core.open(topology, seed=9, drift_bound=bound)
    for text in edits:
        core.do(conversation, "snapshot", {"user": text}, mode)
        for _ in range(6):
            step(core, conversation)
    core.do(conversation, "commit")
    finish(core, conversation)
    return core, conversation


@pytest.mark.parametrize("mode", ["repair", "reuse"])
def test_what_has_drifted_too_far_is_computed(mode: str) -> None:
    text = LONG[:40] + "and gin " + LONG[40:]
    core, conversation = spliced(mode, 0.0, [LONG, text])
    assert conversation.counts is not None
    assert conversation.counts.fallbacks >= 1
    check_same(core, conversation, *fresh(plain(), {"user": text}))


@pytest.mark.parametrize("topology", [plain(), aloud()], ids=["plain", "aloud"])
def test_what_stands_behind_an_edit_is_taken_over(topology: Topology) -> None:
    text = LONG[:40] + "and gin " + LONG[40:]
    _, conversation = spliced("repair", 9.0, [LONG, text], topology)
    counts = conversation.counts
    assert counts is not None
    assert counts.fallbacks == 0
    assert counts.repaired == 32
    assert counts.drift is not None
    assert 0 < counts.drift < 1.5
    assert counts.reused == counts.read
    _, exact = spliced("exact", 9.0, [LONG, text], topology)
    assert exact.counts is not None
    assert counts.computed < exact.counts.computed - 200
    inputs = [
        cell.token
        for entry in conversation.transcript.rows
        for label, cell in entry.cells.items()
        if label == "user"
    ]
    assert bytes(inputs).decode() == text


def test_typing_in_the_middle_goes_on_with_what_was_put_aside() -> None:
    typed = [LONG[:40] + "and gin "[:length] + LONG[40:] for length in range(9)]
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, drift_bound=9.0)
    core.do(conversation, "snapshot", {"user": LONG}, "repair")
    for _ in range(6):
        step(core, conversation)
    computed = conversation.counts.computed if conversation.counts is not None else 0
    for text in typed:
        core.do(conversation, "snapshot", {"user": text}, "repair")
        step(core, conversation)  # sooner than anything could be taken over
    core.do(conversation, "commit")
    finish(core, conversation)
    assert conversation.counts is not None
    assert conversation.counts.computed - computed < 9 * 60
    assert conversation.counts.fallbacks == 0


def test_an_exact_snapshot_keeps_nothing_that_was_taken_over() -> None:
    text = LONG[:40] + "and gin " + LONG[40:]
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, drift_bound=9.0)
    for mode, said in (("reuse", LONG), ("reuse", text), ("exact", text + "So?")):
        core.do(conversation, "snapshot", {"user": said}, mode)
        for _ in range(6):
            step(core, conversation)
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), {"user": text + "So?"}))
    assert not core.recording.sessions[conversation.number].stashed


def typed(before: str, after: str) -> list[str]:
    """What one says who deletes the end of a word letter by letter, and types another one."""
    start = common_prefix(before, after)
    return [before[:stop] for stop in range(len(before) - 1, start - 1, -1)] + [
        after[:stop] for stop in range(start + 1, len(after) + 1)
    ]


def test_a_fact_that_is_changed_key_by_key_is_not_reused() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, drift_bound=9.0)
    behind = " has bottles of beer on the wall. " + LONG
    for word in ("station", *typed("station", "stadium")):
        core.do(conversation, "snapshot", {"user": f"Our station is old, your {word}{behind}"}, "reuse")
        for _ in range(4):
            step(core, conversation)
    assert conversation.counts is not None
    assert conversation.counts.fallbacks >= 1
    assert str(conversation.counts.changed_fact).startswith("content: 'stat")


def test_a_wording_that_is_changed_back_to_what_was_put_aside_is_reused() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, drift_bound=9.0)
    for word in ("statoin", "station", "statoin"):
        core.do(conversation, "snapshot", {"user": f"Our {word} {LONG}"}, "reuse")
        for _ in range(6):
            step(core, conversation)
    assert conversation.counts is not None
    assert (conversation.counts.fallbacks, conversation.counts.changed_fact) == (0, None)
    assert conversation.counts.drift is not None


def test_a_fact_is_seen_whichever_stream_a_snapshot_names_and_what_stands_behind_it() -> None:
    core = core_for(aloud())
    conversation = core.open(aloud(), seed=9, drift_bound=9.0)
    texts = {"user": "Bring 3", "document": LONG}
    core.do(conversation, "snapshot", texts, "reuse")
    for _ in range(6):
        step(core, conversation)
    counts = conversation.counts
    assert counts is not None
    core.do(conversation, "snapshot", {"document": LONG + "So."}, "reuse")
    assert counts.mode == "reuse", "nothing stands behind it"
    core.do(conversation, "snapshot", {"user": "Bring 30"}, "reuse")
    assert counts.mode == "exact", "the document stands behind it, and has read it"
    core.do(conversation, "snapshot", {"document": LONG + "So?"}, "reuse")
    assert counts.mode == "exact", "the run is still of the other number"
    assert counts.changed_fact == "number: '3' became '30'"


# ---- verbs


def test_what_is_said_to_a_turn_in_the_wrong_order_changes_nothing() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    with pytest.raises(EmptyInputError):
        core.do(conversation, "commit")
    core.do(conversation, "rollback")
    core.do(conversation, "snapshot", {"user": "So"})
    for verb, arguments in (
        ("write", ("user", "x")),
        ("tell", ({"user": "x"},)),
        ("end", ()),
        ("flush", ("user",)),
    ):
        with pytest.raises(RegimeError):
            core.do(conversation, verb, *arguments)
    core.do(conversation, "snapshot", {"user": ""})
    with pytest.raises(EmptyInputError):
        core.do(conversation, "commit")
    core.do(conversation, "commit", {"user": "Say it."})
    for verb in ("commit", "rollback"):
        with pytest.raises(EditAfterConsumed):
            core.do(conversation, verb)
    step(core, conversation)
    for verb, arguments in (("commit", ()), ("rollback", ()), ("snapshot", ({"user": "No."},))):
        with pytest.raises(EditAfterConsumed):
            core.do(conversation, verb, *arguments)
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), {"user": "Say it."}))
    core.do(conversation, "write", "user", "Next ")
    with pytest.raises(RegimeError):
        core.do(conversation, "snapshot", {"user": "Next"})


def test_a_refused_commit_changes_nothing_and_the_journal_replays_what_follows() -> None:
    def null_core(journal: Journal | None = None) -> EngineCore:
        return EngineCore(NullBackend(NullModel(codec(), silence_token_id=SILENCE)), journal=journal)

    journal = Journal()
    core = null_core(journal)
    conversation = core.open(plain(), seed=9)
    counts = conversation.counts
    for texts in ({}, {"user": ""}):
        with pytest.raises(EmptyInputError):
            core.do(conversation, "commit", texts)
    assert conversation.counts is counts
    core.do(conversation, "snapshot", {"user": "So"})
    core.step([conversation])
    with pytest.raises(EmptyInputError):
        core.do(conversation, "commit", {"user": ""})
    core.do(conversation, "commit")
    while conversation.turn == 0:
        assert not core.step([conversation]).failures
    assert conversation.transcript.text("user") == "So"
    assert replay(null_core(), journal.entries)[0].transcript == conversation.transcript


def test_a_turn_that_is_taken_back_was_never_there() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    step(core, conversation)
    before = conversation.kv_tokens
    core.do(conversation, "snapshot", {"user": "So it goes."})
    for _ in range(4):
        step(core, conversation)
    assert conversation.kv_tokens > before
    core.do(conversation, "rollback")
    step(core, conversation)
    assert conversation.kv_tokens == before
    core.do(conversation, "tell", {"user": "Say it."})
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), {"user": "Say it."}))


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("verb", ["write", "tell", "fork"])
def test_a_turn_is_taken_back_at_once(verb: str, in_flight: bool, name: str) -> None:
    """Whoever takes it back may write in the same moment, also while a forward of the draft is under way."""
    topology = TOPOLOGIES[name]()
    core = core_for(topology)
    conversation = core.open(topology, seed=9, ledger=[])
    core.do(conversation, "snapshot", {"user": "So it goes."})
    for _ in range(2):
        core.step([conversation])

    def take_back() -> None:
        core.do(conversation, "rollback")
        if verb == "write":
            core.do(conversation, "write", "user", "Say it.")
            core.do(conversation, "end")
        elif verb == "tell":
            core.do(conversation, "tell", {"user": "Say it."})

    computed = core.recording.num_computed
    if in_flight:
        published: list[int] = []

        def publish(_: Any) -> None:
            if not published:
                take_back()
            published.append(core.recording.num_computed)

        core.step([conversation], publish=publish)
        assert published[0] == computed < core.recording.num_computed, "it was before the forward"
    else:
        take_back()
    if verb == "fork":
        twin = core.fork(conversation)
        assert twin.kv_tokens == conversation.kv_tokens
        conversation = twin
        core.do(conversation, "tell", {"user": "Say it."})
    while not conversation.turn_is_over or conversation.has_work:
        assert not core.step([conversation]).failures
    check_same(core, conversation, *fresh(topology, {"user": "Say it."}))
    if verb != "fork":
        resumed = core_for(topology).open(topology, seed=9, ledger=lines_from(conversation))
        assert rows_of(resumed) == rows_of(conversation)


@pytest.mark.parametrize("loses", ["cache", "stream"])
def test_what_is_lost_between_the_commit_and_its_release_is_not_reported_as_reused(loses: str) -> None:
    topology = aloud()
    core = core_for(topology)
    conversation = core.open(topology, seed=9, drift_bound=9.0)
    text = LONG[:40] + "and gin " + LONG[40:]
    core.do(conversation, "snapshot", {"user": LONG, "document": "It goes."}, "repair")
    for _ in range(6):
        step(core, conversation)
    core.do(conversation, "commit", {"user": text}, "repair")
    step(core, conversation)
    edit, counts = conversation.edit, conversation.counts
    assert counts is not None and edit is not None
    assert edit.splicing.is_pending and counts.reused > 200
    if loses == "cache":
        core.evict(conversation)
    else:
        core.do(conversation, "close_stream", "document")
    finish(core, conversation)
    read = len(text) + (len("It goes.") if loses == "cache" else 0)
    assert (counts.read, counts.reused, counts.recomputed, counts.kept) == (read, 0, read, 0)
    assert counts.snapshots == 2, "none was followed anew because something was lost"


def test_what_was_put_off_goes_with_what_was_committed() -> None:
    topology = aloud()
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    core.do(conversation, "commit", {"user": "So it goes."})
    core.do(conversation, "cancel")
    core.do(conversation, "close_stream", "user")
    core.do(conversation, "commit", {"document": "It goes."})
    finish(core, conversation)
    assert conversation.transcript.text("output"), "it was not what was cancelled"


def test_a_draft_that_loses_its_cache_begins_again() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {"user": "Say it"})
    for _ in range(5):
        step(core, conversation)
    core.evict(conversation)
    assert conversation.kv_tokens == 0
    core.do(conversation, "commit", {"user": "Say it."})
    finish(core, conversation)
    _, expected = fresh(plain(), {"user": "Say it."})
    assert [row.cells for row in conversation.transcript.rows] == [
        row.cells for row in expected.transcript.rows
    ]


def test_a_suggestion_is_verified_in_few_forwards() -> None:
    topology = plain()
    _, expected = fresh(topology, {"user": "Say it."})
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    conversation.guesses.add("output", [token for _, token in expected.transcript.tokens("output")])
    core.do(conversation, "tell", {"user": "Say it."})
    before = core.num_steps
    finish(core, conversation)
    assert rows_of(conversation) == rows_of(expected)
    assert core.num_steps - before <= 5


# ---- what others must not notice


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_turn_outlives_the_process(name: str, seed: int) -> None:
    """Whatever was told up to the kill, the ledger leads to the committed turn; drafts are in no ledger."""
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](1.0)
    core = core_for(topology)
    conversation = core.open(topology, seed=9, ledger=[])
    lines: list[Any] = []

    def hear() -> None:
        lines.extend(lines_from(conversation))

    for text in ("So", "So it go", "So it goes."):
        core.do(conversation, "snapshot", {"user": text})
        for _ in range(rng.choice((0, 2, 9))):
            core.step([conversation])
    hear()
    assert not any("snapshot" in line for line in lines)
    num_before = len(lines)

    def commit(_: Sequence[Conversation]) -> None:
        if conversation.turn_is_over:
            core.do(conversation, "commit")

    if rng.random() < 0.5:
        core.step([conversation], publish=commit)
    else:
        commit([])
    hear()
    assert lines[num_before] == ["do", "commit", [{"user": "So it goes."}], 0.0], (
        "what was drafted comes behind it"
    )
    for _ in range(rng.choice((0, 1, 2, 5, 40))):
        if not conversation.turn_is_over:
            core.step([conversation])
        hear()
    other = core_for(topology)
    resumed = other.open(topology, seed=9, ledger=lines)
    finish(other, resumed)
    _, expected = fresh(topology, {"user": "So it goes."})
    assert [row.cells for row in resumed.transcript.rows] == [row.cells for row in expected.transcript.rows]


def test_many_drafts_in_a_small_pool_lose_nothing() -> None:
    """Fifty people type at once into a pool that holds a few drafts; less is drafted, and all are answered as ever."""
    topology = plain()
    (small, drafted), (large, more) = many_drafts(topology, 1024), many_drafts(topology, 8192)
    assert 0 < drafted < more
    assert small == large
    for number in (0, 17, 49):
        _, expected = fresh(topology, {"user": typed_by(number)})
        assert small[number] == [row.cells for row in expected.transcript.rows]


def typed_by(number: int) -> str:
    return f"This is what number {number} says."


def many_drafts(topology: Topology, kv_tokens: int) -> tuple[list[list[Any]], int]:
    """Cells of each of fifty sessions that type at once and commit in any order, and how many tokens were drafted."""
    rng = random.Random(0)
    core = core_for(topology, kv_tokens=kv_tokens)
    sessions = [core.open(topology, seed=9, draft_after=0.0) for _ in range(50)]
    texts = [typed_by(number) for number in range(50)]
    for length in range(4, 40, 4):
        for conversation, text in zip(sessions, texts, strict=True):
            core.do(conversation, "snapshot", {"user": text[:length]})
        for _ in range(3):
            report = core.step(sessions)
            core.cache.pool.check_integrity()
            assert not report.failures
    order = list(range(50))
    rng.shuffle(order)
    for number in order:
        core.do(sessions[number], "commit", {"user": texts[number]})
    for _ in range(1500):
        if all(conversation.turn_is_over for conversation in sessions):
            break
        report = core.step(sessions)
        core.cache.pool.check_integrity()
        assert not report.failures
    assert all(conversation.turn == 1 for conversation in sessions)
    cells = [[row.cells for row in conversation.transcript.rows] for conversation in sessions]
    counts = [conversation.counts for conversation in sessions]
    return cells, sum(count.drafted for count in counts if count is not None)


@pytest.mark.parametrize("mode", ["exact", "repair", "reuse"])
def test_a_session_that_is_edited_stays_within_its_bound(mode: str) -> None:
    """Twice its longest input, its draft, what is ahead of one forward, and the template; whole pages of each span."""
    rng = random.Random(mode)
    topology, most_drafted = plain(), 9
    core = core_for(topology, kv_tokens=8192)
    conversation = core.open(topology, seed=9, most_drafted=most_drafted, drift_bound=9.0)
    text, longest, peak = LONG, 0, 0
    for _ in range(30):
        for _ in range(rng.randint(1, 3)):
            text = edited(rng, text)
        longest = max(longest, len(core.model.codec.encode(text)[0]))
        core.do(conversation, "snapshot", {"user": text}, mode)
        for _ in range(rng.choice((0, 1, 3, 9))):
            step(core, conversation)
            peak = max(peak, core.cache.pool.num_used)
    core.do(conversation, "commit")
    finish(core, conversation)
    assert conversation.stage.preamble is not None
    template = 64 + len(conversation.stage.preamble.wanted_ids)
    num_spans, page_size = 4, core.cache.pool.page_size
    bound = template + 2 * longest + most_drafted + MOST_AHEAD
    assert peak <= bound // page_size + num_spans
    assert peak > longest // page_size


def test_drafts_leave_the_steps_to_those_who_wait() -> None:
    """A session that answers makes a row in every step, and no draft is in its forwards."""
    topology = plain()
    core = core_for(topology)
    drafting, paying = core.open(topology, seed=9), core.open(topology, seed=9)
    core.do(drafting, "snapshot", {"user": "Say something long."})
    core.do(paying, "tell", {"user": "Say it."})
    while not paying.turn_is_over:
        before = drafting.counts.computed if drafting.counts is not None else 0
        report = core.step([drafting, paying])
        assert report.num_items <= 1 or paying.turn_is_over
        assert drafting.counts is not None
        if paying.is_speaking:
            assert drafting.counts.computed == before
    for _ in range(5):
        core.step([drafting, paying])
    assert drafting.counts is not None
    assert drafting.counts.drafted > 0


def test_a_draft_stays_within_its_budget() -> None:
    topology = plain()
    core = core_for(topology)
    conversation = core.open(topology, seed=9, most_drafted=3)
    for text in ("Say it.", "Say it!", "Say it again."):
        core.do(conversation, "snapshot", {"user": text})
        for _ in range(20):
            step(core, conversation)
        assert not conversation.has_work
        assert conversation.edit is not None
        assert conversation.edit.num_drafted <= 3 + 8  # what is ahead of one forward may pass it
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(topology, {"user": "Say it again."}))


def test_text_that_never_fits_is_refused_and_the_snapshot_before_counts() -> None:
    topology = plain()
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    core.do(conversation, "snapshot", {"user": "Say it."})
    with pytest.raises(ContextOverflowError, match="the snapshot before it still counts"):
        core.do(conversation, "snapshot", {"user": "Say it. " * 100_000})
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(topology, {"user": "Say it."}))


# ---- what a reader of the code found


def test_what_was_asked_for_its_certainty_is_no_guess_of_what_is_said() -> None:
    model = NullModel(codec(), silence_token_id=SILENCE)
    core = EngineCore(NullBackend(model, confidence=0.1))
    streams = {
        "user": StreamSpec(direction="input", feed="paced"),
        "output": output(wait_k=AdaptiveWait(threshold=0.9, max=4)),
    }
    conversation = core.open(Topology(decoding="views", streams=streams))
    for text in ("hi", "hello", "hello there"):
        core.do(conversation, "snapshot", {"user": text})
        for _ in range(3):
            assert not core.step([conversation]).failures
    core.do(conversation, "commit")
    for _ in range(40):
        assert not core.step([conversation]).failures
    assert conversation.turn_is_over and conversation.transcript.text("output")


def test_what_is_ahead_does_not_change_a_penalty() -> None:
    """A draw knows the tokens that were said before it, and not those that are guessed to follow."""
    sampling = SamplingSpec(temperature=1.0, repetition_penalty=1.6, seed=3)
    topology = plain().with_specs(
        {"output": StreamSpec(direction="output", wait_k="end", sampling=sampling, max_tokens=12)}
    )
    _, expected = fresh(topology, {"user": "Say it."})
    core = core_for(topology)
    conversation = core.open(topology, seed=9)
    conversation.guesses.add("output", [token for _, token in expected.transcript.tokens("output")])
    core.do(conversation, "tell", {"user": "Say it."})
    finish(core, conversation)
    assert rows_of(conversation) == rows_of(expected)
    assert conversation.ahead.num_accepted > 6


def test_a_stream_that_is_closed_leaves_the_turn() -> None:
    topology = aloud()
    core = core_for(topology)
    conversation = core.open(topology, seed=9, ledger=[])
    core.do(conversation, "snapshot", {"user": "So it goes.", "document": "It goes."})
    for _ in range(4):
        core.step([conversation])
    core.do(conversation, "close_stream", "document")
    core.do(conversation, "commit")
    finish(core, conversation)
    assert conversation.turn == 1
    core.do(conversation, "snapshot", {"user": "And now?"})
    core.do(conversation, "close_stream", "user")
    core.do(conversation, "rollback")
    core.step([conversation])
    assert conversation.edit is None


@pytest.mark.parametrize("mode", ["exact", "repair"])
@pytest.mark.parametrize("steps", [0, 1, 3, 6])
def test_a_ledger_leads_through_refills_and_what_was_taken_over(mode: str, steps: int) -> None:
    """Evicted, then a snapshot, an edit in the middle of it, the commit, and the kill."""
    text = LONG[:40] + "and gin " + LONG[40:]
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, ledger=[], drift_bound=9.0)
    core.do(conversation, "tell", {"user": "Say it."})
    while not conversation.turn_is_over:
        core.step([conversation])
    core.step([conversation])
    core.evict(conversation)
    core.do(conversation, "snapshot", {"user": LONG}, mode)
    for _ in range(8):
        core.step([conversation])
    core.do(conversation, "commit", {"user": text}, mode)
    lines = lines_from(conversation)
    for _ in range(steps):
        core.step([conversation])
        lines += lines_from(conversation)
    other = core_for(plain())
    resumed = other.open(plain(), seed=9, ledger=lines, drift_bound=9.0)
    finish(other, resumed)
    said = [
        cell.token
        for row in resumed.transcript.turns()[1]
        for label, cell in row.cells.items()
        if label == "user"
    ]
    assert bytes(said).decode() == text
    assert resumed.turn == 2


def test_a_stop_between_the_commit_and_its_release_is_heard() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {"user": "Say it."})
    for _ in range(5):
        step(core, conversation)
    core.do(conversation, "commit")
    core.do(conversation, "cancel")
    step(core, conversation)
    assert conversation.stage.output("output").phase == "asleep"
    finish(core, conversation)
    assert conversation.turn == 1
