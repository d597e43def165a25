"""Grammars as they are written: exactly one, unchangeable, the same in every spelling; plain mistakes are refused."""

from __future__ import annotations

import copy
import json
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.errors import TopologyError, UnknownKeyError
from braid.streams.grammar import Grammar
from braid.streams.topology import Topology
from tests.streams.strategies import grammars

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": ["string", "null"]}, "a": {"const": 1}},
    "required": ["b"],
    "additionalProperties": False,
}


def test_exactly_one_is_said() -> None:
    assert (Grammar(regex="[0-9]+").kind, Grammar(regex="[0-9]+").source) == ("regex", "[0-9]+")
    assert (Grammar(json_schema=True).kind, Grammar(json_schema=True).source) == ("json_schema", "true")
    assert (Grammar(json_schema={}).kind, Grammar(json_schema={}).source) == ("json_schema", "{}")
    assert Grammar(lark='start: "a"').kind == "lark"
    for none in ({}, {"regex": None}):
        with pytest.raises(TopologyError, match="exactly one of json_schema, regex, lark"):
            Grammar(**none)
    with pytest.raises(TopologyError, match="json_schema and regex are both said"):
        Grammar(regex="a", json_schema=True)
    with pytest.raises(UnknownKeyError, match="'regex'"):
        Grammar(regexp="a")  # type: ignore[call-arg]


@given(grammars())
def test_every_spelling_is_the_same_grammar(grammar: Grammar) -> None:
    streams = {"user": {"direction": "input"}, "output": {"direction": "output", "grammar": grammar}}
    topology = Topology.from_dict({"streams": streams})
    for again in (
        Topology.from_yaml(topology.to_yaml()),
        Topology.from_dict(json.loads(json.dumps(topology.to_dict()))),
        pickle.loads(pickle.dumps(topology)),
        copy.deepcopy(topology),
    ):
        assert again == topology
        assert again.streams["output"].grammar == grammar
        assert again.streams["output"].grammar.source == grammar.source
    assert hash(Topology.from_yaml(topology.to_yaml())) == hash(topology)


def test_the_short_form_of_yaml() -> None:
    text = 'streams:\n  output: {direction: output, grammar: {regex: "[0-9]+"}}\n'
    assert Topology.from_yaml(text).streams["output"].grammar == Grammar(regex="[0-9]+")
    text = "streams:\n  output: {direction: output, grammar: {json_schema: true}}\n"
    assert Topology.from_yaml(text).streams["output"].grammar == Grammar(json_schema=True)


