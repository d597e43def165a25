"""What the engine promises of its service, counted in rows and tokens: who is read when, what silence costs, who waits.

Everything here is counted on a backend without a network; the two promises about time are marked `slow` and kept on
the default model.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore, Subject
from braid.engine.backend import Answer, Ask, Draw
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, replay
from braid.engine.loop import EngineLoop
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import EmptyInputError, InputError, SessionClosedError, SessionError
from braid.model.model import Model
from braid.sessions.session import Engine
from braid.streams.entries import LifeEvent
from braid.streams.events import QuiescentEvent, StateEvent, TurnEvent
from braid.streams.sampling import SamplingSpec
from braid.streams.stream_spec import AdaptiveWait, Trigger
from braid.streams.topology import Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec, trained
from tests.engine.live import eventually, rows, spec, views
from tests.engine.witness import check_books

ALWAYS_SPEAKS = SamplingSpec(logit_bias={SILENCE: -1e9})


class NullCore(EngineCore):
    """A core over a null backend, which writes down every batch."""

    def __init__(
        self, policy: SchedulerPolicy | None = None, *, silence: bool = True, **backend: Any
    ) -> None:
        model = NullModel(codec(), silence_token_id=SILENCE if silence else None)
        self.null = NullBackend(model, **backend)
        self.null.is_watched = True
        super().__init__(self.null, policy=policy)

    @property
    def num_computed(self) -> int:
        """New tokens of all forwards so far, probes included."""
        return sum(tokens for batch in self.null.batches for _, _, tokens in batch)


def step(core: EngineCore, *conversations: Conversation, now: float = 0.0) -> bool:
    """One step of these, or of all; returns whether anything was computed."""
    report = core.step(conversations or list(core.conversations.values()), now=now)
    assert not report.failures
    return report.worked


def run(core: EngineCore, *conversations: Conversation, steps: int = 10_000, now: float = 0.0) -> None:
    """Step until nobody has anything to do."""
    for _ in range(steps):
        if not step(core, *conversations, now=now):
            return


def say(conversation: Conversation, text: str, stream: str = "user", now: float = 0.0) -> None:
    conversation.write(stream, text, now)
    conversation.end(stream, now)


def first_row(conversation: Conversation, lane: str) -> int:
    """The row of a lane's first token."""
    return next(row.t for row in conversation.transcript.rows if lane in row.cells)


def input_rows(conversation: Conversation, lane: str = "user") -> list[int]:
    return [t for t, _ in conversation.transcript.tokens(lane)]


def wakes(conversation: Conversation, lane: str) -> list[LifeEvent]:
    return [e for e in conversation.transcript.events if e.kind == "wake" and e.lane == lane]


# ---- who is read when (4)


def speakers(core: EngineCore, priority: str, count: int = 8) -> list[Conversation]:
    """Sessions with a thought and an output that speak for ever."""
    topology = rows(
        {"user": spec("input"), "thought": spec(priority=priority), "output": spec(priority=priority)}
    )
    found = [core.open(topology, seed=number) for number in range(count)]
    for conversation in found:
        say(conversation, "go")
    run(core, *found, steps=30)
    assert all(conversation.is_speaking for conversation in found)
    return found


@pytest.mark.parametrize("feed", ["paced", "burst"])
@pytest.mark.parametrize(
    ("priority", "step_tokens"),
    [("medium", 8), ("medium", 16), ("low", 10), ("medium", 64), ("high", 64), ("high", 256)],
)
def test_a_high_priority_token_is_read_in_the_very_next_row(
    feed: str, priority: str, step_tokens: int
) -> None:
    """Eight sessions speak, two more read long documents, one at low priority; whenever a word comes, it is next."""
    policy = SchedulerPolicy(step_tokens=step_tokens, chunk_tokens=4, min_chunk_tokens=2)
    core = NullCore(policy)
    speakers(core, priority)
    urgent = core.open(rows({"user": spec("input", priority="high", feed=feed), "output": spec()}))
    reader = rows({"document": spec("input", feed="burst"), "output": spec()})
    slow = rows({"document": spec("input", feed="burst", priority="low"), "output": spec(priority="low")})
    medium, low = core.open(reader), core.open(slow)
    medium.write("document", "word " * 1000)
    low.write("document", "word " * 1000)
    gaps = itertools.cycle([1, 2, 5, 1, 13, 3, 30])
    num_read = 0
    for _ in range(30):
        urgent.write("user", " ab" if num_read else "ab cd")
        head = input_rows(urgent)
        expected, queued = urgent.t, urgent.num_queued
        assert queued
        step(core)
        fresh = input_rows(urgent)[len(head) :]
        assert fresh, "it was not read in the next step"
        assert fresh[0] == expected, "it was not read in the next row"
        num_read += len(fresh)
        for _ in range(next(gaps) + (3 if feed == "paced" else 0)):
            step(core)
    assert num_read >= 30
    # And whoever is low still gets on: the bound is three times the ageing, and a step for each session.
    assert low.t > 2 * (core.num_steps - 30) // (3 * policy.age_steps + 11)


