"""The journal replays to the same transcripts; who fails, fails alone; the order of asking decides nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.backend import Item
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, load_journal, replay
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import (
    EngineError,
    InputError,
    PoolTooSmallError,
    SamplingError,
    SessionError,
    TranscriptCorruptError,
    TranscriptError,
)
from braid.streams.entries import LifeEvent
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology, Trigger
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, chatty, codec, stock, trained
from tests.engine.witness import TOLERANCE, WitnessCore, check_books, drive

POLICY = SchedulerPolicy(step_tokens=20, chunk_tokens=8, min_chunk_tokens=4, seed=3)

ROWS = Topology(
    streams={
        "user": StreamSpec(direction="input", max_latency_ms=50),
        "thought": StreamSpec(direction="output", visibility="internal", max_tokens=9, sampling=chatty(2.0)),
        "audit": StreamSpec(direction="output", trigger=Trigger(on="thought"), max_tokens=2),
        "output": StreamSpec(direction="output", max_tokens=6, sampling=chatty(2.0)),
    }
)
VIEWS = Topology(
    decoding="views",
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal", max_tokens=9),
        "output": StreamSpec(direction="output", wait_k="end", max_tokens=6),
    },
)

Command = tuple[str, int, int]
"""What is done, to which session, and a number that means whatever it needs to."""

commands = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "open",
                "write",
                "write",
                "write",
                "end",
                "cancel",
                "force",
                "flush",
                "fork",
                "evict",
                "close",
                "fail",
            ]
            + ["step"] * 8
        ),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    min_size=12,
    max_size=60,
)


def null_core(
    journal: Journal | None = None, kv_tokens: int = 300, policy: SchedulerPolicy = POLICY
) -> EngineCore:
    backend = NullBackend(NullModel(codec(), silence_token_id=SILENCE), kv_tokens=kv_tokens, page_size=4)
    return EngineCore(backend, policy=policy, journal=journal)


def run(
    core: EngineCore, script: Iterable[Command], topologies: Sequence[Topology] = (ROWS, VIEWS)
) -> list[Conversation]:
    """Some life; every session that there was, open or not."""
    sessions = [core.open(topologies[0], seed=1)]
    now = 0.0
    for verb, which, number in script:
        conversation = sessions[which % len(sessions)]
        now += number / 50
        try:
            match verb:
                case "open":
                    sessions.append(
                        core.open(topologies[number % len(topologies)], seed=number, salt=str(number % 2))
                    )
                case "write":
                    # Of characters that some take for ends of lines, too.
                    core.do(
                        conversation,
                        "write",
                        "user",
                        ("hi ", "é\u2028ü ", "hello there, you ")[number % 3],
                        now=now,
                    )
                case "end" | "cancel":
                    core.do(conversation, verb, now=now)
                case "force":
                    core.do(conversation, "force", "output", "so ", now=now)
                case "flush":
                    core.do(conversation, "flush", "user", now=now)
                case "fork":
                    sessions.append(core.fork(conversation))
                case "evict":
                    core.evict(conversation)
                case "fail":
                    core.fail(conversation, PoolTooSmallError("given up")) if number == 7 else None
                case "step":
                    some = [c for i, c in enumerate(sessions) if number == 0 or (i + which) % number]
                    core.step(some, now=now)
                    check_books(core)
                case _:
                    core.do(conversation, verb)
        except (InputError, SessionError):
            continue
    return sessions


@settings(max_examples=40)
@given(commands, st.sampled_from([80, 300]))
def test_a_run_replays_to_the_same_transcripts_and_batches(script: list[Command], kv_tokens: int) -> None:
    journal, second = Journal(), Journal()
    sessions = run(null_core(journal, kv_tokens), script)
    entries = json.loads(json.dumps(journal.entries))  # as a file would give them back
    again = null_core(second, kv_tokens)
    found = replay(again, entries)
    assert sorted(found) == [c.number for c in sessions]
    for conversation in sessions:
        twin = found[conversation.number]
        assert twin.transcript == conversation.transcript
        assert (twin.is_closed, twin.is_evicted, twin.kv_tokens, twin.turn) == (
            conversation.is_closed, conversation.is_evicted, conversation.kv_tokens, conversation.turn,
        )  # fmt: skip
    check_books(again)


@settings(max_examples=5)
@given(commands)
def test_a_run_with_a_network_replays_too(script: list[Command]) -> None:
    """Sampled tokens, shared prefixes, a cache that is too small."""
    streams = {**ROWS.streams, "user": StreamSpec(direction="input", feed="burst")}
    topology = ROWS.model_copy(update={"streams": streams})
    model = trained(topology)
    journal = Journal()
    core = WitnessCore(model, policy=POLICY, kv_tokens=160, prefix_share=0.5, journal=journal)
    sessions = run(core, script, (topology,))
    again = WitnessCore(model, policy=POLICY, kv_tokens=160, prefix_share=0.5)
    found = replay(again, journal.entries)
    assert all(found[c.number].transcript == c.transcript for c in sessions)
    assert again.witness.num_computed == core.witness.num_computed


SCRIPT: list[Command] = [
    ("write", 0, 2), ("end", 0, 0), *[("step", 0, 0)] * 6, ("open", 0, 1), ("write", 1, 1), ("end", 1, 0),
    *[("step", 0, 0)] * 9, ("fork", 1, 0), ("write", 0, 0), *[("step", 0, 0)] * 9, ("close", 0, 0),
]  # fmt: skip


def test_a_turn_that_ends_without_a_forward_is_replayed() -> None:
    """The step that finds nothing left to do ends the turn: what is written then belongs to the next one."""
    journal = Journal()
    core = null_core(journal)
    conversation = core.open(ROWS)
    for text in ("one ", "two "):
        core.do(conversation, "write", "user", text)
        core.do(conversation, "end")
        while not conversation.turn_is_over:
            core.step([conversation])
    assert conversation.turn == 2
    assert replay(null_core(), journal.entries)[0].transcript == conversation.transcript


def test_who_was_asked_is_replayed() -> None:
    journal = Journal()
    core = null_core(journal)
    first, second = core.open(ROWS), core.open(ROWS)
    for conversation in (first, second):
        core.do(conversation, "write", "user", "hello ")
    for _ in range(3):
        core.step([second])
    assert second.t > first.t == 0
    core.do(first, "write", "user", "more ")
    for _ in range(30):
        core.step([first, second])
    found = replay(null_core(), journal.entries)
    assert [found[c.number].transcript == c.transcript for c in (first, second)] == [True, True]


def test_a_failure_is_replayed_with_what_its_clients_were_told() -> None:
    journal = Journal()
    core = null_core(journal)
    conversation = core.open(ROWS)
    core.do(conversation, "write", "user", "hello ")
    core.step([conversation])
    core.fail(conversation, PoolTooSmallError("no room"))
    core.fail(conversation, PoolTooSmallError("no room"))
    assert [entry["event"] for entry in journal.entries].count("fail") == 1
    again = replay(null_core(), journal.entries)[0]
    assert again.is_closed
    assert again.transcript.events[-1] == LifeEvent(t=conversation.t, kind="close", reason="cache.too_small")
    told = [event for event in again.take_events() if event.event == "error"]
    assert [(event.code, event.message) for event in told] == [("cache.too_small", "no room")]  # pyright: ignore[reportAttributeAccessIssue]


# ---- files


def recorded(path: Path) -> list[Conversation]:
    journal = Journal(path)
    sessions = run(null_core(journal), SCRIPT)
    journal.close()
    journal.close()
    return sessions


def test_a_file_replays_like_memory(tmp_path: Path) -> None:
    sessions = recorded(tmp_path / "journal.jsonl")
    memory = Journal()
    run(null_core(memory), SCRIPT)
    entries = load_journal(tmp_path / "journal.jsonl")
    assert entries == json.loads(json.dumps(memory.entries))
    found = replay(null_core(), entries)
    assert all(found[c.number].transcript == c.transcript for c in sessions)


@pytest.mark.parametrize("cut", [1, 2, 9, 30])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal.jsonl"
    recorded(path)
    whole = load_journal(path)
    path.write_bytes(path.read_bytes()[: -1 - cut])
    assert load_journal(path) == whole[:-1]
    replay(null_core(), whole[:-1])


def test_a_line_that_is_torn_within_a_character_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    core = null_core(journal)
    core.do(core.open(ROWS), "write", "user", "é")
    journal.close()
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex("é".encode()) + 1])
    assert [entry["event"] for entry in load_journal(path)] == ["open"]


@pytest.mark.parametrize("damage", ['{"event": "st', "3", "", "nothing"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.jsonl"
    recorded(path)
    lines = path.read_text(encoding="utf-8").split("\n")
    lines[4] = damage
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TranscriptCorruptError, match="line 5"):
        load_journal(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"event": "dance"},
        {"event": "step"},
        {},
        {"event": "verb", "session": 99, "verb": "end", "arguments": []},
    ],
)
def test_an_entry_that_makes_no_sense_is_refused(entry: dict[str, Any]) -> None:
    memory = Journal()
    run(null_core(memory), SCRIPT)
    with pytest.raises(TranscriptCorruptError):
        replay(null_core(), [*memory.entries[:3], entry])


def test_files_that_cannot_be_read_or_written_say_so(tmp_path: Path) -> None:
    with pytest.raises(TranscriptError, match="cannot read"):
        load_journal(tmp_path / "none.jsonl")
    with pytest.raises(TranscriptError, match="cannot write"):
        Journal(tmp_path / "no" / "folder.jsonl")


@pytest.mark.parametrize(
    "other",
    [
        lambda: null_core(kv_tokens=24),
        lambda: null_core(policy=SchedulerPolicy(step_tokens=7, chunk_tokens=5, min_chunk_tokens=1)),
    ],
    ids=["another pool", "another policy"],
)
def test_another_engine_is_noticed(other: Any) -> None:
    memory = Journal()
    run(null_core(memory), SCRIPT)
    with pytest.raises(TranscriptCorruptError, match=r"(?s)step \d+ was .* and is now "):
        replay(other(), memory.entries)


def test_control_a_verb_that_is_missing_is_noticed() -> None:
    memory = Journal()
    run(null_core(memory), SCRIPT)
    writes = [i for i, entry in enumerate(memory.entries) if entry.get("verb") == "write"]
    without = [entry for i, entry in enumerate(memory.entries) if i != writes[1]]
    with pytest.raises((TranscriptCorruptError, InputError)):
        replay(null_core(), without)


# ---- who is asked in which order


@settings(max_examples=25)
@given(commands, st.randoms(use_true_random=False), st.sampled_from([80, 300]))
def test_the_order_in_which_sessions_are_given_to_a_step_decides_nothing(
    script: list[Command], random: Any, kv_tokens: int
) -> None:
    def lived(shuffles: bool) -> list[Any]:
        core = null_core(kv_tokens=kv_tokens)
        step = core.step

        def shuffled(conversations: Sequence[Conversation], **named: Any) -> Any:
            order = list(conversations)
            if shuffles:
                random.shuffle(order)
            return step(order, **named)

        core.step = shuffled  # pyright: ignore[reportAttributeAccessIssue]
        return [(c.transcript, c.kv_tokens, c.is_evicted) for c in run(core, script)]

    assert lived(shuffles=True) == lived(shuffles=False)


# ---- who fails, fails alone


@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(0, 12), st.sampled_from([ROWS, VIEWS]))
def test_an_item_that_fails_closes_its_session_alone(victim: int, after: int, topology: Topology) -> None:
    def lived(fails: bool) -> list[Conversation]:
        num_seen = 0

        def fail(item: Item) -> None:
            nonlocal num_seen
            num_seen += item.session == victim
            if fails and num_seen > after and item.session == victim:
                raise RuntimeError("a kernel fell over")

        backend = NullBackend(
            NullModel(codec(), silence_token_id=SILENCE), kv_tokens=4000, page_size=4, fail=fail
        )
        core = EngineCore(backend, policy=SchedulerPolicy(step_tokens=4000))
        sessions = [core.open(topology, seed=number) for number in range(4)]
        for number, conversation in enumerate(sessions):
            core.do(conversation, "write", "user", "hello there " * (number + 1))
            core.do(conversation, "end")
        failures: list[tuple[int, BaseException]] = []
        for _ in range(60):
            report = core.step([c for c in sessions if not c.is_closed])
            check_books(core)
            failures += [(c.number, error) for c, error in report.failures]
        assert [number for number, _ in failures] == ([victim] if sessions[victim].is_closed else [])
        return sessions

    with_it, without = lived(fails=True), lived(fails=False)
    for number, (one, other) in enumerate(zip(with_it, without, strict=True)):
        if number == victim and one.is_closed:
            events = one.take_events()
            assert [event.event for event in events[-2:]] == ["error", "closed"]
            assert one.kv_tokens == 0
        else:
            assert one.transcript == other.transcript


@pytest.mark.parametrize("decoding", ["rows", "views"])
def test_a_bias_that_cannot_be_closes_its_session_alone(decoding: Any) -> None:
    """The batch is computed once more, each session by itself, so that it shows whose fault it was."""
    calm = SamplingSpec(temperature=1.0, top_k=20)
    poisoned = SamplingSpec(logit_bias={100_000: 1.0})

    def topology(sampling: SamplingSpec) -> Topology:
        output = StreamSpec(direction="output", wait_k="end", sampling=sampling, max_tokens=6)
        return Topology(decoding=decoding, streams={"user": StreamSpec(direction="input"), "output": output})

    def lived(num_poisoned: int) -> tuple[WitnessCore, list[Conversation]]:
        core = WitnessCore(stock())
        kinds = [calm, *[poisoned] * num_poisoned, calm]
        sessions = [core.open(topology(kind), seed=5) for kind in kinds]
        for conversation, text in zip(sessions, ("hello ", *["x "] * num_poisoned, "what now "), strict=True):
            core.do(conversation, "write", "user", text)
            core.do(conversation, "end")
        for _ in range(40):
            report = core.step([c for c in sessions if not c.is_closed])
            check_books(core)
            assert all(isinstance(error, SamplingError) for _, error in report.failures)
        return core, sessions

    core, sessions = lived(2)
    assert [c.is_closed for c in sessions] == [False, True, True, False]
    _, others = lived(0)
    for one, other in zip((sessions[0], sessions[3]), others, strict=True):
        assert one.turn_is_over and one.transcript == other.transcript
        assert core.difference(one) <= TOLERANCE


def test_a_predicate_that_raises_harms_its_own_session_alone() -> None:
    def broken(text: str) -> bool:
        raise ZeroDivisionError(text)

    asks = StreamSpec(direction="output", trigger=Trigger(on="user", predicate="broken"))
    topology = Topology(streams={"user": StreamSpec(direction="input"), "output": asks})
    core = null_core()
    bad = core.open(topology, predicates={"broken": broken})
    good = core.open(ROWS)
    for conversation in (bad, good):
        core.do(conversation, "write", "user", "hello ")
        core.do(conversation, "end")
    for _ in range(30):
        report = core.step([bad, good])
        assert all(c is bad and isinstance(error, EngineError) for c, error in report.failures)
    assert good.turn_is_over
    drive(core, good)
