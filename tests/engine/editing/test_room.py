"""A snapshot that could never be read, with all that stands around it, is refused before it counts."""

from __future__ import annotations

import random
from typing import Any

import pytest

from braid.checks.subject import RecordingCore
from braid.engine.core import EngineCore
from braid.engine.session.conversation import Conversation
from braid.errors import BraidError, ContextOverflowError, PoolTooSmallError
from braid.model.codec import TokenizerCodec
from braid.streams.entries import LifeEvent
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.engine.editing.test_editable import (
    aloud,
    check_same,
    core_for,
    finish,
    fresh,
    native,
    plain,
)
from tests.engine.harness import SILENCE, codec, step, stock

LIMIT = stock().max_positions
Texts = dict[str, str]


def refuses(core: RecordingCore, conversation: Conversation, texts: Texts, error: type[BraidError]) -> None:
    """Snapshot and commit are refused by themselves, and the snapshot before goes on to count."""
    edit = conversation.edit
    for verb in ("snapshot", "commit"):
        with pytest.raises(error, match="the snapshot before it still counts"):
            core.do(conversation, verb, texts)
    assert conversation.edit is edit
    for _ in range(3):
        step(core, conversation)


@pytest.mark.parametrize("less", [0, 3, 5])
@pytest.mark.parametrize("name", ["plain", "native"])
def test_a_text_that_fits_only_by_itself_is_refused(name: str, less: int) -> None:
    topology = {"plain": plain, "native": native}[name]()
    core = core_for(topology, kv_tokens=4 * LIMIT)
    conversation = core.open(topology, seed=9)
    if name == "native":  # of which there is nothing but rows before the text
        core.do(conversation, "tell", {"user": "Say it."})
        finish(core, conversation)
    core.do(conversation, "snapshot", {"user": "Say it."})
    step(core, conversation)
    refuses(core, conversation, {"user": "x" * (LIMIT - less)}, ContextOverflowError)
    core.do(conversation, "commit")
    finish(core, conversation)
    assert not conversation.is_closed
    check_same(core, conversation, *fresh(topology, {"user": "Say it."}, turns=1 + (name == "native")))


def test_what_was_said_before_leaves_less_room() -> None:
    core = core_for(plain(), kv_tokens=4 * LIMIT)
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "tell", {"user": "x" * 500})
    finish(core, conversation)
    refuses(core, conversation, {"user": "y" * (LIMIT - 500)}, ContextOverflowError)
    assert conversation.edit is None, "it was the first snapshot of its turn"
    core.do(conversation, "commit", {"user": "y" * 500})
    finish(core, conversation)
    assert conversation.turn == 2


