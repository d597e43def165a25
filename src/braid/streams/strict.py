"""The strict models that configuration is made of: frozen, no unknown keys, errors in Braid's own words."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    WrapSerializer,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from braid.errors import BraidError, TopologyError, UnknownKeyError

__all__ = ["Frozen", "FrozenMap", "StrictModel", "hint", "nearest", "problem", "shown", "translated"]

_K = TypeVar("_K")
_V = TypeVar("_V")

_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxstring, _BRIEF.maxother = 2, 60, 60
_PROBLEM = "braid_problem"
_UNKNOWN_KEY = "braid_unknown_key"


class FrozenMap(Mapping[_K, _V]):
    """A mapping that keeps its order and cannot be changed, so that a checked topology stays checked."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[_K, _V] | Iterable[tuple[_K, _V]] = ()) -> None:
        self._items: dict[_K, _V] = dict(items)

    def __getitem__(self, key: _K) -> _V:
        return self._items[key]

    def __iter__(self) -> Iterator[_K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # Fields are declared as `Frozen`; this is for defaults, which a JSON schema has to spell out.
        as_dict = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.is_instance_schema(cls, serialization=as_dict)


def _as_dict(value: Mapping[Any, Any], handler: SerializerFunctionWrapHandler) -> Any:
    return handler(dict(value))


Frozen = Annotated[Mapping[_K, _V], AfterValidator(FrozenMap), WrapSerializer(_as_dict)]
"""Field type of a mapping that is frozen when it is validated."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None where nothing is close.

    >>> nearest("documnt", ["user", "document"])
    'document'
    """
    by_lower = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest, then all that are known.

    >>> hint("documnt", ["user", "document"])
    "did you mean 'document'? (known: user, document)"
    """
    options = list(known)
    close = nearest(name, options)
    listed = f"(known: {', '.join(options) or 'none'})"
    return f"did you mean {close!r}? {listed}" if close else listed


def shown(value: object) -> str:
    """A value as a message shows it: short, however large it is or says it is."""
    return _BRIEF.repr(value)


def problem(message: str, *, key: str = "") -> PydanticCustomError:
    """An error to raise inside a validator.

    Args:
        message: what is wrong and what would work.
        key: the field that is meant, where a whole model is validated; pydantic adds the rest of the path.
    """
    return PydanticCustomError(_PROBLEM, "{message}", {"message": message, "key": key})


class StrictModel(BaseModel):
    """A frozen model that refuses unknown keys and raises Braid's errors when it is built.

    `model_validate` keeps pydantic's own errors, so that a nested model is reported with its whole path.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    refusal: ClassVar[type[BraidError]] = TopologyError
    """What is raised for a bad value; a bad key is always an UnknownKeyError."""

    if not TYPE_CHECKING:  # type checkers keep the signature that pydantic derives from the fields

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise translated(error, type(self).refusal) from None

        # Tells pydantic, as its own RootModel does, that nested validation need not come through here:
        # only the outermost construction translates, with the whole path in hand.
        __init__.__pydantic_base_init__ = True

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for key in cast("Mapping[object, object]", data):
                if key not in cls.model_fields:
                    name = key if isinstance(key, str) else shown(key)
                    message = f"unknown key; {hint(name, cls.model_fields)}"
                    raise PydanticCustomError(_UNKNOWN_KEY, "{message}", {"message": message, "key": name})
        return cast("object", data)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with some fields changed; unlike pydantic's, the changed model is checked again.

        Args:
            update: new values by field name.
            deep: copy the values too.
        """
        if update is None:
            return super().model_copy(deep=deep)
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | dict(update))


def translated(error: ValidationError, refusal: type[BraidError]) -> BraidError:
    """The Braid error that says what a pydantic error says: each problem with its path, all of them.

    Args:
        error: what pydantic raised.
        refusal: the class to use where no problem asks for one of its own.
    """
    details = error.errors(include_url=False)
    for detail in details:
        # What a validator raised itself is the most exact word there is, and may carry attributes.
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, BraidError):
            return cause
    if any(detail["type"] == _UNKNOWN_KEY for detail in details):
        refusal = UnknownKeyError
        details.sort(key=lambda detail: detail["type"] != _UNKNOWN_KEY)
    return refusal("; ".join(_sentence(detail) for detail in details))


# Who writes YAML has lists and mappings.
_WORDS = {
    "Input should": "must",
    "String should": "must",
    "a valid tuple": "a list",
    "a valid string": "text",
    "a valid dictionary or instance of": "a mapping, as in",
    "a valid mapping": "a mapping",
}


def _sentence(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    location = [part for part in detail["loc"] if part != "[key]"]
    is_ours = detail["type"] in (_PROBLEM, _UNKNOWN_KEY)
    if is_ours and context.get("key"):
        location.append(context["key"])
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    if is_ours:
        message = detail["msg"]
    elif detail["type"] == "missing":
        message = "is required"
    else:
        message = detail["msg"]
        for theirs, ours in _WORDS.items():
            message = message.replace(theirs, ours)
        message = f"{message}, not {shown(detail['input'])}"
    return f"{path.removeprefix('.')}: {message}" if path else message
