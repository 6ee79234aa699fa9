"""A status that no operator writes is rendered all the same: whoever may write it breaks no page and no command."""

from __future__ import annotations

import random

import pytest
from rich.console import Console

from chaos import extremes
from dashboard.conftest import job, pod
from elasticjob_operator import api
from elasticjob_operator.api.crd import structural_schema
from elasticjob_operator.client import Happening, Job, Pod
from elasticjob_operator.client.samples import is_news, take_sample
from elasticjob_operator.dashboard import jobpage, listpage
from elasticjob_operator.view import details, tables

NOW = 1_767_225_600.0 + 90
FIELDS = list(extremes.list_fields(structural_schema(api.Status)))
NUMBERS = [field for field in FIELDS if field.schema.get("type") in ("integer", "number")]
LARGE = (0, -1, 1e308, -1e308, 5e-324, 2**63 - 1, -(2**63), 2**31)


def render(status: object) -> None:
    raw = job("odd")
    raw["status"] = status
    parsed, pods = Job.parse(raw), [Pod(pod("odd", 0))]
    listpage.build_row(parsed, NOW)
    first = take_sample(parsed, NOW, None)
    second = take_sample(parsed, NOW + 5, first)
    is_news(first, second)
    jobpage.build_regions(parsed, jobpage.Seen(pods=pods), [first, second], [parsed], now=NOW, form_key="k")
    console = Console(width=200, file=None, quiet=True)
    with console.capture():
        console.print(details.describe(parsed, pods, [], NOW))
        console.print(tables.list_jobs([parsed], NOW, namespaces=True, wide=True))
        console.print(tables.list_top([parsed], NOW))
    details.change_line(parsed, None)


@pytest.mark.parametrize("seed", range(4))
def test_many_fields_with_extremes(seed: int) -> None:
    dice, base = random.Random(seed), job("odd")["status"]
    for _ in range(100):
        told, status = extremes.draw(dice, base, FIELDS, 3)
        try:
            render(status)
        except Exception as error:
            raise AssertionError(told) from error


@pytest.mark.parametrize("seed", range(4))
def test_large_numbers_everywhere(seed: int) -> None:
    """Also where their sums and differences are not finite."""
    dice = random.Random(seed)
    for _ in range(100):
        status = job("odd")["status"]
        for field in NUMBERS:
            status = extremes.put(status, field.path, dice.choice(LARGE))
        render(status)


def test_events_and_states_of_pods_of_a_megabyte_make_no_large_page() -> None:
    """The API server takes events of a megabyte from whoever may write them, and a page shows a hundred."""
    text = "<" * 1_000_000
    subject = {"kind": text, "name": "digits"}
    event = Happening.parse({"involvedObject": subject, "type": text, "reason": text, "message": text})
    waiting = pod("digits", 0)
    waiting["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": text, "message": text}}
    seen = jobpage.Seen([Pod(waiting)], [event] * jobpage.MOST_EVENTS)
    regions = jobpage.build_regions(Job.parse(job()), seen, [], (), now=NOW, form_key="")
    assert sum(map(len, regions.values())) < 2_000_000
    assert "…" in regions["events"]