def test_low_priority_progresses_within_its_bound_however_busy_the_others_are() -> None:
    policy = SchedulerPolicy(step_tokens=8, chunk_tokens=4, min_chunk_tokens=2, age_steps=4)
    core = NullCore(policy)
    speakers(core, "high")
    low = core.open(rows({"user": spec("input", priority="low"), "output": spec(priority="low")}))
    low.write("user", "word " * 50)
    waited, longest = 0, 0
    for _ in range(1000):
        before = low.t
        step(core)
        waited = 0 if low.t > before else waited + 1
        longest = max(longest, waited)
    assert low.t > 30
    assert longest <= policy.age_steps * 3 + 9


def test_the_high_one_of_two_readers_is_done_first_and_the_low_one_in_the_end() -> None:
    core = NullCore(SchedulerPolicy(step_tokens=24, chunk_tokens=16, min_chunk_tokens=4, age_steps=6))
    found = {}
    for priority in ("low", "medium", "high"):  # opened in the wrong order
        topology = rows(
            {
                "user": spec("input", feed="burst", priority=priority),
                "output": spec(wait_k="end", max_tokens=3),
            }
        )
        found[priority] = core.open(topology)
        say(found[priority], "x " * 150)
    done: dict[str, int] = {}
    for number in range(200):
        if not step(core):
            break
        for priority, conversation in found.items():
            if not conversation.num_queued:
                done.setdefault(priority, number)
    assert done["high"] < done["medium"] < done["low"]
    assert all(conversation.turn_is_over for conversation in found.values())


@pytest.mark.anyio
async def test_live_every_word_is_in_the_next_row_and_in_the_next_batch() -> None:
    """The same with the engine running by itself: what is written at any moment is in the next step's batch."""
    journal = Journal()
    backend = NullBackend(NullModel(codec(), silence_token_id=SILENCE))
    policy = SchedulerPolicy(step_tokens=64, chunk_tokens=4, min_chunk_tokens=2)
    loop = EngineLoop(backend, policy=policy, journal=journal)
    async with Engine.over(loop) as engine:
        seats = [loop.start(rows(), {"seed": number}) for number in range(8)]
        for seat in seats:
            loop.push(seat.number, "write", "user", "go on")
            loop.push(seat.number, "end")
        async with engine.open(rows({"user": spec("input", priority="high"), "output": spec()})) as session:
            await session.write("user", "first word")
            for number in range(40):
                with loop.core.lock:
                    expected, queued = session.rows, session.look().num_queued
                    loop.push(8, "write", "user", f" w{number}")
                await eventually(lambda: session.look().num_queued == 0)
                if not queued:
                    assert expected in input_rows(loop._seats[8].conversation)
        for seat in seats:
            loop.abort(seat.number)
    waits = False
    for entry in journal.entries:
        if entry["event"] == "verb" and entry["session"] == 8 and entry["verb"] == "write":
            waits = True
        elif entry["event"] == "verb" and entry["session"] == 8 and entry["verb"] == "close":
            break
        elif entry["event"] == "step" and waits and 8 in entry["sessions"]:
            assert 8 in [session for session, _, _ in entry["batch"]]
            waits = False


# ---- silence (5)

QUIET = [f"quiet{number}" for number in range(8)]


def ten_streams(**quiet: Any) -> Topology:
    return rows({"user": spec("input"), **{name: spec(**quiet) for name in QUIET}, "output": spec()})


def measured(topology: Topology, script: dict[str, list[str]]) -> tuple[Conversation, NullCore, list[int]]:
    """Run a turn; returns the tokens of each batch, too."""
    core = NullCore(script=script, kv_tokens=4000, page_size=4)
    conversation = core.open(topology)
    say(conversation, "a question?")
    sizes: list[int] = []
    while conversation.has_work and len(conversation.transcript.tokens("output")) < 40:
        step(core)
        sizes.append(sum(tokens for _, _, tokens in core.null.batches[-1]))
        core.null.pool.check_integrity()
    return conversation, core, sizes


