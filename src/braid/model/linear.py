"""Linear layers that are quick with few rows.

A row of a few streams multiplies every weight matrix by a handful of vectors. On CPUs PyTorch's `linear` is tuned
for many rows or for exactly one, and is limited by neither arithmetic nor memory there. Two forms of the same product
run near the speed of reading the weights once:

    one or two rows     weight first, `(W @ xᵀ)ᵀ`; a single row is doubled
    three and more      oneDNN, from a copy of the weights in the layout that it likes

The copies double the memory of the weights, so they are made only within a budget; without them up to 16 rows go
weight first. `docs/dev/log.md` has the figures, and what else was tried.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["PACKING_BUDGET", "RowLinear", "use_row_linear"]

PACKING_BUDGET = 1 << 30
"""Bytes of packed copies that a model may have."""
_WEIGHT_FIRST_ROWS = 2
_WEIGHT_FIRST_ROWS_UNPACKED = 16
_ROWS_HINT = 16
"""The number of rows that packed weights are laid out for; other numbers work too."""


class RowLinear(nn.Linear):
    """`nn.Linear` by other products: the same module, parameters, names and state dict. Off in training."""

    _packed: Tensor | None = None
    _packed_of = (0, -1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name that nn.Linear gives it)
        """Apply the layer to `[*, in_features]`."""
        num_rows = input.numel() // self.in_features
        if self.training or torch.is_grad_enabled() or num_rows == 0:
            return F.linear(input, self.weight, self.bias)
        bias = cast("Tensor | None", self.bias)  # nn.Linear says Parameter, and means this
        is_packed = self._packed is not None and self._packed_of == _identity(self.weight)
        if num_rows > (_WEIGHT_FIRST_ROWS if is_packed else _WEIGHT_FIRST_ROWS_UNPACKED):
            if is_packed:
                return torch.ops.mkldnn._linear_pointwise(input, self._packed, bias, "none", [], "")  # noqa: SLF001
            return F.linear(input, self.weight, bias)
        # Rows must lie row by row: with the transposed layout the same product takes three times as long.
        rows = input.reshape(num_rows, self.in_features).contiguous()
        if num_rows == 1:  # a matrix-vector product reads W at less than half the speed of a product of two
            rows = torch.cat((rows, rows))
        out = (self.weight @ rows.T).T[:num_rows].contiguous()
        if bias is not None:
            out += bias
        return out.view(*input.shape[:-1], self.out_features)

    @torch.no_grad()
    def pack(self) -> None:
        """Make the copy that oneDNN likes; a later change of the weight makes it void."""
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _ROWS_HINT)  # noqa: SLF001
        self._packed_of = _identity(self.weight)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.pop("_packed", None)  # neither copied nor pickled with the module
        return state


def use_row_linear(network: nn.Module, budget: int = PACKING_BUDGET) -> int:
    """Switch a network's plain linear layers over, in place, where that is faster: float32 on a CPU.

    Args:
        network: Any network.
        budget: Bytes that packed copies may take in all; beyond that, layers go without.

    Returns:
        Bytes of the copies that were made.
    """
    can_pack = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    layers = [m for m in network.modules() if type(m) is nn.Linear and _suits(m.weight)]
    size = sum(layer.weight.numel() * layer.weight.element_size() for layer in layers)
    for layer in layers:
        # The class is all that changes: parameters, hooks, names and the state dict stay as they are.
        layer.__class__ = RowLinear
        if can_pack and size <= budget:
            cast("RowLinear", layer).pack()
    return size if can_pack and size <= budget else 0


def _identity(weight: Tensor) -> tuple[int, int]:
    """Where a weight lies, and how often it was changed in place."""
    return weight.data_ptr(), weight._version  # noqa: SLF001


def _suits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
