"""The grammar of a stream: which texts it may say, as a JSON schema, a regular expression or a Lark grammar.

Nothing here compiles a grammar; `braid.model.grammar` does, when a session opens. What is plainly wrong is said here
already, where the topology is written: brackets that do not close, a type that JSON does not have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from braid.streams.strict import FrozenMap, StrictModel, hint, problem, shown

__all__ = ["Grammar", "GrammarKind"]

GrammarKind = Literal["json_schema", "regex", "lark"]

_KINDS: tuple[GrammarKind, ...] = ("json_schema", "regex", "lark")
_MAX_DEPTH = 64
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Where schemas stand inside a schema: as values of keys, in lists, alone.
_SCHEMA_MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")

_CLASS = r"\[\^?\]?(?:\\.|[^\\\]])*\]"
_PARTS = re.compile(
    rf"""(?P<memory> \\[1-9] | \(\?P= | \(\?\( )  # what a group matched, met again
       | (?P<look> \\[bB] | \(\?<?[=!] )          # what stands around, without taking it
       | (?P<greed> (?:[*+?]|\{{[\d,]+\}})\+ | \(\?> )
       | \\.
       | (?P<members> {_CLASS} )
    """,
    re.VERBOSE | re.DOTALL,
)
_OPERATORS = re.compile(r"\\.|(&&|--|~~|\|\||\[)", re.DOTALL)
_PROPERTY = re.compile(r"(\\[pP](?:\{[^{}]*\}|[A-Za-z]))|\\.", re.DOTALL)
_START_RULE = re.compile(r"^[ \t]*[?!]?start\b", re.MULTILINE)


def _read_schema(value: Any) -> Any:
    if value is None or value is True:
        return value
    if not isinstance(value, Mapping):
        raise problem(f"{shown(value)} is no schema: say {{type: object, …}}, or true for any JSON value")
    frozen = _frozen(cast("object", value), "", 0)
    _check_schema(frozen, "")
    return frozen


def _frozen(value: object, path: str, depth: int) -> object:
    """Plain JSON data as something that cannot be changed."""
    where = path or "this"
    if depth > _MAX_DEPTH:
        raise problem(f"nested more than {_MAX_DEPTH} deep: name the inner parts in $defs and use $ref")
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        for key in items:
            if not isinstance(key, str):
                raise problem(f"{where}: the key {shown(key)} is no text: put it in quotes")
        return FrozenMap({key: _frozen(item, f"{path}.{key}", depth + 1) for key, item in items.items()})
    if isinstance(value, (list, tuple)):
        members = cast("list[object]", value)
        return tuple(_frozen(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(members))
    if isinstance(value, str):
        # Half a surrogate pair can be written as an escape, and no token could ever spell it.
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise problem(f"{where}: {shown(value)} holds half a surrogate pair; write whole characters")
        return value
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise problem(
        f"{where}: {shown(value)} is no JSON; use text, finite numbers, true, false, null, lists, maps"
    )


def _thawed(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _thawed(item) for key, item in cast("Mapping[str, object]", value).items()}
    return (
        [_thawed(item) for item in cast("tuple[object, ...]", value)] if isinstance(value, tuple) else value
    )


def _check_schema(schema: object, path: str) -> None:
    """Refuse what is no schema in any dialect; all else is left to who compiles it."""
    where = path.removeprefix(".")
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise problem(f"{where}: {shown(_thawed(schema))} is no schema: it must be a mapping, true or false")
    fields = cast("Mapping[str, object]", schema)
    named = fields.get("type", ())
    for name in named if isinstance(named, tuple) else (named,):
        if name not in _TYPES:
            place = f"{where}.type" if where else "type"
            raise problem(f"{place}: JSON has no type {shown(name)}; {hint(str(name), _TYPES)}")
    inner = {key: fields[key] for key in _SCHEMAS if key in fields and not isinstance(fields[key], tuple)}
    for key in (*_SCHEMA_MAPS, *_SCHEMA_LISTS, "items"):
        members = fields.get(key)
        if isinstance(members, Mapping) and key in _SCHEMA_MAPS:
            inner |= {f"{key}.{name}": each for name, each in cast("Mapping[str, object]", members).items()}
        elif isinstance(members, tuple):
            inner |= {f"{key}[{at}]": each for at, each in enumerate(cast("tuple[object, ...]", members))}
        elif members is not None and key in _SCHEMA_LISTS:
            raise problem(f"{where}.{key}".removeprefix(".") + ": must be a list of schemas")
    for key, each in inner.items():
        _check_schema(each, f"{path}.{key}")


def _check_regex(pattern: str) -> str:
    """Refuse what no automaton can match, and what Python and the compiler would read differently."""
    for part in _PARTS.finditer(pattern):
        found = shown(part[0])
        if part["memory"]:
            raise problem(f"{found} refers to what a group has matched, which a grammar cannot; spell it out")
        if part["look"]:
            raise problem(f"{found} looks around without taking text, which a grammar cannot; leave it out")
        if part["greed"]:
            raise problem(
                f"{found} never gives back what it took, which a grammar cannot; use the plain form"
            )
        if part["members"]:
            clash = next((each[1] for each in _OPERATORS.finditer(part["members"][1:-1]) if each[1]), None)
            if clash:
                raise problem(
                    f"{clash!r} inside {found} means different things to different readers; escape it"
                )
    try:
        # Python has no names for kinds of characters. Any class does for them, since only the form is checked.
        re.compile(_PROPERTY.sub(lambda each: r"\w" if each[1] else each[0], pattern))
    except (re.error, OverflowError, RecursionError) as error:
        what = f"{shown(pattern)} is no regular expression ({error})"
        raise problem(f"{what}; escape what is meant literally") from None
    return pattern


def _check_lark(text: str) -> str:
    if not _START_RULE.search(text):
        raise problem(
            'there is no rule `start`, where a grammar begins; write one, as in start: "yes" | "no"'
        )
    return text


_Text = Annotated[str, Field(min_length=1)]
_Schema = Annotated[
    Any,
    BeforeValidator(_read_schema),
    PlainSerializer(_thawed),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"const": True}, {"type": "null"}]}),
]


def _read_regex(value: Any) -> Any:
    return _check_regex(value) if isinstance(value, str) else value


def _read_lark(value: Any) -> Any:
    return _check_lark(value) if isinstance(value, str) else value


class Grammar(StrictModel):
    """All that a stream may say in one turn, after its `prefix`: a text that this grammar accepts, whole.

    Exactly one of the three is said. Silence is no text, so a grammar does not speak of it.

    Args:
        json_schema: the text is JSON that fits this schema; True for any JSON. Properties come in the schema's order.
        regex: the whole text matches this expression, as with `re.fullmatch`.
        lark: the text is what the rule `start` of this grammar derives (the Lark dialect of `llguidance`).

    Raises:
        TopologyError: none or several are said, or the one that is can be seen to be wrong without compiling it.
        UnknownKeyError: there is no such kind of grammar.

    >>> Grammar(regex="[0-9]+").kind
    'regex'
    """

    json_schema: _Schema = None
    regex: Annotated[_Text | None, BeforeValidator(_read_regex)] = None
    lark: Annotated[_Text | None, BeforeValidator(_read_lark)] = None

    @property
    def kind(self) -> GrammarKind:
        """Which of the three is said."""
        return next(kind for kind in _KINDS if getattr(self, kind) is not None)

    @property
    def source(self) -> str:
        """The grammar as text: the schema as JSON (`true` for any), the expression, or the Lark grammar."""
        value = getattr(self, self.kind)
        return json.dumps(_thawed(value), ensure_ascii=False) if self.kind == "json_schema" else str(value)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        said = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(said) != 1:
            what = f"{' and '.join(said)} are both said" if said else "no grammar is said"
            raise problem(f"{what}: say exactly one of {', '.join(_KINDS)}")
        return self

    def __eq__(self, other: object) -> bool:
        # By the text: to Python 1 is True, and mappings are equal in any order; to a schema they are not.
        if not isinstance(other, Grammar):
            return NotImplemented
        return (self.kind, self.source) == (other.kind, other.source)

    def __hash__(self) -> int:
        return hash((self.kind, self.source))
