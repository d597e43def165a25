"""Native rows: step by step equals all at once (invariant 1), silence keeps no KV (4), and controls that must fail."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.session.conversation import Conversation
from braid.streams.patterns import Dense, Striped, Window
from braid.streams.topology import StreamSpec, Topology
from braid.testing import reference_logits
from tests.engine.harness import attending, chatty, drive, largest_difference, stock, trained
from tests.model.networks import ARCHITECTURES
from tests.properties import examples

TOLERANCE = 1e-6
NAMES = ("user", "document", "thought", "output", "audit")

patterns = (
    st.just(Dense())
    | st.builds(Window, st.integers(1, 6))
    | st.builds(lambda stride, offset: Striped(stride, offset % stride), st.integers(2, 4), st.integers(0, 3))
)


@st.composite
def row_topologies(draw: st.DrawFn) -> Topology:
    """Any directions, reads, patterns, same-row rule and silence rule."""
    size = draw(st.integers(2, 5))
    names = NAMES[:size]
    kinds = draw(st.lists(st.sampled_from(["input", "output"]), min_size=size, max_size=size))
    kinds[0], kinds[-1] = "input", "output"
    streams: dict[str, StreamSpec] = {}
    for name, kind in zip(names, kinds, strict=True):
        if kind == "input":
            streams[name] = StreamSpec(direction="input", feed=draw(st.sampled_from(["paced", "burst"])))
        else:
            bias = draw(st.sampled_from([0.0, 3.0, 6.0]))
            streams[name] = StreamSpec(
                direction="output",
                wait_k=draw(st.sampled_from([None, 1, 3, "end"])) if kinds.count("input") else None,
                sampling=chatty(bias, seed=draw(st.integers(0, 9))),
                max_tokens=draw(st.sampled_from([3, 12])),
            )
    reads = draw(
        st.dictionaries(st.sampled_from(names), st.lists(st.sampled_from(names), unique=True), max_size=size)
    )
    for name, spec in streams.items():  # an output that waits must read an input
        if spec.is_output and name in reads and not any(streams[r].is_input for r in reads[name]):
            reads[name] = [*reads[name], names[0]]
    chosen = draw(
        st.dictionaries(
            st.sampled_from(names), st.dictionaries(st.sampled_from(names), patterns, max_size=3), max_size=3
        )
    )
    plain = Topology(streams=streams, reads=reads)
    kept = {
        reader: {read: pattern for read, pattern in row.items() if plain.reads_pair(reader, read)}
        for reader, row in chosen.items()
    }
    return Topology(
        streams=streams,
        reads=reads,
        patterns={reader: row for reader, row in kept.items() if row},
        same_row=draw(st.sampled_from(["earlier", "none"])),
        silence=draw(st.sampled_from(["dropped", "kept"])),
    )


def run(
    topology: Topology, architecture: str, texts: list[str], *, page_size: int = 4
) -> tuple[RecordingCore, Conversation]:
    core = RecordingCore(trained(topology, architecture), kv_tokens=2000, page_size=page_size)
    conversation = core.open(topology, seed=1)
    for at, text in enumerate(texts):
        for name in topology.input_names:
            conversation.write(name, text)
        is_last = at == len(texts) - 1
        if is_last:
            conversation.end()
        drive(core, conversation, max_rows=conversation.t + (80 if is_last else 12))
    return core, conversation


def difference(core: RecordingCore, conversation: Conversation, topology: Topology | None = None) -> float:
    topology = topology or conversation.topology
    expected = reference_logits(core.model, topology, conversation.transcript, probes=sorted(core.probes))
    return largest_difference(core.logits, expected)


@settings(max_examples=examples(60))
@given(
    row_topologies(),
    st.sampled_from(ARCHITECTURES),
    st.lists(st.text("ab ", min_size=1, max_size=7), min_size=1, max_size=3),
    st.booleans(),
)
def test_rows_decoded_with_the_cache_equal_the_dense_oracle(
    topology: Topology, architecture: str, texts: list[str], jointly: bool
) -> None:
    with attending(jointly):
        core, conversation = run(topology, architecture, texts)
    assert difference(core, conversation) <= TOLERANCE


@settings(max_examples=examples(30))
@given(row_topologies(), st.lists(st.text("ab ", min_size=1, max_size=7), min_size=1, max_size=3))
def test_silence_keeps_no_kv_and_closing_frees_everything(topology: Topology, texts: list[str]) -> None:
    core, conversation = run(topology, "llama", texts)
    kept = sum(len(row.cells) for row in conversation.transcript.rows)
    assert core.cache.num_tokens == conversation.kv_tokens == kept
    assert all(row.cells for row in conversation.transcript.rows)
    conversation.close()
    core.cache.pool.check_integrity()
    assert core.cache.pool.num_used == 0


SOLVE = Topology(
    streams={
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", sampling=chatty(3.0)),
        "output": StreamSpec(direction="output", sampling=chatty(3.0, seed=5)),
    }
)


@pytest.mark.parametrize("change", ["same_row", "reads"])
def test_control_a_wrong_mask_is_noticed(change: str) -> None:
    core, conversation = run(SOLVE, "llama", ["how many ", "apples"])
    assert difference(core, conversation) <= TOLERANCE
    wrong = {"same_row": "none"} if change == "same_row" else {"reads": {"output": ["user"]}}
    assert difference(core, conversation, SOLVE.model_copy(update=wrong)) > 1e-3


def test_control_flat_positions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.engine.local.layout import RowLayout

    def flat(self: RowLayout, label: str, span: object, times: object, replays: object = None) -> object:
        return times + conversation.kv_tokens  # pyright: ignore[reportOperatorIssue]

    monkeypatch.setattr(RowLayout, "place", flat)
    core = RecordingCore(trained(SOLVE), kv_tokens=400)
    conversation = core.open(SOLVE, seed=1)
    conversation.write("user", "how many apples")
    drive(core, conversation, max_rows=12)
    assert difference(core, conversation) > 1e-3


def test_control_kept_silence_is_noticed() -> None:
    kept = SOLVE.model_copy(update={"silence": "kept"})
    core, conversation = run(kept, "llama", ["how many apples"])
    silent = [
        cell for row in conversation.transcript.rows for cell in row.cells.values() if cell.token == 299
    ]
    assert silent, "the run must contain silence"
    assert difference(core, conversation) <= TOLERANCE
    # The oracle, given the same rows without the silence tokens, sees something else.
    from braid.streams.entries import Row
    from braid.streams.transcript import Transcript

    entries = [
        Row(e.t, {k: c for k, c in e.cells.items() if c.token != 299}) if isinstance(e, Row) else e
        for e in conversation.transcript.entries
    ]
    entries = [e for e in entries if not isinstance(e, Row) or e.cells]
    bare = Transcript(kept, "llama", {}, {}, entries)
    expected = reference_logits(core.model, kept, bare)
    common = [key for key in core.logits if key in expected]
    assert max(float((core.logits[key] - expected[key]).abs().max()) for key in common) > 1e-3


@pytest.mark.parametrize("wait", range(1, 11))
def test_the_first_output_row_follows_the_kth_input_row(wait: int) -> None:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input", feed="paced"),
            "output": StreamSpec(direction="output", wait_k=wait, sampling=chatty(-100.0)),
        }
    )
    _, conversation = run(topology, "llama", ["x" * 12])
    user, output = conversation.transcript.tokens("user"), conversation.transcript.tokens("output")
    assert output[0][0] == user[wait - 1][0] + 1


def test_a_stock_model_runs_native_rows_too() -> None:
    core = RecordingCore(stock(), kv_tokens=400)
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input"),
            "output": StreamSpec(direction="output", wait_k="end", max_tokens=8),
        }
    )
    conversation = core.open(topology)
    conversation.write("user", "hello")
    conversation.end()
    drive(core, conversation)
    assert conversation.turn_is_over
    assert difference(core, conversation) <= TOLERANCE
