"""Chats as SFT sets have them, in JSON lines or Parquet, to scores in which nothing is placed yet.

{"messages": [{"role": "user", "content": "3 + 4?"},
              {"role": "assistant", "content": "7", "reasoning_content": "Three and four are seven."}]}
{"conversations": [{"from": "human", "value": "3 + 4?"}, {"from": "gpt", "value": "<think>3+4=7</think>7"}]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from braid.data.score import Part, Score, Segment
from braid.data.tables import read_records
from braid.errors import DataCorruptError

__all__ = ["read_chats"]

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant"}
"""Role in `conversations` → the same in `messages`, where they differ."""
_THINK = re.compile(r"^\s*<think>(.*?)</think>\s*", re.DOTALL)


def read_chats(path: str | Path) -> Iterator[Score]:
    """Read chats: `messages` with role and content, or `conversations` with from and value.

    There is an example for each answer of the assistant.

    Reasoning stands in `reasoning_content` (or `reasoning`) of the answer's message, or in `<think>…</think>` at its
    start. Earlier messages are the stream `history`, where there are any; system messages the stream `system`. Nothing
    is placed yet: the thought waits for the whole question, see `braid.data.builders.chats`.

    Raises:
        DataCorruptError: A line is no chat.
        DataError: The file cannot be read.
    """
    for line, data in read_records(path):
        try:
            messages = [_message(message) for message in _messages(data)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataCorruptError(f"{path}, line {line}: this is no chat: {what}") from None
        name = str(data.get("id") or f"{Path(path).stem}-{line}")
        answers = [place for place, (role, _, _) in enumerate(messages) if role == "assistant"]
        for number, place in enumerate(answers, start=1):
            score = _chat_score(messages[: place + 1], name if len(answers) == 1 else f"{name}-{number}")
            if score is not None:
                yield score


def _messages(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """With role and content."""
    if data.get("messages") is not None or data.get("conversations") is None:
        return data["messages"]
    return [
        {**each, "role": _ROLES.get(each["from"], each["from"]), "content": each["value"]}
        if "from" in each
        else each
        for each in data["conversations"]
    ]


def _message(message: Mapping[str, Any]) -> tuple[str, str, str]:
    """Role, reasoning and content."""
    role, content = str(message["role"]), message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in cast("list[Mapping[str, Any]]", content))
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    if not isinstance(content, str) or not isinstance(reasoning, str):
        raise DataCorruptError("content and reasoning are text")
    found = _THINK.match(content)
    if found is not None:
        reasoning, content = reasoning or found[1], content[found.end() :]
    return role, reasoning.strip(), content.strip()


def _chat_score(messages: Sequence[tuple[str, str, str]], name: str) -> Score | None:
    *before, (_, thought, answer) = messages
    asked = before.pop() if before and before[-1][0] == "user" else None
    if asked is None or not asked[2] or not answer:
        return None
    system = "\n".join(content for role, _, content in before if role in ("system", "developer"))
    history = "\n".join(
        f"{role}: {content}" for role, _, content in before if role not in ("system", "developer") and content
    )
    parts = [
        Part(stream, "input", (Segment(text),))
        for stream, text in (("system", system), ("history", history), ("user", asked[2]))
        if text
    ]
    inputs = tuple(part.stream for part in parts)
    heard = dict.fromkeys(inputs, 1)
    if thought:
        parts.append(Part("thought", "output", (Segment(thought, heard),), reads=inputs))
        heard = {**heard, "thought": 1}
    parts.append(Part("output", "output", (Segment(answer, heard),), reads=inputs))
    return Score(name, tuple(parts), {"answer": answer})
