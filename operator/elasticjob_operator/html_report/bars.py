"""Who was in the world at which rank, and how the time was spent: bars as inline SVG. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from elasticjob_operator.client.history import Stay
from elasticjob_operator.html_report.plot import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Mark,
    Scale,
    clock,
    draw_mark,
    draw_times,
    escape,
)
from elasticjob_operator.view import words

COLOURS: Final = 8  # of nodes; further nodes use them again
MOST_LANES: Final = 24
_LANE: Final = 18
_LETTER: Final = 6.5  # pixels, about
_BAR: Final = 22


def draw_stays(
    stays: Sequence[Stay], *, start: float, end: float, processes: int = 1, marks: Sequence[Mark] = ()
) -> str:
    """One lane for each pod rank, with a bar for each pod that had it; its colour and text are the node.

    `processes`: of each pod, for the ranks as the script sees them.
    """
    ranks = sorted({stay.rank for stay in stays})
    shown = ranks[:MOST_LANES]
    nodes = {node: i for i, node in enumerate(sorted({stay.node for stay in stays}))}
    bottom = TOP + _LANE * max(1, len(shown))
    x = Scale(start, max(end, start + 1), LEFT, WIDTH - RIGHT)
    title = "Ranks and their nodes" + (
        f" (the first {MOST_LANES} of {len(ranks)} pods)" if len(ranks) > MOST_LANES else ""
    )
    parts = [f'<svg viewBox="0 0 {WIDTH} {bottom + BOTTOM}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>')
    lanes = {rank: TOP + i * _LANE for i, rank in enumerate(shown)}
    for rank, top in lanes.items():
        label = words.ranks(range(rank * processes, (rank + 1) * processes))
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{top + 13}" text-anchor="end">{label}</text>')
    parts += [_stay(stay, x, lanes[stay.rank], nodes[stay.node] % COLOURS) for stay in stays if stay.rank in lanes]
    parts += [draw_mark(x, mark, bottom) for mark in marks]
    return "".join([*parts, *draw_times(x, bottom + BOTTOM - 6), "</svg>"])


def _stay(stay: Stay, x: Scale, top: float, colour: int) -> str:
    left, right = x.at(max(stay.start, x.low)), x.at(max(stay.end, x.low))
    width = round(max(1.5, right - left), 2)
    first, last = stay.generations
    worlds = f"generation {first}" if first == last else f"generations {first} to {last}"
    node = stay.node or "no node"
    when = f"{clock(max(0.0, stay.start - x.low))} to {clock(max(0.0, stay.end - x.low))}"
    tip = f"{stay.pod} on {node}: {worlds}, {when}"
    fits = int((width - 8) / _LETTER)
    name = node if len(node) <= fits else node[: fits - 1] + "…" if fits > 4 else ""
    text = f'<text class="in" x="{left + 5}" y="{top + 13}">{escape(name)}</text>' if name else ""
    bar = f'<rect class="n{colour}" x="{left}" y="{top + 2}" width="{width}" height="{_LANE - 4}" rx="2"/>'
    return f"<g>{bar}{text}<title>{escape(tip)}</title></g>"


def draw_shares(title: str, parts: Mapping[str, tuple[float, str]]) -> str:
    """One bar, divided: label → (seconds, style)."""
    total = sum(seconds for seconds, _ in parts.values())
    if total <= 0:
        return ""
    drawn = [f'<svg viewBox="0 0 {WIDTH} {TOP + _BAR + 4}" role="img" aria-label="{escape(title)}">']
    drawn.append(f'<text class="title" x="{LEFT}" y="15">{escape(title)}</text>')
    x = Scale(0, total, LEFT, WIDTH - RIGHT)
    at = 0.0
    for label, (seconds, style) in parts.items():
        left, width = x.at(at), round(x.at(at + seconds) - x.at(at), 2)
        tip = f"{label}: {words.seconds_exact(seconds)}, {words.share(seconds, total - seconds)}"
        drawn.append(
            f'<g><rect class="{style}" x="{left}" y="{TOP}" width="{width}" height="{_BAR}"/>'
            f"<title>{escape(tip)}</title></g>"
        )
        at += seconds
    return "".join([*drawn, "</svg>"])
