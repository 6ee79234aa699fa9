"""The HTML page around the plots. All text from the cluster, such as log lines, is escaped. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from elasticjob_operator.client.history import History, Sample, World
from elasticjob_operator.client.model import Happening
from elasticjob_operator.html_report.plot import Mark, clock, draw, spans_decades
from elasticjob_operator.view import words

_MAX_METRICS: Final = 4
_STYLE: Final = """
:root{--ink:#1d2733;--soft:#5b6b7c;--line:#dde3ea;--back:#fff;--card:#f5f7fa;--size:#3569d4;--rate:#1f9d6b;--loss:#c2571a;
--bad:#c62f3b;--mark:#9aa7b5}
@media (prefers-color-scheme:dark){:root{--ink:#e4eaf1;--soft:#9aa9b9;--line:#2e3946;--back:#12181f;--card:#1b242e;
--size:#7aa5ff;--rate:#4fd09c;--loss:#f0995f;--bad:#ff7680;--mark:#5d6c7c}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1000px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:1.8rem 0 .5rem}.soft,.none{color:var(--soft);fill:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:.6rem;margin:1.2rem 0}
.tile{background:var(--card);border-radius:8px;padding:.6rem .8rem}.tile b{display:block;font-size:1.3rem}
.tile span{color:var(--soft);font-size:.85rem}
svg{width:100%;height:auto;display:block;margin:.4rem 0}svg text{font:12px system-ui,sans-serif;fill:var(--soft)}
svg .title{font-size:13px;font-weight:600;fill:var(--ink)}.grid{stroke:var(--line)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.area{opacity:.16}
.line.size{stroke:var(--size)}.area.size{fill:var(--size)}.line.rate{stroke:var(--rate)}circle.rate{fill:var(--rate)}
.line.loss{stroke:var(--loss)}circle.loss{fill:var(--loss)}
.mark line{stroke:var(--mark);stroke-dasharray:3 3}.fault line{stroke:var(--bad);stroke-dasharray:3 3}
g .touch{stroke:transparent!important;stroke-width:9}
table{border-collapse:collapse;width:100%;font-size:.92rem}th{text-align:left;color:var(--soft);font-weight:500}
th,td{padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}.bad{color:var(--bad)}
pre{background:var(--card);padding:.8rem;border-radius:8px;overflow-x:auto;font-size:.85rem}
"""


@dataclass(frozen=True)
class Facts:
    """The text of the page."""

    name: str
    namespace: str
    phase: str
    written: float
    failure: str = ""  # the last failure, as text


def render(facts: Facts, history: History, last: Sample | None) -> str:
    """The whole page."""
    start = history.start if history.start is not None else facts.written
    end = max(history.end or start, start + 1)
    marks = _marks(history, start)
    plots = [
        draw("World size (pods)", history.sizes, start=start, end=end, style="size", marks=marks, steps=True),
        draw("Throughput (steps a second)", history.throughput, start=start, end=end, style="rate", marks=marks),
    ]
    for name in list(history.metrics)[:_MAX_METRICS] or ["loss"]:
        points = history.metrics.get(name, ())
        plots.append(draw(name, points, start=start, end=end, style="loss", marks=marks, log=spans_decades(points)))
    body = [
        f'<h1>{escape(facts.name)} <span class="soft">{escape(facts.namespace)}</span></h1>',
        f'<div class="soft">ElasticJob, {escape(facts.phase)}. Written {_date(facts.written)}; the time axis begins '
        f"{_date(start)}.</div>",
        _tiles(history, last),
        *plots,
        "<h2>Generations</h2>",
        _worlds(history.worlds, start),
    ]
    body += ["<h2>What happened</h2>", _notable(history.notable, start)] if history.notable else []
    body += ["<h2>Last failure</h2>", f"<pre>{escape(facts.failure)}</pre>"] if facts.failure else []
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(facts.name)}: ElasticJob report</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _marks(history: History, start: float) -> list[Mark]:
    found = []
    for world in history.worlds:
        if world.time is None:
            continue
        cost = f", {words.seconds_exact(world.seconds)}" if world.seconds is not None else ""
        text = f"{clock(world.time - start)} generation {world.generation}: {world.size} pods: {world.cause}{cost}"
        found.append(Mark(world.time, text, "fault" if is_failure(world) else "mark"))
    return found


def is_failure(world: World) -> bool:
    """Whether the generation was caused by a failure, as opposed to a requested change."""
    return any(word in world.cause for word in ("lost", "failed"))


def _tiles(history: History, last: Sample | None) -> str:
    tiles: list[tuple[str, str]] = []
    if last is not None:
        trained, lost = last.training_seconds, last.lost_seconds
        tiles.append((words.goodput(last.measured, trained, lost), "goodput: time that trained"))
        tiles.append((words.duration(trained), "trained"))
        tiles.append((words.duration(lost), "lost to starts and recoveries"))
    costs = [w.seconds for w in history.worlds if w.seconds is not None]
    tiles.append((str(max(0, len(history.worlds) - 1)), "rescales"))
    if costs:
        tiles.append((words.seconds_exact(sorted(costs)[len(costs) // 2]), f"median recovery of {len(costs)}"))
        tiles.append((words.seconds_exact(max(costs)), "longest recovery"))
    if last is not None and last.step is not None:
        total = f" of {last.total_steps}" if last.total_steps and last.step <= last.total_steps else ""
        tiles.append((str(last.step), f"steps{total}"))
    if last is not None and math.isfinite(last.metrics.get("loss", math.nan)):
        tiles.append((words.number(last.metrics["loss"]), "loss"))
    cells = (f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for value, label in tiles)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _worlds(worlds: Sequence[World], start: float) -> str:
    if not worlds:
        return '<p class="soft">No world was formed yet.</p>'
    rows = []
    for world in worlds:
        style = ' class="bad"' if is_failure(world) else ""
        when = clock(world.time - start) if world.time is not None else "-"
        rows.append(
            f'<tr><td class="n">{world.generation}</td><td class="n">{when}</td><td class="n">{world.size}</td>'
            f'<td{style}>{escape(world.cause or "-")}</td><td class="n">{words.seconds_exact(world.seconds)}</td></tr>'
        )
    head = "<tr><th>Generation</th><th>At</th><th>Pods</th><th>Cause</th><th>Seconds without training</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _notable(events: Sequence[Happening], start: float) -> str:
    rows = []
    for event in events:
        when = clock(event.time - start) if event.time is not None else "-"
        style = ' class="bad"' if event.type == "Warning" else ""
        rows.append(
            f'<tr><td class="n">{when}</td><td{style}>{escape(event.reason)}</td><td>{escape(event.message)}</td></tr>'
        )
    return f"<table><tr><th>At</th><th>Event</th><th></th></tr>{''.join(rows)}</table>"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
