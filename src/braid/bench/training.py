"""`braid bench training`: what an optimiser's step of streams costs beside the single-stream baseline's.

What a step costs is decided by its queries, kept tokens and probes alike; so three kinds are timed at equal queries:

    streams    the recipe as it is
    dense      the same examples, every stream reads every other
    turns      the same examples in one stream, as the baseline is trained

Each kind takes as many examples a step as make the wanted queries, and makes good in its next step what it took too
much or too little. All networks are in one process and take turns, so that noise on the machine hits all alike. A step
is all that a run does once its examples are laid out: packing, forward, backward, and the optimiser.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import set_seed

from braid.bench.machine import describe_machine
from braid.data.tokens import DataTokenizer
from braid.errors import InputError
from braid.streams.topology import Topology
from braid.train.build import build_network, read_tokenizer
from braid.train.examples import Examples, reading_of
from braid.train.optimisers import optimiser_of
from braid.train.packing import pack
from braid.train.processes import device
from braid.train.queries import Queries
from braid.train.recipe import Recipe, Stage
from braid.train.run import examples_of
from braid.train.step import backward, moved, now

__all__ = ["KindFigures", "TrainingFigures", "bench_training"]

_COUNTED = 200
"""Examples of which queries are counted."""


@dataclass(frozen=True)
class KindFigures:
    """One kind.

    Args:
        kept: Tokens of an example.
        probes: Of an example, that are computed.
        all_probes: Of an example, were none left out.
        step_queries: Of each step that was timed.
        step_examples: Of each of them.
        seconds: Of each of them.
        packing: Of these, seconds for packing.
    """

    kept: float
    probes: float
    all_probes: float
    step_queries: list[int]
    step_examples: list[int]
    seconds: list[float]
    packing: list[float]

    @property
    def queries(self) -> float:
        """Of a step that was timed."""
        return statistics.mean(self.step_queries)

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Queries of an example and of a step, and milliseconds of a step."""
        return {
            "kept": round(self.kept, 2),
            "probes": round(self.probes, 2),
            "all_probes": round(self.all_probes, 2),
            "queries_per_example": round(self.kept + self.probes, 2),
            "queries_per_step": round(self.queries, 1),
            "examples_per_step": round(statistics.mean(self.step_examples), 2),
            "step_ms": round(1e3 * self.median, 2),
            "min_step_ms": round(1e3 * min(self.seconds), 2),
            "packing_ms": round(1e3 * statistics.median(self.packing), 2),
        }


