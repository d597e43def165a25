"""Sampling: every filter against its definition, noise by its key alone, lanes independent of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.engine.backend import Draw
from braid.engine.local.noise import gumbel, noise_key
from braid.engine.local.sampler import sample
from braid.errors import SamplingError
from braid.streams.sampling import SamplingSpec

VOCAB = 40


def draw(
    index: int = 0, *, lane: str = "output", seed: int = 0, counts: dict[int, int] | None = None, **spec: Any
) -> Draw:
    banned = spec.pop("banned", ())
    exempt = spec.pop("exempt", ())
    return Draw(SamplingSpec(**spec), lane, seed, 0, index, counts or {}, banned, exempt)


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def support(row: torch.Tensor, tries: int = 400, **spec: Any) -> set[int]:
    return set(
        sample(row.expand(tries, -1), [draw(index, temperature=1.0, **spec) for index in range(tries)])
    )


def test_greedy_is_argmax() -> None:
    rows = logits(0, 5)
    assert sample(rows, [draw() for _ in range(5)]) == rows.argmax(-1).tolist()
    assert sample(rows[:0], []) == []


@given(st.integers(0, 50), st.integers(1, 6))
def test_top_k_keeps_the_k_likeliest(seed: int, k: int) -> None:
    row = logits(seed)
    assert support(row, 60, top_k=k) <= set(row[0].topk(k).indices.tolist())


@given(st.integers(0, 50), st.floats(0.05, 0.95))
def test_top_p_keeps_the_smallest_set_that_reaches_p(seed: int, p: float) -> None:
    row = logits(seed)
    order = row[0].double().softmax(-1).sort(descending=True)
    count = int((order.values.cumsum(-1) < p).sum()) + 1
    assert support(row, 60, top_p=p) <= set(order.indices[:count].tolist())


@given(st.integers(0, 50), st.floats(0.05, 0.95))
def test_min_p_keeps_what_is_likely_beside_the_best(seed: int, p: float) -> None:
    row = logits(seed)
    probabilities = row[0].double().softmax(-1)
    allowed = set(torch.nonzero(probabilities >= p * probabilities.max())[:, 0].tolist())
    assert support(row, 60, min_p=p) <= allowed


def test_frequencies_follow_the_softmax() -> None:
    row = logits(3)
    tries = 4000
    found = np.bincount(
        sample(row.expand(tries, -1), [draw(i, temperature=0.7) for i in range(tries)]), minlength=VOCAB
    )
    expected = (row[0].double() / 0.7).softmax(-1).numpy() * tries
    common = expected > 5
    chi_square = (((found - expected) ** 2) / expected)[common].sum()
    assert chi_square < 2.5 * common.sum(), "a chi-square far above its degrees of freedom"


def test_a_lane_draws_the_same_alone_and_in_any_batch() -> None:
    rows = logits(5, 6)
    draws = [draw(i, lane=f"l{i}", temperature=0.5 + i / 5, top_k=3 + i if i % 2 else None) for i in range(6)]
    together = sample(rows, draws)
    alone = [sample(rows[i : i + 1], [draws[i]])[0] for i in range(6)]
    backwards = sample(rows.flip(0), draws[::-1])[::-1]
    assert together == alone == backwards


def test_noise_depends_on_every_part_of_the_key_and_on_nothing_else() -> None:
    keys = {
        noise_key(1, "output", 0, 0),
        noise_key(2, "output", 0, 0),
        noise_key(1, "thought", 0, 0),
        noise_key(1, "output", 1, 0),
        noise_key(1, "output", 0, 1),
    }
    assert len(keys) == 5
    classes = np.arange(1000)
    assert np.array_equal(gumbel(9, classes)[[3, 700]], gumbel(9, np.array([3, 700])))
    assert abs(gumbel(9, np.arange(200_000)).mean() - 0.5772) < 0.01


def test_repetition_penalty_bias_bans_and_exemptions() -> None:
    row = torch.zeros(1, VOCAB)
    row[0, 4], row[0, 7], row[0, 9] = 5.0, 4.0, 3.0
    assert sample(row, [draw(repetition_penalty=2.0, counts={4: 1})]) == [7]
    assert sample(row, [draw(repetition_penalty=2.0, counts={4: 1}, exempt=(4,))]) == [4]
    assert sample(row, [draw(logit_bias={9: 10.0})]) == [9]
    assert sample(row, [draw(banned=(4,))]) == [7]
    negative = row - 10
    assert sample(negative, [draw(repetition_penalty=4.0, counts={4: 1})]) == [7]
    assert row[0, 4] == 5.0, "the caller's logits are not changed"


def test_impossible_biases_are_refused() -> None:
    with pytest.raises(SamplingError, match="vocabulary ends at 39"):
        sample(logits(0), [draw(logit_bias={40: 1.0})])
