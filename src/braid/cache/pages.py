"""Pages and page lists: who owns which slot of the key-value pool. Holds no tensors.

Ownership. A page belongs to as many lists as its reference count says; a slot is written once, by the list that
appended it, and never while its page is shared:

    list A  [p0 p1 p2]          fork             list A  [p0 p1 p2]      append to B     list A  [p0 p1 p2]
            1  1  1        ───────────────▶      list B  [p0 p1 p2]   ───────────────▶   list B  [p0 p1 p7]
                                                          2  2  2        p2 is not full:          2  2  1,1
                                                                         copied to p7

`trim` and `release` only lower counts; a page whose count reaches zero is free at once. Every verb asks before it
acts: when the pool has too few free pages it raises, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from braid.errors import IntegrityError, PoolFullError, PoolTooSmallError

__all__ = ["Extent", "PageGroup", "PageList", "PagePool"]


class Extent(NamedTuple):
    """A run of neighbouring slots that holds neighbouring tokens of one list."""

    slot: int
    """The first slot, in slots of the pool."""
    start: int
    """Index in the list of the token in that slot."""
    length: int
    """How many tokens."""


class PagePool:
    """A fixed number of equal pages, reference-counted.

    Args:
        num_pages: Pages in the pool.
        page_size: Tokens a page.
        copy_page: Called as `copy_page(source, target)` when a shared, partly filled page must be written to;
            the tensors' side of copy-on-write.
    """

    def __init__(
        self, num_pages: int, page_size: int = 16, copy_page: Callable[[int, int], None] | None = None
    ) -> None:
        if num_pages < 1 or page_size < 1:
            raise PoolTooSmallError(
                f"a pool of {num_pages} pages of {page_size} tokens holds nothing; give it at least one of each"
            )
        self.num_pages = num_pages
        self.page_size = page_size
        self._copy_page = copy_page
        self._references: NDArray[np.int32] = np.zeros(num_pages, dtype=np.int32)
        self._num_free = num_pages
        self._lists: set[PageList] = set()

    # ---- asking

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return self._num_free

    @property
    def num_used(self) -> int:
        """Pages that at least one list owns."""
        return self.num_pages - self._num_free

    @property
    def num_slots(self) -> int:
        """Tokens that the whole pool can hold."""
        return self.num_pages * self.page_size

    @property
    def lists(self) -> frozenset[PageList]:
        """The lists that have not been released."""
        return frozenset(self._lists)

    def references(self, page: int) -> int:
        """How many lists own the page."""
        return int(self._references[page])

    @property
    def reference_counts(self) -> NDArray[np.int32]:
        """How many lists own each page, `[P]`; a view that cannot be written to."""
        counts = self._references.view()
        counts.flags.writeable = False
        return counts

    def can_allocate(self, num_pages: int) -> bool:
        """Whether so many pages are free."""
        return num_pages <= self._num_free

    def require(self, num_pages: int) -> None:
        """Raise unless so many pages are free; changes nothing.

        Raises:
            PoolTooSmallError: The pool is smaller than that even when empty.
            PoolFullError: The pages are in use.
        """
        if num_pages > self.num_pages:
            raise PoolTooSmallError(
                f"{num_pages * self.page_size} tokens are asked of a pool that holds {self.num_slots}; "
                "open the engine with a larger kv_tokens, or send shorter input"
            )
        if num_pages > self._num_free:
            raise PoolFullError(
                f"the key-value pool is full: {num_pages} pages needed, {self._num_free} of {self.num_pages} free; "
                "close a session, trim a stream, or open the engine with a larger kv_tokens"
            )

    # ---- acting

    def new_list(self, group: PageGroup | None = None) -> PageList:
        """An empty page list of this pool; lists of one group lie side by side where that is possible."""
        pages = PageList(self, PageGroup() if group is None else group)
        self._lists.add(pages)
        return pages

    def allocate(self, num_pages: int, after: int | None = None) -> list[int]:
        """Take free pages, neighbours where possible.

        Args:
            num_pages: How many.
            after: The page that the new ones continue; its neighbours are preferred, so that what is read together
                lies together and kernels can read it without gathering.

        Returns:
            The page numbers, each with one reference.

        Raises:
            PoolFullError: Too few are free; nothing was taken.
        """
        self.require(num_pages)
        taken: list[int] = []
        while len(taken) < num_pages:
            follow = taken[-1] if taken else after
            page = follow + 1 if follow is not None else self.num_pages
            if page >= self.num_pages or self._references[page]:
                page = self._start_of_new_extent(num_pages - len(taken))
            self._references[page] = 1
            self._num_free -= 1
            taken.append(page)
        return taken

    def retain(self, pages: Iterable[int]) -> None:
        """Add one reference to each page; the page must be owned already."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is free and cannot be retained"
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Drop one reference from each page; a page without references is free."""
        for page in pages:
            assert self._references[page] > 0, f"page {page} is released twice"
            self._references[page] -= 1
            self._num_free += int(self._references[page] == 0)

    def check_integrity(self) -> None:
        """Compare the reference counts with the lists that exist.

        Raises:
            IntegrityError: A page is leaked, freed too early, or a list is longer than its pages.
        """
        owners = np.zeros(self.num_pages, np.int64)
        for pages in self._lists:
            if len(pages.pages) != self.pages_for(pages.length):
                raise IntegrityError(f"a list of {pages.length} tokens owns {len(pages.pages)} pages")
            if len(set(pages.pages)) != len(pages.pages):
                raise IntegrityError("a list owns a page twice")
            owners[pages.pages] += 1
        wrong = np.flatnonzero(owners != self._references)
        if wrong.size:
            page = wrong[0]
            raise IntegrityError(
                f"page {page} has {self._references[page]} references and {owners[page]} owners"
            )
        if self._num_free != int((self._references == 0).sum()):
            raise IntegrityError(f"{self._num_free} pages are counted as free, which they are not")

    def pages_for(self, num_tokens: int) -> int:
        """Pages that so many tokens fill."""
        return -(-num_tokens // self.page_size)

    # ---- for PageList

    def forget(self, pages: PageList) -> None:
        """Strike a released list from the books."""
        self._lists.discard(pages)

    def adopt(self, pages: PageList) -> None:
        """Enter a forked list into the books."""
        self._lists.add(pages)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page's keys and values, where there are tensors behind the pool."""
        if self._copy_page is not None:
            self._copy_page(source, target)

    def _start_of_new_extent(self, wanted: int) -> int:
        """A page in the longest free run, far from the lists that end before it so that these can grow."""
        free = np.concatenate(([False], self._references == 0, [False]))
        edges = np.flatnonzero(free[1:] != free[:-1])
        starts, stops = edges[::2], edges[1::2]
        longest = int(np.argmax(stops - starts))
        start, length = int(starts[longest]), int(stops[longest] - starts[longest])
        return start if start == 0 else start + max(0, length - wanted) // 2


