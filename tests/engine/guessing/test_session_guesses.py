"""Who says what in a turn, and what is guessed of it; the steps that a right guess brings."""

from __future__ import annotations

from braid.engine.backend import Entry
from braid.engine.guessing.ahead import LEAST_AHEAD, MOST_AHEAD, StepAhead, StepsAhead
from braid.engine.guessing.session_guesses import SessionGuesses
from braid.engine.guessing.shared_guesses import SharedGuesses

ASKED = [("output", False)]


def guessing(*tokens: int) -> SessionGuesses:
    guesses = SessionGuesses(["output", "aside"], salt="")
    guesses.add("output", tokens)
    guesses.begin_turn()
    return guesses


def test_nothing_is_followed_before_there_is_anything_to_guess_from() -> None:
    guesses = SessionGuesses(["output"], salt="")
    guesses.begin_turn()
    guesses.said("output", 1)
    assert not guesses.is_followed and not guesses.follows("output")
    assert guesses.expected(ASKED) is None


def test_all_who_are_asked_are_guessed_or_nobody_is() -> None:
    guesses = guessing(1, 2, 3)
    assert guesses.expected(ASKED) == (1,)
    assert guesses.expected([*ASKED, ("aside", False)]) is None
    assert guesses.expected([("output", True)]) is None, "how sure the model is, nobody guesses"
    assert guesses.reach(ASKED, 2) == 2
    assert guesses.reach(ASKED, 9) == 3


def test_a_fork_reads_on_by_itself_and_learns_the_same_drafts() -> None:
    guesses = guessing(1, 2, 3)
    twin = guesses.fork()
    twin.said("output", 1)
    assert (guesses.expected(ASKED), twin.expected(ASKED)) == ((1,), (2,))
    guesses.add("output", [1, 7])
    assert twin.expected(ASKED) == (7,)
    guesses.become(twin)
    assert guesses.expected(ASKED) == (7,)


def test_answers_are_given_once_and_not_by_a_fork() -> None:
    guesses = SessionGuesses(["output"], salt="")
    guesses.shared = SharedGuesses()
    guesses.begin_turn()
    guesses.said("output", 5)
    guesses.end_turn()
    assert guesses.fork().take_answered() == []
    assert guesses.take_answered() == [[5]]
    assert guesses.take_answered() == []


def test_what_another_one_guesses_is_guessed_from_the_beginning() -> None:
    guesses = guessing(1, 2)
    guesses.said("output", 1)
    other = SessionGuesses(["output"], salt="")
    other.read_along(guesses)
    assert other.expected(ASKED) == (1,)
    other.only({"output": [8]})
    other.begin_turn()
    assert (other.expected(ASKED), guesses.expected(ASKED)) == ((8,), (2,))


def steps(count: int) -> list[StepAhead]:
    return [StepAhead((n,), (Entry("output", "output", (n,), (n,)),)) for n in range(count)]


def test_steps_come_as_long_as_they_are_what_was_guessed() -> None:
    ahead = StepsAhead()
    ahead._steps = steps(3)
    assert ahead.has_come((0,)) and not ahead.has_come((1,))
    assert ahead.take().expected == (0,)
    assert not ahead.fork().is_pending, "what is under way is of one session alone"
    assert len(ahead.miss()) == 2
    assert (ahead.num_accepted, ahead.num_rejected) == (1, 2)
    assert not ahead.is_pending and not ahead.has_come((1,))


def test_right_guesses_are_believed_more_and_wrong_ones_less() -> None:
    ahead = StepsAhead()
    for expected in (LEAST_AHEAD * 2, LEAST_AHEAD * 4):
        ahead._steps = steps(1)
        ahead.take()
        assert ahead._most == expected <= MOST_AHEAD
    ahead._steps = steps(1)
    ahead.drop()
    assert (ahead._most, ahead.num_rejected) == (LEAST_AHEAD * 4, 0), "no guess was to blame"
    ahead._steps = steps(1)
    ahead.miss()
    assert (ahead._most, ahead.num_rejected) == (LEAST_AHEAD, 1)


def test_a_verb_disturbs_what_was_computed_ahead() -> None:
    ahead = StepsAhead()
    ahead._steps = steps(1)
    ahead.disturb()
    assert not ahead.has_come((0,))
