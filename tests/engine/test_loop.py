"""The engine by itself: who gets a seat, who has to wait, what is cancelled, what fails, and that nothing is left."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from braid.engine.admission import EngineLimits
from braid.engine.backend import Dropped, Item
from braid.engine.journal import Journal
from braid.errors import (
    EngineBusyError,
    EngineClosedError,
    EngineError,
    InputError,
    QueueFullError,
    SessionClosedError,
    UnknownStreamError,
)
from braid.sessions.session import Session
from braid.sessions.tools import Toolbox, tool
from braid.streams.events import ClosedEvent, ErrorEvent, Event, NoticeEvent, RowEvent, StateEvent
from braid.streams.topology import Topology
from tests.engine.live import (
    Gate,
    House,
    engine_threads,
    eventually,
    heard,
    is_still,
    row_times,
    rows,
    rows_reach,
    say,
    spec,
    take,
    views,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


# ---- seats


async def test_who_finds_the_house_full_and_the_waiting_list_too_is_turned_away_at_once() -> None:
    async with House(limits=EngineLimits(max_sessions=2, max_waiting=0)) as house:
        async with house.open(), house.open():
            with pytest.raises(EngineBusyError, match="2 sessions are open and 0 wait") as caught:
                async with house.open():
                    pass
            assert caught.value.retry_after_s > 0
            with pytest.raises(EngineBusyError, match="max_sessions"):
                house.loop.start(rows())
        async with house.open() as session:
            assert not session.is_closed


async def test_seats_go_to_those_who_wait_first_come_first_served() -> None:
    entered: list[int] = []

    async with House(limits=EngineLimits(max_sessions=1, max_waiting=3)) as house:
        leave = [anyio.Event() for _ in range(4)]

        async def visit(number: int) -> None:
            async with house.open():
                entered.append(number)
                await leave[number].wait()

        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(visit, number)
                await eventually(lambda n=number: bool(entered) and house.loop._admission.num_waiting == n)
            with pytest.raises(EngineBusyError, match="3 wait"):
                await house.loop.admit()
            for number in range(4):
                await eventually(lambda n=number: len(entered) == n + 1)
                leave[number].set()
        assert entered == [0, 1, 2, 3]


async def test_nobody_overtakes_the_waiting_list() -> None:
    """A seat that comes free belongs to the one who waits, even before he has woken up."""
    async with House(limits=EngineLimits(max_sessions=1, max_waiting=1)) as house:
        first, second = house.open(), house.open()
        async with anyio.create_task_group() as tasks, first:
            tasks.start_soon(second.__aenter__)
            await eventually(lambda: house.loop._admission.num_waiting == 1)
            await first.close()
            late = anyio.Event()

            async def come_late() -> None:
                async with house.open():
                    late.set()

            tasks.start_soon(come_late)
            await eventually(lambda: house.loop._admission.num_waiting == 1)
            assert not second.is_closed
            assert not late.is_set()
            await second.close()
            await late.wait()


async def test_who_waits_too_long_is_turned_away_and_takes_no_seat() -> None:
    async with House(limits=EngineLimits(max_sessions=1, admission_timeout_s=0.03)) as house:
        async with house.open():
            with pytest.raises(EngineBusyError, match=r"no session ended within 0\.03 s") as caught:
                async with house.open():
                    pass
            assert caught.value.retry_after_s == 0.03
            assert house.loop._admission.num_waiting == 0
        async with house.open() as session:
            assert session.rows == 0


async def test_who_gives_up_waiting_leaves_the_list() -> None:
    async with House(limits=EngineLimits(max_sessions=1, max_waiting=1)) as house:
        async with house.open() as first:
            with anyio.move_on_after(0.03):
                async with house.open():
                    pytest.fail("there was no seat")
            assert house.loop._admission.num_waiting == 0
            # Promised and cancelled in the same moment: the seat goes on to the next.
            scope = anyio.CancelScope()

            async def wait() -> None:
                with scope:
                    await house.loop.admit()
                    pytest.fail("it was cancelled")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await eventually(lambda: house.loop._admission.num_waiting == 1)
                await first.close()
                scope.cancel()
        async with house.open() as session:
            assert not session.is_closed


async def test_a_seat_that_is_declined_goes_to_the_next() -> None:
    async with House(limits=EngineLimits(max_sessions=1, max_waiting=1)) as house:
        await house.loop.admit()
        async with anyio.create_task_group() as tasks:
            session = house.open()
            tasks.start_soon(session.__aenter__)
            await eventually(lambda: house.loop._admission.num_waiting == 1)
            house.loop.decline()
        assert not session.is_closed
        await session.close()


async def test_an_opening_that_fails_keeps_no_seat() -> None:
    @tool
    def add(a: int, b: int) -> int:
        "Add."
        return a + b

    async with House(limits=EngineLimits(max_sessions=1, max_waiting=0)) as house:
        with pytest.raises(UnknownStreamError):
            async with Session(house.loop, rows(), {"copies": {"nobody": 2}}):
                pass
        with pytest.raises(InputError, match="no tool flow"):
            async with house.open(tools=Toolbox([add])):
                pass
        async with house.open() as session:
            assert not session.is_closed


def test_limits_must_make_sense() -> None:
    for name in ("max_sessions", "max_queued", "max_events"):
        with pytest.raises(InputError, match=name):
            EngineLimits(**{name: 0})
    with pytest.raises(InputError, match="max_waiting"):
        EngineLimits(max_waiting=-1)


# ---- back-pressure


async def test_input_that_nobody_reads_is_refused_at_last_and_taken_again_when_there_is_room() -> None:
    gate = Gate()
    async with House(limits=EngineLimits(max_queued=8), fail=gate) as house, house.open() as session:
        await session.write("user", "a b")
        await gate.reached()  # from now on nothing is read
        written = "a b"
        for letter in "cdef":
            await session.write("user", f" {letter}")
            written += f" {letter}"
        assert session.look().num_queued == 8
        with pytest.raises(QueueFullError, match="max_queued"):
            await session.write("user", " g")
        before = session.look()
        with pytest.raises(QueueFullError):
            await session.write("user", "z")
        assert session.look() == before
        gate.open()
        await eventually(lambda: session.look().num_queued == 0)
        await session.write("user", "z")
        await session.end()
        await eventually(lambda: session.text("user") == written + "z")


async def test_a_session_waits_for_a_slow_listener_and_goes_on_when_half_is_read() -> None:
    """Nothing is lost, the order is kept, and nobody else waits."""
    limits = EngineLimits(max_events=64)
    async with House(limits=limits) as house, house.open() as slow, house.open() as other:
        events = aiter(slow)
        first = await take(events, 1)  # from now on somebody listens, so that nothing goes unheard
        for session in (slow, other):
            await say(session)
        await eventually(lambda: slow._handle.is_paused)  # type: ignore[union-attr]
        assert await is_still(slow)
        assert slow.rows <= 64
        await rows_reach(other, other.rows + 100)
        stood_at = slow.rows
        mailbox = slow._handle.mailbox  # type: ignore[union-attr]
        while mailbox.num_waiting > 33:
            first += await take(events, 1)
        assert await is_still(slow)
        assert slow.rows == stood_at
        first += await take(events, 1)
        await rows_reach(slow, stood_at + 1)
        await slow.close()
        first += [event async for event in events]
        assert row_times(first) == list(range(slow.rows))
        assert isinstance(first[-1], ClosedEvent)
        assert not any(isinstance(event, NoticeEvent) for event in first)
        assert [
            e.cells["output"].token for e in first if isinstance(e, RowEvent) and "output" in e.cells
        ] == [token for _, token in slow.transcript.tokens("output")]


async def test_where_nobody_listens_news_is_bounded_and_the_next_listener_is_told() -> None:
    async def events_of(max_events: int) -> list[Event]:
        async with House(limits=EngineLimits(max_events=max_events)) as house:
            session = house.open()
            session.max_rows = 300
            async with session:
                await say(session)
                await eventually(lambda: session.is_closed)
                assert session._handle.mailbox.num_waiting <= max_events  # type: ignore[union-attr]
                return await heard(session)

    everything = await events_of(100_000)
    rest = await events_of(16)
    assert isinstance(rest[0], NoticeEvent)
    assert rest[0].code == "dropped"
    dropped = int(rest[0].message.split()[0])
    assert len(rest) == 17
    assert dropped + 16 == len(everything)
    assert rest[1:] == everything[-16:]
    assert rest[0].t == everything[-16].t  # type: ignore[union-attr]


async def test_two_listeners_hear_the_same_and_the_slower_one_sets_the_pace() -> None:
    async with House(limits=EngineLimits(max_events=32)) as house, house.open() as session:
        second = session._handle.listen().events()  # type: ignore[union-attr]
        first = aiter(session)
        await say(session)
        mine: list[Event] = []

        async def read_on() -> None:
            mine.extend([event async for event in first])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_on)
            theirs = await take(second, 40)
            await eventually(lambda: session._handle.is_paused)  # type: ignore[union-attr]
            assert await is_still(session)
            theirs += await take(second, 100)
            await session.close()
            theirs += [event async for event in second]
        created = [event for event in mine if isinstance(event, StateEvent) and event.state == "created"]
        assert len(created) == 2  # told when it was opened, before the second one came
        assert mine[2:] == theirs


async def test_two_iterations_share_the_events_of_one_mailbox() -> None:
    shares: list[list[Event]] = [[], []]
    async with House() as house, house.open() as session:

        async def read(share: list[Event]) -> None:
            share.extend([event async for event in session])

        async with anyio.create_task_group() as tasks:
            for share in shares:
                tasks.start_soon(read, share)
            await say(session)
            await rows_reach(session, 200)
            await session.close()
        assert all(shares)
        assert sorted(row_times(shares[0]) + row_times(shares[1])) == list(range(session.rows))


async def test_a_listener_that_is_left_half_way_holds_nobody_up() -> None:
    async with House(limits=EngineLimits(max_events=32)) as house, house.open() as session:
        await say(session)
        async for event in session:
            if isinstance(event, RowEvent) and event.t >= 8:  # the first ones may have gone unheard
                break
        await rows_reach(session, 300)
        again = aiter(session)
        notice = await anext(again)
        assert isinstance(notice, NoticeEvent)
        del again


async def test_a_listener_that_is_dropped_while_the_session_waits_for_it_sets_it_free() -> None:
    async with House(limits=EngineLimits(max_events=32)) as house, house.open() as session:
        await say(session)
        events = aiter(session)
        await anext(events)
        await eventually(lambda: session._handle.is_paused)  # type: ignore[union-attr]
        assert await is_still(session)
        del events
        gc.collect()
        await rows_reach(session, session.rows + 100)


# ---- cancelling

VERBS: dict[str, Any] = {
    "write": lambda session: session.write("user", "more"),
    "end": lambda session: session.end("user"),
    "flush": lambda session: session.flush("user"),
    "interrupt": lambda session: session.interrupt(),
    "cancel": lambda session: session.cancel("output"),
    "force": lambda session: session.force("output", "words"),
    "close_stream": lambda session: session.close_stream("output"),
    "fork": lambda session: session.fork(),
    "evict": lambda session: session.evict(),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_that_is_cancelled_did_nothing(verb: str) -> None:
    gate = Gate()
    async with House(fail=gate) as house, house.open() as session:
        await session.write("user", "hello there")
        await gate.reached()
        before = session.look(), list(session.transcript.entries)
        reached = False
        with anyio.CancelScope() as scope:
            scope.cancel()
            await VERBS[verb](session)
            reached = True
        assert not reached
        assert (session.look(), list(session.transcript.entries)) == before
        assert len(house.loop.core.conversations) == 1
        gate.open()


async def test_closing_works_in_a_cancelled_scope() -> None:
    async with House() as house:
        with anyio.CancelScope() as scope:
            async with house.open() as session:
                await say(session)
                scope.cancel()
                await session.close("because")
        assert session.is_closed
        assert session.transcript.events[-1].reason == "because"


async def test_iteration_that_is_cancelled_again_and_again_loses_nothing() -> None:
    """Whenever there is nothing to hear it is cancelled, and only then the next row is let through."""
    gate = Gate()
    async with House(fail=gate) as house:
        session = house.open()
        session.max_rows = 60
        seen: list[Event] = []
        async with session:
            await say(session)
            events = aiter(session)
            num_cancelled = 0
            while not (seen and isinstance(seen[-1], ClosedEvent)):
                with anyio.move_on_after(0.002) as scope:
                    seen.append(await anext(events))
                if scope.cancelled_caught:
                    num_cancelled += 1
                    gate.let(1)
        assert num_cancelled >= 55
        assert row_times(seen) == list(range(60))
        assert not session._handle.mailbox._bell._waiting  # type: ignore[union-attr]


async def test_waiting_for_a_turn_can_be_cancelled() -> None:
    async with House() as house, house.open() as session:
        await say(session)
        for _ in range(5):
            with anyio.move_on_after(0.005) as scope:
                await session.wait_for_turn()
            assert scope.cancelled_caught
        await session.interrupt()
        await session.wait_for_turn()
        assert session.turn_is_over
        assert not session._handle.changed._waiting  # type: ignore[union-attr]


async def test_cancelling_many_sessions_closes_them_all() -> None:
    async with House() as house:

        async def live() -> None:
            async with house.open() as session:
                await say(session)
                async for _ in session:
                    pass

        with anyio.move_on_after(0.2):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(live)
        await house.is_empty()


async def test_a_fork_that_is_cancelled_during_a_forward_is_made_and_known() -> None:
    gate = Gate()
    limits = EngineLimits(max_sessions=2, max_waiting=0)
    async with House(fail=gate, limits=limits) as house, house.open() as session:
        await session.write("user", "hello there")
        await gate.reached()
        twin: Session | None = None
        async with anyio.create_task_group() as tasks:

            async def fork() -> None:
                nonlocal twin
                twin = await session.fork()

            tasks.start_soon(fork)
            await eventually(lambda: len(house.loop._commands) == 1)
            tasks.cancel_scope.cancel()
            gate.open()
        assert twin is not None
        assert not twin.is_closed
        await twin.close()
        async with house.open():
            pass


# ---- threads and event loops


async def test_verbs_come_from_any_thread_and_any_event_loop() -> None:
    async with House() as house:
        for other in ("asyncio", "trio"):
            async with house.open() as session:

                async def elsewhere(session: Session = session) -> list[Event]:
                    await session.write("user", " there")
                    await session.end("user")
                    events = aiter(session)
                    seen = await take(events, 100)
                    await session.interrupt()
                    await session.wait_for_turn()
                    await session.close("from elsewhere")
                    return seen + [event async for event in events]

                await session.write("user", "hello")
                seen = await anyio.to_thread.run_sync(partial(anyio.run, elsewhere, backend=other))
                assert session.text("user") == "hello there"
                assert row_times(seen) == list(range(session.rows))
                assert seen[-1] == ClosedEvent(t=session.rows, reason="from elsewhere")


async def test_many_threads_write_to_many_sessions() -> None:
    async with House() as house:
        topology = rows({"user": spec("input"), "output": spec(max_tokens=5)})
        seats = [house.loop.start(topology) for _ in range(6)]

        def type_text(seat: Any, name: str) -> None:
            for letter in name * 20:
                house.loop.push(seat.number, "write", "user", letter)
            house.loop.push(seat.number, "end", "user")

        threads = [
            threading.Thread(target=type_text, args=(seat, name))
            for seat, name in zip(seats, "abcdef", strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await anyio.to_thread.run_sync(thread.join)
        await eventually(lambda: all(seat.look().turn_is_over for seat in seats))
        for seat, name in zip(seats, "abcdef", strict=True):
            assert seat.transcript.text("user") == name * 20
            house.loop.abort(seat.number)


async def test_an_event_loop_that_has_ended_is_no_ones_trouble() -> None:
    """A listener on an event loop that ended while it waited is woken in vain."""
    async with House() as house, house.open() as session:

        async def listen_and_leave() -> None:
            with anyio.move_on_after(0.01):
                async for _ in session:
                    pass
            bell = session._handle.changed  # type: ignore[union-attr]
            bell._waiting[anyio.Event()] = anyio.lowlevel.current_token().native_token

        for other in ("asyncio", "trio"):
            await anyio.to_thread.run_sync(lambda other=other: anyio.run(listen_and_leave, backend=other))
            await say(session)
            await rows_reach(session, session.rows + 10)
            await session.interrupt()
            await session.wait_for_turn()


# ---- fork, evict


@pytest.mark.parametrize("topology", [rows(), views()], ids=["rows", "views"])
async def test_a_twin_goes_on_alone(topology: Topology) -> None:
    gate = Gate()
    gate.open()
    async with House(fail=gate) as house, house.open(topology) as session:
        await say(session)
        await rows_reach(session, 40)
        twin = await session.fork()
        common = twin.rows
        assert session.transcript.rows[: common - 1] == twin.transcript.rows[: common - 1]
        async with twin:
            events = aiter(twin)
            assert [e.reason for e in await take(events, 2) if isinstance(e, StateEvent)] == ["forked"] * 2
            await session.close()
            await rows_reach(twin, common + 100)
            await twin.interrupt()
            await twin.wait_for_turn()
            assert twin.transcript.rows[: session.rows] == session.transcript.rows[: twin.rows]
            await say(twin, "and again")
            await rows_reach(twin, twin.rows + 20)
            assert "and again" in twin.text("user")
            assert "and again" not in session.text("user")


async def test_a_twin_of_a_session_that_waits_for_a_result_waits_for_none() -> None:
    topology = rows({"user": spec("input"), "output": spec()})
    async with House(script={"output": ["yes"]}) as house, house.open(topology) as session:
        house.loop.push(session._handle.number, "await_result")  # type: ignore[union-attr]
        await say(session)
        twin = await session.fork()
        async with twin:
            await twin.wait_for_turn()


async def test_forking_needs_a_seat_and_an_open_session() -> None:
    async with House(limits=EngineLimits(max_sessions=2, max_waiting=0)) as house, house.open() as session:
        async with await session.fork():
            with pytest.raises(EngineBusyError):
                await session.fork()
        await session.close()
        with pytest.raises(SessionClosedError):
            await session.fork()
        with pytest.raises(SessionClosedError):
            await session.evict()
        async with house.open(), house.open():  # the seat of the fork that failed is free
            pass


@pytest.mark.parametrize("topology", [rows(), views()], ids=["rows", "views"])
async def test_an_evicted_session_goes_on_as_if_nothing_had_happened(topology: Topology) -> None:
    async def spoken(evicts: bool) -> list[list[int]]:
        async with House() as house, house.open(topology, seed=3) as session:
            for text in ("hello", "once more"):
                await say(session, text)
                start = session.rows
                await rows_reach(session, start + 40)
                for _ in range(5 if evicts else 0):
                    await session.evict()
                    await rows_reach(session, session.rows + 1)
                await session.interrupt()
                await session.wait_for_turn()
                if evicts:
                    await session.evict()
                    assert session.look().is_evicted
                    assert house.backend.pool.num_used == 0
            turns = session.transcript.turns()
            return [
                [row.cells["output"].token for row in turn if "output" in row.cells][:25] for turn in turns
            ]

    assert await spoken(evicts=True) == await spoken(evicts=False)


async def test_a_session_that_idles_gives_its_cache_back() -> None:
    limits = EngineLimits(evict_idle_after_s=0.05)
    async with House(limits=limits) as house, house.open() as session, house.open() as busy:
        await say(busy)
        for turn in range(3):
            await say(session)
            await rows_reach(session, session.rows + 5)
            await session.interrupt()
            await session.wait_for_turn()
            assert session.look().turn == turn + 1
            await eventually(lambda: session.look().is_evicted)
            assert session.kv_tokens == 0
        assert not busy.look().is_evicted

        patient = rows({"user": spec("input"), "output": spec(wait_k="end", max_tokens=4)})
        async with house.open(patient) as session:  # in mid-turn, too: somebody stopped typing
            await session.write("user", "well, I ")
            await eventually(lambda: session.look().is_evicted)
            assert not session.turn_is_over
            await say(session, "mean")
            await session.wait_for_turn()
            assert session.text("user") == "well, I mean"
            assert len(session.transcript.tokens("output")) == 4


# ---- shutting down


async def test_a_shutdown_lets_turns_finish() -> None:
    topology = rows({"user": spec("input"), "output": spec(max_tokens=200)})
    async with House() as house:
        async with house.open(topology) as session:
            await say(session)
            assert await house.engine.aclose() == []
            assert session.is_closed
            assert len(session.transcript.tokens("output")) == 200
            assert session.transcript.events[-1].reason == "shutdown"
            with pytest.raises(SessionClosedError):
                await session.write("user", "more")
        with pytest.raises(EngineClosedError, match="make a new one"):
            async with house.open():
                pass
        with pytest.raises(EngineClosedError):
            house.loop.start(rows())
        assert await house.engine.aclose() == []


async def test_a_shutdown_that_cannot_wait_says_what_it_dropped() -> None:
    gate = Gate()
    async with House(fail=gate) as house, house.open() as reading, house.open() as idle:
        await reading.write("user", "hello and more ")
        await gate.reached()
        gate.open()
        await rows_reach(reading, 20)
        gate.shut()
        await gate.reached()
        await reading.write("user", "unread words")
        gate.open()
        dropped = await house.engine.aclose(timeout_s=0.05)
        assert [(d.session, d.speaking) for d in dropped] == [(0, ("output",))]
        assert isinstance(dropped[0], Dropped)
        assert idle.is_closed
        assert [e async for e in idle][-1].event == "closed"


async def test_what_was_not_read_is_counted() -> None:
    gate = Gate()
    async with House(fail=gate) as house, house.open() as session:
        await session.write("user", "a b")
        await gate.reached()
        await session.write("user", "cdef g")
        async with anyio.create_task_group() as tasks:

            async def shut_down() -> None:
                assert await house.engine.aclose(drain=False) == [Dropped(0, 6, ("output",))]

            tasks.start_soon(shut_down)
            await eventually(lambda: len(house.loop._commands) == 1)
            gate.open()


async def test_who_waits_for_a_seat_is_told_of_the_shutdown() -> None:
    limits = EngineLimits(max_sessions=1)
    async with House(limits=limits) as house, house.open(), anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(EngineClosedError):
                await house.loop.admit()

        tasks.start_soon(wait)
        await eventually(lambda: house.loop._admission.num_waiting == 1)
        await house.engine.aclose(drain=False)


async def test_an_engine_left_by_an_error_does_not_wait() -> None:
    async with House() as house:

        async def break_off() -> None:
            async with house.engine, house.open() as session:
                await say(session)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await break_off()
        await house.is_empty()


# ---- failures


def fails_at(session: int, count: int) -> Any:
    """Fails the item of one session after so many."""
    seen = 0

    def fail(item: Item) -> None:
        nonlocal seen
        seen += item.session == session
        if item.session == session and seen > count:
            raise ZeroDivisionError("the network fell over")

    return fail


async def test_a_forward_that_fails_ends_one_session_and_harms_no_other() -> None:
    async with House(fail=fails_at(0, 30)) as house, house.open() as bad, house.open() as good:
        for session in (bad, good):
            await say(session)
        events = await heard(bad)
        assert [type(event) for event in events[-2:]] == [ErrorEvent, ClosedEvent]
        assert isinstance(bad.error, EngineError)
        assert "ZeroDivisionError: the network fell over" in str(bad.error)
        assert row_times(events) == list(range(bad.rows))
        with pytest.raises(SessionClosedError):
            await bad.write("user", "x")
        before = good.rows
        await rows_reach(good, before + 50)
        assert good.error is None


async def test_a_predicate_that_raises_ends_one_session_and_harms_no_other() -> None:
    topology = rows(
        {
            "user": spec("input"),
            "output": spec(),
            "audit": spec(trigger={"on": "output", "predicate": "wrong"}),
        }
    )

    def wrong(text: str) -> bool:
        if len(text) > 20:
            raise KeyError("no such thing")
        return False

    async with House() as house, house.open() as good:
        async with house.open(topology, predicates={"wrong": wrong}) as bad:
            for session in (bad, good):
                await say(session)
            events = await heard(bad)
            assert isinstance(bad.error, EngineError)
            assert [type(event) for event in events[-2:]] == [ErrorEvent, ClosedEvent]
        await rows_reach(good, good.rows + 50)


async def test_a_step_that_fails_whole_ends_those_in_it_and_the_engine_goes_on() -> None:
    async with House() as house:
        async with house.open() as session:
            await say(session)
            await rows_reach(session, 10)
            compute = house.backend.step

            def broken(items: Any) -> Any:
                house.backend.step = compute  # type: ignore[method-assign]
                raise MemoryError("no more")

            house.backend.step = broken  # type: ignore[method-assign]
            events = await heard(session)
            assert isinstance(events[-2], ErrorEvent)
            assert "MemoryError: no more" in events[-2].message
        async with house.open() as another:
            await say(another)
            await rows_reach(another, 20)


async def test_a_journal_that_cannot_be_written_ends_the_sessions_and_hangs_nobody(tmp_path: Any) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    async with House(journal=journal) as house, house.open() as session:
        await say(session)
        await rows_reach(session, 5)
        with anyio.fail_after(10):
            journal.close()
            assert isinstance((await heard(session))[-1], ClosedEvent)
            assert session.error is not None
            with pytest.raises(SessionClosedError):
                await session.fork()


async def test_a_full_pool_makes_sessions_take_turns() -> None:
    """More than fits at once: all finish, none is failed."""
    topology = rows({"user": spec("input"), "output": spec(max_tokens=60)})
    async with House(kv_tokens=160, page_size=8) as house:

        async def run(text: str) -> None:
            async with house.open(topology) as session:
                await session.tell({"user": text})  # at once, or the answer may be over before the end
                await session.wait_for_turn()
                assert session.error is None
                assert len(session.transcript.tokens("output")) == 60
                await house.loop._between(house.backend.pool.check_integrity)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(run, f"question {number}")


# ---- limits, deadlines


@pytest.mark.parametrize("topology", [rows(), views()], ids=["rows", "views"])
async def test_a_session_closes_by_itself_after_its_last_row_or_turn(topology: Topology) -> None:
    async with House() as house:
        session = house.open(topology)
        session.max_rows = 25
        async with session:
            await say(session)
            events = await heard(session)
            assert session.rows == 25
            assert events[-1] == ClosedEvent(t=25, reason="max_rows")
        session = house.open(topology)
        session.max_turns = 2
        async with session:
            for _ in range(2):
                await say(session)
                await rows_reach(session, session.rows + 10)
                await session.interrupt()
                await session.wait_for_turn()
            assert (await heard(session))[-1].reason == "max_turns"  # type: ignore[union-attr]
        async with house.open(topology) as session:
            await say(session)
            await rows_reach(session, 10)
            await session.interrupt()
            await session.wait_for_turn()
            session.max_turns = 1  # which it has had already
            await eventually(lambda: session.is_closed)


async def test_held_text_is_fed_when_its_stream_s_time_is_over_and_no_other_s() -> None:
    topology = rows(
        {
            "user": spec("input", max_latency_ms=20.0),
            "document": spec("input", max_latency_ms=60.0),
            "patient": spec("input"),
            "output": spec(),
        }
    )
    async with House() as house, house.open(topology) as session:
        began = time.monotonic()
        for stream in ("document", "user", "patient"):
            await session.write(stream, "word")
        await eventually(lambda: len([e for e in session.transcript.events if e.kind == "flush"]) == 2)
        assert time.monotonic() - began >= 0.06
        assert [e.lane for e in session.transcript.events if e.kind == "flush"] == ["user", "document"]
        await eventually(lambda: session.text("document") == "word")
        assert session.text("patient") == ""


# ---- nothing is left


async def test_the_thread_ends_with_the_last_session_and_begins_again_with_the_next() -> None:
    async with House() as house:
        assert not engine_threads()
        for _ in range(3):
            async with house.open() as session:
                assert len(engine_threads()) == 1
                async with house.open():
                    await say(session)
                    await rows_reach(session, 5)
                assert len(engine_threads()) == 1
            await eventually(lambda: not engine_threads())


async def test_a_closed_session_is_forgotten() -> None:
    async with House() as house:
        async with house.open() as session:
            await say(session)
            await rows_reach(session, 5)
            seat = weakref.ref(session._handle)  # type: ignore[arg-type]
            conversation = weakref.ref(session._handle.conversation)  # type: ignore[union-attr]
        del session
        await eventually(lambda: not engine_threads())
        gc.collect()
        assert seat() is None
        assert conversation() is None
        assert not house.loop._seats
        assert not house.loop._touched


async def test_closing_and_leaving_twice_is_harmless() -> None:
    async with House() as house:
        session = house.open()
        async with session:
            await session.write("user", "pending")
            await session.close("first")
            await session.close("second")
        await session.__aexit__(None, None, None)
        house.loop.abort(0)
        house.loop.abort(4711)
        closes = [e.reason for e in session.transcript.events if e.kind == "close"]
        assert closes == ["first"]


async def test_a_forward_waits_a_moment_for_those_who_tell_the_news_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("braid.engine.loop.give_way", waits.append)
    async with House() as house, house.open() as quiet:
        await say(quiet)
        await rows_reach(quiet, 2)
        assert set(waits) == {0}
        handle = house.loop.start(rows())
        handle.mailbox.on_news = lambda: None
        house.loop.push(handle.number, "tell", {"user": "hello"}, ["user"])
        await eventually(lambda: 1 in waits)
        house.loop.abort(handle.number)
