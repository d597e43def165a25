"""Random lives of many sessions on one live engine, for as long as one likes; and a witness who checks them all.

    clients, at capacity ── random verbs ──▶ Engine over a null backend ──▶ the journal's file
    listeners ◀── events: all, slowly, the first few, none                       │ afterwards
       └── every event against the transcript        digests of transcripts ══ replayed ones

What clients and voices do is decided by a seed; when it happens is up to the clock, as in life. What the engine made of
it is in the journal, and has to come out the same when it is replayed.
"""

from __future__ import annotations

import gc
import hashlib
import json
import random
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from braid.engine.admission import EngineLimits
from braid.engine.backend import Draw, Item
from braid.engine.core import EngineCore
from braid.engine.journal import Journal, replay
from braid.engine.loop import EngineLoop
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.session.conversation import Conversation
from braid.errors import (
    BraidError,
    EmptyInputError,
    EngineBusyError,
    EngineError,
    NothingToForceError,
    PoolFullError,
    QueueFullError,
    SessionClosedError,
    StreamClosedError,
)
from braid.model.codec import TokenizerCodec
from braid.sessions.session import Engine, Session
from braid.sessions.tools import Toolbox, tool
from braid.streams.events import ClosedEvent, DeltaEvent, ErrorEvent, Event, NoticeEvent, RowEvent, TurnEvent
from braid.streams.stream_spec import AdaptiveWait, Trigger
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec
from tests.engine.live import engine_threads, eventually, spec
from tests.engine.witness import check_books

HARMLESS = (
    SessionClosedError,
    EmptyInputError,
    EngineBusyError,
    NothingToForceError,
    QueueFullError,
    StreamClosedError,
)
"""What a client that does anything at any time has to be told now and then."""

POLICY = SchedulerPolicy(step_tokens=96, chunk_tokens=48, min_chunk_tokens=8)
LIMITS = EngineLimits(
    max_sessions=20,
    max_waiting=6,
    admission_timeout_s=0.3,
    max_queued=200,
    max_events=48,
    evict_idle_after_s=0.02,
)
NUM_CLIENTS = 30

_user = spec("input", priority="high")
_patient = spec("input", max_latency_ms=20.0)
_thought = spec(visibility="internal", max_streams=2, max_tokens=40)
_output = spec(max_tokens=60)

TOPOLOGIES = {
    "rows": Topology(streams={"user": _user, "thought": _thought, "output": _output}),
    "burst": Topology(
        streams={"user": spec("input", feed="burst"), "document": spec("input"), "output": _output}
    ),
    "late": Topology(streams={"user": _patient, "output": spec(wait_k=AdaptiveWait(max=6), max_tokens=30)}),
    "audit": Topology(
        streams={
            "user": _user,
            "output": spec(max_tokens=50, chunk_size=4),
            "audit": spec(trigger=Trigger(on="output", pattern="[ab]"), priority="low", max_tokens=20),
        }
    ),
    "kept": Topology(silence="kept", streams={"user": _user, "output": _output, "note": spec(max_tokens=9)}),
    "views": Topology(
        decoding="views",
        system="Be brief.",
        streams={
            "user": spec("input", max_latency_ms=30.0),
            "thought": spec(visibility="internal", wait_k=4, max_tokens=30, instructions="Think."),
            "output": spec(wait_k="end", max_tokens=40, streaming=False),
        },
    ),
    "agent": Topology(
        streams={
            "user": _user,
            "tool_result": spec("input", feed="burst"),
            "tool_call": spec(visibility="internal", max_streams=2, max_tokens=120),
            "output": spec(max_tokens=200),
        },
        reads={"user": [], "tool_result": ["user"], "tool_call": ["user"]},
    ),
    "view-agent": Topology(
        decoding="views",
        streams={
            "user": spec("input"),
            "tool_result": spec("input"),
            "tool_call": spec(visibility="internal", wait_k=1, max_tokens=120),
            "output": spec(wait_k="end", max_tokens=40),
        },
    ),
}
COPIES = {"rows": {"thought": 2}, "agent": {"tool_call": 2}}
WORDS = [
    "yes ",
    "and then, ",
    "naïve ",
    "a longer piece of text, as one pastes it now and then; ",
    "x",
    "\n",
    "🙂 ",
]


