from __future__ import annotations

import io

from braid.model.progress import Progress, ignore, reporting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


STEPS = [Progress("fetch", "Fetching", done, 100) for done in (0, 50, 100)] + [
    Progress("convert", "Converting", 1, 2)
]


def test_a_log_gets_one_line_a_message() -> None:
    file = io.StringIO()
    with reporting(None, file) as report:
        for step in STEPS:
            report(step)
    assert file.getvalue() == "Fetching\nConverting\n"


def test_a_terminal_gets_a_bar_a_stage() -> None:
    file = Terminal()
    with reporting(None, file) as report:
        for step in STEPS:
            report(step)
    shown = file.getvalue()
    assert "Fetching" in shown
    assert "100%" in shown
    assert "Converting" in shown
    assert "50%" in shown


def test_nothing_is_shown_where_nothing_is_done() -> None:
    file = Terminal()
    with reporting(None, file):
        pass
    assert file.getvalue() == ""


def test_a_callback_is_called_and_nothing_is_shown() -> None:
    seen: list[Progress] = []
    file = Terminal()
    with reporting(seen.append, file) as report:
        for step in STEPS:
            report(step)
    assert seen == STEPS
    assert file.getvalue() == ""
    with reporting(ignore, file) as report:
        report(STEPS[0])
    assert file.getvalue() == ""
