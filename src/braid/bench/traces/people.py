"""People who type and speak, as far as a benchmark needs them: what stands there after each key, and when.

    intended   What is the     Typist     W·h·a·t· ·i·s· ·t·e·h·⌫·⌫·h·e    keys with the pauses of a hand and a head
                               Speaker    what │ what is │ what is a │ what is the    words, the last ones revised

The pace is drawn once a person and a factor once a key, both log-normal. The figures are of the order that studies of
transcription typing report (about 50 words a minute on the average, 240 ms a key, with wide differences between
people); they are no fit to any data.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

__all__ = ["FASTEST_KEYS_PER_S", "SLOWEST_KEYS_PER_S", "Speaker", "Typist"]

SLOWEST_KEYS_PER_S = 1.0
FASTEST_KEYS_PER_S = 12.0
"""Bounds of the mean speed over a text, pauses included: 12 and 144 words a minute."""

_FREQUENT = frozenset(re.findall("..", "thheineranrendonenatouedhatoorishiesng"))
_CLAUSE, _SENTENCE = ",;:", ".?!"
_HANDS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    key: row[max(0, at - 1) : at] + row[at + 1 : at + 2] for row in _HANDS for at, key in enumerate(row)
}


class Typist:
    """Somebody at a keyboard; every key makes a snapshot.

    Args:
        rng: What the person's pace and slips are drawn from.
        text: What stands there already.
        at: Seconds when the person begins.
    """

    def __init__(self, rng: random.Random, text: str = "", at: float = 0.0) -> None:
        self._rng = rng
        self.text = text
        self.at = at
        self.snapshots: list[tuple[float, str]] = []
        self._caret = len(text)
        self._before = ""
        self._pace = min(0.32, max(0.10, rng.lognormvariate(math.log(0.17), 0.3)))
        self._slip = rng.uniform(0.0, 0.03)

    def write(self, words: str) -> None:
        """Type words at the caret; slips are noticed a little later and taken back."""
        at = 0
        while at < len(words):
            self._think(words[at])
            wrong = self._slipped(words, at)
            if wrong is None:
                self._key(words[at])
                at += 1
                continue
            for letter in wrong:
                self._key(letter)
            self.at += self._rng.lognormvariate(math.log(0.35), 0.3)
            self.erase(len(wrong))

    def erase(self, count: int) -> None:
        """Take back so many characters before the caret, one at a time."""
        for _ in range(count):
            self.at += max(0.03, 0.7 * self._pace * self._rng.lognormvariate(0, 0.2))
            self.text = self.text[: self._caret - 1] + self.text[self._caret :]
            self._caret -= 1
            self._snapshot()
        self._before = ""

    def paste(self, words: str) -> None:
        """Put words at the caret at once."""
        self.at += self._rng.uniform(0.3, 0.9)
        self.text = self.text[: self._caret] + words + self.text[self._caret :]
        self._caret += len(words)
        self._before = ""
        self._snapshot()

    def go_to(self, place: int) -> None:
        """Move the caret, by hand or by mouse, to a place in the text."""
        if place != self._caret:
            self.at += self._rng.lognormvariate(math.log(0.8), 0.3)
            self._caret, self._before = place, ""

    def replace(self, start: int, stop: int, words: str) -> None:
        """Go to a part of the text, take it back and type words instead; what is the same is left alone."""
        old = self.text[start:stop]
        least = min(len(old), len(words))
        same = next((at for at in range(least) if old[at] != words[at]), least)
        same_end = next((at for at in range(least - same) if old[-1 - at] != words[-1 - at]), least - same)
        self.go_to(stop - same_end)
        self.erase(len(old) - same - same_end)
        self.write(words[same : len(words) - same_end])

    def pause(self, seconds: float) -> None:
        """Do nothing for so long."""
        self.at += seconds

    def _think(self, letter: str) -> None:
        """Pauses that belong to the text: at the end of a clause, of a sentence, and where a word is looked for."""
        if self._before == " " and letter != " " and self._rng.random() < 0.03:
            self.at += min(4.0, self._rng.lognormvariate(math.log(1.0), 0.5))
        tail = self.text[: self._caret].rstrip()[-1:]
        if self._before == " " and tail and tail in _SENTENCE:
            self.at += min(3.0, self._rng.lognormvariate(math.log(0.6), 0.5))
        elif self._before == " " and tail and tail in _CLAUSE:
            self.at += min(2.0, self._rng.lognormvariate(math.log(0.25), 0.4))

    def _slipped(self, words: str, at: int) -> str | None:
        """What is typed instead of the next letters up to where it is noticed; None if they are typed right."""
        letter = words[at]
        if not letter.isalpha() or self._rng.random() >= self._slip:
            return None
        noticed = min(len(words), at + 1 + min(5, int(self._rng.expovariate(0.7))))
        follow = words[at + 1 : noticed]
        slip = self._rng.random()
        neighbours = _NEIGHBOURS.get(letter.lower(), "")
        if slip < 0.5 and neighbours:
            return self._rng.choice(neighbours) + follow
        if slip < 0.75 and at + 1 < len(words) and words[at + 1].isalpha() and words[at + 1] != letter:
            return words[at + 1] + letter + words[at + 2 : noticed]
        return letter + letter + follow

    def _key(self, letter: str) -> None:
        factor = 0.75 if (self._before + letter).lower() in _FREQUENT else 0.95
        if self._before in ("", " "):
            factor = 1.3
        if letter.isupper() or letter in '?!"':
            factor *= 1.35  # with shift
        elif letter.isdigit():
            factor *= 1.25
        self.at += max(0.03, self._pace * factor * self._rng.lognormvariate(0, 0.28))
        self.text = self.text[: self._caret] + letter + self.text[self._caret :]
        self._caret += 1
        self._before = letter
        self._snapshot()

    def _snapshot(self) -> None:
        self.snapshots.append((self.at, self.text))


_ALIKE = {
    "two": "to", "to": "two", "four": "for", "for": "four", "eight": "ate", "week": "weak", "hour": "our",
    "see": "sea", "sea": "see", "blue": "blew", "red": "read", "right": "write", "there": "their", "is": "as",
    "are": "our", "by": "buy", "does": "does it", "which": "witch", "after": "have to", "plus": "plus a",
    "divided": "divide it", "the": "a", "in": "and", "between": "but when", "wool": "will",
}  # fmt: skip


class Speaker:
    """Somebody who is listened to by a recogniser; every word heard makes a snapshot, and so does each revision.

    Args:
        rng: What the pace and the mishearings are drawn from.
        at: Seconds when the person begins.
    """

    def __init__(self, rng: random.Random, at: float = 0.0) -> None:
        self._rng = rng
        self.at = at
        self.snapshots: list[tuple[float, str]] = []
        self._pace = min(0.5, max(0.22, rng.lognormvariate(math.log(0.34), 0.2)))

    def say(self, text: str) -> None:
        """Say a text: it is heard without capitals and signs, and at the end comes the whole as it is written."""
        words = ["".join(c for c in word if c.isalnum() or c in "'-₂").lower() for word in text.split()]
        heard: list[str] = []
        for word in filter(None, words):
            self.at += self._pace * self._rng.lognormvariate(0, 0.25) * (0.6 + 0.08 * len(word))
            guesses = self._misheard(word)
            for guess in guesses:
                self._snapshot([*heard, guess])
                self.at += self._rng.uniform(0.08, 0.25)
            heard.append(word)
            self._snapshot(heard)
        self.at += self._rng.uniform(0.15, 0.4)
        self.snapshots.append((self.at, text))

    def _misheard(self, word: str) -> list[str]:
        """What the recogniser takes a word for at first: nothing, one other thing, or two."""
        guesses: list[str] = []
        chance = self._rng.random()
        if chance < 0.15 and len(word) > 4:
            guesses.append(word[: self._rng.randint(2, len(word) - 1)])
        if chance < 0.05 or (word in _ALIKE and chance < 0.35):
            guesses.append(_ALIKE.get(word, word + "s"))
        return [guess for guess in guesses if guess != word]

    def _snapshot(self, words: Sequence[str]) -> None:
        self.snapshots.append((self.at, " ".join(words)))