VERBS = {
    "write": 12,
    "end": 6,
    "sleep": 4,
    "wait": 3,
    "flush": 1,
    "interrupt": 2,
    "cancel": 1,
    "force": 1,
    "evict": 2,
    "fork": 1,
    "close_stream": 0.2,
}
"""What a client does, and how often."""


def chance(*parts: object) -> float:
    """A number in [0, 1) that these decide."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


class Voices:
    """What lanes say, and which forwards fail: functions of what is asked alone, so that a replay hears the same."""

    def __init__(self, seed: int, failures: float) -> None:
        self._seed = seed
        self._failures = failures

    def speak(self, draw: Draw) -> int:
        if draw.lane.startswith("tool_call"):
            said = call_of(int(chance("call", draw.seed, draw.lane, draw.turn) * 6))
            return said[draw.index] if draw.index < len(said) else codec().end_ids[0]
        luck = chance(draw.seed, draw.lane, draw.turn, draw.index, self._seed)
        if luck < 0.2 and SILENCE not in draw.banned:
            return SILENCE
        if luck > 0.97:
            return codec().end_ids[0]
        return 97 + int(luck * 1000) % 26

    def fail(self, item: Item) -> None:
        last = item.entries[-1]
        if (
            chance("fail", self._seed, item.session, item.kind, last.span, list(last.times)[-1])
            < self._failures
        ):
            raise RuntimeError("the network fell over")


@cache
def call_of(number: int) -> list[int]:
    """The text of a call, good or bad, as tokens."""
    texts = [
        '{"name": "quick", "arguments": {"text": "a"}}',
        '{"name": "slow", "arguments": {"text": "b"}} {"name": "quick", "arguments": {"text": "c"}}',
        '{"name": "wrong", "arguments": {}}',
        '{"name": "nobody", "arguments": {}}',
        '{"name": "quick", "argum',
        "nothing to do",
    ]
    return codec().encode(texts[number])[0]


def toolbox() -> Toolbox:
    @tool
    async def quick(text: str) -> str:
        """Be quick."""
        return text

    @tool
    async def slow(text: str) -> str:
        """Be slow."""
        await anyio.sleep(0.03)
        return text

    @tool
    async def wrong() -> str:
        """Fail."""
        raise RuntimeError("it cannot be done")

    return Toolbox([quick, slow, wrong], timeout_s=0.02, max_running=4)


def null_backend(seed: int, failures: float) -> NullBackend:
    voices = Voices(seed, failures)
    model = NullModel(codec(), silence_token_id=SILENCE)
    return NullBackend(model, speak=voices.speak, fail=voices.fail, kv_tokens=1500, page_size=8)


class Digests:
    """Digests by session, in a file.

    Args:
        path: The file; there is none yet.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+", encoding="ascii")
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, session: int, digest: str) -> None:
        self._file.write(f"{session} {digest}\n")
        self._num += 1

    def all(self) -> dict[int, str]:
        """Read them back, and end."""
        self._file.seek(0)
        with self._file:
            pairs = (line.split() for line in self._file)
            return {int(session): digest for session, digest in pairs}


@dataclass
class Report:
    """What a soak came to.

    Args:
        digests: Of the transcripts, by session; on disk, or this list alone would make the memory grow.
        sessions, rows, steps: How many there were.
        counts: What clients did, and what they were told.
        memory: Resident bytes, sampled at regular times.
        seconds: How long it took, the replay apart.
    """

    digests: Digests
    sessions: int = 0
    rows: int = 0
    steps: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    memory: list[int] = field(default_factory=list[int])
    seconds: float = 0.0

    @property
    def growth(self) -> int:
        """Bytes by which the last third of the samples lies above the second third, by their medians."""
        third = len(self.memory) // 3
        second, last = sorted(self.memory[third : 2 * third]), sorted(self.memory[-third:])
        return last[len(last) // 2] - second[len(second) // 2]

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.seconds:.0f} s: {self.sessions} sessions, {self.rows} rows, {self.steps} steps, memory "
            f"{self.memory[-1] / 2**20:.0f} MiB, grown by {self.growth / 2**20:+.2f} MiB; {counts}"
        )