def test_eight_silent_streams_of_ten_use_the_memory_of_two() -> None:
    script = {"output": ["an answer of forty tokens or a little more."]}
    two, two_core, two_sizes = measured(rows(), script)
    assert two_sizes.count(1) >= 25, "one token a step while it speaks"
    never = Trigger(on="user", pattern="never")
    asleep, asleep_core, asleep_sizes = measured(ten_streams(trigger=never), script)
    assert asleep_sizes == two_sizes, "streams that sleep are in no batch"
    awake, awake_core, awake_sizes = measured(ten_streams(), script)
    assert [size - 8 for size in awake_sizes] == two_sizes, "each awake and silent stream costs its probe"
    for conversation, core in ((asleep, asleep_core), (awake, awake_core)):
        assert conversation.kv_tokens == two.kv_tokens
        assert core.null.pool.num_used == two_core.null.pool.num_used
        assert not any(conversation.transcript.tokens(name) for name in QUIET)
    # The control: streams that speak do cost.
    loud, loud_core, loud_sizes = measured(ten_streams(), script | {name: ["x" * 60] for name in QUIET})
    assert loud.kv_tokens >= two.kv_tokens + 8 * 38
    assert loud_core.null.pool.num_used > two_core.null.pool.num_used
    assert sum(loud_sizes) > sum(two_sizes) + 8 * 38


def test_a_session_in_which_nothing_happens_costs_nothing() -> None:
    core = NullCore(script={"output": ["yes"]})
    conversations = [core.open(rows()) for _ in range(5)]
    for conversation in conversations:
        say(conversation, "well?")
    run(core)
    assert all(conversation.turn_is_over for conversation in conversations)
    before = core.num_computed
    for _ in range(50):
        assert not step(core)
    assert core.num_computed == before


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_eight_streams_asleep_add_less_than_two_percent_to_a_step(smollm2: Model) -> None:
    """Side by side, a step of one and a step of the other, so that a busy machine slows both."""
    subject = Subject(smollm2)
    never = Trigger(on="user", pattern="never")
    streams = {"user": spec("input"), **{name: spec(trigger=never) for name in QUIET}}
    found: list[tuple[RecordingCore, Conversation]] = []
    for topology in (
        rows({"user": spec("input"), "output": spec(sampling=subject.chatty(-1e9))}),
        rows({**streams, "output": spec(sampling=subject.chatty(-1e9))}),
    ):
        core = RecordingCore(subject.dressed(topology), kv_tokens=4096, page_size=16)
        conversation = core.open(topology)
        say(conversation, "Tell me about the sea, and take your time. " * 8)
        run(core, conversation, steps=130)
        assert conversation.is_speaking
        found.append((core, conversation))
    times: list[list[float]] = [[], []]
    for number in range(300):
        for index in (0, 1) if number % 2 else (1, 0):
            core, conversation = found[index]
            began = time.perf_counter()
            step(core, conversation)
            times[index].append(time.perf_counter() - began)
            core.recording.logits.clear()
    two, ten = (statistics.median(samples) for samples in times)
    print(
        f"a step: {two * 1e3:.3f} ms with two streams, {ten * 1e3:.3f} ms with eight more asleep: {ten / two:.4f}"
    )
    assert ten <= 1.02 * two


# ---- waiting for the input (6)


@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("decoding", ["rows", "views"])
def test_wait_k_is_exact(k: int, decoding: str) -> None:
    """Paced, silence masked: the first output row is the k-th input row + 1."""
    streams = {"user": spec("input", feed="paced"), "output": spec(wait_k=k, sampling=ALWAYS_SPEAKS)}
    core = NullCore(silence=decoding == "rows")
    conversation = core.open(Topology(decoding=decoding, streams=streams))  # type: ignore[arg-type]
    say(conversation, "a question of many tokens?")
    run(core, steps=60)
    assert first_row(conversation, "output") == input_rows(conversation)[k - 1] + 1
    (wake,) = wakes(conversation, "output")
    assert wake.reason == f"wait_k: {k} tokens were read"


@pytest.mark.parametrize("k", range(1, 11))
def test_wait_k_is_exact_on_a_network(k: int) -> None:
    topology = rows({"user": spec("input"), "output": spec(wait_k=k, sampling=ALWAYS_SPEAKS, max_tokens=3)})
    core = RecordingCore(trained(topology), kv_tokens=200)
    conversation = core.open(topology)
    say(conversation, "a long question")
    run(core)
    assert first_row(conversation, "output") == input_rows(conversation)[k - 1] + 1


