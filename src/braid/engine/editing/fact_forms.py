"""What is written in several ways, and the one way in which `facts` compares it. English only."""

from __future__ import annotations

import re

__all__ = ["CONTRACTIONS", "NUMBERS", "UNITS"]

CONTRACTIONS = (
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"\b(?:can't|cannot)\b"), "can not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"\b(i)'m\b"), r"\1 am"),
    (re.compile(r"(\w)'re\b"), r"\1 are"),
    (re.compile(r"(\w)'ve\b"), r"\1 have"),
    (re.compile(r"(\w)'ll\b"), r"\1 will"),
    (re.compile(r"\b(a|p)\.m\b\.?"), r"\1m"),
    (re.compile(r"\bo'clock\b"), ""),
    (re.compile(r"(\d):00\b"), r"\1"),
    (re.compile(r"\be-mail"), "email"),
    (re.compile(r"\bin order to\b"), "to"),
    (re.compile(r"\b(?:as a rule|in general)\b"), "usually"),
    (re.compile(r"\b(?:a lot of|lots of|plenty of)\b"), "many"),
    (re.compile(r"\b(?:for example|for instance|e\.g\.)"), "example"),
    (re.compile(r"\bas well\b"), "also"),
    (re.compile(r"\b(?:right away|at once|straight away)\b"), "immediately"),
)
"""What is written in two ways, and the one that is compared; for text in small letters."""

_UNITS = """
mm millimetre millimeter
cm centimetre centimeter
m metre meter
km kilometre kilometer
inch
ft foot feet
yard
mile
mg milligram
g gram
kg kilogram kilo
tonne ton
oz ounce
lb pound £ gbp
ml millilitre milliliter
l litre liter
gallon
pint
cup
teaspoon tsp
tablespoon tbsp
sec s second
min minute
h hr hour
day
week
month
year yr
decade
century
kb kilobyte
mb megabyte
gb gigabyte
tb terabyte
kmh
mph
celsius c °c
fahrenheit f °f
kelvin
watt
kw kilowatt
volt
$ dollar usd
€ euro eur
¥ yen jpy
cent
percent % per-cent
"""
UNITS = {
    form: line.split()[0] if line.split()[0].isalpha() else line.split()[1]
    for line in _UNITS.strip().splitlines()
    for word in line.split()
    for form in (word, word + "s", *(("centuries",) if word == "century" else ()))
}
"""Each way to write a unit → the one that is compared."""

_ONES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = """
first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth
"""
NUMBERS = {
    **{word: str(value) for value, word in enumerate(_ONES.split())},
    **{word: str(10 * value) for value, word in enumerate(_TENS.split(), start=2)},
    **{word: f"{value}." for value, word in enumerate(_ORDINALS.split(), start=1)},
    "hundred": "100",
    "thousand": "1000",
    "million": "1000000",
    "billion": "1000000000",
    "dozen": "12",
    "half": "1/2",
    "quarter": "1/4",
    "once": "1x",
    "twice": "2x",
    "thrice": "3x",
    "double": "2x",
    "triple": "3x",
    "both": "2",
    "couple": "2",
    "pair": "2",
    "single": "1",
}
"""Numbers in words → as they are compared; `3.` is a third, `2x` twice."""
