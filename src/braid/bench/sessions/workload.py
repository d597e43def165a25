"""What every contender of `braid bench sessions` is given: the same token ids, made the same way each time.

    ┌────────────── in common ──────────────┐┌──── each session's own ────┐
    template  system prompt, 512 tokens       question, 24 to 32 tokens      template        128 tokens of answer

The prompts are what the model's own chat template makes of them. Nobody stops at an end token, and every draw is
greedy, so all contenders do the same work and their answers can be compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

from braid.errors import InputError
from braid.model.chat import ChatFormat
from braid.model.codec import TokenizerCodec

__all__ = ["Dialogue", "Workload", "sessions_workload", "system_prompt", "ten_turns"]

SYSTEM_TOKENS = 512
OUTPUT_TOKENS = 128
TURN_TOKENS = 64
"""Most tokens of an answer in the ten-turn conversation."""

_DUTIES = (
    "You answer letters for the office of a small museum by the river.",
    "Write in plain words, and keep to what these rules and the plan of the house say.",
)
_ROOMS = ("north hall", "map room", "glass house", "tool shed", "reading room", "west tower", "old kitchen")
_SHOWN = ("boats and nets", "clocks", "garden tools", "letters and stamps", "coins", "painted plates")
_KEEPERS = ("Anna", "Peter", "Maria", "Thomas", "Laura")

_NAMES = ("Anna", "Ben", "Clara", "David")
_PLACES = ("north hall", "map room", "glass house", "west tower")
_DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
_WISHES = ("see the clocks", "draw the old boats", "ask about a letter that I found", "meet the keeper")
_COMPANY = ("my two children", "an old friend", "my class", "nobody else")

_TURNS = (
    "Good morning. I would like to bring my class to the museum. Which rooms are best for children of ten?",
    "There are twenty-four of them. Would they all fit into one room, or should they go in two groups?",
    "Some of them like to draw. Where could they sit for half an hour without being in the way?",
    "How long should we plan for the whole visit, with a break for lunch in the middle?",
    "It may rain on that day. What could we do in place of the garden?",
    "One child walks with a stick. Which parts of the house have many stairs?",
    "What should I tell the children before we come, so that they know how to behave?",
    "Could you propose three questions that they might try to answer while they look around?",
    "Please put all that we have agreed on into a short list that I can print.",
    "Thank you. What is the best way to tell you if we have to change the date?",
)


@dataclass(frozen=True)
class Workload:
    """Sessions that ask different things under one system prompt.

    Attributes:
        system: The system prompt.
        users: What each session asks.
        prompt_ids: The whole prompts, the assistant's header included.
        system_tokens: Tokens of the system prompt by itself.
        output_tokens: Tokens of each answer.
    """

    system: str
    users: tuple[str, ...]
    prompt_ids: tuple[tuple[int, ...], ...]
    system_tokens: int
    output_tokens: int

    @property
    def digest(self) -> str:
        """Twelve digits that tell this work from any other."""
        work = json.dumps([self.prompt_ids, self.output_tokens])
        return hashlib.sha256(work.encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """What another process needs to know."""
        return {
            "prompt_ids": [list(ids) for ids in self.prompt_ids],
            "output_tokens": self.output_tokens,
            "digest": self.digest,
        }


@dataclass(frozen=True)
class Dialogue:
    """What one user says, turn by turn.

    Attributes:
        system: The system prompt.
        users: The user's messages.
        output_tokens: Most tokens of an answer; here an end token does end it, as it would for a person.
    """

    system: str
    users: tuple[str, ...]
    output_tokens: int


def sessions_workload(
    codec: TokenizerCodec,
    sessions: int,
    *,
    system_tokens: int = SYSTEM_TOKENS,
    output_tokens: int = OUTPUT_TOKENS,
) -> Workload:
    """Make the work of so many sessions. The first of many are the same as of few.

    Args:
        codec: The model's tokenizer.
        sessions: How many, 1 to 256.
        system_tokens: Tokens of the system prompt, as near as whole words and full stops come to it.
        output_tokens: Tokens of each answer.

    Raises:
        InputError: A number is out of its range.
        ChatTemplateError: The model's chat template cannot be taken apart.
    """
    most = len(_NAMES) * len(_PLACES) * len(_DAYS) * len(_WISHES)
    if not 1 <= sessions <= most:
        raise InputError(f"{sessions} sessions are asked for; there are questions for 1 to {most}")
    if output_tokens < 1:
        raise InputError(f"output_tokens is {output_tokens}; each session answers with at least one")
    system = system_prompt(codec, system_tokens)
    users = tuple(_questions(sessions))
    chat = ChatFormat.bare(codec, system) if codec.chat_template is None else ChatFormat(codec, system)
    before, after = tuple(chat.encode_preamble()), tuple(chat.encode_closer())
    prompts = tuple(before + tuple(codec.encode(user)[0]) + after for user in users)
    return Workload(system, users, prompts, len(codec.encode(system)[0]), output_tokens)


def ten_turns(
    codec: TokenizerCodec, *, system_tokens: int = SYSTEM_TOKENS, output_tokens: int = TURN_TOKENS
) -> Dialogue:
    """Make a conversation of ten turns under the same system prompt; see `sessions_workload`."""
    return Dialogue(system_prompt(codec, system_tokens), _TURNS, output_tokens)


def system_prompt(codec: TokenizerCodec, tokens: int) -> str:
    """Return a text of so many tokens, or the nearest below that whole words and full stops come to.

    Raises:
        InputError: `tokens` is too few for a sentence, or too many to have been thought of.
    """
    words = _house_rules().split(" ")

    def size(count: int) -> int:
        return len(codec.encode(" ".join(words[:count]))[0])

    least, most = size(len(_DUTIES[0].split(" "))), size(len(words))
    if not least <= tokens <= most:
        raise InputError(
            f"a system prompt can have {least} to {most} tokens with this tokenizer, not {tokens}"
        )
    few, many = 1, len(words)
    while few < many:  # the last count of words that still fits
        middle = (few + many + 1) // 2
        few, many = (middle, many) if size(middle) <= tokens else (few, middle - 1)
    text = " ".join(words[:few])
    while len(codec.encode(longer := text + " .")[0]) <= tokens:
        text = longer
    return text


def _house_rules() -> str:
    """A text that is longer than any system prompt will be asked to be."""
    rooms = product(_ROOMS, _SHOWN, _KEEPERS)
    rules = (
        f"Rule {number}: the {room} shows {shown}, is kept by {keeper}, and takes {5 + number % 20} guests at a time."
        for number, (room, shown, keeper) in enumerate(rooms, 1)
    )
    return " ".join([*_DUTIES, *rules])


def _questions(sessions: int) -> Sequence[str]:
    """So many questions, no two alike, and neighbours different from the first word on."""
    askers = product(_DAYS, _PLACES, _WISHES, _NAMES)
    return [
        f"{name} here. On {day} I would like to come to the {place} with {_COMPANY[index // 3 % 4]} and {wish}. "
        f"What should I know?"
        for index, (day, place, wish, name) in enumerate(islice(askers, sessions))
    ]