def test_wait_k_counts_all_inputs_that_are_read_and_each_turn_anew() -> None:
    streams = {
        "user": spec("input"),
        "document": spec("input"),
        "gossip": spec("input"),
        "output": spec(wait_k=6, max_tokens=2),
    }
    topology = rows(streams, reads={"output": ["user", "document"]})
    core = NullCore()
    conversation = core.open(topology)
    for _ in range(3):
        start = conversation.t
        for stream in ("user", "document", "gossip"):
            conversation.write(stream, "many tokens here ")
        run(core, steps=12)
        assert wakes(conversation, "output")[-1].t == start + 2, (
            "two of three streams: six tokens in three rows"
        )
        conversation.end()
        run(core)
        assert conversation.turn_is_over


def test_wait_k_in_a_burst_is_over_with_its_last_row() -> None:
    core = NullCore()
    conversation = core.open(rows({"user": spec("input", feed="burst"), "output": spec(wait_k=3)}))
    conversation.write("user", "one two three four ")
    run(core, steps=3)
    assert first_row(conversation, "output") == len("one two three four")


class Confident(NullBackend):
    """Is as sure as it is told to be, by how often it was asked."""

    sureness: Callable[[int], float] = staticmethod(lambda asked: 0.0)
    num_asked = 0

    def _answer(self, ask: Ask) -> Answer:
        answer = super()._answer(ask)
        if not ask.confidence:
            return answer
        self.num_asked += 1
        return answer._replace(confidence=self.sureness(self.num_asked))


def adaptive(
    decoding: str, wait: AdaptiveWait | int, sureness: Callable[[int], float], text: str, end: bool = True
) -> tuple[Conversation, list[StateEvent], Confident]:
    streams = {
        "user": spec("input", feed="paced"),
        "output": spec(wait_k=wait, max_tokens=4, sampling=ALWAYS_SPEAKS),
    }
    backend = Confident(NullModel(codec(), silence_token_id=SILENCE if decoding == "rows" else None))
    backend.sureness = sureness
    core = EngineCore(backend)
    conversation = core.open(Topology(decoding=decoding, streams=streams))  # type: ignore[arg-type]
    conversation.write("user", text)
    if end:
        conversation.end()
    run(core, steps=100)
    events = [e for e in conversation.take_events() if isinstance(e, StateEvent) and e.stream == "output"]
    return conversation, [e for e in events if e.state == "active"], backend


WORDS = "a question of thirty-two tokens."  # without its end token in rows, which is one more


