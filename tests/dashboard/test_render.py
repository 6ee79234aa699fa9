"""What the pages say: rows, regions, hostile text, colours. No server."""

from __future__ import annotations

import random
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dashboard.conftest import job, pod
from elasticjob_operator import dashboard
from elasticjob_operator.client import Change, Happening, Job, Pod
from elasticjob_operator.client.samples import Sample, take_sample, thin
from elasticjob_operator.dashboard import guard, jobpage, listpage
from elasticjob_operator.dashboard.board import Board
from elasticjob_operator.html_report import STYLE

NOW = 1_767_225_600.0 + 90
HOSTILE = "<script>alert(1)</script>\x1b[31m\x85\u202e\ud800\"'&--><img src=x onerror=alert(2)>"


class Reader(HTMLParser):
    """Checks that tags are closed in order, and collects ids, tags and texts."""

    VOID = frozenset({"input", "meta", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def regions(raw: dict[str, Any], seen: jobpage.Seen | None = None, **more: Any) -> dict[str, str]:
    parsed = Job.parse(raw)
    samples = [take_sample(parsed, NOW - 10), take_sample(parsed, NOW)]
    options: dict[str, Any] = {"now": NOW, "form_key": "key"} | more
    return jobpage.build_regions(parsed, seen or jobpage.Seen(), samples, [parsed], **options)


def page(found: dict[str, str]) -> str:
    return jobpage.build_job("default", "digits", found)


def test_a_row_says_what_the_list_of_the_terminal_says() -> None:
    row = listpage.build_row(Job.parse(job()), NOW)
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row.html)
    plain = [re.sub(r"<[^>]+>", "", cell) for cell in cells]
    assert plain == ["default", "digits", "Running", "2", "4", "3", "40%", "≤90.0%", "90s"]
    assert 'href="/jobs/default/digits"' in row.html


def test_rows_are_found_by_all_words_and_come_in_pages() -> None:
    rows = [listpage.build_row(Job.parse(job(f"job-{i:03}", f"team-{i % 2}")), NOW) for i in range(120)]
    view = listpage.select(rows, "TEAM-1 running", 2)
    assert (view.found, view.total, view.page, view.pages, len(view.rows)) == (60, 120, 2, 2, 10)
    assert listpage.select(rows, "nothing", 7).page == 1
    assert listpage.select(rows, "", 99).page == 3
    changed = listpage.find_changed(rows[:3], {rows[0].id: rows[0].html, rows[1].id: "old"})
    assert set(changed) == {rows[1].id, rows[2].id}


class Searched(str):
    """A text that counts how often somebody looks for a word in it."""

    times = 0

    def __contains__(self, word: object) -> bool:
        Searched.times += 1
        return True


def test_no_filter_costs_more_than_a_person_writes() -> None:
    rows = [listpage.Row("i", ("n", "j", "u"), Searched("n j running"), "")]
    listpage.select(rows, " ".join(f"{number:x}" for number in range(2000)), 1)
    assert 10 < Searched.times <= 100
    listpage.select(rows, "a " * 4000, 1)
    assert Searched.times <= 101, "the same word, once"


def test_pages_are_linked_with_the_filter() -> None:
    rows = [listpage.build_row(Job.parse(job(f"job-{i}")), NOW) for i in range(1000)]
    links = listpage.build_pages(listpage.select(rows, "", 10), 'a b"&')
    assert re.findall(r">([0-9…]+)<", links) == ["1", "2", "…", "9", "10", "11", "…", "19", "20"]
    assert links.count("aria-current") == 1
    assert "q=a+b%22%26&amp;page=9" in links


async def test_the_board_follows_the_watch() -> None:
    board = Board()
    first, other = Job.parse(with_uid(job("b"), "1")), Job.parse(with_uid(job("a"), "2"))
    for found in (first, other):
        board.known[found.uid] = found
        board.apply(Change("ADDED", found), NOW)
    assert [row.order[1] for row in board.view("", 1).rows] == ["a", "b"]
    assert board.find("default", "b") is first
    assert board.find("default", "c") is None and board.find("defaul", "b") is None
    version = board.version
    grown = Job.parse(with_uid(job("b", phase="Failed"), "1"))
    board.known["1"] = grown
    board.apply(Change("MODIFIED", grown), NOW + 1)
    assert board.version > version and board.view("failed", 1).found == 1
    assert [s.phase for s in board.samples("1")] == ["Running", "Failed"]
    board.apply(Change("DELETED", grown), NOW + 2)
    assert board.find("default", "b") is None and board.view("", 1).total == 1 and not board.samples("1")


def with_uid(raw: dict[str, Any], uid: str) -> dict[str, Any]:
    raw["metadata"]["uid"] = uid
    return raw


def test_thinning_keeps_the_changes_of_the_world() -> None:
    samples = [Sample(float(i), "Running", 1 + i // 50, 2, training=i % 50 != 0, step=i) for i in range(200)]
    kept = thin(samples, 60)
    assert len(kept) <= 60 and kept[0] is samples[0] and kept[-1] is samples[-1]
    for start in (50, 100, 150):
        assert {start - 1, start, start + 1} <= {int(s.time) for s in kept}
    changing = [Sample(float(i), "Running", i, 2) for i in range(100)]
    assert thin(changing, 10) == changing[-10:]


def size_of(value: object) -> int:
    """Bytes of samples with all that they hold."""
    size = sys.getsizeof(value)
    if isinstance(value, Sample):
        return size + size_of(vars(value))
    if isinstance(value, dict):
        return size + sum(size_of(one) for pair in value.items() for one in pair)
    return size + (sum(map(size_of, value)) if isinstance(value, list | tuple) else 0)


@pytest.mark.parametrize(("jobs", "changes", "members"), [(300, 12, 2), (10, 60, 64)])
def test_what_is_kept_of_many_jobs_has_a_budget(jobs: int, changes: int, members: int) -> None:
    """Each job of a tenant may change all the time, and each new world has a list of members."""
    board = Board(most=900)
    raw = job()
    listed = [{"pod": f"digits-worker-{n}", "uid": f"u{n}", "node": f"node-{n}", "rank": n} for n in range(members)]
    for turn in range(1, changes + 1):
        raw["status"]["rendezvous"] |= {"generation": turn, "worldSize": members, "members": listed}
        for number in range(jobs):
            seen = board.known[str(number)] = Job.parse(with_uid(raw, str(number)))
            board.apply(Change("MODIFIED", seen), NOW + turn)
    kept = [board.samples(str(number)) for number in range(jobs)]
    assert all(samples[-1].generation == changes for samples in kept), "the latest of each is there"
    assert sum(map(size_of, kept)) < 900 * 4_000


def test_the_regions_of_a_job() -> None:
    raw = job(
        lastFailure={
            "pod": "digits-worker-1", "node": "node-1", "rank": 1, "exitCode": 1, "generation": 2,
            "time": "2026-01-01T00:00:05Z", "traceback": "Traceback:\nValueError: no", "logTail": "the end",
            "message": "the disk is full",
        },
        scaling={"pool": "default", "size": 2, "wanted": 4, "reason": "the others gain more",
                 "speeds": [{"size": 2, "stepSeconds": 0.5}], "expectedGainPercent": 12,
                 "cost": {"perHour": 5.6, "spent": 1.25, "expected": 11.0}},
    )  # fmt: skip
    events = [Happening(NOW - 5, "Warning", "MemberLost", "it is lost", "elasticjob/digits", 3)]
    extra = pod("digits", 7)
    found = regions(raw, jobpage.Seen([Pod(pod("digits", 0)), Pod(extra)], events))
    assert set(found) == set(jobpage.REGIONS)
    told = {name: re.sub(r"<[^>]+>", " ", html) for name, html in found.items()}
    assert "2 pods, 2 processes, generation 3" in told["state"] and "the others gain more" in told["state"]
    assert "rank 1 in digits-worker-1 on node-1: exit code 1" in told["failures"]
    assert "2026-01-01 00:00:05" in told["failures"] and "ValueError: no" in told["failures"]
    assert "the disk is full" in told["failures"]
    assert "the end" in told["failures"] and "MemberLost" in told["failures"]
    assert "expected to change its speed by +12 %" in told["pool"] and "2: 2/s" in told["pool"]
    assert "it costs 5.6 an hour, 1.25 so far, 11 at its end" in told["pool"]
    assert told["members"].split() == [
        *("Ranks", "Pod", "Node", "State", "Logs"),
        *("0", "digits-worker-0", "node-0", "Running", "logs"),
        *("1", "digits-worker-1", "node-1", "gone", "logs"),
        *("-", "digits-worker-7", "node-0", "outside", "the", "world"),
    ]
    assert "it is lost (x3)" in told["events"]
    assert "Suspend" in told["controls"] and "Resume" not in told["controls"]
    Reader(page(found))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (job(), ["scale", "suspend"]),
        (job() | {"spec": job()["spec"] | {"runPolicy": {"suspend": True}}}, ["scale", "resume"]),
        (job(conditions=[{"type": "Complete", "status": "True"}]), []),
        (job() | {"spec": {"replicas": 99}}, []),
    ],
)
def test_only_buttons_that_can_do_something(raw: dict[str, Any], shown: list[str]) -> None:
    assert re.findall(r'action="/jobs/default/digits/(\w+)"', regions(raw)["controls"]) == shown
    assert regions(raw, form_key="")["controls"] == ""


def incident(rule: str, minute: int, **more: Any) -> dict[str, Any]:
    return {"rule": rule, "count": 1, "lastTime": f"2026-01-01T00:{minute:02}:00Z", "lastAction": "Report"} | more


def test_the_incidents_of_a_job_name_the_rule_the_rank_the_node_the_step_and_the_action() -> None:
    sick = incident(
        "Finite", 1, count=2, since="2026-01-01T00:01:00Z", lastAction="Replace", step=812, rank=0,
        pod="digits-worker-0", node="node-7", device="GPU-5f", message="isNaN",
    )  # fmt: skip
    raw = job(incidents=[incident("Slow", 2, message="no step"), sick, {"rule": "Sinks", "best": []}])
    found = regions(raw)
    rows = [re.sub(r"<[^>]+>", " ", row).split() for row in found["incidents"].split("<tr>")[2:]]
    assert rows == [
        [
            "2026-01-01",
            "00:01:00",
            "Finite",
            "sick",
            "2",
            "0",
            "digits-worker-0",
            "node-7",
            "GPU-5f",
            "812",
            "Replace",
            "isNaN",
        ],
        ["2026-01-01", "00:02:00", "Slow", "over", "1", "-", "-", "-", "-", "-", "Report", "no", "step"],
    ]
    Reader(page(found))
    told = {"type": "Incident", "status": "True", "reason": "Finite", "message": "rank 0: loss is NaN"}
    assert "Incident: Finite: rank 0: loss is NaN" in regions(job(conditions=[told]))["state"]


def test_many_pods_come_in_pages() -> None:
    raw = job()
    raw["status"]["rendezvous"]["members"] = [
        {"pod": f"digits-worker-{i}", "node": f"node-{i}", "rank": i, "nproc": 8} for i in range(950)
    ]
    found = regions(raw, members_page=10)["members"]
    assert found.count("<tr>") == 51 and "7592-7599" in found
    assert "members=9" in found and found.count("aria-current") == 1
    assert len("".join(regions(raw).values())) < 150_000


def test_a_pool_of_many_jobs_shows_some_of_them_and_the_job_itself() -> None:
    """Whoever makes jobs in a pool would make the pages of all others in it long, and each change of them."""
    others = []
    for i in range(3000):
        raw = job(name=f"digits-{i:04}", scaling={"pool": "p", "size": i, "wanted": i, "reason": "shares"})
        others.append(Job.parse(with_uid(raw, f"uid-{i}")))
    mine = others[-1]
    found = jobpage.build_regions(mine, jobpage.Seen(), [], others, now=NOW, form_key="")["pool"]
    assert found.count("<tr") == 101
    assert found.count('aria-current="true"') == 1 and mine.name in found
    assert "2,900 more" in found


def test_a_job_without_anything_is_a_page_too() -> None:
    raw = job()
    raw["status"] = {}
    found = regions(raw)
    assert "No pods" in found["members"] and "No failure is known" in found["failures"]
    Reader(page(found))
    empty = jobpage.build_regions(Job.parse(raw), jobpage.Seen(), [], [], now=NOW, form_key="")
    Reader(page(empty))


def test_only_a_pool_or_incidents_that_there_are_not_are_hidden() -> None:
    def hidden(**more: str) -> list[str]:
        return re.findall(r'aria-labelledby="h-(\w+)" hidden', page(regions(job()) | more))

    assert hidden(worlds="", pool="", incidents="") == ["pool", "incidents"]
    assert hidden(pool="<p>two jobs</p>", incidents="<p>one</p>") == []


def hostile(value: Any) -> Any:
    """The same object with hostile text in place of every text that users or their programs choose."""
    if isinstance(value, dict):
        return {k: v if k in KEPT else hostile(v) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


KEPT = frozenset(
    {"phase", "status", "uid", "creationTimestamp", "formedTime", "lastUpdateTime", "since", "measured", "lastTime"}
)


def test_hostile_text_is_only_text() -> None:
    raw = job(
        lastFailure={"pod": "p", "node": "n", "rank": 1, "traceback": "t", "logTail": "l", "message": "m"},
        scaling={"pool": "p", "size": 2, "reason": "r"},
        incidents=[incident("R", 1, pod="p", node="n", message="m")],
    )
    plain = regions(raw)
    raw["status"] = hostile(raw["status"])
    raw["metadata"] |= {"name": HOSTILE, "namespace": HOSTILE, "uid": HOSTILE}
    raw["spec"] = hostile(raw["spec"])
    bad = pod("digits", 0)
    bad["metadata"]["name"] = bad["spec"]["nodeName"] = HOSTILE
    events = [Happening(NOW, HOSTILE, HOSTILE, HOSTILE, HOSTILE)]
    events += [Happening(NOW, "Warning", "Failed", HOSTILE, HOSTILE)]
    found = regions(raw, jobpage.Seen([Pod(bad)], events, {"pods": HOSTILE}), problem=HOSTILE)
    row = listpage.build_row(Job.parse(raw), NOW)
    view = listpage.select([row], HOSTILE, 1)
    texts = [page(found), jobpage.build_job(HOSTILE, HOSTILE, found, rank=HOSTILE)]
    texts += [listpage.build_list(view, HOSTILE, HOSTILE)]
    for text in texts:
        read = Reader(text)
        assert not {"script", "img"} & set(read.tags)
        assert not [name for name, _ in read.attributes if name.startswith("on")]
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800]", text)
        assert all(not value.lower().startswith("javascript") for name, value in read.attributes if name == "href")
    assert set(found) == set(plain)


def test_random_statuses_give_pages() -> None:
    chance = random.Random(7)
    pool: list[Any] = [None, -1, 0, 3, 10**9, 0.5, "", "x", HOSTILE, [], {}, True]

    def change(value: Any) -> Any:
        if chance.random() < 0.06:
            return chance.choice(pool)
        if isinstance(value, dict):
            return {k: change(v) for k, v in value.items()}
        return [change(v) for v in value] if isinstance(value, list) else value

    for _ in range(60):
        raw = job(scaling={"pool": "p", "size": 2, "reason": "r", "speeds": [{"size": 2, "stepSeconds": 0.5}]})
        raw["status"], raw["spec"] = change(raw["status"]), change(raw["spec"])
        Reader(page(regions(raw)))
        listpage.build_row(Job.parse(raw), NOW)


# --- what everybody can use -------------------------------------------------------------------------------------------


def read_colours() -> dict[str, dict[str, str]]:
    light = re.search(r":root\{(.*?)\}", STYLE, re.DOTALL)
    dark = re.search(r"prefers-color-scheme:dark\)\{:root\{(.*?)\}", STYLE, re.DOTALL)
    assert light is not None and dark is not None
    return {
        name: dict(re.findall(r"--([\w-]+):(#[0-9a-f]+)", found[1]))
        for name, found in (("light", light), ("dark", dark))
    }


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_edges_have_enough_contrast(theme: str) -> None:
    """WCAG 2.2 AA: 4.5 for text, 3 for what shows where a control is."""
    colours = read_colours()[theme]
    for back in ("back", "card"):
        for text in ("ink", "soft", "bad", "link"):
            assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
        for edge in ("edge", "good", "size", "rate", "loss"):
            assert contrast(colours[edge], colours[back]) >= 3, (edge, back)


def test_every_control_has_a_name_and_every_id_is_given_once() -> None:
    view = listpage.select([listpage.build_row(Job.parse(job()), NOW)], "", 1)
    for text in (page(regions(job())), listpage.build_list(view, "", "")):
        read = Reader(text)
        assert len(read.ids) == len(set(read.ids))
        labelled = set(re.findall(r'<label for="([^"]+)"', text))
        wrapped = set(re.findall(r'<label><input id="([^"]+)"', text))
        inputs = set(re.findall(r'<input id="([^"]+)"', text))
        assert inputs == labelled | wrapped
        assert text.count("<h1>") == 1
        for svg in re.findall(r"<svg[^>]*>", text):
            assert 'role="img"' in svg and "aria-label=" in svg


def test_nothing_is_loaded_from_elsewhere() -> None:
    folder = Path(dashboard.__path__[0]) / "assets"
    for path in folder.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|\burl\(", text), path.name
    assert "style=" not in page(regions(job())), "the policy forbids inline styles"
    policy = guard.HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "'unsafe" not in policy and "*" not in policy
