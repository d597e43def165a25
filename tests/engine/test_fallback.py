"""Falling back to one stream: never at the cost of what was asked for, and only where it is cheaper."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.engine.fallback import Costs, Decision, fall_back
from braid.streams.grammar import Grammar
from braid.streams.patterns import Window
from braid.streams.presets import topology as preset
from braid.streams.stream_spec import StreamSpec, Trigger
from braid.streams.topology import Topology

COSTS = Costs({1: 30.0, 2: 36.0, 4: 48.0}, token_ms=3.0, closer_tokens=10, answer_tokens=20)


def spec(**changes: Any) -> StreamSpec:
    return StreamSpec(**{"direction": "output", **changes})


def streams(
    thought: dict[str, Any] | None = None, output: dict[str, Any] | None = None, **more: StreamSpec
) -> Any:
    return {
        "user": StreamSpec(direction="input"),
        "thought": spec(visibility="internal", **(thought or {})),
        "output": spec(wait_k="end", **(output or {})),
        **more,
    }


def views(parts: Any, **changes: Any) -> Topology:
    return Topology(**{"decoding": "views", "streams": parts, **changes})


def decide(topology: Topology, **changes: Any) -> Decision:
    return fall_back(topology, **{"input_tokens": 12, "is_complete": True, "costs": COSTS, **changes})


# ---- estimates


@pytest.mark.parametrize(("queries", "ms"), [(1, 30), (2, 36), (3, 42), (4, 48), (6, 60), (0, 24)])
def test_rows_between_and_beyond_what_was_measured_lie_on_a_line(queries: int, ms: float) -> None:
    assert COSTS.row(queries) == pytest.approx(ms)
    assert Costs({3: 7.0}, 1.0).row(queries) == 7.0


def test_an_estimate_counts_what_is_read_and_the_rows_that_are_made() -> None:
    plain = views({"user": StreamSpec(direction="input"), "output": spec(max_tokens=5)})
    # 12 + 10 tokens are read: a row and 21 further tokens; then five rows of one.
    assert COSTS.estimate(plain, 12) == pytest.approx(30 + 21 * 3 + 5 * 30)
    both = views(streams({"max_tokens": 2, "instructions": "x" * 39}, {"max_tokens": 5}))
    # Another closer of 10 tokens and 10 of instructions; two of the five rows hold two tokens.
    assert COSTS.estimate(both, 12) == pytest.approx(30 + 41 * 3 + 2 * 36 + 3 * 30)
    # Without limits of their own both say what is usual, and a thought is over with the answer.
    assert COSTS.estimate(views(streams()), 1) == pytest.approx(30 + 20 * 3 + 20 * 36)
    assert COSTS.estimate(views(streams({"max_tokens": 64}, {"max_tokens": 5})), 1) == pytest.approx(
        30 + 60 + 5 * 36
    )


@given(st.integers(1, 500), st.floats(1, 100), st.floats(0.01, 50), st.floats(0.01, 10))
def test_where_a_query_costs_something_one_stream_is_cheaper(
    input_tokens: int, first_ms: float, next_ms: float, token_ms: float
) -> None:
    costs = Costs({1: first_ms, 2: first_ms + next_ms}, token_ms)
    decision = decide(preset("think-aloud"), input_tokens=input_tokens, costs=costs)
    assert decision.asked_ms is not None
    assert decision.plain_ms is not None
    assert decision.plain_ms < decision.asked_ms
    assert decision.fell_back == (decision.plain_ms < 0.98 * decision.asked_ms)


# ---- the decision


def test_a_short_question_is_answered_by_one_stream() -> None:
    decision = decide(preset("think-aloud"))
    assert decision.fell_back
    assert decision.topology == decision.plain
    assert decision.topology.output_names == ("output",)
    asked, plain = preset("think-aloud").streams["output"], decision.topology.streams["output"]
    assert plain == asked  # with its instructions and its limit
    assert "thought" in decision.reason
    assert f"{decision.plain_ms:.0f} ms" in decision.reason


def test_one_stream_without_instructions_is_the_preset_plain() -> None:
    decision = decide(views(streams()))
    plain = preset("plain")
    assert decision.fell_back
    assert decision.topology.streams["output"] == plain.streams["output"]
    assert decision.topology.input_names == plain.input_names


def test_what_the_answer_reads_stays_as_it_was() -> None:
    parts = streams(document=StreamSpec(direction="input"))
    patterns = {"output": {"thought": Window(n=3), "document": Window(n=9)}, "thought": {"user": Window(n=2)}}
    reads = {"output": ("thought", "user"), "thought": ("user",)}
    asked = views(parts, patterns={"output": {"thought": Window(n=3)}}, reads=reads, system="Be brief.")
    chosen = decide(asked).topology
    assert chosen.readable("output") == ("user", "output")
    assert chosen.system == "Be brief."
    assert chosen.input_names == ("user", "document")
    assert decide(views(parts, patterns=patterns)).topology.pattern("output", "document") == Window(n=9)


def test_an_answer_that_would_begin_early_waits_for_the_end() -> None:
    assert decide(views({**streams(), "output": spec(wait_k=3)})).topology.streams["output"].wait_k == "end"


LOSSES: dict[str, tuple[Topology, dict[str, Any], str]] = {
    "live input": (preset("think-aloud"), {"is_complete": False}, "more of the input"),
    "history": (preset("think-aloud"), {"has_history": True}, "conversation"),
    "tools": (preset("think-aloud"), {"has_tools": True}, "tools"),
    "copies": (preset("think-aloud"), {"copies": {"thought": 2}}, "copies"),
    "a trained model": (preset("think-aloud"), {"is_trained": True}, "trained"),
    "native rows": (preset("solve"), {}, "native rows"),
    "several answers": (views(streams(second=spec())), {}, "output, second"),
    "no answer": (
        views({"user": StreamSpec(direction="input"), "thought": spec(visibility="internal")}),
        {},
        "none",
    ),
    "one stream": (preset("plain"), {}, "one output already"),
    "a held answer": (views(streams({}, {"held_by": ("thought",)})), {}, "held by thought"),
    "a held thought": (
        views(streams({"held_by": ("guard",)}, guard=spec(visibility="internal"))),
        {},
        "held by guard",
    ),
    "tool streams": (
        views(streams(tool_call=spec(visibility="internal"), tool_result=StreamSpec(direction="input"))),
        {},
        "tool_call calls tools",
    ),
    "a forbidden flow": (
        views(
            streams(note=spec(visibility="internal")),
            reads={"thought": ("user",), "output": ("user", "thought")},
            forbid=(("note", "output"),),
        ),
        {},
        "forbidden",
    ),
    "a grammar": (views(streams({"grammar": Grammar(regex="a+")})), {}, "grammar"),
    "a forced beginning": (views(streams({"prefix": "First,"})), {}, "beginning"),
    "odds": (views(streams({"logprobs": 2})), {}, "likely"),
    "an audit": (
        views(streams(audit=spec(visibility="internal")), reads={"output": ("user", "thought")}),
        {},
        "audit does not serve output",
    ),
    "an answer that is woken": (views(streams({}, {"trigger": Trigger(on="thought")})), {}, "trigger"),
    "paced input": (
        views({**streams(), "user": StreamSpec(direction="input", feed="paced")}),
        {},
        "a token a row",
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_nothing_that_was_asked_for_is_lost(case: str) -> None:
    topology, changes, words = LOSSES[case]

    def never() -> Costs:
        raise AssertionError("nothing is measured where nothing can be chosen")

    decision = decide(topology, costs=never, **changes)
    assert not decision.fell_back
    assert decision.topology is topology
    assert words in decision.reason
    assert (decision.asked_ms, decision.plain_ms, decision.plain) == (None, None, None)


def test_own_settings_of_the_answer_are_no_loss() -> None:
    answer = {
        "grammar": Grammar(regex="a+"),
        "prefix": "So:",
        "logprobs": 1,
        "stop": ("\n",),
        "max_tokens": 7,
    }
    decision = decide(views(streams({}, answer)))
    assert decision.fell_back
    assert decision.topology.streams["output"] == spec(wait_k="end", **answer)
    assert decide(preset("think-aloud"), copies={"thought": 1}).fell_back


def test_streams_that_cost_nothing_are_kept() -> None:
    free = Costs({1: 30.0, 2: 30.0}, token_ms=0.0)
    decision = decide(preset("think-aloud"), costs=free)
    assert not decision.fell_back
    assert "cost no more" in decision.reason
    assert decision.plain is not None
    assert decision.plain_ms == decision.asked_ms


def test_costs_are_measured_where_they_are_needed() -> None:
    assert decide(preset("think-aloud"), costs=lambda: COSTS) == decide(preset("think-aloud"))
