"""Equations that a text states, and the numbers that its reader knows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.data.arithmetic import equations, known_numbers, plain, stated_numbers
from braid.data.stories.lexicon import spell

numbers = st.integers(0, 5000)
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@pytest.mark.parametrize(
    ("text", "found", "is_right"),
    [
        ("3+4=7;", "3+4=7", True),
        ("3+4=8;", "3+4=8", False),
        ("He drank 8*3=24 ccs of water.", "8*3=24", True),
        ("The fee is $410,000 x 7/100 = $28,700.", "410000*7/100=28700", True),
        ("5 days/week * 2 weeks/month = 10 days/month", "5*2=10", True),
        ("there are 15 x 2 = 30 students", "15*2=30", True),
        ("3 + 8 + 18 = 29 slices.", "3+8+18=29", True),
        ("2 + 3 * 4 = 14", "2+3*4=14", True),
        ("2 + 3 * 4 = 20", "2+3*4=20", False),
        ("10/40 = 1/4 km per minute", "10/40=1/4", True),
        ("it takes 14÷1/2=28 minutes", "14÷1/2=28", True),
        ("90.0% - 25% = 65%", "0.9-0.25=0.65", True),
        ("29 * €0.67 = €19.43", "29*0.67=19.43", True),
        ("10 / 3 = 3.33", "10/3=3.33", True),
        ("10 / 3 = 3.34", "10/3=3.34", False),
        ("16 skeins per pair of leg warmers + 17 skeins = 33", "16+17=33", True),
    ],
)
def test_an_equation_is_read(text: str, found: str, is_right: bool) -> None:
    equation, *rest = equations(text)
    assert (equation.text, equation.is_right, rest) == (found, is_right, [])


@pytest.mark.parametrize(
    "text",
    ["", "x = 52", "= 4", "4 =", "2x+50=154", "5 / 0 = 3", "William = 294 points", "a == b", "3 ÷ 0 = 1"],
)
def test_what_is_no_equation_of_numbers_is_none(text: str) -> None:
    assert equations(text) == []


def test_a_chain_is_one_equation_and_a_line_may_have_two() -> None:
    chain, second = equations("a rate of 8/4 = 2/1 = 2 km, so 2*3=6")
    assert chain.results == (2, 2)
    assert (chain.is_right, second.text) == (True, "2*3=6")


@given(a=numbers, b=numbers, wrong=st.integers(1, 50))
def test_sums_are_told_from_wrong_sums(a: int, b: int, wrong: int) -> None:
    right, bad = equations(f"{a:,} apples + ${b} = {a + b} and {a} - {b} = {a - b + wrong}")[:2]
    assert right.is_right
    assert not bad.is_right
    assert right.operands == (a, b)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a dozen eggs", "12"),
        ("Twice as many", "2"),
        ("half of them", "1/2"),
        ("thirty-five pens", "35"),
        ("20% more", "6/5"),
        ("20% off", "4/5"),
        ("3/4 of it", "3/4"),
        ("1,234.50 dollars", "2469/2"),
        ("twelve", "12"),
        ("She gets as many again.", "2"),
        ("thirty five pens", "35"),
        ("a hundred and five", "105"),
        ("Nine hundred ninety-nine", "999"),
        ("forty thousand", "40000"),
    ],
)
def test_numbers_in_words_and_shares_are_known(text: str, wanted: str) -> None:
    assert Fraction(wanted) in known_numbers(text)


@given(number=st.integers(2, 999), hyphen=st.sampled_from("- "), joint=st.sampled_from((" ", " and ")))
def test_numbers_are_read_from_words_and_nothing_else_is(number: int, hyphen: str, joint: str) -> None:
    hundreds, rest = divmod(number, 100)
    tens, ones = divmod(rest, 10)
    words = [f"{spell(hundreds)} hundred"] if hundreds else []
    if rest > 20:
        words.append(TENS[tens - 2] + (hyphen + spell(ones) if ones else ""))
    elif rest:
        words.append(spell(rest))
    text = f"So {joint.join(words)} pens;"
    assert (stated_numbers(text), known_numbers(text)) == ([number], {number})


def test_words_in_a_row_are_numbers_of_their_own() -> None:
    assert stated_numbers("two, three and four; 5 or one; twenty eleven") == [2, 3, 4, 5, 20, 11]
    assert stated_numbers("nobody, a two-legged friend, ten-fold, hundreds") == []


@given(text=st.text(alphabet="0123456789+-*/=().,%x ab$÷", max_size=40))
def test_no_text_makes_it_fail(text: str) -> None:
    for equation in equations(text):
        assert equation.results
    assert set(stated_numbers(text)) <= known_numbers(text)


def test_numbers_are_written_plainly() -> None:
    assert [plain(Fraction(each)) for each in ("4/2", "1/4", "-3", "1/3")] == ["2", "0.25", "-3", "0.333333"]
