"""The tensors behind the pages: keys and values of every layer, preallocated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from braid.cache.pages import PageGroup, PageList, PagePool
from braid.errors import PoolTooSmallError

__all__ = ["KVCache", "LayerShape"]


class LayerShape(NamedTuple):
    """What one layer caches of a token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVCache:
    """Keys and values of all layers over one page pool.

    A key is stored already rotated, at its stored position. Slots of a layer are `[K, S, D]`, heads first, so that
    an extent is a plain view that a kernel reads without gathering.

    Args:
        shapes: What each layer caches of a token.
        max_tokens: Tokens that the pool must hold at least; rounded up to pages.
        dtype, device: Of the tensors.
        page_size: Tokens a page.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        max_tokens: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        page_size: int = 16,
    ) -> None:
        if max_tokens < 1:
            raise PoolTooSmallError(f"kv_tokens={max_tokens} holds nothing; give at least 1")
        num_pages = -(-max_tokens // page_size)
        slots = num_pages * page_size
        self.keys_KSD = [_zeros((s.num_kv_heads, slots, s.key_dim), dtype, device) for s in shapes]
        self.values_KSD = [_zeros((s.num_kv_heads, slots, s.value_dim), dtype, device) for s in shapes]
        # A function of the tensors alone: a bound method would keep the cache alive in a cycle.
        copy_page = partial(_copy_page, (*self.keys_KSD, *self.values_KSD), page_size)
        self.pool = PagePool(num_pages, page_size, copy_page)
        self.bytes_per_token = (
            sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in shapes) * dtype.itemsize
        )

    @property
    def num_tokens(self) -> int:
        """Tokens in all lists; a token that several lists share counts once a list."""
        return sum(pages.length for pages in self.pool.lists)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the pages that are owned."""
        return self.pool.num_used * self.pool.page_size * self.bytes_per_token

    def new_list(self, group: PageGroup | None = None) -> PageList:
        """An empty page list; lists of one group lie side by side where that is possible."""
        return self.pool.new_list(group)

    def write(self, layer: int, slots_L: Tensor, keys_KLD: Tensor, values_KLD: Tensor) -> None:
        """Store the keys and values of new tokens.

        Args:
            layer: Index of the layer.
            slots_L: Where to, from `PageList.append`.
            keys_KLD, values_KLD: `[K, L, D]`, keys rotated.
        """
        self.keys_KSD[layer].index_copy_(1, slots_L, keys_KLD)
        self.values_KSD[layer].index_copy_(1, slots_L, values_KLD)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Zeros that take no memory before they are written to, where the device allows it.

    A read may cover slots that hold nothing; they are masked, and must not hold what masking cannot undo (NaN).
    """
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy asks the system for zeroed pages and touches none; torch.zeros would write them all.
    raw = np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)


def _copy_page(tensors_KSD: Sequence[Tensor], page_size: int, source: int, target: int) -> None:
    for slots_KSD in tensors_KSD:
        slots_KSD[:, target * page_size : (target + 1) * page_size] = slots_KSD[
            :, source * page_size : (source + 1) * page_size
        ]