@pytest.mark.parametrize("decoding", ["rows", "views"])
class TestAdaptive:
    @pytest.mark.parametrize("sure_at", [1, 2, 7, 20])
    def test_it_starts_once_the_answer_is_sure(self, decoding: str, sure_at: int) -> None:
        wait = AdaptiveWait(measure="answer", threshold=0.6, max=30)
        conversation, active, backend = adaptive(
            decoding, wait, lambda asked: 0.6 if asked >= sure_at else 0.59, WORDS
        )
        assert backend.num_asked == sure_at, "asked once a token, and no more once it is sure"
        reason = f"sure of its first token (p = 0.60, wanted 0.60) after {sure_at} tokens"
        assert [wake.reason for wake in wakes(conversation, "output")] == [reason]
        assert [event.reason for event in active] == [reason]
        # Asked after the row of the token, it wakes with the next one and speaks in the one after.
        assert first_row(conversation, "output") == input_rows(conversation)[sure_at] + 1

    @pytest.mark.parametrize("most", [1, 5, 12])
    def test_it_starts_after_its_maximum_however_unsure(self, decoding: str, most: int) -> None:
        for measure in ("answer", "input"):
            wait = AdaptiveWait(measure=measure, threshold=0.6, max=most)
            conversation, active, _ = adaptive(decoding, wait, lambda asked: 0.1, WORDS)
            assert [event.reason for event in active] == [f"{most} tokens were read"]
            assert first_row(conversation, "output") == input_rows(conversation)[most - 1] + 1

    def test_it_starts_no_later_than_the_end_of_the_input(self, decoding: str) -> None:
        for measure in ("answer", "input"):
            wait = AdaptiveWait(measure=measure, threshold=1.0, max=500)
            conversation, active, _ = adaptive(decoding, wait, lambda asked: 0.99, WORDS)
            assert [event.reason for event in active] == ["the input has ended"]
            assert first_row(conversation, "output") == input_rows(conversation)[-1] + 1
            # The control: as long as the input has not ended, it waits.
            conversation, active, _ = adaptive(decoding, wait, lambda asked: 0.99, WORDS, end=False)
            assert not active
            assert not conversation.transcript.tokens("output")

    def test_it_starts_once_the_input_is_predictable_on_average_of_four(self, decoding: str) -> None:
        wait = AdaptiveWait(measure="input", threshold=0.5, max=30)
        low_then_high = [0.9, 0.1, 0.1, 0.1, 0.8, 0.9, 0.4, 0.9, 0.9]
        conversation, active, _ = adaptive(
            decoding, wait, lambda asked: low_then_high[min(asked, 9) - 1], WORDS
        )
        # 0.1 0.1 0.8 0.9 → 0.48, then 0.1 0.8 0.9 0.4 → 0.55
        assert [event.reason for event in active] == [
            "the input is predictable (p = 0.55, wanted 0.50) after 7 tokens"
        ]
        assert wakes(conversation, "output")[0].reason == active[0].reason
        assert first_row(conversation, "output") == input_rows(conversation)[7] + 1

    def test_four_tokens_are_the_least_by_which_input_is_judged(self, decoding: str) -> None:
        wait = AdaptiveWait(measure="input", threshold=0.5, max=30)
        _, active, _ = adaptive(decoding, wait, lambda asked: 1.0, WORDS)
        assert active[0].reason.endswith("after 4 tokens")

    def test_a_fixed_wait_asks_nobody_how_sure_it_is(self, decoding: str) -> None:
        conversation, active, backend = adaptive(decoding, 9, lambda asked: 1.0, WORDS)
        assert backend.num_asked == 0
        assert active[0].reason == "wait_k: 9 tokens were read"
        assert first_row(conversation, "output") == input_rows(conversation)[8] + 1

    def test_asking_costs_no_memory(self, decoding: str) -> None:
        sure = adaptive(decoding, AdaptiveWait(threshold=0.9, max=20), lambda asked: 0.0, WORDS)[0]
        fixed = adaptive(decoding, 20, lambda asked: 0.0, WORDS)[0]
        assert sure.kv_tokens == fixed.kv_tokens
        assert [row.cells for row in sure.transcript.rows] == [row.cells for row in fixed.transcript.rows]


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=40),
    st.floats(0.01, 1),
    st.integers(1, 40),
    st.sampled_from(["answer", "input"]),
    st.sampled_from(["rows", "views"]),
)
def test_adaptive_waits_are_never_longer_than_the_input_or_the_maximum(
    sureness: list[float], threshold: float, most: int, measure: Any, decoding: str
) -> None:
    wait = AdaptiveWait(measure=measure, threshold=threshold, max=most)
    conversation, active, backend = adaptive(
        decoding, wait, lambda asked: sureness[min(asked, len(sureness)) - 1], WORDS
    )
    started, read = first_row(conversation, "output"), input_rows(conversation)
    assert started <= read[min(most, len(read)) - 1] + 1
    asked = [sureness[min(number, len(sureness)) - 1] for number in range(1, backend.num_asked + 1)]
    if active[0].reason.startswith("sure"):
        assert asked[-1] >= threshold
        assert all(one < threshold for one in asked[:-1])
    elif active[0].reason.startswith("the input is predictable"):
        assert sum(asked[-4:]) / 4 >= threshold


# ---- conditional streams


def watched(trigger: Trigger, says: str, **settings: Any) -> tuple[Conversation, NullCore]:
    streams = {
        "user": spec("input"),
        "output": spec(),
        "audit": spec(trigger=trigger, visibility="internal", priority="low"),
    }
    core = NullCore(script={"output": [says, "again"], "audit": ["seen", "seen"]})
    conversation = core.open(rows(streams), **settings)
    say(conversation, "go")
    run(core)
    return conversation, core


def test_a_pattern_wakes_a_stream_in_the_row_after_it_is_complete() -> None:
    conversation, _ = watched(Trigger(on="output", pattern=r"call \d+"), "now call 42 and go on")
    (wake,) = wakes(conversation, "audit")
    assert wake.reason == "output triggered it"
    said = conversation.transcript.tokens("output")
    complete = said[len("now call 4") - 1][0]
    assert wake.t == complete + 1
    assert first_row(conversation, "audit") == complete + 2
    assert conversation.transcript.text("audit") == "seen"
    # The control, which also shows that a stream that is never woken holds no turn.
    conversation, _ = watched(Trigger(on="output", pattern=r"call \d+"), "now call no one and go on")
    assert not wakes(conversation, "audit")
    assert conversation.turn_is_over


