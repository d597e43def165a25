"""Shared prefixes hold what their tokens decide, whatever is inserted, forked, written to, released and evicted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from braid.cache import PageGroup, PageList, PagePool, PrefixPath, PrefixTree
from braid.errors import IntegrityError, PoolFullError, PoolTooSmallError

Symbol = tuple[int, int, int]
Prefix = tuple[bytes, tuple[Symbol, ...]]

PAGE_SIZE = 4
ROOM = b"room"
NAMESPACES = st.sampled_from([ROOM, b"other"])
SYMBOLS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 1)), max_size=24)


def row_major(moves: list[Symbol], after: tuple[Symbol, ...] = ()) -> tuple[Symbol, ...]:
    """Moves (a step further or not, list, token) as symbols that go on after others, at most one a row and list."""
    symbols = list(after)
    for further, number, token in moves:
        step, last, _ = symbols[-1] if symbols else (0, -1, 0)
        symbols.append((step + int(further or number <= last), number, token))
    return tuple(symbols)


def make_path(symbols: tuple[Symbol, ...]) -> PrefixPath:
    return PrefixPath(*np.array(symbols, dtype=np.int64).reshape(-1, 3).T)


def plain(*tokens: int) -> tuple[Symbol, ...]:
    """A prefix of one list, a token a row."""
    return tuple((step, 0, token) for step, token in enumerate(tokens))


class Memory:
    """A pool, and one number a slot in place of keys and values."""

    def __init__(self, num_pages: int) -> None:
        self.slots = np.zeros(num_pages * PAGE_SIZE, dtype=np.int64)
        self.pool = PagePool(num_pages, PAGE_SIZE, self.copy_page)

    def copy_page(self, source: int, target: int) -> None:
        pages = self.slots.reshape(-1, PAGE_SIZE)
        pages[target] = pages[source]

    def read(self, pages: PageList) -> list[int]:
        return self.slots[pages.slots(0, pages.length)].tolist()


def values(name: bytes, symbols: tuple[Symbol, ...]) -> dict[int, list[int]]:
    """What each list must hold: a closed prefix decides its own keys and values, and nothing else does."""
    found: dict[int, list[int]] = {}
    for index, (_, number, _) in enumerate(symbols):
        found.setdefault(number, []).append(hash((name, symbols[: index + 1])))
    return found


class Session:
    """One prefix that grows, and the page lists of its tokens."""

    def __init__(self, memory: Memory, name: bytes, symbols: tuple[Symbol, ...] = ()) -> None:
        self.memory = memory
        self.name = name
        self.symbols: tuple[Symbol, ...] = ()
        self.group = PageGroup()
        self.lists: dict[int, PageList] = {}
        self.grow(symbols)

    def pages_needed(self, symbols: tuple[Symbol, ...]) -> int:
        numbers = [number for _, number, _ in symbols[len(self.symbols) :]]
        return sum(
            self.lists[number].pages_needed(numbers.count(number))
            if number in self.lists
            else self.memory.pool.pages_for(numbers.count(number))
            for number in set(numbers)
        )

    def grow(self, symbols: tuple[Symbol, ...]) -> None:
        """Write the tokens that are new, one by one; asks for all of the room first."""
        self.memory.pool.require(self.pages_needed(symbols))
        for length in range(len(self.symbols) + 1, len(symbols) + 1):
            number = symbols[length - 1][1]
            if number not in self.lists:
                self.lists[number] = self.memory.pool.new_list(self.group)
            self.memory.slots[self.lists[number].append(1)] = hash((self.name, symbols[:length]))
        self.symbols = symbols

    def adopt(self, symbols: tuple[Symbol, ...], lists: dict[int, PageList]) -> None:
        self.release()
        self.symbols, self.lists = symbols, lists

    def release(self) -> None:
        for pages in self.lists.values():
            pages.release()
        self.lists = {}

    def check(self) -> None:
        assert {n: self.memory.read(pages) for n, pages in self.lists.items()} == values(
            self.name, self.symbols
        )


def kept_prefixes(tree: PrefixTree) -> set[Prefix]:
    """Every beginning that the tree has, read off its nodes."""
    found: set[Prefix] = set()
    todo = [(tree._root, b"", ())]
    while todo:
        node, name, symbols = todo.pop()
        for key, child in node.children.items():
            below = name if node.end else key[: -len(child.run.symbol(0))]
            longer = symbols
            for symbol in zip(child.run.steps, child.run.lists, child.run.tokens, strict=True):
                longer = (*longer, tuple(int(part) for part in symbol))
                found.add((below, longer))
            todo.append((child, below, longer))
    return found


class PrefixMachine(RuleBasedStateMachine):
    """Sessions over one small pool and one tree, beside a plain set of every beginning that the tree must have."""

    sessions = Bundle("sessions")

    @initialize(max_pages=st.sampled_from([None, None, 0, 3, 9]))
    def begin(self, max_pages: int | None) -> None:
        self.memory = Memory(28)
        self.tree = PrefixTree(self.memory.pool, max_pages=max_pages)
        self.known: set[Prefix] = set()
        self.live: list[Session] = []
        self.lookups = self.hit_tokens = self.kept = self.evicted = 0

    @rule(target=sessions, name=NAMESPACES, moves=SYMBOLS)
    def open(self, name: bytes, moves: list[Symbol]) -> Session:
        """As an engine opens a session: what the tree has is forked, the rest is written."""
        session = Session(self.memory, name)
        self.live.append(session)
        self._recall(session, row_major(moves))
        return session

    @rule(target=sessions, session=sessions, moves=SYMBOLS)
    def open_where_another_stands(self, session: Session, moves: list[Symbol]) -> Session:
        other = Session(self.memory, session.name)
        self.live.append(other)
        self._recall(other, row_major(moves, session.symbols))
        return other

    @rule(target=sessions, session=sessions)
    def compute_again(self, session: Session) -> Session:
        """The same tokens in pages of its own, as a session that opened at the same time has them."""
        other = Session(self.memory, session.name)
        self.live.append(other)
        self._grow(other, session.symbols)
        return other

    @rule(session=sessions, moves=SYMBOLS)
    def go_on(self, session: Session, moves: list[Symbol]) -> None:
        self._grow(session, row_major(moves, session.symbols))

    @rule(session=sessions, share=st.floats(0, 1))
    def insert(self, session: Session, share: float) -> None:
        symbols = session.symbols[: round(share * len(session.symbols))]
        wanted = {(session.name, symbols[: i + 1]) for i in range(len(symbols))}
        free, pages_before = self.memory.pool.num_free, self.tree.num_pages
        new = self.tree.insert(session.name, make_path(symbols), session.lists)
        kept = kept_prefixes(self.tree)
        assert new == len((kept & wanted) - self.known), "what is there already is not kept twice"
        if self.tree.max_pages is None:
            assert kept == self.known | wanted
            assert self.memory.pool.num_free >= free, "keeping takes no page"
            if not new:
                assert self.tree.num_pages == pages_before
        assert kept <= self.known | wanted
        self.kept += new
        self.evicted += len(self.known) + new - len(kept)
        self.known = kept

    @rule(session=sessions, share=st.floats(0, 1))
    def trim(self, session: Session, share: float) -> None:
        session.symbols = session.symbols[: round(share * len(session.symbols))]
        lengths = make_path(session.symbols).counts()
        for number, pages in list(session.lists.items()):
            pages.trim(lengths.get(number, 0))
            if not pages.length:
                session.lists.pop(number).release()

    @rule(session=consumes(sessions))
    def close(self, session: Session) -> None:
        session.release()
        self.live.remove(session)

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages: int) -> None:
        self._evict(num_pages)

    @rule()
    def clear(self) -> None:
        self.tree.clear()
        self._forget_evicted()
        assert not self.known

    def _recall(self, session: Session, symbols: tuple[Symbol, ...]) -> None:
        match = self.tree.match(session.name, make_path(symbols))
        longest = max(
            (n for n in range(len(symbols) + 1) if (session.name, symbols[:n]) in self.known), default=0
        )
        assert match.length == longest
        free = self.memory.pool.num_free
        session.adopt(symbols[: match.length], match.fork(session.group))
        assert self.memory.pool.num_free == free, "a match takes no page"
        session.check()
        self.lookups += 1
        self.hit_tokens += longest
        self._grow(session, symbols)

    def _grow(self, session: Session, symbols: tuple[Symbol, ...]) -> None:
        """Write; when the pool is full, make the tree give way first, and only then give up."""
        missing = session.pages_needed(symbols) - self.memory.pool.num_free
        if missing > 0:
            self._evict(missing)
        if session.pages_needed(symbols) <= self.memory.pool.num_free:
            session.grow(symbols)
            return
        assert not self.known, "the tree gave up nothing less than everything"
        before = self.memory.pool.num_free
        with pytest.raises((PoolFullError, PoolTooSmallError)):
            session.grow(symbols)
        assert self.memory.pool.num_free == before

    def _evict(self, num_pages: int) -> None:
        free, evictable = self.memory.pool.num_free, self.tree.num_evictable
        freed = self.tree.evict(num_pages)
        assert freed == self.memory.pool.num_free - free
        assert freed >= min(num_pages, evictable), "all that could be freed was"
        self._forget_evicted()
        assert freed >= num_pages or not self.known

    def _forget_evicted(self) -> None:
        kept = kept_prefixes(self.tree)
        assert kept <= self.known
        self.evicted += len(self.known) - len(kept)
        self.known = kept

    @invariant()
    def the_books_balance(self) -> None:
        if not hasattr(self, "tree"):
            return
        self.memory.pool.check_integrity()
        self.tree.check_integrity()
        stats = self.tree.stats
        assert self.tree.num_tokens == len(self.known)
        assert (stats.lookups, stats.hit_tokens) == (self.lookups, self.hit_tokens)
        assert (stats.kept_tokens, stats.evicted_tokens) == (self.kept, self.evicted)

    @invariant()
    def every_slot_holds_what_its_prefix_decides(self) -> None:
        if not hasattr(self, "tree"):
            return
        for session in self.live:
            session.check()
        for node, _ in self.tree._walk():
            if not node.children:
                self._check_leaf(node)

    def _check_leaf(self, leaf) -> None:
        symbols: tuple[Symbol, ...] = ()
        node = leaf
        while node.parent is not None:
            run = zip(node.run.steps.tolist(), node.run.lists.tolist(), node.run.tokens.tolist(), strict=True)
            symbols = (*run, *symbols)
            name, node = node.key[: -len(node.run.symbol(0))], node.parent
        assert {n: self.memory.read(pages) for n, pages in leaf.lists.items()} == values(name, symbols)

    def teardown(self) -> None:
        if not hasattr(self, "tree"):
            return
        for session in self.live:
            session.release()
        assert self.memory.pool.num_used == self.tree.num_pages == self.tree.num_evictable
        self.tree.clear()
        assert self.memory.pool.num_used == 0
        assert not self.memory.pool.lists


TestPrefixMachine = PrefixMachine.TestCase
TestPrefixMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def keep(tree: PrefixTree, memory: Memory, symbols: tuple[Symbol, ...], name: bytes = ROOM) -> None:
    """Insert a prefix whose session is gone."""
    session = Session(memory, name, symbols)
    tree.insert(name, make_path(symbols), session.lists)
    session.release()


def matched(tree: PrefixTree, symbols: tuple[Symbol, ...], name: bytes = ROOM) -> int:
    return tree.match(name, make_path(symbols)).length


def test_namespaces_share_nothing() -> None:
    memory = Memory(4)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, plain(1, 2, 3))
    assert matched(tree, plain(1, 2, 3, 4)) == 3
    assert matched(tree, plain(1, 2, 3), b"another") == 0
    assert (tree.stats.hits, tree.stats.misses, tree.stats.lookup_tokens, tree.stats.hit_tokens) == (
        1,
        1,
        7,
        3,
    )


def test_step_list_and_token_all_count() -> None:
    memory = Memory(4)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, ((0, 0, 7), (0, 1, 7), (1, 0, 7)))
    assert matched(tree, ((0, 0, 7), (0, 1, 7), (2, 0, 7))) == 2
    assert matched(tree, ((0, 0, 7), (0, 2, 7))) == 1
    assert matched(tree, ((0, 0, 7), (0, 1, 8))) == 1


def test_a_path_that_leaves_a_run_is_not_found_again_below_it() -> None:
    memory = Memory(8)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, ((0, 0, 1), (1, 0, 1), (2, 0, 1)))
    keep(tree, memory, ((0, 0, 1), (1, 0, 1), (2, 0, 2)))
    assert matched(tree, ((0, 0, 1), (2, 0, 2))) == 1, "the row between is missing"


def test_inserting_again_is_a_use() -> None:
    memory = Memory(8)
    tree = PrefixTree(memory.pool)
    for token in (1, 2, 1):
        keep(tree, memory, plain(token))
    tree.evict(1)
    assert (matched(tree, plain(1)), matched(tree, plain(2))) == (1, 0)


def test_the_least_recently_used_goes_first() -> None:
    memory = Memory(12)
    tree = PrefixTree(memory.pool)
    first, second, third = plain(1, 1, 1), plain(2, 2, 2), plain(3, 3, 3)
    for symbols in (first, second, third):
        keep(tree, memory, symbols)
    assert matched(tree, first) == 3
    assert tree.evict(1) == 1
    assert [matched(tree, symbols) for symbols in (first, second, third)] == [3, 0, 3]
    assert tree.evict(1) == 1
    assert [matched(tree, symbols) for symbols in (first, third)] == [0, 3], "looked for last, so used last"


def test_what_prefixes_have_in_common_outlives_their_ends() -> None:
    memory = Memory(12)
    tree = PrefixTree(memory.pool)
    common = plain(*range(8))
    keep(tree, memory, (*common, *plain(*range(12), 90)[8:]))
    keep(tree, memory, (*common, *plain(*range(20, 32), 91)[8:]))
    assert tree.num_pages == 6, "two whole pages in common, two each of their own"
    assert tree.evict(1) == 2
    assert matched(tree, plain(*range(12))) == 8
    assert tree.evict(1) == 2
    assert (matched(tree, common), tree.num_pages) == (8, 2)


def test_a_conversation_that_is_kept_turn_by_turn_is_kept_once() -> None:
    memory = Memory(16)
    tree = PrefixTree(memory.pool)
    session = Session(memory, ROOM)
    for length in (3, 6, 13, 14, 30):
        before = tree.num_tokens
        session.grow(plain(*range(length)))
        assert tree.insert(ROOM, make_path(session.symbols), session.lists) == length - before
        assert tree.num_tokens == length
        assert tree.num_pages == memory.pool.num_used == memory.pool.pages_for(length)


def test_pages_that_sessions_use_are_passed_over() -> None:
    memory = Memory(8)
    tree = PrefixTree(memory.pool)
    used, unused = plain(1, 1, 1), plain(2, 2, 2)
    session = Session(memory, ROOM, used)
    tree.insert(ROOM, make_path(used), session.lists)
    keep(tree, memory, unused)
    assert (tree.num_pages, tree.num_evictable) == (2, 1)
    assert tree.evict(1) == 1
    assert (matched(tree, used), matched(tree, unused)) == (3, 0)


def test_a_full_pool_gets_back_the_page_that_a_session_writes_on_in() -> None:
    memory = Memory(1)
    tree = PrefixTree(memory.pool)
    session = Session(memory, ROOM, plain(1, 2, 3))
    tree.insert(ROOM, make_path(session.symbols), session.lists)
    assert session.lists[0].pages_needed(1) == 1, "the shared page would have to be copied"
    assert tree.evict(1) == 0
    assert session.lists[0].pages_needed(1) == 0
    session.grow(plain(1, 2, 3, 4))
    session.check()


def test_a_match_forks_into_the_group_of_its_session() -> None:
    memory = Memory(16)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, ((0, 0, 1), (0, 1, 1)))
    group = PageGroup()
    lists = tree.match(ROOM, make_path(((0, 0, 1), (0, 1, 1)))).fork(group)
    lists[0].append(4)
    lists[1].append(4)
    assert lists[1].pages[0] == lists[0].pages[-1] + 1, "side by side"


def test_a_path_beyond_the_bound_is_kept_as_far_as_it_goes() -> None:
    memory = Memory(16)
    tree = PrefixTree(memory.pool, max_pages=3)
    keep(tree, memory, plain(8, 8, 8, 8))
    keep(tree, memory, plain(*range(20)))
    assert (matched(tree, plain(*range(20))), tree.num_pages, matched(tree, plain(8))) == (12, 3, 0)


def test_a_match_that_was_evicted_cannot_be_forked() -> None:
    memory = Memory(4)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, plain(1, 2, 3))
    match = tree.match(ROOM, make_path(plain(1, 2)))
    tree.clear()
    with pytest.raises(AssertionError, match="evicted"):
        match.fork()
    assert tree.match(ROOM, make_path(plain(1, 2))).fork() == {}


def test_a_negative_bound_says_what_would_work() -> None:
    with pytest.raises(PoolTooSmallError, match="give 0 to keep nothing"):
        PrefixTree(PagePool(4), max_pages=-1)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda tree: tree._held.__setitem__(0, 5), "miscounts"),
        (lambda tree: tree._queue.popitem(last=False), "order of use"),
        (lambda tree: tree._queue.move_to_end(next(reversed(tree._queue)), last=False), "order of use"),
        (lambda tree: setattr(tree, "_num_tokens", 1), "counts"),
        (lambda tree: setattr(tree, "max_pages", 1), "holds 3 pages of 1"),
        (lambda tree: setattr(next(iter(tree._queue)), "end", 99), "where its parent says"),
        (lambda tree: next(iter(tree._queue)).lists.clear(), "owns lists"),
    ],
)
def test_check_integrity_notices(harm, message: str) -> None:
    memory = Memory(8)
    tree = PrefixTree(memory.pool)
    keep(tree, memory, plain(1, 2, 3, 4, 5, 6))
    keep(tree, memory, plain(1, 2, 3, 4, 5, 7))
    tree.check_integrity()
    harm(tree)
    with pytest.raises(IntegrityError, match=message):
        tree.check_integrity()
