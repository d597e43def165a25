"""Made traces: each kind of input, typed, spoken, pasted or edited by a person of its own.

typing      a question, typed with slips that are noticed and taken back
edits       typed with something amiss, which is put right in the middle before the commit
speech      what a recogniser hears, word by word, revised, and at the end with capitals and signs
paste       a document put in at once; its question with it, or typed after it
middle      a document and its question are there, and a fact or a wording in the middle of the document changes
steering    typed and committed, and more is typed while the answer comes
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from braid.bench.traces.file import Meta, Segment, Steering, Text, Trace, TraceEvent, last_edit_of
from braid.bench.traces.people import Speaker, Typist
from braid.bench.traces.texts import DOCUMENTS, FOLLOW_UPS, QUESTIONS, Document, Question, compose
from braid.errors import InputError

__all__ = ["KINDS", "MIX", "generate_traces"]

MIX: Mapping[str, float] = {
    "typing": 0.3,
    "edits": 0.2,
    "speech": 0.15,
    "paste": 0.05,
    "middle": 0.2,
    "steering": 0.1,
}
"""The share of each kind, if nobody says otherwise."""

_TEMPLATE = (
    Segment(id="rules", role="system", text="Answer from the document, in one short sentence."),
    Segment(id="document"),
    Segment(id="question"),
)
_REWORDINGS = (
    ("usually", "mostly"),
    ("As a rule", "In general"),
    ("It is a good idea", "It is a fine idea"),
    ("rather old", "quite old"),
    ("would be pleased", "would be happy"),
    ("Perhaps", "Maybe"),
    ("could do with new paint", "could use new paint"),
)
_OPENINGS = ("Please tell me: ", "A short question: ", "I would like to know: ", "Tell me briefly: ")
_LONGEST_PAUSE_S = 3.0

Snapshots = Sequence[tuple[float, str]]


def generate_traces(mix: Mapping[str, float] | None = None, n: int = 100, seed: int = 0) -> Iterator[Trace]:
    """Make traces; the first of many are the same as of few.

    Args:
        mix: Kind → its share beside the others'; `MIX` if None. The kinds take turns, so that any number of traces
            has them in these shares as nearly as whole traces can.
        n: How many.
        seed: Of all that is drawn; the same gives the same traces.

    Raises:
        InputError: There is no such kind, a share is not a number of at least 0, all are 0, or `n` is below 0.
    """
    shares = _shares(MIX if mix is None else mix)
    if n < 0:
        raise InputError(f"{n} traces are asked for; ask for 0 or more")
    made = dict.fromkeys(shares, 0)

    def traces() -> Iterator[Trace]:
        for place in range(n):
            kind = max(shares, key=lambda kind: shares[kind] * (place + 1) - made[kind])
            number = made[kind]
            made[kind] += 1
            rng = random.Random(f"trace {seed} {kind} {number}")
            yield KINDS[kind](rng, f"{kind}-{number}", seed, number)

    return traces()


def _shares(mix: Mapping[str, float]) -> dict[str, float]:
    for kind, share in mix.items():
        if kind not in KINDS:
            raise InputError(f"there is no kind of trace called {kind!r}; there are {', '.join(KINDS)}")
        if not 0 <= share < float("inf"):
            raise InputError(f"the share of {kind} is {share}; it is a number of at least 0")
    total = sum(mix.values())
    if not total:
        raise InputError("no kind of trace has a share above 0")
    return {kind: share / total for kind, share in mix.items() if share}


def _typing(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    question = rng.choice(QUESTIONS)
    typist = Typist(rng)
    typist.write(question.text)
    return _trace(rng, name, seed, typist.snapshots, question.text, question.answers)


def _edits(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    """By turns: a fact is put right, a misspelt word, an opening is put before all, or a fact and a word.

    A question of short words has none to misspell; it gets an opening instead.
    """
    question = rng.choice(QUESTIONS)
    fact, word = number % 4 in (0, 3), number % 4 in (1, 3)
    final = question.text
    first = _earlier(question) if fact else final
    misspelt = _misspelt(rng, first, question.earlier) if word else None
    opening = not fact and not misspelt
    typist = Typist(rng)
    typist.write(_put(first, misspelt) if misspelt else first)
    typist.pause(rng.uniform(0.3, 2.0))
    if misspelt:
        start, right, wrong = misspelt
        typist.replace(start, start + len(wrong), right)
        typist.pause(rng.uniform(0.2, 0.8))
    if fact:
        start = final.index(question.later)
        typist.replace(start, start + len(question.earlier), question.later)
    if opening:
        opening_words = rng.choice(_OPENINGS)
        typist.go_to(0)
        typist.write(opening_words)
        final = opening_words + final
    stale = question.stale_answers if fact else ()
    return _trace(rng, name, seed, typist.snapshots, final, question.answers, stale, changed_fact=fact)


def _speech(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    question = rng.choice(QUESTIONS)
    speaker = Speaker(rng)
    speaker.say(question.text)
    return _trace(rng, name, seed, speaker.snapshots, question.text, question.answers, pause=(0.4, 0.9))


def _paste(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    """By turns: all at once, the question typed after it, and in segments."""
    document = DOCUMENTS[number % len(DOCUMENTS)]
    value = rng.choice(document.values)
    text = compose(document, value, rng.randrange(1_000_000))
    if number % 3 == 2:
        return _in_segments(rng, name, seed, text, lambda typist: None, document, (value,))
    final = f"{text}\n\n{document.question}"
    typist = Typist(rng)
    typist.paste(final if number % 3 == 0 else f"{text}\n\n")
    if number % 3 == 1:
        typist.pause(rng.uniform(0.5, 2.0))
        typist.write(document.question)
    return _trace(rng, name, seed, typist.snapshots, final, (value,))


def _middle(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    """By turns a fact or a wording, and by twos in one text or in segments."""
    document = DOCUMENTS[number // 2 % len(DOCUMENTS)]
    earlier, value = rng.sample(document.values, 2)
    own = rng.randrange(1_000_000)
    final = compose(document, value, own)
    changes_fact = number % 2 == 0
    if changes_fact:
        before = compose(document, earlier, own)
        start = final.index(document.key.format(value=value)) + document.key.index("{")
        old, new = earlier, value
    else:
        before = final
        start, old, new = _reworded(rng, final)
        final = _put(final, (start, old, new))
    stale = (earlier,) if changes_fact else ()

    def edit(typist: Typist) -> None:
        typist.replace(start, start + len(old), new)

    if number % 4 >= 2:
        return _in_segments(
            rng, name, seed, before, edit, document, (value,), stale, changed_fact=changes_fact
        )
    typist = Typist(rng)
    typist.paste(f"{before}\n\n{document.question}")
    typist.pause(rng.uniform(1.5, 5.0))
    edit(typist)
    whole = f"{final}\n\n{document.question}"
    return _trace(rng, name, seed, typist.snapshots, whole, (value,), stale, changed_fact=changes_fact)


def _steering(rng: random.Random, name: str, seed: int, number: int) -> Trace:
    first = _typing(rng, name, seed, number)
    follow_up = rng.choice(FOLLOW_UPS)
    typist = Typist(rng, at=first.commit_at + rng.uniform(0.3, 2.5))
    typist.write(follow_up)
    events = _events(typist.snapshots)
    commit_at = round(events[-1].at + _pause(rng), 3)
    steer = Steering(question=follow_up, events=events, commit_at=commit_at)
    return first.model_copy(update={"kind": "steering", "steer": steer})


KINDS: Mapping[str, Callable[[random.Random, str, int, int], Trace]] = {
    "typing": _typing,
    "edits": _edits,
    "speech": _speech,
    "paste": _paste,
    "middle": _middle,
    "steering": _steering,
}
"""How each kind is made: from its own source of chance, its id, the seed, and how many came before it."""


def _trace(
    rng: random.Random,
    name: str,
    seed: int,
    snapshots: Snapshots,
    question: str,
    answers: tuple[str, ...],
    stale: tuple[str, ...] = (),
    *,
    changed_fact: bool = False,
    pause: tuple[float, float] | None = None,
) -> Trace:
    assert snapshots[-1][1] == question, f"{name} ends with {snapshots[-1][1]!r}"
    last = last_edit_of([text for _, text in snapshots])
    waits = rng.uniform(*pause) if pause else _pause(rng)
    return _finished(
        name, seed, question, None, _events(snapshots), waits, last, changed_fact, answers, stale
    )


def _in_segments(
    rng: random.Random,
    name: str,
    seed: int,
    text: str,
    edit: Callable[[Typist], None],
    document: Document,
    answers: tuple[str, ...],
    stale: tuple[str, ...] = (),
    *,
    changed_fact: bool = False,
) -> Trace:
    """The document is put in, the question typed, and then the document edited."""
    typist = Typist(rng)
    typist.paste(text)
    asking = Typist(rng, at=typist.at + rng.uniform(0.5, 1.5))
    asking.write(document.question)
    pasted = len(typist.snapshots)
    typist.at = asking.at + rng.uniform(0.5, 3.0)
    edit(typist)
    edited = typist.snapshots[pasted:]
    events = (
        *_events(typist.snapshots[:pasted], "document"),
        *_events(asking.snapshots, "question"),
        *_events(edited, "document"),
    )
    last = last_edit_of([text, *(text for _, text in edited)]) if edited else "append"
    question = {"rules": _TEMPLATE[0].text, "document": typist.text, "question": document.question}
    return _finished(name, seed, question, _TEMPLATE, events, _pause(rng), last, changed_fact, answers, stale)


def _finished(
    name: str,
    seed: int,
    question: Text,
    template: tuple[Segment, ...] | None,
    events: tuple[TraceEvent, ...],
    pause: float,
    last: str,
    changed_fact: bool,
    answers: tuple[str, ...],
    stale: tuple[str, ...],
) -> Trace:
    commit_at = round(events[-1].at + pause, 3)
    meta = {
        "last_edit": last,
        "changed_fact": changed_fact,
        "pause_before_commit_s": round(commit_at - events[-1].at, 3),
        "answers": answers,
        "stale_answers": stale,
    }
    return Trace(
        id=name,
        seed=seed,
        kind=name.partition("-")[0],
        question=question,
        template=template,
        events=events,
        commit_at=commit_at,
        meta=Meta.model_validate(meta),
    )


def _events(snapshots: Snapshots, segment: str | None = None) -> tuple[TraceEvent, ...]:
    return tuple(
        TraceEvent(at=round(at, 3), text=text if segment is None else {segment: text})
        for at, text in snapshots
    )


def _pause(rng: random.Random) -> float:
    """Seconds before the commit: most send at once, some read what they wrote."""
    if rng.random() < 0.3:
        return rng.uniform(1.0, _LONGEST_PAUSE_S)
    return min(1.0, max(0.12, rng.lognormvariate(-0.7, 0.45)))


def _earlier(question: Question) -> str:
    return question.text.replace(question.later, question.earlier, 1)


def _misspelt(rng: random.Random, text: str, but: str) -> tuple[int, str, str] | None:
    """A word of a text with two letters the wrong way round: its place, the word, and how it is misspelt."""
    words = [
        word for word in text.rstrip("?").split() if len(word) > 4 and word.isalpha() and word not in but
    ]
    if not words:
        return None
    word = rng.choice(words)
    swaps = [at for at in range(1, len(word) - 1) if word[at] != word[at + 1]]
    at = rng.choice(swaps)
    return text.index(word), word, word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def _put(text: str, change: tuple[int, str, str]) -> str:
    start, old, new = change
    return text[:start] + new + text[start + len(old) :]


def _reworded(rng: random.Random, text: str) -> tuple[int, str, str]:
    """A wording in the middle of a document, near its half, and another that means the same."""
    found = [(text.find(old, len(text) * 2 // 5), old, new) for old, new in _REWORDINGS]
    places = [each for each in found if 0 <= each[0] < len(text) * 3 // 4]
    assert places, "a long document has one of the wordings"
    return rng.choice(places)
