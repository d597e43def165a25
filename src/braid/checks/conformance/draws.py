"""How a token is drawn: every parameter against its definition, on a distribution that the oracle knows.

One session is brought to a moment in which an output says a token. For every draw to be tried it is forked, and the
forks say that token in one step: so each draws from the same distribution, by its own parameters.

    greedy     the oracle's logits, edited by hand; what is drawn must be their largest
    warm       bans and filters say which classes are left; nothing else may ever be drawn
    even       with a temperature at which the likeliest class has a probability of one half, it is drawn about as often
    noise      so warm that noise alone decides: the same draw, in another batch, gives the same token
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from braid.checks.conformance.drafts import ALMIGHTY, NOISE, Spot, ask_once, spots
from braid.checks.conformance.stand import Stand, judged
from braid.checks.finding import Finding
from braid.engine.backend import Answer, Ask, Backend, Close, Draw, Entry, Fork
from braid.streams.sampling import SamplingSpec

__all__ = ["draws_obey", "noise_is_keyed"]

NUM_WARM = 8
"""Draws by which a filter is tried."""
NUM_EVEN = 160
"""Draws by which the temperature is tried."""
LARGEST_ODDS = 4.5
"""In standard deviations: by how much the share of the likeliest class may miss one half; 7 in a million do."""
WAVE = 8
"""Forks that there are at once."""


@dataclass(frozen=True)
class _Trial:
    """A draw, and what may come of it."""

    what: str
    draw: Draw
    allowed: frozenset[int]


def draws_obey(stand: Stand) -> Finding:
    """Bias, penalty, ban, mask, temperature, top-k, top-p and min-p do what they say."""
    spot = spots(stand)[0]
    logits_V = stand.oracle.logits(spot.tape)[spot.t, "output"]
    trials = [*_filters(spot, logits_V, stand.oracle.bound)]
    if stand.can.penalties:
        trials += _edits(spot, logits_V, stand.oracle.bound)
    if stand.can.grammars:
        trials += _masks(spot, logits_V, stand.oracle.bound)
    temperature = _even_temperature(logits_V)
    even = [spot.draw(SamplingSpec(temperature=temperature), step) for step in range(NUM_EVEN)]
    with stand.serving() as backend:
        spot.reach(backend, 0)
        answers = _draw_all(backend, spot, [*(trial.draw for trial in trials), *even])
    disobeyed = [t.what for t, a in zip(trials, answers, strict=False) if a.token not in t.allowed]
    likeliest = int(logits_V.argmax())
    share = sum(answer.token == likeliest for answer in answers[len(trials) :]) / NUM_EVEN
    if abs(share - 0.5) > LARGEST_ODDS * math.sqrt(0.25 / NUM_EVEN):
        disobeyed.append("temperature")
    detail = f"{len(trials)} draws; the likeliest of two even choices came in {share:.0%} of {NUM_EVEN}"
    if disobeyed:
        detail += f"; not honoured: {', '.join(dict.fromkeys(disobeyed))}"
    return judged("draws_obey", float(len(disobeyed)), 0.0, detail)


def _draw_all(backend: Backend, spot: Spot, draws: Sequence[Draw]) -> list[Answer]:
    """Draw once by each of these, many in one step, from one and the same distribution."""
    answers: list[Answer] = []
    for start in range(0, len(draws), WAVE):
        asked: list[tuple[int, Entry]] = []
        for number, draw in enumerate(draws[start : start + WAVE], start=1):
            backend.apply([Fork(0, number)])
            asked.append((number, spot.entry([spot.token], Ask((draw,)))))
        answers += ask_once(backend, "decode", asked)
        backend.apply([Close(number) for number, _ in asked])
    return answers


def _best(logits_V: Tensor, bound: float) -> frozenset[int]:
    """The largest, and what cannot be told from it in the number format."""
    return frozenset(torch.nonzero(logits_V >= logits_V.max() - bound)[:, 0].tolist())


def _edits(spot: Spot, logits_V: Tensor, bound: float) -> list[_Trial]:
    """Greedy draws from logits that were made less or more likely."""
    order = logits_V.sort(descending=True).indices.tolist()
    first, second, tenth = order[0], order[1], order[9]
    plain = spot.draw(SamplingSpec())

    def expect(what: str, draw: Draw, edited_V: Tensor) -> _Trial:
        return _Trial(what, draw, _best(edited_V, bound))

    def edited(token: int, value: float) -> Tensor:
        copy_V = logits_V.clone()
        copy_V[token] = value
        return copy_V

    top = float(logits_V[first])
    penalised = top / 1.8 if top > 0 else top * 1.8
    hated, loved = SamplingSpec(logit_bias={first: -ALMIGHTY}), SamplingSpec(logit_bias={tenth: ALMIGHTY})
    strict = SamplingSpec(repetition_penalty=1.8)
    said = {first: 3}
    return [
        expect("greedy", plain, logits_V),
        expect("logit_bias", spot.draw(hated), edited(first, -ALMIGHTY)),
        expect("logit_bias", spot.draw(loved), edited(tenth, ALMIGHTY)),
        expect("repetition_penalty", replace(spot.draw(strict), counts=said), edited(first, penalised)),
        expect("exempt", replace(spot.draw(strict), counts=said, exempt=(first,)), logits_V),
        expect("banned", replace(plain, banned=(first,)), edited(first, -math.inf)),
        expect("banned", replace(spot.draw(loved), banned=(tenth, first)), edited(first, -math.inf)),
        expect("logit_bias", spot.draw(SamplingSpec(logit_bias={second: 0.0})), logits_V),
    ]


def _masks(spot: Spot, logits_V: Tensor, bound: float) -> list[_Trial]:
    """Draws under a grammar's mask, which may be shorter than the vocabulary."""
    order = logits_V.sort(descending=True).indices.tolist()
    few = sorted(order[5:9])
    mask = np.zeros(len(logits_V), dtype=np.bool_)
    mask[few] = True
    only_V = torch.full_like(logits_V, -math.inf)
    only_V[few] = logits_V[few]
    half = np.ones(len(logits_V) // 2, dtype=np.bool_)
    lower_V = logits_V.clone()
    lower_V[len(half) :] = -math.inf
    plain = spot.draw(SamplingSpec())
    trials = [
        _Trial("a grammar's mask", replace(plain, allowed=mask), _best(only_V, bound)),
        _Trial("a shorter mask", replace(plain, allowed=half), _best(lower_V, bound)),
    ]
    for step in range(NUM_WARM):
        warm = replace(spot.draw(NOISE, step), allowed=mask)
        trials.append(_Trial("a grammar's mask, warm", warm, frozenset(few)))
    return trials


def _filters(spot: Spot, logits_V: Tensor, bound: float) -> list[_Trial]:
    """Warm draws, of which the filters leave a few classes; where two are tied at the border, both."""
    count = _clear_cut(logits_V)
    ranked_V = logits_V.sort(descending=True).values
    left = frozenset(torch.nonzero(logits_V >= ranked_V[count - 1] - bound)[:, 0].tolist())
    warmth = 3.0
    shares = torch.softmax(ranked_V / warmth, -1)
    until = float(shares[: count - 1].sum() + shares[:count].sum()) / 2
    between = float((shares[count - 1] * shares[count]).sqrt() / shares[0])
    specs = {
        "top_k": SamplingSpec(temperature=warmth, top_k=count),
        "top_p": SamplingSpec(temperature=warmth, top_p=until),
        "min_p": SamplingSpec(temperature=warmth, min_p=between),
    }
    return [
        _Trial(what, spot.draw(spec, step), left) for what, spec in specs.items() for step in range(NUM_WARM)
    ]


def _clear_cut(logits_V: Tensor) -> int:
    """How many classes to leave, 2 to 6, so that the last of them is most clearly likelier than the next."""
    ranked = logits_V.sort(descending=True).values
    return max(range(2, 7), key=lambda count: float(ranked[count - 1] - ranked[count]))


def _even_temperature(logits_V: Tensor) -> float:
    """At which the likeliest class has a probability of one half."""
    low, high = 1e-3, 1e3
    for _ in range(60):
        middle = math.sqrt(low * high)
        if float(torch.softmax(logits_V / middle, -1).max()) > 0.5:
            low = middle
        else:
            high = middle
    return low


# ---- noise


def noise_is_keyed(stand: Stand) -> Finding:
    """Seed, lane, turn and index decide the noise: all of them, and neither the batch nor what was drawn before."""
    spot = spots(stand)[0]
    base = [spot.draw(NOISE, step) for step in range(NUM_WARM)]
    others = {
        "seed": [replace(draw, seed=draw.seed + 1) for draw in base],
        "lane": [replace(draw, lane="thought") for draw in base],
        "turn": [replace(draw, turn=draw.turn + 1) for draw in base],
    }
    with stand.serving() as backend:
        spot.reach(backend, 0)
        together = _tokens(_draw_all(backend, spot, base))
        by_key = {key: _tokens(_draw_all(backend, spot, draws)) for key, draws in others.items()}
        backwards = _tokens(_draw_all(backend, spot, base[::-1]))[::-1]
        one_by_one = [_tokens(_draw_all(backend, spot, [draw]))[0] for draw in base[::3]]
    num_moved = sum(a != b for a, b in zip(together, backwards, strict=True))
    num_moved += sum(a != b for a, b in zip(together[::3], one_by_one, strict=True))
    ignored = [key for key, tokens in by_key.items() if tokens == together]
    if len(set(together)) == 1:
        ignored.append("index")
    detail = f"{len(together)} draws: {num_moved} changed with the batch"
    if ignored:
        detail += f"; the noise ignores {' and '.join(ignored)}"
    return judged("noise_is_keyed", float(num_moved), 0.0, detail, holds=not ignored)


def _tokens(answers: Sequence[Answer]) -> list[int]:
    return [answer.token for answer in answers]
