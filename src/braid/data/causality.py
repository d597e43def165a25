"""Could it be known by then? A validator that needs no judge, and moves steps until they hold.

A step of an output may use only what its readable past contains: numbers, names, and words that it has in common with
the inputs. What it works out itself is new and may be said, if its operands are known and the arithmetic is right. A
name that no input has is known to the speaker alone, or made up: it may be said when all inputs have been read.

    user      Mia has 3 pens.   She buys 4 more.   How many …?
    thought              3+4=7;   ──▶ moved:  4 is first read in the second sentence
                                   3+4=7;
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from braid.data.arithmetic import NUMBER_WORDS, equations, known_numbers, plain, stated_numbers
from braid.data.score import Part, Score, Segment
from braid.data.stories.lexicon import HE, SHE

__all__ = ["COMMON_NUMBERS", "Impossible", "Judge", "Moved", "Verdict", "validate"]

COMMON_NUMBERS = frozenset(map(Fraction, (1, 2, 4, 7, 10, 12, 24, 30, 52, 60, 100, 365, 1000)))
"""Operands that need no source where none is told: units of time, per cent, halves. Not *stated* out of nowhere."""

_COMMON = """
about after again all also altogether another answer because been before being both each every first from gets have
having here hence into left less many more most much must need needs next number only other over problem same second
since than that their them then there therefore these they third this those thus total together were what when where
which while will with would your question know known means find calculate given remaining amount does equal equals
last once just still very some such says said according
am an as at be by do go he hi if in is it me mr ms dr my no of oh ok on or so to up us we
the she how and but for let now you her his can yes not any its our out off who why are was did nor
i'm i’m i'll i’ll i've i’ve i'd i’d
"""
_COMMON_WORDS = NUMBER_WORDS.union(_COMMON.split())
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_BEGINS_SENTENCE = re.compile(r"(?:^|[.!?:;…\n])[^\w\n]*$")
_GIVEN_NAMES = frozenset(name.lower() for name in SHE + HE)
"""Names that are seen as such where a capital letter says nothing: at the beginning of a sentence."""

Judge = Callable[[str, str], bool]
"""Of what has been read and a step: whether the step follows from it and says nothing that could not be known."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A step that came too early.

    Args:
        stream: Its stream.
        segment: Its place there.
        before, after: What it waited for, and waits for now: stream → segments.
        missing: What it used too early.
    """

    stream: str
    segment: int
    before: Mapping[str, int]
    after: Mapping[str, int]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Impossible:
    """A step that cannot hold wherever it stands.

    Args:
        stream: Its stream.
        segment: Its place there.
        text: What it says.
        missing: What nothing that it reads contains, or the sum that is wrong.
    """

    stream: str
    segment: int
    text: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the validator found.

    Args:
        score: With steps moved.
        moved: What was moved.
        impossible: What cannot hold.
    """

    score: Score
    moved: tuple[Moved, ...]
    impossible: tuple[Impossible, ...]

    @property
    def holds(self) -> bool:
        """Whether every step of the score could be known."""
        return not self.impossible


def validate(
    score: Score, reads: Mapping[str, Sequence[str]] | None = None, judge: Judge | None = None
) -> Verdict:
    """Move the steps of a score's outputs later until each could be known.

    Args:
        score: What is said.
        reads: Reader → what it reads beside itself; an output that is not named reads all.
        judge: Asked about each step beside the rules, for free text.

    Returns:
        The score with its steps moved, and what was moved or cannot hold.
    """
    return _Validator(score, reads or {}, judge).run()


