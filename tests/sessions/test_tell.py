"""`Session.tell`: all input of a turn before the next row, or none of it."""

from __future__ import annotations

import anyio
import pytest

from braid.errors import DirectionError, EmptyInputError, InputError
from tests.engine.live import House, rows, spec


def test_whoever_wakes_has_all_of_it_before_it() -> None:
    async def talk() -> None:
        async with House(script={"output": ["yes"]}) as house:
            topology = rows(
                {
                    "a": spec("input", feed="burst"),
                    "b": spec("input", feed="burst"),
                    "output": spec(wait_k="end"),
                }
            )
            async with house.open(topology) as session:
                session.max_turns = 1
                await session.tell({"a": "one", "b": "two"})
                async for _ in session:
                    pass
                assert (session.text("a"), session.text("b"), session.text("output")) == ("one", "two", "yes")

    anyio.run(talk)


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ({"user": "a", "output": "b"}, DirectionError),
        ({"user": "a\ud800"}, InputError),
        ({}, EmptyInputError),
    ],
)
def test_what_is_refused_leaves_nothing_behind(texts: dict[str, str], error: type[Exception]) -> None:
    async def talk() -> None:
        async with House(script={"output": ["yes"]}) as house, house.open() as session:
            with pytest.raises(error):
                await session.tell(texts)
            assert session.rows_due == 0
            assert session.turn_is_over

    anyio.run(talk)
