"""Snapshots of messages: whatever they were, a committed turn is that of a session opened with that conversation."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.backend import PREAMBLE
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import (
    BraidError,
    ChatTemplateError,
    ContextOverflowError,
    EditAfterConsumed,
    EmptyInputError,
    InputError,
    RegimeError,
    StreamClosedError,
    UnknownStreamError,
)
from braid.model.chat import Chat
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.streams.topology import Topology
from tests.engine.editing.test_editable import (
    aloud,
    check_same,
    core_for,
    edited,
    finish,
    lines_from,
    native,
    plain,
    rows_of,
)
from tests.engine.harness import step, stock
from tests.engine.witness import TOLERANCE, WitnessCore, drive, state_of, told
from tests.fakes import byte_tokenizer
from tests.model.networks import network
from tests.properties import examples

Messages = list[dict[str, Any]]

TOPOLOGIES = {"plain": plain, "aloud": aloud}


def of(*contents: str) -> Messages:
    """A conversation in which the user and the assistant take turns; the user has the last word."""
    roles = ("user", "assistant")
    first = len(contents) % 2 == 0
    return [{"role": roles[(number + first) % 2], "content": text} for number, text in enumerate(contents)]


def fresh(topology: Topology, messages: Messages, others: dict[str, str] | None = None) -> Any:
    """A session that is opened with the conversation, and told the last message."""
    core = core_for(topology)
    conversation = core.open(topology, seed=9, chat=Chat.of(messages).to_data())
    texts = {"user": messages[-1]["content"], **(others or {})}
    core.do(conversation, "tell", {name: text for name, text in texts.items() if text})
    finish(core, conversation)
    return core, conversation


def edited_messages(rng: random.Random, messages: Messages) -> Messages:
    """One edit of a conversation: most often of the last message, else of the history."""
    messages = [dict(message) for message in messages]
    kind = rng.random()
    if kind < 0.4 or len(messages) == 1:
        messages[-1]["content"] = edited(rng, messages[-1]["content"])
    elif kind < 0.5:
        message = rng.choice(messages[:-1])  # so that the preamble is as long as before
        message["content"] = "".join(rng.choice("abc") for _ in message["content"])
    elif kind < 0.6:
        message = rng.choice(messages[:-1])
        message["content"] = edited(rng, message["content"])
    elif kind < 0.75:
        del messages[rng.randrange(len(messages) - 1)]
    else:
        role = rng.choice(("system", "user", "assistant"))
        messages.insert(rng.randrange(len(messages)), {"role": role, "content": edited(rng, "so ")})
    if kind < 0.1:
        messages = [{"role": "assistant", "content": "Well?"}, *messages]
    return messages


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_conversation_is_that_of_a_fresh_session(
    name: str, temperature: float, seed: int
) -> None:
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](temperature)
    core = core_for(topology)
    began = of("Hi.", "Yes?", "") if rng.random() < 0.5 else None
    chat = None if began is None else Chat.of(began).to_data()
    conversation = core.open(topology, seed=9, chat=chat)
    messages = began or of("")
    document = ""
    for _ in range(rng.randint(1, 8)):
        if rng.random() < 0.8:
            messages = edited_messages(rng, messages)
        elif "document" in topology.input_names:
            document = edited(rng, document)
        mode = "exact" if temperature else rng.choice(("exact", "exact", "repair"))
        others = {"document": document} if "document" in topology.input_names else {}
        core.do(conversation, "snapshot", others, mode, messages)
        for _ in range(rng.choice((0, 1, 3, 20))):
            step(core, conversation)
            assert conversation.t == 0, "a draft is not told"
        if rng.random() < 0.15:
            core.evict(conversation)
        if rng.random() < 0.1:
            core.do(conversation, "rollback")
            if rng.random() < 0.5:
                step(core, conversation)
    if not messages[-1]["content"]:
        messages[-1] = {**messages[-1], "content": "so"}
    others = {"document": document} if document else {}
    core.do(conversation, "commit", {"document": document} if "document" in topology.input_names else {}, "exact",
            messages)  # fmt: skip
    finish(core, conversation)
    other, expected = fresh(topology, messages, others)
    # What was evicted is named in the news, not in the transcript; how the preamble was cut is no part of it.
    check_same(core, conversation, other, expected)
    assert conversation.stage.preamble is not None and expected.stage.preamble is not None
    assert conversation.stage.preamble.history == expected.stage.preamble.history
    assert conversation.counts is not None
    assert 0 <= conversation.counts.wasted <= conversation.counts.computed


@pytest.mark.parametrize("seed", range(6))
def test_the_next_turn_goes_on_with_the_conversation_that_was_committed(seed: int) -> None:
    rng = random.Random(seed)
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    messages = of("Hi.", "Yes?", "So?")
    for _ in range(4):
        core.do(conversation, "snapshot", {}, "exact", edited_messages(rng, messages))
        for _ in range(rng.choice((1, 5, 20))):
            step(core, conversation)
    core.do(conversation, "commit", {}, "exact", messages)
    finish(core, conversation)
    other, expected = fresh(plain(), messages)
    for tells in (
        lambda c, o: c.do(o, "tell", {"user": "And?"}),
        lambda c, o: c.do(o, "commit", {"user": "And?"}),
    ):
        tells(core, conversation)
        finish(core, conversation)
        tells(other, expected)
        finish(other, expected)
        check_same(core, conversation, other, expected)


def test_a_later_turn_may_tell_another_conversation() -> None:
    """Greedy, what is said is that of a session that was opened with it, whatever was before."""
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "tell", {"user": "Something else."})
    finish(core, conversation)
    before = len(conversation.transcript.entries)
    messages = of("Hi.", "Yes?", "So it goes.")
    core.do(conversation, "snapshot", {}, "exact", messages[-1:])
    for _ in range(5):
        step(core, conversation)
    core.do(conversation, "commit", {}, "exact", messages)
    finish(core, conversation)
    _, expected = fresh(plain(), messages)
    assert conversation.transcript.text("output", before) == expected.transcript.text("output")


def test_what_is_taken_back_leaves_the_session_as_it_was() -> None:
    core = core_for(plain())
    chat = Chat.of(of("Hi.", "Yes?", "")).to_data()
    conversation = core.open(plain(), seed=9, chat=chat)
    for messages in (of("Hi.", "No.", "So"), of("Hello."), of("A", "B", "C", "D", "E")):
        core.do(conversation, "snapshot", {}, "exact", messages)
        for _ in range(7):
            step(core, conversation)
        core.do(conversation, "rollback")
        for _ in range(3):
            step(core, conversation)
        assert not conversation.has_work
        assert conversation.transcript.rows == []
    core.do(conversation, "tell", {"user": "Say it."})
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), of("Hi.", "Yes?", "Say it.")))


def test_another_history_of_the_same_length_is_another_one() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    for first in ("Hi.", "Ho.", "Hi.", "Ha."):
        core.do(conversation, "snapshot", {}, "exact", of(first, "Yes?", "So it goes."))
        for _ in range(9):
            step(core, conversation)
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), of("Ha.", "Yes?", "So it goes.")))


def test_a_text_alone_leaves_the_conversation_as_it_was_told() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {}, "exact", of("Hi.", "Yes?", "So"))
    for text in ("So it", "So it goes."):
        core.do(conversation, "snapshot", {"user": text})
        for _ in range(4):
            step(core, conversation)
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), of("Hi.", "Yes?", "So it goes.")))


def prefilled(
    core: RecordingCore, conversation: Conversation, messages: Messages, mode: str = "exact"
) -> int:
    """Tokens that following a snapshot takes, but for those of its draft."""
    counts = conversation.counts
    before = 0 if counts is None else counts.computed - counts.drafted
    core.do(conversation, "snapshot", {}, mode, messages)
    for _ in range(30):
        step(core, conversation)
    assert conversation.counts is not None
    return conversation.counts.computed - conversation.counts.drafted - before


def test_only_what_stands_behind_the_first_change_is_computed() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9, most_drafted=0)
    long = "".join(f"{number} bottles of beer on the wall, " for number in range(9))
    first = prefilled(core, conversation, of(long, "Yes.", long, "Well.", "So"))
    assert first > 600
    assert prefilled(core, conversation, of(long, "Yes.", long, "Well.", "So it goes")) < 60
    assert prefilled(core, conversation, of(long, "Yes.", long, "No.", "So it goes")) < 120
    assert prefilled(core, conversation, of(long, "Yes.", long, "Well.", "So it goes"), "reuse") < 120
    assert conversation.counts is not None
    assert conversation.counts.fallbacks == 1, "nothing that reads the history is taken over when it changes"
    assert prefilled(core, conversation, of("Oh.", "Yes.", long, "Well.", "So it goes")) > 300


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(max_examples=examples(10), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_conversation_outlives_the_process(name: str, seed: int) -> None:
    """Whatever was drafted, taken back and evicted before, the ledger leads to what was committed."""
    rng = random.Random(seed)
    topology = TOPOLOGIES[name](1.0)
    core = core_for(topology)
    conversation = core.open(topology, seed=9, ledger=[])
    lines: list[Any] = []

    def hear() -> None:
        lines.extend(lines_from(conversation))

    messages = of("Hi.", "Yes?", "So it goes.")
    for _ in range(3):
        core.do(conversation, "snapshot", {}, "exact", edited_messages(rng, messages))
        for _ in range(rng.choice((0, 1, 4, 20))):
            core.step([conversation])
        if rng.random() < 0.3:
            core.evict(conversation)
        if rng.random() < 0.3:
            core.do(conversation, "rollback")
            core.step([conversation])
        hear()
    assert not any("snapshot" in line for line in lines)
    is_alone = rng.random() < 0.2
    if is_alone:  # nothing is said of the conversation
        core.do(conversation, "rollback")
        messages = of("So.")
        core.do(conversation, "commit", {"user": "So."})
    else:
        core.do(conversation, "commit", {}, "exact", messages)
    hear()
    for _ in range(rng.choice((0, 1, 2, 3, 5, 40))):
        if not conversation.turn_is_over:
            core.step([conversation])
        hear()
    cut = rng.randint(next(i for i, line in enumerate(lines) if line[:2] == ["do", "commit"]) + 1, len(lines))
    if lines[cut - 1] == ["released"]:
        cut += 1  # a store takes both lines, or none
    other = core_for(topology)
    resumed = other.open(topology, seed=9, ledger=lines[:cut])
    finish(other, resumed)
    finish(core, conversation)
    _, expected = fresh(topology, messages)
    rows = [row.cells for row in expected.transcript.rows]
    assert [row.cells for row in conversation.transcript.rows] == rows
    assert [row.cells for row in resumed.transcript.rows] == rows
    others, preambles = told(resumed)
    wanted, wanted_preambles = told(expected)
    assert [str(entry) for entry in others] == [str(entry) for entry in wanted]
    assert [entry.tokens for entry in preambles[-1:]] == [entry.tokens for entry in wanted_preambles[-1:]]


def test_what_is_read_after_a_draft_was_taken_back_outlives_the_process() -> None:
    """The session's own history takes several steps then, and the ledger knows which."""
    policy = SchedulerPolicy(step_tokens=12, chunk_tokens=12, min_chunk_tokens=4)
    chat = Chat.of(of("How many are there on the wall?", "Ninety-nine bottles of beer.", "")).to_data()
    core = core_for(plain(), policy=policy)
    conversation = core.open(plain(), seed=9, ledger=[], chat=chat)
    core.do(conversation, "snapshot", {}, "exact", of("Hi.", "Yes?", "So"))
    for _ in range(40):
        core.step([conversation])
    core.do(conversation, "rollback")
    core.step([conversation])
    core.do(conversation, "tell", {"user": "So it goes."})
    lines: list[Any] = []
    while not conversation.turn_is_over:
        core.step([conversation])
        lines += lines_from(conversation)
    assert ["held"] in [line[:1] for line in lines]
    told = next(number for number, line in enumerate(lines) if line[:2] == ["do", "tell"])
    for cut in range(told + 1, len(lines) + 1, 5):
        other = core_for(plain(), policy=policy)
        resumed = other.open(plain(), seed=9, ledger=lines[:cut], chat=chat)
        finish(other, resumed)
        assert rows_of(resumed) == rows_of(conversation)


