"""Products of few rows, weight first.

A row of a few streams multiplies every weight matrix by a handful of vectors. On CPUs PyTorch's `linear` is tuned
for many rows or for exactly one, and is limited by neither arithmetic nor memory there; the same product written
`(W @ xᵀ)ᵀ` runs near the speed of reading `W` once. `docs/dev/log.md` has the figures and what else was tried.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["WeightFirstLinear", "use_weight_first"]

MAX_ROWS = 16
"""Above this many rows the ordinary product is as fast."""


class WeightFirstLinear(nn.Linear):
    """`nn.Linear` with the product written weight first for few rows; the same module, parameters and state dict."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (the name that nn.Linear gives it)
        """Apply the layer to `[*, in_features]`."""
        num_rows = input.numel() // self.in_features
        if self.training or num_rows > MAX_ROWS or torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        # Rows must lie row by row: with the transposed layout the same product takes three times as long.
        rows = input.reshape(num_rows, self.in_features).contiguous()
        if num_rows == 1:  # a matrix-vector product reads W at less than half the speed of a product of two
            rows = torch.cat((rows, rows))
        out = (self.weight @ rows.T).T[:num_rows].contiguous()
        bias = cast("Tensor | None", self.bias)  # nn.Linear says Parameter, and means this
        if bias is not None:
            out += bias
        return out.view(*input.shape[:-1], self.out_features)


def use_weight_first(network: nn.Module) -> int:
    """Switch a network's plain linear layers over, in place, where that is faster: float32 on a CPU.

    Returns:
        How many layers were switched.
    """
    switched = 0
    for module in network.modules():
        if (
            type(module) is nn.Linear
            and module.weight.device.type == "cpu"
            and module.weight.dtype == torch.float32
        ):
            # The class is all that changes: parameters, hooks, names and the state dict stay as they are.
            module.__class__ = WeightFirstLinear
            switched += 1
    return switched
