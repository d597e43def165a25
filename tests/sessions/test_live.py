"""Live runs: input in time, limits, stops, files; and that text comes through unchanged however it comes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest
import torch

from braid.errors import (
    BraidError,
    EmptyInputError,
    InputError,
    PoolTooSmallError,
    SessionClosedError,
    TranscriptError,
)
from braid.model.model import Model
from braid.sessions.feeds import Feed, arriving, typed, whole
from braid.sessions.generate import ROWS_AFTER_INPUT
from braid.sessions.live import LiveResult, run_live
from braid.sessions.session import Engine, Session
from braid.streams.events import ClosedEvent, Event, RowEvent
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript
from tests.cli.test_run import TEXTS
from tests.engine.harness import codec
from tests.model.folders import tiny_llama

SHORT = {
    "decoding": "views",
    "streams": {
        "user": {"direction": "input", "feed": "burst"},
        "output": {"direction": "output", "wait_k": "end", "max_tokens": 3},
    },
}
DUET = {
    "decoding": "views",
    "streams": {
        "document": {"direction": "input", "feed": "burst"},
        "user": {"direction": "input", "feed": "burst"},
        "thought": {"direction": "output", "visibility": "internal", "wait_k": 2, "max_tokens": 8},
        "output": {"direction": "output", "wait_k": "end", "max_tokens": 4},
    },
}
ENDLESS = {
    "decoding": "views",
    "streams": {
        "user": {"direction": "input", "feed": "burst"},
        "output": {"direction": "output", "wait_k": "end", "sampling": {"logit_bias": {257: -100.0}}},
    },
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The model is so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(tiny_llama(max_position_embeddings=32_768), codec(), name="tiny")


def open_session(model: Model, topology: dict[str, object], kv_tokens: int | None = None) -> Session:
    return Engine(model, kv_tokens=kv_tokens).open(Topology.from_dict(topology))


def go(session: Session, feeds: dict[str, Feed], **settings: object) -> LiveResult:
    async def run() -> LiveResult:
        return await run_live(session, feeds, **settings)  # pyright: ignore[reportArgumentType]

    return anyio.run(run)


def pieces_of(data: bytes, seed: int, pauses: bool = True) -> Callable[[], bytes]:
    """A pipe that brings the bytes in random pieces, with pauses."""
    rng = random.Random(seed)
    place = 0

    def read() -> bytes:
        nonlocal place
        if pauses and rng.random() < 0.1:
            time.sleep(0.002)
        start, place = place, place + rng.choice([1, 1, 2, 3, 5, 40, 400])
        return data[start:place]

    return read


async def slowly(*pieces: str, seconds: float = 0.05) -> Feed:
    for piece in pieces:
        await anyio.sleep(seconds)
        yield piece


# ---- text comes through


@pytest.mark.parametrize("name", TEXTS)
def test_text_written_a_character_at_a_time_is_unchanged(name: str, model: Model) -> None:
    text = TEXTS[name]

    async def run() -> str:
        async with open_session(model, SHORT) as session:
            for character in text:
                await session.write("user", character)
            await session.end()
            await session.wait_for_turn()
            return session.text("user")

    assert anyio.run(run).encode() == text.encode()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("seed", [0, 1])
def test_text_piped_in_random_pieces_is_unchanged(name: str, seed: int, model: Model) -> None:
    data = TEXTS[name].encode()
    done = go(open_session(model, SHORT), {"user": arriving(pieces_of(data, seed))})
    assert done.result["user"].text.encode() == data


def test_text_typed_at_a_pace_is_unchanged_and_takes_its_time(model: Model) -> None:
    text = TEXTS["emoji"] + TEXTS["code"]
    began = time.perf_counter()
    done = go(open_session(model, SHORT), {"user": typed(text, codec(), 200)})
    assert done.result["user"].text.encode() == text.encode()
    assert time.perf_counter() - began > (len(text.encode()) - 1) / 200


@pytest.mark.parametrize("pace", [0.0, -1.0, float("inf"), float("nan")])
def test_a_pace_is_above_zero(pace: float, model: Model) -> None:
    with pytest.raises(InputError, match="tokens a second"):
        go(open_session(model, SHORT), {"user": typed("Hello", codec(), pace)})


@pytest.mark.parametrize(
    ("data", "place"),
    [(b"\xff", 0), (b"ab\xe4\xbd\xa0\xc3(", 5), (b"abc\xf0\x9f\x99", 3), (b"\xed\xa0\x80", 0)],
)
@pytest.mark.parametrize("size", [1, 2, 100])
def test_bytes_that_are_no_text_are_refused_with_their_place(
    data: bytes, place: int, size: int, model: Model
) -> None:
    chunks = [data[start : start + size] for start in range(0, len(data), size)]

    def read() -> bytes:
        return chunks.pop(0) if chunks else b""

    with pytest.raises(InputError, match=f"the pipe is not UTF-8 text: .* at byte {place};"):
        go(open_session(model, SHORT), {"user": arriving(read, "the pipe")})


def test_a_pipe_that_breaks_is_an_input_error(model: Model) -> None:
    def read() -> bytes:
        raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match="cannot be read: Input/output error"):
        go(open_session(model, SHORT), {"user": arriving(read)})


# ---- the turn


def test_thinking_starts_before_the_input_ends_and_the_answer_after(model: Model) -> None:
    events: list[Event] = []
    feeds = {"document": whole("Apples: 3."), "user": slowly("How ", "many ", "are ", "there?", seconds=0.15)}
    done = go(open_session(model, DUET), feeds, on_event=events.append)
    rows = [set(event.cells) for event in events if isinstance(event, RowEvent)]
    first = {label: min(n for n, cells in enumerate(rows) if label in cells) for label in done.result.streams}
    last_input = max(n for n, cells in enumerate(rows) if "user" in cells)
    assert first["thought"] < last_input < first["output"]
    assert done.ended_by == "turn"
    assert done.result.finished
    summary = done.summary
    assert summary.ttft_s == 0.0  # the thought began before
    assert summary.ttfat_s is not None
    assert 0 < summary.ttfat_s < summary.seconds
    assert summary.tokens == {"document": 10, "user": 19, "thought": 8, "output": 4}


def test_a_turn_waits_for_an_input_that_is_slow_to_begin(model: Model) -> None:
    feeds = {"document": whole("Apples: 3."), "user": slowly("How many?", seconds=0.4)}
    done = go(open_session(model, DUET), feeds)
    assert done.result["user"].text == "How many?"
    assert done.ended_by == "turn"


def test_a_limit_on_rows_cuts_the_turn_short(model: Model) -> None:
    done = go(open_session(model, ENDLESS), {"user": whole("Hello")}, max_rows=9)
    assert (done.ended_by, done.summary.rows, done.result.finished) == ("max_rows", 9, False)
    assert done.result["user"].text == "Hello"
    assert len(done.result["output"].tokens) == 4


def test_a_limit_on_rows_can_be_reached_while_input_still_comes(model: Model) -> None:
    feeds = {"user": slowly(*["word "] * 50)}
    done = go(open_session(model, SHORT), feeds, max_rows=10)
    assert done.ended_by == "max_rows"
    assert done.summary.ttfat_s is None
    assert len(done.result["user"].text) < 30


def test_without_a_limit_rows_are_counted_from_the_end_of_input(model: Model) -> None:
    done = go(open_session(model, ENDLESS), {"user": whole("y" * 600)})
    assert (done.ended_by, done.summary.rows) == ("max_rows", 600 + ROWS_AFTER_INPUT)


def test_a_stop_ends_the_turn_where_it_is(model: Model) -> None:
    events: list[Event] = []

    async def run() -> LiveResult:
        enough = anyio.Event()

        def count(event: Event) -> None:
            events.append(event)
            if isinstance(event, RowEvent) and event.t >= 20:
                enough.set()

        session = open_session(model, ENDLESS)
        return await run_live(session, {"user": whole("Hello")}, stop=enough.wait, on_event=count)

    done = anyio.run(run)
    assert done.ended_by == "stop"
    assert 20 < done.summary.rows < 60
    assert isinstance(events[-1], ClosedEvent)
    assert events[-1].reason == "stop"


def test_a_stop_ends_a_turn_that_waits_for_input(model: Model) -> None:
    done = go(
        open_session(model, SHORT),
        {"user": slowly("never", seconds=600)},
        stop=lambda: anyio.sleep(0.05),
    )
    assert (done.ended_by, done.summary.rows) == ("stop", 0)


def test_no_page_is_left_behind(model: Model) -> None:
    engine = Engine(model)
    for topology in (SHORT, DUET):
        session = engine.open(Topology.from_dict(topology))
        go(session, {"user": whole("Hello there")})
        engine.local.cache.pool.check_integrity()
        assert engine.local.prefixes is not None
        assert engine.local.cache.pool.num_used == engine.local.prefixes.num_pages
        assert session.kv_tokens == 0


# ---- what goes wrong


def test_an_input_without_text_is_an_error(model: Model) -> None:
    for feed in (whole(""), arriving(lambda: b""), slowly("", "")):
        with pytest.raises(EmptyInputError, match="user is empty"):
            go(open_session(model, SHORT), {"user": feed})


def test_an_error_inside_the_session_is_raised_once(model: Model) -> None:
    events: list[Event] = []
    session = open_session(model, SHORT, kv_tokens=8)
    with pytest.raises(PoolTooSmallError) as caught:
        go(session, {"user": whole("Hello there")}, on_event=events.append)
    assert session.error is caught.value
    assert [event.event for event in events].count("error") == 0
    assert isinstance(events[-1], ClosedEvent)
    assert events[-1].reason == PoolTooSmallError.code


def test_an_error_of_the_caller_is_raised_as_it_is(model: Model) -> None:
    def fails(event: Event) -> None:
        if isinstance(event, RowEvent):
            raise ZeroDivisionError

    session = open_session(model, SHORT)
    with pytest.raises(ZeroDivisionError):
        go(session, {"user": whole("Hello there")}, on_event=fails)
    assert session.is_closed


def test_an_error_in_the_block_of_a_session_passes_as_it_is(model: Model) -> None:
    async def run(session: Session, error: type[BraidError]) -> None:
        with pytest.raises(error):
            async with session:
                await session.end()
        with pytest.raises(SessionClosedError):
            await session.write("user", "too late")

    anyio.run(run, open_session(model, SHORT), EmptyInputError)


# ---- the file


def test_the_file_is_the_transcript(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("something older")
    seen: list[bool] = []

    def looks(event: Event) -> None:
        if isinstance(event, RowEvent):  # what has happened is in the file before anyone is told
            seen.append(len(Transcript.load(path).rows) > event.t)

    done = go(open_session(model, DUET), {"user": whole("Hello there")}, save=path, on_event=looks)
    assert Transcript.load(path) == done.result.transcript
    assert seen
    assert all(seen)


def test_the_file_outlives_a_failure(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    def fails(event: Event) -> None:
        if isinstance(event, RowEvent) and "output" in event.cells:
            raise KeyError

    with pytest.raises(KeyError):
        go(open_session(model, SHORT), {"user": whole("Hello there")}, save=path, on_event=fails)
    kept = Transcript.load(path)
    assert kept.damage is None
    assert kept.text("user") == "Hello there"
    assert kept.tokens("output")


def test_a_file_that_cannot_be_written_is_an_error(model: Model, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "no" / "run.jsonl"):
        with pytest.raises(TranscriptError):
            go(open_session(model, SHORT), {"user": whole("Hello")}, save=path)
