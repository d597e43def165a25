"""Guesses from drafts, against a reference that looks at every place of every draft."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.engine.guessing.guesses import MAX_TOKENS, START, USUAL_TOKENS, Guesses, SuffixAutomaton
from braid.errors import InputError

few_kinds = st.lists(st.integers(0, 2), max_size=14)
drafts = st.lists(few_kinds, max_size=6)


def naive_follow(kept: Sequence[Sequence[int]], said: Sequence[int]) -> tuple[int, int] | None:
    """The longest end of what was said that a token follows in a draft, and the token after its last occurrence."""
    for length in range(len(said), 0, -1):
        run = list(said[len(said) - length :])
        for draft in reversed(kept):
            for end in range(len(draft) - 1, length - 1, -1):
                if list(draft[end - length : end]) == run:
                    return length, draft[end]
    return None


def naive_guess(kept: Sequence[Sequence[int]], said: Sequence[int], least: int) -> int | None:
    newest = list(kept[-1]) if kept else []
    if len(said) < len(newest) and newest[: len(said)] == list(said):
        return newest[len(said)]
    found = naive_follow(kept, said)
    return found[1] if found is not None and found[0] >= least else None


def stored(given_drafts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Without the empty ones, and without the newest once more."""
    kept: list[Sequence[int]] = []
    for draft in given_drafts:
        if draft and (not kept or list(kept[-1]) != list(draft)):
            kept.append(draft)
    return kept


@given(drafts, few_kinds)
def test_the_longest_run_and_what_followed_its_most_recent_occurrence(
    added: list[list[int]], said: list[int]
) -> None:
    automaton = SuffixAutomaton()
    for draft in added:
        automaton.add(draft)
    place = START
    for count, token in enumerate(said, 1):
        place = automaton.step(place, token)
        assert automaton.follow(place) == naive_follow(added, said[:count])


@given(drafts, few_kinds, st.integers(1, 3))
def test_a_guess_is_the_newest_draft_while_it_agrees_and_then_the_longest_run(
    added: list[list[int]], said: list[int], least: int
) -> None:
    guesses = Guesses(least)
    for draft in added:
        guesses.add("output", draft)
    cursor = guesses.cursor("output")
    for count in range(len(said) + 1):
        assert cursor.guess() == naive_guess(stored(added), said[:count], least)
        if count < len(said):
            cursor.push(said[count])


@given(st.lists(st.one_of(few_kinds, st.integers(0, 2)), max_size=30), st.booleans())
def test_drafts_may_come_in_while_a_lane_speaks_and_copies_run_ahead(
    acts: list[list[int] | int], ahead: bool
) -> None:
    guesses = Guesses(2)
    cursor = guesses.cursor("output")
    added: list[list[int]] = []
    said: list[int] = []
    for act in acts:
        if isinstance(act, list):
            guesses.add("output", act)
            added.append(act)
        else:
            cursor.push(act)
            said.append(act)
        if ahead:
            copy, run = cursor.copy(), list(said)
            for _ in range(3):
                if (token := copy.guess()) is None:
                    break
                assert token == naive_guess(stored(added), run, 2)
                copy.push(token)
                run.append(token)
        assert cursor.guess() == naive_guess(stored(added), said, 2)


@given(drafts, few_kinds, st.integers(0, 8))
def test_running_ahead_is_guessing_again_and_again_no_further_than_twice_the_run(
    added: list[list[int]], said: list[int], most: int
) -> None:
    guesses = Guesses(2)
    for draft in added:
        guesses.add("output", draft)
    cursor = guesses.cursor("output")
    for token in said:
        cursor.push(token)
    kept, run = stored(added), list(said)
    found = naive_follow(kept, said)
    if not kept or len(said) >= len(kept[-1]) or list(kept[-1][: len(said)]) != said:
        most = min(most, 2 * found[0] if found else 0)
    ahead = cursor.ahead(most)
    assert ahead == cursor.ahead(most), "it stays where it is"
    while len(run) < len(said) + most and (token := naive_guess(kept, run, 2)) is not None:
        run.append(token)
    assert ahead == run[len(said) :]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=12), few_kinds)
def test_the_oldest_drafts_are_forgotten_and_the_rest_found_as_if_they_had_never_been(
    added: list[list[int]], said: list[int]
) -> None:
    automaton = SuffixAutomaton(max_tokens=20)
    kept: list[list[int]] = []
    for draft in added:
        automaton.add(draft)
        kept.append(draft)
        if sum(map(len, kept)) > 20:
            while len(kept) > 1 and sum(map(len, kept)) > 10:
                kept.pop(0)
        assert automaton.num_tokens == sum(map(len, kept)) <= 20
        assert automaton.num_states <= 2 * 20 + 1
        place = START
        for token in said:
            place = automaton.step(place, token)
        assert automaton.follow(place) == naive_follow(kept, said)


