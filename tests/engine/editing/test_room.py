"""A snapshot that could never be read, with all that stands around it, is refused before it counts."""

from __future__ import annotations

from typing import Any

import pytest

from braid.checks.subject import RecordingCore
from braid.engine.core import EngineCore
from braid.engine.session.conversation import Conversation
from braid.errors import BraidError, ContextOverflowError, PoolTooSmallError
from braid.model.codec import TokenizerCodec
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
        assert conversation.turn == 1 or not report.failures  # in views the next one has no room
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
