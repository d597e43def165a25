"""Answers of one tenant are guesses for its other sessions: they save forwards, change no token, and leak nowhere."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.guessing.shared_guesses import SharedGuesses
from braid.engine.journal import Journal, replay
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import LedgerLine
from braid.errors import InputError
from braid.streams.topology import Topology
from tests.engine.editing.test_editable import TOPOLOGIES, core_for, finish, plain, rows_of
from tests.engine.harness import step
from tests.properties import examples

TEXTS = ("Say it.", "Say it!", "Say more, please.", "What is it?")


def asked(core: RecordingCore, topology: Topology, text: str, **given: Any) -> Conversation:
    """A session that is told a text, and has answered."""
    conversation = core.open(topology, seed=9, **given)
    core.do(conversation, "tell", {topology.input_names[0]: text})
    finish(core, conversation)
    return conversation


def num_forwards(core: RecordingCore, topology: Topology, text: str, **given: Any) -> int:
    before = core.num_steps
    asked(core, topology, text, **given)
    return core.num_steps - before


# ---- what is kept


@given(
    answers=st.lists(
        st.tuples(st.sampled_from("abcd"), st.lists(st.integers(0, 5), max_size=30)), max_size=40
    )
)
def test_what_is_kept_stays_within_its_bounds(answers: list[tuple[str, list[int]]]) -> None:
    shared = SharedGuesses(most_tokens=40, most_in_all=60, most_salts=3)
    held = {salt: shared.cursor(salt) for salt in "abcd"}
    for salt, tokens in answers:
        shared.add(salt, tokens)
        assert shared.num_tokens <= 60
        for cursor in held.values():
            cursor.push(1)
            cursor.guess()
            cursor.ahead(8)


@given(
    mine=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=5),
    others=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=5),
    said=st.lists(st.integers(0, 3), max_size=12),
)
def test_a_salt_guesses_as_if_there_were_no_other(
    mine: list[list[int]], others: list[list[int]], said: list[int]
) -> None:
    alone, shared = SharedGuesses(), SharedGuesses()
    for tokens in others:
        shared.add("other", tokens)
    for tokens in mine:
        alone.add("mine", tokens)
        shared.add("mine", tokens)
        shared.add("other", tokens[::-1])
    expected, found = alone.cursor("mine"), shared.cursor("mine")
    for token in said:
        assert found.guess() == expected.guess()
        assert found.ahead(9) == expected.ahead(9)
        expected.push(token)
        found.push(token)


# ---- in the engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_same_request_again_takes_fewer_forwards(name: str, temperature: float) -> None:
    topology = TOPOLOGIES[name](temperature)
    core = core_for(topology)
    first = num_forwards(core, topology, TEXTS[0], guesses="tenant", salt="a")
    again = num_forwards(core, topology, TEXTS[0], guesses="tenant", salt="a")
    assert again < first
    for given_ in ({"salt": "a"}, {"salt": "b", "guesses": "tenant"}, {"guesses": "tenant"}):
        other = core_for(topology)
        for text in TEXTS[:2]:
            num_forwards(other, topology, text, guesses="tenant", salt="a")
        stranger = asked(other, topology, TEXTS[0], **given_)
        assert (stranger.ahead.num_accepted, stranger.ahead.num_rejected) == (0, 0), given_


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_answers_are_those_without_guesses(name: str, temperature: float, seed: int) -> None:
    """Several at once, live and editable, of two salts, one after another: all rows are the same."""
    topology = TOPOLOGIES[name](temperature)
    policy = SchedulerPolicy()

    def run(guesses: str) -> tuple[list[list[str]], int]:
        rng = random.Random(seed)
        core = core_for(topology, policy=policy, kv_tokens=8192)
        found: list[list[str]] = []
        accepted = 0
        for _ in range(3):
            batch = [
                core.open(topology, seed=rng.randint(0, 1), salt=rng.choice("ab"), guesses=guesses)  # pyright: ignore[reportArgumentType]
                for _ in range(3)
            ]
            for conversation in batch:
                text = {topology.input_names[0]: rng.choice(TEXTS)}
                core.do(conversation, *(("tell", text) if rng.random() < 0.5 else ("commit", text)))
            for _ in range(300):
                core.step(batch)
                if all(conversation.turn_is_over for conversation in batch):
                    break
            found += [rows_of(conversation) for conversation in batch]
            accepted += sum(conversation.ahead.num_accepted for conversation in batch)
            for conversation in batch:
                core.do(conversation, "close")
            core.cache.pool.check_integrity()
        return found, accepted

    with_guesses, _ = run("tenant")
    without, none_accepted = run("session")
    assert with_guesses == without
    assert none_accepted == 0


def test_own_drafts_come_before_those_of_others() -> None:
    topology = plain()
    core = core_for(topology)
    asked(core, topology, TEXTS[2], guesses="tenant")
    conversation = core.open(topology, seed=9, guesses="tenant")
    core.do(conversation, "snapshot", {"user": TEXTS[0]})
    for _ in range(40):
        step(core, conversation)
    core.do(conversation, "snapshot", {"user": TEXTS[0] + "x"})
    step(core, conversation)
    core.do(conversation, "commit", {"user": TEXTS[0]})
    finish(core, conversation)
    alone = core_for(topology)
    assert rows_of(conversation)[-12:] == rows_of(asked(alone, topology, TEXTS[0]))[-12:]
    assert conversation.ahead.num_accepted > 0


def test_only_what_was_committed_is_shared() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, guesses="tenant")
    core.do(conversation, "snapshot", {"user": TEXTS[0]})
    for _ in range(40):
        step(core, conversation)
    core.do(conversation, "rollback")
    step(core, conversation)
    assert core.shared.num_tokens == 0
    core.do(conversation, "commit", {"user": TEXTS[0]})
    finish(core, conversation)
    assert core.shared.num_tokens == len(
        conversation.transcript.tokens("output")
    )  # it is cut short, without an end


def test_there_are_two_kinds_of_guesses() -> None:
    with pytest.raises(InputError, match="session, tenant"):
        core_for(plain()).open(plain(), guesses="everybody")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_journal_replays_them(temperature: float) -> None:
    topology = plain(temperature)
    core = core_for(topology)
    core.journal = Journal()
    conversations = [asked(core, topology, text, guesses="tenant") for text in (*TEXTS, *TEXTS)]
    assert sum(conversation.ahead.num_accepted for conversation in conversations) > 0
    again = replay(core_for(topology), core.journal.entries)
    for conversation in conversations:
        assert rows_of(again[conversation.number]) == rows_of(conversation)
        assert again[conversation.number].ahead.num_accepted == conversation.ahead.num_accepted


@settings(max_examples=examples(10), deadline=None)
@given(num_steps=st.integers(0, 25))
def test_a_session_goes_on_in_another_process_that_knows_other_answers(num_steps: int) -> None:
    topology = plain(1.0)
    core, lines = core_for(topology), list[Any]()
    asked(core, topology, TEXTS[0], guesses="tenant")
    moved = core.open(topology, seed=9, guesses="tenant", ledger=[])
    core.do(moved, "tell", {"user": TEXTS[0]})
    for _ in range(num_steps):
        core.step([moved])
    lines += [news.line for news in moved.take_news() if isinstance(news, LedgerLine)]
    other = core_for(topology)
    asked(other, topology, TEXTS[1], guesses="tenant")
    found = other.open(topology, seed=9, guesses="tenant", ledger=lines)
    if not lines:
        other.do(found, "tell", {"user": TEXTS[0]})
    finish(other, found)
    assert found.transcript.text("output") == asked(core_for(topology), topology, TEXTS[0]).transcript.text(
        "output"
    )
