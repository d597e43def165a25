"""Verbs in every state, turns, quiescence, budgets, and full pools: nothing bad is swallowed, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from braid.checks.subject import RecordingCore
from braid.engine.core import EngineCore
from braid.engine.local import LocalBackend
from braid.engine.loop import EngineLoop
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import (
    CheckpointConflictError,
    ContextOverflowError,
    DirectionError,
    EmptyInputError,
    InputError,
    NothingToForceError,
    PoolFullError,
    PoolTooSmallError,
    SamplingError,
    SessionClosedError,
    StreamClosedError,
    UnknownStreamError,
    UnsupportedByBackend,
)
from braid.model.codec import TokenizerCodec
from braid.model.model import Model
from braid.streams.events import ClosedEvent, DeltaEvent, QuiescentEvent, StateEvent, TurnEvent
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology, Trigger
from braid.testing import reference_logits
from tests.engine.harness import SILENCE, chatty, drive, largest_difference, step, stock, trained
from tests.fakes import byte_tokenizer
from tests.model.networks import network

SILENT = SamplingSpec(logit_bias={SILENCE: 100.0})
LOUD = SamplingSpec(logit_bias={SILENCE: -100.0, 257: -100.0})


def rows_of(**streams: StreamSpec) -> Topology:
    return Topology(streams=streams)


def user(**changes: Any) -> StreamSpec:
    return StreamSpec(direction="input", **changes)


def output(**changes: Any) -> StreamSpec:
    return StreamSpec(direction="output", **changes)


def opened(topology: Topology, **settings: Any) -> tuple[RecordingCore, Conversation]:
    core = RecordingCore(trained(topology), kv_tokens=settings.pop("kv_tokens", 600), page_size=4)
    return core, core.open(topology, **settings)


def test_nothing_happens_until_something_is_written() -> None:
    _, conversation = opened(rows_of(user=user(), output=output()))
    assert conversation.prepare() is None
    assert not conversation.has_work
    assert [type(e) for e in conversation.take_events()] == [StateEvent, StateEvent]


def test_a_silent_output_that_owes_an_answer_is_forced_once_and_says_so() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=SILENT)))
    conversation.write("user", "hi")
    conversation.end()
    events = drive(core, conversation)
    assert [e for e in events if isinstance(e, QuiescentEvent)]
    assert len(conversation.transcript.tokens("output")) >= 1
    assert conversation.turn_is_over


def test_quiescence_can_be_waited_out() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=SILENT)), forces_answers=False)
    conversation.write("user", "hi")
    conversation.end()
    events = drive(core, conversation)
    assert len([e for e in events if isinstance(e, QuiescentEvent)]) == 1
    assert conversation.transcript.tokens("output") == []
    assert not conversation.turn_is_over
    conversation.force("output")
    drive(core, conversation)
    assert len(conversation.transcript.tokens("output")) >= 1


def test_force_puts_words_into_a_mouth_and_interrupt_ends_them() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=LOUD)))
    conversation.write("user", "hi ")
    conversation.force("output", "forced words")
    drive(core, conversation, max_rows=16)
    assert conversation.transcript.text("output").startswith("forced words")
    forced = [row.cells["output"].forced for row in conversation.transcript.rows if "output" in row.cells]
    assert forced[:12] == [True] * 12 and not any(forced[12:])
    conversation.interrupt()
    conversation.end()
    drive(core, conversation)
    assert conversation.transcript.tokens("output")[-1][1] == core.model.turn_end_id
    assert conversation.turn_is_over


def test_a_bias_of_silence_is_one_of_its_token_and_decides_how_soon_a_stream_speaks() -> None:
    said: list[list[tuple[int, int]]] = []
    for sampling in (
        SamplingSpec(silence_bias=-100.0, logit_bias={257: -100.0}),
        SamplingSpec(logit_bias={SILENCE: -100.0, 257: -100.0}),
        SamplingSpec(silence_bias=-150.0, logit_bias={SILENCE: 50.0, 257: -100.0}),
        SamplingSpec(silence_bias=100.0),
    ):
        core, conversation = opened(
            rows_of(user=user(), output=output(sampling=sampling, max_tokens=6)), forces_answers=False
        )
        conversation.write("user", "hi there ")
        conversation.end()
        drive(core, conversation)
        said.append(list(conversation.transcript.tokens("output")))
    assert len(said[0]) == 6
    assert said[0] == said[1] == said[2]
    assert not said[3]


def test_a_model_that_cannot_be_silent_has_no_bias_of_silence() -> None:
    loud = output(wait_k="end", sampling=SamplingSpec(silence_bias=-1.0))
    biased = Topology(decoding="views", streams={"user": user(), "output": loud})
    core = EngineCore(LocalBackend(stock(), kv_tokens=400))
    with pytest.raises(SamplingError, match="cannot be silent"):
        core.open(biased)
    with pytest.raises(SamplingError, match="cannot be silent"):
        EngineLoop(core.backend).check(biased, {})
    assert not core.conversations
    core.close()


@pytest.mark.parametrize(("limit", "reason"), [({"max_tokens": 5}, "length"), ({"stop": ("aaa",)}, "stop")])
def test_budgets_and_stop_strings_put_an_output_to_sleep(limit: dict[str, Any], reason: str) -> None:
    bias = SamplingSpec(logit_bias={97: 100.0})  # it says `a` for ever
    core, conversation = opened(rows_of(user=user(), output=output(sampling=bias, **limit)))
    conversation.write("user", "hi ")
    conversation.end()
    events = drive(core, conversation)
    slept = [e for e in events if isinstance(e, StateEvent) and e.state == "asleep" and e.stream == "output"]
    assert slept[-1].reason == reason
    text = conversation.transcript.text("output")
    assert text == ("aaaaa" if reason == "length" else "")
    assert "".join(e.text for e in events if isinstance(e, DeltaEvent)) == text


def test_chunks_hold_as_many_tokens_as_the_topology_says() -> None:
    bias = SamplingSpec(logit_bias={97: 100.0})
    core, conversation = opened(
        rows_of(user=user(), output=output(sampling=bias, chunk_size=4, max_tokens=10))
    )
    conversation.write("user", "hi ")
    conversation.end()
    deltas = [e for e in drive(core, conversation) if isinstance(e, DeltaEvent)]
    assert [len(e.tokens) for e in deltas] == [4, 4, 2]


def test_a_prefix_is_forced_at_the_start_of_every_turn() -> None:
    core, conversation = opened(
        rows_of(user=user(), output=output(sampling=LOUD, prefix="Sure: ", max_tokens=8))
    )
    for turn in range(2):
        conversation.write("user", "hi ")
        conversation.end()
        drive(core, conversation)
        assert conversation.turn == turn + 1
    assert conversation.transcript.text("output").count("Sure: ") == 2


def test_a_triggered_output_starts_when_its_trigger_has_said_the_word() -> None:
    bias = SamplingSpec(logit_bias={97: 100.0})
    topology = rows_of(
        user=user(),
        output=output(sampling=bias, max_tokens=6),
        audit=output(sampling=bias, max_tokens=2, trigger=Trigger(on="output", pattern="aaa")),
        never=output(sampling=bias, max_tokens=2, trigger=Trigger(on="output", pattern="b")),
    )
    core, conversation = opened(topology)
    conversation.write("user", "x")
    conversation.end()
    drive(core, conversation)
    starts = {name: conversation.transcript.tokens(name)[:1] for name in ("output", "audit", "never")}
    assert starts["never"] == []
    # Rows 1 to 3 say the word, row 4 asks the auditor, row 5 has its first token.
    assert starts["audit"][0][0] == starts["output"][0][0] + 4
    assert conversation.turn_is_over


def test_a_closed_stream_frees_its_pages_and_is_read_no_more() -> None:
    core, conversation = opened(
        rows_of(user=user(), note=user(), output=output(sampling=LOUD, max_tokens=12))
    )
    conversation.write("note", "remember this")
    conversation.write("user", "hi there")
    conversation.end("note")
    drive(core, conversation, max_rows=16)
    before = core.cache.num_tokens
    conversation.close_stream("note")
    conversation.close_stream("note")
    assert core.cache.num_tokens == before - len(conversation.transcript.tokens("note"))
    with pytest.raises(StreamClosedError, match="open inputs: user"):
        conversation.write("note", "more")
    conversation.end()
    drive(core, conversation)
    expected = reference_logits(
        core.model, conversation.topology, conversation.transcript, probes=sorted(core.probes)
    )
    assert largest_difference(core.logits, expected) <= 1e-6


def test_a_full_pool_changes_nothing_and_the_same_step_works_later() -> None:
    topology = rows_of(user=user(feed="burst"), output=output(sampling=LOUD, max_tokens=4))
    core, conversation = opened(topology, kv_tokens=24)
    hog = core.cache.new_list()
    hog.append(16)
    conversation.write("user", "x" * 12)
    conversation.end()
    before = (conversation.t, len(conversation.transcript.entries), core.cache.num_tokens)
    for _ in range(2):
        with pytest.raises(PoolFullError, match="close a session"):
            step(core, conversation)
        assert (conversation.t, len(conversation.transcript.entries), core.cache.num_tokens) == before
        core.cache.pool.check_integrity()
    hog.release()
    drive(core, conversation)
    assert conversation.turn_is_over
    assert conversation.transcript.text("user") == "x" * 12


def test_a_pool_that_could_never_hold_the_input_is_another_error() -> None:
    core, conversation = opened(rows_of(user=user(feed="burst"), output=output()), kv_tokens=8)
    conversation.write("user", "x" * 40)
    conversation.end()
    with pytest.raises(PoolTooSmallError, match="kv_tokens"):
        step(core, conversation)


@pytest.mark.parametrize("decoding", ["rows", "views"])
def test_a_session_longer_than_the_context_is_refused_before_anything_changes(decoding: Any) -> None:
    topology = Topology(
        decoding=decoding, streams={"user": user(feed="burst"), "output": output(wait_k="end")}
    )
    model = stock() if decoding == "views" else trained(topology)
    core = RecordingCore(model, kv_tokens=9000)
    conversation = core.open(topology)
    while conversation.has_work:
        step(core, conversation)
    conversation.write("user", "x" * 5000)
    conversation.end()
    before = core.cache.num_tokens
    with pytest.raises(ContextOverflowError, match="4096"):
        step(core, conversation)
    assert core.cache.num_tokens == before
    core.cache.pool.check_integrity()


VERBS: dict[str, Any] = {
    "write": lambda c: c.write("user", "x"),
    "end": lambda c: c.end("user"),
    "interrupt": lambda c: c.interrupt("output"),
    "cancel": lambda c: c.cancel("output"),
    "force": lambda c: c.force("output", "x"),
    "flush": lambda c: c.flush("user"),
    "close_stream": lambda c: c.close_stream("user"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_on_a_closed_session_says_so(verb: str) -> None:
    _, conversation = opened(rows_of(user=user(), output=output()))
    conversation.close()
    conversation.close()
    with pytest.raises(SessionClosedError, match="open a new one"):
        VERBS[verb](conversation)
    assert conversation.prepare() is None
    assert len([e for e in conversation.take_events() if isinstance(e, ClosedEvent)]) == 1


def test_wrong_streams_and_directions_have_their_own_errors() -> None:
    _, conversation = opened(rows_of(user=user(), output=output()))
    with pytest.raises(UnknownStreamError, match="user"):
        conversation.write("usr", "x")
    with pytest.raises(DirectionError, match="force"):
        conversation.write("output", "x")
    with pytest.raises(DirectionError, match="outputs are output"):
        conversation.interrupt("user")
    with pytest.raises(EmptyInputError, match="write something to user"):
        conversation.end()
    with pytest.raises(NothingToForceError, match="write some input first"):
        conversation.force("output", "x")
    assert conversation.kv_tokens == 0


def test_what_this_engine_cannot_do_is_refused_when_the_session_opens() -> None:
    core = RecordingCore(stock(), kv_tokens=64)
    held = rows_of(user=user(), output=output(held_by=("audit",)), audit=output())
    asks = rows_of(user=user(), output=output(trigger=Trigger(on="user", predicate="is_odd")))
    with pytest.raises(UnsupportedByBackend, match="held_by"):
        core.open(held)
    with pytest.raises(InputError, match="is_odd"):
        core.open(asks)
    assert core.cache.pool.num_used == 0 and not core.cache.pool.lists


def test_a_topology_that_contradicts_the_checkpoint_is_refused() -> None:
    topology = rows_of(user=user(), output=output())
    model = trained(topology)
    other = Topology(streams=topology.streams, same_row="none")
    with pytest.raises(CheckpointConflictError, match="same_row"):
        RecordingCore(model, kv_tokens=64).open(other)


def test_writing_after_the_end_goes_on_in_the_same_turn_and_a_new_turn_begins_after_the_answer() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=LOUD, max_tokens=8)))
    conversation.write("user", "one ")
    conversation.end()
    drive(core, conversation, max_rows=6)
    conversation.write("user", "two ")
    events = drive(core, conversation)
    assert len([e for e in events if isinstance(e, TurnEvent)]) == 1, (
        "the answer is complete, whoever goes on writing"
    )
    conversation.end()  # nothing is left to end; harmless
    assert not conversation.has_work
    conversation.write("user", "three ")
    assert not conversation.turn_is_over
    conversation.end()
    drive(core, conversation)
    assert conversation.transcript.text("user") == "one two three "


def test_sampled_runs_repeat_with_the_seed_and_differ_without() -> None:
    topology = rows_of(
        user=user(),
        thought=output(sampling=chatty(2.0, 0).model_copy(update={"seed": None}), max_tokens=20),
        output=output(max_tokens=4),
    )

    def run(seed: int) -> list[tuple[int, int]]:
        core, conversation = opened(topology, seed=seed)
        conversation.write("user", "hello")
        conversation.end()
        drive(core, conversation)
        return conversation.transcript.tokens("thought")

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_sessions_in_one_batch_say_what_each_says_alone() -> None:
    topology = rows_of(user=user(), thought=output(sampling=chatty(2.0)), output=output(max_tokens=7))
    texts = ["hello", "what is this", "a longer question than the others"]

    def alone(text: str) -> list[Any]:
        core, conversation = opened(topology)
        conversation.write("user", text)
        conversation.end()
        drive(core, conversation, max_rows=40)
        return list(conversation.transcript.entries)

    core = RecordingCore(trained(topology), kv_tokens=2000, page_size=4)
    together = [core.open(topology) for _ in texts]
    for conversation, text in zip(together, texts, strict=True):
        conversation.write("user", text)
        conversation.end()
    drive(core, *together, max_rows=60)
    for conversation, text in zip(together, texts, strict=True):
        entries = alone(text)
        assert list(conversation.transcript.entries)[: len(entries)] == entries


def test_a_failed_forward_closes_the_session_and_frees_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    core, conversation = opened(rows_of(user=user(), output=output()))
    conversation.write("user", "hello")
    conversation.end()

    def fail(*_: Any) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(core.recording, "_forward", fail)
    with pytest.raises(MemoryError):
        step(core, conversation)
    assert conversation.is_closed
    assert core.cache.pool.num_used == 0
    core.cache.pool.check_integrity()


# ---- corners


def views_of(**streams: StreamSpec) -> Topology:
    return Topology(decoding="views", streams=streams)


def in_views(topology: Topology, template: bool = True) -> tuple[RecordingCore, Conversation]:
    model = (
        stock()
        if template
        else Model(network("llama"), TokenizerCodec(byte_tokenizer(template=None)), name="bare")
    )
    core = RecordingCore(model, kv_tokens=2000, page_size=4)
    return core, core.open(topology)


def test_a_model_without_a_template_answers_input_that_comes_at_once() -> None:
    core, conversation = in_views(
        views_of(user=user(), output=output(wait_k="end", max_tokens=3)), template=False
    )
    conversation.write("user", "hello world")
    conversation.end()
    drive(core, conversation)
    assert conversation.turn_is_over
    assert conversation.transcript.tokens("output")


@pytest.mark.parametrize("decoding", ["rows", "views"])
def test_a_stream_that_has_finished_cannot_be_forced_and_neither_can_one_between_turns(decoding: str) -> None:
    streams = {"user": user(), "thought": output(max_tokens=40), "output": output(max_tokens=2, wait_k=1)}
    core, conversation = in_views(Topology(decoding=decoding, streams=streams))  # pyright: ignore[reportArgumentType]
    conversation.write("user", "hello there ")
    drive(core, conversation, max_rows=18)
    with pytest.raises(NothingToForceError, match="has finished"):
        conversation.force("output", "more")
    conversation.cancel()
    conversation.end()
    drive(core, conversation)
    assert conversation.turn_is_over
    with pytest.raises(NothingToForceError, match="nothing was written"):
        conversation.force("output", "more")


def test_forced_text_beats_a_token_that_was_drawn() -> None:
    ends = SamplingSpec(logit_bias={257: 100.0})
    core, conversation = opened(rows_of(user=user(), output=output(sampling=ends, max_tokens=9)))
    conversation.write("user", "hi ")
    drive(core, conversation, max_rows=1)
    assert conversation.stage.outputs[0].pending == (257, False)
    conversation.force("output", "kept")
    conversation.end()
    drive(core, conversation)
    assert conversation.transcript.text("output") == "kept"


def test_text_held_at_the_end_of_a_turn_is_fed_once() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=LOUD, max_tokens=2)))
    conversation.write("user", "hello wor")
    drive(core, conversation)
    assert conversation.turn_is_over
    assert conversation.flush("user") is False
    conversation.write("user", "ld.")
    conversation.end()
    drive(core, conversation)
    assert conversation.transcript.text("user") == "hello world."


def test_what_was_written_to_a_closed_stream_does_not_become_history() -> None:
    core, conversation = in_views(
        views_of(document=user(), user=user(), output=output(wait_k="end", max_tokens=2))
    )
    conversation.write("document", "SECRET words ")
    conversation.write("user", "hello")
    conversation.close_stream("document")
    conversation.end()
    drive(core, conversation)
    assert conversation.stage.preamble is not None
    assert "hello" in conversation.stage.preamble.text
    assert "SECRET" not in conversation.stage.preamble.text


def test_text_held_for_a_stop_string_is_given_when_the_stream_is_cancelled() -> None:
    core, conversation = opened(rows_of(user=user(), output=output(sampling=LOUD, stop=("a long stop",))))
    conversation.write("user", "hi ")
    conversation.force("output", "xy a long st")
    drive(core, conversation, max_rows=13)
    conversation.cancel("output")
    deltas = [e for e in conversation.take_events() if isinstance(e, DeltaEvent)]
    assert deltas[-1].text == "a long st"
    assert conversation.transcript.text("output") == "xy a long st"


def test_half_a_character_changes_nothing() -> None:
    _, conversation = opened(rows_of(user=user(), output=output()))
    with pytest.raises(InputError, match="surrogate"):
        conversation.write("user", "a \ud800")
    assert conversation.turn_is_over
    with pytest.raises(EmptyInputError):
        conversation.end()


def test_a_trigger_that_fires_with_the_last_token_still_wakes_its_stream() -> None:
    bias = SamplingSpec(logit_bias={97: 100.0})
    topology = rows_of(
        user=user(),
        output=output(sampling=bias, max_tokens=1),
        audit=output(sampling=bias, max_tokens=2, trigger=Trigger(on="output")),
    )
    core, conversation = opened(topology)
    conversation.write("user", "x")
    conversation.end()
    drive(core, conversation)
    assert conversation.transcript.text("audit") == "aa"
    expected = reference_logits(core.model, topology, conversation.transcript, probes=sorted(core.probes))
    assert largest_difference(core.logits, expected) <= 1e-6


def test_a_thought_whose_reader_was_cancelled_stops() -> None:
    topology = views_of(
        user=user(), thought=output(visibility="internal", sampling=LOUD), output=output(wait_k="end")
    )
    core, conversation = in_views(topology)
    conversation.write("user", "hello there")
    conversation.cancel("output")
    conversation.end()
    drive(core, conversation, max_rows=60)
    assert len(conversation.transcript.tokens("thought")) < 5
    assert conversation.turn_is_over


def test_whoever_finds_no_room_waits_until_the_others_have_gone() -> None:
    topology = rows_of(user=user(feed="burst"), output=output(sampling=LOUD, max_tokens=3))
    core, first = opened(topology, kv_tokens=48)
    second = core.open(topology)
    for conversation, length in ((first, 20), (second, 40)):
        conversation.write("user", "x" * length)
        conversation.end()
    report = core.step([first, second])
    assert report.deferred == [second] and not report.failures
    assert (first.t, second.t) == (21, 0)
    drive(core, first)
    assert first.turn_is_over
    expected = reference_logits(core.model, topology, first.transcript, probes=sorted(core.probes))
    assert largest_difference(core.logits, expected) <= 1e-6
    drive(core, second)  # the first one rests, and gives its pages
    assert first.is_evicted and second.turn_is_over


def test_whoever_opened_first_is_not_kept_waiting_by_rows_that_come_before_its_own() -> None:
    topology = rows_of(user=user(feed="burst"), output=output(sampling=LOUD, max_tokens=6))
    core, first = opened(topology, kv_tokens=48)
    second = core.open(topology)
    second.write("user", "x" * 20)
    second.end()
    for _ in range(3):
        core.step([first, second])
    assert second.is_speaking
    first.write("user", "x" * 32)
    first.end()
    assert core.step([first, second]).deferred == [first]
    assert not core.step([first, second]).failures
    assert second.is_evicted and first.t == 33
    for conversation in (first, second):
        drive(core, conversation, max_rows=90)
        assert conversation.turn_is_over


def test_what_one_that_finds_no_room_would_have_had_of_a_step_goes_to_the_others() -> None:
    topology = rows_of(user=user(feed="burst"), output=output(sampling=LOUD, max_tokens=20))
    policy = SchedulerPolicy(step_tokens=6, chunk_tokens=4, min_chunk_tokens=4)
    core = RecordingCore(trained(topology), policy=policy, kv_tokens=48, page_size=4)
    first, second = core.open(topology), core.open(topology)
    first.write("user", "x" * 8)
    first.end()
    second.write("user", "x" * 26)  # with these, there is no room for what the first one will say
    second.end()
    num_deferred = 0
    while not first.turn_is_over:
        report = core.step([first, second])
        assert report.worked and not report.failures
        num_deferred += len(report.deferred)
    assert num_deferred
    drive(core, second)
    assert second.turn_is_over
