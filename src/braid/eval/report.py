"""Reports: a few kinds of blocks, as Markdown, and as one HTML page with plots that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Bars", "Block", "Curve", "Heading", "Table", "Text", "to_html", "to_markdown"]

_COLOURS = ("#2f6f6a", "#c2703d", "#7a6ba8", "#8a8a8a")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 240, 46, 34, 14


@dataclass(frozen=True)
class Heading:
    """A heading; level 1 is the title."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table; all cells are text already."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bars:
    """Bars in groups.

    Args:
        title: What they show, with its unit.
        groups: Name of a group → name of a bar → its value and the ends of its interval.
        top: Of the axis; None takes the largest value.
    """

    title: str
    groups: Mapping[str, Mapping[str, tuple[float, float, float]]]
    top: float | None = None


@dataclass(frozen=True)
class Curve:
    """Points that belong together.

    Args:
        title: What it shows, with its unit.
        axis: What goes along.
        points: Place, value, and the ends of its interval.
        top: Of the axis.
    """

    title: str
    axis: str
    points: Sequence[tuple[float, float, float, float]]
    top: float | None = None


Block = Heading | Text | Table | Bars | Curve


def to_markdown(blocks: Sequence[Block]) -> str:
    """Markdown; plots become tables."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Heading(text, level):
                parts.append(f"{'#' * level} {text}")
            case Text(text):
                parts.append(text)
            case Table(header, rows):
                parts.append(_table(header, rows))
            case Bars(title, groups):
                names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
                rows = [
                    [group, *(_value(bars.get(name)) for name in names)] for group, bars in groups.items()
                ]
                parts.append(f"{title}\n\n{_table(['', *names], rows)}")
            case Curve(title, axis, points):
                rows = [[f"{x:g}", _value((y, low, high))] for x, y, low, high in points]
                parts.append(f"{title}\n\n{_table([axis, ''], rows)}")
    return "\n\n".join(parts) + "\n"


def to_html(blocks: Sequence[Block]) -> str:
    """One HTML page, plots drawn in it."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    body: list[str] = []
    for block in blocks:
        match block:
            case Heading(text, level):
                body.append(f"<h{level}>{html.escape(text)}</h{level}>")
            case Text(text):
                body.append(f"<p>{html.escape(text)}</p>")
            case Table(header, rows):
                body.append(_html_table(header, rows))
            case Bars():
                body.append(
                    f"<figure>{_draw_bars(block)}<figcaption>{html.escape(block.title)}</figcaption></figure>"
                )
            case Curve():
                body.append(
                    f"<figure>{_draw_curve(block)}<figcaption>{html.escape(block.title)}</figcaption></figure>"
                )
    return _PAGE.format(title=html.escape(title), body="\n".join(body))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _value(value: tuple[float, float, float] | None) -> str:
    if value is None:
        return ""
    y, low, high = value
    return f"{y:.3g}" if low == high else f"{y:.3g} ({low:.3g} to {high:.3g})"


def _draw_bars(block: Bars) -> str:
    names = list(dict.fromkeys(name for bars in block.groups.values() for name in bars))
    top = (
        block.top
        or max((high for bars in block.groups.values() for _, _, high in bars.values()), default=1)
        or 1
    )
    group_width = (_WIDTH - _LEFT) / max(1, len(block.groups))
    width = min(44.0, group_width * 0.8 / max(1, len(names)))
    parts = _frame(top)
    for place, (group, bars) in enumerate(block.groups.items()):
        centre = _LEFT + group_width * (place + 0.5)
        start = centre - width * len(names) / 2
        for number, name in enumerate(names):
            if name not in bars:
                continue
            y, low, high = bars[name]
            x, colour = start + width * number, _COLOURS[number % len(_COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{_y(y, top):.1f}" width="{width - 3:.1f}" '
                f'height="{max(0.0, _y(0, top) - _y(y, top)):.1f}" fill="{colour}"/>'
                f'<line x1="{x + width / 2:.1f}" x2="{x + width / 2:.1f}" y1="{_y(low, top):.1f}" '
                f'y2="{_y(high, top):.1f}" class="interval"/>'
            )
        parts.append(f'<text x="{centre:.1f}" y="{_HEIGHT - 14}" class="name">{html.escape(group)}</text>')
    for number, name in enumerate(names):
        x = _LEFT + 8 + number * 130
        parts.append(
            f'<rect x="{x}" y="2" width="9" height="9" fill="{_COLOURS[number % len(_COLOURS)]}"/>'
            f'<text x="{x + 14}" y="10" class="key">{html.escape(name)}</text>'
        )
    return _svg(parts, block.title)


def _draw_curve(block: Curve) -> str:
    top = block.top or max((high for *_, high in block.points), default=1) or 1
    first, last = block.points[0][0], block.points[-1][0]
    span = (last - first) or 1

    def along(x: float) -> float:
        return _LEFT + 20 + (x - first) / span * (_WIDTH - _LEFT - 40)

    line = " ".join(f"{along(x):.1f},{_y(y, top):.1f}" for x, y, _, _ in block.points)
    parts = [*_frame(top), f'<polyline points="{line}" fill="none" stroke="{_COLOURS[0]}" stroke-width="2"/>']
    for x, y, low, high in block.points:
        parts.append(
            f'<line x1="{along(x):.1f}" x2="{along(x):.1f}" y1="{_y(low, top):.1f}" y2="{_y(high, top):.1f}" '
            f'class="interval"/><circle cx="{along(x):.1f}" cy="{_y(y, top):.1f}" r="3.5" fill="{_COLOURS[0]}"/>'
            f'<text x="{along(x):.1f}" y="{_HEIGHT - 14}" class="name">{x:g}</text>'
        )
    parts.append(
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 1}" class="name">{html.escape(block.axis)}</text>'
    )
    return _svg(parts, block.title)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - min(value, top) / top * (_HEIGHT - _BOTTOM - _TOP)


def _frame(top: float) -> list[str]:
    return [
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(value, top):.1f}" y2="{_y(value, top):.1f}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{_y(value, top) + 4:.1f}" class="tick">{value:.3g}</text>'
        for value in (0, top / 4, top / 2, 3 * top / 4, top)
    ]


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title, quote=True)}">'
        + "".join(parts)
        + "</svg>"
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; --ink: #1d2124; --page: #fbfaf7; --faint: #d9d6cf; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6e4df; --page: #17191b; --faint: #3a3d40; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 54rem;
       margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: .9rem; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid var(--faint); text-align: left; }}
figure {{ margin: 1.5rem 0; }} figcaption {{ font-size: .9rem; }}
svg {{ width: 100%; height: auto; }} svg text {{ fill: var(--ink); font-size: 11px; }}
.name {{ text-anchor: middle; }} .tick {{ text-anchor: end; }} .grid {{ stroke: var(--faint); }}
.interval {{ stroke: var(--ink); }}
</style></head><body>
{body}
</body></html>
"""
