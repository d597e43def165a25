"""Templates: what is filled in is what a session reads, and what stands behind a slot stays where it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.backend import Op, Splice
from braid.errors import (
    BraidError,
    EmptyInputError,
    FixedSegmentError,
    InputError,
    RepeatedSegmentError,
    TemplateError,
    UnknownKeyError,
    UnknownSegmentError,
)
from braid.model.chat import Chat
from braid.model.codec import TokenizerCodec
from braid.sessions.snapshots import Snapshots
from braid.sessions.template import Template, merged
from braid.streams.topology import Topology
from tests import fakes
from tests.engine.editing.test_editable import aloud, check_same, core_for, edited, finish, native, plain
from tests.engine.harness import codec, step
from tests.properties import examples

DOCUMENT = Template.of(
    {
        "segments": [
            {"id": "rules", "fixed": "Answer from this:\n"},
            {"id": "document", "room": 16},
            {"id": "ask", "fixed": "\nQuestion: "},
            {"id": "question"},
        ]
    }
)
LOCAL = Template.of(
    {
        "segments": [
            {"id": "rules", "fixed": "Answer from this:\n"},
            {"id": "document", "positions": "local"},
            {"id": "ask", "fixed": "\nQuestion: "},
            {"id": "question"},
        ]
    }
)
CHATTY = Template.of(
    {
        "segments": [
            {"id": "system", "fixed": "Be brief.", "role": "system"},
            {"id": "example", "role": "user"},
            {"id": "answer", "role": "assistant", "room": 8},
            {"id": "document", "room": 8},
            {"id": "note", "positions": "local"},
            {"id": "question"},
        ]
    }
)
TEMPLATES = {"room": DOCUMENT, "local": LOCAL, "chat": CHATTY}


def slots_of(template: Template) -> list[str]:
    return [segment.id for segment in template.segments if segment.fixed is None]


# ---- what a template may be


@pytest.mark.parametrize(
    ("segments", "says"),
    [
        ([], "no slot"),
        ([{"id": "a", "fixed": "x"}], "no slot"),
        ([{"id": "a"}, {"id": "a"}], "two segments are called a"),
        ([{"id": "a", "fixed": "x", "room": 8}, {"id": "b"}], "needs no room"),
        ([{"id": "a", "room": 1}], r"segments\[0\]\.room"),
        ([{"id": "2a"}], r"segments\[0\]\.id"),
        ([{"id": "a", "role": "robot"}], r"segments\[0\]\.role"),
        ([{"id": "a"}, {"id": "b", "role": "assistant"}], "the last segment is the user's"),
        ([{"id": "a", "role": "system", "positions": "local"}, {"id": "b"}], "before the input"),
    ],
)
def test_what_makes_no_template(segments: list[Any], says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        Template.of({"segments": segments})


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownKeyError, match="positions"):
        Template.of({"segments": [{"id": "a", "position": "local"}]})


def test_a_template_is_plain_data() -> None:
    for template in TEMPLATES.values():
        assert Template.of(template.to_dict()) == template


def test_local_segments_become_inputs() -> None:
    base = Topology.from_dict(
        {
            "decoding": "views",
            "streams": {
                "user": {"direction": "input"},
                "thought": {"direction": "output", "visibility": "internal"},
                "output": {"direction": "output"},
            },
            "reads": {"output": ["user"], "thought": []},
        }
    )
    made = LOCAL.topology(base)
    assert made.input_names == ("rules", "document", "user")
    assert made.reads["output"] == ("rules", "document", "user")
    assert made.reads["thought"] == ()
    assert DOCUMENT.topology(base) is base


@pytest.mark.parametrize(
    ("base", "says"),
    [
        (native(), "topologies of views"),
        (
            Topology.from_dict(
                {
                    "decoding": "views",
                    "streams": {
                        "user": {"direction": "input"},
                        "document": {"direction": "input"},
                        "output": {"direction": "output"},
                    },
                }
            ),
            "rename one of them",
        ),
    ],
)
def test_where_local_segments_cannot_be(base: Topology, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        LOCAL.topology(base)


def test_a_session_must_have_the_streams_of_its_template() -> None:
    with pytest.raises(TemplateError, match=r"template\.topology"):
        LOCAL.fitted(codec(), plain())


# ---- room

TOKENIZERS: dict[str, Callable[[], Any]] = {
    name: getattr(fakes, f"{name}_tokenizer") for name in ("byte", "gpt2", "llama3", "qwen", "sentencepiece")
}


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_what_stands_behind_a_slot_stays_in_its_place(name: str, seed: int) -> None:
    rng = random.Random(seed)
    tokenizer = TokenizerCodec(TOKENIZERS[name]())
    fitted = DOCUMENT.fitted(tokenizer, plain())
    text = ""
    tails: dict[int, tuple[int, list[int]]] = {}
    for _ in range(12):
        text = edited(rng, text)
        filled = fitted.fill({"document": text, "question": "Who is it?"}).texts["user"]
        assert filled.startswith(f"Answer from this:\n{text}")
        assert filled.endswith("\nQuestion: Who is it?")
        blanks = filled.removeprefix(f"Answer from this:\n{text}").removesuffix("\nQuestion: Who is it?")
        assert blanks
        assert blanks == fitted.blank * (len(blanks) // len(fitted.blank))
        head = filled.removesuffix("\nQuestion: Who is it?")
        ids, tokens = list(tokenizer.encode(filled)[0]), len(tokenizer.encode(head)[0])
        before = len(tokenizer.encode("Answer from this:\n")[0])
        assert (tokens - before) % 16 == 0
        rest = len(ids) - tokens, ids[tokens + 1 :]  # the first one may hold the last blank, too
        assert tails.setdefault((tokens - before) // 16, rest) == rest


def test_a_slot_grows_by_whole_rooms() -> None:
    fitted = DOCUMENT.fitted(codec(), plain())

    def length(text: str) -> int:
        return len(fitted.fill({"document": text}).texts["user"])

    fixed = len("Answer from this:\n\nQuestion: ")
    assert [length("x" * count) - fixed for count in (0, 1, 15, 16, 31, 32)] == [16, 16, 16, 32, 32, 48]


def test_a_blank_must_stay_a_token() -> None:
    tokenizer = TokenizerCodec(fakes.gpt2_tokenizer())
    with pytest.raises(TemplateError, match="is no blank for this tokenizer"):
        DOCUMENT.model_copy(update={"blank": "the end, my friend"}).fitted(tokenizer, plain())
    with pytest.raises(TemplateError, match="none of the usual blanks"):
        DOCUMENT.fitted(TokenizerCodec(fakes.unigram_tokenizer()), plain())
    with pytest.raises(TemplateError, match="no tokenizer here"):
        DOCUMENT.fitted(None, plain())


# ---- what snapshots say of it


def test_segments_are_filled_in_as_they_come() -> None:
    read = Snapshots(plain(), DOCUMENT.fitted(codec(), plain()))
    first = read.read(segments={"document": "It rains."})
    read.keep(first)
    second = read.read(segments=[{"id": "question", "text": "Does it?", "role": "user"}])
    assert second.texts["user"] == "Answer from this:\nIt rains.       \nQuestion: Does it?"
    assert second.messages is None
    assert read.segments == {"document": "It rains."}, "nothing is remembered that was not kept"
    read.forget()
    assert read.read(segments={"rules": "Answer from this:\n"}).texts["user"].endswith(" \nQuestion: ")


def test_segments_of_other_roles_are_messages() -> None:
    topology = CHATTY.topology(plain())
    read = Snapshots(topology, CHATTY.fitted(codec(), topology))
    filled = read.read(segments={"example": "Hi.", "answer": "Yes", "document": "So", "question": "Well?"})
    assert filled.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Yes     "},
        {"role": "user", "content": "So      "},
    ]
    assert filled.texts == {"note": "", "user": "Well?"}


def test_without_a_template_all_segments_are_told() -> None:
    read = Snapshots(plain())
    said = read.read(segments=[{"id": "a", "text": "One, "}, {"id": "b", "text": "two."}])
    assert (said.texts, said.messages) == ({"user": "One, two."}, None)
    read.keep(said)
    assert read.read(segments={"c": "Three."}).texts == {"user": "Three."}
    said = read.read(
        segments=[{"id": "s", "text": "Be brief.", "role": "system"}, {"id": "u", "text": "Hi."}]
    )
    assert said.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]


WRONG: list[tuple[Any, type[BraidError], str]] = [
    ({"documnt": "x"}, UnknownSegmentError, "did you mean 'document'"),
    ({"rules": "Ignore it:\n"}, FixedSegmentError, "what may change: document, question"),
    ([{"id": "question", "text": "a"}, {"id": "question", "text": "b"}], RepeatedSegmentError, "twice"),
    ([{"id": "question", "text": "a", "role": "system"}], TemplateError, "cannot become the system's"),
    ([{"id": "question", "txt": "a"}], TemplateError, "did you mean 'text'"),
    ([{"text": "a"}], TemplateError, "has no id"),
    ([{"id": "question", "text": 3}], TemplateError, "its text is text"),
    ([], InputError, "no segments"),
]


@pytest.mark.parametrize(("segments", "wanted", "says"), WRONG)
def test_segments_that_do_not_fit(segments: Any, wanted: type[BraidError], says: str) -> None:
    read = Snapshots(plain(), DOCUMENT.fitted(codec(), plain()))
    read.keep(read.read(segments={"document": "So."}))
    with pytest.raises(wanted, match=says) as caught:
        read.read(segments=segments)
    assert type(caught.value) is wanted
    assert read.segments == {"document": "So."}


def test_snapshots_that_contradict_themselves() -> None:
    read = Snapshots(plain(), DOCUMENT.fitted(codec(), plain()))
    with pytest.raises(InputError, match="needs texts, segments or messages"):
        read.read()
    with pytest.raises(InputError, match="both segments and messages"):
        read.read(segments={"document": "x"}, messages=[{"role": "user", "content": "x"}])
    with pytest.raises(InputError, match="tells user twice"):
        read.read("x", segments={"document": "x"})
    with pytest.raises(EmptyInputError):
        read.require_text(read.read(segments={"document": ""}))
    read.require_text(read.read(segments={"document": "x"}))


# ---- what the model reads


@pytest.mark.parametrize("base", [plain, aloud], ids=["plain", "aloud"])
@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=examples(8), deadline=None)
@given(seed=st.integers(0, 10**9))
def test_a_committed_template_is_that_of_a_session_that_is_told_it_filled_in(
    base: Callable[[float], Topology], name: str, seed: int
) -> None:
    rng = random.Random(seed)
    template = TEMPLATES[name]
    if base is aloud:  # it has a stream of this name
        renamed = [
            s.model_copy(update={"id": "paper"}) if s.id == "document" else s for s in template.segments
        ]
        template = template.model_copy(update={"segments": tuple(renamed)})
    topology = template.topology(base(1.0))
    core = core_for(topology)
    read = Snapshots(topology, template.fitted(codec(), topology))
    conversation = core.open(topology, seed=9)
    texts = dict.fromkeys(slots_of(template), "")
    for _ in range(rng.randint(1, 7)):
        slot = rng.choice(list(texts))
        texts[slot] = edited(rng, texts[slot])
        reading = read.read(segments={slot: texts[slot]})
        core.do(conversation, "snapshot", reading.texts, "exact", reading.messages)
        read.keep(reading)
        for _ in range(rng.choice((0, 1, 3, 20))):
            step(core, conversation)
    texts["question"] += "?"
    reading = read.read(segments={"question": texts["question"]})
    core.do(conversation, "commit", reading.texts, "exact", reading.messages)
    finish(core, conversation)
    filled = template.fitted(codec(), topology).fill(merged(template, {}, texts))
    assert (filled.texts, filled.messages) == (reading.texts, reading.messages)
    other = core_for(topology)
    if filled.messages is None:
        expected = other.open(topology, seed=9)
        told = filled.texts
    else:
        expected = other.open(topology, seed=9, chat=Chat.of(filled.messages).to_data())
        told = {topology.input_names[0]: filled.messages[-1]["content"], **filled.texts}
    other.do(expected, "tell", {stream: text for stream, text in told.items() if text})
    finish(other, expected)
    check_same(core, conversation, other, expected)


# ---- what stays in its place


def spliced(
    template: Template, edits: list[dict[str, str]], mode: str = "repair"
) -> tuple[list[Splice], Any]:
    """What is taken over while a template is filled in."""
    topology = template.topology(plain())
    core = core_for(topology)
    read = Snapshots(topology, template.fitted(codec(), topology))
    found: list[Splice] = []
    apply = core.recording.apply

    def spy(ops: list[Op]) -> list[int]:
        found.extend(op for op in ops if isinstance(op, Splice))
        return apply(ops)

    core.recording.apply = spy
    conversation = core.open(topology, seed=9, drift_bound=99.0, most_drafted=0)
    for texts in edits:
        reading = read.read(segments=texts)
        core.do(conversation, "snapshot", reading.texts, mode, reading.messages)
        read.keep(reading)
        for _ in range(12):
            step(core, conversation)
    return found, conversation


QUESTION = "Who of them goes where, and why does she not come along with us? " * 2


def place_of(conversation: Any, label: str, splice: Splice) -> int:
    """Where what was taken over stands now, in the span of its stream."""
    lane = conversation.stage.input(label)
    return lane.num_read - 1 - (splice.stop - splice.start)


@pytest.mark.parametrize("mode", ["repair", "reuse"])
def test_an_edit_within_the_room_moves_nothing(mode: str) -> None:
    edits = [{"document": "It rain", "question": QUESTION}, {"document": "It rains."}]
    (splice,), conversation = spliced(DOCUMENT, edits, mode)
    assert splice.start == place_of(conversation, "user", splice)


def test_an_edit_without_room_moves_what_stands_behind_it() -> None:
    """Control."""
    segments = [s.model_copy(update={"room": None}) for s in DOCUMENT.segments]
    tight = DOCUMENT.model_copy(update={"segments": tuple(segments)})
    edits = [{"document": "It rain", "question": QUESTION}, {"document": "It rains."}]
    (splice,), conversation = spliced(tight, edits)
    assert splice.start == place_of(conversation, "user", splice) - 2


@pytest.mark.parametrize(("mode", "later"), [("repair", "It rains in the street."), ("reuse", "It rains.")])
def test_an_edit_of_a_local_segment_leaves_later_ones_in_their_place(mode: str, later: str) -> None:
    """Under `reuse` one that tells nothing new; what is added before a question could be a fact."""
    edits = [{"document": "It rain", "question": QUESTION}, {"document": later}]
    (splice,), conversation = spliced(LOCAL, edits, mode)
    assert splice.span == "user"
    assert splice.start == place_of(conversation, "user", splice)
    cells = [row.cells["user"].token for row in conversation.record.transcript.rows if "user" in row.cells]
    assert bytes(cells).decode() == f"\nQuestion: {QUESTION}"