class _Validator:
    """One run over one score."""

    def __init__(self, score: Score, reads: Mapping[str, Sequence[str]], judge: Judge | None) -> None:
        self.score = score
        self.judge = judge
        self.parts = {part.stream: list(part.segments) for part in score.parts}
        self.reads = {
            part.stream: tuple(name for name in reads.get(part.stream, score.streams) if name != part.stream)
            for part in score.parts
        }
        self.common = _words("".join(part.text for part in score.parts if part.direction == "input"))
        self.told = {part.stream: _told_numbers(part) for part in score.parts}
        """Numbers that a stream says or works out, sooner or later."""
        self.moved: list[Moved] = []
        self.impossible: list[Impossible] = []

    def run(self) -> Verdict:
        for part in self.score.parts:
            if part.direction == "output":
                for place in range(len(part.segments)):
                    self._settle(part, place)
        parts = tuple(replace(part, segments=tuple(self.parts[part.stream])) for part in self.score.parts)
        return Verdict(replace(self.score, parts=parts), tuple(self.moved), tuple(self.impossible))

    def _settle(self, part: Part, place: int) -> None:
        """Move one step until it holds, or to where it is known that it cannot."""
        before = dict(self.parts[part.stream][place].after)
        missed: list[str] = []
        while True:
            past = self._past(part.stream, place)
            missing, wrong = self._missing(part.stream, place, past)
            missed += [each for each in missing if each not in missed]
            unknown = wrong or self._wait_for(part.stream, place, missing)
            if unknown:
                self._tell_impossible(part.stream, place, unknown)
                break
            if not missing:
                text = self.parts[part.stream][place].text
                if self.judge is None or self.judge(past, text):
                    break
                missed += ["what the judge misses"] if "what the judge misses" not in missed else []
                if not self._wait_for_more(part.stream, place):
                    self._tell_impossible(part.stream, place, ("what the judge misses",))
                    break
        after = self.parts[part.stream][place].after
        if dict(after) != before:
            self.moved.append(Moved(part.stream, place, before, dict(after), tuple(missed)))

    def _tell_impossible(self, stream: str, place: int, missing: Sequence[str]) -> None:
        text = self.parts[stream][place].text
        self.impossible.append(Impossible(stream, place, text, tuple(missing)))

    # ---- what is known

    def _effective(self, stream: str, place: int) -> dict[str, int]:
        """All that stands in the past of a segment, whoever waited for it: stream → segments."""
        counts: dict[str, int] = {}
        open_ = [(stream, each) for each in range(place + 1)]
        seen: set[tuple[str, int]] = set()
        while open_:
            name, at = open_.pop()
            if (name, at) in seen or at >= len(self.parts[name]):
                continue
            seen.add((name, at))
            for other, count in self.parts[name][at].after.items():
                waited = min(count, len(self.parts[other]))  # one more is its end token
                if waited > counts.get(other, 0):
                    counts[other] = waited
                    open_ += [(other, each) for each in range(waited)]
        counts[stream] = place
        return counts

    def _past(self, stream: str, place: int) -> str:
        counts = self._effective(stream, place)
        readable = [*self.reads[stream], stream]
        texts = ["".join(each.text for each in self.parts[name][: counts.get(name, 0)]) for name in readable]
        return "\n".join(text for text in texts if text)

    def _missing(self, stream: str, place: int, past: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What a step uses that its past lacks; and sums that are wrong."""
        text = self.parts[stream][place].text
        # What everybody knows is known, unless it is told or worked out later: then it is that which is meant.
        later = self.told[stream].union(*(self.told[name] for name in self.reads[stream]))
        common = COMMON_NUMBERS - later
        known, wanted = known_numbers(past), set(stated_numbers(text))
        missing: list[Fraction] = []
        wrong: list[str] = []
        for equation in equations(text):
            if not equation.is_right:
                wrong.append(f"{equation.text} is wrong")
            missing += [each for each in equation.operands if each not in known and each not in common]
            wanted -= {*equation.operands, *equation.results}
            known |= set(equation.results)
        missing += [each for each in sorted(wanted) if each not in known]
        words = _words(past)
        used = [word for word in _words(text) if word in self.common and word not in words]
        said = {_small(word) for word in _WORD.findall(past)}
        strange = [name for name in sorted(_names(text)) if name not in self.common and name not in said]
        used = sorted(used) + (strange if strange and self._unread(stream, place) else [])
        return (*dict.fromkeys([*map(plain, missing), *used]),), tuple(wrong)

    def _unread(self, stream: str, place: int) -> dict[str, int]:
        """Inputs that a step can still wait for to their end: stream → segments; none that waits for the step."""
        counts = self._effective(stream, place)
        found: dict[str, int] = {}
        for part in self.score.parts:
            name, count = part.stream, len(part.segments)
            if part.direction == "output" or name not in self.reads[stream]:
                continue
            while count and self._effective(name, count - 1).get(stream, 0) > place:
                count -= 1
            if count > counts.get(name, 0):
                found[name] = count
        return found

    # ---- waiting

    def _wait_for(self, stream: str, place: int, missing: Sequence[str]) -> tuple[str, ...]:
        """Wait for the first segments that hold what is missing, and return what none of them holds."""
        found = {each: self._sources_of(stream, place, each) for each in missing}
        for sources in found.values():
            for name, count in sources.items():
                self._raise_to(stream, place, name, count)
        return tuple(each for each, sources in found.items() if not sources)

    def _sources_of(self, stream: str, place: int, what: str) -> dict[str, int]:
        """The streams and the numbers of their segments after which something is known, or may be made up."""
        if what[0].isalpha() and what not in self.common:
            return self._unread(stream, place)
        counts = self._effective(stream, place)
        for name in self._sources(stream):
            for count in range(counts.get(name, 0) + 1, len(self.parts[name]) + 1):
                text = "".join(each.text for each in self.parts[name][:count])
                if what in _words(text) or what in map(plain, known_numbers(text)):
                    return {name: count}
        return {}

    def _sources(self, stream: str) -> list[str]:
        """Inputs first; and outputs that stand before it, so that no two wait for each other."""
        order = list(self.score.streams)
        inputs = [part.stream for part in self.score.parts if part.direction == "input"]
        outputs = [name for name in order[: order.index(stream)] if name not in inputs]
        return [name for name in (*inputs, *outputs) if name in self.reads[stream]]

    def _wait_for_more(self, stream: str, place: int) -> bool:
        """Wait for one more segment of an input; whether there was one."""
        counts = self._effective(stream, place)
        for name in self._sources(stream):
            if counts.get(name, 0) < len(self.parts[name]):
                self._raise_to(stream, place, name, counts.get(name, 0) + 1)
                return True
        return False

    def _raise_to(self, stream: str, place: int, name: str, count: int) -> None:
        segment: Segment = self.parts[stream][place]
        after = {**segment.after, name: max(count, segment.after.get(name, 0))}
        self.parts[stream][place] = replace(segment, after=after)


def _told_numbers(part: Part) -> frozenset[Fraction]:
    """The numbers that an input says; of an output only those that it works out, for it may use any as it likes."""
    if part.direction == "input":
        return frozenset(known_numbers(part.text))
    return frozenset(
        each for segment in part.segments for step in equations(segment.text) for each in step.results
    )


def _words(text: str) -> set[str]:
    """Names and things, in small letters, without endings that come and go."""
    found: set[str] = set()
    for word in _WORD.findall(text):
        is_name = word[0].isupper()
        if not _is_common(word) and len(_bare(word)) >= (2 if is_name else 4):
            found.add(_small(word))
    return found


def _names(text: str) -> set[str]:
    """Words with a capital letter that no beginning of a sentence explains, and usual given names wherever."""
    found: set[str] = set()
    for match in _WORD.finditer(text):
        word = match[0]
        if not word[0].isupper() or len(_bare(word)) < 2 or _is_common(word):
            continue
        if _bare(word) in _GIVEN_NAMES or not _BEGINS_SENTENCE.search(text[: match.start()]):
            found.add(_small(word))
    return found


def _bare(word: str) -> str:
    """In small letters, without an owner's ending."""
    return re.sub(r"['’]s$|['’]$", "", word.lower())


def _small(word: str) -> str:
    """In small letters, without endings that come and go."""
    bare = _bare(word)
    return bare[:-1] if bare.endswith("s") and not bare.endswith("ss") else bare


def _is_common(word: str) -> bool:
    return _bare(word) in _COMMON_WORDS
