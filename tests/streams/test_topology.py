from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from pydantic import BaseModel, ValidationError

from braid.errors import BraidError, SamplingError, TopologyError, UnknownKeyError, UnknownStreamError
from braid.streams.patterns import Dense, Striped, Window, parse_pattern
from braid.streams.topology import AdaptiveWait, SamplingSpec, StreamSpec, Topology, Trigger
from tests.streams.strategies import UNHURRIED, topologies

INPUT = {"direction": "input"}
OUTPUT = {"direction": "output"}

SCHEMA = jsonschema.Draft202012Validator(Topology.json_schema())

DESIGN = """
streams:
  user:      {direction: input,  priority: high, max_latency_ms: 50}
  document:  {direction: input}
  thought:   {direction: output, priority: medium, visibility: internal, max_streams: 4}
  tool_call: {direction: output, priority: high, visibility: internal}
  output:    {direction: output, priority: high, streaming: true, chunk_size: 8, wait_k: 3}
  audit:     {direction: output, priority: low, trigger: {on: tool_call}, visibility: internal}
same_row: earlier
reads: {tool_call: [user], output: [user, document, thought], user: []}
forbid: [[document, tool_call]]
"""


def build(**fields: Any) -> Topology:
    return Topology.from_dict({"streams": {"user": INPUT, "output": OUTPUT}} | fields)


def with_output(**settings: Any) -> Topology:
    return Topology.from_dict({"streams": {"user": INPUT, "output": OUTPUT | settings}})


# ---- spelling


def test_the_designs_example_is_read():
    topology = Topology.from_yaml(DESIGN)
    assert list(topology.streams) == ["user", "document", "thought", "tool_call", "output", "audit"]
    assert topology.input_names == ("user", "document")
    assert topology.output_names == ("thought", "tool_call", "output", "audit")
    assert topology.streams["audit"].trigger == Trigger(on="tool_call")
    assert topology.streams["user"].max_latency_ms == 50
    assert topology.streams["output"].wait_k == 3
    assert topology.forbid == (("document", "tool_call"),)


@settings(UNHURRIED, max_examples=60)
@given(topologies())
def test_round_trips_lose_nothing(topology: Topology):
    text = topology.to_yaml()
    again = Topology.from_yaml(text)
    assert again == topology
    assert hash(again) == hash(topology)
    assert tuple(again.streams) == tuple(topology.streams)
    assert again.to_yaml() == text
    assert Topology.from_dict(json.loads(json.dumps(topology.to_dict()))) == topology


@settings(UNHURRIED, max_examples=30)
@given(topologies())
def test_other_yaml_readers_understand_what_is_written(topology: Topology):
    assert Topology.from_dict(yaml.safe_load(topology.to_yaml())) == topology


def test_schema_is_one():
    SCHEMA.check_schema(SCHEMA.schema)


