"""Muon: steps along the momentum with all its singular values brought near one.

    M ← M + (1 - μ)(G - M)        momentum of the gradient G
    U = G + μ(M - G)              a look ahead, as Nesterov's
    W ← W - η λ W - 0.2 η √max(m, n) · polar(U)

`polar` is five rounds of an odd polynomial in the singular values (Newton and Schulz), with the coefficients of Keller
Jordan's "Muon: An optimizer for hidden layers in neural networks" (2024); the factor before it makes a step as large as
one of AdamW ("Muon is Scalable for LLM Training", arXiv 2502.16982).

`torch.optim.Muon` does the same in bfloat16 and a matrix at a time. On a CPU without hardware for bfloat16 that takes
most of a training step, and it rounds so coarsely that several processes end elsewhere than one. Here the rounds have
the precision of the weights on a CPU, and matrices of one shape go together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast, overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from braid.errors import InputError

__all__ = ["Muon", "polar"]

_ROUNDS = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
"""Of a·s + b·s³ + c·s⁵: as steep at zero as it can be while values between 0 and 1 end near 1."""

_TINY = 1e-7
_STEP = 0.2
"""Root mean square of the entries of a step of AdamW, in learning rates."""


class Muon(Optimizer):
    """For matrices; AdamW is for all else.

    Args:
        params: Matrices, or groups of them.
        lr: Learning rate, as it would be for AdamW.
        weight_decay: Share of the weights that a step of rate 1 takes away.
        momentum: How much of the momentum stays.

    Raises:
        InputError: A parameter is no matrix.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for each in group["params"]:
                if each.ndim != 2:
                    raise InputError(
                        f"Muon is for matrices, not for a parameter of shape {tuple(each.shape)}"
                    )

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step, for the parameters that have gradients."""
        told = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for params in _alike(each for each in group["params"] if each.grad is not None):
                    self._step(params, group["lr"], group["weight_decay"], group["momentum"])
        return told

    def _step(self, params: Sequence[nn.Parameter], rate: float, decay: float, momentum: float) -> None:
        """A step of matrices of one shape."""
        ahead: list[Tensor] = []
        for each in params:
            gradient = cast("Tensor", each.grad)
            state = self.state[each]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            ahead.append(gradient.lerp(state["momentum_buffer"], momentum))
        steps = [polar(ahead[0])] if len(ahead) == 1 else polar(torch.stack(ahead)).unbind()
        for each, step in zip(params, steps, strict=True):
            each.mul_(1 - rate * decay)
            each.add_(step, alpha=-rate * _STEP * math.sqrt(max(each.shape)))


def _alike(params: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Parameters in groups of one shape; one that processes share is alone, for it cannot be stacked."""
    groups: dict[object, list[nn.Parameter]] = {}
    for each in params:
        is_whole = type(each.data) is Tensor
        groups.setdefault((each.shape, each.dtype, each.device) if is_whole else id(each), []).append(each)
    yield from groups.values()


def polar(matrices: Tensor) -> Tensor:
    """The orthogonal factor of matrices, roughly: singular values that are not next to nothing end between 0.7 and 1.2.

    Args:
        matrices: [… m n]

    Returns:
        [… m n] of their dtype; on a GPU with the precision of bfloat16.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    if matrices.is_cuda:
        x = x.bfloat16()
    x = x / torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True).clamp(min=_TINY)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * (square @ square)) @ x
    return (x.mT if is_tall else x).to(matrices.dtype)
