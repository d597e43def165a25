"""`braid demo`: the packaged model beside its single-stream baseline, on one typed problem, with both clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from braid.cli.machine import ThreadsOption, load_model
from braid.cli.report import JsonOption, print_json

if TYPE_CHECKING:
    from braid.eval.race import Frame

__all__ = ["app"]

app = typer.Typer(rich_markup_mode="rich", add_completion=False)

QUESTION = (
    "Mia has 34 pens. She buys 3 boxes with 12 pens each. She gives 15 pens to Leo. How many pens does Mia have "
    "now?"
)
SOLUTION = "34;3*12=36;34+36=80;80-15=65;"

_EXAMPLES = """[bold]Examples[/]

braid demo

braid demo "Leo had 20 shells. He found 7 more. How many shells does Leo have?" --pace 8

braid demo --solution "34;3*12=38;34+38=72;72-15=57;" """


@app.command(epilog=_EXAMPLES)
def demo(
    question: Annotated[str, typer.Argument(help="A short number story.")] = QUESTION,
    solution: Annotated[
        str | None, typer.Option(help="Of the story, to be audited; steps like 3+4=7; one after another.")
    ] = None,
    pace: Annotated[float, typer.Option(min=0.1, help="Tokens a second that are typed.")] = 5.0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Type a problem to two small models of the same size: one reads along, the other waits for its turn.

    Both were trained on the same examples. Each clock runs from the last token of the question. Then a solution is
    typed, and audited while it is.
    """
    from rich.console import Console

    from braid.data.tokens import THINK_END
    from braid.eval.race import Racer, audit_along, race
    from braid.streams.presets import topology as preset

    solution = solution if solution is not None else (SOLUTION if question == QUESTION else None)
    ours = Racer(load_model("braid-stories", threads=threads), preset("stories"))
    turns = load_model("braid-stories-turns", threads=threads)
    theirs = Racer(turns, preset("plain"), tuple(turns.codec.encode_template(THINK_END)))
    console = Console()
    with _Screen(console, is_json=json) as show:
        frame = race(ours, theirs, question, per_second=pace, show=show)
    audited: Frame | None = None
    if solution:
        with _Screen(console, is_json=json, audits=True) as show:
            audited = audit_along(ours, question, solution, per_second=pace, show=show)
    if json:
        print_json(_figures(frame, audited))
    else:
        _sum_up(console, frame)


class _Screen:
    """Shows moments as they come; in a pipe the last one alone."""

    def __init__(self, console: Any, *, is_json: bool, audits: bool = False) -> None:
        from rich.live import Live

        self._audits, self._last, self._console, self._is_json = audits, None, console, is_json
        is_live = console.is_terminal and not is_json
        self._live = Live(console=console, auto_refresh=False, transient=False) if is_live else None

    def __enter__(self) -> Any:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._last is not None and not self._is_json:
            self._console.print(_drawn(self._last, audits=self._audits))

    def _show(self, frame: Any) -> None:
        self._last = frame
        if self._live is not None:
            self._live.update(_drawn(frame, audits=self._audits), refresh=True)


def _drawn(frame: Frame, *, audits: bool) -> Any:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if audits:
        body = Table.grid(padding=(0, 2))
        body.add_row("solution", Text(frame.typed, "bold"))
        body.add_row("audit", Text(frame.streams.get("audit", ""), "red"))
        return Panel(body, title="audited while it is typed", border_style="dim")
    body = Table(show_edge=False, expand=True, title=Text(frame.typed, "bold"), title_justify="left")
    body.add_column("")
    body.add_column("streams: reads along", ratio=1)
    body.add_column("turns: reads, thinks, answers", ratio=1)
    body.add_row("thought", Text(frame.streams.get("thought", ""), "cyan"), Text(frame.thought, "cyan"))
    body.add_row("output", Text(frame.streams.get("output", ""), "bold"), Text(frame.answer, "bold"))
    body.add_row("first token", _ms(frame.first), _ms(frame.turns_first))
    body.add_row("whole answer", _ms(frame.waited), _ms(frame.turns_waited))
    return Panel(body, border_style="dim")


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"


def _sum_up(console: Any, frame: Frame) -> None:
    if frame.waited and frame.turns_waited:
        console.print(
            f"From the last token of the question to the whole answer: {_ms(frame.waited)} in streams, "
            f"{_ms(frame.turns_waited)} in turns.",
            highlight=False,
        )


def _figures(frame: Frame, audited: Frame | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "question": frame.typed,
        "streams": {**frame.streams, "first_ms": frame.first, "whole_ms": frame.waited},
        "turns": {
            "thought": frame.thought,
            "output": frame.answer,
            "first_ms": frame.turns_first,
            "whole_ms": frame.turns_waited,
        },
    }
    if audited is not None:
        told["audit"] = {"solution": audited.typed, "audit": audited.streams.get("audit", "")}
    return told