@settings(UNHURRIED, max_examples=30)
@given(topologies())
def test_what_is_written_fits_the_schema(topology: Topology):
    SCHEMA.validate(topology.to_dict())


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"streams": {"user": {}}},
        {"streams": {"user": INPUT | {"drection": "input"}}},
        {"streams": {"output": OUTPUT | {"wait_k": 0}}},
        {"streams": {"output": OUTPUT | {"wait_k": {"adaptive": {"threshold": 2}}}}},
        {"streams": {"output": OUTPUT | {"trigger": "never"}}},
        {"streams": {"output": OUTPUT | {"sampling": {"top_p": 0}}}},
        {"streams": {"output": OUTPUT | {"grammar": {"json_schema": False}}}},
        {"streams": {"output": OUTPUT | {"grammar": {"regexp": "a"}}}},
        {"streams": {"output": OUTPUT}, "patterns": {"output": {"output": "window(x)"}}},
        {"streams": {"output": OUTPUT}, "forbid": [["output"]]},
    ],
)
def test_schema_refuses_what_the_topology_refuses(data: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(data)
    with pytest.raises(TopologyError):
        Topology.from_dict(data)


def test_defaults_are_left_out():
    assert build(same_row="earlier", reads={}, tool_flows=None).to_dict() == {
        "streams": {"user": INPUT, "output": OUTPUT}
    }


def test_no_tool_flows_differs_from_unsaid_ones():
    assert build(tool_flows=[]).to_dict()["tool_flows"] == []
    assert build(tool_flows=[]) != build()


def test_order_of_streams_is_part_of_a_topology():
    turned = Topology.from_dict({"streams": {"output": OUTPUT, "user": INPUT}})
    assert turned != build()
    assert build() == build()
    assert build() != "a topology"


@pytest.mark.parametrize(
    ("spelled", "read"),
    [
        (None, None),
        (3, 3),
        ("end", "end"),
        ("adaptive", AdaptiveWait()),
        ({"adaptive": {}}, AdaptiveWait()),
        ({"adaptive": {"threshold": 0.9, "max": 4}}, AdaptiveWait(threshold=0.9, max=4)),
    ],
)
def test_wait_k_spellings(spelled: Any, read: Any):
    topology = with_output(wait_k=spelled)
    assert topology.streams["output"].wait_k == read
    assert Topology.from_dict(topology.to_dict()) == topology


def test_adaptive_by_default_is_one_word():
    assert with_output(wait_k="adaptive").to_dict()["streams"]["output"]["wait_k"] == "adaptive"


def test_numbers_with_exponents_are_numbers():
    text = """
streams:
  a: {direction: input, max_latency_ms: 1e3}
  b: {direction: output, sampling: {temperature: 1e-3}}
"""
    topology = Topology.from_yaml(text)
    assert topology.streams["a"].max_latency_ms == 1000
    assert topology.streams["b"].sampling.temperature == 0.001


@pytest.mark.parametrize(
    "text",
    [
        "\x85",
        "\u2028 a",
        "a\u2029\n",
        "\ufeff",
        "\x00\x07",
        " \t",
        "\r\n",
        "a\n\n b \n",
        "é 🙂",
        "'\"\\",
        "%s",
    ],
)
def test_texts_survive_to_the_character(text: str):
    topology = build(description=text, streams={"output": OUTPUT | {"stop": [text], "prefix": text * 50}})
    assert Topology.from_yaml(topology.to_yaml()) == topology


def test_anchors_and_merges_work():
    text = """
streams:
  a: &in {direction: input, priority: high}
  b: {<<: *in, priority: low}
  c: {direction: output}
"""
    topology = Topology.from_yaml(text)
    assert topology.streams["b"] == StreamSpec(direction="input", priority="low")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("streams:\n  user: {direction: input}\n  user: {direction: input}", ["line 3", "'user'", "twice"]),
        ("streams: {a: {direction: output, direction: input}}", ["line 1", "'direction'", "twice"]),
        ("streams: [", ["line 1", "not YAML"]),
        ("", ["mapping", "streams"]),
        ("- a", ["mapping", "streams"]),
        ("{[a]: b}", ["line 1", "word"]),
        ("streams: !!python/object:os.system {}", ["not YAML"]),
        ("streams: !!bool maybe", ["cannot be read"]),
        ("a: 1\n---\nb: 2", ["not YAML"]),
        (f"streams: {'[' * 500}", ["cannot be read"]),
    ],
)
def test_bad_yaml_is_refused_with_its_place(text: str, words: list[str]):
    with pytest.raises(TopologyError) as caught:
        Topology.from_yaml(text)
    for word in words:
        assert word in str(caught.value)


def test_messages_stay_short_for_values_that_are_vast():
    bomb = "x: &a [1, 1]\n" + "".join(
        f"x{i}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
    )
    with pytest.raises(TopologyError) as caught:
        Topology.from_yaml(bomb + "streams: *j")
    assert len(str(caught.value)) < 2000


# ---- keys and values


