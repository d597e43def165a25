"""Tools in words and as grammars: how a model is told of them, and how it is held to them.

<tool_call>
{"name": "search", "arguments": {"query": "tea"}}
</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from braid.errors import BraidError
from braid.server.openai.refusals import refusal
from braid.streams.grammar import Grammar

__all__ = ["answer_grammar", "call_grammar", "spelled_call", "tools_as_text"]

MAX_CALLS = 16
"""A model that has to call would otherwise go on for ever."""

_ANY_OBJECT: dict[str, Any] = {"type": "object"}
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way of writing JSON, that of `json.dumps`, which models have seen most."""

_EXPLAINED = """You can call these functions. Each line describes one, in JSON:
{tools}
To call a function, write its name and its arguments as JSON between these tags, once for each call:
<tool_call>
{{"name": "function name", "arguments": {{"argument": "value"}}}}
</tool_call>"""


def tools_as_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tell of tools in words, for templates that know of none."""
    return _EXPLAINED.format(
        tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    )


def spelled_call(name: str, arguments: Any) -> str:
    """A call as the model would write it."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def call_grammar(
    functions: Mapping[str, Mapping[str, Any] | None],
    *,
    is_single: bool,
    answer: Mapping[str, Any] | None = None,
) -> Grammar:
    """The texts that are calls of these functions, and nothing else.

    Args:
        functions: The JSON schema of the arguments by name; None for any object.
        is_single: Whether there is exactly one call.
        answer: Instead of calls there may be JSON of this schema.
    """
    calls = "call" if is_single else f"call (/\\n/ call){{0,{MAX_CALLS - 1}}}"
    rules = [f"start: {calls}" if answer is None else f"start: {calls} | answer"]
    if answer is not None:
        rules.append(f"answer: %json {json.dumps({**answer, 'x-guidance': _SPACING})}")
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(functions))))
    for number, (name, schema) in enumerate(functions.items()):
        opening = json.dumps(f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ')
        closing = json.dumps("}\n</tool_call>")
        held = {**(schema or {}), **_ANY_OBJECT, "x-guidance": _SPACING}
        rules.append(f"call_{number}: {opening} arguments_{number} {closing}")
        rules.append(f"arguments_{number}: %json {json.dumps(held)}")
    return Grammar(lark="\n".join(rules))


def answer_grammar(schema: Mapping[str, Any] | None, param: str) -> Grammar:
    """The texts that are JSON of a schema, or any JSON object.

    Raises:
        InputError: The schema is none.
    """
    try:
        return Grammar(json_schema=dict(_ANY_OBJECT if schema is None else schema))
    except BraidError as error:
        raise refusal(param, str(error)) from None
