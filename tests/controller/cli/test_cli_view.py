"""The output for people: from statuses to text, without a terminal or a cluster."""

from __future__ import annotations

import random
import re
import unicodedata
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from rich.console import Console, RenderableType

from controller import client_fixture as given
from elasticjob_operator import api
from elasticjob_operator.api import names
from elasticjob_operator.cli import common
from elasticjob_operator.cli.chaos import choose_node_victims, choose_victim
from elasticjob_operator.cli.launch.submit import parse_variables
from elasticjob_operator.cli.logs import line_text
from elasticjob_operator.client import Happening, Job, Line, NotFoundError, Pod
from elasticjob_operator.client.history import History, Point, World, read_sizes
from elasticjob_operator.launch.attach import default_name
from elasticjob_operator.view import details, tables, words
from elasticjob_operator.view.sparkline import sparkline

NOW = given.job().created or 0.0
NOW += 90


def text_of(renderable: RenderableType, width: int = 160) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(renderable)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def pod(index: int, *, node: str = "node-0", phase: str = "Running", leaving: bool = False) -> Pod:
    raw: dict[str, Any] = given.pod_object("digits", index, "true")
    raw["metadata"]["uid"] = f"u{index}"
    raw["spec"]["nodeName"] = node
    raw["status"] = {"phase": phase}
    if leaving:
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return Pod(raw)


def test_a_list_reads_as_kubectl_writes_it() -> None:
    text = text_of(tables.list_jobs([given.job(), given.job({}, "new")], NOW))
    assert [line.split() for line in text.splitlines()] == [
        ["NAME", "PHASE", "WORLD", "WANTED", "BOUNDS", "PROGRESS", "RESTARTS", "AGE"],
        ["digits", "Running", "2", "4", "1-4", "40%", "1", "90s"],
        ["new", "Pending", "0", "4", "1-4", "-", "0", "90s"],
    ]


def test_where_the_checkpoints_are() -> None:
    now = datetime.fromtimestamp(NOW - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    tiers = [{"tier": tier, "time": now} for tier in ("Archive", "Copies", "File")]
    saves = [{"step": 1200, "time": now, "bytes": 3 << 20, "files": 2}, {"time": now, "bytes": 1 << 20, "files": 1}]
    raw = given.running_status()
    raw |= {"progress": {"step": 5, "checkpoints": tiers}, "archive": {"url": "s3://b/ns/digits/uid", "saves": saves}}
    text = text_of(tables.list_checkpoints(given.job(raw), NOW))
    assert [line.split() for line in text.splitlines()] == [
        ["WHERE", "STEP", "AGE", "SIZE", "FILES"],
        ["copies", "60s"],
        ["file", "60s"],
        ["archive", "1200", "60s", "3.0", "MiB", "2"],
        ["archive", "60s", "1.0", "MiB", "1"],
    ]
    assert len(text_of(tables.list_checkpoints(given.job({}), NOW)).splitlines()) == 1


def test_wide_says_rate_goodput_and_reason() -> None:
    raw = given.running_status() | {"conditions": [given.condition("Degraded", reason="Unschedulable")]}
    head, line = text_of(tables.list_jobs([given.job(raw)], NOW, namespaces=True, wide=True)).splitlines()
    expected = "team digits Running 2 4 1-4 40% 1 90s 3 0.5/s 2m ≤90.0% 1.25s Degraded: Unschedulable"
    assert " ".join(line.split()) == expected
    assert head.split()[-6:] == ["GENERATION", "RATE", "ETA", "GOODPUT", "RECOVERY", "REASON"]


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        pytest.param([], "", id="nothing is known"),
        pytest.param([given.condition("Running", reason="Training")], "", id="it runs"),
        pytest.param([given.condition("Running", "False", reason="TooFewPods")], "TooFewPods", id="it does not run"),
        pytest.param(
            [given.condition("Running", "False", reason="JobFailed"), given.condition("Failed", reason="RankHung")],
            "Failed: RankHung",
            id="the most important first",
        ),
    ],
)
def test_the_reason_of_a_job(conditions: list[dict[str, Any]], reason: str) -> None:
    assert tables.reason_of(given.job(given.running_status() | {"conditions": conditions})) == reason


def test_an_invalid_spec_is_listed_with_what_it_says() -> None:
    line = text_of(tables.list_jobs([given.job(replicas=99)], NOW)).splitlines()[1].split()
    assert line[3:5] == ["99", "1-4"]
    strange = text_of(tables.list_jobs([given.job(replicas="many", elasticPolicy=[])], NOW)).splitlines()[1].split()
    assert strange[3:5] == ["?", "?-?"]
    assert "invalid" in text_of(details.describe(given.job(replicas=99), [], [], NOW))