def digest(transcript: Transcript) -> str:
    found = hashlib.blake2b(digest_size=16)
    for line in transcript.lines_of_file():
        found.update(line)
    return found.hexdigest()


def without_caches(tokenizer: TokenizerCodec) -> None:
    """Take away the tokenizer's own cache of 10,000 words, whose filling looks like a slow leak of some 20 MB."""
    for backend in (tokenizer._trusted, tokenizer._plain):
        backend.model._resize_cache(0)
        backend.model._clear_cache()


def resident() -> int:
    """Bytes of this process in memory."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:  # no Linux: the peak so far, which is flat in the end if nothing leaks
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Soak:
    """One soak.

    Args:
        seconds: For how long sessions are opened.
        seed: Of what clients and voices do.
        journal: A file for the journal.
        failures: How often a forward fails, of all items.
    """

    def __init__(self, seconds: float, seed: int, journal: Path, failures: float = 0.002) -> None:
        self.seconds = seconds
        self.seed = seed
        self.failures = failures
        self.path = journal
        without_caches(codec())
        self.report = Report(Digests(journal.with_suffix(".digests")))
        self.backend = null_backend(seed, failures)
        self.loop = EngineLoop(self.backend, policy=POLICY, limits=LIMITS, journal=Journal(journal))
        self.engine = Engine.over(self.loop)
        self._lock = threading.Lock()
        self._until = 0.0

    async def run(self) -> Report:
        """Let it live, shut down, and see what is left."""
        began = time.monotonic()
        self._until = began + self.seconds
        before = {task.id for task in anyio.get_running_tasks()}
        async with anyio.create_task_group() as tasks:
            for number in range(NUM_CLIENTS - 1):
                tasks.start_soon(self._client, number)
            tasks.start_soon(self._elsewhere, NUM_CLIENTS - 1)
            await self._watch()
        assert await self.engine.aclose(timeout_s=5.0) == []
        await eventually(lambda: not engine_threads())
        await eventually(lambda: {task.id for task in anyio.get_running_tasks()} <= before)
        assert self.loop.core.journal is not None
        self.loop.core.journal.close()
        self.report.seconds = time.monotonic() - began
        self.report.steps = self.loop.core.num_steps
        self._check_what_is_left()
        return self.report

    def _check_what_is_left(self) -> None:
        self.backend.pool.check_integrity()
        assert self.backend.pool.num_used == 0
        assert not self.loop.core.conversations
        assert not self.loop.core._last_worked
        assert not self.backend._sessions
        assert not self.loop._seats
        assert not self.loop._touched
        admission = self.loop._admission
        assert (admission._num_taken, admission._num_promised, admission.num_waiting) == (0, 0, 0)
        assert len(self.report.digests) == self.loop.core._next_number

    async def _watch(self) -> None:
        """Look at the books between steps, and at the memory."""
        step_s = max(0.2, self.seconds / 120)
        gc.collect()
        gc.freeze()  # what was imported is no garbage, and takes long to look through
        while time.monotonic() < self._until:
            await anyio.sleep(step_s)
            await self.loop._between(lambda: check_books(self.loop.core))
            gc.collect()
            self.report.memory.append(resident())
        gc.unfreeze()

    # ---- clients

    async def _elsewhere(self, number: int) -> None:
        """A client on an event loop of its own, of the other kind, in another thread."""
        await anyio.to_thread.run_sync(lambda: anyio.run(self._client, number, backend="trio"))

    async def _client(self, number: int) -> None:
        luck = random.Random(f"{self.seed} {number}")
        tools = toolbox()
        while time.monotonic() < self._until:
            kind = luck.choice(list(TOPOLOGIES))
            session = self.engine.open(
                TOPOLOGIES[kind],
                seed=luck.randrange(1000),
                copies=COPIES.get(kind),
                tools=tools if "agent" in kind else None,
                forces_answers=luck.random() < 0.8,
            )
            if luck.random() < 0.2:
                session.max_rows = luck.randrange(20, 200)
            with anyio.move_on_after(luck.choice([0.2, 5, 5, 5])) as scope:
                await self._life(session, luck, is_twin=False)
            self._count("cancelled" if scope.cancelled_caught else "ended")
            if session._handle is None:  # there was no seat
                await anyio.sleep(0.02)

    async def _life(self, session: Session, luck: random.Random, *, is_twin: bool) -> None:
        """All of a session's life, heard by a listener and checked at its end."""
        heard = Heard(luck.choice(["all", "all", "slowly", "some", "nothing"]))
        try:
            async with session, anyio.create_task_group() as tasks:
                events = None if heard.how == "nothing" else aiter(session)  # it listens from now on
                tasks.start_soon(heard.listen, events, luck.random())
                del events
                await self._act(session, luck, tasks)
                if luck.random() < 0.7:
                    await session.close()
                    await heard.over.wait()
                tasks.cancel_scope.cancel()
        except* HARMLESS as group:
            for error in _leaves(group):
                self._count(type(error).__name__)
        finally:
            if session._handle is not None:
                await session.close()
                self._check(session, heard, is_twin=is_twin)

    async def _act(self, session: Session, luck: random.Random, tasks: Any) -> None:
        inputs = [name for name in session.topology.input_names if name != "tool_result"]
        outputs = list(session.topology.output_names)
        for _ in range(luck.randrange(3, 25)):
            (verb,) = luck.choices(list(VERBS), list(VERBS.values()))
            self._count(verb)
            try:
                match verb:
                    case "write":
                        await session.write(luck.choice(inputs), luck.choice(WORDS) * luck.randrange(1, 6))
                    case "end":
                        await session.end(luck.choice([None, *inputs]))
                    case "sleep":
                        await anyio.sleep(luck.choice([0.001, 0.005, 0.02]))
                    case "wait":
                        with anyio.move_on_after(0.03):
                            await session.wait_for_turn()
                    case "flush":
                        await session.flush(luck.choice(inputs))
                    case "force":
                        await session.force(luck.choice(outputs), luck.choice([None, "so"]))
                    case "interrupt":
                        await session.interrupt(luck.choice([None, *outputs]))
                    case "cancel":
                        await session.cancel(luck.choice([None, *outputs]))
                    case "evict":
                        await session.evict()
                    case "close_stream":
                        await session.close_stream(luck.choice([*inputs, *outputs]))
                    case _:
                        twin = await session.fork()
                        life = partial(self._life, twin, random.Random(luck.random()), is_twin=True)
                        tasks.start_soon(life)
            except HARMLESS as error:
                self._count(type(error).__name__)
                if isinstance(error, SessionClosedError):
                    return

    # ---- checks

    def _check(self, session: Session, heard: Heard, *, is_twin: bool) -> None:
        transcript = session.transcript
        with self._lock:
            self.report.sessions += 1
            self.report.rows += len(transcript.rows)
            self.report.digests.add(session._handle.number, digest(transcript))  # type: ignore[union-attr]
        error = session.error
        assert error is None or isinstance(error, (EngineError, PoolFullError)), repr(error)
        if error is not None:
            self._count(f"failed: {type(error).__name__}")
        if session._desk is not None:
            for lost in session._desk._runner.undelivered:
                assert isinstance(lost.error, HARMLESS), repr(lost.error)
        heard.check(transcript, error, is_twin=is_twin)
        self._count(f"heard {heard.how}")

    def _count(self, what: str) -> None:
        with self._lock:
            self.report.counts[what] += 1


