"""Every verb in every state of a session: what must happen is one table, and what fails changes nothing.

The table is written out, so that it can be read; a cell is a test. What is passed wrongly, and what the engine says
without a verb, have tables of their own below it. The last test prints how much of it all there is, and compares the
errors that were met with those that the engine's code raises.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

import braid.engine
from braid import errors
from braid.cache import PageList
from braid.checks.subject import RecordingCore
from braid.engine.admission import EngineLimits
from braid.engine.backend import Draw, Item
from braid.engine.core import EngineCore
from braid.engine.loop import EngineLoop
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.engine.session.lanes import OutputLane
from braid.errors import (
    BraidError,
    CacheError,
    ContextOverflowError,
    DirectionError,
    EditAfterConsumed,
    EmptyInputError,
    EngineBusyError,
    EngineClosedError,
    EngineError,
    InputError,
    NothingToForceError,
    PoolFullError,
    PoolTooSmallError,
    QueueFullError,
    RegimeError,
    SamplingError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
    UnknownStreamError,
)
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import StreamSpec, Topology, Trigger
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec, stock
from tests.engine.witness import check_books, drive, state_of

LETTER, END = 97, 257
Decoding = Literal["rows", "views"]


@dataclass
class Voice:
    """What every output says next."""

    token: int = LETTER
    fails: list[int] = field(default_factory=list[int])
    """Sessions whose forward fails."""

    def speak(self, draw: Draw) -> int:
        return LETTER if self.token in draw.banned else self.token

    def fail(self, item: Item) -> None:
        if item.session in self.fails:
            raise RuntimeError("the network fell over")


class Place:
    """An engine with one session in it, and what a state needs to come about."""

    def __init__(self, decoding: Decoding, **settings: Any) -> None:
        self.voice = Voice()
        self.backend = NullBackend(
            NullModel(codec(), silence_token_id=SILENCE, max_positions=400),
            speak=self.voice.speak,
            fail=self.voice.fail,
            kv_tokens=settings.pop("kv_tokens", 600),
            page_size=1,
        )
        policy = SchedulerPolicy(step_tokens=12, chunk_tokens=12, min_chunk_tokens=4)
        self.core = EngineCore(self.backend, policy=policy)
        self.topology = Topology(
            decoding=decoding,
            streams={
                "user": StreamSpec(direction="input", feed="burst"),
                "note": StreamSpec(direction="input"),
                "aside": StreamSpec(direction="output", wait_k="end", max_tokens=60),
                "output": StreamSpec(
                    direction="output", wait_k="end", max_tokens=settings.pop("max_tokens", 60)
                ),
            },
        )
        self.session = self.core.open(self.topology, forces_answers=False, **settings)
        self.foreign: list[PageList] = []

    @property
    def phase(self) -> str:
        return self.session.stage.output("output").phase

    def until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(200):
            if is_so():
                return
            self.core.step([self.session])
        raise AssertionError("the state never came about")

    def speaking(self) -> None:
        self.core.do(self.session, "write", "user", "hello ")
        self.core.do(self.session, "end")
        self.until(lambda: self.phase == "speaking")
        self.until(lambda: self.session.stage.output("output").index > 2)


def fresh(decoding: Decoding) -> Place:
    return Place(decoding)


def being_read(decoding: Decoding) -> Place:
    place = Place(decoding)
    place.core.do(place.session, "write", "user", "hello there, a long text is read in pieces ")
    lane = place.session.stage.input("user")
    place.until(lambda: lane.num_read > 0)
    assert lane.queue
    return place


def waiting(decoding: Decoding) -> Place:
    place = Place(decoding)
    place.core.do(place.session, "write", "user", "hello ")
    drive(place.core, place.session)
    assert place.phase == "waiting" and not place.session.num_queued
    return place


def speaking(decoding: Decoding) -> Place:
    place = Place(decoding)
    place.speaking()
    return place


def silent(decoding: Decoding) -> Place:
    place = Place(decoding)
    place.voice.token = SILENCE
    place.core.do(place.session, "write", "user", "hello ")
    place.core.do(place.session, "end")
    place.until(lambda: place.phase == "silent")
    drive(place.core, place.session)
    assert not place.session.turn_is_over
    return place


def asleep(decoding: Decoding) -> Place:
    place = Place(decoding, max_tokens=1)
    place.core.do(place.session, "write", "user", "hello ")
    place.core.do(place.session, "end")
    place.until(lambda: place.phase == "asleep")
    assert not place.session.turn_is_over
    return place


def over(decoding: Decoding) -> Place:
    place = asleep(decoding)
    drive(place.core, place.session)
    assert place.session.turn_is_over and place.session.turn == 1
    return place


def stream_closed(decoding: Decoding) -> Place:
    place = speaking(decoding)
    place.core.do(place.session, "close_stream", "user")
    place.core.do(place.session, "close_stream", "output")
    return place


def crowded(decoding: Decoding) -> Place:
    place = Place(decoding, max_queued=4)
    place.core.do(place.session, "write", "user", "hello ")
    return place


def evicted(decoding: Decoding) -> Place:
    place = speaking(decoding)
    place.core.evict(place.session)
    return place


def refilling(decoding: Decoding) -> Place:
    """Evicted, and on the way back: the first piece is there, the second is not."""
    place = Place(decoding)
    place.core.do(place.session, "write", "user", "a long text " * 12)
    place.core.do(place.session, "end")
    place.until(lambda: place.phase == "speaking")
    place.core.evict(place.session)
    place.core.step([place.session])
    assert place.session.is_evicted and place.session.kv_tokens
    return place


def full(decoding: Decoding) -> Place:
    place = speaking(decoding)
    place.foreign.append(place.backend.pool.new_list())
    place.foreign[0].grow(place.backend.pool.num_free)
    report = place.core.step([place.session])
    assert [type(error) for _, error in report.failures] == [PoolFullError]
    return place


def closed(decoding: Decoding) -> Place:
    place = speaking(decoding)
    place.core.do(place.session, "close")
    return place


def drafted(decoding: Decoding) -> Place:
    place = Place(decoding)
    place.core.do(place.session, "snapshot", {"user": "hello there"})
    place.until(lambda: place.session.stage.output("output").index > 2)
    return place


def committed(decoding: Decoding) -> Place:
    place = drafted(decoding)
    place.core.do(place.session, "commit")
    place.until(lambda: place.session.edit is None)
    assert not place.session.turn_is_over
    return place


STATES = {
    state.__name__: state
    for state in (
        fresh, being_read, waiting, speaking, silent, asleep, over,
        stream_closed, crowded, evicted, refilling, full, closed, drafted, committed,
    )
}  # fmt: skip

# ---- what must happen

SC, ST = SessionClosedError, StreamClosedError
EI, NF, QF = EmptyInputError, NothingToForceError, QueueFullError
RE, EC = RegimeError, EditAfterConsumed
ok = None

# fmt: off
TABLE: dict[tuple[str, ...], tuple[type[BraidError] | None, ...]] = {
    # columns: the states, in their order
    ("write", "user", "more "): (ok, ok, ok, ok, ok, ok, ok, ST, QF, ok, ok, ok, SC, RE, ok),
    ("tell", "user", "more "):  (ok, ok, ok, ok, ok, ok, ok, ST, QF, ok, ok, ok, SC, RE, ok),
    ("end",):                   (EI, ok, ok, ok, ok, ok, ok, EI, ok, ok, ok, ok, SC, RE, ok),
    ("end", "user"):            (EI, ok, ok, ok, ok, ok, ok, ST, ok, ok, ok, ok, SC, RE, ok),
    ("flush", "user"):          (ok, ok, ok, ok, ok, ok, ok, ST, ok, ok, ok, ok, SC, RE, ok),
    ("interrupt",):             (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, ok),
    ("interrupt", "output"):    (ok, ok, ok, ok, ok, ok, ok, ST, ok, ok, ok, ok, SC, ok, ok),
    ("cancel",):                (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, ok),
    ("cancel", "output"):       (ok, ok, ok, ok, ok, ok, ok, ST, ok, ok, ok, ok, SC, ok, ok),
    ("force", "output"):        (NF, ok, ok, ok, ok, NF, NF, ST, ok, ok, ok, ok, SC, RE, ok),
    ("force", "output", "so "): (NF, ok, ok, ok, ok, NF, NF, ST, ok, ok, ok, ok, SC, RE, ok),
    ("await_result",):          (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, ok),
    ("result_came",):           (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok),
    ("close_stream", "user"):   (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, ok),
    ("close_stream", "output"): (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, ok),
    ("close",):                 (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok),
    ("fork",):                  (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, RE, ok),
    ("evict",):                 (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok),
    ("snapshot", "user", "so"): (ok, RE, RE, RE, RE, RE, ok, ST, RE, RE, RE, RE, SC, ok, EC),
    ("commit",):                (EI, RE, RE, RE, RE, RE, EI, RE, RE, RE, RE, RE, SC, ok, EC),
    ("commit", "user", "so"):   (ok, RE, RE, RE, RE, RE, ok, ST, RE, RE, RE, RE, SC, ok, EC),
    ("rollback",):              (ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, ok, SC, ok, EC),
    ("suggest", "output", "so"):(ok, ok, ok, ok, ok, ok, ok, ST, ok, ok, ok, ok, SC, ok, ok),
}
# fmt: on

HALF = "half \ud800"
WRONG: dict[tuple[str, ...], type[BraidError]] = {
    ("write", "nobody", "x"): UnknownStreamError,
    ("write", "output", "x"): DirectionError,
    ("write", "note", HALF): InputError,
    ("tell", "nobody", "x"): UnknownStreamError,
    ("tell", "output", "x"): DirectionError,
    ("tell", "note", HALF): InputError,
    ("end", "nobody"): UnknownStreamError,
    ("end", "aside"): DirectionError,
    ("flush", "nobody"): UnknownStreamError,
    ("flush", "aside"): DirectionError,
    ("interrupt", "nobody"): UnknownStreamError,
    ("interrupt", "note"): DirectionError,
    ("cancel", "nobody"): UnknownStreamError,
    ("cancel", "note"): DirectionError,
    ("force", "nobody"): UnknownStreamError,
    ("force", "note", "x"): DirectionError,
    ("force", "aside", HALF): InputError,
    ("close_stream", "nobody"): UnknownStreamError,
    ("snapshot", "nobody", "x"): UnknownStreamError,
    ("snapshot", "output", "x"): DirectionError,
    ("snapshot", "note", HALF): InputError,
    ("commit", "nobody", "x"): UnknownStreamError,
    ("commit", "output", "x"): DirectionError,
    ("commit", "note", HALF): InputError,
    ("suggest", "nobody", "x"): UnknownStreamError,
    ("suggest", "note", "x"): DirectionError,
    ("suggest", "aside", HALF): InputError,
}
"""What no state but `closed` makes right, and the error that says so; `closed` says that it is closed."""


def cells() -> list[Any]:
    return [
        pytest.param(verb, state, decoding, id=f"{'-'.join(verb).strip()}-{state}-{decoding}")
        for verb, row in TABLE.items()
        for state, _ in zip(STATES, row, strict=True)
        for decoding in ("rows", "views")
    ]


def expected(verb: tuple[str, ...], state: str) -> type[BraidError] | None:
    return TABLE[verb][list(STATES).index(state)]


def apply(place: Place, verb: tuple[str, ...]) -> BraidError | None:
    """Do it; on an error everything must be as it was."""
    before = state_of(place.core, place.session)
    name, *arguments = verb
    try:
        if name == "fork":
            twin = place.core.fork(place.session)
            assert twin.transcript == place.session.transcript
            assert twin.kv_tokens == (0 if place.session.is_evicted else place.session.kv_tokens)
        elif name == "evict":
            place.core.evict(place.session)
        elif name in ("tell", "snapshot", "commit") and arguments:
            place.core.do(place.session, name, {arguments[0]: arguments[1]})
        else:
            place.core.do(place.session, name, *arguments)
    except BraidError as error:
        assert state_of(place.core, place.session) == before
        return error
    check_books(place.core)
    return None


def goes_on(place: Place) -> None:
    """Whatever was done, the session and its forks come to rest, and nothing of them is left when they close."""
    while place.foreign:
        place.foreign.pop().release()
    place.voice.token = END
    for conversation in list(place.core.conversations.values()):
        drive(place.core, conversation)
    place.core.close()
    place.backend.pool.check_integrity()
    assert place.backend.pool.num_used == 0 and not place.backend.pool.lists


def speaker(conversation: Conversation) -> OutputLane:
    return next(lane for lane in conversation.stage.outputs if lane.label == "output")


EFFECTS: dict[str, Callable[[Conversation], bool]] = {
    "write": lambda c: c.stage.input("user").text.endswith("more "),
    "tell": lambda c: c.stage.input("user").text.endswith("more ") and c.stage.input("user").has_ended,
    "end": lambda c: all(lane.has_ended for lane in c.stage.inputs if lane.text),
    "flush": lambda c: c.turn_is_over or not c.stage.input("user").tokenizer.held,
    "interrupt": lambda c: c.is_drafting or not speaker(c).is_awake or speaker(c).pending == (END, True),
    "cancel": lambda c: c.is_drafting or speaker(c).phase in ("asleep", "closed"),
    "force": lambda c: speaker(c).force_start or speaker(c).must_speak or speaker(c).phase == "speaking",
    "await_result": lambda c: c.num_awaited == 1,
    "result_came": lambda c: c.num_awaited == 0,
    "close_stream": lambda c: {event.lane for event in c.transcript.events if event.kind == "close"} != set(),
    "close": lambda c: c.is_closed and c.kv_tokens == 0,
    "fork": lambda c: not c.is_closed,
    "evict": lambda c: c.kv_tokens == 0,
    "snapshot": lambda c: c.edit is not None and c.edit.texts["user"] == "so",
    "commit": lambda c: not c.turn_is_over and not c.is_drafting,
    "rollback": lambda c: c.edit is None,
    "suggest": lambda c: not c.is_closed,
}


@pytest.mark.parametrize(("verb", "state", "decoding"), cells())
def test_a_verb_in_a_state(verb: tuple[str, ...], state: str, decoding: Decoding) -> None:
    place = STATES[state](decoding)
    wanted = expected(verb, state)
    error = apply(place, verb)
    assert type(error) is (type(None) if wanted is None else wanted)
    if error is None:
        assert EFFECTS[verb[0]](place.session)
    goes_on(place)


@pytest.mark.parametrize("decoding", ["rows", "views"])
@pytest.mark.parametrize("state", STATES)
def test_what_is_passed_wrongly_is_said_in_every_state(state: str, decoding: Decoding) -> None:
    place = STATES[state](decoding)
    for verb, wanted in WRONG.items():
        error = apply(place, verb)
        assert type(error) is (SessionClosedError if state == "closed" else wanted), verb
    goes_on(place)


def test_a_state_is_what_its_name_says() -> None:
    """Control: the states differ in what the table says of them, so that a wrong table fails."""
    rows = {tuple(row) for row in zip(*TABLE.values(), strict=True)}
    assert len(rows) >= 6


@pytest.mark.parametrize("decoding", ["rows", "views"])
def test_what_a_closed_stream_held_back_begins_no_turn(decoding: Decoding) -> None:
    """A turn in which something was written and closed again is over, and was none worth remembering."""
    place = Place(decoding)
    place.core.do(place.session, "write", "user", "hello wor")
    place.core.do(place.session, "close_stream", "user")
    drive(place.core, place.session)
    assert place.session.turn_is_over
    for _ in range(2):
        assert type(apply(place, ("end",))) is EmptyInputError
    if place.session.stage.preamble is not None:
        assert place.session.stage.preamble.history == []
    goes_on(place)


def test_a_burst_and_the_row_behind_it_are_promised_together() -> None:
    """One token more of each would fit into the page that is there; both together need another page."""
    backend = NullBackend(NullModel(codec(), silence_token_id=SILENCE), kv_tokens=8, page_size=4)
    core = EngineCore(backend)
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input", feed="burst"),
            "output": StreamSpec(direction="output", wait_k="end"),
        }
    )
    first, second = core.open(topology), core.open(topology)

    def write(conversation: Conversation, text: str) -> None:
        core.do(conversation, "write", "user", text)
        core.do(conversation, "flush", "user")

    write(first, "abc")
    drive(core, first)
    write(first, "de")
    write(second, "f")
    report = core.step([first, second])
    assert len(report.deferred) == 1 and not report.failures
    assert not first.is_closed and not second.is_closed


# ---- what the engine says without a verb


def stepping(wanted: type[BraidError], place: Place) -> BraidError:
    before = state_of(place.core, place.session)
    report = place.core.step([place.session])
    ((conversation, error),) = report.failures
    assert conversation is place.session and type(error) is wanted
    assert state_of(place.core, place.session) == before, "nothing has changed, and the same step works later"
    return error  # pyright: ignore[reportReturnType]


def a_full_pool() -> BraidError:
    return stepping(PoolFullError, full("rows"))


def a_pool_too_small() -> BraidError:
    place = Place("rows", kv_tokens=8)
    place.core.do(place.session, "write", "user", "more than so many tokens ")
    return stepping(PoolTooSmallError, place)


def a_context_too_short() -> BraidError:
    place = Place("rows")
    place.core.do(place.session, "write", "user", "x " * 300)
    return stepping(ContextOverflowError, place)


def a_failed_forward() -> BraidError:
    place = speaking("rows")
    other = place.core.open(place.topology)
    place.voice.fails = [place.session.number]
    report = place.core.step([place.session, other])
    assert [c for c, _ in report.failures] == [place.session]
    assert place.session.is_closed and not other.is_closed
    news = [event for event in place.session.take_events() if event.event == "error"]
    assert [event.code for event in news] == ["engine"]  # pyright: ignore[reportAttributeAccessIssue]
    return EngineError("the engine's own word for it")


def a_predicate_that_is_not_there() -> BraidError:
    place = Place("rows")
    asks = StreamSpec(direction="output", trigger=Trigger(on="user", predicate="is_odd"))
    topology = Topology(streams={"user": StreamSpec(direction="input"), "output": asks})
    with pytest.raises(InputError) as caught:
        place.core.open(topology)
    return caught.value


def a_token_that_does_not_exist() -> BraidError:
    topology = Topology(
        streams={
            "user": StreamSpec(direction="input"),
            "output": StreamSpec(direction="output", sampling=SamplingSpec(logit_bias={100_000: 1.0})),
        }
    )
    core = RecordingCore(stock(), kv_tokens=200)
    session = core.open(topology)
    core.do(session, "write", "user", "hello ")
    core.do(session, "end")
    while not session.is_closed:
        report = core.step([session])
    assert core.cache.pool.num_used == 0
    ((_, error),) = report.failures
    assert isinstance(error, BraidError)
    return error


def a_busy_engine() -> BraidError:
    return anyio.run(_too_many)


async def _too_many() -> BraidError:
    loop = EngineLoop(Place("rows").backend, limits=EngineLimits(max_sessions=1))
    loop.start(Place("rows").topology)
    with pytest.raises(EngineBusyError) as caught:
        loop.start(Place("rows").topology)
    await loop.aclose(drain=False)
    return caught.value


def a_closed_engine() -> BraidError:
    return anyio.run(_too_late)


async def _too_late() -> BraidError:
    loop = EngineLoop(Place("rows").backend)
    await loop.aclose(drain=False)
    with pytest.raises(EngineClosedError) as caught:
        loop.start(Place("rows").topology)
    return caught.value


OTHERS: dict[Callable[[], BraidError], type[BraidError]] = {
    a_full_pool: PoolFullError,
    a_pool_too_small: PoolTooSmallError,
    a_context_too_short: ContextOverflowError,
    a_failed_forward: EngineError,
    a_predicate_that_is_not_there: InputError,
    a_token_that_does_not_exist: SamplingError,
    a_busy_engine: EngineBusyError,
    a_closed_engine: EngineClosedError,
}


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.__name__)
def test_what_the_engine_says_without_a_verb(case: Callable[[], BraidError]) -> None:
    assert type(case()) is OTHERS[case]


# ---- how much of it there is


def raised_by_the_engine() -> set[type[BraidError]]:
    """The errors that stand behind a `raise` in the engine's code and in the page books, of the four branches."""
    engine = Path(str(braid.engine.__file__)).parent
    files = [*engine.rglob("*.py"), engine.parent / "cache" / "pages.py"]
    names = {
        node.exc.func.id
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }
    found = {getattr(errors, name) for name in names if hasattr(errors, name)}
    return {kind for kind in found if issubclass(kind, (InputError, SessionError, CacheError, EngineError))}


