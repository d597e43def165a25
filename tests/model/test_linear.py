"""Products of few rows: the same products as nn.Linear's, by whichever form; off in training; invisible to the rest."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from braid.model.linear import PACKING_BUDGET, RowLinear, use_row_linear


@given(
    rows=st.integers(0, 20),
    bias=st.booleans(),
    budget=st.sampled_from([0, PACKING_BUDGET]),
    transposed=st.booleans(),
    seed=st.integers(0, 9),
)
def test_products_are_the_same(rows: int, bias: bool, budget: int, transposed: bool, seed: int) -> None:
    torch.manual_seed(seed)
    plain = torch.nn.Linear(24, 40, bias=bias)
    x = torch.randn(1, 24, rows).transpose(1, 2) if transposed else torch.randn(1, rows, 24)
    with torch.no_grad():
        expected = plain(x)
    switched = torch.nn.Sequential(plain)
    assert use_row_linear(switched, budget) == (24 * 40 * 4 if budget else 0)
    with torch.inference_mode():
        assert torch.allclose(switched(x), expected, atol=1e-5)
    assert list(switched.state_dict()) == (["0.weight", "0.bias"] if bias else ["0.weight"])


def test_switching_twice_changes_nothing() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 4))
    use_row_linear(network)
    assert use_row_linear(network) == 0


def test_training_is_bit_for_bit_nn_linear_and_has_gradients() -> None:
    layer = torch.nn.Linear(8, 8)
    use_row_linear(torch.nn.Sequential(layer))
    assert type(layer) is RowLinear
    x = torch.randn(5, 8)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_a_changed_weight_makes_its_packed_copy_void() -> None:
    layer = torch.nn.Linear(8, 8)
    use_row_linear(torch.nn.Sequential(layer))
    x = torch.randn(5, 8)
    with torch.no_grad():
        layer.weight.mul_(2.0)
    with torch.inference_mode():
        expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
        assert torch.allclose(layer(x), expected, atol=1e-5)
        layer.pack()  # pyright: ignore[reportCallIssue]
        assert torch.allclose(layer(x), expected, atol=1e-5)


def test_a_copy_of_the_module_works_without_the_packed_weights() -> None:
    layer = torch.nn.Linear(8, 8)
    use_row_linear(torch.nn.Sequential(layer))
    twin = copy.deepcopy(layer)
    with torch.inference_mode():
        x = torch.randn(5, 8)
        assert torch.allclose(twin(x), layer(x), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats_are_left_alone(dtype: torch.dtype) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(4, 4, dtype=dtype))
    assert use_row_linear(network) == 0
    assert type(network[0]) is torch.nn.Linear
