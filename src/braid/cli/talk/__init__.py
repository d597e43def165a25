"""A conversation in the terminal: type while it talks, see it think, interrupt.

    the input line ── type, enter ──▶ ChatController ── write, end, interrupt ──▶ Session
                                          │   ◀──────────── events ─────────────────┘
                                        TalkState: turns, states, figures
                                          ▼
                       ChatApp in a terminal, LineMode elsewhere

The controller and the state know nothing of the terminal, so that they can be tested alone and shown otherwise; only
`app`, `panes` and `line_input` import `textual`. It lives in `cli` beside `show`, because it is a way to use a session
and not a part of one.
"""

from __future__ import annotations

from braid.cli.talk.chat_session import ChatSession
from braid.cli.talk.controller import ChatController
from braid.cli.talk.turns import TalkState, Turn
from braid.cli.talk.words import split_words

__all__ = ["ChatController", "ChatSession", "TalkState", "Turn", "split_words"]
