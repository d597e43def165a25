"""The conformance suite says yes to a right backend, whoever it is, and no to each thing that can be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from braid.checks.conformance import CONFORMANCE, Oracle, run_conformance, scenes
from braid.checks.conformance.oracle import apart
from braid.checks.conformance.stand import Stand
from braid.checks.finding import Finding
from braid.checks.subject import Subject
from braid.engine.backend import (
    Answer,
    Backend,
    Capabilities,
    Item,
    ItemResult,
    ModelCard,
    Op,
    Open,
    Recall,
    Splice,
    Usage,
)
from braid.engine.local import LocalBackend
from braid.errors import BraidError, UnsupportedByBackend
from braid.model.model import Model
from braid.streams.patterns import Dense
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.checks.controls import (
    MAIN,
    MORE,
    CloseKeepsLanes,
    IgnoresMinP,
    OneNoiseForAllTurns,
    PromisesTwice,
    SharesBetweenTenants,
    TakesHalfTheTemperature,
)
from tests.engine.harness import codec, stock, trained


class Stranger:
    """A backend of somebody else's: there is nothing to it but the protocol."""

    def __init__(self, model: Model, *, kv_tokens: int) -> None:
        self.__inner = LocalBackend(model, kv_tokens=kv_tokens, page_size=8)

    @property
    def model(self) -> ModelCard:
        return self.__inner.model

    def capabilities(self) -> Capabilities:
        return self.__inner.capabilities()

    def settle(self, topology: Topology) -> Topology:
        return self.__inner.settle(topology)

    def apply(self, ops: Sequence[Op]) -> list[int]:
        return self.__inner.apply(ops)

    def reserve(self, session: int, needs: Sequence[tuple[str, int]]) -> None:
        self.__inner.reserve(session, needs)

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        return self.__inner.step(items)

    def deviation(self, session: int, span: str, start: int, stop: int, old: int) -> float:
        return self.__inner.deviation(session, span, start, stop, old)

    def excerpt(self, session: int, places: Sequence[tuple[str, int]]) -> object:
        return self.__inner.excerpt(session, places)

    def deviation_between(self, found: object, right: object) -> float:
        return self.__inner.deviation_between(found, right)

    def usage(self) -> Usage:
        return self.__inner.usage()

    def release_prefixes(self, num_pages: int) -> int:
        return self.__inner.release_prefixes(num_pages)

    def close(self) -> None:
        self.__inner.close()


def failed(findings: Sequence[Finding]) -> set[str]:
    return {finding.name for finding in findings if finding.ok is False}


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_right_backend_passes(architecture: str) -> None:
    assert isinstance(Stranger(stock(architecture), kv_tokens=64), Backend)
    started: list[str] = []
    told: list[Finding] = []
    findings = run_conformance(Stranger, stock(architecture), on_start=started.append, on_finding=told.append)
    assert failed(findings) == set(), findings
    assert [finding.name for finding in findings] == started == list(CONFORMANCE)
    assert told == findings
    skipped = [finding.name for finding in findings if finding.ok is None]
    assert skipped == ["excluded_is_refused"]  # it excludes nothing
    for finding in (finding for finding in findings if finding.name not in skipped):
        assert finding.ok is True
        assert finding.value is not None
        assert finding.bound is not None
        assert finding.seconds > 0
    # far below the bound for real models
    assert max(finding.value or 0.0 for finding in findings) <= 1e-6


def test_the_suite_has_something_to_compare() -> None:
    """Silence, probes, closed streams, text that arrives midway: what is not on the tapes is not checked."""
    subject = Subject(stock())
    paced = scenes.rows(subject, scenes.ROWS[0])
    assert len(paced.probes) >= 10
    assert any(entry.kind == "close" for entry in paced.transcript.events)
    kept = scenes.rows(subject, scenes.ROWS[2])
    silence = kept.model.silence_token_id
    assert sum(cell.token == silence for row in kept.transcript.rows for cell in row.cells.values()) >= 10
    thinking = scenes.think(subject)
    users = [t for t, _ in thinking.transcript.tokens("user")]
    assert users[-1] > thinking.transcript.tokens("output")[0][0]


def test_a_checkpoint_runs_its_own_topology_too() -> None:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input"),
            "thought": StreamSpec(direction="output", visibility="internal"),
            "output": StreamSpec(direction="output"),
        },
        reads={"thought": ["user"]},
    )
    finding = CONFORMANCE["rows_equal_dense"](Stand(LocalBackend, Oracle(trained(topology))))
    assert finding.ok is True
    assert finding.detail.endswith("in 4 sessions")


# ---- controls: each is wrong in one way

