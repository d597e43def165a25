"""The figures of a run in words."""

from __future__ import annotations

from pathlib import Path

from braid.sessions.live import LiveResult
from braid.streams.events import SummaryEvent

__all__ = ["count", "ending", "kept", "summary_lines"]


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "row"), count(4000, "row")
    ('1 row', '4,000 rows')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def summary_lines(summary: SummaryEvent, ms_per_row: float | None = None) -> list[str]:
    """What a run took, in a few short lines.

    Args:
        summary: The figures.
        ms_per_row: Milliseconds a row while streams spoke, where that was watched.
    """
    streams = " · ".join(f"{name} {number:,}" for name, number in summary.tokens.items())
    figures = [
        f"{count(summary.rows, 'row')} in {summary.seconds:.1f} s",
        f"cache {count(summary.kv_tokens, 'token')}, {_size(summary.kv_bytes)}",
    ]
    if ms_per_row is not None:
        figures.insert(1, f"{ms_per_row:.0f} ms a row")
    lines = [" · ".join(figures), f"tokens: {streams} · longest stream {summary.msl:,}"]
    if summary.ttfat_s is not None:
        lines.append(_when(summary.ttfat_s, summary.tnft))
    return lines


def _when(ttfat_s: float, tnft: int | None) -> str:
    if ttfat_s == 0:
        return "The answer began before the input had ended."
    after = "in the next row" if not tnft else f"{count(tnft, 'row')} later"
    return f"The answer began {after}, {ttfat_s:.2f} s after the end of the input."


def ending(outcome: LiveResult) -> str | None:
    """Why a run ended before its turn was over; None where it did not."""
    rows = count(outcome.summary.rows, "row")
    if outcome.ended_by == "max_rows":
        return f"Stopped after {rows}, the limit; to let it finish, give more with --max-rows."
    return f"Interrupted after {rows}." if outcome.ended_by == "stop" else None


def kept(saved: Path | None) -> str | None:
    """Where the transcript is."""
    return None if saved is None else f"Saved to {saved}; look at it with: braid inspect {saved}"


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
