"""Findings as people see them, one line each, while the checks run."""

from __future__ import annotations

from rich.console import Console
from rich.status import Status
from rich.text import Text

from braid.checks.finding import CheckReport, Finding

__all__ = ["CheckShow"]

_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("–", "yellow")}


class CheckShow:
    """Prints what is being checked, and what was found.

    Args:
        to_stderr: Leave standard output to a program.
    """

    def __init__(self, *, to_stderr: bool) -> None:
        self._console = Console(stderr=to_stderr, highlight=False)
        self._status: Status | None = None

    def start(self, name: str) -> None:
        """An invariant is about to be run."""
        if self._console.is_terminal:
            self._status = self._console.status(f"{name.replace('_', ' ')} …")
            self._status.start()

    def finding(self, finding: Finding) -> None:
        """It was run."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        mark, color = _MARKS[finding.ok]
        line = Text.assemble((mark, color), f" {finding.name.replace('_', ' '):<24}")
        if finding.value is not None and finding.bound is not None:
            line.append(
                f"{finding.value:8.2g} ≤ {finding.bound:<6g}"
                if finding.bound
                else f"{finding.value:8g}{'':9}"
            )
        line.append(f"{finding.seconds:6.1f} s  ", style="dim")
        line.append(finding.detail, style="dim")
        self._console.print(line, soft_wrap=True)

    def finish(self, report: CheckReport) -> None:
        """All were run."""
        if report.ok:
            skipped = sum(finding.ok is None for finding in report.findings)
            note = f"; {skipped} skipped" if skipped else ""
            verdict = Text(f"{report.model} is served rightly in {report.dtype}{note}.", style="bold green")
        else:
            failed = ", ".join(name.replace("_", " ") for name in report.failed)
            verdict = Text(
                f"{report.model} is not served rightly in {report.dtype}: {failed}.", style="bold red"
            )
        self._console.print(verdict)