def test_a_predicate_wakes_a_stream_and_is_given_the_text_so_far() -> None:
    asked: list[str] = []

    def is_long(text: str) -> bool:
        asked.append(text)
        return len(text) >= 6

    trigger = Trigger(on="output", predicate="is_long")
    conversation, core = watched(trigger, "abcdefghij", predicates={"is_long": is_long})
    assert [len(text) for text in asked] == sorted(len(text) for text in asked)
    (wake,) = wakes(conversation, "audit")
    assert wake.t == conversation.transcript.tokens("output")[5][0] + 1
    # Each turn anew.
    say(conversation, "more")
    run(core)
    assert len(wakes(conversation, "audit")) == 1, "'again' is too short"


def test_a_stream_is_triggered_by_an_input_too() -> None:
    streams = {
        "user": spec("input"),
        "alarm": spec(trigger=Trigger(on="user", pattern="fire")),
        "output": spec(wait_k="end"),
    }
    core = NullCore(script={"output": ["hm"], "alarm": ["!"]})
    conversation = core.open(rows(streams))
    say(conversation, "there is a fire here")
    run(core)
    (wake,) = wakes(conversation, "alarm")
    assert wake.t == input_rows(conversation)[len("there is a fir")], (
        "in the row of the last letter, not after it"
    )


# ---- deadlines


@pytest.mark.parametrize("late", [False, True])
def test_an_overdue_backlog_of_paced_input_becomes_a_burst(late: bool) -> None:
    core = NullCore()
    conversation = core.open(rows({"user": spec("input", max_latency_ms=50.0), "output": spec()}))
    conversation.write("user", "twenty tokens in all, and more", now=0.0)
    for _ in range(5):
        step(core, now=0.01)
    assert conversation.t == 5
    step(core, now=0.06 if late else 0.04)
    left = len("twenty tokens in all, and") - 5
    assert conversation.t == 5 + (left if late else 1)
    assert conversation.num_queued == (0 if late else left - 1)
    if late:  # and what comes later is paced again
        conversation.write("user", " of them", now=0.07)
        step(core, now=0.08)
        assert conversation.t == 5 + left + 1


# ---- quiescence and the end of a turn


def test_a_silent_answer_is_owed_and_forced_once() -> None:
    core = NullCore(script={"output": [""]})
    conversation = core.open(rows())
    say(conversation, "say something")
    run(core)
    events = conversation.take_events()
    assert sum(isinstance(event, QuiescentEvent) for event in events) == 1
    assert [e.reason for e in conversation.transcript.events if e.kind == "force"] == ["quiescent"]
    assert isinstance(events[-1], TurnEvent)
    assert len(conversation.transcript.tokens("output")) == 1


def test_a_turn_that_generates_nothing_is_a_turn() -> None:
    core = NullCore(script={"output": ["", "yes"]})
    conversation = core.open(rows(), forces_answers=False)
    say(conversation, "say nothing")
    run(core)
    assert not conversation.turn_is_over, "quiescent: someone has to act"
    assert isinstance(conversation.take_events()[-1], QuiescentEvent)
    conversation.cancel("output")
    run(core)
    assert conversation.turn_is_over
    assert not conversation.transcript.tokens("output")
    say(conversation, "now?")
    run(core)
    assert conversation.turn_is_over
    assert conversation.transcript.text("output").startswith("yes")


def test_quiescence_is_left_by_force_or_by_more_input() -> None:
    core = NullCore(script={"output": [""]})
    for act in ("force", "write"):
        conversation = core.open(rows(), forces_answers=False)
        say(conversation, "hm")
        run(core)
        assert not conversation.turn_is_over
        if act == "force":
            conversation.force("output")
            run(core)
            assert conversation.turn_is_over
        else:
            before = conversation.t
            conversation.write("user", "well, then")
            run(core)
            assert conversation.t > before
            assert not conversation.turn_is_over


def test_a_result_on_its_way_holds_the_turn() -> None:
    topology = rows(
        {
            "user": spec("input"),
            "tool_result": spec("input"),
            "output": spec(),
            "tool_call": spec(visibility="internal"),
        }
    )
    core = NullCore(script={"output": ["wait"], "tool_call": [""]})
    for awaits in (False, True):
        conversation = core.open(topology)
        if awaits:
            conversation.await_result()
        say(conversation, "what is it?")
        run(core)
        assert conversation.turn_is_over is not awaits
        if awaits:
            assert not step(core), "and holding it costs nothing"
            say(conversation, "the result", "tool_result")
            conversation.result_came()
            run(core)
            assert conversation.turn_is_over
            assert conversation.turn == 1


# ---- verbs that come while a forward is computed

