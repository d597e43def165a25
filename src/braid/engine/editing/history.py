"""The conversation before the input, where a snapshot tells it: messages may be changed, removed and added.

    snapshot  [user A][assistant B][user C]      preamble: A, B      input: C
    snapshot  [user A'][assistant B][user C]     back to the first token of the preamble that differs, and on from there

A session of views has the conversation so far in its preamble, and its last message, which the model answers, in its
first input. So a snapshot of messages is two things: another preamble, and a text. Everything reads the preamble: where
it changes, the input is computed anew behind it, in every mode. Where it does not, only the last message has changed,
and all is as without messages.

A turn that is taken back leaves a preamble of another conversation in the cache. What it has in common with the one
that is wanted stays; the rest is computed like that of any turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from braid.engine.backend import PREAMBLE
from braid.engine.session.preamble import Preamble
from braid.engine.session.rowmaker import enter_preamble
from braid.errors import InputError
from braid.model.chat import Chat
from braid.streams.text import require_whole

if TYPE_CHECKING:
    from braid.engine.session.conversation import Conversation

__all__ = ["ROLES", "History", "Standing", "enter", "spelled", "stand_on", "standing_on", "told_history"]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Who may have said a message."""

_ASKING = ("user", "tool")
"""Whose message may be the last one, which is answered."""

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class History:
    """What a snapshot tells of the conversation.

    Args:
        messages: All of them, as plain data; the last one is the input's.
        preamble: What they make of the session's preamble.
    """

    messages: Messages
    preamble: Preamble

    def put_before(self, conversation: Conversation) -> None:
        """Have a session of views want this preamble; its cache is as it was."""
        held = conversation.stage.preamble
        assert held is not None, "messages are for topologies of views"
        conversation.stage.preamble = self.preamble.with_cache_of(held)


def told_history(
    conversation: Conversation, texts: Mapping[str, str], messages: Messages
) -> tuple[dict[str, str], History]:
    """What messages say of a session's inputs, and of what was before them; nothing is changed.

    Args:
        conversation: The session.
        texts: What the same snapshot says of other inputs, by stream.
        messages: The whole conversation; the last message is the first input's text.

    Returns:
        The texts by stream, and the conversation before them.

    Raises:
        InputError: There is no message, or one is damaged, or of an unknown role; the last one is not the user's; the
            first input's text is told twice; the topology is not one of views.
        ChatTemplateError: The model's template refuses these messages.
    """
    preamble = _settled(conversation)
    chat = _read(messages)
    inputs = conversation.topology.input_names
    if not inputs:
        raise InputError("the topology has no input stream for the last message")
    if inputs[0] in texts:
        raise InputError(
            f"the snapshot tells {inputs[0]} twice: by name, and as the last message; leave one of them out"
        )
    told = {inputs[0]: messages[-1].get("content") or "", **texts}
    edit = conversation.edit
    before = None if edit is None else edit.history
    if before is not None and _same(before.messages, messages):
        history = History(list(messages), before.preamble)  # not rendered again for every key
    else:
        history = History(list(messages), preamble.retold(chat.history, chat.asking))
    return told, history


def spelled(
    conversation: Conversation, texts: Mapping[str, str], history: History
) -> tuple[dict[str, str], Messages]:
    """The texts and messages of one snapshot that tells what texts and a history do, by any ways they came."""
    first = conversation.topology.input_names[0]
    last = {**history.messages[-1], "content": texts.get(first, "")}
    others = {stream: text for stream, text in texts.items() if stream != first}
    return others, [*history.messages[:-1], last]


def _settled(conversation: Conversation) -> Preamble:
    """The preamble as it was before the turn."""
    edit = conversation.edit
    books = conversation if edit is None or edit.base is None else edit.base
    if books.stage.preamble is None:
        raise InputError(
            "messages are for topologies of views, whose template has a place for what was said before; tell one of "
            "rows by stream, and its past in earlier turns"
        )
    return books.stage.preamble


def _read(messages: Messages) -> Chat:
    """The conversation that messages spell.

    Raises:
        InputError
    """
    chat = Chat.of(messages)
    for number, message in enumerate(messages):
        role = message["role"]
        if role not in ROLES:
            raise InputError(f"message {number} has the role {role!r}; roles are {', '.join(ROLES)}")
        try:
            require_whole(json.dumps(dict(message), ensure_ascii=False))
        except (TypeError, ValueError) as error:
            raise InputError(f"message {number} is no plain data: {error}") from None
    if chat.asking.role not in _ASKING:
        raise InputError(
            f"the last message is the {chat.asking.role}'s, and the model answers the user's: let the messages end "
            "with it, empty as it may be so far"
        )
    return chat


def _same(first: Messages, second: Messages) -> bool:
    """Whether two conversations differ in the text of the last message at most."""
    return list(first[:-1]) == list(second[:-1]) and _rest(first[-1]) == _rest(second[-1])


def _rest(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "content"}


class Standing(NamedTuple):
    """What a new run can have of the one before.

    Args:
        holds: Whether both stand on the same conversation, so that what stands behind it may hold.
        num_held: Tokens of the preamble that the cache has already.
    """

    holds: bool
    num_held: int


def stand_on(twin: Conversation, run: Conversation, history: History | None) -> Standing:
    """Let a double begin where a history ends; between two forwards.

    Args:
        twin: The double of how a session stood before its turn; nothing has been told to it.
        run: The session, whose cache has the preamble of what was followed last.
        history: What the newest snapshot tells of it; None where it tells nothing.
    """
    wanted, held = twin.stage.preamble, run.stage.preamble
    if wanted is None or held is None:
        return Standing(True, 0)
    if history is not None:
        history.put_before(twin)
        wanted = twin.stage.preamble
        assert wanted is not None, "it was just put there"
    is_same = wanted.says_as(held) and not held.is_stale
    num_held = len(wanted.wanted_ids) if is_same else wanted.num_common(held.cached_ids)
    if num_held < held.num_cached:
        run.forget({PREAMBLE: num_held})
    enter(twin, num_held)
    return Standing(is_same, num_held)


def standing_on(base: Conversation, history: History | None) -> Conversation:
    """The books of a session before a turn that stands on a history; nothing of that is cached."""
    if history is None:
        return base
    twin = base.double()
    history.put_before(twin)
    return twin


def enter(conversation: Conversation, num_held: int) -> None:
    """Note that the cache holds so many tokens of the preamble that is wanted."""
    preamble = conversation.stage.preamble
    assert preamble is not None, "it has one"
    kept, missing = preamble.missing(1 << 30)
    is_longer = not missing and preamble.is_stale
    if num_held > kept or (num_held == kept and is_longer):
        enter_preamble(conversation.stage, conversation.record, kept, missing[: num_held - kept])
    elif num_held < preamble.num_cached:
        preamble.has_cached(num_held)