def test_the_preamble_of_the_transcript_is_the_one_that_was_read() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    for messages in (of("Hi.", "Yes?", "So"), of("Hi.", "No.", "So"), of("Hi.", "Yes?", "So.")):
        core.do(conversation, "snapshot", {}, "exact", messages)
        for _ in range(6):
            step(core, conversation)
    core.do(conversation, "commit")
    finish(core, conversation)
    (event,) = [entry for entry in told(conversation)[1] if entry.lane == PREAMBLE]
    _, expected = fresh(plain(), of("Hi.", "Yes?", "So."))
    (wanted,) = told(expected)[1]
    assert event.tokens == wanted.tokens


def test_variables_of_the_template_stay_those_of_the_session() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "<{{ mood }}>" + str(tokenizer.chat_template)
    model = Model(network("llama"), TokenizerCodec(tokenizer), name="moody")
    messages = of("Hi.", "Yes?", "So.")
    found, other = (RecordingCore(model, kv_tokens=2048) for _ in range(2))
    conversation = found.open(plain(), seed=9, chat=Chat.of(of(""), {"mood": "warm"}).to_data())
    expected = other.open(plain(), seed=9, chat=Chat.of(messages, {"mood": "warm"}).to_data())
    found.do(conversation, "commit", {}, "exact", messages)
    other.do(expected, "tell", {"user": "So."})
    finish(found, conversation)
    finish(other, expected)
    assert conversation.stage.preamble is not None
    assert conversation.stage.preamble.text.startswith("<warm>")
    check_same(found, conversation, other, expected)


