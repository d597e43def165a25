"""The arithmetic that a text states: `8 x $3 = $24` as an equation that can be checked, and the numbers in words.

Units between a number and a sign are passed over (`7 days/week * 5 weeks = 35 days`), a chain of equals signs is one
equation, and a result may be rounded to as many places as it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

__all__ = ["NUMBER_WORDS", "Equation", "equations", "known_numbers", "plain", "stated_numbers"]

_TOKEN = re.compile(
    r"(?P<variable>\d+[xyzn]\b)"
    r"|(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?P<percent>\s?%)?"
    r"|(?P<times>\bx\b|(?<=\d)x(?=[\s$€£]*\d))"
    r"|(?P<word>/?[^\W\d_]+(?:[/'’-][^\W\d_]+)*)"
    r"|(?P<sign>[-+*/×÷−=()])"
    r"|(?P<other>[^\s$€£])"
)
_SIGNS = {"×": "*", "−": "-"}
_MOST_UNITS = 7
"""Words between a number and a sign that may be its unit."""

_ONES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen twenty
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_OF_TENS = {word: Fraction(10 * tens) for tens, word in enumerate(_TENS.split(), start=2)}
_ONES_AND_TENS = {**{word: Fraction(number) for number, word in enumerate(_ONES.split())}, **_OF_TENS}
NUMBER_WORDS = frozenset((*_ONES_AND_TENS, "hundred", "thousand"))
"""Words that numbers are written with."""
_MEANT = {
    "half": (Fraction(2), Fraction(1, 2)),
    "halves": (Fraction(2), Fraction(1, 2)),
    "third": (Fraction(3), Fraction(1, 3)),
    "quarter": (Fraction(4), Fraction(1, 4)),
    "fourth": (Fraction(4), Fraction(1, 4)),
    "fifth": (Fraction(5), Fraction(1, 5)),
    "tenth": (Fraction(10), Fraction(1, 10)),
    "once": (Fraction(1),),
    "twice": (Fraction(2),),
    "thrice": (Fraction(3),),
    "double": (Fraction(2),),
    "doubles": (Fraction(2),),
    "doubled": (Fraction(2),),
    "triple": (Fraction(3),),
    "triples": (Fraction(3),),
    "tripled": (Fraction(3),),
    "pair": (Fraction(2),),
    "couple": (Fraction(2),),
    "both": (Fraction(2),),
    "dozen": (Fraction(12),),
    "dozens": (Fraction(12),),
}

_AGAIN = re.compile(r"\bas (?:many|much) again\b", re.IGNORECASE)
"""Says that something doubles, without a word for 2."""


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation that a text states.

    Args:
        text: Written tersely.
        operands: The numbers of its first side.
        results: The values of its other sides.
        is_right: Whether all its sides are equal, within the places that are shown.
    """

    text: str
    operands: tuple[Fraction, ...]
    results: tuple[Fraction, ...]
    is_right: bool


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    value: Fraction = Fraction(0)
    places: int = 0

    @property
    def is_sign(self) -> bool:
        return self.kind == "sign" and self.text in "+-*/÷"


def known_numbers(text: str) -> set[Fraction]:
    """The numbers that a reader of a text knows: as digits, in words, as a share, and what a percentage leaves.

    >>> sorted(map(str, known_numbers("a dozen eggs, half of them, 20%")))[:4]
    ['1/2', '1/5', '12', '120']
    """
    found = {Fraction(2)} if _AGAIN.search(text) else set[Fraction]()
    tokens = list(_tokens(text))
    found |= {value for _, value in _spelled(tokens)}
    for place, token in enumerate(tokens):
        if token.kind == "number":
            found.add(token.value)
            if token.text.endswith("%"):
                whole = token.value * 100
                found |= {whole, 1 + token.value, 1 - token.value, 100 + whole, 100 - whole}
            if place + 2 < len(tokens) and tokens[place + 1].text == "/" and tokens[place + 2].value:
                found.add(token.value / tokens[place + 2].value)
        elif token.kind == "word":
            found.update(_MEANT.get(token.text.lower(), ()))
    return found


def stated_numbers(text: str) -> list[Fraction]:
    """The numbers that a text states in digits or words, in their order; `one` alone may be anything, and is none.

    >>> [str(each) for each in stated_numbers("one of 3 boxes with two hundred and forty-five pens")]
    ['3', '245']
    """
    tokens = list(_tokens(text))
    digits = [(place, token.value) for place, token in enumerate(tokens) if token.kind == "number"]
    return [value for _, value in sorted([*digits, *(each for each in _spelled(tokens) if each[1] != 1)])]


def equations(text: str) -> list[Equation]:
    """The equations that a text states.

    >>> [each.text for each in equations("So 8 x $3 = $24 and $24 - 4 dollars = 20 dollars.")]
    ['8*3=24', '24-4=20']
    """
    tokens = list(_tokens(text))
    found: list[Equation] = []
    place = 0
    while place < len(tokens):
        if tokens[place].text != "=":
            place += 1
            continue
        sides = [_before(tokens, place)]
        while place < len(tokens) and tokens[place].text == "=":
            side, place = _after(tokens, place + 1)
            sides.append(side)
        equation = _equation(sides)
        if equation is not None:
            found.append(equation)
    return found