def test_a_session_keeps_few_tokens_but_for_drafts_that_are_longer() -> None:
    """So that the drafts of many sessions fit into memory, and one long suggestion is not lost with the next draft."""
    rng = random.Random(1)

    def draft(length: int) -> list[int]:
        return [rng.randrange(1_000) for _ in range(length)]

    guesses = Guesses()
    for _ in range(40):
        guesses.add("output", draft(256))
        assert guesses.num_tokens <= USUAL_TOKENS
    long = draft(8_000)
    guesses.add("output", long)
    for _ in range(20):
        guesses.add("output", draft(256))
        assert guesses.num_tokens <= MAX_TOKENS
    cursor = guesses.cursor("output")
    for token in long[4_000:4_010]:
        cursor.push(token)
    assert cursor.guess() == long[4_010]
    for _ in range(70):
        guesses.add("output", draft(256))
    assert guesses.num_tokens <= USUAL_TOKENS, "nor is it kept for ever"


def test_of_a_draft_beyond_the_bound_its_beginning_is_kept() -> None:
    automaton = SuffixAutomaton(max_tokens=4)
    automaton.add([9, 9])
    automaton.add([1, 2, 3, 4, 5, 6])
    assert automaton.num_tokens == 4
    assert automaton.follow(automaton.step(START, 3)) == (1, 4)
    assert automaton.follow(automaton.step(START, 4)) is None
    assert automaton.step(START, 9) == START


def test_nothing_matches_across_the_border_of_two_drafts() -> None:
    guesses = Guesses(least=1)
    guesses.add("output", [1, 2])
    guesses.add("output", [3, 4])
    cursor = guesses.cursor("output")
    cursor.push(2)
    assert cursor.guess() is None


def test_lanes_do_not_know_of_each_other() -> None:
    guesses = Guesses()
    guesses.add("output", [1, 2, 3])
    assert guesses.cursor("thought").guess() is None
    assert guesses.cursor("output").guess() == 1
    assert guesses.num_tokens == 3
    guesses.clear()
    assert guesses.cursor("output").guess() is None
    assert guesses.num_tokens == 0


def test_a_copy_does_not_move_what_it_was_taken_from() -> None:
    guesses = Guesses()
    guesses.add("output", [1, 2, 3])
    cursor = guesses.cursor("output")
    cursor.push(1)
    copy = cursor.copy()
    copy.push(2)
    assert (cursor.guess(), copy.guess()) == (2, 3)


@pytest.mark.parametrize("make", [lambda: Guesses(least=0), lambda: Guesses(max_tokens=0)])
def test_numbers_that_cannot_be_are_refused(make: object) -> None:
    with pytest.raises(InputError):
        make()  # type: ignore[operator]


def edited(rng: random.Random, draft: list[int]) -> list[int]:
    changed = list(draft)
    changed[rng.randrange(len(changed))] = rng.randrange(1_000)
    return changed


def kinds_of_drafts(tokens: int) -> dict[str, list[list[int]]]:
    """Drafts of so many tokens in all: ordinary ones, and the worst there are."""
    rng = random.Random(1)
    sentence = [rng.randrange(1_000) for _ in range(100)]
    return {
        "one long run of silence": [[7] * tokens],
        "runs of silence": [[7] * 100 for _ in range(tokens // 100)],
        "two kinds": [[rng.randrange(2) for _ in range(100)] for _ in range(tokens // 100)],
        "ordinary words": [[int(rng.paretovariate(0.9)) for _ in range(100)] for _ in range(tokens // 100)],
        "one draft, edited once each time": [edited(rng, sentence) for _ in range(tokens // 100)],
        "an answer that grows": [sentence[: 10 * (1 + n % 10)] for n in range(tokens // 55)],
    }


@pytest.mark.parametrize("kind", list(kinds_of_drafts(100)))
@pytest.mark.parametrize(("tokens", "each"), [(2_000, 16), (8_000, 16)])
def test_adding_takes_few_steps_a_token_however_many_there_are(kind: str, tokens: int, each: int) -> None:
    automaton = SuffixAutomaton(max_tokens=tokens)
    added = kinds_of_drafts(tokens)[kind]
    for draft in added:
        automaton.add(draft)
    assert automaton.steps <= each * sum(map(len, added))


@pytest.mark.parametrize("kind", list(kinds_of_drafts(100)))
def test_forgetting_costs_no_more_than_what_came_in(kind: str) -> None:
    """The bound is small, so drafts are forgotten, and the rest built anew, again and again."""
    automaton = SuffixAutomaton(max_tokens=1_000)
    added = kinds_of_drafts(20_000)[kind]
    for draft in added:
        automaton.add(draft)
    assert automaton.num_tokens <= 1_000
    assert automaton.steps <= 32 * sum(map(len, added))


@pytest.mark.parametrize("kind", list(kinds_of_drafts(100)))
def test_reading_takes_one_step_a_token_on_the_average(kind: str) -> None:
    automaton = SuffixAutomaton()
    added = kinds_of_drafts(4_000)[kind]
    for draft in added:
        automaton.add(draft)
    before, place = automaton.steps, START
    said = [token for draft in added[:10] for token in [*draft[:50], 5_000]]
    for token in said:
        place = automaton.step(place, token)
    assert automaton.steps - before <= 2 * len(said)