def test_a_schema_keeps_its_order_and_cannot_be_changed() -> None:
    mine = copy.deepcopy(SCHEMA)
    grammar = Grammar(json_schema=mine)
    mine["properties"]["c"] = {}  # type: ignore[index]
    assert json.loads(grammar.source) == SCHEMA
    assert grammar.source.index('"b"') < grammar.source.index('"a"')
    with pytest.raises(TypeError):
        grammar.json_schema["type"] = "array"
    turned = SCHEMA | {"properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    assert Grammar(json_schema=turned) != grammar


def test_schemas_that_python_takes_for_equal_differ() -> None:
    ones = [Grammar(json_schema={"const": value}) for value in (1, True, 1.0, "1")]
    assert len(set(ones)) == 4
    assert Grammar(regex="a") != "a"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, ["no schema", "true for any JSON"]),
        ("object", ["no schema"]),
        ([], ["no schema"]),
        ({"type": "strin"}, ["type", "'strin'", "'string'"]),
        ({"type": ["string", "nul"]}, ["type", "'null'"]),
        ({"type": 3}, ["type", "3"]),
        ({"properties": {"a": {"type": "in"}}}, ["properties.a.type", "'in'"]),
        ({"properties": {"a": 3}}, ["properties.a", "3"]),
        ({"$defs": {"x": {"items": {"type": "x"}}}}, ["$defs.x.items.type"]),
        ({"anyOf": [{}, {"type": "x"}]}, ["anyOf[1].type"]),
        ({"anyOf": {}}, ["anyOf", "list"]),
        ({"items": [{"type": "x"}]}, ["items[0].type"]),
        ({"items": 4}, ["items", "4"]),
        ({"additionalProperties": {"type": "x"}}, ["additionalProperties.type"]),
        ({"const": float("nan")}, ["const", "JSON"]),
        ({"const": {1, 2}}, ["const", "JSON"]),
        ({"const": "\ud800"}, ["const", "surrogate"]),
        ({1: 2}, ["key 1", "quotes"]),
    ],
)
def test_bad_schemas(schema: Any, words: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        Grammar(json_schema=schema)
    for word in ["json_schema", *words]:
        assert word in str(caught.value)


def test_schemas_that_are_too_deep() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    with pytest.raises(TopologyError, match="deep"):
        Grammar(json_schema=deep)


def test_what_only_looks_like_a_schema_is_left_alone() -> None:
    Grammar(json_schema={"properties": {"type": {"const": {"type": "strin"}}}, "enum": [{"type": "x"}]})
    Grammar(json_schema={"items": False, "prefixItems": [True], "default": {"anyOf": 3}})


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", ["at least 1"]),
        (5, ["text", "5"]),
        ("(", ["no regular expression", "escape"]),
        ("[a", ["no regular expression"]),
        ("a**", ["no regular expression"]),
        ("a{3,2}", ["no regular expression"]),
        ("a{99999999999999999999}", ["no regular expression"]),
        (r"\q", ["no regular expression"]),
        ("a(?=b)", ["looks around"]),
        ("(?!b)a", ["looks around"]),
        ("(?<=a)b", ["looks around"]),
        (r"a\bb", ["looks around"]),
        (r"(a)\1", ["group"]),
        ("(?P<n>a)(?P=n)", ["group"]),
        ("(a)?(?(1)b|c)", ["group"]),
        ("a*+", ["gives back"]),
        ("a{1,2}+", ["gives back"]),
        ("(?>a)", ["gives back"]),
        ("[[:alpha:]]", ["'['", "escape"]),
        ("[a-z&&[^b]]", ["'&&'", "escape"]),
        ("[a--b]", ["'--'", "escape"]),
    ],
)
def test_bad_expressions(pattern: Any, words: list[str]) -> None:
    with pytest.raises(TopologyError) as caught:
        Grammar(regex=pattern)
    for word in ["regex", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\(\?=",
        r"[(?=]",
        r"\\b",
        r"[\b]",
        r"\++",
        r"\}+",
        r"[*+]+",
        r"[\[\]]",
        r"\p{Lu}\P{L}[\p{Greek}x]\pN",
        "[]a]",
        "a+?",
    ],
)
def test_good_expressions(pattern: str) -> None:
    assert Grammar(regex=pattern).source == pattern


@given(st.text(max_size=12))
def test_literal_text_is_always_an_expression(text: str) -> None:
    pattern = re.escape(text) + "x"
    assert Grammar(regex=pattern).source == pattern


@pytest.mark.parametrize("text", ["", "begin: a", "# start\nrestart: a", 'a: "start:"'])
def test_lark_needs_a_beginning(text: str) -> None:
    with pytest.raises(TopologyError, match=r"lark.*start"):
        Grammar(lark=text)


@pytest.mark.parametrize("text", ['start: "a"', 'a: "x"\n\n?start: a', 'start[max_tokens=3]: "a"'])
def test_lark_that_has_one(text: str) -> None:
    assert Grammar(lark=text).source == text


def test_where_the_mistake_is() -> None:
    with pytest.raises(
        TopologyError, match=r"^streams\.output\.grammar\.json_schema: type: JSON has no type 'x'"
    ):
        Topology.from_dict(
            {"streams": {"output": {"direction": "output", "grammar": {"json_schema": {"type": "x"}}}}}
        )
    with pytest.raises(TopologyError, match=r"^streams\.output\.grammar: "):
        Topology.from_dict({"streams": {"output": {"direction": "output", "grammar": {}}}})
    with pytest.raises(TopologyError, match=r"^streams\.output\.grammar: .*mapping"):
        Topology.from_dict({"streams": {"output": {"direction": "output", "grammar": "json"}}})