def test_the_table_reaches_every_error_that_the_engine_raises(capsys: pytest.CaptureFixture[str]) -> None:
    reached: dict[type[BraidError], int] = {}

    def note(error: BraidError | None) -> None:
        if error is not None:
            reached[type(error)] = reached.get(type(error), 0) + 1

    for decoding in ("rows", "views"):
        for build in STATES.values():
            for verb in TABLE:
                note(apply(build(decoding), verb))
            place = build(decoding)
            for verb in WRONG:
                note(apply(place, verb))
    for case in OTHERS:
        note(case())
    verbs = {verb[0] for verb in TABLE}
    num_cells = 2 * len(STATES) * (len(TABLE) + len(WRONG))
    with capsys.disabled():
        print(f"\n{len(verbs)} verbs × {len(STATES)} states × rows and views: {num_cells} cells")
        print(f"{len(reached)} error classes: " + ", ".join(f"{k.__name__} {n}" for k, n in sorted(
            reached.items(), key=lambda pair: -pair[1])))  # fmt: skip
    # The books contradict themselves only by a mistake of ours; tests/cache makes one.
    wanted = raised_by_the_engine() - {errors.IntegrityError}
    # These come from below: the tables of lanes and streams, and what a failed forward is called.
    wanted |= {UnknownStreamError, EngineError, InputError}
    assert set(reached) - {ContextOverflowError} == wanted


def test_the_table_has_every_verb() -> None:
    """Control: a verb that is added to conversations is missed here."""
    asking = {
        "demand",
        "prepare",
        "advance",
        "take_news",
        "take_events",
        "keep_prefixes",
        "first_tokens",
        "num_queued_of",
        "fail",
        "go_on",
        "become",
        "coming",
        "double",
        "follow",
        "forget",
        "forget_stashed",
        "quiet_at",
        "released",
        "rest_draft",
        "stash",
        "step_ahead",
        "take_over",
    }
    public = {
        name for name, value in vars(Conversation).items() if callable(value) and not name.startswith("_")
    }
    assert public - asking == {verb[0] for verb in TABLE}
