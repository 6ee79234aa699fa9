"""The HTML page around the plots. All text from the cluster, such as log lines, is escaped. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from elasticjob_operator.client.history import History, Sample
from elasticjob_operator.html_report.picture import build_picture
from elasticjob_operator.html_report.plot import escape
from elasticjob_operator.html_report.style import STYLE


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
    picture = build_picture(history, last, facts.written)
    start = history.start if history.start is not None else facts.written
    body = [
        f'<h1>{escape(facts.name)} <span class="soft">{escape(facts.namespace)}</span></h1>',
        f'<div class="soft">ElasticJob, {escape(facts.phase)}. Written {_date(facts.written)}; the time axis begins '
        f"{_date(start)}.</div>",
        picture.tiles,
        picture.plots,
        "<h2>Lost time</h2>",
        picture.lost,
        "<h2>Generations</h2>",
        picture.worlds,
    ]
    body += ["<h2>What happened</h2>", picture.notable] if picture.notable else []
    body += ["<h2>Last failure</h2>", f"<pre>{escape(facts.failure)}</pre>"] if facts.failure else []
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(facts.name)}: ElasticJob report</title><style>{STYLE}</style></head>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