class Heard:
    """A listener, and what it heard of a session.

    Args:
        how: Whether it listens to all, slowly, to some and leaves, or to nothing.
    """

    def __init__(self, how: str) -> None:
        self.how = how
        self.over = anyio.Event()
        self.events: list[Event] = []
        self.is_whole = False

    async def listen(self, events: AsyncIterator[Event] | None, luck: float) -> None:
        try:
            if events is None:
                return
            async for event in events:
                self.events.append(event)
                if self.how == "slowly" and len(self.events) % 16 == 0:
                    await anyio.sleep(0.01 * luck)
                if self.how == "some" and len(self.events) > 10 + 60 * luck:
                    return
            self.is_whole = True
        finally:
            self.over.set()

    def check(self, transcript: Transcript, error: BraidError | None, *, is_twin: bool) -> None:
        """Every event in order, none lost, none made up; of what was not heard to the end, all that was heard.

        A twin is heard from its fork on; it goes on at once, so that its first rows may be made before anybody listens.
        """
        dropped = [n for n, e in enumerate(self.events) if isinstance(e, NoticeEvent) and e.code == "dropped"]
        assert not dropped or (is_twin and dropped == [0])
        rows = [event for event in self.events if isinstance(event, RowEvent)]
        first = rows[0].t if rows and is_twin else 0
        said = [row for row in transcript.rows if row.t >= first]
        assert len(rows) <= len(said)
        for event, row in zip(rows, said, strict=False):
            assert event.t == row.t
            assert {k: (c.token, c.text) for k, c in event.cells.items()} == {
                k: (c.token, c.text) for k, c in row.cells.items()
            }
        if not self.is_whole:
            return
        assert len(rows) == len(said) or (is_twin and not rows)
        assert isinstance(self.events[-1], ClosedEvent)
        assert any(isinstance(event, ErrorEvent) for event in self.events) == (error is not None)
        turns = [event.t for event in self.events if isinstance(event, TurnEvent)]
        ended = [event.t for event in transcript.events if event.kind == "turn"]
        assert turns == ended[len(ended) - len(turns) :]
        if is_twin:
            return
        assert len(turns) == len(ended)
        for lane in transcript.lanes.lanes:
            if transcript.lanes.spec(lane.index).is_output:
                self._check_text(lane.label, transcript)

    def _check_text(self, lane: str, transcript: Transcript) -> None:
        deltas = [event for event in self.events if isinstance(event, DeltaEvent) and event.stream == lane]
        tokens = [token for event in deltas for token in event.tokens]
        assert tokens == [token for _, token in transcript.tokens(lane) if token != SILENCE]
        text = "".join(event.text for event in deltas)
        assert text.startswith(transcript.text(lane).rstrip("\N{REPLACEMENT CHARACTER}"))


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


class Remembering(EngineCore):
    """A core that remembers whom it has opened."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.opened: dict[int, Conversation] = {}

    def _enter(self, conversation: Conversation) -> Conversation:
        self.opened[conversation.number] = conversation
        return super()._enter(conversation)


def replayed(seed: int, journal: Path, failures: float = 0.002) -> dict[int, str]:
    """Digests of the transcripts that come of a journal on a fresh core.

    Transcripts are let go as soon as their sessions are closed, so that a long journal needs no more memory than a
    short one.
    """
    core = Remembering(null_backend(seed, failures), policy=POLICY)
    digests: dict[int, str] = {}

    def note_closed() -> None:
        for number in [number for number in core.opened if number not in core.conversations]:
            transcript = core.opened.pop(number).transcript
            digests[number] = digest(transcript)
            for entries in (transcript._entries, transcript._rows, transcript._events):
                entries.clear()

    def entries() -> Iterator[dict[str, Any]]:
        with journal.open("rb") as file:
            for line in file:
                note_closed()
                yield json.loads(line)

    replay(core, entries())
    note_closed()
    assert core.backend.usage().pages_used == 0
    return digests
