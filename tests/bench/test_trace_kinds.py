"""Made traces: what they end with, in which steps, how fast, and always the same."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.bench.traces.file import Trace, last_edit_of
from braid.bench.traces.kinds import KINDS, MIX, generate_traces
from braid.bench.traces.people import FASTEST_KEYS_PER_S, SLOWEST_KEYS_PER_S, Typist
from braid.bench.traces.texts import DOCUMENTS, FOLLOW_UPS, QUESTIONS, compose
from braid.errors import InputError

TYPED = ("typing", "edits", "paste", "middle", "steering")


def one(kind: str, seed: int, number: int) -> Trace:
    return list(generate_traces({kind: 1}, number + 1, seed))[number]


any_trace = st.builds(one, st.sampled_from(list(KINDS)), st.integers(0, 10_000), st.integers(0, 7))


def texts(trace: Trace) -> list[tuple[str, str]]:
    """Each change of a text, segment by segment: what stood there, and what stands there then."""
    before: dict[str, str] = {}
    changes: list[tuple[str, str]] = []
    for event in trace.events:
        for name, text in (event.text if isinstance(event.text, dict) else {"": event.text}).items():
            changes.append((before.get(name, ""), text))
            before[name] = text
    return changes


def is_one_key(old: str, new: str) -> bool:
    """Whether one character came or went."""
    longer, shorter = (new, old) if len(new) > len(old) else (old, new)
    at = next((at for at, letter in enumerate(shorter) if longer[at] != letter), len(shorter))
    return len(longer) == len(shorter) + 1 and longer[:at] + longer[at + 1 :] == shorter


def plain_words(text: str) -> list[str]:
    return "".join(c for c in text.lower() if c.isalnum() or c in "'-₂ ").split()


def is_heard(old: str, new: str) -> bool:
    """Whether no more than the last two words differ, or only capitals and signs."""
    before, after = plain_words(old), plain_words(new)
    return before == after or (
        before[:-2] == after[: max(0, len(before) - 2)] and len(after) <= len(before) + 2
    )


@settings(deadline=None)
@given(any_trace)
def test_a_trace_ends_with_its_question_and_its_times_ascend(trace: Trace) -> None:
    assert trace.snapshots()[-1][1] == trace.question
    times = [event.at for event in trace.events]
    assert times[0] > 0
    assert all(earlier < later for earlier, later in pairwise(times))
    assert trace.commit_at == pytest.approx(times[-1] + trace.meta.pause_before_commit_s)
    assert 0 < trace.meta.pause_before_commit_s <= 3


@settings(deadline=None)
@given(any_trace)
def test_each_snapshot_is_one_plausible_edit_of_the_one_before(trace: Trace) -> None:
    pastes = 0
    for old, new in texts(trace):
        if trace.kind == "speech":
            assert is_heard(old, new)
        elif not old and len(new) > 1_000:
            pastes += 1
        else:
            assert is_one_key(old, new)
    assert pastes == (trace.kind in ("paste", "middle"))


@settings(deadline=None)
@given(st.sampled_from(["typing", "edits", "steering"]), st.integers(0, 10_000), st.integers(0, 7))
def test_people_type_as_fast_as_people_do(kind: str, seed: int, number: int) -> None:
    trace = one(kind, seed, number)
    assert SLOWEST_KEYS_PER_S <= len(trace.events) / trace.events[-1].at <= FASTEST_KEYS_PER_S
    assert all(later.at - earlier.at >= 0.029 for earlier, later in pairwise(trace.events))


def test_the_mean_speed_is_that_of_ordinary_people() -> None:
    traces = list(generate_traces({"typing": 1}, 100, 5))
    keys = sum(len(trace.events) for trace in traces)
    speed = keys / sum(trace.events[-1].at for trace in traces)
    assert 3 <= speed <= 7  # 36 to 84 words a minute
    slips = sum(len(new) < len(old) for trace in traces for old, new in texts(trace))
    assert 0.01 <= slips / keys <= 0.15


def test_speech_comes_as_fast_as_people_speak_and_is_revised() -> None:
    traces = list(generate_traces({"speech": 1}, 100, 5))
    words = sum(len(str(trace.question).split()) for trace in traces)
    assert 1.5 <= words / sum(trace.events[-1].at for trace in traces) <= 4.5
    revised = sum(len(new.split()) <= len(old.split()) for trace in traces for old, new in texts(trace)[:-1])
    assert 0.05 <= revised / words <= 0.6


def test_the_same_seed_makes_the_same_traces_and_the_first_of_many_are_those_of_few() -> None:
    few, many = list(generate_traces(n=12, seed=3)), list(generate_traces(n=30, seed=3))
    assert many[:12] == few
    assert list(generate_traces(n=12, seed=4)) != few
    assert len({trace.id for trace in many}) == 30


def test_kinds_come_in_their_shares() -> None:
    counts = Counter(trace.kind for trace in generate_traces(n=100))
    assert counts == {kind: round(100 * share) for kind, share in MIX.items()}
    assert {trace.kind for trace in generate_traces({"paste": 2, "speech": 0}, 5)} == {"paste"}


@pytest.mark.parametrize(
    ("mix", "n"),
    [({"shouting": 1}, 1), ({"paste": -1}, 1), ({"paste": float("nan")}, 1), ({}, 1), (None, -1)],
)
def test_what_cannot_be_made_is_refused_at_once(mix: dict[str, float] | None, n: int) -> None:
    with pytest.raises(InputError):
        generate_traces(mix, n)


def test_an_edit_in_the_middle_stands_in_the_middle_and_changes_a_fact_or_none() -> None:
    traces = list(generate_traces({"middle": 1}, 16, 2))
    assert [trace.meta.changed_fact for trace in traces] == [True, False] * 8
    for trace in traces:
        assert trace.meta.last_edit == "middle"
        question = trace.question
        final = question["document"] if isinstance(question, dict) else question
        pasted = next(new for _, new in texts(trace) if len(new) > 1_000)
        place = next(at for at, (old, new) in enumerate(zip(pasted, final, strict=False)) if old != new)
        assert 0.3 < place / len(final) < 0.8
        (answer,) = trace.meta.answers
        assert answer in final
        if trace.meta.changed_fact:
            (stale,) = trace.meta.stale_answers
            assert stale in pasted
    assert {trace.template is None for trace in traces} == {True, False}


def test_edits_end_in_the_middle_by_what_they_say_of_themselves() -> None:
    traces = list(generate_traces({"edits": 1}, 40, 6))
    for trace in traces:
        assert trace.meta.last_edit == last_edit_of([str(event.text) for event in trace.events]) == "middle"
        assert trace.meta.changed_fact == bool(trace.meta.stale_answers)
    assert 0.3 < sum(trace.meta.changed_fact for trace in traces) / len(traces) < 0.7


def test_steering_begins_after_the_first_commit() -> None:
    for trace in generate_traces({"steering": 1}, 10, 6):
        assert trace.steer is not None
        assert trace.steer.question in FOLLOW_UPS
        assert trace.commit_at < trace.steer.events[0].at
        assert trace.steer.events[-1].at < trace.steer.commit_at


def test_there_are_enough_questions_and_long_documents() -> None:
    assert len({question.text for question in QUESTIONS}) >= 60
    assert all(question.earlier not in question.text.replace(question.later, "") for question in QUESTIONS)
    assert len({document.title for document in DOCUMENTS}) >= 12
    for document in DOCUMENTS:
        text = compose(document, document.values[0], 1)
        assert 740 <= len(text.split()) <= 790
        assert text == compose(document, document.values[0], 1) != compose(document, document.values[0], 2)
        other = compose(document, document.values[1], 1)
        assert other == text.replace(
            document.key.format(value=document.values[0]), document.key.format(value=document.values[1])
        )


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 99))
def test_a_replaced_part_is_what_was_meant(text: str, words: str, start: int, length: int, seed: int) -> None:
    start = min(start, len(text))
    stop = min(len(text), start + length)
    typist = Typist(random.Random(seed), text)
    typist.replace(start, stop, words)
    assert typist.text == text[:start] + words + text[stop:]
