"""A chat becomes streams: what the template takes is left to it, the rest is written as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from braid.errors import InputError
from braid.model.chat import ChatFormat
from braid.model.codec import TokenizerCodec
from braid.server.openai.messages import Conversation, spoken, traits_of
from braid.server.openai.shapes import ChatMessage, Tool
from braid.streams.presets import topology
from braid.streams.topology import Topology
from tests.fakes import CHATML, byte_tokenizer
from tests.model.test_chat import GEMMA, LLAMA3
from tests.server.openai.test_default_model import HERMES

TEMPLATES = {"chatml": CHATML, "gemma": GEMMA, "llama3": LLAMA3, "hermes": HERMES}
CODECS = {name: TokenizerCodec(byte_tokenizer(template)) for name, template in TEMPLATES.items()}
BARE = TokenizerCodec(byte_tokenizer(None))
TOOL = Tool.model_validate({"type": "function", "function": {"name": "weather"}})
CALL: dict[str, Any] = {"id": "c1", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}


def chat(*messages: tuple[str, Any], **others: Any) -> list[ChatMessage]:
    return [
        ChatMessage.model_validate({"role": role, "content": content, **others}) for role, content in messages
    ]


def prompt(codec: TokenizerCodec, conversation: Conversation) -> str:
    """The whole prompt of a session of one input."""
    chat, (text,) = conversation.chat, conversation.inputs.values()
    assert chat is not None
    if codec.chat_template is None:
        made = ChatFormat.bare(codec)
    else:
        made = ChatFormat(codec, conversation.topology.system, chat.options, chat=chat)
    return made.preamble(chat.history) + text + made.closer(chat.history)


def test_what_templates_do_is_found_by_trying() -> None:
    hermes = traits_of(CODECS["hermes"])
    assert (hermes.shows_tools, hermes.keeps_calls, hermes.has_tool_role) == (True, True, True)
    chatml = traits_of(CODECS["chatml"])
    assert (chatml.shows_tools, chatml.keeps_calls, chatml.has_tool_role) == (False, False, True)
    assert not traits_of(CODECS["gemma"]).has_tool_role
    assert traits_of(CODECS["llama3"]).trims
    assert not chatml.trims
    assert not traits_of(BARE).exists


@pytest.mark.parametrize("name", TEMPLATES)
def test_plain_conversations_are_what_the_template_makes_of_them(name: str) -> None:
    codec = CODECS[name]
    said = [("user", "Hi."), ("assistant", "Hello!"), ("user", " How are you? \n")]
    if name != "gemma":  # has no such role
        said.insert(0, ("system", "Be brief."))
    whole = codec.render_chat([{"role": role, "content": text} for role, text in said], answer_next=True)
    assert prompt(codec, spoken(topology("plain"), chat(*said), codec)) == whole


def test_tools_calls_and_results_are_left_to_a_template_that_knows_them() -> None:
    messages = chat(("user", "Weather?"))
    messages += chat(("assistant", None), tool_calls=[CALL]) + chat(("tool", "clear"), tool_call_id="c1")
    codec = CODECS["hermes"]
    function = {"name": "weather", "arguments": json.loads(CALL["function"]["arguments"])}
    plain: list[Any] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "clear", "tool_call_id": "c1"},
    ]
    tools = {"tools": [TOOL.model_dump(exclude_none=True)]}
    whole = codec.render_chat(plain, answer_next=True, options=tools)
    assert prompt(codec, spoken(topology("plain"), messages, codec, tools=[TOOL])) == whole


@pytest.mark.parametrize("name", ["chatml", "gemma"])
def test_what_a_template_does_not_know_is_told_in_words(name: str) -> None:
    messages = chat(("user", "Weather?"))
    messages += chat(("assistant", "I look."), tool_calls=[CALL, {**CALL, "id": "c2"}])
    messages += chat(("tool", "clear"), tool_call_id="c1") + chat(("tool", "rain"), tool_call_id="c2")
    whole = prompt(CODECS[name], spoken(topology("plain"), messages, CODECS[name], tools=[TOOL]))
    assert whole.count('{"name": "weather", "arguments": {"city": "Paris"}}') == 2
    assert whole.index("You can call these functions") < whole.index("Weather?")
    assert whole.index("I look.") < whole.index("clear") < whole.index("rain")


def test_without_a_template_contents_follow_each_other() -> None:
    said = [("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello!"), ("user", "Bye.")]
    assert prompt(BARE, spoken(topology("plain"), chat(*said), BARE)) == "Be brief.\n\nHi.\n\nHello!\n\nBye."


def test_each_role_has_its_stream_where_there_is_one() -> None:
    said = chat(("system", "Be brief."), ("user", "Weather?"))
    made = spoken(topology("agent"), said, CODECS["chatml"], documents=["One.", "Two."])
    assert made.chat is None
    assert made.inputs == {"system": "Be brief.", "user": "Weather?", "document": "One.\n\nTwo."}
    asked = spoken(topology("agent"), [*said, *chat(("tool", "clear"))], CODECS["chatml"])
    assert asked.inputs["tool_result"] == "clear"


def test_what_has_no_stream_goes_before_the_users_words() -> None:
    said = chat(("system", "Be brief."), ("user", "Weather?"))
    made = spoken(topology("solve"), said, CODECS["chatml"], documents=["One."])
    assert made.inputs == {"user": "One.\n\nBe brief.\n\nWeather?"}
    views = spoken(topology("think-aloud"), said, CODECS["chatml"], documents=["One."])
    assert views.inputs == {"user": "One.\n\nWeather?"}
    assert views.topology.system == "Be brief."


def test_earlier_answers_are_told_apart_where_there_is_no_template() -> None:
    said = chat(("user", "Hi."), ("assistant", "Hello!"), ("user", "Bye."))
    made = spoken(topology("solve"), said, CODECS["chatml"])
    assert made.inputs == {"user": "User: Hi.\n\nAssistant: Hello!\n\nUser: Bye."}


def test_views_with_streams_of_their_own() -> None:
    streams = {
        "system": {"direction": "input"},
        "user": {"direction": "input"},
        "document": {"direction": "input"},
    }
    made = spoken(
        Topology.from_dict({"decoding": "views", "streams": {**streams, "output": {"direction": "output"}}}),
        chat(("system", "Be brief."), ("user", "Hi.")),
        CODECS["chatml"],
        documents=["One."],
    )
    assert made.inputs == {"system": "Be brief.", "user": "Hi.", "document": "One."}
    assert made.topology.system is None


@pytest.mark.parametrize("last", [("user", ""), ("user", None), ("assistant", "")])
def test_there_must_be_something_to_answer(last: tuple[str, Any]) -> None:
    with pytest.raises(InputError, match="nothing to answer") as caught:
        spoken(topology("plain"), chat(("user", "Hi."), last), CODECS["chatml"])
    assert caught.value.param == "messages"


def test_a_tool_that_said_nothing_has_answered() -> None:
    made = spoken(topology("plain"), chat(("user", "Hi."), ("tool", "")), CODECS["chatml"])
    assert made.inputs == {"user": '""'}