@pytest.mark.parametrize(
    ("data", "path", "near"),
    [
        ({"stream": {}}, "stream:", "streams"),
        ({"streams": {"a": OUTPUT | {"chunksize": 2}}}, "streams.a.chunksize:", "chunk_size"),
        (
            {"streams": {"a": OUTPUT | {"sampling": {"temprature": 1}}}},
            "streams.a.sampling.temprature:",
            "temperature",
        ),
        ({"streams": {"a": OUTPUT | {"trigger": {"onn": "b"}}}}, "streams.a.trigger.onn:", "on"),
        ({"streams": {"a": OUTPUT | {"wait_k": {"adaptiv": {}}}}}, "streams.a.wait_k.adaptiv:", "adaptive"),
        (
            {"streams": {"a": OUTPUT | {"wait_k": {"adaptive": {"treshold": 1}}}}},
            "streams.a.wait_k.adaptive.treshold:",
            "threshold",
        ),
        ({True: 1}, "True:", "streams"),
    ],
)
def test_unknown_keys_are_named_with_path_and_nearest(data: dict[Any, Any], path: str, near: str):
    with pytest.raises(UnknownKeyError) as caught:
        Topology.from_dict(data)
    assert str(caught.value).startswith(path)
    assert f"did you mean '{near}'?" in str(caught.value)