def test_members_by_rank_then_the_others() -> None:
    pods = [pod(1, node="node-1"), pod(2, node="node-2"), pod(3, phase="Pending", node="")]
    text = text_of(tables.list_members(given.job(given.running_status(nproc=8)), pods))
    assert [line.split(maxsplit=3) for line in text.splitlines()[1:]] == [
        ["0-7", "digits-worker-0", "node-0", "gone"],
        ["8-15", "digits-worker-1", "node-1", "Running"],
        ["-", "digits-worker-2", "node-2", "outside the world"],
        ["-", "digits-worker-3", "-", "Pending"],
    ]


def test_many_members_fit_on_a_screen() -> None:
    job = given.job(given.running_status(pods=200))
    text = text_of(details.live(job, [], history(), NOW, rows=30))
    assert "more" in text
    assert len(text.splitlines()) <= 30


def history(*worlds: World, **more: Any) -> History:
    empty: dict[str, Any] = {"sizes": (), "throughput": (), "metrics": {}, "notable": ()}
    return History(NOW - 60, NOW, worlds, **(empty | more))


def test_small_plots() -> None:
    def course(*values: float) -> tuple[Point, ...]:
        return tuple(Point(float(i), value) for i, value in enumerate(values))

    assert sparkline(course(0, 1, 2, 3, 4, 5, 6, 7)) == "▁▂▃▄▅▆▇█"
    assert sparkline(course(*range(80)), width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline(course(2.0, float("nan"), 2.0)) == "▅▅"
    assert sparkline(()) == ""
    held = (Point(0, 4), Point(50, 0), Point(60, 2))
    assert sparkline(held, width=10, steps=True, end=100) == "████ ▅▅▅▅▅"
    assert sparkline((Point(5, 3),), steps=True) == "█"
    largest = 1.7976931348623157e308  # a script may report any number
    assert sparkline(course(-largest, 0.0, largest)) == "▁▅█"
    assert len(sparkline(course(*(largest for _ in range(100))), width=8)) == 8
    assert sparkline(course(0.0, 5e-324)) == "▁█"
    points = course(*(3.0 for _ in range(100)))
    assert len(sparkline(points, width=24)) == len(sparkline(points, width=24, steps=True)) == 24


def test_watch_and_top_show_small_plots() -> None:
    sizes = (Point(NOW - 60, 4), Point(NOW - 30, 2))
    found = history(sizes=sizes, metrics={"loss": (Point(1, 2.0), Point(2, 1.0))})
    assert "pods ███████████▅▅▅▅▅▅▅▅▅▅▅▅▅  loss █▁" in text_of(details.live(given.job(), [], found, NOW))
    assert "pods" not in text_of(details.live(given.job(), [], history(), NOW)).splitlines()[2]
    event = raw_event("WorldFormed", "generation 1 with 4 pods: the job starts", NOW - 60)
    change = raw_event("WorldChanged", "generation 2 from 4 to 2 pods: a member was lost", NOW - 30)
    top = text_of(tables.list_top([given.job()], NOW, read_sizes([event, change])))
    assert [line.split()[3] for line in top.splitlines()] == ["LAST", "███████▅▅▅▅▅▅▅▅▅"]
    assert "LAST HOUR" not in text_of(tables.list_top([given.job()], NOW, None))


def raw_event(reason: str, message: str, at: float) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(at, UTC).isoformat()
    subject = {"kind": "ElasticJob", "name": "digits", "uid": "u"}
    return {"involvedObject": subject, "reason": reason, "message": message, "lastTimestamp": stamp}


def test_describe_says_what_matters() -> None:
    raw = given.running_status() | {
        "lastFailure": {
            "pod": "digits-worker-1", "node": "node-1", "rank": 1, "exitCode": 1, "generation": 2,
            "time": given.GENERATION_TIME, "logTail": "the end",
            "traceback": "Traceback:\n  [bold]ValueError: no[/bold]",
        }
    }  # fmt: skip
    events = [Happening(NOW - 5, "Warning", "MemberLost", "[x] lost", "elasticjob/digits", 3)]
    text = text_of(details.describe(given.job(raw), [pod(0), pod(1)], events, NOW))
    for expected in (
        "generation 3, 2 pods, 2 processes: a member was lost",
        "step 40 of 100 (40%), 2m left, loss 0.5",
        "4 wanted, 1 to 4 allowed",
        "rank 1 in digits-worker-1 on node-1: exit code 1, generation 2, 80s ago",
        "  [bold]ValueError: no[/bold]",  # a user's text is never taken for markup
        "[x] lost (x3)",
        "90.0% (90s trained, 10s lost), 2 rescales, last recovery 1.25s",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("mesh", "pods", "nproc", "expected"),
    [
        pytest.param("dp tp=4", 8, 1, (2, 4, 4, 3), id="one of two"),
        pytest.param("dp tp=4", 4, 1, (1, 4, 0, 3), id="the only one"),
        pytest.param("pp=2 dp tp=8", 8, 8, (4, 16, 6, 1), id="of two pods"),
        pytest.param("dp tp=8", 8, 8, None, id="each pod is a copy"),
    ],
)
def test_describe_says_what_the_loss_of_a_pod_costs(
    mesh: str, pods: int, nproc: int, expected: tuple[int, int, int, int] | None
) -> None:
    sizes = [word.partition("=") for word in mesh.split()]
    dimensions = [{"name": name, "size": int(size)} if size else {"name": name} for name, _, size in sizes]
    policy = {"minReplicas": 1, "maxReplicas": 16, "mesh": dimensions}
    job = given.job(given.running_status(pods, nproc=nproc), nprocPerNode=nproc, elasticPolicy=policy)
    text = text_of(details.describe(job, [], [], NOW))
    if expected is None:
        assert "Copies:" not in text
    else:
        copies, ranks, staying, waiting = expected
        said = f"{copies} of the model, of {ranks} ranks each"
        assert f"{said}; if a pod is lost, {staying} train on and {waiting} wait for another" in text


def test_describe_names_slow_ranks() -> None:
    slow = {"rank": 3, "pod": "digits-worker-1", "uid": "u1", "node": "node-1", "ownSeconds": 0.21,
            "othersSeconds": 0.1, "since": given.GENERATION_TIME}  # fmt: skip
    text = text_of(details.describe(given.job(given.running_status() | {"stragglers": [slow]}), [pod(1)], [], NOW))
    assert "Slow ranks:" in text
    assert re.search(r"3 +digits-worker-1 +node-1 +210ms +100ms +2.1x +80s +-", text)
    assert "Slow ranks:" not in text_of(details.describe(given.job(given.running_status()), [pod(1)], [], NOW))


def test_describe_has_the_links_of_each_node() -> None:
    checked = [
        {"node": "node-2", "passed": False, "message": "no connection to 10.0.0.2"},
        {"node": "node-1", "passed": True, "roundTripSeconds": 0.0012, "bytesPerSecond": 80 << 20},
    ]
    text = text_of(details.describe(given.job(given.running_status() | {"preflight": checked}), [pod(1)], [], NOW))
    assert re.search(r"node-2 +- +- +failed: no connection to 10.0.0.2", text)
    assert re.search(r"node-1 +1.2 ms +80 MiB/s +passed", text)


def test_the_live_view_has_progress_loss_members_and_generations() -> None:
    worlds = history(
        World(2, NOW - 60, 4, "new pods are ready to join", 0.8),
        World(3, NOW - 30, 2, "a member was lost", 1.25),
    )
    text = text_of(details.live(given.job(), [pod(0), pod(1, node="node-1")], worlds, NOW), width=100)
    assert "━" in text
    assert "loss 0.5" in text
    lines = text.splitlines()
    assert lines[-2].split(maxsplit=4) == ["3", "30s", "2", "1.25s", "a member was lost"]
    assert any(line.split() == ["1", "digits-worker-1", "node-1", "Running"] for line in lines)


@pytest.mark.parametrize(("type", "colour"), [("Failed", "31"), ("Degraded", "33")])
def test_the_live_view_shows_a_failure_in_red(type: str, colour: str) -> None:
    raw = given.running_status() | {"conditions": [given.condition(type, reason="RankHung", message="rank 1 hung")]}
    console = Console(width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(details.live(given.job(raw), [], history(), NOW))
    [line] = [line for line in captured.get().splitlines() if "rank 1 hung" in line]
    assert line.startswith(f"\x1b[{colour}m")


def test_lines_of_a_watch_without_a_terminal() -> None:
    first, second = given.job(given.running_status(step=40)), given.job(given.running_status(step=50))
    assert details.change_line(first, None) == (
        "digits: Running; generation 3, 2 pods, 2 processes: a member was lost; step 40 of 100 (40%), 2m left, loss 0.5"
    )
    assert details.change_line(second, first) == "digits: step 50 of 100 (50%), 2m left, loss 0.5"
    assert details.change_line(second, second) is None


def test_top_shows_costs_where_devices_have_prices() -> None:
    scaling = {"pool": "gpu", "size": 2, "reason": "2 pods, enough"}
    free = text_of(tables.list_top([given.job(given.running_status() | {"scaling": scaling})], NOW), width=250)
    assert "POOL" in free
    assert "COST" not in free
    cost = {"perHour": 5.6, "spent": 1.25, "expected": 11.0}
    paid = text_of(
        tables.list_top([given.job(given.running_status() | {"scaling": scaling | {"cost": cost}})], NOW), 250
    )
    title, row = paid.splitlines()
    assert title.split()[-6:] == ["COST/H", "SPENT", "COST", "AT", "END", "WHY"]
    assert row.split()[-6:-3] == ["5.6", "1.25", "11"]


@pytest.mark.parametrize(
    ("noise", "model", "seen"),
    [
        pytest.param(None, ["1:64/s", "4:240/s"], "+275", id="not measured"),
        pytest.param(128.0, ["1:64/s", "4:240/s*50%"], "+88", id="half of it is noise"),
        pytest.param(-1.0, ["1:64/s", "4:240/s"], "+275", id="nonsense"),
    ],
)
def test_top_shows_what_the_samples_of_a_larger_batch_are_worth(
    noise: float | None, model: list[str], seen: str
) -> None:
    speeds = [
        {"size": 1, "stepSeconds": 1.0, "batchSize": 64},
        {"size": 4, "stepSeconds": 1.0666, "batchSize": 256},
    ]
    scaling = {"pool": "gpu", "size": 4, "previousSize": 1, "speeds": speeds, "noiseScale": noise}
    shown = text_of(tables.list_top([given.job(given.running_status() | {"scaling": scaling})], NOW), 250)
    words = shown.splitlines()[1].split()
    assert [word for word in words if "/s" in word and ":" in word] == model
    assert seen in words


def test_goodput_without_reported_steps_is_a_bound() -> None:
    raw = given.running_status()
    for measured, shown in (("Steps", " 90.0%"), ("Formation", "≤90.0%")):
        job = given.job(raw | {"goodput": raw["goodput"] | {"measured": measured}})
        assert shown in text_of(tables.list_top([job], NOW))
        assert shown.strip() in text_of(details.live(job, [], history(), NOW))


def test_a_total_that_is_wrong_is_not_shown() -> None:
    raw = given.running_status()
    raw["progress"] |= {"step": 999, "totalSteps": 600, "percentage": 100}
    assert "999" in text_of(tables.list_jobs([given.job(raw)], NOW))
    described = text_of(details.describe(given.job(raw), [], [], NOW))
    assert "step 999," in described and "600" not in described
    raw["progress"] |= {"step": 5, "percentage": None}
    assert "step 5" in text_of(tables.list_jobs([given.job(raw)], NOW)), "no percentage is known"
    complete = given.running_status(step=95) | {"conditions": [given.condition("Complete")]}
    assert "done" in text_of(tables.list_jobs([given.job(complete)], NOW))
    assert "(last report)" in text_of(details.describe(given.job(complete), [], [], NOW))


HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b31m\x85\u202e[red]:smile: \x1b[31mred\x1b[0m\rlast"


def hostile_job() -> Job:
    """A job whose every text tries to command the terminal that shows it."""
    failure = {"pod": HOSTILE, "node": HOSTILE, "reason": HOSTILE, "message": HOSTILE, "logTail": HOSTILE}
    return given.job(
        given.running_status()
        | {
            "conditions": [given.condition("Degraded", reason=HOSTILE, message=HOSTILE)],
            "lastFailure": failure | {"traceback": HOSTILE},
            "progress": {"step": 1, "metrics": [{"name": HOSTILE, "value": 1.0}]},
        }
    )


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_obeys_nobody_but_us(terminal: bool) -> None:
    job, events = hostile_job(), [Happening(NOW, HOSTILE, HOSTILE, HOSTILE, HOSTILE)]
    worlds = history(World(1, NOW, 2, HOSTILE, 1.0), metrics={HOSTILE: (Point(1, 2.0), Point(2, 1.0))})
    line = Line("digits-worker-1", range(1, 2), HOSTILE)
    out = common.SafeConsole(width=200, force_terminal=terminal, color_system=None)
    with out.capture() as captured:
        out.print(details.describe(job, [], events, NOW))
        out.print(details.live(job, [], worlds, NOW))
        out.print(tables.list_events(events, NOW))
        out.print(tables.list_jobs([job], NOW, wide=True))
        out.print(line_text(line, prefix=True, timestamps=True), soft_wrap=True)
        out.print(details.change_line(job, None) or "")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())  # what rich itself writes: colours
    assert [c for c in shown if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []
    assert "[red]" in shown and ":smile:" in shown, "nobody's text is markup"


@pytest.mark.parametrize("levels", [400, 9000])
@pytest.mark.parametrize("output", ["json", "yaml"])
def test_a_job_as_deep_as_a_server_stores_it_hides_no_other_from_a_list(
    output: str, levels: int, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = given.job(name="deep")
    odd: list[Any] = []
    for _ in range(levels):
        odd = [odd]
    deep.raw["spec"]["template"]["odd"] = odd
    shown = common.dump_jobs([deep, given.job(name="good")], output)
    found = yaml.safe_load(shown)["items"]
    assert [job["metadata"]["name"] for job in found] == ["deep", "good"]
    assert "spec" not in found[0] and "spec" in found[1]
    assert "team/deep: its spec is nested more than 64 levels deep, and is left out" in capsys.readouterr().err


def test_messages_are_as_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    common.echo(HOSTILE)
    common.warn(HOSTILE)
    said = capsys.readouterr()
    errors = [common.Failure(HOSTILE).format_message(), common.Misuse(HOSTILE).format_message()]
    for text in (said.out, re.sub(r"\x1b\[[0-9;]*m", "", said.err), *errors):
        assert [c for c in text if unicodedata.category(c) in ("Cc", "Cf") and c not in "\n\t"] == []


def test_colours_of_a_log_stay_and_its_links_go() -> None:
    line = Line("p", range(1), "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\")
    out = common.SafeConsole(width=80, force_terminal=True, color_system="standard")
    with out.capture() as captured:
        out.print(line_text(line, prefix=False, timestamps=False))
    assert "\x1b[31mred" in captured.get()
    assert "evil.example" not in captured.get()


def test_a_line_of_nothing_but_colours_is_shown_without() -> None:
    """A line has at most a megabyte, and each of its colours would take some microseconds."""
    line = Line("p", range(1), "\x1b[31mred " * 100_000)
    text = line_text(line, prefix=False, timestamps=False)
    assert not text.spans
    out = common.SafeConsole(width=80, force_terminal=True, color_system="standard")
    with out.capture() as captured:
        out.print(text)
    assert "\x1b" not in captured.get()


@pytest.mark.parametrize("before", ["\x1b[", "\x1b\x1b[2K["])
def test_a_colour_whose_number_has_no_end_ends_no_logs(before: str) -> None:
    line = Line("p", range(1), f"{before}{'9' * 5000}mred \x1b[31mand\x1b[0m blue")
    out = common.SafeConsole(width=80, force_terminal=True, color_system="standard")
    with out.capture() as captured:
        out.print(line_text(line, prefix=False, timestamps=False))
    assert "red" in captured.get() and "\x1b[31mand" in captured.get()


@pytest.mark.timeout(15)  # of a second; for each of them, whoever looks for its end looks at the rest of the line
def test_links_and_titles_without_an_end_take_no_longer_than_their_line() -> None:
    begins = "\x1b]8;;" * 400 + "\x1b]0;" * 400 + "\x1b\x1b[2K]8;;" * 100
    text = line_text(Line("p", range(1), begins + "x" * 1_000_000), prefix=False, timestamps=False)
    assert text.plain.endswith("xx")


def test_what_a_terminal_would_do_beside_colours_leaves_no_trace() -> None:
    """As programs write it into a log that they take for a terminal: a title, a cleared line, another character set."""
    line = "\x1b]0;title\x07\x1b[2K\x1b[1A\x1b(B\x1b[mdone\x1b[?25h"
    assert line_text(Line("p", range(1), line), prefix=False, timestamps=False).plain == "done"


def test_lines_of_somebody_else_fill_no_terminal() -> None:
    """To lay out a cell takes some tenths of a millisecond for each of its lines, and so does to read it."""
    job = given.job(given.running_status())
    job.raw["metadata"]["annotations"] = {names.ANNOTATION_CODE: "\n" * 20_000}
    told = [
        Happening(NOW, "Normal", "Pulled", "\n" * 4000, "pod/digits-worker-0"),
        Happening(NOW, "a", "b", "one\ntwo", "c"),
    ]
    shown = text_of(details.describe(job, [], told, NOW)).splitlines()
    assert len(shown) < 100
    assert any(line.endswith("one") for line in shown) and shown[-1].endswith("two")


@pytest.mark.parametrize(("tabs", "shown"), [(3, "\t"), (200_000, " ")])
def test_a_line_of_tabs_is_shown_at_once(tabs: int, shown: str) -> None:
    """To find the place of one takes some tens of microseconds, and a line has at most a megabyte."""
    text = line_text(Line("p", range(1), "a" + "\t" * tabs + "b"), prefix=False, timestamps=False)
    assert text.plain == "a" + shown * tabs + "b"
    event = Happening(NOW, "Normal", "Pulled", "a" + "\t" * tabs + "b", "pod/digits-worker-0")
    assert "\t" not in tables.list_events([event], NOW).columns[-1]._cells[0].plain  # type: ignore[union-attr]


@pytest.mark.parametrize(("count", "length", "shown"), [(3, 4096, 4096), (4000, 200, 200), (4000, 4096, 262)])
def test_of_very_many_long_events_each_is_shown_in_part(count: int, length: int, shown: int) -> None:
    """Whoever may write events of a job would else hold up who looks at them for half a minute."""
    event = Happening(NOW, "Normal", "Pulled", "\u6f22" * length, "pod/digits-worker-0")
    cells = tables.list_events([event] * count, NOW).columns[-1]._cells
    assert {len(cell.plain) for cell in cells} == {shown}  # type: ignore[union-attr]


def test_a_progress_bar_in_a_log_is_shown_as_it_ends() -> None:
    assert line_text(Line("p", range(1), "10%\r50%\r100%\r"), prefix=False, timestamps=False).plain == "100%"


def test_log_lines() -> None:
    line = Line("digits-worker-1", range(8, 16), "[red]hello", "2026-01-01T00:00:00Z")
    assert line_text(line, prefix=True, timestamps=False).plain == "[8-15] [red]hello"
    assert line_text(line, prefix=False, timestamps=True).plain == "2026-01-01T00:00:00Z [red]hello"
    outside = Line("digits-worker-7", range(0), "hello")
    assert line_text(outside, prefix=True, timestamps=True).plain == "[digits-worker-7] hello"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (-3, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (599, "9m59s"), (3600, "60m"),
        (3 * 3600 + 60, "3h1m"), (30 * 3600, "30h"), (50 * 3600, "2d2h"), (20 * 86400, "20d"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("script", "name"),
    [("/opt/Train_v2.py", "train-v2-x"), ("---.py", "job-x"), ("a" * 80 + ".py", "a" * 40 + "-x")],
)
def test_names_that_kubernetes_takes(script: str, name: str) -> None:
    assert default_name(script, "x") == name


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_HERE", "1")
    assert parse_variables(("A=b=c", "EMPTY=", "FROM_HERE")) == {"A": "b=c", "EMPTY": "", "FROM_HERE": "1"}


def test_victims() -> None:
    job = given.job()
    pods = [pod(0), pod(1, node="node-1"), pod(2, node="node-1"), pod(3, leaving=True)]
    assert choose_victim(job, pods, None, random.Random(1)).name in ("digits-worker-0", "digits-worker-1")
    assert choose_victim(job, pods, "2", random.Random(1)).name == "digits-worker-2"
    with pytest.raises(NotFoundError, match="pod 3: digits has digits-worker-0"):
        choose_victim(job, pods, "3", random.Random(1))
    assert [p.name for p in choose_node_victims(job, pods, "node-1").pods] == ["digits-worker-1", "digits-worker-2"]
    assert choose_node_victims(job, pods, None).node == "node-0"
    with pytest.raises(NotFoundError, match="its nodes: node-0, node-1"):
        choose_node_victims(job, pods, "node-9")


def test_failure_without_details() -> None:
    assert "a worker: failed" in text_of(details.failure(api.FailureStatus(), NOW))


def test_the_signal_that_killed_a_worker_is_shown() -> None:
    killed = api.FailureStatus(pod="p", rank=1, exit_code=137, signal="SIGKILL")
    assert "rank 1 in p: exit code 137 (SIGKILL)," in text_of(details.failure(killed, NOW))
