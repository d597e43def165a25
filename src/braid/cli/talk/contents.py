"""What the panes of the conversation say, as styled text: bubbles, asides, the side lane, the line of figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from textual.content import Content

from braid.cli.show.figures import count
from braid.cli.show.wrapping import printable
from braid.cli.talk.turns import Kind, TalkState, Turn
from braid.streams.events import ErrorEvent

__all__ = ["COLORS", "answer", "bubbles", "error_note", "line", "side_lane", "status"]

COLORS: dict[Kind, str] = {"input": "$primary", "inner": "$secondary", "answer": "$success"}
"""One colour for each kind of lane, everywhere in the app."""

_DIM = "$muted"
_CURSOR = "▍"
_HEARD = "◂"
"""Stands in an answer where an aside was read."""

_ADVICE = {
    "cache": "Ctrl-N begins a new conversation; --kv-tokens gives the next one more room.",
    "model.context": "The conversation is as long as the model allows. Ctrl-N begins a new one.",
}
_ADVICE_ELSE = "Ctrl-N begins a new conversation."

Bubble = tuple[str, str, Content]
"""A key that stays the same while the bubble grows, its class, and what it says."""


def bubbles(state: TalkState, turn: Turn) -> Iterator[Bubble]:
    """The bubbles of a turn in order: the question, the answers, and what was said to them."""
    (start, stop), *asides = turn.lines
    if turn.said.strip():
        yield "question", "said", line(turn, start, stop, f"you · turn {turn.number}")
    labels = [label for label in turn.outputs if state.kinds[label] == "answer"]
    if not labels and turn.completed_at is not None and not turn.is_over:
        labels = [label for label, kind in state.kinds.items() if kind == "answer"][:1]
    for label in labels:
        yield label, "answered", answer(state, turn, label)
    for number, (start, stop) in enumerate(asides, start=1):
        yield f"aside-{number}", "said aside", line(turn, start, stop, f"you, while it spoke {_HEARD}")


def line(turn: Turn, start: int, stop: int, title: str) -> Content:
    """A line that was sent; what has not been read yet is dim."""
    border = min(max(turn.num_read, start), stop)
    read, unread = turn.said[start:border], turn.said[border:stop]
    if not read.strip():
        read, unread = "", unread.lstrip()
    return Content.assemble(
        (title, f"bold {COLORS['input']}"), "\n", printable(read.lstrip()), (printable(unread), _DIM)
    )


def answer(state: TalkState, turn: Turn, label: str) -> Content:
    """What an output has said in answer, with marks where asides were read."""
    said = turn.outputs.get(label)
    text = "" if said is None else said.text
    heard = sorted(aside.heard_at for aside in turn.asides if aside.heard_at is not None)
    places = [0, *(min(place, len(text)) for place in heard), len(text)]
    parts: list[str | tuple[str, str]] = []
    for number, (start, stop) in enumerate(pairwise(places)):
        piece = printable(text[start:stop])
        if number:
            space = "" if not piece or piece[0].isspace() else " "
            parts.append((f" {_HEARD}{space}", f"bold {COLORS['input']}"))
        parts.append(piece)
    is_speaking = not turn.is_over and state.is_active(label)
    if not text:
        parts.append((" " if is_speaking else "(nothing)" if turn.is_over else "…", _DIM))
    if is_speaking:
        parts.append((_CURSOR, COLORS["answer"]))
    seconds = turn.seconds_to_answer
    figures = "" if seconds is None else f" · {seconds:.2f} s"
    return Content.assemble((label, f"bold {COLORS['answer']}"), (figures, _DIM), "\n", *parts)


def side_lane(state: TalkState, turn: Turn) -> Content:
    """What the inner streams have said in a turn, each under its name."""
    parts: list[str | tuple[str, str]] = []
    for label, said in turn.outputs.items():
        if state.kinds[label] != "inner":
            continue
        parts += [
            "\n" if parts else "",
            (label, f"bold {COLORS['inner']}"),
            "\n",
            printable(said.text.strip()),
        ]
        if not turn.is_over and state.is_active(label):
            parts.append((_CURSOR, COLORS["inner"]))
    return Content.assemble(*parts)


def status(state: TalkState, kv_tokens: int) -> Content:
    """The state of every stream, and the figures."""
    parts: list[str | tuple[str, str]] = []
    for label, kind in state.kinds.items():
        is_active = state.is_active(label)
        parts += [
            ("● " if is_active else "○ ", COLORS[kind]),
            (label, f"bold {COLORS[kind]}" if is_active else COLORS[kind]),
            (f" {state.word(label)}  ", "" if is_active else _DIM),
        ]
    figures = [count(state.num_rows, "row")]
    if state.rows_per_s is not None:
        figures.append(f"{state.rows_per_s:.0f} rows/s")
    figures.append(f"{count(kv_tokens, 'token')} in KV")
    if state.seconds_to_answer is not None:
        figures.append(f"first answer {state.seconds_to_answer:.2f} s")
    reuse = next((turn.reuse for turn in reversed(state.turns) if turn.is_over), None)
    if reuse is not None:
        ahead = [
            f"ahead of Enter {reuse.reused} of {reuse.read} read",
            f"{reuse.kept} of {reuse.drafted} drafted kept",
            f"{reuse.accepted} guessed right",
        ]
        if reuse.mode != "exact":
            ahead += [f"{reuse.repaired} repaired", f"{reuse.fallbacks} fell back"]
        if reuse.drift is not None:
            ahead.append(f"drift {reuse.drift:.3f}")
        figures.append(", ".join(ahead))
    return Content.assemble(*parts, (" · ".join(figures), _DIM))


def error_note(error: ErrorEvent) -> Content:
    """What ended the conversation, and what can be done."""
    advice = next((text for code, text in _ADVICE.items() if error.code.startswith(code)), _ADVICE_ELSE)
    return Content.assemble(
        ("The conversation cannot go on", "bold $error"),
        "\n",
        printable(error.message),
        "\n",
        (f"Nothing of it is lost: Ctrl-S saves it. {advice}", "bold"),
    )
