"""`verify` and `score`: tokens that somebody else has thought of, and what is left of them.

    one by one    x ─▶ a ─▶ b ─▶ c ─▶ d
    verify        [x a b Z d]       accepted 2, the next token is c; the span holds x a b, and goes on with c
    score         [x a b c d]       log p(a|x) + log p(b|x a) + …; the span holds what it held before

Both are tried in a conversation with one writer and in native rows, greedily and with noise that alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from braid.checks.conformance import scenes
from braid.checks.conformance.oracle import apart
from braid.checks.conformance.stand import Playback, Stand, judged, needs_of, pages_in_use, play, skipped
from braid.checks.conformance.tape import NUM_NAMED, Tape
from braid.checks.finding import Finding
from braid.engine.backend import Answer, Ask, Backend, Capabilities, Draw, Entry, Item, Kind, require_ok
from braid.streams.sampling import SamplingSpec

__all__ = [
    "ALMIGHTY",
    "Spot",
    "ask_once",
    "score_equals_decoding",
    "spots",
    "thorough",
    "verify_equals_decoding",
]

NUM_DRAFTED = 5
"""Tokens of a draft."""
GREEDY = SamplingSpec()
NOISE = SamplingSpec(temperature=1e3, seed=7)
"""So warm that noise alone decides, whatever a number format does to the logits."""
ALMIGHTY = 1e6
"""A bias that decides what is drawn."""
TIE = 2e-3
"""Greedy tokens may differ where the two likeliest lie closer than this, or than half the bound."""


@dataclass(frozen=True)
class Spot:
    """A moment in a session at which an output says something: line `at` of the tape is its next row."""

    tape: Tape
    at: int
    token: int
    t: int
    index: int
    """Tokens that it has said before."""

    def reach(self, backend: Backend, *numbers: int) -> None:
        """Bring new sessions there."""
        play(backend, *(Playback(backend, number, self.tape) for number in numbers), until=self.at)

    def entry(self, tokens: Sequence[int], ask: Ask, *, skip: int = 0) -> Entry:
        """Tokens that the output says from here on, or so many rows later."""
        start = self.t + skip
        return Entry("output", "output", tuple(tokens), tuple(range(start, start + len(tokens))), True, ask)

    def draw(self, spec: SamplingSpec, skip: int = 0) -> Draw:
        """How the token after so many more is drawn."""
        seed = 0 if spec.seed is None else spec.seed
        return Draw(spec, "output", seed, 0, self.index + 1 + skip, {})


def spots(stand: Stand) -> list[Spot]:
    """One in a conversation with one writer, and one in native rows where there are any."""
    tapes = [stand.oracle.tape(scenes.plain)]
    if stand.can.rows:
        tapes.append(stand.oracle.tape(scenes.stock))
    return [_spot(tape) for tape in tapes]


def _spot(tape: Tape) -> Spot:
    num_said = 0
    for at, line in enumerate(tape.lines):
        said = [e for e in line.entries if e.span == "output"] if isinstance(line, Item) else []
        if num_said == 3:
            return Spot(tape, at, said[0].token_ids[0], said[0].times[0], num_said)
        num_said += sum(len(entry.token_ids) for entry in said)
    raise AssertionError("an output says more than three tokens")


def ask_once(backend: Backend, kind: Kind, asked: Sequence[tuple[int, Entry]]) -> list[Answer]:
    """One step with one entry of each of these sessions: what they are told."""
    for number, entry in asked:
        backend.reserve(number, needs_of([entry]))
    results = backend.step([Item(number, kind, [entry]) for number, entry in asked])
    return [require_ok(result)[0] for result in results]


def decode(backend: Backend, number: int, spot: Spot, specs: Sequence[SamplingSpec]) -> list[Answer]:
    """Let a session go on from a spot, token by token, each drawn as it is said."""
    answers: list[Answer] = []
    token = spot.token
    for step, spec in enumerate(specs):
        ask = thorough(backend.capabilities(), spot.draw(spec, step))
        answers += ask_once(backend, "decode", [(number, spot.entry([token], ask, skip=step))])
        token = answers[-1].token
    return answers


def thorough(can: Capabilities, *draws: Draw) -> Ask:
    """An ask for these draws, and for all statistics that there are."""
    wanted = can.statistics
    return Ask(draws, logprobs=NUM_NAMED if wanted else 0, entropy=wanted, confidence=wanted)


# ---- verify


def verify_equals_decoding(stand: Stand) -> Finding:
    """Drafts are accepted as far as one-by-one decoding says the same; then the session goes on from there."""
    name = "verify_equals_decoding"
    if not stand.can.verify:
        return skipped(name, "the backend verifies no drafts")
    value, num_drafts, num_excused = 0.0, 0, 0
    wrong: list[str] = []
    for spot in spots(stand):
        for spec in (GREEDY, NOISE):
            with stand.serving() as backend:
                spot.reach(backend, 0, 1, 2, 3)
                truth = decode(backend, 0, spot, [spec] * (NUM_DRAFTED + 1))
                sure = _num_sure(truth, stand.oracle.bound) if spec is GREEDY else NUM_DRAFTED
                lengths = [length for length in (0, 2, NUM_DRAFTED) if length <= sure]
                value = max(value, _verify(backend, spot, spec, truth, lengths, wrong))
            num_drafts, num_excused = num_drafts + len(lengths), num_excused + 3 - len(lengths)
    detail = f"{num_drafts} drafts" + "".join(f"; {mistake}" for mistake in wrong)
    if num_excused:
        detail += f"; {num_excused} left out, where two tokens are all but equally likely"
    return judged(name, value, stand.oracle.bound, detail, holds=not wrong)


def _num_sure(truth: Sequence[Answer], bound: float) -> int:
    """How many greedy tokens are so much likelier than the next that no order of summation decides."""
    tie = max(TIE, bound / 2)
    ties = (len(a.top) > 1 and a.top[0][1] - a.top[1][1] < tie for a in truth[:NUM_DRAFTED])
    return next((step for step, is_tie in enumerate(ties) if is_tie), NUM_DRAFTED)


def _verify(
    backend: Backend,
    spot: Spot,
    spec: SamplingSpec,
    truth: Sequence[Answer],
    lengths: Sequence[int],
    wrong: list[str],
) -> float:
    """In sessions 1, 2, …: verify drafts that agree with the truth in so many tokens, and go on after each.

    Returns:
        The largest difference of an answer from the truth; a wrong number of tokens is told in `wrong`.
    """
    said = [answer.token for answer in truth]
    draws = [spot.draw(spec, step) for step in range(NUM_DRAFTED + 1)]
    asked: list[tuple[int, Entry]] = []
    for number, length in enumerate(lengths, start=1):
        draft = said[:NUM_DRAFTED]
        if length < NUM_DRAFTED:
            draft[length] = draft[length] - 1 if draft[length] else 1
        asked.append((number, spot.entry([spot.token, *draft], thorough(backend.capabilities(), *draws))))
    is_greedy, differences = spec.is_greedy, [0.0]
    for (number, _), length, answer in zip(asked, lengths, ask_once(backend, "verify", asked), strict=True):
        if answer.accepted != length:
            wrong.append(f"{answer.accepted} tokens accepted of a draft that is right in {length}")
        differences.append(apart(answer, truth[length], is_greedy=is_greedy))
        if length < NUM_DRAFTED:
            ask = thorough(backend.capabilities(), draws[length + 1])
            (after,) = ask_once(
                backend, "decode", [(number, spot.entry([said[length]], ask, skip=length + 1))]
            )
            differences.append(apart(after, truth[length + 1], is_greedy=is_greedy))
    return max(differences)


# ---- score


def score_equals_decoding(stand: Stand) -> Finding:
    """The sum of log-probabilities is the oracle's, and the decoder's own; nothing of what was scored is kept."""
    name = "score_equals_decoding"
    if not (stand.can.verify and stand.can.statistics and stand.can.penalties):
        return skipped(
            name, "the backend scores nothing, or its decoder tells no log-probability of a given token"
        )
    value, num_kept = 0.0, 0
    scored = spots(stand)
    for spot in scored:
        given = _said_next(spot)
        specs = [SamplingSpec(logit_bias={token: ALMIGHTY}) for token in given]
        with stand.serving() as backend:
            spot.reach(backend, 0, 1)
            truth = decode(backend, 0, spot, specs)
            before = pages_in_use(backend)
            (answer,) = ask_once(backend, "score", [(1, spot.entry([spot.token, *given], Ask()))])
            num_kept += pages_in_use(backend) - before
            again = decode(backend, 1, spot, specs)
        sums = [sum(one.logprob for one in truth)]
        if spot.tape.topology.decoding == "views":
            sums.append(stand.oracle.score(spot.tape, spot.at, "output", spot.t, [spot.token, *given]))
        value = max([value, *(abs(answer.logprob - each) / len(given) for each in sums)])
        pairs = zip(truth, again, strict=True)
        value = max([value, *(apart(one, other, is_greedy=False) for one, other in pairs)])
    detail = f"{len(scored)} sums of {NUM_DRAFTED} log-probabilities, a token's share; {num_kept} pages kept"
    return judged(name, value, stand.oracle.bound, detail, holds=num_kept == 0)


def _said_next(spot: Spot) -> list[int]:
    """What the tape says after the spot."""
    items = [line for line in spot.tape.lines[spot.at + 1 :] if isinstance(line, Item)]
    entries = [entry for item in items for entry in item.entries if entry.span == "output"]
    return [token for entry in entries for token in entry.token_ids][:NUM_DRAFTED]
