"""The sessions that the suite plays: small ones, in which everything happens that a backend must get right.

    rows     trained with streams: silence, probes, both same-row rules, windows; a stream is closed midway
    own      the same of a checkpoint that really was trained, with its own topology
    stock    rows of stock weights: all that needs neither silence nor stream embeddings
    library  rows that begin with two inputs, one of which reads the other
    think    views of a thinker and a writer; text arrives while both are speaking
    plain    one writer behind the chat template, its input in chunks
    blind    a thought that reads the user alone, beside others that it must not hear

Everybody reads all of the first input: a query from which a pattern hides the first token, on which trained models
rest their attention, is so ill-conditioned in float32 that the oracle itself is off by more than the bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from braid.checks.conformance.tape import Scene, Tape, Voice, record
from braid.checks.subject import Subject
from braid.streams.patterns import Pattern, Striped, Window
from braid.streams.stream_spec import Feed
from braid.streams.topology import SameRow, SilenceRule, StreamSpec, Topology

__all__ = ["ROWS", "Rules", "blind", "library", "own", "plain", "rows", "stock", "think"]

QUESTION = "How many?"
MORE = " Two are red."
SYSTEM = (
    "You answer questions about a basket of fruit. Be brief, be exact, count everything twice before you say a "
    "number, and never mention that you were told to do so. If you do not know, say that you do not know."
)

THOUGHT = Voice(
    " Let me count the apples first, and then the pears, one by one, since nothing is easier to miss.",
    then=" Better to ask somebody else, because the basket is closed and nobody can see a thing from here.",
)
ANSWER = Voice(
    " There are seven of them: four apples, two pears, and one plum that nobody wanted to eat so far.",
    then=" No telling: whoever opened the basket last has not said a single word about what was in it.",
)
"""`then` is what they say where a session goes another way after its first words."""


class Rules(NamedTuple):
    """Under which native rows are made."""

    same_row: SameRow = "earlier"
    silence: SilenceRule = "dropped"
    feed: Feed | None = "paced"
    patterns: Mapping[str, Mapping[str, Pattern]] = {}


ROWS = (
    Rules(patterns={"output": {"thought": Striped(3, 1)}, "thought": {"output": Window(4)}}),
    Rules("none", feed="burst"),
    Rules("none", "kept", None, {"thought": {"output": Striped(2, 0), "document": Window(3)}}),
)
"""Both same-row rules, both silence rules, both feeds; windows and stripes."""


def rows(subject: Subject, rules: Rules, *, has_patterns: bool = True, rhythm: str = "-+++--+") -> Tape:
    """Two inputs are read while a thought speaks now and then, and an output when words are put into its mouth.

    Args:
        subject: The network, on which the streams are put.
        rules: Of the rows.
        has_patterns: Whether the rules' patterns count.
        rhythm: When the thought speaks.
    """
    reader, speaker = StreamSpec(direction="input", feed=rules.feed), StreamSpec(direction="output")
    topology = Topology(
        streams={"user": reader, "document": reader, "thought": speaker, "output": speaker},
        same_row=rules.same_row,
        silence=rules.silence,
        patterns=rules.patterns if has_patterns else {},
    )

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION)
        scene.write("document", "a list")
        scene.rows(5)
        scene.force("output", " Well")
        scene.rows(4)
        scene.close("document")
        scene.rows(2)
        scene.write("user", MORE)
        scene.end()
        scene.rows(3)

    voices = {"thought": Voice(THOUGHT.text, rhythm), "output": Voice(ANSWER.text, "----+++-")}
    return record(subject.dressed(topology), topology, voices, talk)


def own(subject: Subject) -> Tape:
    """Rows of the topology with which a checkpoint was really trained."""
    model = subject.model
    assert model.trained is not None, "only a trained model has a topology of its own"
    topology = model.trained.topology.to_topology()

    def talk(scene: Scene) -> None:
        for name in topology.input_names:
            scene.write(name, QUESTION)
        scene.rows(4)
        scene.force(topology.output_names[-1], " Well")
        scene.rows(6)

    return record(model, topology, dict.fromkeys(topology.output_names, Voice(ANSWER.text, "-++")), talk)


def stock(subject: Subject, *, turns: bool = False) -> Tape:
    """Rows of stock weights: a thought and an output that begin with given words and never fall silent."""
    streams = {
        "user": StreamSpec(direction="input", feed="burst"),
        "thought": StreamSpec(direction="output", prefix=" Hm"),
        "output": StreamSpec(direction="output", prefix=" So"),
    }

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION + MORE)
        scene.rows(5)
        scene.write("user", " Think!")
        scene.rows(8)

    return record(subject.stock, Topology(streams=streams), _voices(turns), talk)


def think(subject: Subject, *, turns: bool = False, has_window: bool = False) -> Tape:
    """Views of a thinker and a writer."""
    streams = {
        "user": StreamSpec(direction="input"),
        "thought": StreamSpec(direction="output", visibility="internal"),
        "output": StreamSpec(direction="output", wait_k=3),
    }
    patterns: Mapping[str, Mapping[str, Pattern]] = {"output": {"thought": Window(9)}} if has_window else {}

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION)
        scene.rows(5)
        scene.write("user", MORE)
        scene.end()
        scene.rows(8)

    topology = Topology(streams=streams, decoding="views", patterns=patterns)
    return record(subject.stock, topology, _voices(turns), talk)


def plain(subject: Subject, *, turns: bool = False, has_system: bool = False, chunk: int = 12) -> Tape:
    """One writer behind the chat template, as any engine serves it."""
    streams = {"user": StreamSpec(direction="input"), "output": StreamSpec(direction="output", wait_k="end")}

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION + MORE)
        scene.end()
        scene.rows(10)

    topology = Topology(streams=streams, decoding="views", system=SYSTEM if has_system else None)
    return record(subject.stock, topology, _voices(turns), talk, chunk=chunk)


def library(subject: Subject) -> Tape:
    """Rows that begin with a user and a document which reads what the user has said, in chunks."""
    reader = StreamSpec(direction="input", feed="burst")
    output = StreamSpec(direction="output", prefix=" So", wait_k="end")

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION + MORE)
        scene.write("document", SYSTEM[:60])
        scene.end()
        scene.rows(5)

    topology = Topology(streams={"user": reader, "document": reader, "output": output})
    return record(subject.stock, topology, _voices(False), talk, chunk=24)


def blind(subject: Subject, *, in_views: bool) -> Tape:
    """A thought that only the user influences within the turn, beside a document and an output that reads all."""
    reader, speaker = StreamSpec(direction="input", feed="paced"), StreamSpec(direction="output")
    topology = Topology(
        streams={"user": reader, "document": reader, "thought": speaker, "output": speaker},
        decoding="views" if in_views else "rows",
        reads={"user": (), "thought": ("user",)},
    )

    def talk(scene: Scene) -> None:
        scene.write("user", QUESTION)
        scene.write("document", "a list")
        scene.rows(8)

    return record(subject.stock, topology, _voices(False), talk)


def _voices(turns: bool) -> Mapping[str, Voice]:
    voices = {"thought": THOUGHT, "output": ANSWER}
    return voices if turns else {lane: Voice(voice.text) for lane, voice in voices.items()}
