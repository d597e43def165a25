"""What was read as a guess of what is said, against a reference that looks at every place; and in sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.engine.backend import Draw
from braid.engine.guessing.read_text import LEAST_READ, MOST_READ, ReadText
from braid.engine.loop import EngineLoop
from braid.errors import InputError
from braid.sessions.session import Engine
from braid.streams.topology import Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec
from tests.engine.live import spec, views

few_kinds = st.lists(st.integers(0, 2), max_size=24)


def places(text: Sequence[int], said: Sequence[int], length: int) -> list[int]:
    """Where something follows the last tokens that were said, so many of them."""
    run = list(said[len(said) - length :])
    return [end for end in range(length, len(text)) if list(text[end - length : end]) == run]


@given(few_kinds, few_kinds)
def test_a_guess_goes_on_where_the_last_words_stand(text: list[int], said: list[int]) -> None:
    cursor = ReadText(text).cursor()
    for count, token in enumerate(said, 1):
        cursor.push(token)
        known = places(text, said[:count], LEAST_READ) if count >= LEAST_READ else []
        ahead = cursor.ahead(len(text))
        assert (cursor.guess() is not None) == bool(ahead)
        if not known:
            assert not ahead
            continue
        if not ahead:  # it has read along to the very end
            assert said[count - LEAST_READ : count] == text[-LEAST_READ:]
            continue
        assert cursor.guess() == ahead[0]
        is_there = [at for at in known if text[at : at + len(ahead)] == ahead]
        assert is_there
        # No more than twice as many as the run has that speaks for them, somewhere where they follow.
        longest = max(
            length
            for length in range(1, count + 1)
            if set(places(text, said[:count], length)) & set(is_there)
        )
        assert len(ahead) <= 2 * longest
        assert cursor.ahead(1) == ahead[:1]


@given(few_kinds, few_kinds, few_kinds)
def test_a_copy_reads_on_by_itself(text: list[int], said: list[int], more: list[int]) -> None:
    cursor = ReadText(text).cursor()
    for token in said:
        cursor.push(token)
    before, copy = cursor.ahead(9), cursor.copy()
    for token in more:
        copy.push(token)
    assert cursor.ahead(9) == before
    for token in more:
        cursor.push(token)
    assert cursor.ahead(9) == copy.ahead(9)


def test_it_reads_along_and_finds_the_newest_place_anew() -> None:
    cursor = ReadText([1, 2, 3, 4, 8, 1, 2, 9, 9]).cursor()
    for token in (1, 2):
        cursor.push(token)
    assert cursor.ahead(9) == [9, 9], "the last of two places"
    cursor.push(3)
    assert cursor.ahead(9) == [4, 8, 1, 2], "2 and 3 stand in one place, which four tokens are believed of"
    cursor.push(4)
    assert cursor.ahead(9) == [8, 1, 2, 9, 9], "three tokens speak for six"


def test_a_long_text_is_looked_through_from_behind() -> None:
    cursor = ReadText([7, 7, 7, *range(10, 10 + MOST_READ)]).cursor()
    for token in (7, 7):
        cursor.push(token)
    assert cursor.guess() is None
    assert len(ReadText(range(2 * MOST_READ)).after) == MOST_READ - LEAST_READ


# ---- in sessions

WORDS = "The quick brown fox jumps over the lazy dog"


def parrot(draw: Draw) -> int:
    """What the user says, a letter a token, whatever it is asked, and an end."""
    return ord(WORDS[draw.index]) if draw.index < len(WORDS) else 257


def engine() -> Engine:
    return Engine.over(EngineLoop(NullBackend(NullModel(codec(), silence_token_id=SILENCE), speak=parrot)))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.anyio
@pytest.mark.parametrize("guesses", ["session", "none"])
async def test_what_was_read_is_said_in_fewer_forwards(guesses: Any) -> None:
    async with engine() as house:
        async with house.open(views(), input="editable", most_drafted=0, guesses=guesses) as session:
            reply = await session.commit(f"Say this: {WORDS}!")
        assert reply["output"] == WORDS
        assert reply.reuse is not None
        if guesses == "session":
            assert reply.reuse.accepted > len(WORDS) // 2
        else:
            assert reply.reuse.accepted == reply.reuse.wasted == 0


@pytest.mark.anyio
async def test_without_guesses_only_what_is_suggested_is_verified() -> None:
    async with engine() as house:
        async with house.open(views(), input="editable", most_drafted=0, guesses="none") as session:
            await session.snapshot(WORDS)
            await session.suggest("output", WORDS)
            reply = await session.commit()
        assert reply["output"] == WORDS
        assert reply.reuse is not None and reply.reuse.accepted > len(WORDS) // 2
        with pytest.raises(InputError, match="session, tenant, none"):
            house.open(views(), guesses="some")  # pyright: ignore[reportArgumentType]


@pytest.mark.anyio
@pytest.mark.parametrize("may_read", [True, False])
async def test_an_output_guesses_from_what_it_may_read_alone(may_read: bool) -> None:
    topology = Topology(
        decoding="views",
        streams={"user": spec("input"), "aside": spec("input"), "output": spec(wait_k="end")},
        reads={"user": [], "aside": [], "output": ["user", "aside"] if may_read else ["user"]},
    )
    async with engine() as house, house.open(topology, input="editable", most_drafted=0) as session:
        reply = await session.commit({"user": "Say it.", "aside": WORDS})
        assert reply["output"] == WORDS
        assert reply.reuse is not None
        assert (reply.reuse.accepted > len(WORDS) // 2) == may_read
        assert reply.reuse.accepted == 0 or may_read