class PageGroup:
    """Lists that are read together, such as the streams of a session: each continues where any of them ended last.

    A row appends to all of them in turn, so their pages come to lie like tiles, and one read covers them all.
    """

    __slots__ = ("last_page",)

    def __init__(self) -> None:
        self.last_page: int | None = None


class PageList:
    """One stream's cached tokens, in the order they were appended. Made by `PagePool.new_list` and `fork`."""

    __slots__ = ("__weakref__", "_group", "_pool", "length", "pages")

    def __init__(self, pool: PagePool, group: PageGroup) -> None:
        self._pool = pool
        self._group = group
        self.pages: list[int] = []
        self.length = 0

    def pages_needed(self, num_tokens: int) -> int:
        """Pages that appending so many tokens would take, copy-on-write included."""
        if num_tokens == 0:
            return 0
        grown = self._pool.pages_for(self.length + num_tokens) - len(self.pages)
        return grown + int(self._must_copy_last())

    def append(self, num_tokens: int) -> NDArray[np.int64]:
        """Make room for tokens at the end.

        Args:
            num_tokens: How many.

        Returns:
            The slots to write their keys and values to, `[num_tokens]`.

        Raises:
            PoolFullError: Too few pages are free; nothing was changed.
        """
        self.grow(num_tokens)
        return self.slots(self.length - num_tokens, self.length)

    def grow(self, num_tokens: int) -> None:
        """What `append` does, for whoever needs no slots."""
        pool = self._pool
        needed = self.pages_needed(num_tokens)
        if not needed:
            self.length += num_tokens
            return
        pool.require(needed)
        if self._must_copy_last():
            shared = self.pages[-1]
            (own,) = self._take(1)
            pool.copy_page(shared, own)
            pool.release([shared])
            self.pages[-1] = own
        grown = pool.pages_for(self.length + num_tokens) - len(self.pages)
        if grown > 0:
            self.pages.extend(self._take(grown))
        self.length += num_tokens

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """The slots of the tokens `start … stop`, `[stop - start]`."""
        size = self._pool.page_size
        first = start // size
        pages = np.asarray(self.pages[first : self._pool.pages_for(stop)], dtype=np.int64)
        index = np.arange(start, stop, dtype=np.int64)
        return pages[index // size - first] * size + index % size

    def fork(self, length: int | None = None, group: PageGroup | None = None) -> PageList:
        """A second list over the same first tokens; the pages are shared until one of the two writes.

        Args:
            length: How many tokens the fork begins with; all when None.
            group: The lists beside which the fork's own pages are to lie; a group of its own when None.
        """
        length = self.length if length is None else length
        assert 0 <= length <= self.length, f"a list of {self.length} tokens cannot be forked at {length}"
        twin = PageList(self._pool, PageGroup() if group is None else group)
        twin.pages = self.pages[: self._pool.pages_for(length)]
        twin.length = length
        self._pool.retain(twin.pages)
        self._pool.adopt(twin)
        return twin

    def borrow(self, source: PageList, length: int) -> None:
        """Go on with the tokens of another list, from as many as there are here already; its pages are shared.

        Args:
            source: A list of the same pool whose tokens up to `length` are what this list is to hold.
            length: How many tokens this list has afterwards. What it has before fills whole pages.
        """
        assert source._pool is self._pool, "lists of two pools cannot share pages"
        assert self.length % self._pool.page_size == 0, (
            "another list's page cannot begin in the middle of one"
        )
        assert self.length <= length <= source.length, (
            f"a list of {source.length} tokens cannot bring one of {self.length} to {length}"
        )
        shared = source.pages[len(self.pages) : self._pool.pages_for(length)]
        self._pool.retain(shared)
        self.pages.extend(shared)
        self.length = length

    def trim(self, length: int) -> None:
        """Forget all tokens from index `length` on."""
        assert 0 <= length <= self.length, f"a list of {self.length} tokens cannot be trimmed to {length}"
        kept = self._pool.pages_for(length)
        self._pool.release(self.pages[kept:])
        del self.pages[kept:]
        self.length = length

    def release(self) -> None:
        """Give everything back; the list is gone afterwards."""
        self.trim(0)
        self._pool.forget(self)

    def extents(self, start: int = 0, stop: int | None = None) -> list[Extent]:
        """The tokens `start … stop` as runs of neighbouring slots."""
        stop = self.length if stop is None else min(stop, self.length)
        size = self._pool.page_size
        runs: list[Extent] = []
        index = start
        while index < stop:
            page = index // size
            end = page + 1
            while end < len(self.pages) and end * size < stop and self.pages[end] == self.pages[end - 1] + 1:
                end += 1
            length = min(stop, end * size) - index
            runs.append(Extent(self.pages[page] * size + index % size, index, length))
            index += length
        return runs

    def _take(self, num_pages: int) -> list[int]:
        pages = self._pool.allocate(num_pages, after=self._group.last_page)
        self._group.last_page = pages[-1]
        return pages

    def _must_copy_last(self) -> bool:
        """Whether the next token would land in a page that somebody else reads."""
        return self.length % self._pool.page_size != 0 and self._pool.references(self.pages[-1]) > 1
