"""The figures of a run in words."""

from __future__ import annotations

from pathlib import Path

from braid.sessions.live import LiveResult
from braid.streams.events import SummaryEvent

__all__ = ["count", "notes", "summary_lines"]


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "row"), count(4000, "row")
    ('1 row', '4,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def summary_lines(summary: SummaryEvent) -> list[str]:
    """What a run took, in a few short lines."""
    streams = " · ".join(f"{name} {number:,}" for name, number in summary.tokens.items())
    lines = [
        f"{count(summary.rows, 'row')} in {summary.seconds:.1f} s · tokens: {streams} · "
        f"longest stream {summary.msl:,} · cache {count(summary.kv_tokens, 'token')}, {_size(summary.kv_bytes)}"
    ]
    if summary.ttfat_s is None:
        return lines
    if summary.ttfat_s == 0:
        lines.append("The answer began before the input had ended.")
    else:
        after = f"{count(summary.tnft, 'row')} and " if summary.tnft is not None else ""
        lines.append(f"The answer began {after}{summary.ttfat_s:.2f} s after the end of the input.")
    return lines


def notes(outcome: LiveResult, saved: Path | None) -> list[str]:
    """What a person should know besides."""
    found: list[str] = []
    if outcome.ended_by == "max_rows":
        found.append(
            f"Stopped after {count(outcome.summary.rows, 'row')}, the limit; give more with --max-rows to let it finish."
        )
    if outcome.ended_by == "stop":
        found.append(f"Interrupted after {count(outcome.summary.rows, 'row')}.")
    if saved is not None:
        found.append(f"Saved to {saved}; look at it with: braid inspect {saved}")
    return found


def _size(num_bytes: int) -> str:
    """Bytes for people.

    >>> _size(512), _size(6_200_000)
    ('512 B', '6.2 MB')
    """
    size = float(num_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
