"""Whether an edit changes a fact: a number, a name, a negation, or what else an answer may turn on.

    before  Ask Anna for 3 keys.     words    ask  Anna  for  3  key        names  anna    numbers  3
    after   Please ask Anna for two keys.                                   names  anna    numbers  2    ← differs

The facts of both texts are read by rules and compared kind by kind, in their order; what only moved, or is only
written in another way, is no change. The words that came and went are looked at for contrasts (`before`, `after`).
The rules know English words; names, numbers and references they know in any script. They are cautious: a word that
takes another's place changes a fact (of kind `content`), unless the two are known to mean the same or one is the other
misspelt, because a false alarm costs a forward and a miss a wrong answer. `tests/engine/editing/fact_edits.jsonl` has
edits by which they are measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Literal

from braid.engine.editing.diff import common_prefix, common_suffix, edits
from braid.engine.editing.fact_forms import CONTRACTIONS, NUMBERS, UNITS
from braid.engine.editing.fact_words import CONTRASTS, EMPTY, NEGATIONS, RESTRICTIONS, SYNONYMS, stem

__all__ = ["FactChange", "FactKind", "changes_a_fact"]

FactKind = Literal["reference", "number", "date", "unit", "name", "negation", "contrast", "content"]


@dataclass(frozen=True, slots=True)
class FactChange:
    """A fact that an edit changes.

    Args:
        kind: Of fact.
        before, after: What is said of it; empty where nothing is.
    """

    kind: FactKind
    before: str
    after: str

    def __str__(self) -> str:
        was, now = (repr(text) if text else "nothing" for text in (self.before, self.after))
        return f"{self.kind}: {was} became {now}"


def changes_a_fact(before: str, after: str) -> FactChange | None:
    """The first fact that an edit of a text changes, as far as the rules see.

    Args:
        before: The text, or its part around the edit; whole sentences, since the first word of one is told from a
            name by its place.
        after: What it became.

    >>> print(changes_a_fact("Ask Anna for 3 keys.", "Please ask Anna for two keys."))
    number: '3' became '2'
    >>> changes_a_fact("Ask Anna for 3 keys.", "Please, ask Anna for three keys.") is None
    True
    """
    if before == after:
        return None
    old, new = map(_Reading, _around_the_change(before, after))
    names = {name for name in old.names() | new.names() if _calendar_word(name) not in _MONTHS_AND_DAYS}
    pairs: list[tuple[FactKind, Sequence[str], Sequence[str]]] = [
        ("reference", old.references, new.references),
        ("number", old.numbers(), new.numbers()),
        ("date", old.dates(), new.dates()),
        ("unit", old.units(), new.units()),
        ("name", old.among(names), new.among(names)),
        ("negation", sorted(old.among(NEGATIONS)), sorted(new.among(NEGATIONS))),
        ("negation", sorted(old.among(RESTRICTIONS)), sorted(new.among(RESTRICTIONS))),
    ]
    for kind, was, now in pairs:
        if list(was) != (_mended(was, now) if kind == "name" else list(now)):
            return FactChange(kind, *_apart(was, now))
    gone, come = _gone_and_come(old.words, new.words)
    if len(gone) + len(come) > _MOST_WORDS:
        return FactChange("content", f"{len(gone)} words", f"{len(come)} others")
    return _negated(gone, come) or _contrast(gone, come) or _content(gone, come)


_REFERENCE = re.compile(
    r"`[^`\n]+`"
    r"|\b[\w.+-]+@[\w-]+\.[\w.-]*\w"
    r"|\b(?:https?|ftp)://[^\s<>\"')]*[^\s<>\"').,;:!?]"
    r"|\bwww\.\S*\w"
    r"|(?<!\w)--?[a-zA-Z][\w-]*"
    r"|\b[A-Za-z]:\\[\w\\.-]*\w"
    r"|(?<![\w.])~?(?:/[\w.-]+)+/?"
    r"|\b\w+_\w+\b(?:\(\))?"
    r"|\b\w+\(\)"
    r"|\b[a-z]+[A-Z]\w*\b"
    r"|\b[\w-]+\.[a-z]{1,4}\b(?<!a\.m)(?<!p\.m)"
)
_QUOTED = re.compile(r"\"([^\"\n]+)\"|(?<!\w)'([^'\n]+)'(?!\w)")
_WORD = re.compile(
    r"[-−]?\d+(?:,\d{3})+(?:\.\d+)?|(?<![\w)])[-−]\d[\d.]*|\d+(?:[./:]\d+)*(?:st|nd|rd|th)?(?![a-z]*\d)"
    r"|[$€£¥%°]|[^\W\d_]+(?:'[^\W\d_]+)*"
)
_SENTENCE_END = re.compile(r"[.!?:…\n•*-]\s*[\"'(]*$")
_MOST_BETWEEN = 12
"""Characters between two sentences."""
_ENDS = (". ", "? ", "! ")
_END = re.compile(r"\n|[.?!] ")
_KEPT_AROUND = 200
"""Characters on either side of a change that are read with it at the least."""
_MOST_WORDS = 100
"""That come and go; where there are more, another text is there, and they are not looked at one by one."""
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "«": '"', "»": '"'})

_CALENDAR = """
january february march april may june july august september october november december
monday tuesday wednesday thursday friday saturday sunday
"""
_MONTHS_AND_DAYS = frozenset(_CALENDAR.split())
_AMBIGUOUS_MONTHS = frozenset({"march", "may", "august"})
_BEFORE_MONTHS = frozenset({"in", "of", "since", "until", "by", "last", "next", "this"})
_AFTER_SUBJECTS = frozenset(
    {"is", "was", "has", "had", "will", "would", "can", "could", "and", "did", "does", "says", "said"}
)
_BEFORE_PRONOUNS = frozenset({"the", "this", "that", "which", "each", "every", "any", "no", "another"})
_PREFIXES = ("un", "in", "im", "il", "ir", "dis", "non", "non-")


class _Reading:
    """A text, as it is compared.

    Args:
        text: Any.
    """

    def __init__(self, text: str) -> None:
        text = text.translate(_QUOTES)
        self.references = [match[0].strip("`") for match in _REFERENCE.finditer(text)]
        self.references += [match[1] or match[2] for match in _QUOTED.finditer(text)]
        self._bare = _REFERENCE.sub(" ", text)
        lowered = self._bare.casefold()
        for pattern, plain in CONTRACTIONS:
            lowered = pattern.sub(plain, lowered)
        self.words = [match[0] for match in _WORD.finditer(lowered)]

    def among(self, known: Iterable[str]) -> list[str]:
        """The words that are known, in their order."""
        known = frozenset(known)
        return [word for word in self.words if word in known]

    def names(self) -> set[str]:
        """Words with a capital, in small letters; the first of a sentence only if what follows speaks for it."""
        if self._bare.isupper():
            return set()
        found: set[str] = set()
        matches = [match for match in _WORD.finditer(self._bare) if match[0][0].isalpha()]
        for at, match in enumerate(matches):
            word = match[0]
            plain = word.casefold()
            if not word[0].isupper() or plain in ("i", "i'm", "i'll", "i've", "i'd"):
                continue
            space = self._bare[max(0, match.start() - _MOST_BETWEEN) : match.start()]
            if at == 0 or _SENTENCE_END.search(space):
                follow = matches[at + 1][0] if at + 1 < len(matches) else ""
                is_subject = follow in _AFTER_SUBJECTS or follow.endswith("ed") or follow[:1].isupper()
                if stem(plain) in EMPTY or plain in NUMBERS or plain in NEGATIONS or not is_subject:
                    continue
            found.add(plain.removesuffix("'s"))
        return found

    def numbers(self) -> list[str]:
        """Numbers in their order, in digits; those in words joined, as in `twenty-one` or `two hundred and five`."""
        found: list[str] = []
        is_open = False
        for at, part in enumerate(self.words):
            value = NUMBERS.get(part) or NUMBERS.get(part.removesuffix("s"), "")
            if part[0] in "-−" or part[0].isdigit():
                value = re.sub(r"(\d)(?:st|nd|rd|th)$", r"\1.", part.replace(",", "").replace("−", "-"))
                value = value if value.endswith(".") else value.rstrip(".")
            if not value:
                is_open = is_open and part == "and" and _are_numbers(self.words[at + 1 : at + 2])
            elif is_open and value.isdigit() and found[-1].isdigit():
                last, now = int(found[-1]), int(value)
                found[-1] = str(last * now if now in (12, 100, 1000, 10**6, 10**9) else last + now)
            elif not _is_pronoun(self.words, at):
                found.append(value)
                is_open = value.isdigit() and not part[0].isdigit()
        return found

    def dates(self) -> list[str]:
        """Months and days of the week, misspelt or not; `may` only beside a number or after a word of time."""
        found: list[str] = []
        for at, word in enumerate(map(_calendar_word, self.words)):
            if word not in _MONTHS_AND_DAYS:
                continue
            around = self.words[max(0, at - 1) : at] + self.words[at + 1 : at + 2]
            is_beside = any(each[0].isdigit() for each in around) or (
                at > 0 and self.words[at - 1] in _BEFORE_MONTHS
            )
            if word not in _AMBIGUOUS_MONTHS or is_beside:
                found.append(word)
        return found

    def units(self) -> list[str]:
        """Units in their order: signs and short ones only beside a number, words anywhere."""
        found: list[str] = []
        for at, word in enumerate(self.words):
            unit = UNITS.get(word)
            if unit is None:
                continue
            after_number = at > 0 and (self.words[at - 1][0].isdigit() or self.words[at - 1] in NUMBERS)
            if after_number or (word != "second" and (len(word) > 3 or not word.isalpha())):
                found.append(unit)
        return found


@lru_cache(4096)
def _calendar_word(word: str) -> str:
    """The month or day that a word is, perhaps misspelt; else the word."""
    if word in _MONTHS_AND_DAYS or len(word) < 6:
        return word
    return next((each for each in _CALENDAR.split() if len(each) > 5 and _is_alike(word, each)), word)


def _around_the_change(before: str, after: str) -> tuple[str, str]:
    """Both texts without what they have in common far from the change, cut where a sentence ends."""
    begin = max(0, common_prefix(before, after) - _KEPT_AROUND)
    start = max(before.rfind("\n", 0, begin), *(before.rfind(end, 0, begin) + 1 for end in _ENDS)) + 1
    start = start if start > 1 else 0
    same = common_suffix(before, after, start) - _KEPT_AROUND
    end = _END.search(before, len(before) - same) if same > 0 else None
    tail = len(before) - end.end() if end else 0
    return before[start : len(before) - tail], after[start : len(after) - tail]


def _are_numbers(words: Sequence[str]) -> bool:
    """Whether there is a word, and all are numbers."""
    return bool(words) and all(word in NUMBERS for word in words)


def _is_pronoun(words: Sequence[str], at: int) -> bool:
    """Whether a word is the `one` that stands for something, as in `that one`."""
    is_last = at + 1 == len(words) > 1
    return words[at] in ("one", "ones") and (is_last or (at > 0 and words[at - 1] in _BEFORE_PRONOUNS))


def _mended(was: Sequence[str], now: Sequence[str]) -> list[str]:
    """The names of now, those that were only misspelt before (two letters the wrong way round) as they were."""
    if len(was) != len(now):
        return list(now)
    return [
        old if len(old) > 4 and old[0] == new[0] and sorted(old) == sorted(new) else new
        for old, new in zip(was, now, strict=True)
    ]


def _apart(was: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """What differs, in words; all of it if only the order does."""
    left, right = Counter(was), Counter(now)
    gone, come = list((left - right).elements()), list((right - left).elements())
    return (" ".join(gone), " ".join(come)) if gone or come else (" ".join(was), " ".join(now))


def _gone_and_come(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that an edit took away and brought; what moved, or has another ending, is neither."""
    numbers: dict[str, int] = {}
    old = [numbers.setdefault(word, len(numbers)) for word in before]
    new = [numbers.setdefault(word, len(numbers)) for word in after]
    changes = edits(old, new)
    gone = [word for change in changes for word in before[change.start : change.stop]]
    known = list(numbers)
    come = [known[number] for change in changes for number in change.new]
    stems_gone, stems_come = Counter(map(stem, gone)), Counter(map(stem, come))
    both = stems_gone & stems_come
    return _without(gone, both.copy()), _without(come, both.copy())