def test_a_history_that_a_snapshot_told_stands_before_the_texts_that_follow() -> None:
    core = core_for(plain(), kv_tokens=4 * LIMIT)
    conversation = core.open(plain(), seed=9)
    said = [("user", "x" * (LIMIT // 2)), ("assistant", "Yes."), ("user", "So?")]
    core.do(conversation, "snapshot", {}, "exact", [{"role": role, "content": text} for role, text in said])
    refuses(core, conversation, {"user": "y" * (LIMIT // 2)}, ContextOverflowError)
    core.do(conversation, "rollback")
    core.do(conversation, "snapshot", {"user": "y" * (LIMIT // 2)})


def test_streams_that_earlier_snapshots_told_take_their_room() -> None:
    topology = aloud()
    core = core_for(topology, kv_tokens=4 * LIMIT)
    conversation = core.open(topology, seed=9)
    core.do(conversation, "snapshot", {"document": "x" * (LIMIT // 2)})
    refuses(core, conversation, {"user": "y" * (LIMIT // 2)}, ContextOverflowError)
    core.do(conversation, "snapshot", {"document": "", "user": "y" * (LIMIT // 2)})


@pytest.mark.parametrize("length", [300, 239])
def test_a_text_that_is_larger_than_the_cache_is_refused(length: int) -> None:
    """The longer one for itself, the other one with the template and the page of the answer."""
    core = core_for(plain(), kv_tokens=256)
    conversation = core.open(plain(), seed=9)
    core.do(conversation, "snapshot", {"user": "Say it."})
    step(core, conversation)
    refuses(core, conversation, {"user": "x" * length}, PoolTooSmallError)
    core.do(conversation, "commit")
    finish(core, conversation)
    check_same(core, conversation, *fresh(plain(), {"user": "Say it."}))


@pytest.mark.parametrize(
    ("decoding", "feed", "silence"),
    [
        ("views", "burst", "dropped"),
        ("rows", "paced", "dropped"),
        ("rows", "burst", "dropped"),
        ("rows", "paced", "kept"),
    ],
)
def test_what_is_accepted_is_read_and_answered(decoding: Any, feed: Any, silence: Any) -> None:
    """The longest text that is not refused has room, and little less is refused than has none."""
    limit = 300
    streams = {
        "user": StreamSpec(direction="input", feed=feed),
        "document": StreamSpec(direction="input", feed=feed),
        "output": StreamSpec(direction="output", wait_k="end", max_tokens=1),
    }
    core = EngineCore(NullBackend(NullModel(codec(), silence_token_id=SILENCE, max_positions=limit)))
    conversation = core.open(Topology(decoding=decoding, silence=silence, streams=streams))

    def is_accepted(length: int) -> bool:
        try:
            core.do(conversation, "snapshot", {"user": "x" * length, "document": "yy"})
        except ContextOverflowError:
            return False
        return True

    most = sum(is_accepted(length) for length in range(1, limit))
    core.do(conversation, "commit")
    while conversation.turn == 0:
        report = core.step([conversation])
        assert not report.failures
    assert conversation.transcript.text("user") == "x" * most
    assert conversation.transcript.text("output")
    used = conversation.t if decoding == "rows" else conversation.peak_kv_tokens
    assert limit - 1 <= used <= limit


def test_a_book_is_refused_without_reading_it_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    core = core_for(plain())
    conversation = core.open(plain(), seed=9)
    encode, read = TokenizerCodec.encode, list[int]()

    def listen(codec: TokenizerCodec, text: str) -> Any:
        read.append(len(text))
        return encode(codec, text)

    monkeypatch.setattr(TokenizerCodec, "encode", listen)
    with pytest.raises(BraidError, match="send a shorter one"):
        core.do(conversation, "snapshot", {"user": "Say it. " * 100_000})
    assert sum(read) < 5 * LIMIT
    read.clear()
    core.do(conversation, "snapshot", {"user": "Say it. " * 100})
    assert not read, "so short a text has room whatever its tokens are"


def filled(topology: Topology, limit: int) -> tuple[EngineCore, Conversation]:
    """A session whose first turn has filled the context."""
    core = EngineCore(NullBackend(NullModel(codec(), silence_token_id=SILENCE, max_positions=limit)))
    conversation = core.open(topology)
    empty = has_room(conversation)
    core.do(conversation, "tell", {"user": "x" * (limit - empty)})
    answered(core, conversation, 1)
    return core, conversation


def answered(core: EngineCore, conversation: Conversation, turn: int) -> None:
    """Go on until a turn is over, and all that follows from it is done."""
    for _ in range(2000):
        if conversation.turn == turn and not conversation.has_work:
            return
        assert not core.step([conversation]).failures
    raise AssertionError(f"turn {conversation.turn} does not end")


def has_room(conversation: Conversation) -> int:
    """Tokens of a turn beside its input: the template, and a token of each answer."""
    preamble, outputs = conversation.stage.preamble, conversation.stage.open_outputs()
    assert preamble is not None
    return preamble.num_wanted + sum(len(preamble.closer_ids(lane.spec)) + 1 for lane in outputs)


@pytest.mark.parametrize("verb", ["write", "tell", "snapshot", "commit"])
def test_a_turn_for_which_the_one_before_left_no_room_is_refused(verb: str) -> None:
    topology = plain()
    core, conversation = filled(topology, 300)
    said = conversation.transcript.text("user")
    given: tuple[Any, ...] = ("user", "More?") if verb == "write" else ({"user": "More?"},)
    for _ in range(2):
        with pytest.raises(ContextOverflowError, match="leave out the beginning"):
            core.do(conversation, verb, *given)
        assert not core.step([conversation]).failures
        assert not conversation.has_work
    assert not conversation.is_closed
    assert conversation.transcript.text("user") == said
    assert conversation.turn == 1


def test_messages_that_leave_out_the_beginning_give_a_full_session_room_again() -> None:
    topology = plain()
    core, conversation = filled(topology, 300)
    short = [{"role": "user", "content": "Yes?"}, {"role": "assistant", "content": "So."}]
    asked = {"role": "user", "content": "More?"}
    core.do(conversation, "snapshot", {}, "exact", [*short, asked])
    core.step([conversation])
    core.do(conversation, "rollback")
    assert not core.step([conversation]).failures
    core.do(conversation, "commit", {}, "exact", [*short, asked])
    answered(core, conversation, 2)
    core.do(conversation, "tell", {"user": "And?"})
    answered(core, conversation, 3)


def test_a_full_session_that_lost_its_cache_is_refilled_for_shorter_messages() -> None:
    core, conversation = filled(plain(), 300)
    core.evict(conversation)
    assert not core.step([conversation]).failures
    core.do(conversation, "commit", {}, "exact", [{"role": "user", "content": "More?"}])
    answered(core, conversation, 2)


@pytest.mark.parametrize(("decoding", "thinks"), [("views", True), ("views", False), ("rows", False)])
def test_an_answer_that_fills_the_context_ends_there(decoding: Any, thinks: bool) -> None:
    limit = 60
    streams = {"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output", wait_k="end")}
    if thinks:
        streams["thought"] = StreamSpec(direction="output", wait_k="end", visibility="internal")
    model = NullModel(codec(), silence_token_id=SILENCE, max_positions=limit)
    core = EngineCore(NullBackend(model, script={name: ["x" * 500] for name in streams}))
    conversation = core.open(Topology(decoding=decoding, streams=streams))
    core.do(conversation, "tell", {"user": "Say it."})
    answered(core, conversation, 1)
    assert not conversation.is_closed
    ends = [e for e in conversation.transcript.entries if isinstance(e, LifeEvent) and e.kind == "sleep"]
    assert {(end.lane, end.reason) for end in ends} == {
        (name, "length") for name in streams if name != "user"
    }
    used = conversation.t if decoding == "rows" else conversation.peak_kv_tokens
    assert limit - len(streams) < used <= limit


@pytest.mark.parametrize("decoding", ["views", "rows"])
@pytest.mark.parametrize("seed", range(12))
def test_drafts_change_nothing_where_the_context_ends(decoding: Any, seed: int) -> None:
    """A session whose turns are drafted says what one does that is told at once, up to the end of the context."""
    rng = random.Random(seed)
    streams = {"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output", wait_k="end")}
    topology = Topology(decoding=decoding, streams=streams)

    def opened() -> tuple[EngineCore, Conversation]:
        model = NullModel(codec(), silence_token_id=SILENCE, max_positions=90)
        script = {"output": ["yes " * rng.randint(1, 9) for _ in range(12)]}
        core = EngineCore(NullBackend(model, script=script))
        return core, core.open(topology, seed=9)

    state = rng.getstate()
    drafting, drafted = opened()
    rng.setstate(state)
    telling, told = opened()
    for turn in range(1, 13):
        text = "so it goes " * rng.randint(1, 3)
        try:
            telling.do(told, "tell", {"user": text})
        except ContextOverflowError:
            with pytest.raises(ContextOverflowError):
                drafting.do(drafted, "commit", {"user": text})
            break
        try:
            for length in sorted(rng.sample(range(1, len(text)), 3)):
                drafting.do(drafted, "snapshot", {"user": text[:length]})
                for _ in range(rng.choice((0, 3, 40))):
                    assert not drafting.step([drafted]).failures
            drafting.do(drafted, "commit", {"user": text})
        except ContextOverflowError:
            break  # the other one would fail while it reads
        answered(drafting, drafted, turn)
        answered(telling, told, turn)
        assert drafted.transcript.text("output") == told.transcript.text("output")
    else:
        raise AssertionError("the context was never full")
    assert not drafted.is_closed
    assert drafted.turn > 0
