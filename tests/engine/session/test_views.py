"""Training-free views equal the oracle that replays home views and rotates keys afresh; plain is an ordinary model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.session.conversation import Conversation
from braid.errors import UnsupportedByBackend
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.streams.events import TurnEvent
from braid.streams.patterns import Striped, Window
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from braid.testing import reference_logits
from tests.engine.harness import attending, drive, largest_difference, stock
from tests.fakes import byte_tokenizer
from tests.model.networks import ARCHITECTURES, network
from tests.properties import examples

TOLERANCE = 1e-6


def writer(**changes: Any) -> StreamSpec:
    warm = SamplingSpec(temperature=1.0, top_k=40)
    return StreamSpec(**{"direction": "output", "sampling": warm, "max_tokens": 9, **changes})


THINK_ALOUD = Topology(
    decoding="views",
    streams={
        "document": StreamSpec(direction="input"),
        "user": StreamSpec(direction="input"),
        "thought": writer(visibility="internal", max_streams=3, wait_k=2, instructions="think"),
        "output": writer(wait_k="end", instructions="answer"),
    },
)


def difference(core: RecordingCore, conversation: Conversation) -> float:
    expected = reference_logits(core.model, conversation.topology, conversation.transcript)
    return largest_difference(core.logits, expected)


@settings(max_examples=examples(25))
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    copies=st.integers(1, 3),
    same_row=st.sampled_from(["earlier", "none"]),
    feed=st.sampled_from(["paced", "burst"]),
    reads=st.sampled_from(
        [{}, {"output": ["user", "thought"]}, {"thought": ["user"]}, {"thought": ["thought", "user"]}]
    ),
    pieces=st.lists(
        st.tuples(
            st.sampled_from(["user", "document"]), st.text("ab c", min_size=1, max_size=8), st.integers(0, 4)
        ),
        min_size=1,
        max_size=5,
    ),
    seed=st.integers(0, 3),
    jointly=st.booleans(),
)
def test_views_equal_the_oracle(
    architecture: str, copies: int, same_row: Any, feed: Any, reads: Any, pieces: list[tuple[str, str, int]], seed: int,
    jointly: bool,
) -> None:  # fmt: skip
    streams = {
        name: spec.model_copy(update={"feed": feed}) if spec.is_input else spec
        for name, spec in THINK_ALOUD.streams.items()
    }
    topology = THINK_ALOUD.model_copy(update={"streams": streams, "same_row": same_row, "reads": reads})
    core = RecordingCore(stock(architecture), kv_tokens=3000, page_size=4)
    conversation = core.open(topology, seed=seed, copies={"thought": copies})
    with attending(jointly):
        drive(core, conversation)
        for stream, text, rows in pieces:  # text arrives while others speak, after `end` too
            conversation.write(stream, text)
            if rows % 2:
                conversation.end()
            drive(core, conversation, max_rows=conversation.t + rows)
        conversation.end()
        drive(core, conversation, max_rows=conversation.t + 60)
    assert difference(core, conversation) <= TOLERANCE
    assert core.cache.num_tokens == conversation.kv_tokens


def test_text_that_arrives_midway_is_read_by_both_in_the_next_row() -> None:
    core = RecordingCore(stock(), kv_tokens=3000)
    conversation = core.open(THINK_ALOUD)
    conversation.write("user", "first ")
    conversation.end()
    drive(core, conversation, max_rows=conversation.t + 10)
    assert {lane.phase for lane in conversation.stage.outputs} == {"speaking"}
    before = conversation.t
    conversation.write("user", "x")
    conversation.end()
    drive(core, conversation, max_rows=before + 1)
    assert set(conversation.transcript.rows[-1].cells) == {"user", "thought", "output"}
    drive(core, conversation, max_rows=before + 4)
    assert difference(core, conversation) <= TOLERANCE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_equals_generate_for_three_turns(architecture: str) -> None:
    from braid.streams.presets import topology

    core = RecordingCore(stock(architecture), kv_tokens=4000)
    plain = topology("plain")
    spec = plain.streams["output"].model_copy(update={"max_tokens": 12})
    plain = plain.model_copy(update={"streams": {**plain.streams, "output": spec}})
    conversation = core.open(plain)
    messages: list[dict[str, str]] = []
    tokenizer = core.model.codec.hf
    for said in ("hello there", "and now?", "thanks"):
        conversation.write("user", said)
        conversation.end()
        before = len(conversation.transcript.tokens("output"))
        drive(core, conversation, max_rows=conversation.t + 60)
        found = [token for _, token in conversation.transcript.tokens("output")[before:]]
        messages.append({"role": "user", "content": said})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        core.model.hf.set_attn_implementation("eager")
        try:
            made = core.model.hf.generate(
                **prompt,
                max_new_tokens=12,
                do_sample=False,
                eos_token_id=list(core.model.codec.end_ids),
                pad_token_id=0,
            )
        finally:
            core.model.hf.set_attn_implementation("braid")
        expected = made[0, prompt["input_ids"].shape[1] :].tolist()
        assert found == expected
        messages.append(
            {"role": "assistant", "content": tokenizer.decode(expected, skip_special_tokens=True)}
        )


def test_a_plain_conversation_is_never_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.streams.presets import topology

    core = RecordingCore(stock(), kv_tokens=2000)
    conversation = core.open(topology("plain"))
    conversation.write("user", "hello")
    conversation.end()
    seen: list[bool] = []
    plan = core.recording._plan

    def watched(feeds: Any, sights: Any) -> Any:
        seen.append(any(sight.shifts.any() for sight in sights))
        return plan(feeds, sights)

    monkeypatch.setattr(core.recording, "_plan", watched)
    drive(core, conversation, max_rows=20)
    assert seen and not any(seen)


def test_interrupt_ends_with_a_token_and_cancel_without() -> None:
    core = RecordingCore(stock(), kv_tokens=2000)
    conversation = core.open(THINK_ALOUD, seed=4)
    conversation.write("user", "hello ")
    conversation.end()
    drive(core, conversation, max_rows=conversation.t + 9)
    conversation.interrupt("output")
    conversation.cancel("thought")
    drive(core, conversation)
    assert conversation.transcript.tokens("output")[-1][1] == core.model.turn_end_id
    assert conversation.transcript.tokens("thought")[-1][1] != core.model.turn_end_id
    assert conversation.turn_is_over
    assert difference(core, conversation) <= TOLERANCE


def test_the_next_turn_reads_the_last_answer_and_idle_steps_prefill_it() -> None:
    core = RecordingCore(stock(), kv_tokens=4000)
    conversation = core.open(THINK_ALOUD)
    for said in ("one ", "two "):
        conversation.write("user", said)
        conversation.end()
        events = drive(core, conversation, max_rows=conversation.t + 60)
        assert any(isinstance(event, TurnEvent) for event in events)
        assert conversation.stage.preamble is not None
        assert conversation.kv_tokens == conversation.stage.preamble.num_cached == core.cache.num_tokens
    assert "one " in conversation.stage.preamble.text and "two " in conversation.stage.preamble.text
    assert difference(core, conversation) <= TOLERANCE


def test_a_window_limits_what_a_lane_sees_of_another() -> None:
    narrow = THINK_ALOUD.model_copy(
        update={"patterns": {"output": {"thought": Window(2)}, "thought": {"user": Window(3)}}}
    )
    core = RecordingCore(stock(), kv_tokens=2000)
    conversation = core.open(narrow)
    conversation.write("user", "hello ")
    conversation.end()
    drive(core, conversation, max_rows=conversation.t + 12)
    assert difference(core, conversation) <= TOLERANCE
    wide = reference_logits(core.model, THINK_ALOUD, conversation.transcript)
    assert largest_difference(core.logits, wide) > 1e-4


def test_without_a_template_text_is_continued_as_generate_does() -> None:
    from braid.streams.presets import topology

    bare = Model(network("llama"), TokenizerCodec(byte_tokenizer(template=None)), name="bare")
    core = RecordingCore(bare, kv_tokens=2000)
    plain = topology("plain")
    spec = plain.streams["output"].model_copy(update={"max_tokens": 12})
    conversation = core.open(plain.model_copy(update={"streams": {**plain.streams, "output": spec}}))
    conversation.write("user", "once upon ")
    drive(core, conversation, max_rows=4)
    conversation.write("user", "a time")
    conversation.end()
    drive(core, conversation, max_rows=40)
    prompt = torch.tensor([bare.codec.encode("once upon a time")[0]])
    bare.hf.set_attn_implementation("eager")
    try:
        made = bare.hf.generate(
            prompt, max_new_tokens=12, do_sample=False, eos_token_id=list(bare.codec.end_ids), pad_token_id=0
        )
    finally:
        bare.hf.set_attn_implementation("braid")
    assert [token for _, token in conversation.transcript.tokens("output")] == made[
        0, prompt.shape[1] :
    ].tolist()


def test_stripes_have_no_meaning_in_views() -> None:
    core = RecordingCore(stock(), kv_tokens=200)
    striped = THINK_ALOUD.model_copy(update={"patterns": {"output": {"thought": Striped(2, 0)}}})
    with pytest.raises(UnsupportedByBackend, match="striped"):
        core.open(striped)
    assert core.cache.pool.num_used == 0
    core.cache.pool.check_integrity()


def test_control_a_forgotten_shift_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from braid.engine.local.layout import ViewLayout

    real = ViewLayout.sights
    monkeypatch.setattr(
        ViewLayout, "sights", lambda self, feed: [replace(s, shifts=s.shifts * 0) for s in real(self, feed)]
    )
    core = RecordingCore(stock(), kv_tokens=2000)
    conversation = core.open(THINK_ALOUD)
    conversation.write("user", "hello ")
    drive(core, conversation, max_rows=10)
    conversation.write("user", "again ")
    conversation.end()
    drive(core, conversation, max_rows=30)
    assert difference(core, conversation) > 1e-3
