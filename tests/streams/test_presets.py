from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import yaml

from braid.errors import ForbiddenFlowError, TopologyError, UnknownKeyError, UnknownPresetError
from braid.streams.influence import influences
from braid.streams.presets import preset_names, topology
from braid.streams.topology import SamplingSpec, Topology

PRESETS = ["agent", "audit", "chat", "plain", "solve", "stories", "think-aloud"]


def test_the_presets_are_these():
    assert list(preset_names()) == PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_sound(name: str):
    preset = topology(name)
    assert preset.name == name
    assert preset.description
    assert Topology.from_yaml(preset.to_yaml()) == preset
    assert topology(name) is preset
    assert "output" in preset.output_names
    assert "user" in preset.input_names


@pytest.mark.parametrize("name", PRESETS)
def test_preset_files_fit_the_schema(name: str):
    text = files("braid.streams").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), Topology.json_schema())


def test_plain_adds_nothing_to_ordinary_generation():
    plain = topology("plain")
    assert plain.decoding == "views"
    assert plain.system is None
    assert list(plain.streams) == ["user", "output"]
    output = plain.streams["output"]
    assert output.sampling == SamplingSpec()
    assert output.wait_k == "end"
    assert (output.instructions, output.prefix, output.max_tokens, output.stop) == (None, None, None, ())
    assert plain.streams["user"].feed == "burst"


def test_chat_is_one_answer_in_pieces():
    chat = topology("chat")
    assert chat.decoding == "views"
    assert list(chat.streams) == ["user", "output"]
    assert chat.streams["output"].streaming
    assert chat.streams["output"].chunk_size > 1
    assert chat.streams["output"].wait_k == "end"


def test_solve_thinks_beside_the_problem():
    solve = topology("solve")
    assert solve.decoding == "rows"
    assert list(solve.streams) == ["user", "thought", "output"]
    assert solve.readable("thought") == ("user", "thought")
    assert solve.readable("output") == ("user", "thought", "output")
    assert solve.streams["thought"].visibility == "internal"


def test_think_aloud_starts_to_think_before_the_user_has_ended():
    preset = topology("think-aloud")
    thought, output = preset.streams["thought"], preset.streams["output"]
    assert preset.decoding == "views"
    assert thought.visibility == "internal"
    assert thought.max_streams == 4
    assert isinstance(thought.wait_k, int)
    assert thought.max_tokens is not None
    assert output.wait_k == "end"
    assert thought.instructions
    assert output.instructions
    assert preset.reads_pair("output", "thought")


def test_an_auditor_never_influences_what_it_audits():
    audit = topology("audit")
    assert audit.reads_pair("audit", "output")
    assert influences(audit)["output"] == {"user", "output"}
    assert audit.streams["audit"].priority == "low"
    assert audit.streams["audit"].visibility == "internal"


def test_an_agents_calls_depend_on_system_and_user_alone():
    agent = topology("agent")
    closure = influences(agent)
    assert closure["tool_call"] == {"system", "user", "tool_call"}
    assert closure["tool_result"] == {"system", "user", "tool_call", "tool_result"}
    assert closure["output"] == set(agent.streams)
    assert agent.tool_flows == (("tool_call", "tool_result"),)


@pytest.mark.parametrize(
    "reads",
    [
        {"tool_call": ("system", "user", "thought")},
        {"tool_call": ("document",)},
        {"user": ("system", "document")},
        {"tool_call": ("system", "user", "tool_result"), "tool_result": ("document",)},
    ],
)
def test_an_agent_that_lets_documents_through_is_refused(reads: dict[str, tuple[str, ...]]):
    agent = topology("agent")
    with pytest.raises(ForbiddenFlowError) as caught:
        agent.model_copy(update={"reads": dict(agent.reads) | reads})
    assert caught.value.path[0] in ("document", "tool_result")
    assert caught.value.path[-1] == "tool_call"


def test_the_agent_that_its_comment_describes_can_be():
    agent = topology("agent")
    trusting = agent.model_copy(
        update={
            "reads": dict(agent.reads) | {"tool_call": ("system", "user", "tool_result")},
            "forbid": (("document", "tool_call"),),
        }
    )
    assert "tool_result" in influences(trusting)["tool_call"]
    assert "document" not in influences(trusting)["tool_call"]


def test_a_topology_a_mapping_and_a_file_are_accepted(tmp_path: Path):
    solve = topology("solve")
    assert topology(solve) is solve
    assert topology(solve.to_dict()) == solve
    path = tmp_path / "mine.yaml"
    path.write_text(solve.to_yaml(), encoding="utf-8")
    assert topology(path) == solve
    assert topology(str(path)) == solve


@pytest.mark.parametrize(
    ("name", "near"), [("think_aloud", "think-aloud"), ("Plain", "plain"), ("agents", "agent")]
)
def test_an_unknown_name_is_answered_with_the_presets_and_the_nearest(name: str, near: str):
    with pytest.raises(UnknownPresetError) as caught:
        topology(name)
    assert f"did you mean '{near}'?" in str(caught.value)
    assert all(preset in str(caught.value) for preset in PRESETS)


def test_what_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(UnknownPresetError):
        topology(tmp_path / "absent.yaml")
    with pytest.raises(UnknownPresetError):
        topology("a\0b")
    with pytest.raises(UnknownPresetError):
        topology("")
    with pytest.raises(UnknownPresetError):
        topology(tmp_path)
    with pytest.raises(TopologyError, match="cannot be read") as caught:
        topology("long" * 2000)
    assert len(str(caught.value)) < 200
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TopologyError, match="UTF-8"):
        topology(binary)


def test_errors_of_a_file_name_the_file_and_keep_their_class(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("streamz: {}", encoding="utf-8")
    with pytest.raises(UnknownKeyError) as caught:
        topology(path)
    assert str(caught.value).startswith(f"{path}: streamz: unknown key; did you mean 'streams'?")
    path.write_text(
        "streams: {a: {direction: input}, b: {direction: output}}\nforbid: [[a, b]]", encoding="utf-8"
    )
    with pytest.raises(ForbiddenFlowError) as flow:
        topology(path)
    assert flow.value.path == ("a", "b")
    assert str(flow.value).startswith(str(path))
