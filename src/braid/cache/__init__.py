"""Where keys and values live: pages, one page list a stream, and the tensors behind them."""

from braid.cache.kv import KVCache
from braid.cache.pages import Extent, PageGroup, PageList, PagePool

__all__ = ["Extent", "KVCache", "PageGroup", "PageList", "PagePool"]
