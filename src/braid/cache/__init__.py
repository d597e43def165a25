"""Where keys and values live: pages, one page list a stream, shared prefixes, and the tensors behind them."""

from braid.cache.kv import KVCache
from braid.cache.pages import Extent, PageGroup, PageList, PagePool
from braid.cache.path import PrefixPath, namespace
from braid.cache.prefix import PrefixMatch, PrefixStats, PrefixTree

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