def plain(value: Fraction) -> str:
    """A number as people write it: no more places than it needs."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["number"] is not None:
            digits = match["number"].replace(",", "")
            value, places = Fraction(digits), len(digits.partition(".")[2])
            if match["percent"]:
                yield _Token("number", f"{digits}%", value / 100, places + 2)
            else:
                yield _Token("number", digits, value, places)
        elif match["times"] is not None:
            yield _Token("sign", "*")
        elif match["sign"] is not None:
            yield _Token("sign", _SIGNS.get(match["sign"], match["sign"]))
        elif match["word"] is not None:
            yield _Token("word", match["word"])
        else:
            yield _Token("other", match[0])


def _spelled(tokens: Sequence[_Token]) -> list[tuple[int, Fraction]]:
    """The numbers in words below 1000, and whole thousands of them: where each begins, and what it is."""
    words = [token.text.lower() if token.kind == "word" else "" for token in tokens] + [""]
    found: list[tuple[int, Fraction]] = []
    place = 0
    while place < len(tokens):
        begin = place
        value, place = _below_hundred(words, begin)
        if words[place] == "hundred" and (value is None or 0 < value < 10):
            value, place = 100 * (value or Fraction(1)), place + 1
            rest, end = _below_hundred(words, place + (words[place] == "and"))
            if rest is not None:
                value, place = value + rest, end
        if words[place] == "thousand":
            value, place = 1000 * (value or Fraction(1)), place + 1
        if value is not None:
            found.append((begin, value))
        place = max(place, begin + 1)
    return found


def _below_hundred(words: Sequence[str], place: int) -> tuple[Fraction | None, int]:
    """A number below 100 that begins at a place, and the place behind it; None where there is none."""
    first, _, second = words[place].partition("-")
    if first not in _ONES_AND_TENS:
        return None, place
    value = _ONES_AND_TENS[first]
    end = place + 1
    if first in _OF_TENS and not second and _ONES_AND_TENS.get(words[end], 0) in range(1, 10):
        return value + _ONES_AND_TENS[words[end]], end + 1
    if not second:
        return value, end
    if first in _OF_TENS and _ONES_AND_TENS.get(second, 0) in range(1, 10):
        return value + _ONES_AND_TENS[second], end
    return None, place


def _before(tokens: Sequence[_Token], place: int) -> list[_Token]:
    """The terms that end before a place: number, sign, number, …, with units between them."""
    side: list[_Token] = []
    wants_number = True
    at = place - 1
    units = 0
    while at >= 0:
        token = tokens[at]
        if token.kind == "word" and units < _MOST_UNITS:
            units += 1
        elif token.kind == "number" and wants_number:
            side.append(token)
            wants_number, units = False, 0
        elif token.is_sign and not wants_number:
            side.append(token)
            wants_number, units = True, 0
        elif token.text in ("(", ")"):
            return []
        else:
            break
        at -= 1
    while side and side[-1].kind != "number":
        side.pop()
    return side[::-1]


def _after(tokens: Sequence[_Token], place: int) -> tuple[list[_Token], int]:
    """The terms that begin at a place, and the place behind them and their unit."""
    side: list[_Token] = []
    wants_number = True
    units = 0
    begin = end = place
    while place < len(tokens):
        token = tokens[place]
        if token.kind == "word" and units < _MOST_UNITS:
            units += 1
        elif token.kind == "number" and wants_number:
            is_negative = not side and place > begin and tokens[place - 1].text == "-"
            side.append(replace(token, value=-token.value) if is_negative else token)
            wants_number, units, end = False, 0, place + 1
        elif token.text == "-" and not side and place == begin:
            pass  # the sign of the first number
        elif token.is_sign and not wants_number:
            side.append(token)
            wants_number, units = True, 0
        elif token.text == "=" and not wants_number:
            return side, place
        else:
            break
        place += 1
    while side and side[-1].kind != "number":
        side.pop()
    return side, max(end, place if not side else end)


def _equation(sides: Sequence[Sequence[_Token]]) -> Equation | None:
    values = [_value(side) for side in sides]
    first = values[0]
    if first is None or len(sides[0]) < 2 or any(value is None for value in values):
        return None
    results: list[Fraction] = []
    is_right = True
    for side, value in zip(sides[1:], values[1:], strict=True):
        assert value is not None
        results.append(value)
        allowed = Fraction(1, 2 * 10 ** side[-1].places) if len(side) == 1 else Fraction(1, 10**9)
        is_right = is_right and abs(first - value) <= allowed
    shown = [
        "".join(plain(each.value) if each.kind == "number" else each.text for each in side) for side in sides
    ]
    operands = tuple(token.value for token in sides[0] if token.kind == "number")
    return Equation("=".join(shown), operands, tuple(results), is_right)


def _value(side: Sequence[_Token]) -> Fraction | None:
    """What the terms come to, products first; what follows `÷` is one divisor. None where a divisor is 0."""
    if not side:
        return None
    total, sign, term, divisor = Fraction(0), 1, side[0].value, None
    for operator, number in zip(side[1::2], side[2::2], strict=True):
        if operator.text in "+-":
            if divisor == 0:
                return None
            total += sign * (term / divisor if divisor is not None else term)
            sign, term, divisor = (1 if operator.text == "+" else -1), number.value, None
        elif operator.text == "÷":
            if divisor == 0:
                return None
            term = term / divisor if divisor is not None else term
            divisor = number.value
        else:
            factor = number.value if operator.text == "*" else None
            if factor is None:
                if not number.value:
                    return None
                factor = 1 / number.value
            if divisor is None:
                term *= factor
            else:
                divisor *= factor
    if divisor == 0:
        return None
    return total + sign * (term / divisor if divisor is not None else term)