def _without(words: Sequence[str], left_out: Counter[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if left_out[stem(word)] > 0:
            left_out[stem(word)] -= 1
        else:
            kept.append(word)
    return kept


def _negated(gone: Sequence[str], come: Sequence[str]) -> FactChange | None:
    """A word and the same with `un-`, or the like; `-ful` and `-less`."""
    for old in gone:
        for new in come:
            short, long = sorted((old, new), key=len)
            by_prefix = len(short) > 3 and any(long == prefix + short for prefix in _PREFIXES)
            by_suffix = {old[-4:], new[-4:]} >= {"less"} and short.removesuffix("ful") == long.removesuffix(
                "less"
            )
            if by_prefix or by_suffix:
                return FactChange("negation", old, new)
    return None


def _contrast(gone: Sequence[str], come: Sequence[str]) -> FactChange | None:
    for table in CONTRASTS:
        for old in gone:
            for new in come:
                rivals = table.get(stem(old)), table.get(stem(new))
                if None not in rivals and rivals[0] != rivals[1]:
                    return FactChange("contrast", old, new)
    return None


def _is_alike(word: str, other: str) -> bool:
    """Whether one may be the other misspelt."""
    most = max(len(word), len(other))
    if most > 2 and sorted(word) == sorted(other):
        return True
    if most < 4 or word[0] != other[0]:
        return False
    return SequenceMatcher(None, word, other, autojunk=False).ratio() >= 0.75


def _content(gone: Sequence[str], come: Sequence[str]) -> FactChange | None:
    """Words with content that came or went and stand on one side only, even if misspelt or in other words."""

    def filled(words: Sequence[str], others: Sequence[str]) -> list[str]:
        return [
            word
            for word in words
            if word not in UNITS
            and not _is_number(word)
            and stem(word) not in EMPTY
            and not any(_is_alike(word, other) or _is_same(word, other) for other in others)
        ]

    lost, won = filled(gone, come), filled(come, gone)
    return FactChange("content", " ".join(lost), " ".join(won)) if lost or won else None


def _is_number(word: str) -> bool:
    """Whether a word was compared as a number already."""
    return not word[0].isalpha() or word in NUMBERS


def _is_same(word: str, other: str) -> bool:
    """Whether two words mean the same."""
    meanings = SYNONYMS.get(stem(word)), SYNONYMS.get(stem(other))
    return meanings[0] is not None and meanings[1] is not None and not meanings[0].isdisjoint(meanings[1])