def test_many_conversations_that_change_in_a_small_pool_lose_nothing() -> None:
    """Drafts of histories take no room from others; whoever commits is answered as ever."""
    rng = random.Random(0)
    core = core_for(plain(), kv_tokens=512)
    sessions = [core.open(plain(), seed=9) for _ in range(16)]
    told = [of(f"This is number {number}.", "Yes?", f"And {number} goes on.") for number in range(16)]
    for _ in range(4):
        for conversation, messages in zip(sessions, told, strict=True):
            core.do(conversation, "snapshot", {}, "exact", edited_messages(rng, messages))
        for _ in range(3):
            assert not core.step(sessions).failures
            core.cache.pool.check_integrity()
    for conversation, messages in zip(sessions, told, strict=True):
        core.do(conversation, "commit", {}, "exact", messages)
    for _ in range(1500):
        if all(conversation.turn_is_over for conversation in sessions):
            break
        assert not core.step(sessions).failures
        core.cache.pool.check_integrity()
    for number in (0, 7, 15):
        _, expected = fresh(plain(), told[number])
        rows = [row.cells for row in expected.transcript.rows]
        assert [row.cells for row in sessions[number].transcript.rows] == rows


# ---- what is said wrongly


def strict() -> Model:
    """Its template knows no other order than user, assistant, user."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m['content'] }}]{% endfor %}"
    )
    return Model(network("llama"), TokenizerCodec(tokenizer), name="strict")


USER = {"role": "user", "content": "So."}
WRONG: dict[str, tuple[Messages, dict[str, str], type[BraidError], str]] = {
    "nothing": ([], {}, InputError, "at least one message"),
    "no role": ([{"content": "Hi."}, USER], {}, InputError, "message 0 has no role"),
    "unknown role": ([{"role": "robot", "content": "Hi."}, USER], {}, InputError, "roles are"),
    "no text": ([{"role": "user", "content": 3}, USER], {}, InputError, "the content is text"),
    "half a character": ([{"role": "user", "content": "\ud800"}, USER], {}, InputError, "surrogate"),
    "no plain data": ([{"role": "assistant", "tool_calls": {1}}, USER], {}, InputError, "plain data"),
    "the assistant last": (of("Hi.", "Yes?", "So?")[:2], {}, InputError, "assistant's"),
    "the system last": ([USER, {"role": "system", "content": "Be brief."}], {}, InputError, "system's"),
    "a text told twice": (of("Hi."), {"user": "Ho."}, InputError, "twice"),
    "an unknown stream": (of("Hi."), {"nobody": "Ho."}, UnknownStreamError, "nobody"),
    "a history too long": (of("x" * 5000, "Yes?", "So?"), {}, ContextOverflowError, "positions"),
    "a message too long": (of("Hi.", "Yes?", "x" * 5000), {}, ContextOverflowError, "positions"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("verb", ["snapshot", "commit"])
def test_wrong_messages_change_nothing(verb: str, case: str) -> None:
    messages, texts, wanted, says = WRONG[case]
    core = WitnessCore(stock())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {}, "exact", of("Hi.", "Yes?", "So."))
    for _ in range(4):
        core.step([conversation])
    edit = conversation.edit
    assert edit is not None
    before = state_of(core, conversation), edit.history, dict(edit.texts), edit.is_outdated
    with pytest.raises(wanted, match=says):
        core.do(conversation, verb, texts, "exact", messages)
    assert (state_of(core, conversation), edit.history, edit.texts, edit.is_outdated) == before
    core.do(conversation, "commit")
    drive(core, conversation)
    assert core.difference(conversation) <= TOLERANCE
    assert rows_of(conversation) == rows_of(fresh(plain(), of("Hi.", "Yes?", "So."))[1])


def test_a_template_says_itself_what_it_refuses() -> None:
    core = RecordingCore(strict(), kv_tokens=2048)
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {}, "exact", of("Hi.", "Yes?", "So."))
    step(core, conversation)
    with pytest.raises(ChatTemplateError, match="alternate"):
        core.do(conversation, "snapshot", {}, "exact", of("Yes?", "So."))
    core.do(conversation, "commit")
    finish(core, conversation)
    assert conversation.stage.preamble is not None
    assert [message.content for message in conversation.stage.preamble.history[:3]] == ["Hi.", "Yes?", "So."]


def test_native_streams_have_no_place_for_messages() -> None:
    core = core_for(native())
    conversation = core.open(native(), seed=9)
    for verb in ("snapshot", "commit"):
        with pytest.raises(InputError, match="topologies of views"):
            core.do(conversation, verb, {}, "exact", of("Hi."))
    assert conversation.edit is None


def test_messages_in_the_wrong_order_of_verbs() -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    with pytest.raises(EmptyInputError):
        core.do(conversation, "commit", {}, "exact", of("Hi.", "Yes?", ""))
    assert conversation.edit is None
    core.do(conversation, "commit", {}, "exact", of("Hi."))
    for verb in ("snapshot", "commit"):
        with pytest.raises(EditAfterConsumed):
            core.do(conversation, verb, {}, "exact", of("Ho."))
    finish(core, conversation)
    core.do(conversation, "write", "user", "more ")
    with pytest.raises(RegimeError):
        core.do(conversation, "snapshot", {}, "exact", of("Ho."))
    core.do(conversation, "end")
    finish(core, conversation)
    core.do(conversation, "close_stream", "user")
    with pytest.raises(StreamClosedError):
        core.do(conversation, "snapshot", {}, "exact", of("Ho."))


def test_an_empty_message_is_one() -> None:
    """It stands in the history as the template renders it; a conversation of one empty message says nothing."""
    messages = of("Hi.", "", "So.")
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "commit", {}, "exact", messages)
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), messages))


def test_without_a_template_messages_are_paragraphs() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    model = Model(network("llama"), TokenizerCodec(tokenizer), name="bare")
    messages = of("Hi.", "Yes?", "So.")
    found = RecordingCore(model, kv_tokens=2048)
    conversation = found.open(plain(), seed=9)
    core = RecordingCore(model, kv_tokens=2048)
    expected = core.open(plain(), seed=9, chat=Chat.of(messages).to_data())
    found.do(conversation, "snapshot", {}, "exact", of("Hi.", "No.", "So."))
    for _ in range(5):
        step(found, conversation)
    found.do(conversation, "commit", {}, "exact", messages)
    core.do(expected, "tell", {"user": "So."})
    finish(found, conversation)
    finish(core, expected)
    check_same(found, conversation, core, expected)
    assert conversation.stage.preamble is not None
    assert conversation.stage.preamble.text.startswith("Hi.\n\nYes?\n\nSo.\n\n")
