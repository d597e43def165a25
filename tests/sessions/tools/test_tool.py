"""Functions as tools: the schema that their hints give, what they are passed, what bad arguments are told."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import date
from typing import Annotated, Any, Literal

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from braid.errors import InputError
from braid.sessions.tools import Failure, Tool, tool

pytestmark = pytest.mark.anyio


class Place(BaseModel):
    city: str
    country: str = "France"


def weather(
    place: Place,
    day: date | None = None,
    unit: Literal["C", "F"] = "C",
    *,
    hours: Annotated[int, Field(gt=0, description="how far ahead")] = 24,
) -> Any:
    """Say what the weather will be."""
    return [place, day, unit, hours]


async def test_the_schema_comes_from_the_signature() -> None:
    made = tool(weather)
    assert (made.name, made.description, made.timeout_s) == (
        "weather",
        "Say what the weather will be.",
        None,
    )
    Draft202012Validator.check_schema(made.parameters)
    properties = made.parameters["properties"]
    assert list(properties) == ["place", "day", "unit", "hours"]
    assert made.parameters["required"] == ["place"]
    assert made.parameters["additionalProperties"] is False
    assert properties["hours"] == {
        "type": "integer",
        "default": 24,
        "description": "how far ahead",
        "exclusiveMinimum": 0,
    }
    assert properties["unit"]["enum"] == ["C", "F"]
    assert "title" not in made.parameters
    assert made.schema()["function"]["parameters"] == made.parameters


async def test_arguments_arrive_as_the_hints_want_them() -> None:
    given = {"place": {"city": "Nice"}, "day": "2026-03-01", "hours": "6"}
    assert await tool(weather).call(given) == [Place(city="Nice"), date(2026, 3, 1), "C", 6]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ["place is required"]),
        ({"place": {}}, ["place.city is required"]),
        ({"place": {"city": "Nice"}, "hours": 0}, ["hours: Input should be greater than 0, not 0"]),
        ({"place": {"city": "Nice"}, "unti": "F"}, ["no argument 'unti'", "did you mean 'unit'"]),
        ({"place": "Nice", "unit": "K"}, ["place: ", "; unit: Input should be 'C' or 'F', not 'K'"]),
    ],
)
async def test_bad_arguments_are_told_and_the_function_is_not_called(given: Any, said: list[str]) -> None:
    failure = await tool(weather).call(given)
    assert isinstance(failure, Failure)
    assert failure.message.startswith("bad arguments: ")
    assert [words for words in said if words not in failure.message] == []


async def test_many_faults_are_told_in_few_words() -> None:
    failure = await tool(weather).call(
        {"place": {"city": "Nice"}} | {f"x{i}": "y" * 10_000 for i in range(100)}
    )
    assert isinstance(failure, Failure)
    assert failure.message.endswith("and 92 more") and len(failure.message) < 2000


async def test_arguments_not_given_are_left_to_the_function() -> None:
    marker = [object()]  # which pydantic would copy

    def takes(x: Any = marker) -> bool:
        return x is marker

    made = tool(takes)
    assert made.parameters["properties"] == {"x": {}}
    assert await made.call({}) is True
    assert await made.call({"x": 1}) is False


async def test_a_function_without_parameters_or_hints() -> None:
    assert await tool(lambda: 3, name="three").call({}) == 3  # type: ignore[call-overload]
    assert await tool(name="same")(lambda x: x).call({"x": [1]}) == [1]


NAMES = ["schema", "json", "_private", "model_config", "self", "copy", "class_", "fields", "Ärger"]


@settings(max_examples=20)
@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
async def test_any_name_may_be_a_parameters(names: list[str]) -> None:
    space: dict[str, Callable[..., object]] = {}
    exec(f"def echo({', '.join(f'{name}: int' for name in names)}): return [{', '.join(names)}]", space)
    made = tool(space["echo"])
    assert made.parameters["required"] == names
    assert await made.call({name: i for i, name in enumerate(names)}) == list(range(len(names)))


async def test_plain_functions_leave_the_event_loop_and_async_ones_stay() -> None:
    def plain() -> int:
        return threading.get_ident()

    async def coroutine() -> int:
        await anyio.lowlevel.checkpoint()
        return threading.get_ident()

    class Service:
        async def __call__(self) -> int:
            return threading.get_ident()

    assert await tool(plain).call({}) != threading.get_ident()
    assert await tool(coroutine).call({}) == threading.get_ident()
    assert await tool(Service(), name="object").call({}) == threading.get_ident()
    assert await tool(lambda: coroutine(), name="indirect").call({}) == threading.get_ident()


async def test_a_cancelled_call_does_not_wait_for_its_thread() -> None:
    release = threading.Event()
    try:
        with anyio.move_on_after(0.01) as scope:
            await tool(lambda: release.wait(30), name="hangs").call({})
        assert scope.cancelled_caught
    finally:
        release.set()


async def test_methods_and_partials() -> None:
    class Shop:
        def price(self, item: str, currency: str = "EUR") -> str:
            """What it costs."""
            return f"{item} {currency}"

    made = tool(Shop().price)
    assert (made.name, made.description, list(made.parameters["properties"])) == (
        "price",
        "What it costs.",
        ["item", "currency"],
    )
    in_dollars = tool(functools.partial(Shop().price, currency="USD"))
    assert (in_dollars.name, in_dollars.description) == ("price", "What it costs.")
    assert await in_dollars.call({"item": "tea"}) == "tea USD"


async def test_as_a_decorator() -> None:
    @tool
    def bare() -> int:
        return 1

    @tool(name="renamed", description="", timeout_s=2)
    def with_settings() -> int:
        """Not this."""
        return 2

    assert isinstance(bare, Tool) and isinstance(with_settings, Tool)
    assert (with_settings.name, with_settings.description, with_settings.timeout_s) == ("renamed", "", 2)
    assert [await bare.call({}), await with_settings.call({})] == [1, 2]


def _unresolvable(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _unspeakable(x: threading.Lock) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *args: None, "cannot be passed by name"),
        (lambda **more: None, "cannot be passed by name"),
        (lambda x, /: None, "cannot be passed by name"),
        (_unresolvable, "type hints cannot be resolved"),
        (_unspeakable, "JSON can spell"),
        (dict, "no signature"),
    ],
)
def test_functions_that_cannot_be_tools_are_refused(function: Callable[..., object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        tool(function)


@pytest.mark.parametrize("wrong", [{"name": "two words"}, {"name": "x" * 129}, {"timeout_s": 0}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        tool(**wrong)(weather)
    with pytest.raises(InputError):
        Tool(name="", description="", parameters={}, call=weather)