def test_an_unknown_key_comes_before_other_faults():
    with pytest.raises(UnknownKeyError, match=r"^streams\.b\.fed: .*'feed'.*; streams\.a\.chunk_size: "):
        Topology.from_dict({"streams": {"a": OUTPUT | {"chunk_size": 0}, "b": INPUT | {"fed": "burst"}}})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"chunk_size": 0}, ["chunk_size", "greater than or equal to 1", "not 0"]),
        ({"chunk_size": True}, ["chunk_size"]),
        ({"chunk_size": "3"}, ["chunk_size"]),
        ({"max_streams": 0}, ["max_streams"]),
        ({"max_tokens": 0}, ["max_tokens"]),
        ({"streaming": "yes"}, ["streaming"]),
        ({"streaming": False, "chunk_size": 4}, ["chunk_size", "streaming"]),
        ({"priority": "hgh"}, ["priority", "'high', 'medium' or 'low'"]),
        ({"visibility": "hidden"}, ["visibility", "internal"]),
        ({"wait_k": 0}, ["wait_k", "1 or more"]),
        ({"wait_k": True}, ["wait_k", "1 or more"]),
        ({"wait_k": "soon"}, ["wait_k", "'end'"]),
        ({"wait_k": {"adaptive": {"threshold": 0}}}, ["wait_k.adaptive.threshold"]),
        ({"wait_k": {"adaptive": {"max": 0}}}, ["wait_k.adaptive.max"]),
        ({"trigger": "never"}, ["trigger", "'always'"]),
        ({"trigger": {"on": "user", "pattern": "("}}, ["trigger.pattern", "escape"]),
        ({"trigger": {}}, ["trigger.on", "required"]),
        ({"stop": "x"}, ["stop", "list"]),
        ({"stop": [""]}, ["stop[0]"]),
        ({"prefix": ""}, ["prefix"]),
        ({"feed": "burst"}, ["feed", "input"]),
        ({"max_latency_ms": 5}, ["max_latency_ms", "input"]),
        ({"sampling": {"temperature": -1}}, ["sampling.temperature"]),
        ({"sampling": {"temperature": float("nan")}}, ["sampling.temperature"]),
        ({"sampling": {"top_k": 0, "temperature": 1}}, ["sampling.top_k"]),
        ({"sampling": {"top_p": 1.1, "temperature": 1}}, ["sampling.top_p"]),
        ({"sampling": {"min_p": 1, "temperature": 1}}, ["sampling.min_p"]),
        ({"sampling": {"repetition_penalty": 0}}, ["sampling.repetition_penalty"]),
        ({"sampling": {"seed": -1}}, ["sampling.seed"]),
        ({"sampling": {"logit_bias": {-1: 1.0}}}, ["sampling.logit_bias"]),
        ({"sampling": {"logit_bias": {1: float("inf")}}}, ["sampling.logit_bias"]),
        ({"sampling": {"top_k": 5}}, ["sampling", "top_k", "temperature above 0"]),
        ({"grammar": {"regex": "("}}, ["grammar.regex", "escape"]),
        ({"grammar": {"regex": "a", "lark": "start: a"}}, ["grammar", "exactly one"]),
        ({"held_by": ["usr"]}, ["held_by", "'user'"]),
        ({"held_by": ["output"]}, ["held_by", "itself"]),
        ({"held_by": ["user", "user"]}, ["held_by", "twice"]),
        ({"trigger": {"on": "usr"}}, ["trigger.on", "'user'"]),
        ({"trigger": {"on": "output"}}, ["trigger.on", "wake"]),
        ({"instructions": "x"}, ["instructions", "views"]),
    ],
)
def test_bad_settings_of_an_output(settings: dict[str, Any], words: list[str]):
    with pytest.raises(TopologyError) as caught:
        with_output(**settings)
    assert str(caught.value).startswith("streams.output")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chunk_size", 2),
        ("streaming", False),
        ("max_streams", 2),
        ("trigger", {"on": "output"}),
        ("wait_k", "end"),
        ("sampling", {"temperature": 1.0}),
        ("grammar", {"regex": "x"}),
        ("stop", ["x"]),
        ("max_tokens", 5),
        ("instructions", "x"),
        ("prefix", "x"),
        ("held_by", ["output"]),
    ],
)
def test_settings_of_outputs_are_refused_on_inputs(name: str, value: Any):
    with pytest.raises(TopologyError) as caught:
        build(streams={"user": INPUT | {name: value}, "output": OUTPUT})
    assert str(caught.value).startswith(f"streams.user.{name}: is for output streams")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"streams": {}}, ["streams", "direction: output"]),
        ({"streams": {"user": INPUT}}, ["streams", "direction: output"]),
        ({"streams": {"a b": OUTPUT}}, ["streams.a b"]),
        ({"streams": {"a#1": OUTPUT}}, ["streams.a#1"]),
        ({"streams": {3: OUTPUT}}, ["streams", "3"]),
        ({"streams": {"preamble": OUTPUT}}, ["streams.preamble", "another"]),
        ({"streams": {"output": None}}, ["streams.output", "mapping"]),
        ({"streams": {"output": {}}}, ["streams.output.direction", "required"]),
        ({"reads": {"outptu": []}}, ["reads", "'output'"]),
        ({"reads": {"output": ["usr"]}}, ["reads.output", "'user'"]),
        ({"reads": {"output": ["user", "user"]}}, ["reads.output", "twice"]),
        ({"reads": {"output": "user"}}, ["reads.output", "list"]),
        ({"patterns": {"outptu": {}}}, ["patterns", "'output'"]),
        ({"patterns": {"output": {"usr": "dense"}}}, ["patterns.output", "'user'"]),
        ({"patterns": {"output": {"user": "windw(3)"}}}, ["patterns.output.user", "window(16)"]),
        ({"patterns": {"output": {"user": "window(0)"}}}, ["patterns.output.user", "window(1)"]),
        ({"patterns": {"output": {"user": "striped(4, 4)"}}}, ["patterns.output.user", "0 to 3"]),
        ({"patterns": {"output": {"user": 3}}}, ["patterns.output.user", "window(16)"]),
        ({"patterns": {"user": {"output": "window(3)"}}}, ["patterns.user.output", "reads.user"]),
        ({"forbid": [["usr", "output"]]}, ["forbid[0]", "'user'"]),
        ({"forbid": [["user", "outptu"]]}, ["forbid[0]", "'output'"]),
        ({"forbid": [["user"]]}, ["forbid[0]", "pair"]),
        ({"forbid": ["ab"]}, ["forbid[0]", "pair"]),
        ({"forbid": [["output", "output"]]}, ["forbid[0]", "itself"]),
        ({"tool_flows": [["user", "output"]]}, ["tool_flows[0]", "output that calls"]),
        ({"tool_flows": [["output", "usr"]]}, ["tool_flows[0]", "'user'"]),
        ({"same_row": "all"}, ["same_row", "'earlier' or 'none'"]),
        ({"silence": "gone"}, ["silence", "'dropped' or 'kept'"]),
        ({"decoding": "rowz"}, ["decoding", "'rows' or 'views'"]),
        ({"system": "x"}, ["system", "views"]),
        ({"decoding": "views", "silence": "kept"}, ["silence", "rows"]),
        ({"decoding": "views", "streams": {"output": OUTPUT}}, ["decoding", "direction: input"]),
        ({"decoding": "views", "reads": {"user": ["output"]}}, ["reads.user", "rows"]),
        (
            {"streams": {"user": INPUT, "output": OUTPUT | {"wait_k": 2}}, "reads": {"output": []}},
            ["streams.output.wait_k", "reads.output"],
        ),
        (
            {"streams": {"a": OUTPUT | {"trigger": {"on": "b"}}, "b": OUTPUT | {"trigger": {"on": "a"}}}},
            ["trigger.on", "always"],
        ),
    ],
)
def test_bad_topologies(fields: dict[str, Any], words: list[str]):
    with pytest.raises(TopologyError) as caught:
        build(**fields)
    for word in words:
        assert word in str(caught.value)


