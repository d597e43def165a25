"""Where keys and values live: pages, one page list a stream, shared prefixes, and the tensors behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from braid.cache.pages import Extent, PageGroup, PageList, PagePool
from braid.cache.path import PrefixPath, namespace
from braid.cache.prefix import PrefixMatch, PrefixStats, PrefixTree

if TYPE_CHECKING:
    from braid.cache.kv import KVCache

__all__ = [
    "Extent",
    "KVCache",
    "PageGroup",
    "PageList",
    "PagePool",
    "PrefixMatch",
    "PrefixPath",
    "PrefixStats",
    "PrefixTree",
    "namespace",
]


def __getattr__(
    name: str,
) -> Any:  # the books need no torch, so the tensors are imported when they are asked for
    if name != "KVCache":
        raise AttributeError(f"module 'braid.cache' has no attribute {name!r}")
    from braid.cache.kv import KVCache

    return KVCache
