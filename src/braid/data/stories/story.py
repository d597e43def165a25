"""Short word problems with their worked steps, as many as one likes, each the same for the same seed.

A story is a handful of sentences and a question. Each sentence carries the steps that can be worked out once it has
been read: `12;` notes a number, `12+5=17;` works one out. The steps after the question's last word are few or none, so
a reader who thinks along has the answer with the question mark.

What a story is made of decides its split, by a hash and not by luck, so that no seed can mix them:

    train      nothing of the below
    numbers    at least one sum or difference of two numbers that no training story has
    structure  a sequence of operations that no training story has
    wording    at least one sentence in a wording that no training story has

All else may be as in training: stories of `structure` have only pairs of numbers that training may have, too, and those
of `wording` have such and held-out ones. A sum is held out in both orders.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from braid.data.stories.lexicon import HE, PLACES, SHE, THINGS, spell
from braid.data.stories.wordings import HELD_OUT, WORDINGS

__all__ = [
    "LARGEST",
    "OPERATIONS",
    "SPLITS",
    "Sentence",
    "Split",
    "Story",
    "is_held_out_pair",
    "is_held_out_structure",
    "series",
    "tell",
]

Split = Literal["train", "numbers", "structure", "wording"]
SPLITS: tuple[Split, ...] = get_args(Split)

_PAIRS, _STRUCTURES = 8, 6
"""One of so many sums and structures is held out."""
LARGEST = 999
"""No number is larger."""

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": int.__floordiv__,
}
"""What the signs of steps mean."""

_SYLLABLES = [
    "ba",
    "ko",
    "mi",
    "ra",
    "te",
    "lu",
    "so",
    "ni",
    "da",
    "ve",
    "po",
    "ga",
    "ri",
    "mo",
    "ze",
    "fi",
    "tu",
    "la",
    "ne",
    "ky",
]


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, and what can be worked out once it has been read.

    Args:
        text: With the space before it, unless it is the first.
        steps: Of the thought.
    """

    text: str
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem.

    Args:
        sentences: The last one is the question.
        answer: What the output says.
        structure: Its operations, in order.
        split: Where it belongs.
    """

    sentences: tuple[Sentence, ...]
    answer: str
    structure: str
    split: Split

    @property
    def text(self) -> str:
        """The whole problem."""
        return "".join(sentence.text for sentence in self.sentences)

    @property
    def steps(self) -> list[str]:
        """All steps."""
        return [step for sentence in self.sentences for step in sentence.steps]


def is_held_out_pair(a: int, sign: str, b: int) -> bool:
    """Whether a sum or a difference is kept out of training; small ones and products never are."""
    if sign == "+":
        a, b = max(a, b), min(a, b)
    return sign in "+-" and min(a, b) > 9 and zlib.crc32(f"{a}{sign}{b}".encode()) % _PAIRS == 0


def is_held_out_structure(kinds: str) -> bool:
    """Whether a sequence of operations is kept out of the training stories; those of two or fewer never are."""
    return kinds.count(" · ") >= 3 and zlib.crc32(kinds.encode()) % _STRUCTURES == 0


def tell(seed: int, index: int, split: Split = "train", *, num_steps: tuple[int, int] = (1, 4)) -> Story:
    """The story of a number.

    Args:
        seed: Of the series.
        index: Its place in the series.
        split: What it must be; see the module.
        num_steps: Least and most operations after the first sentence.

    >>> story = tell(0, 3)
    >>> story.split, story.text.endswith("?"), story.answer.isdigit()
    ('train', True, True)
    >>> story == tell(0, 3)
    True
    """
    rng = random.Random(f"{seed}/{split}/{index}")
    while True:
        teller = _Teller(rng, split)
        told = teller.tell(rng.randint(*num_steps))
        if told is not None:
            return told


@dataclass
class _Teller:
    """One attempt at a story."""

    rng: random.Random
    split: Split
    a: int = 0
    b: int | None = None
    sentences: list[Sentence] = field(default_factory=list[Sentence])
    kinds: list[str] = field(default_factory=list[str])
    is_new_pair: bool = False
    is_new_wording: bool = False

    def __post_init__(self) -> None:
        rng = self.rng
        names = rng.sample(SHE + HE, 3)
        self.things = self._rare(rng.choice(THINGS), "s")
        self.name, self.other = self._rare(names[0]).capitalize(), self._rare(names[1]).capitalize()
        self.friend = names[2]
        self.is_about_two = rng.random() < 0.35
        self.pronoun = "She" if names[0] in SHE else "He"
        if rng.random() < 0.03:
            self.pronoun = "They"
        self.uses_pronouns = rng.random() < 0.6

    def _rare(self, usual: str, ending: str = "") -> str:
        """Now and then a word that nobody knows, so that it is the place that tells what it is."""
        if self.rng.random() >= 0.08:
            return usual
        return "".join(self.rng.choices(_SYLLABLES, k=self.rng.randint(2, 3))) + ending

    def tell(self, num_steps: int) -> Story | None:
        self._begin()
        for _ in range(num_steps):
            if not self._go_on():
                return None
            if self.rng.random() < 0.1:
                self._say("aside", n=self.rng.randint(2, 60))
        self._ask()
        structure = " · ".join(self.kinds)
        if self.split == "structure" and (self.is_new_pair or not is_held_out_structure(structure)):
            return None
        if self.split != "structure" and is_held_out_structure(structure):
            return None
        if self.split == "numbers" and not self.is_new_pair:
            return None
        if self.split == "wording" and not self.is_new_wording:
            return None
        return Story(tuple(self.sentences), str(self.a), structure, self.split)

    # ---- what happens

    def _begin(self) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            n, m = rng.randint(2, 12), rng.randint(2, 12)
            self.a = n * m
            self._happen("groups", [f"{n}*{m}={self.a};"], n=n, m=m)
        else:
            self.a = self._number()
            self._happen("has", [f"{self.a};"], n=self.a)

    def _number(self) -> int:
        chance = self.rng.random()
        if chance < 0.2:
            return self.rng.randint(2, 12)
        return self.rng.randint(2, 99) if chance < 0.92 else self.rng.randint(100, 400)

    def _go_on(self) -> bool:
        """One thing more happens, if it can."""
        kinds = ["gain"] * 4 + ["lose"] * 4 + ["double", "halve", "gain groups"]
        if self.is_about_two and self.b is None:
            kinds += ["more", "fewer", "twice", "half as many", "other"] * 2
        return getattr(self, "_" + self.rng.choice(kinds).replace(" ", "_"))()

    def _gain(self) -> bool:
        return self._work("gain", self.a, "+", self._number())

    def _lose(self) -> bool:
        return self.a > 1 and self._work("lose", self.a, "-", self.rng.randint(1, self.a))

    def _double(self) -> bool:
        return self.a < 300 and self._work("double", self.a, "*", 2)

    def _halve(self) -> bool:
        return self.a % 2 == 0 and self.a > 0 and self._work("halve", self.a, "/", 2)

    def _gain_groups(self) -> bool:
        n, m = self.rng.randint(2, 12), self.rng.randint(2, 12)
        total = self.a + n * m
        if not self._may(self.a, "+", n * m, total):
            return False
        steps = [f"{n}*{m}={n * m};", f"{self.a}+{n * m}={total};"]
        self.a = total
        self._happen("gain groups", steps, n=n, m=m, kind="gain groups")
        return True

    def _more(self) -> bool:
        return self._compare("more", "+", self._number())

    def _fewer(self) -> bool:
        return self.a > 1 and self._compare("fewer", "-", self.rng.randint(1, self.a))

    def _twice(self) -> bool:
        return self.a < 300 and self._compare("twice", "*", 2)

    def _half_as_many(self) -> bool:
        return self.a % 2 == 0 and self.a > 0 and self._compare("half as many", "/", 2)

    def _other(self) -> bool:
        self.b = self._number()
        self._happen("other", [f"{self.b};"], n=self.b)
        return True

    def _work(self, kind: str, a: int, sign: str, n: int) -> bool:
        result = OPERATIONS[sign](a, n)
        if not self._may(a, sign, n, result):
            return False
        self.a = result
        self._happen(kind, [f"{a}{sign}{n}={result};"], n=n)
        return True

    def _compare(self, kind: str, sign: str, n: int) -> bool:
        result = OPERATIONS[sign](self.a, n)
        if not self._may(self.a, sign, n, result):
            return False
        self.b = result
        self._happen(kind, [f"{self.a}{sign}{n}={result};"], n=n)
        return True

    def _may(self, a: int, sign: str, b: int, result: int) -> bool:
        """Whether a step may be written; one that may, is."""
        if not 0 <= result <= LARGEST:
            return False
        if is_held_out_pair(a, sign, b):
            if self.split == "train":
                return False
            self.is_new_pair = True
        return True

    # ---- what is asked

    def _ask(self) -> None:
        if self.b is None:
            shares = [n for n in range(2, 11) if self.a and self.a % n == 0 and self.a // n <= 60]
            if shares and self.rng.random() < 0.15:
                n = self.rng.choice(shares)
                self._work("share", self.a, "/", n)
                self._question("ask each")
            else:
                self._question("ask now", Q=self.name)
            return
        kinds = ["ask total", "ask total", "ask now", "ask other"] + ["ask difference"] * (self.a != self.b)
        kind = self.rng.choice(kinds)
        high, low = max(self.a, self.b), min(self.a, self.b)
        if kind == "ask total" and self._may(self.a, "+", self.b, self.a + self.b):
            self._settle(f"{self.a}+{self.b}=", self.a + self.b, kind)
        elif kind == "ask difference" and self._may(high, "-", low, high - low):
            is_ahead = self.a > self.b
            names = (self.name, self.other) if is_ahead else (self.other, self.name)
            self._settle(f"{high}-{low}=", high - low, kind, X=names[0], Y=names[1])
        elif kind == "ask other":
            self.a = self.b
            self._question("ask now", Q=self.other, kind=kind, steps=(f"{self.b};",))
        else:
            self._question("ask now", Q=self.name, kind="ask first", steps=(f"{self.a};",))

    def _settle(self, work: str, result: int, kind: str, **names: str) -> None:
        self.a = result
        self._question(kind, steps=(f"{work}{result};",), **names)

    # ---- how it is told

    def _happen(self, wording: str, steps: list[str], *, kind: str | None = None, **numbers: int) -> None:
        self.kinds.append(kind or wording)
        self._say("groups" if wording == "gain groups" else wording, steps, **numbers)

    def _question(
        self, wording: str, *, kind: str | None = None, steps: tuple[str, ...] = (), **names: str
    ) -> None:
        self.kinds.append(kind or wording)
        self._say(wording, list(steps), **names)

    def _say(self, wording: str, steps: list[str] | None = None, **filled: int | str) -> None:
        template = self._wording(wording)
        is_first = not self.sentences
        name = self.name
        may_shorten = not is_first and self.b is None and self.uses_pronouns
        if template.startswith("{A}") and may_shorten and wording != "groups":
            name = self.pronoun if self.rng.random() < 0.8 else name
        for key in ("n", "m"):
            if key in filled:
                filled[key] = self._written(int(filled[key]))
        text = template.format(
            A=name,
            B=self.other if wording in _OF_THE_OTHER else self.friend,
            things=self.things,
            place=self.rng.choice(PLACES),
            **filled,
        )
        text = _agreeing(text[0].upper() + text[1:], name)
        self.sentences.append(Sentence(text if is_first else f" {text}", tuple(steps or ())))

    def _wording(self, kind: str) -> str:
        wordings = WORDINGS[kind]
        held = [i for i in range(len(wordings)) if i % HELD_OUT == HELD_OUT - 1]
        seen = [i for i in range(len(wordings)) if i not in held]
        if kind == "ask now" and self.b is not None:  # of whom, must be said then
            held, seen = ([i for i in those if "{Q}" in wordings[i]] for those in (held, seen))
        if self.split == "wording" and held and self.rng.random() < 0.6:
            self.is_new_wording = True
            return wordings[self.rng.choice(held)]
        return wordings[self.rng.choice(seen)]

    def _written(self, number: int) -> str:
        if number == 12 and self.rng.random() < 0.2:
            return "a dozen"
        return spell(number) if self.rng.random() < 0.1 else str(number)


_OF_THE_OTHER = {"more", "fewer", "twice", "half as many", "other", "ask total"}
"""Sentences in which the second person counts; in the others a friend comes by, whose things nobody counts."""

_PLURAL = {"has": "have", "is": "are", "doubles": "double", "loses": "lose", "buys": "buy", "gives": "give"}


def _agreeing(text: str, name: str) -> str:
    """`They have`, not `They has`, as far as that matters to anybody."""
    if name != "They":
        return text
    first, _, rest = text.removeprefix("They ").partition(" ")
    return f"They {_PLURAL.get(first, first.removesuffix('s') if first.endswith('s') else first)} {rest}"


def series(seed: int, count: int, split: Split = "train") -> Iterator[Story]:
    """So many stories, one after another."""
    return (tell(seed, index, split) for index in range(count))