CONTROLS = {**MAIN, **MORE}


@cache
def shallow() -> Oracle:
    """One layer is enough to be wrong in, and quick."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LlamaForCausalLM(config).double()
        for parameter in network.parameters():
            parameter.data.mul_(6.0 if parameter.dim() > 1 else 1.0)
    return Oracle(Model(network, codec(), name="shallow"))


def named(controls: Sequence[type[LocalBackend]], *marks: pytest.MarkDecorator) -> list[Any]:
    return [pytest.param(control, id=control.__name__, marks=marks) for control in controls]


@pytest.mark.parametrize("control", [*named([*MAIN]), *named([*MORE], pytest.mark.slow)])
def test_control_fails_its_checks_and_no_others(control: type[LocalBackend]) -> None:
    findings = run_conformance(control, shallow())
    assert failed(findings) == CONTROLS[control], [finding for finding in findings if finding.ok is False]


@pytest.mark.parametrize("control", named([*MORE]))
def test_control_fails_its_check(control: type[LocalBackend]) -> None:
    stand = Stand(control, shallow())
    (check,) = CONTROLS[control]
    try:
        assert CONFORMANCE[check](stand).ok is False
    except BraidError:
        assert control.__name__ == "FailsTogether"


@pytest.mark.parametrize(
    ("control", "says"),
    [
        (SharesBetweenTenants, "a session with another salt was given"),
        (OneNoiseForAllTurns, "the noise ignores turn"),
        (IgnoresMinP, "not honoured: min_p"),
        (TakesHalfTheTemperature, "not honoured: temperature"),
        (CloseKeepsLanes, "a closed stream kept its pages"),
        (PromisesTwice, "pages were promised twice"),
    ],
)
def test_a_failure_says_what_is_wrong(control: type[LocalBackend], says: str) -> None:
    (check,) = CONTROLS[control]
    assert says in CONFORMANCE[check](Stand(control, shallow())).detail


def test_every_check_has_a_control() -> None:
    assert set().union(*CONTROLS.values()) == set(CONFORMANCE)


def test_a_backend_that_computes_nothing_fails_what_is_about_computing() -> None:
    def make(model: Model, *, kv_tokens: int) -> NullBackend:
        card = NullModel(model.codec, model.silence_token_id, max_positions=model.max_positions)
        return NullBackend(card, kv_tokens=kv_tokens)

    findings = run_conformance(make, shallow())
    assert failed(findings) >= {"rows_equal_dense", "views_equal_dense", "draws_obey"}
    skipped = {finding.name for finding in findings if finding.ok is None}
    assert skipped == {"recalled_equals_computed", "verify_equals_decoding", "score_equals_decoding"}


def test_a_backend_that_crashes_is_a_finding() -> None:
    def make(model: Model, *, kv_tokens: int) -> Backend:
        raise ZeroDivisionError("no weights")

    findings = run_conformance(make, shallow())
    assert failed(findings) == set(CONFORMANCE)
    assert findings[0].detail == "ZeroDivisionError: no weights"


# ---- what a backend excludes


class Modest(LocalBackend):
    """Serves one writer behind the chat template, and draws the likeliest; as a plain engine would."""

    def capabilities(self) -> Capabilities:
        return Capabilities(*[False] * len(dataclasses.fields(Capabilities)))

    def _apply(self, op: Op) -> int:
        if isinstance(op, Open):
            patterns = [each for row in op.topology.patterns.values() for each in row.values()]
            if op.topology.decoding == "rows" or len(op.topology.output_names) > 1:
                raise UnsupportedByBackend("one writer at a time, please")
            assert all(isinstance(pattern, Dense) for pattern in patterns)
        if isinstance(op, Splice):
            raise UnsupportedByBackend("not here")
        return 0 if isinstance(op, Recall) else super()._apply(op)

    def step(self, items: Sequence[Item]) -> list[ItemResult]:
        for item in items:
            for ask in [entry.ask for entry in item.entries if entry.ask is not None]:
                draws = [d for d in ask.draws if d.allowed is not None or d.counts or d.spec.logit_bias]
                if item.kind in ("verify", "score") or draws or ask.logprobs or ask.entropy or ask.confidence:
                    return [ItemResult(error=UnsupportedByBackend("not here"))] * len(items)
        return super().step(items)


SKIPPED = {
    "rows_equal_dense",
    "batched_equals_alone",
    "others_change_no_bit",
    "recalled_equals_computed",
    "verify_equals_decoding",
    "score_equals_decoding",
    "probes_keep_nothing",
}


def test_what_is_excluded_is_skipped_and_must_be_refused() -> None:
    findings = {finding.name: finding for finding in run_conformance(Modest, shallow())}
    assert failed(list(findings.values())) == set(), findings
    assert {name for name, finding in findings.items() if finding.ok is None} == SKIPPED
    assert all(findings[name].detail.startswith("skipped: ") for name in SKIPPED)
    excluded = findings["excluded_is_refused"].detail
    assert all(field.name in excluded for field in dataclasses.fields(Capabilities))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Capabilities)])
def test_control_what_is_excluded_is_done_all_the_same(field: str) -> None:
    class Immodest(Modest):
        def capabilities(self) -> Capabilities:
            return Capabilities(**{f.name: f.name != field for f in dataclasses.fields(Capabilities)})

        def _apply(self, op: Op) -> int:
            if isinstance(op, Recall | Splice):
                return int(isinstance(op, Recall))
            return LocalBackend._apply(self, op)

        def step(self, items: Sequence[Item]) -> list[ItemResult]:
            return LocalBackend.step(self, items)

    finding = CONFORMANCE["excluded_is_refused"](Stand(Immodest, shallow()))
    assert finding.ok is False
    assert finding.detail == f"excluded: {field}; yet accepted: {field}"


# ---- how answers are compared

log_probabilities = st.floats(-9, 0)
answers = st.builds(
    lambda values, entropy: Answer(
        token=0,
        logprob=max(values),
        top=tuple(enumerate(sorted(values, reverse=True))),
        entropy=entropy,
        confidence=0.5,
    ),
    st.lists(log_probabilities, min_size=5, max_size=5),
    st.floats(0, 5),
)


@given(answers, answers)
def test_the_distance_of_two_answers_is_symmetric_and_nought_for_the_same(
    first: Answer, second: Answer
) -> None:
    assert apart(first, first) == 0
    assert apart(first, second) == apart(second, first)
    assert apart(first, second) >= abs(first.entropy - second.entropy)


@given(answers, st.integers(0, 4), st.floats(1e-3, 1.0))
def test_a_class_that_moves_is_noticed(answer: Answer, rank: int, step: float) -> None:
    moved = [(token, value - step * (at == rank)) for at, (token, value) in enumerate(answer.top)]
    other = answer._replace(top=tuple(sorted(moved, key=lambda pair: -pair[1])))
    assert apart(answer, other) >= step * 0.999


def test_tokens_that_tie_are_the_same_to_a_greedy_draw_alone() -> None:
    first = Answer(token=3, logprob=-1.0, top=((3, -1.0), (7, -1.0001), (9, -4.0)))
    second = Answer(token=7, logprob=-1.0, top=((7, -1.0), (3, -1.0001), (9, -4.0)))
    assert apart(first, second) == pytest.approx(1e-4)
    assert apart(first, second, is_greedy=False) == float("inf")
    assert apart(first._replace(top=()), second._replace(top=())) == float("inf")
    assert apart(first, second._replace(token=9)) >= 3.0


# ---- tapes


def test_a_scene_is_recorded_alike_every_time_whatever_the_weights() -> None:
    subject = Subject(stock())
    first, second = scenes.think(subject), scenes.think(subject)
    assert first.lines == second.lines
    assert first.transcript == second.transcript


def test_tapes_part_after_a_common_beginning_and_hold_what_they_were_given() -> None:
    subject = Subject(stock())
    for scene in (scenes.think, scenes.plain, scenes.stock):
        trunk, branch = scene(subject), scene(subject, turns=True)
        parting = trunk.parts_from(branch)
        assert 0 < parting < len(trunk.lines) - 3
        assert trunk.held(parting) == branch.held(parting)
        kept = sum(len(row.cells) for row in trunk.transcript.rows)
        lanes = set(trunk.topology.streams)
        assert sum(n for span, n in trunk.held(len(trunk.lines)).items() if span in lanes) == kept


def test_a_disguise_changes_every_token_of_its_spans_and_nothing_else() -> None:
    def tokens(lines: Any, spans: set[str]) -> list[tuple[int, ...]]:
        items = [line for line in lines if isinstance(line, Item)]
        return [tuple(e.token_ids) for item in items for e in item.entries if e.span in spans and e.keep]

    tape = scenes.blind(Subject(stock()), in_views=False)
    other = tape.disguised(("document", "output"))
    assert tokens(tape.lines, {"user", "thought"}) == tokens(other.lines, {"user", "thought"})
    pairs = zip(
        tokens(tape.lines, {"document", "output"}), tokens(other.lines, {"document", "output"}), strict=True
    )
    assert all(len(a) == len(b) and all(x != y for x, y in zip(a, b, strict=True)) for a, b in pairs)
