"""What a backend ought to answer: the dense recomputation of a tape, and how far an answer is from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor

from braid.checks.conformance.tape import Key, Tape
from braid.checks.subject import Subject
from braid.engine.backend import Answer
from braid.model.model import Model
from braid.streams.entries import Cell, Row
from braid.testing import reference_logits

__all__ = ["Heard", "Oracle", "apart", "farthest"]

Settings = ParamSpec("Settings")
Heard = Mapping[Key, Answer]
"""What a session was told, by row and lane."""


class Oracle:
    """The model under test in this process, densely; and the tapes that were made for it, each once.

    Args:
        model: With the weights that the backend serves.
    """

    def __init__(self, model: Model) -> None:
        self.subject = Subject(model)
        self.bound = self.subject.bound
        """The largest difference of a log-probability that the number format excuses."""
        self._tapes: dict[str, Tape] = {}
        self._logits: dict[Tape, dict[Key, Tensor]] = {}

    @property
    def stock(self) -> Model:
        """The network without any streams."""
        return self.subject.stock

    def tape(
        self,
        scene: Callable[Concatenate[Subject, Settings], Tape],
        *args: Settings.args,
        **kwargs: Settings.kwargs,
    ) -> Tape:
        """The tape of a scene, recorded when it is first asked for."""
        name = f"{scene.__name__} {args} {kwargs}"
        if name not in self._tapes:
            self._tapes[name] = scene(self.subject, *args, **kwargs)
        return self._tapes[name]

    def logits(self, tape: Tape) -> Mapping[Key, Tensor]:
        """Logits of all whom the tape asks, and of every kept token, `[V]` in float64."""
        if tape not in self._logits:
            found = reference_logits(tape.model, tape.topology, tape.transcript, probes=sorted(tape.probes))
            self._logits[tape] = {key: logits_V.double().cpu() for key, logits_V in found.items()}
        return self._logits[tape]

    def log_probabilities(self, tape: Tape, key: Key) -> Tensor:
        """Of every class, for whoever was asked then, `[V]`."""
        return torch.log_softmax(self.logits(tape)[tape.origins.get(key, key)], -1)

    def distance(self, tape: Tape, heard: Heard) -> float:
        """By how much answers differ from the dense recomputation."""
        return max(_off(answer, self.log_probabilities(tape, key)) for key, answer in heard.items())

    def score(self, tape: Tape, at: int, lane: str, t: int, tokens: list[int]) -> float:
        """Log-probability of all of these tokens but the first, if the lane says them from row `t` on.

        Args:
            tape: What happened before line `at`.
            at: A line.
            lane: Who speaks.
            t: The next row.
            tokens: What it says.
        """
        past = tape.past(at)
        for step, token in enumerate(tokens):
            past.append(Row(t + step, {lane: Cell(token, "")}))
        logits = reference_logits(tape.model, tape.topology, past)
        total = 0.0
        for step, token in enumerate(tokens[1:]):
            total += float(torch.log_softmax(logits[t + step, lane].double(), -1)[token])
        return total


def _off(answer: Answer, log_V: Tensor) -> float:
    """The largest error of one answer to a greedy ask, in nats.

    Of a token that is not the likeliest: by how much it is less likely, so that a tie is no error.
    """
    ranked = log_V.sort(descending=True).values
    errors = [float(ranked[0] - log_V[answer.token])]
    if answer.top:
        errors += [abs(value - float(log_V[token])) for token, value in answer.top]
        errors += [abs(value - float(ranked[rank])) for rank, (_, value) in enumerate(answer.top)]
        errors.append(abs(answer.logprob - float(log_V[answer.token])))
        errors.append(abs(answer.entropy - float(-(log_V.exp() * log_V).nansum())))
        errors.append(abs(answer.confidence - float(ranked[0].exp())))
    return _largest(errors)


def apart(first: Answer, second: Answer, *, is_greedy: bool = True) -> float:
    """The largest difference between two answers to the same ask, in nats; infinity where the tokens must not differ.

    A class that only one of them names counts by as much as it is likelier there than the last that the other names;
    so does a greedy token that is not the other's likeliest.
    """
    if first.token != second.token and not (is_greedy and first.top and second.top):
        return math.inf
    errors = [abs(first.entropy - second.entropy), abs(first.confidence - second.confidence)]
    for one, other in ((first, second), (second, first)):
        named = dict(other.top)
        last = other.top[-1][1] if other.top else 0.0
        errors += [abs(value - named[token]) if token in named else value - last for token, value in one.top]
        if is_greedy and other.top:
            errors.append(other.top[0][1] - named.get(one.token, -math.inf))
    if first.token == second.token:
        errors.append(abs(first.logprob - second.logprob))
    return _largest(errors)


def farthest(found: Heard, wanted: Heard) -> float:
    """The largest difference between what a session was told and what it would have been told elsewhere."""
    assert found, "nobody was asked"
    assert found.keys() <= wanted.keys(), "two runs of one tape ask the same"
    return _largest([apart(answer, wanted[key]) for key, answer in found.items()])


def _largest(errors: list[float]) -> float:
    """The largest; what is no number is as wrong as can be."""
    return max(math.inf if math.isnan(error) else error for error in errors)
