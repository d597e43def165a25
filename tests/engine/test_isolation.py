"""Non-interference (invariant 5): what a stream may not be influenced by does not change its logits by one bit."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from braid.checks.subject import RecordingCore
from braid.engine.session.conversation import Conversation
from braid.streams.influence import influences
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from braid.testing import ReferenceLogits
from tests.engine.harness import SILENCE, drive, stock, trained
from tests.engine.session.test_rows import row_topologies
from tests.model.networks import ARCHITECTURES
from tests.properties import examples


def script(conversation: Conversation, texts: dict[str, str]) -> None:
    """The same speaking pattern, whatever the tokens: everything is forced, nothing is drawn."""
    for name, text in texts.items():
        if conversation.topology.stream(name).is_input:
            conversation.write(name, text)
    conversation.end()
    for name, text in texts.items():
        if conversation.topology.stream(name).is_output:
            conversation.force(name, text)


def logits_of(topology: Topology, architecture: str, texts: dict[str, str]) -> ReferenceLogits:
    core = RecordingCore(trained(topology, architecture), kv_tokens=800, page_size=4)
    conversation = core.open(topology)
    script(conversation, texts)
    drive(core, conversation, max_rows=40)
    return core.logits


@settings(max_examples=examples(40))
@given(row_topologies(), st.sampled_from(ARCHITECTURES), st.data())
def test_rows_do_not_leak_by_one_bit(topology: Topology, architecture: str, data: st.DataObject) -> None:
    greedy = {
        name: spec.model_copy(update={"sampling": SamplingSpec(logit_bias={SILENCE: 100.0}), "max_tokens": 9})
        if spec.is_output
        else spec
        for name, spec in topology.streams.items()
    }
    topology = topology.model_copy(update={"streams": greedy})
    reach = influences(topology)
    pairs = [(a, b) for a in topology.streams for b in topology.streams if a not in reach[b]]
    assume(pairs)
    changed, _ = data.draw(st.sampled_from(pairs))
    texts = dict.fromkeys(topology.streams, "abcdef")
    before = logits_of(topology, architecture, texts)
    after = logits_of(topology, architecture, {**texts, changed: "uvwxyz"})
    assert before.keys() == after.keys()
    blind = [key for key in before if changed not in reach[key[1]]]
    assert all(bool((before[key] == after[key]).all()) for key in blind)


def test_control_a_stream_that_reads_does_change() -> None:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input"),
            "output": StreamSpec(direction="output", sampling=SamplingSpec(logit_bias={SILENCE: 100.0})),
        }
    )
    before = logits_of(topology, "llama", {"user": "abcdef", "output": "abcdef"})
    after = logits_of(topology, "llama", {"user": "abcdxf", "output": "abcdef"})
    assert any(bool((before[key] != after[key]).any()) for key in before)


def test_views_do_not_leak_by_one_bit() -> None:
    """The writer that does not read the thinker, bit for bit, whatever the thinker thinks."""
    topology = Topology(
        decoding="views",
        streams={
            "user": StreamSpec(direction="input"),
            "thought": StreamSpec(direction="output", visibility="internal", max_tokens=9),
            "output": StreamSpec(direction="output", wait_k="end", max_tokens=9),
        },
        reads={"output": ["user"]},
    )

    def run(thought: str) -> ReferenceLogits:
        core = RecordingCore(stock(), kv_tokens=800, page_size=4)
        conversation = core.open(topology)
        conversation.write("user", "hello there")
        conversation.end()
        conversation.force("thought", thought)
        conversation.force("output", "abcdefgh")
        drive(core, conversation, max_rows=60)
        return core.logits

    before, after = run("secret: 1"), run("secret: 2")
    written = [key for key in before if key[1] == "output"]
    assert written and all(bool((before[key] == after[key]).all()) for key in written)
