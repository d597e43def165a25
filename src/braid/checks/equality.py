"""Invariants 1 and 3: what the engine computes is what the model says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from transformers import GenerationConfig

from braid.checks.finding import Finding
from braid.checks.subject import NEVER, RecordingCore, Subject, drive, largest_difference
from braid.engine.session.conversation import Conversation
from braid.errors import BraidError
from braid.model.convert import quiet_transformers
from braid.model.model import Model
from braid.streams.patterns import Pattern, Striped, Window
from braid.streams.presets import topology as preset
from braid.streams.stream_spec import Feed
from braid.streams.topology import SameRow, SilenceRule, StreamSpec, Topology
from braid.testing import reference_logits

__all__ = ["plain_equals_generate", "rows_equal_oracle", "views_equal_oracle"]

MAX_NEW_TOKENS = 24
TIE = 2e-3
"""Greedy tokens may differ where the two largest logits lie closer than this: another order of summation suffices.
In the short number formats it is half the bound."""

PROMPTS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Count from one to ten in words, separated by commas.",
    "Translate to French: Good morning, my friend! How are you today? 🙂",
)

_ROW_CASES: tuple[tuple[SameRow, SilenceRule, Feed, Mapping[str, Mapping[str, Pattern]]], ...] = (
    ("earlier", "dropped", "paced", {}),
    ("none", "dropped", "burst", {}),
    ("earlier", "dropped", "paced", {"output": {"thought": Striped(3, 1)}, "thought": {"output": Window(4)}}),
    ("none", "kept", "paced", {"thought": {"output": Striped(2, 0)}, "output": {"output": Window(4)}}),
)
"""Everybody reads all of the user: a query from which a pattern hides the first token, on which trained models rest
their attention, is so ill-conditioned in float32 that the dense oracle itself is off by more than the bound."""


def rows_equal_oracle(subject: Subject) -> Finding:
    """Native rows, step by step with the cache, against the dense oracle in the same number format.

    Three streams: a user who is read, a thought that speaks or is silent as its noise has it, an output that is
    silent until words are put into its mouth. Both same-row rules, both silence rules, a window, stripes.
    """
    runs: list[tuple[Model, Topology]] = []
    for same_row, silence, feed, patterns in _ROW_CASES:
        streams = {
            "user": StreamSpec(direction="input", feed=feed if silence == "dropped" else None),
            "thought": StreamSpec(direction="output", sampling=subject.chatty(subject.even_bias)),
            "output": StreamSpec(direction="output", sampling=subject.chatty(-NEVER, seed=1)),
        }
        topology = Topology(streams=streams, patterns=patterns, same_row=same_row, silence=silence)
        runs.append((subject.dressed(topology), topology))
    if subject.model.trained is not None:
        runs.append((subject.model, _spoken(subject, subject.model.trained.topology.to_topology())))
    differences: list[float] = []
    num_logits = num_probes = 0
    for model, topology in runs:
        core = RecordingCore(model, kv_tokens=600)
        conversation = core.open(topology)
        _talk(core, conversation)
        expected = reference_logits(
            model, conversation.topology, conversation.transcript, probes=sorted(core.probes)
        )
        differences.append(largest_difference(core.logits, expected))
        num_logits, num_probes = num_logits + len(core.logits), num_probes + len(core.probes)
    value = max(differences)
    detail = f"{num_logits} rows of logits ({num_probes} of probes) over {len(runs)} topologies"
    return Finding("rows_equal_oracle", value <= subject.bound, value, subject.bound, detail)


def _spoken(subject: Subject, topology: Topology) -> Topology:
    """A trained topology whose outputs speak in about half of the rows."""
    sampling = subject.chatty(subject.even_bias)
    outputs = {name: topology.streams[name] for name in topology.output_names}
    return topology.with_specs(
        {name: spec.model_copy(update={"sampling": sampling}) for name, spec in outputs.items()}
    )


def _talk(core: RecordingCore, conversation: Conversation) -> None:
    """Write to every input, put words into the mouth of the last output, write again, end."""
    inputs, outputs = conversation.topology.input_names, conversation.topology.output_names
    for name in inputs:
        conversation.write(name, "How many apples are there? ")
        conversation.flush(name)
    drive(core, conversation, 5)
    conversation.force(outputs[-1], " Let me count.")
    drive(core, conversation, 8)
    for name in inputs:
        conversation.write(name, "Three are red.")
    conversation.end()
    drive(core, conversation, 12)


def views_equal_oracle(subject: Subject) -> Finding:
    """A thinker and a writer over shared spans, text arriving midway, against the replay of home views."""
    name = "views_equal_oracle"
    model = subject.stock
    if model.architecture.shift_refusal is not None:
        return Finding(name, None, None, subject.bound, f"skipped: {model.architecture.shift_refusal}")
    streams = {
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(
            direction="output",
            visibility="internal",
            instructions="Take short notes.",
            max_tokens=14,
            sampling=subject.endless(),
        ),
        "output": StreamSpec(direction="output", wait_k=3, max_tokens=16, sampling=subject.endless()),
    }
    topology = Topology(streams=streams, decoding="views", patterns={"output": {"thought": Window(9)}})
    core = RecordingCore(model, kv_tokens=1500)
    conversation = core.open(topology)
    conversation.write("user", "How many apples are there? ")
    conversation.flush("user")
    drive(core, conversation, 9 + len(conversation.stage.inputs[0].queue))
    before = len(conversation.transcript.tokens("output"))
    conversation.write("user", "Three are red.")
    conversation.end()
    drive(core, conversation, 40)
    after = len(conversation.transcript.tokens("output")) - before
    value = largest_difference(core.logits, reference_logits(model, topology, conversation.transcript))
    detail = (
        f"{len(core.logits)} rows of logits; text arrived {before} tokens into the answer, {after} came after"
    )
    return Finding(name, value <= subject.bound and before > 0 and after > 0, value, subject.bound, detail)


def plain_equals_generate(subject: Subject) -> Finding:
    """The `plain` preset, greedy, against `transformers.generate` with the attention and layers of `transformers`."""
    plain = preset("plain")
    output = plain.streams["output"].model_copy(update={"max_tokens": MAX_NEW_TOKENS})
    topology = plain.with_specs({"output": output})
    tie = max(TIE, subject.bound / 2)
    unequal = excused = compared = 0
    for prompt in PROMPTS:
        core = RecordingCore(subject.stock, kv_tokens=600)
        conversation = core.open(topology)
        conversation.write("user", prompt)
        conversation.end()
        drive(core, conversation, 2 * MAX_NEW_TOKENS + len(conversation.stage.inputs[0].queue))
        ours = [token for _, token in conversation.transcript.tokens("output")]
        theirs, margins = _generate(subject, prompt)
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
        compared += min(at + 1, len(theirs))
        if ours == theirs:
            continue
        is_tie = at < min(len(ours), len(theirs)) and margins[at] < tie
        excused, unequal = excused + is_tie, unequal + (not is_tie)
    detail = f"{compared} tokens of {len(PROMPTS)} answers; {excused} near-tie{'' if excused == 1 else 's'} excused"
    return Finding("plain_equals_generate", unequal == 0, float(unequal), 0.0, detail)


def _generate(subject: Subject, prompt: str) -> tuple[list[int], list[float]]:
    """The greedy answer of `transformers.generate`, and by how much the best logit beat the next at each token."""
    codec = subject.model.codec
    try:
        text = codec.render_chat([{"role": "user", "content": prompt}], answer_next=True)
    except BraidError:  # no chat template: the text is continued as it is
        text = prompt
    ids = torch.tensor([_token_ids(subject, text)], device=subject.model.device)
    config = GenerationConfig(
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        eos_token_id=list(codec.end_ids) or None,
        pad_token_id=codec.end_ids[0] if codec.end_ids else 0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with quiet_transformers(), subject.as_stock() as network:
        found = network.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    best = [logits_1V[0].topk(2).values for logits_1V in found.logits]
    return found.sequences[0, ids.shape[1] :].tolist(), [float(top[0] - top[1]) for top in best]


def _token_ids(subject: Subject, text: str) -> Sequence[int]:
    return list(subject.model.codec.hf(text, add_special_tokens=False).input_ids)
