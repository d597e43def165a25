"""Queries of an example, and that leaving probes out changes nothing in expectation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.data.row_table import Lane, RowTable
from braid.train.network import StreamNetwork
from braid.train.packing import Reading, pack
from braid.train.queries import IGNORED, Queries, Weighing, queries_of
from braid.train.trainer import StreamTrainer, arguments_of
from tests.train.networks import SILENCE, SOLVE, stream_network, tables, tokenizer
from tests.train.tiny import read_recipe

STREAMS = tuple(SOLVE.streams)
END = 2

EXAMPLE = RowTable(
    "x",
    6,
    (
        Lane("user", [0, 1, 2], [50, 51, END], weight=0.0),
        Lane("thought", [3, 4], [60, END], ((1, 4),), 0.5),
        Lane("output", [5], [END], ((2, 5),)),
    ),
)


def test_the_queries_of_an_example() -> None:
    queries = queries_of(EXAMPLE, STREAMS, SILENCE, Weighing(silence=0.25, streams={"output": 2.0}))
    rows = list(
        zip(
            (STREAMS[stream] for stream in queries.streams),
            queries.rows.tolist(),
            queries.ids.tolist(),
            queries.kept.tolist(),
            queries.targets.tolist(),
            queries.weights.tolist(),
            strict=True,
        )
    )
    assert rows == [
        ("user", 0, 50, True, IGNORED, 0.0),
        ("user", 1, 51, True, IGNORED, 0.0),
        ("user", 2, END, True, IGNORED, 0.0),
        ("thought", 3, 60, True, END, 0.5),
        ("thought", 4, END, True, IGNORED, 0.0),
        ("thought", 1, SILENCE, False, SILENCE, 0.125),
        ("thought", 2, SILENCE, False, 60, 0.5),
        ("output", 5, END, True, IGNORED, 0.0),
        ("output", 2, SILENCE, False, SILENCE, 0.5),
        ("output", 3, SILENCE, False, SILENCE, 0.5),
        ("output", 4, SILENCE, False, END, 2.0),
    ]


def test_a_stream_that_the_model_has_not_is_no_query() -> None:
    with pytest.raises(KeyError, match="output"):
        queries_of(EXAMPLE, ("user", "thought"), SILENCE, Weighing())


@given(seed=st.integers(0, 2**32), share=st.floats(0.05, 1.0), example=st.integers(0, 3))
def test_only_silent_probes_are_left_out_and_the_rest_count_for_them(
    seed: int, share: float, example: int
) -> None:
    table, silence_id = tables()[example], tokenizer().silence_id
    whole = queries_of(table, STREAMS, silence_id, Weighing())
    drawn = queries_of(table, STREAMS, silence_id, Weighing(probe_share=share), np.random.default_rng(seed))
    kept = {_key(drawn, i): i for i in range(len(drawn))}
    for i in range(len(whole)):
        is_silent_probe = not whole.kept[i] and whole.targets[i] == silence_id
        place = kept.pop(_key(whole, i), None)
        assert place is not None or is_silent_probe
        if place is not None:
            factor = share if is_silent_probe else 1.0
            assert abs(drawn.weights[place] * factor - whole.weights[i]) <= 1e-5 * whole.weights[i]
    assert kept == {}


def _key(queries: Queries, i: int) -> tuple[int, ...]:
    return (int(queries.streams[i]), int(queries.rows[i]), int(queries.kept[i]), int(queries.targets[i]))


def _trainer(network: StreamNetwork, folder: Path) -> StreamTrainer:
    recipe = read_recipe(folder, dtype="float64")
    stage = recipe.stages[0]
    rest: Any = (stage, [], Reading.of(SOLVE), None, SOLVE, print)
    return StreamTrainer(network, arguments_of(recipe, stage, folder), *rest)


def _gradient(trainer: StreamTrainer, steps: list[list[Queries]]) -> torch.Tensor:
    """What the Trainer gathers for one step of some batches."""
    network = trainer.network
    network.zero_grad()
    packed: list[dict[str, Any]] = [pack(queries, Reading.of(SOLVE)) for queries in steps]
    for batch in packed:
        batch["weights"] = batch["weights"].double()
    batches, total = trainer.get_batch_samples(iter(packed), len(packed), torch.device("cpu"))
    for batch in batches:
        trainer.training_step(network, batch, total)
    return torch.cat([each.grad.flatten() for each in network.parameters() if each.grad is not None])


def test_the_expected_gradient_of_drawn_probes_is_that_of_all(tmp_path: Path) -> None:
    """Exactly, by enumeration: every subset of the silent probes, times its probability, as the Trainer weighs it."""
    trainer, share = _trainer(stream_network("llama"), tmp_path), 0.3
    whole = queries_of(EXAMPLE, STREAMS, SILENCE, Weighing())
    other = queries_of(tables()[0], STREAMS, SILENCE, Weighing())
    silent = np.flatnonzero(~whole.kept & (whole.targets == SILENCE))
    assert len(silent) == 3
    found = _gradient(trainer, [[whole], [other]])
    expected = torch.zeros_like(found)
    for number in range(1 << len(silent)):
        is_in = np.array([bool(number >> i & 1) for i in range(len(silent))])
        drawn = queries_of(EXAMPLE, STREAMS, SILENCE, Weighing(probe_share=share), _Scripted(is_in, share))  # type: ignore[arg-type]
        assert len(drawn) == len(whole) - int((~is_in).sum())
        probability = float(np.prod(np.where(is_in, share, 1 - share)))
        expected += probability * _gradient(trainer, [[drawn], [other]])
    assert float(found.abs().max()) > 1e-3
    assert float((expected - found).abs().max()) < 1e-7, "weights are float32"


def test_a_total_is_that_of_all_answers_whatever_is_drawn() -> None:
    weighing = Weighing(streams={"user": 0.5})
    whole = queries_of(EXAMPLE, STREAMS, SILENCE, weighing)
    assert whole.total == pytest.approx(float(whole.weights.sum()))
    for seed in range(4):
        rng = np.random.default_rng(seed)
        drawn = queries_of(EXAMPLE, STREAMS, SILENCE, replace(weighing, probe_share=0.3), rng)
        assert drawn.total == whole.total
        assert pack([drawn, whole], Reading.of(SOLVE))["total"] == 2 * whole.total


class _Scripted:
    """Draws what it is told, in the place of a generator."""

    def __init__(self, is_in: np.ndarray[Any, np.dtype[np.bool_]], share: float) -> None:
        self._left = list(is_in)
        self._share = share

    def random(self, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        # Each lane draws for all of its probes; its last one is not silent, and stays in anyhow.
        told = [self._left.pop(0) for _ in range(count - 1)]
        return np.array([0.0 if each else self._share for each in told] + [self._share])


def test_a_draw_has_the_share_that_is_asked_for() -> None:
    """Of 4,000 draws of a probe with share 0.3; the bound is five standard deviations of their mean."""
    draws = 4000
    kept = 0
    for seed in range(draws):
        rng = np.random.default_rng((3, seed))
        drawn = queries_of(EXAMPLE, STREAMS, SILENCE, Weighing(probe_share=0.3), rng)
        kept += int((~drawn.kept & (drawn.targets == SILENCE)).sum())
    deviation = (0.3 * 0.7 / (3 * draws)) ** 0.5
    assert abs(kept / (3 * draws) - 0.3) < 5 * deviation
