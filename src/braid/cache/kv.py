"""The tensors behind the pages: keys and values of every layer, preallocated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from braid.cache.pages import PageList, PagePool
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
        self.pool = PagePool(-(-max_tokens // page_size), page_size, self._copy_page)
        slots = self.pool.num_slots
        # `empty` reserves address space only: memory is taken when a page is first written.
        self.keys_KSD = [
            torch.empty(s.num_kv_heads, slots, s.key_dim, dtype=dtype, device=device) for s in shapes
        ]
        self.values_KSD = [
            torch.empty(s.num_kv_heads, slots, s.value_dim, dtype=dtype, device=device) for s in shapes
        ]
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

    def new_list(self) -> PageList:
        """An empty page list."""
        return self.pool.new_list()

    def write(self, layer: int, slots_L: Tensor, keys_KLD: Tensor, values_KLD: Tensor) -> None:
        """Store the keys and values of new tokens.

        Args:
            layer: Index of the layer.
            slots_L: Where to, from `PageList.append`.
            keys_KLD, values_KLD: `[K, L, D]`, keys rotated.
        """
        self.keys_KSD[layer].index_copy_(1, slots_L, keys_KLD)
        self.values_KSD[layer].index_copy_(1, slots_L, values_KLD)

    def _copy_page(self, source: int, target: int) -> None:
        size = self.pool.page_size
        for slots_KSD in (*self.keys_KSD, *self.values_KSD):
            slots_KSD[:, target * size : (target + 1) * size] = slots_KSD[
                :, source * size : (source + 1) * size
            ]