LIVES = {
    "rows": rows({"user": spec("input"), "thought": spec(max_streams=2), "output": spec(max_tokens=9)}),
    "late": rows({"user": spec("input"), "output": spec(wait_k=AdaptiveWait(max=6), max_tokens=9)}),
    "even later": rows(
        {"user": spec("input"), "output": spec(wait_k=AdaptiveWait(measure="input", max=9), max_tokens=9)}
    ),
    "kept": rows({"user": spec("input"), "output": spec(max_tokens=9), "note": spec()}, silence="kept"),
    "audit": rows(
        {
            "user": spec("input"),
            "output": spec(),
            "audit": spec(trigger=Trigger(on="output", pattern="[abc]")),
        }
    ),
    "views": Topology(
        decoding="views",
        streams={
            "user": spec("input"),
            "thought": spec(visibility="internal", wait_k=2, max_tokens=9),
            "output": spec(wait_k="end", max_tokens=9, stop=("ab",)),
        },
    ),
}
_acts = st.sampled_from(
    [
        [("write", "user", "a word ")],
        [("write", "user", "x")],
        [("end", None)],
        [("write", "user", "y "), ("end", "user")],
        [("flush", "user")],
        [("interrupt", None)],
        [("interrupt", "output")],
        [("cancel", None)],
        [("cancel", "output"), ("force", "output", None)],
        [("cancel", None), ("force", "output", "so")],
        [("force", "output", None)],
        [("force", "output", "so"), ("interrupt", "output")],
        [("await_result",), ("write", "user", "z "), ("result_came",)],
        [("close_stream", "user")],
        [("close_stream", "output")],
        [("close", "meanwhile")],
    ]
)
_moments = st.lists(st.tuples(st.integers(0, 2), _acts), max_size=2)


def mumble(draw: Draw) -> int:
    """Speaks, falls silent and ends, by a hash."""
    luck = hash((draw.seed, draw.turn, draw.index, len(draw.lane))) % 20
    if luck < 6 and SILENCE not in draw.banned:
        return SILENCE
    return codec().end_ids[0] if luck == 19 else 97 + luck % 5


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(sorted(LIVES)), min_size=3, max_size=3),
    st.booleans(),
    st.integers(0, 5),
    st.lists(st.tuples(_moments, _moments), min_size=1, max_size=30),
)
def test_verbs_during_a_forward_harm_nobody_and_are_replayed_where_they_came(
    kinds: list[str], forces: bool, seed: int, moments: list[tuple[Any, Any]]
) -> None:
    def core(journal: Journal | None) -> EngineCore:
        backend = NullBackend(
            NullModel(codec(), silence_token_id=SILENCE),
            speak=mumble,
            kv_tokens=600,
            page_size=4,
            confidence=0.4,
        )
        policy = SchedulerPolicy(step_tokens=24, chunk_tokens=8, min_chunk_tokens=2)
        return EngineCore(backend, policy=policy, journal=journal)

    journal = Journal()
    engine = core(journal)
    found = [engine.open(LIVES[kind], seed=seed + n, forces_answers=forces) for n, kind in enumerate(kinds)]
    for conversation in found:
        engine.do(conversation, "write", "user", "a few words ")

    def do(moment: Sequence[tuple[int, list[Any]]]) -> None:
        for number, verbs in moment:
            for verb in verbs if not found[number].is_closed else ():
                with suppress(SessionError, InputError):
                    engine.do(found[number], *verb)

    waiting: list[Any] = []

    def publish(_news: Sequence[Conversation]) -> None:
        if waiting:
            do(waiting.pop())

    for before, during in moments:
        do(before)
        waiting.append(during)
        report = engine.step(found, publish=publish)
        assert not report.failures
        check_books(engine)
    again = replay(core(None), journal.entries)
    assert [again[c.number].transcript for c in found] == [c.transcript for c in found]


@pytest.mark.parametrize("kind", LIVES)
def test_an_output_that_is_cancelled_and_forced_while_it_is_asked_begins_anew(kind: str) -> None:
    core = NullCore(speak=lambda draw: 97, confidence=0.1)
    conversation, other = core.open(LIVES[kind]), core.open(rows())
    for one in (conversation, other):
        say(one, "a few words")
    is_done = False

    def meanwhile(_news: Sequence[Conversation]) -> None:
        nonlocal is_done
        if wakes(conversation, "output") and not is_done:
            is_done = True
            core.do(conversation, "cancel", "output")
            core.do(conversation, "force", "output", "so")

    for _ in range(40):
        assert not core.step([conversation, other], publish=meanwhile).failures
    assert [wake.reason for wake in wakes(conversation, "output")][1:] == ["forced"]
    assert conversation.transcript.text("output").startswith("soa")
    assert len(other.transcript.tokens("output")) > 20


