"""The page of all jobs: its rows and what is around them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from elasticjob_operator.client import Job
from elasticjob_operator.client.samples import goodput_seconds
from elasticjob_operator.dashboard import shell
from elasticjob_operator.html_report import build_table, escape
from elasticjob_operator.view import words

PAGE_ROWS: Final = 50
MOST_QUERY: Final = 200  # characters: each stream looks for all its words in all rows, whenever one has changed
_COLUMNS: Final = ("Namespace", "Name", "Phase", "Pods", "Wanted", "Generation", "Progress", "Goodput", "Age")


@dataclass(frozen=True)
class Row:
    id: str
    order: tuple[str, str, str]  # namespace, name, UID
    text: str  # what a filter looks at, in small letters
    html: str


@dataclass(frozen=True)
class View:
    """One page of the rows that match a query."""

    rows: tuple[Row, ...]
    found: int
    total: int
    page: int
    pages: int


def select(rows: Sequence[Row], query: str, page: int) -> View:
    """The page of the rows that contain every word of the query. A page that does not exist is the nearest one."""
    wanted = set(query[:MOST_QUERY].lower().split())
    found = [row for row in rows if all(word in row.text for word in wanted)] if wanted else rows
    pages = max(1, -(-len(found) // PAGE_ROWS))
    page = min(max(1, page), pages)
    return View(tuple(found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]), len(found), len(rows), page, pages)


def find_changed(rows: Sequence[Row], sent: Mapping[str, str]) -> dict[str, str]:
    """HTML by id, of the rows that differ from what was sent."""
    return {row.id: row.html for row in rows if sent.get(row.id) != row.html}


def job_path(namespace: str, name: str) -> str:
    return "/".join(("/jobs", *(quote(part, safe="", errors="replace") for part in (namespace, name))))


def build_row(job: Job, now: float) -> Row:
    status = job.status
    goodput = words.goodput(status.goodput.measured, *goodput_seconds(job, now))
    progress, wanted = words.progress_text(job), words.wanted(job)
    row_id = f"job-{job.uid}"
    path = escape(job_path(job.namespace, job.name))
    html = (
        f'<tr id="{escape(row_id)}"><td>{escape(job.namespace)}</td>'
        f'<th scope="row"><a id="to-{escape(row_id)}" href="{path}">{escape(job.name)}</a></th>'
        f"<td>{phase(job)}</td>"
        f'<td class="n">{status.rendezvous.world_size}</td><td class="n">{escape(wanted)}</td>'
        f'<td class="n">{status.rendezvous.generation}</td><td class="n">{escape(progress)}</td>'
        f'<td class="n">{escape(goodput)}</td>'
        f'<td class="n">{shell.since(job.created, words.age(job.created, now))}</td></tr>'
    )
    text = f"{job.namespace} {job.name} {job.phase}".lower()
    return Row(row_id, (job.namespace, job.name, job.uid), text, html)


def phase(job: Job) -> str:
    """The phase; its colour only repeats what it says."""
    return f'<span class="phase {job.phase.lower()}">{escape(job.phase)}</span>'


def build_list(view: View, query: str, problem: str) -> str:
    """The content of the page; `region` ids are those that the stream updates."""
    return (
        "<h1>Jobs</h1>"
        '<form role="search" method="get" action="/" id="filter"><label for="q">Filter by namespace, name or phase'
        f'</label><input id="q" name="q" type="search" value="{escape(query)}" autocomplete="off" spellcheck="false" '
        f'maxlength="{MOST_QUERY}">'
        "<button>Filter</button></form>"
        f'<div id="problem">{shell.build_problem(problem)}</div>'
        f'<p id="count" role="status">{count_text(view)}</p>'
        '<div class="wide" role="region" aria-label="Table of jobs" tabindex="0" id="jobs">'
        f"{build_table(_COLUMNS, (row.html for row in view.rows))}</div>"
        f'<nav aria-label="Pages" id="pages">{build_pages(view, query)}</nav>'
    )


def count_text(view: View) -> str:
    if not view.total:
        return "There are no ElasticJobs here yet."
    many = f"{view.total:,} job{'' if view.total == 1 else 's'}"
    return many if view.found == view.total else f"{view.found:,} of {many}"


def build_pages(view: View, query: str) -> str:
    if view.pages == 1:
        return ""
    shown = sorted({1, 2, view.page - 1, view.page, view.page + 1, view.pages - 1, view.pages})
    links = []
    before = 0
    for page in (p for p in shown if 1 <= p <= view.pages):
        links.append("<span>…</span>" if page > before + 1 else "")
        here = ' aria-current="page"' if page == view.page else ""
        target = escape("/?" + urlencode({"q": query, "page": page}, errors="replace"))
        links.append(f'<a id="page-{page}" href="{target}"{here} aria-label="Page {page}">{page}</a>')
        before = page
    return "".join(links)
