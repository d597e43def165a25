"""A radix tree of closed prefixes, so that sessions with the same beginning share its pages. Holds no tensors.

A prefix is closed when nothing in it could read anything outside it: its keys and values depend on its own tokens
alone, and on what the namespace names. A path through the tree is the prefix, row by row; a node is a stretch of it.

Ownership. Leaves own, for each list, the pages of their *whole* path; inner nodes own nothing, since any leaf below
holds their tokens too. So a node is parted at any symbol, in the middle of a page too, without touching a page; and
when the last leaf below a node goes, it hands up what the node needs:

    insert S a b c d        insert S a b x          drop "c d"              drop "x"

    [S a b c d]  owns       [S a b]                 [S a b]                 [S a b]  owns, handed up by "x"
                              ├ [c d]  owns           └ [x]  owns
                              └ [x]    owns

Order of use. Whoever is used moves to the back of one queue, and the nodes above it after it: a node stands behind
all that lies below it, so the first in the queue is always a leaf, and the one to go.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from braid.cache.pages import PageGroup, PageList, PagePool
from braid.cache.path import PrefixPath
from braid.errors import IntegrityError, PoolTooSmallError

__all__ = ["PrefixMatch", "PrefixStats", "PrefixTree"]


class _Node:
    """A stretch of a path, and what comes after it."""

    __slots__ = ("children", "end", "key", "lists", "parent", "run")

    def __init__(self, key: bytes, run: PrefixPath, parent: _Node | None, end: int) -> None:
        self.key = key
        """Under which the parent knows it: the first symbol, behind the namespace where a path begins."""
        self.run = run
        self.parent = parent
        self.end = end
        """Symbols from the root to the end of the run."""
        self.children: dict[bytes, _Node] = {}
        self.lists: dict[int, PageList] = {}
        """Of a leaf: the pages of its whole path, list by list."""

    def leaf(self) -> _Node:
        """Some leaf below, or the node itself."""
        node = self
        while node.children:
            node = next(iter(node.children.values()))
        return node


@dataclass(frozen=True)
class PrefixStats:
    """What a tree has done since it was made; tokens are counted over all lists."""

    lookups: int = 0
    """Paths that were looked up."""
    hits: int = 0
    """Of these, those of which the tree had at least the first token."""
    lookup_tokens: int = 0
    """Tokens of all paths that were looked up."""
    hit_tokens: int = 0
    """Of these, those that the tree had."""
    kept_tokens: int = 0
    """Tokens that were new to the tree when they were inserted."""
    evicted_tokens: int = 0
    """Tokens that it let go."""

    @property
    def misses(self) -> int:
        """Lookups that found nothing."""
        return self.lookups - self.hits


@dataclass(frozen=True)
class PrefixMatch:
    """How much of a path the tree has. It keeps nothing alive: fork it before the tree evicts anything."""

    length: int
    """Symbols that agree, from the first on."""
    _path: PrefixPath
    _node: _Node

    def fork(self, group: PageGroup | None = None) -> dict[int, PageList]:
        """Page lists of exactly the matched tokens, by number; lists without any are left out.

        Args:
            group: The lists beside which the session's own pages are to lie.

        Returns:
            Lists that are the caller's to append to and to release. Pages are shared: the first append to a list
            that ends within a page copies that page, which `PageList.pages_needed` counts.
        """
        if self.length == 0:
            return {}
        lists = self._node.leaf().lists
        assert lists, "the prefix was evicted between the match and the fork"
        counts = self._path.counts(self.length)
        return {number: lists[number].fork(count, group) for number, count in counts.items()}


class PrefixTree:
    """Closed prefixes by namespace and path, least recently used first to go.

    Args:
        pool: Whose pages the prefixes lie in.
        max_pages: The most pages that the tree may hold, those that sessions use too included; 0 keeps nothing,
            None sets no bound besides the pool.

    Raises:
        PoolTooSmallError: The bound is negative.
    """

    def __init__(self, pool: PagePool, *, max_pages: int | None = None) -> None:
        if max_pages is not None and max_pages < 0:
            raise PoolTooSmallError(
                f"a prefix tree cannot hold {max_pages} pages; give 0 to keep nothing, None for no bound"
            )
        self.max_pages = max_pages
        self._pool = pool
        self._root = _Node(b"", PrefixPath(*[np.empty(0, dtype=np.int64)] * 3), None, 0)
        self._queue: OrderedDict[_Node, None] = OrderedDict()
        self._held: NDArray[np.int32] = np.zeros(pool.num_pages, dtype=np.int32)
        """Of each page, how many lists of the tree own it."""
        self._num_tokens = 0
        self._counters: Counter[str] = Counter()

    # ---- asking

    @property
    def num_tokens(self) -> int:
        """Tokens in the tree; what paths have in common counts once."""
        return self._num_tokens

    @property
    def num_pages(self) -> int:
        """Pages that the tree holds, alone or together with sessions."""
        return int(np.count_nonzero(self._held))

    @property
    def num_evictable(self) -> int:
        """Pages that only the tree holds: what `evict` can free at most."""
        # Nobody owns a free page, the tree included: those agree too, and are not meant.
        return int(np.count_nonzero(self._pool.reference_counts == self._held)) - self._pool.num_free

    @property
    def stats(self) -> PrefixStats:
        """What the tree has done so far."""
        return PrefixStats(**self._counters)

    def match(self, namespace: bytes, path: PrefixPath) -> PrefixMatch:
        """Find the longest beginning of a path that the tree has; it counts as used.

        Args:
            namespace: All else that decides keys and values; see `braid.cache.namespace`.
            path: What is looked for.
        """
        node, length = self._descend(namespace, path)
        self._use(node)
        self._counters.update(lookups=1, hits=int(length > 0), lookup_tokens=len(path), hit_tokens=length)
        return PrefixMatch(length, path, node)

    # ---- acting

    def insert(self, namespace: bytes, path: PrefixPath, lists: Mapping[int, PageList]) -> int:
        """Keep a prefix beyond the life of its session. Takes no free page, and copies none.

        What the tree has already stays as it is: only whole pages behind it, and the one in which the paths part,
        are taken from the lists. A path that `max_pages` could not hold is kept as far as it could.

        Args:
            namespace: All else that decides keys and values.
            path: The tokens.
            lists: For each list that the path names, the page list whose first tokens are the path's; it stays the
                caller's.

        Returns:
            How many tokens were new.
        """
        counts = path.counts()
        for number, count in counts.items():
            assert number in lists, f"the path has tokens in list {number}, which was not given"
            assert count <= lists[number].length, f"list {number} is shorter than its part of the path"
        if self.max_pages is not None:
            path = path.part(0, path.fit(self.max_pages, self._pool.page_size))
        node, length = self._descend(namespace, path)
        if length < len(path):
            self._grow(node, namespace, path, length, lists)
        else:
            self._use(node)
        while self.max_pages is not None and self.num_pages > self.max_pages:
            self._drop(next(iter(self._queue)))
        return len(path) - length

    def evict(self, num_pages: int) -> int:
        """Make room: let the least recently used leaves go until so many pages have become free.

        A leaf whose pages are all used by sessions would free nothing: it counts as used, and stays. If what can be
        freed is not enough, the tree lets go of everything: a session then writes on in a page that it shared with
        the tree alone, where it would have had to copy it. Who would rather keep the tree asks `num_evictable` first.

        Args:
            num_pages: How many are to become free.

        Returns:
            How many have.
        """
        before = self._pool.num_free
        goal = before + min(num_pages, self.num_evictable)
        while self._pool.num_free < goal:
            leaf = next(iter(self._queue))
            if self._owns_alone(leaf):
                self._drop(leaf)
            else:
                self._use(leaf)
        freed = self._pool.num_free - before
        if freed < num_pages:
            self.clear()
        return freed

    def clear(self) -> None:
        """Let everything go; what sessions share with the tree stays theirs."""
        while self._queue:
            self._drop(next(iter(self._queue)))

    # ---- nodes

    def _descend(self, namespace: bytes, path: PrefixPath) -> tuple[_Node, int]:
        """The last node that a path enters, and how many of the path's symbols agree with the tree."""
        node, length = self._root, 0
        while length < len(path) and length == node.end:
            child = node.children.get(_key(node, namespace, path, length))
            if child is None:
                break
            node = child
            length += child.run.agreement(path, length)
        return node, length

    def _grow(
        self, node: _Node, namespace: bytes, path: PrefixPath, length: int, lists: Mapping[int, PageList]
    ) -> None:
        """Add the symbols of a path from `length` on, below the node in whose run they part from the tree."""
        if length < node.end:
            node = self._part(node, length)
        leaf = _Node(_key(node, namespace, path, length), path.part(length), node, len(path))
        shared, known = path.counts(length), node.leaf().lists
        for number, count in path.counts().items():
            same = shared.get(number, 0)
            if same < count:
                # The page in which the paths part holds tokens of both: each path has its own.
                same -= same % self._pool.page_size
            pages = known[number].fork(same) if same else self._pool.new_list()
            if same < count:
                pages.borrow(lists[number], count)
            leaf.lists[number] = self._hold(pages)
        self._release(node)
        node.children[leaf.key] = leaf
        self._num_tokens += len(leaf.run)
        self._counters.update(kept_tokens=len(leaf.run))
        self._use(leaf)

    def _part(self, node: _Node, end: int) -> _Node:
        """Part a node's run in two; the upper half becomes a node of its own, without pages, and is returned."""
        assert node.parent is not None
        cut = end - node.end + len(node.run)
        upper = _Node(node.key, node.run.part(0, cut), node.parent, end)
        node.parent.children[node.key] = upper
        node.run = node.run.part(cut)
        node.key = node.run.symbol(0)
        node.parent = upper
        upper.children[node.key] = node
        return upper

    def _use(self, node: _Node) -> None:
        """Move a node to the back of the queue, and those above it behind it."""
        while node.parent is not None:
            self._queue[node] = None
            self._queue.move_to_end(node)
            node = node.parent

    def _drop(self, leaf: _Node) -> None:
        """Take a leaf out of the tree; a parent that becomes a leaf thereby is handed the pages of its path."""
        parent = leaf.parent
        assert parent is not None, "the root cannot go"
        assert not leaf.children, "only leaves can go"
        del parent.children[leaf.key], self._queue[leaf]
        gone = leaf.run.counts()
        if not parent.children and parent is not self._root:
            for number, pages in leaf.lists.items():
                length = pages.length - gone.get(number, 0)
                if length:
                    parent.lists[number] = self._hold(pages.fork(length))
        self._release(leaf)
        self._num_tokens -= len(leaf.run)
        self._counters.update(evicted_tokens=len(leaf.run))

    # ---- pages

    def _hold(self, pages: PageList) -> PageList:
        self._held[pages.pages] += 1
        return pages

    def _release(self, node: _Node) -> None:
        for pages in node.lists.values():
            self._held[pages.pages] -= 1
            pages.release()
        node.lists = {}

    def _owns_alone(self, leaf: _Node) -> bool:
        """Whether the tree is the only owner of some page of the leaf's path."""
        pages = [page for one in leaf.lists.values() for page in one.pages]
        return bool((self._pool.reference_counts[pages] == self._held[pages]).any())

    # ---- proof

    def check_integrity(self) -> None:
        """Compare nodes, queue, counts and pages with each other; `PagePool.check_integrity` is the pool's part.

        Raises:
            IntegrityError: They contradict each other.
        """
        held = np.zeros_like(self._held)
        place = {node: index for index, node in enumerate(self._queue)}
        num_nodes = num_tokens = 0
        for node, counts in self._walk():
            num_nodes += 1
            num_tokens += len(node.run)
            _check_node(node, counts)
            if node not in place or any(
                place.get(child, -1) > place[node] for child in node.children.values()
            ):
                raise IntegrityError(
                    "a node of the prefix tree stands before one below it in the order of use"
                )
            for pages in node.lists.values():
                held[pages.pages] += 1
        if num_nodes != len(self._queue) or num_tokens != self._num_tokens:
            raise IntegrityError(
                f"the prefix tree has {num_nodes} nodes of {num_tokens} tokens, "
                f"and counts {len(self._queue)} of {self._num_tokens}"
            )
        if (held != self._held).any() or (held > self._pool.reference_counts).any():
            raise IntegrityError("the prefix tree miscounts the pages that it holds")
        if self.max_pages is not None and self.num_pages > self.max_pages:
            raise IntegrityError(f"the prefix tree holds {self.num_pages} pages of {self.max_pages}")

    def _walk(self) -> Iterator[tuple[_Node, Counter[int]]]:
        """Every node but the root, with the tokens that its path has in each list."""
        todo: list[tuple[_Node, Counter[int]]] = [(self._root, Counter())]
        while todo:
            node, counts = todo.pop()
            todo += [(child, counts + Counter(child.run.counts())) for child in node.children.values()]
            if node is not self._root:
                yield node, counts


def _key(node: _Node, namespace: bytes, path: PrefixPath, index: int) -> bytes:
    """Under which the node would know the child whose run begins with the symbol `index`."""
    # One symbol has a fixed length, so that what stands before it cannot be mistaken.
    return path.symbol(index) if node.end else namespace + path.symbol(index)


def _check_node(node: _Node, counts: Mapping[int, int]) -> None:
    parent = node.parent
    linked = parent is not None and parent.children.get(node.key) is node
    if not linked or not len(node.run) or node.end != sum(counts.values()):
        raise IntegrityError("a node of the prefix tree is not where its parent says")
    if not node.key.endswith(node.run.symbol(0)):
        raise IntegrityError("a node of the prefix tree is known by what it does not begin with")
    lengths = {number: pages.length for number, pages in node.lists.items()}
    if lengths != ({} if node.children else counts):
        raise IntegrityError(
            f"a node of the prefix tree owns lists of {lengths} tokens; its path has {dict(counts)}"
        )