@dataclass(frozen=True)
class TrainingFigures:
    """All kinds.

    Args:
        kinds: `streams`, `dense` and `turns`.
        rounds: In each of which every kind took a step.
        recipe: Its name.
        device: Where it was measured.
    """

    kinds: Mapping[str, KindFigures]
    rounds: int
    recipe: str
    device: str
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The kinds, and the ratios of their medians, which are of equal queries."""
        turns = self.kinds["turns"]
        return {
            "kinds": {name: kind.to_dict() for name, kind in self.kinds.items()},
            "streams_over_turns": round(self.kinds["streams"].median / turns.median, 3),
            "dense_over_turns": round(self.kinds["dense"].median / turns.median, 3),
            "queries_apart": round(
                max(abs(kind.queries / turns.queries - 1) for kind in self.kinds.values()), 4
            ),
            "rounds": self.rounds,
            "recipe": self.recipe,
            "device": self.device,
            "machine": dict(self.machine),
        }


def bench_training(
    recipe: Recipe,
    *,
    queries: int | None = None,
    rounds: int = 15,
    on_round: Callable[[int, int], None] | None = None,
) -> TrainingFigures:
    """Time the steps of a recipe's last stage of streams, of it with dense reads, and of the baseline.

    Args:
        recipe: What would be trained; nothing is written.
        queries: Of a step; as many as the recipe's own batch has if None.
        rounds: That are timed, after one that is not.
        on_round: Is told how many rounds are done, and of how many.

    Raises:
        InputError: Nothing could be measured, or the recipe has no stage of streams.
        TrainingError: Its network or its tokenizer cannot be made.
    """
    stage = next((each for each in reversed(recipe.stages) if each.form == "streams"), None)
    if stage is None:
        raise InputError(f"{recipe.name} has no stage of streams, so there is nothing to compare")
    if rounds < 1 or (queries is not None and queries < 1):
        raise InputError("measure at least one round, with a query or more")
    tokenizer, _ = read_tokenizer(recipe, None)
    wanted = queries or round(stage.batch * _queries_of_an_example(recipe, stage, tokenizer))
    turns = stage.model_copy(update={"form": "turns"})
    kinds = {
        "streams": _Kind(recipe, stage, tokenizer, wanted),
        "dense": _Kind(_dense(recipe), stage, tokenizer, wanted),
        "turns": _Kind(recipe, turns, tokenizer, wanted),
    }
    names = list(kinds)
    for number in range(rounds + 1):
        if on_round is not None:
            on_round(number, rounds + 1)
        # Whoever comes first finds the caches as another kind left them; so it is each one's turn.
        for place in range(len(names)):
            kinds[names[(number + place) % len(names)]].step(is_timed=number > 0)
    return TrainingFigures(
        {name: kind.figures() for name, kind in kinds.items()},
        rounds,
        recipe.name,
        str(device()),
        describe_machine(),
    )


class _Kind:
    """One kind of training, ready to take steps.

    Args:
        recipe, stage, tokenizer: What is trained.
        wanted: Queries of a step.
    """

    def __init__(self, recipe: Recipe, stage: Stage, tokenizer: DataTokenizer, wanted: int) -> None:
        set_seed(recipe.seed)
        self._recipe, self._stage, self._tokenizer, self._wanted = recipe, stage, tokenizer, wanted
        self._network = build_network(recipe, stage, tokenizer).to(device()).train()
        self._optimiser = optimiser_of(self._network, stage)
        self._reading = reading_of(recipe.topology, stage.form)
        self._examples: Examples = examples_of(recipe, stage, tokenizer)
        self._next = self._taken = self._asked_for = 0
        self._queries: list[int] = []
        self._counts: list[int] = []
        self._seconds: list[float] = []
        self._packing: list[float] = []

    def step(self, *, is_timed: bool) -> None:
        """Take one step."""
        drawn = self._draw()
        began = now()
        batch = moved(pack(drawn, self._reading, order=self._stage.order))
        packed = now()
        backward(self._recipe, self._network, batch)
        self._optimiser.step()
        self._optimiser.zero_grad()
        ended = now()
        if is_timed:
            self._queries.append(sum(map(len, drawn)))
            self._counts.append(len(drawn))
            self._seconds.append(ended - began)
            self._packing.append(packed - began)

    def figures(self) -> KindFigures:
        """What was found."""
        kept, probes = _counted(self._recipe, self._stage, self._tokenizer)
        whole = self._stage.model_copy(update={"probe_share": 1.0})
        _, all_probes = _counted(self._recipe, whole, self._tokenizer)
        return KindFigures(
            kept, probes, all_probes, self._queries, self._counts, self._seconds, self._packing
        )

    def _draw(self) -> list[Queries]:
        """Examples until all that were taken have as nearly as can be the queries that all steps were to have."""
        self._asked_for += self._wanted
        drawn: list[Queries] = []
        while True:
            example = self._examples[self._next]
            over, under = self._taken + len(example) - self._asked_for, self._asked_for - self._taken
            if drawn and over > under:
                return drawn
            drawn.append(example)
            self._next, self._taken = self._next + 1, self._taken + len(example)


def _dense(recipe: Recipe) -> Recipe:
    """The recipe with every stream reading every other."""
    streams = tuple(recipe.topology.streams)
    reads = {name: [other for other in streams if other != name] for name in streams}
    topology = Topology.from_dict({**recipe.topology.to_dict(), "reads": reads, "patterns": {}})
    return recipe.model_copy(update={"topology": topology})


def _queries_of_an_example(recipe: Recipe, stage: Stage, tokenizer: DataTokenizer) -> float:
    return sum(_counted(recipe, stage, tokenizer))


def _counted(recipe: Recipe, stage: Stage, tokenizer: DataTokenizer) -> tuple[float, float]:
    """Kept tokens and probes of an example."""
    examples = examples_of(recipe, stage, tokenizer, count=_COUNTED)
    drawn = Queries.joined([examples[index] for index in range(_COUNTED)])
    return float(drawn.kept.sum()) / _COUNTED, float((~drawn.kept).sum()) / _COUNTED
