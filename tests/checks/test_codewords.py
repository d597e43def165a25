"""The code word cases, on a random model: the texts fit together, blocked writers learn nothing, nothing leaks."""

from __future__ import annotations

import pytest

from braid.checks.codewords import PLACES, Place, code_words, codeword_cases, measure_codewords
from braid.errors import InputError
from braid.model.model import Model
from tests.engine.harness import stock


@pytest.fixture(scope="module")
def model() -> Model:
    return stock()


@pytest.mark.parametrize("place", PLACES)
def test_a_word_is_exchanged_for_another_of_as_many_tokens(model: Model, place: Place) -> None:
    words = code_words(model)
    for case in codeword_cases(model, place, 24):
        assert case.other in words
        assert case.other != case.word
        given, exchanged = case.reveal(case.word), case.reveal(case.other)
        assert case.word in given
        assert case.word not in case.phrasing.question + case.phrasing.answer + exchanged
        assert len(model.codec.encode(given)[0]) == len(model.codec.encode(exchanged)[0])


def test_more_cases_than_there_are_words_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="give 1 to"):
        codeword_cases(model, "thought", 10_000)


def test_a_blocked_writer_sees_nothing_and_progress_is_told(model: Model) -> None:
    told: list[tuple[int, int]] = []
    figures = measure_codewords(model, cases=2, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (16, 16)
    for place in PLACES:
        assert figures[place].max_abs_diff == 0.0
        assert figures[place].cases == 2
        assert figures[place].to_dict()["blocked"] == 0


def test_control_an_open_writer_sees_the_exchange(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from braid.checks import codewords

    concurrent = codewords._concurrent
    monkeypatch.setattr(
        codewords, "_concurrent", lambda case, *, is_blocked=False, word=None: concurrent(case, word=word)
    )
    figures = measure_codewords(model, cases=1)
    assert all(figures[place].max_abs_diff > 0 for place in PLACES)
