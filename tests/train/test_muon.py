"""Muon, beside the singular values themselves and beside torch's own, which rounds to bfloat16."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from braid.errors import InputError
from braid.train.muon import Muon, polar


def _rounds(values: torch.Tensor) -> torch.Tensor:
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_only_the_singular_values_change(m: int, n: int, seed: int) -> None:
    torch.manual_seed(seed)
    matrices = torch.randn(3, m, n, dtype=torch.float64)
    found = polar(matrices)
    for matrix, each in zip(matrices, found, strict=True):
        u, values, v = torch.linalg.svd(matrix, full_matrices=False)
        wanted = u @ torch.diag(_rounds(values / values.norm())) @ v
        assert torch.allclose(each, wanted, atol=1e-9)
        assert torch.allclose(polar(matrix), each, atol=1e-12), "together as alone"


def test_what_is_nothing_stays_nothing() -> None:
    assert not polar(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shapes", [[(16, 24)], [(16, 24), (24, 16), (16, 24), (8, 8)]])
def test_a_step_is_that_of_torch(shapes: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    theirs = [nn.Parameter(each.detach().clone()) for each in ours]
    before = [each.detach().clone() for each in ours]
    mine = Muon(ours, lr=0.05, weight_decay=0.1)
    torchs = torch.optim.Muon(theirs, lr=0.05, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        mine.step()
        torchs.step()
    for start, one, other in zip(before, ours, theirs, strict=True):
        assert (one - other).norm() < 0.03 * (one - start).norm(), "bfloat16 has two digits"


def test_what_has_no_gradient_stays() -> None:
    still, moved = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimiser = Muon([still, moved], lr=0.1)
    moved.grad = torch.eye(2)
    assert optimiser.step(lambda: 3.0) == 3.0
    assert torch.equal(still, torch.ones(2, 2))
    assert not torch.equal(moved, torch.ones(2, 2))


def test_only_matrices_are_taken() -> None:
    with pytest.raises(InputError, match=r"not for a parameter of shape \(3,\)"):
        Muon([nn.Parameter(torch.ones(3))])