def test_a_chain_of_triggers_that_starts_somewhere_is_fine():
    chain = {"a": OUTPUT, "b": OUTPUT | {"trigger": {"on": "a"}}, "c": OUTPUT | {"trigger": {"on": "b"}}}
    assert Topology.from_dict({"streams": chain}).streams["c"].trigger == Trigger(on="b")


# ---- construction in Python


def test_pythons_constructors_raise_our_errors():
    output = StreamSpec(direction="output")
    with pytest.raises(TopologyError, match="reads: there is no stream 'x'"):
        Topology(streams={"output": output}, reads={"x": ()})
    with pytest.raises(UnknownKeyError, match="did you mean 'same_row'"):
        Topology(streams={"output": output}, same_rows="none")  # type: ignore[call-arg]
    with pytest.raises(TopologyError, match=r"^streams\.output\.chunk_size: "):
        Topology(streams={"output": {"direction": "output", "chunk_size": 0}})  # type: ignore[dict-item]
    with pytest.raises(TopologyError, match=r"^chunk_size: "):
        StreamSpec(direction="output", chunk_size=0)
    with pytest.raises(TopologyError):
        Trigger(on="user", pattern="(")
    with pytest.raises(TopologyError):
        AdaptiveWait(threshold=0)
    with pytest.raises(TopologyError, match="mapping"):
        Topology.from_dict([1])  # type: ignore[arg-type]


def test_sampling_has_an_error_of_its_own():
    with pytest.raises(SamplingError, match=r"^temperature: "):
        SamplingSpec(temperature=-1)
    with pytest.raises(SamplingError, match="temperature above 0"):
        SamplingSpec(top_p=0.9)
    with pytest.raises(UnknownKeyError):
        SamplingSpec(temp=1)  # type: ignore[call-arg]
    assert SamplingSpec().is_greedy
    assert not SamplingSpec(temperature=0.7, top_p=0.9).is_greedy
    assert SamplingSpec(top_p=1.0, min_p=0.0, top_k=1, seed=3).is_greedy


def test_a_topology_inside_another_model_is_reported_with_its_path():
    class Outer(BaseModel):
        topology: Topology

    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"topology": {"streams": {"a": {"direction": "output", "chunk_size": 0}}}})
    assert caught.value.errors()[0]["loc"] == ("topology", "streams", "a", "chunk_size")
    assert "topology" in Outer.model_json_schema()["properties"]


def test_a_topology_cannot_be_changed():
    topology = build()
    with pytest.raises(ValidationError):
        topology.same_row = "none"  # type: ignore[misc]
    with pytest.raises(TypeError):
        topology.streams["x"] = StreamSpec(direction="input")  # type: ignore[index]
    with pytest.raises(TypeError):
        topology.reads["output"] = ()  # type: ignore[index]


def test_the_callers_mapping_is_not_kept():
    streams = {"output": StreamSpec(direction="output")}
    topology = Topology(streams=streams)
    streams["b"] = StreamSpec(direction="input")
    assert list(topology.streams) == ["output"]