# ---- many turns (8)


def turns(
    core: EngineCore, conversation: Conversation, count: int, computed: Callable[[], int], text: str
) -> list[int]:
    """Tokens computed in each of so many equal turns."""
    found: list[int] = []
    for _ in range(count):
        before = computed()
        say(conversation, text)
        run(core, conversation)
        assert conversation.turn_is_over
        found.append(computed() - before)
    return found


def test_forty_turns_in_rows_cost_the_same_each() -> None:
    topology = rows({"user": spec("input"), "output": spec(max_tokens=5, sampling=ALWAYS_SPEAKS)})
    core = RecordingCore(trained(topology), kv_tokens=4000)
    conversation = core.open(topology)
    costs = turns(core, conversation, 40, lambda: core.recording.num_computed, "next?")
    assert len(set(costs)) == 1
    # All tokens of the turn once each; the last answer token is kept without a question.
    assert conversation.kv_tokens <= 40 * costs[0]


def test_forty_turns_in_views_compute_again_no_more_than_a_turn_s_own_text() -> None:
    core = NullCore(silence=False, script={"output": ["a short answer"] * 40})
    conversation = core.open(views())
    text = "and the next one, please?"
    costs = turns(core, conversation, 40, lambda: core.num_computed, text)
    said = len(text) + len("a short answer") + 1
    template = len("<|im_start|>") + 200  # of two messages; a bound, not a count
    assert max(costs[1:]) - min(costs[1:]) <= 1
    assert costs[-1] <= 2 * said + template
    assert costs[-1] <= costs[1] + 1
    assert conversation.turn == 40


def test_a_session_aborted_with_input_pending_is_gone_and_closing_again_is_harmless() -> None:
    core = NullCore()
    conversation, other = core.open(rows()), core.open(rows())
    for one in (conversation, other):
        say(one, "a question that will not be read")
        step(core)
    conversation.write("user", "and more")
    core.do(conversation, "close", "aborted")
    conversation.close()
    conversation.close("again")
    assert [e.reason for e in conversation.transcript.events if e.kind == "close"] == ["aborted"]
    with pytest.raises(SessionClosedError):
        conversation.write("user", "x")
    assert core.null.pool.num_used > 0
    run(core, steps=20)
    core.do(other, "close")
    core.null.pool.check_integrity()
    assert core.null.pool.num_used == 0
    with pytest.raises(SessionClosedError):
        other.end()


def test_a_turn_without_a_word_is_refused_and_the_next_one_is_served() -> None:
    core = NullCore(script={"output": ["yes", "yes"]})
    conversation = core.open(rows())
    with pytest.raises(EmptyInputError):
        conversation.end()
    for turn in range(1, 3):
        say(conversation, "well?")
        run(core)
        assert conversation.turn == turn
        conversation.end()  # a turn that is over has ended already
        assert not step(core)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_token_appended_in_the_fortieth_turn_costs_what_one_in_a_fresh_session_costs(
    smollm2: Model,
) -> None:
    """Cache length apart: compared with a session whose first turn was as long as forty turns are."""
    subject = Subject(smollm2)
    topology = rows({"user": spec("input"), "output": spec(max_tokens=8, sampling=subject.chatty(-1e9))})
    core = RecordingCore(subject.dressed(topology), kv_tokens=8192, page_size=16)
    old, fresh = core.open(topology), core.open(topology)
    for _ in range(39):
        say(old, "And what is the next one after that?")
        run(core, old)
    fresh.write("user", "the " * (old.t - 20))
    fresh.end()
    run(core, fresh)
    costs: dict[str, list[float]] = {"old": [], "fresh": []}
    for number in range(12):
        pair = [("old", old), ("fresh", fresh)]
        for name, conversation in pair if number % 2 else reversed(pair):
            rows_before = conversation.t
            say(conversation, "And what is the next one after that?")
            began = time.perf_counter()
            run(core, conversation)
            costs[name].append((time.perf_counter() - began) / (conversation.t - rows_before))
    last, first = statistics.median(costs["old"]), statistics.median(costs["fresh"])
    print(
        f"a row at {old.t} rows in turn {old.turn}: {last * 1e3:.2f} ms; at {fresh.t} rows in turn {fresh.turn}: "
        f"{first * 1e3:.2f} ms: {last / first:.3f}"
    )
    assert last <= 1.2 * first
