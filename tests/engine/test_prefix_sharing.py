"""What sessions have in common at their beginning is computed once, and nobody can tell: the logits are the same.

rows    bursts of input before anything is said: a system prompt, a document
views   the preamble: the template's beginning and system prompt, and the turns that have become history
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.engine.session.conversation import Conversation
from braid.model.model import Model
from braid.streams.patterns import Window
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology
from tests.engine.harness import SILENCE, chatty, stock, trained
from tests.engine.witness import TOLERANCE, UNSHRUNK, WitnessCore, check_books, drive, told
from tests.properties import examples

SYSTEM = "answer in plain words. "
LOUD = SamplingSpec(logit_bias={SILENCE: -100.0, 257: -100.0})


def in_rows(**changes: Any) -> Topology:
    return Topology(
        streams={
            "system": StreamSpec(direction="input", feed="burst", priority="high"),
            "user": StreamSpec(direction="input", feed="burst"),
            "output": StreamSpec(direction="output", wait_k="end", sampling=LOUD, max_tokens=5),
        },
        **changes,
    )


def in_views(**changes: Any) -> Topology:
    return Topology(
        decoding="views",
        system=changes.pop("system", SYSTEM),
        streams={
            "user": StreamSpec(direction="input"),
            "thought": StreamSpec(direction="output", visibility="internal", sampling=LOUD, max_tokens=6),
            "output": StreamSpec(direction="output", wait_k="end", sampling=LOUD, max_tokens=5),
        },
        **changes,
    )


ROWS, VIEWS = in_rows(), in_views()


def core_for(topology: Topology, model: Model | None = None, **settings_: Any) -> WitnessCore:
    if model is None:
        model = trained(topology) if topology.decoding == "rows" else stock()
    return WitnessCore(model, **{"prefix_share": 0.5, **settings_})


def ask(core: WitnessCore, conversation: Conversation, *texts: str) -> int:
    """One turn a text; returns how many tokens the network was fed for them."""
    before = core.witness.num_computed
    for text in texts:
        if conversation.topology.decoding == "rows" and not conversation.transcript.rows:
            core.do(conversation, "write", "system", SYSTEM)
        core.do(conversation, "write", "user", text)
        core.do(conversation, "end")
        drive(core, conversation)
    return core.witness.num_computed - before


def alone(topology: Topology, *texts: str, seed: int = 0, model: Model | None = None) -> tuple[int, Any]:
    """The same without anything to share."""
    core = core_for(topology, model, prefix_share=0.0)
    conversation = core.open(topology, seed=seed)
    return ask(core, conversation, *texts), told(conversation)


@pytest.mark.parametrize("topology", [ROWS, VIEWS], ids=["rows", "views"])
def test_a_second_session_computes_only_what_is_new_and_sees_the_same(topology: Topology) -> None:
    core = core_for(topology)
    texts = ("something ", "a question ", "a question ")
    cost, _ = alone(topology, "a question ")
    costs = [ask(core, core.open(topology), text) for text in texts]
    # The whole system prompt, or the template with it, is there already; of the same question its burst too.
    assert costs[1] <= cost - len(SYSTEM)
    in_common = len("a question ") if topology.decoding == "rows" else 0
    assert costs[2] <= costs[1] - in_common + 3
    for conversation, text in zip(core.conversations.values(), texts, strict=True):
        assert told(conversation) == alone(topology, text)[1]
        ask(core, conversation, "and more ")  # whoever writes on in a page that others share has a copy of it
    for conversation in core.conversations.values():
        assert core.difference(conversation) <= TOLERANCE


def test_a_session_goes_on_in_a_page_in_which_another_has_parted_from_it() -> None:
    core = core_for(ROWS)
    first, second = core.open(ROWS), core.open(ROWS)
    core.do(first, "write", "system", SYSTEM)
    core.do(first, "write", "user", "the same, then one ")
    drive(core, first)
    core.do(second, "write", "system", SYSTEM)
    core.do(second, "write", "user", "the same, then two ")
    drive(core, second)
    for conversation in (first, second):
        core.do(conversation, "end")
        drive(core, conversation)
    assert core.witness.usage().prefix_hits == 1
    assert core.difference(first) <= TOLERANCE and core.difference(second) <= TOLERANCE


@settings(max_examples=examples(10), phases=UNSHRUNK)
@given(
    st.lists(st.text("ab ", min_size=1, max_size=30), min_size=2, max_size=5),
    st.sampled_from(["earlier", "none"]),
    st.sampled_from([{}, {"output": {"system": Window(9)}}, {"user": {"system": Window(4)}}]),
    st.sampled_from([{}, {"user": ["user"]}]),
    st.sampled_from(["llama", "gemma3", "mistral-sliding"]),
    st.booleans(),
)
def test_shared_beginnings_of_rows_equal_unshared_ones(
    texts: list[str], same_row: Any, patterns: Any, reads: Any, architecture: str, closes: bool
) -> None:
    """Texts that agree for a while, and sessions that end, or stay, while others begin."""
    if "user" in reads and "user" in patterns:
        patterns = {}
    topology = in_rows(same_row=same_row, patterns=patterns, reads=reads)
    core = core_for(topology, trained(topology, architecture))
    for seed, text in enumerate(texts):
        conversation = core.open(topology, seed=seed)
        ask(core, conversation, text)
        assert core.difference(conversation) <= TOLERANCE
        assert told(conversation) == alone(topology, text, seed=seed, model=core.model)[1]
        if closes:
            core.do(conversation, "close")
    assert core.witness.usage().prefix_hits == len(texts) - 1


def test_the_history_of_earlier_turns_is_shared_by_forks_and_by_who_says_the_same() -> None:
    core = core_for(VIEWS)
    first = core.open(VIEWS)
    ask(core, first, "one ", "two ")
    second = core.open(VIEWS)
    shared = ask(core, second, "one ", "two ")
    unshared, entries = alone(VIEWS, "one ", "two ")
    # The template's beginning, and the first turn as history: computed by the first session.
    assert shared < unshared - len(SYSTEM) - len("one ")
    assert told(second) == entries
    twin = core.fork(second)
    core.evict(second)
    for conversation in (second, twin):
        ask(core, conversation, "three ")
        assert core.difference(conversation) <= TOLERANCE
    assert told(twin) == told(second) == alone(VIEWS, "one ", "two ", "three ")[1]
    check_books(core)


@pytest.mark.parametrize("topology", [ROWS, VIEWS], ids=["rows", "views"])
def test_sessions_that_begin_at_once_compute_their_beginning_once(topology: Topology) -> None:
    core = core_for(topology)
    together = [core.open(topology) for _ in range(4)]
    cost, entries = alone(topology, "a question ")
    for conversation in together:
        if topology.decoding == "rows":
            core.do(conversation, "write", "system", SYSTEM)
        core.do(conversation, "write", "user", "a question ")
        core.do(conversation, "end")
    before = core.witness.num_computed
    drive(core, *together)
    assert core.witness.num_computed - before <= 4 * cost - 3 * len(SYSTEM)
    for conversation in together:
        assert told(conversation) == entries
        assert core.difference(conversation) <= TOLERANCE


# ---- what is not shared


@pytest.mark.parametrize("topology", [ROWS, VIEWS], ids=["rows", "views"])
def test_another_salt_shares_nothing(topology: Topology) -> None:
    core = core_for(topology)
    cost = ask(core, core.open(topology, salt="one"), "a question ")
    assert ask(core, core.open(topology, salt="two"), "a question ") == cost
    assert ask(core, core.open(topology, salt="one"), "a question ") < cost


def test_other_rules_of_reading_share_nothing() -> None:
    """On stock weights a session may choose who reads whom; keys and values then differ."""
    kinds = [
        ROWS,
        in_rows(reads={"user": ["user"]}),
        in_rows(same_row="none"),
        in_rows(patterns={"user": {"system": Window(4)}}),
    ]
    core = core_for(ROWS, stock())
    for topology in kinds:
        conversation = core.open(topology)
        ask(core, conversation, "a question ")
        assert core.difference(conversation) <= TOLERANCE
    usage = core.witness.usage()
    assert usage.prefix_lookups >= len(kinds) and usage.prefix_hits == 0


def test_other_weights_and_stream_embeddings_share_nothing() -> None:
    model = trained(ROWS)
    core = core_for(ROWS, model)
    cost = ask(core, core.open(ROWS), "a question ")
    assert ask(core, core.open(ROWS), "a question ") < cost
    assert model.stream_embeddings_HD is not None
    with torch.no_grad():
        model.stream_embeddings_HD[0] += 0.5
    changed = core.open(ROWS)
    assert ask(core, changed, "a question ") == cost
    assert core.difference(changed) <= TOLERANCE


def test_control_a_beginning_taken_from_other_rules_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.engine.local import backend

    monkeypatch.setattr(backend, "_rules_key", lambda topology, copies: b"all the same")
    core = core_for(ROWS, stock())
    ask(core, core.open(ROWS), "a question ")
    other = core.open(
        in_rows(reads={"user": ["user"], "system": ["system"]}, patterns={"system": {"system": Window(2)}})
    )
    ask(core, other, "a question ")
    assert core.difference(other) > 1e-3


def test_a_beginning_that_is_read_row_by_row_is_not_shared() -> None:
    """Where input is paced outputs may speak in every row, so that nothing is closed."""
    bursts = in_rows()
    streams = {
        name: spec.model_copy(update={"feed": "paced"}) if spec.is_input else spec
        for name, spec in bursts.streams.items()
    }
    paced = bursts.model_copy(update={"streams": streams})
    core = core_for(paced)
    cost = ask(core, core.open(paced), "a question ")
    again = core.open(paced)
    assert ask(core, again, "a question ") == cost
    assert core.difference(again) <= TOLERANCE


# ---- under pressure


@pytest.mark.parametrize("topology", [ROWS, VIEWS], ids=["rows", "views"])
def test_letting_prefixes_go_harms_nobody(topology: Topology) -> None:
    core = core_for(topology)
    sessions: list[Conversation] = []
    for number in range(5):
        conversation = core.open(topology, seed=number)
        sessions.append(conversation)
        core.do(conversation, "write", "user", f"question {number} ")
        if topology.decoding == "rows":
            core.do(conversation, "write", "system", SYSTEM)
        drive(core, conversation, rows=number)
        core.backend.release_prefixes(3 if number % 2 else 1000)
        check_books(core)
    for conversation in sessions:
        core.do(conversation, "end")
    drive(core, *sessions)
    for conversation in sessions:
        assert core.difference(conversation) <= TOLERANCE


@pytest.mark.parametrize("topology", [ROWS, VIEWS], ids=["rows", "views"])
def test_a_cache_full_of_prefixes_still_serves(topology: Topology) -> None:
    """Sessions come and go; what they leave in the tree gives way to whoever needs room."""
    core = core_for(topology, kv_tokens=160, prefix_share=1.0)
    for number in range(6):
        conversation = core.open(topology, seed=number, salt=str(number))
        ask(core, conversation, "a question with some words ")
        assert conversation.turn_is_over
        assert core.difference(conversation) <= TOLERANCE
        core.do(conversation, "close")
        check_books(core)
    usage = core.witness.usage()
    assert usage.prefix_evicted_tokens > 0
    assert usage.pages_used <= usage.pages_total
    core.close()
    assert core.witness.usage().pages_used == 0 and not core.witness.cache.pool.lists


def test_a_session_that_fills_the_cache_with_its_own_prefix_goes_on_alone() -> None:
    """Its last page is shared with the tree: writing on would copy it, and there is no page for the copy."""
    topology = in_rows()
    core = core_for(topology, kv_tokens=64, prefix_share=1.0)
    conversation = core.open(topology)
    core.do(conversation, "write", "system", SYSTEM + "and more, until it is full ")
    core.do(conversation, "write", "user", "x ")
    core.do(conversation, "end")
    drive(core, conversation)
    assert conversation.turn_is_over
    assert core.difference(conversation) <= TOLERANCE


def test_silence_is_no_prefix_where_it_is_kept() -> None:
    topology = in_rows(silence="kept")
    core = core_for(topology)
    for _ in range(2):
        conversation = core.open(topology)
        ask(core, conversation, "a question ")
        assert core.difference(conversation) <= TOLERANCE
    assert core.witness.usage().prefix_hits == 0


def test_speaking_while_reading_ends_the_beginning() -> None:
    """An output that joins in the last row of the burst: rows after it are its answer's, and are nobody else's."""
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input", feed="burst"),
            "output": StreamSpec(direction="output", sampling=chatty(2.0), max_tokens=9),
        }
    )
    core = core_for(topology)
    for seed in range(3):
        conversation = core.open(topology, seed=seed)
        core.do(conversation, "write", "user", "the same words ")
        drive(core, conversation, rows=18 + seed)
        core.do(conversation, "write", "user", "and the same again ")
        core.do(conversation, "end")
        drive(core, conversation)
        assert core.difference(conversation) <= TOLERANCE
    hits = core.witness.usage().prefix_hit_tokens
    # The last word's space waits for what follows, and the last row of a burst is one in which outputs are asked.
    assert hits == 2 * (len("the same words") - 1)