def test_copies_are_checked_again():
    topology = build()
    assert topology.model_copy(update={"same_row": "none"}).same_row == "none"
    assert topology.model_copy() == topology
    with pytest.raises(TopologyError):
        topology.model_copy(update={"reads": {"x": ()}})
    with pytest.raises(UnknownKeyError):
        topology.model_copy(update={"read": {}})


@settings(UNHURRIED, max_examples=20)
@given(topologies())
def test_topologies_travel(topology: Topology):
    assert pickle.loads(pickle.dumps(topology)) == topology
    assert copy.deepcopy(topology) == topology


# ---- who reads whom


def test_reads_by_default():
    topology = Topology.from_yaml(DESIGN)
    assert topology.readable("audit") == tuple(topology.streams)
    assert topology.readable("thought") == tuple(topology.streams)
    assert topology.readable("document") == ("user", "document")
    assert topology.readable("user") == ("user",)
    assert topology.readable("tool_call") == ("user", "tool_call")
    assert topology.readable("output") == ("user", "document", "thought", "output")


def test_reads_pair_agrees_with_readable():
    topology = Topology.from_yaml(DESIGN)
    for reader in topology.streams:
        assert topology.reads_pair(reader, reader)
        for read in topology.streams:
            assert topology.reads_pair(reader, read) == (read in topology.readable(reader))


def test_questions_about_unknown_streams():
    topology = build()
    for ask in (
        lambda: topology.stream("usr"),
        lambda: topology.readable("usr"),
        lambda: topology.reads_pair("output", "usr"),
        lambda: topology.reads_pair("usr", "output"),
        lambda: topology.pattern("output", "usr"),
        lambda: topology.pattern("usr", "output"),
    ):
        with pytest.raises(UnknownStreamError, match="did you mean 'user'"):
            ask()


def test_tool_flows_are_inferred_only_from_the_usual_names():
    streams = {"tool_result": INPUT, "tool_call": OUTPUT}
    assert Topology.from_dict({"streams": streams}).resolved_tool_flows == (("tool_call", "tool_result"),)
    assert Topology.from_dict({"streams": streams, "tool_flows": []}).resolved_tool_flows == ()
    assert build().resolved_tool_flows == ()
    both = {"tool_result": OUTPUT, "tool_call": OUTPUT}
    assert Topology.from_dict({"streams": both}).resolved_tool_flows == ()


# ---- patterns


def test_patterns_by_pair():
    topology = build(patterns={"output": {"user": "striped(4, 1)", "output": "window(2)"}})
    assert topology.pattern("output", "user") == Striped(4, 1)
    assert topology.pattern("output", "output") == Window(2)
    assert topology.pattern("user", "user") == Dense()
    assert topology.to_dict()["patterns"] == {"output": {"user": "striped(4, 1)", "output": "window(2)"}}


@pytest.mark.parametrize(
    ("pattern", "seen"),
    [
        (Dense(), [0, 1, 2, 3, 4, 5]),
        (Window(1), [0]),
        (Window(3), [0, 1, 2]),
        (Striped(3, 1), [1, 4]),
        (Striped(2), [0, 2, 4]),
    ],
)
def test_patterns_allow_by_distance(pattern: Dense | Window | Striped, seen: list[int]):
    assert [distance for distance in range(-3, 6) if pattern.allows(distance)] == seen
    assert parse_pattern(str(pattern)) == pattern


def test_patterns_are_read_with_spaces_and_refuse_nonsense():
    assert parse_pattern(" striped( 4 ,1 ) ") == Striped(4, 1)
    for text in ("", "window()", "window(-1)", "window(1.5)", "striped(3)", "dense()", "window(1)x"):
        with pytest.raises(TopologyError):
            parse_pattern(text)
    for bad in (
        lambda: Window(0),
        lambda: Window(True),
        lambda: Striped(0, 0),
        lambda: Striped(2, 2),
        lambda: Striped(2, -1),
    ):
        with pytest.raises(TopologyError):
            bad()


def test_every_refusal_is_a_braid_error():
    assert issubclass(TopologyError, BraidError)
    assert issubclass(UnknownKeyError, TopologyError)
