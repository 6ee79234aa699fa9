"""Commands that follow, list, diagnose and kill, with a client that replays what a cluster would send."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Self, cast

import pytest
import yaml

from controller import client_fixture as given
from elasticjob_operator.cli import common
from elasticjob_operator.cli.chaos import NONE_FOUND
from elasticjob_operator.cli.launch.following import follow_job
from elasticjob_operator.cli.read import Watcher
from elasticjob_operator.cli.root import run
from elasticjob_operator.client import Change, Client, Job, Line, NotFoundError, Pod
from elasticjob_operator.client.execute import ExecUnavailableError

MOST_OF_A_LOG = 2**25  # bytes
HANG = {
    "kind": "RankHung",
    "rank": 1,
    "pod": "digits-worker-1",
    "generation": 3,
    "time": given.GENERATION_TIME,
    "summary": "rank 1 sleeps in train.py",
}


def job(**status: Any) -> Job:
    return given.job(given.running_status() | status)


class Replay:
    """A client of one job: its changes, the lines of its log, and what a command in a pod ends with."""

    def __init__(
        self, *changes: Change, lines: tuple[str, ...] = (), ends: tuple[int, str] | ExecUnavailableError = (0, "")
    ) -> None:
        self._changes = changes
        self._lines = lines
        self._ends = ends
        self.killed: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def get(self, name: str) -> Job:
        return self._changes[-1].job

    async def list(self, **_: object) -> Sequence[Job]:
        return [change.job for change in self._changes]

    async def pods(self, name: str) -> Sequence[Pod]:
        return [Pod(given.pod_object(name, index, "")) for index in range(2)]

    async def execute(self, *_: object) -> tuple[int, str]:
        if isinstance(self._ends, ExecUnavailableError):
            raise self._ends
        return self._ends

    async def kill_pod(self, pod: Pod) -> None:
        self.killed += (pod.name,)

    async def watch(self, *_: object) -> AsyncGenerator[Change]:
        for change in self._changes:
            yield change

    async def logs(self, *_: object, **__: object) -> AsyncGenerator[Line]:
        for text in self._lines:
            yield Line(pod="digits-worker-1", ranks=range(1, 2), text=text)


@pytest.fixture
def answer_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Replay], None]:
    """Let every command talk to this client."""

    def replace(client: Replay) -> None:
        monkeypatch.setattr(common.Target, "client", lambda _: client)

    return replace


async def test_following_a_job_ends_when_it_is_deleted() -> None:
    client = Replay(Change("ADDED", job()), Change("DELETED", job()))
    with pytest.raises(NotFoundError, match="digits was deleted"):
        await follow_job(cast(Client, client), "digits")


async def test_following_a_job_ends_with_its_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    done = job(phase="Complete", conditions=[given.condition("Complete")])
    client = Replay(Change("ADDED", job()), Change("MODIFIED", done), lines=("epoch 3",))
    assert await follow_job(cast(Client, client), "digits") == done
    captured = capsys.readouterr()
    assert "epoch 3" in captured.out and "Complete" in captured.err


@pytest.mark.parametrize(
    ("diagnosis", "lines", "code", "told"),
    [
        (None, (), 2, ["job digits has not hung, or the logs of its pods no longer tell"]),
        (HANG, (), 0, ["generation 3 hung", "rank 1 sleeps in train.py", "no pod of the job has a report"]),
        (
            HANG,
            ("elasticjob: hang report of generation 3: rank 1 sleeps", "  File train.py", "ordinary"),
            0,
            ["generation 3 hung", "=== digits-worker-1, generation 3: rank 1 sleeps\n  File train.py"],
        ),
    ],
)
def test_diagnose_tells_what_the_status_and_the_logs_know(
    answer_with: Callable[[Replay], None],
    capsys: pytest.CaptureFixture[str],
    diagnosis: dict[str, Any] | None,
    lines: tuple[str, ...],
    code: int,
    told: list[str],
) -> None:
    client = Replay(Change("ADDED", job(diagnosis=diagnosis)), lines=lines)
    answer_with(client)
    assert run(["diagnose", "digits"]) == code
    captured = capsys.readouterr()
    for text in told:
        assert text in captured.out + captured.err
    assert ("no pod of the job has a report" in captured.err) == (diagnosis is not None and not lines)


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        pytest.param("ordinary", "x" * 1000, id="long logs"),
        pytest.param("elasticjob: hang report of generation 3: rank 1 sleeps", "x" * 20_000, id="a long report"),
    ],
)
def test_diagnose_keeps_nothing_of_a_log_but_its_report(
    answer_with: Callable[[Replay], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    begin: str,
    line: str,
) -> None:
    """A job may have thousands of pods, whose logs have tens of megabytes each."""
    client = Replay(Change("ADDED", job(diagnosis=HANG)))

    async def logs(*_: object, **__: object) -> AsyncGenerator[Line]:
        for number in range(MOST_OF_A_LOG // len(line)):
            yield Line(pod="digits-worker-1", ranks=range(1, 2), text=f"{number} {line}" if number else begin)

    monkeypatch.setattr(client, "logs", logs)
    answer_with(client)
    tracemalloc.start()
    try:
        run(["diagnose", "digits"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(capsys.readouterr().out) < 2**20
    assert peak < MOST_OF_A_LOG / 8, f"{peak >> 20} MiB"


@pytest.mark.parametrize(
    ("how", "ends", "code", "told", "killed"),
    [
        ("auto", (0, ""), 0, "killed the process of rank 1 in pod digits-worker-1", ()),
        ("process", (0, ""), 0, "killed the process of rank 1 in pod digits-worker-1", ()),
        ("auto", (NONE_FOUND, ""), 0, "no process with RANK=1 in pod digits-worker-1; deleting", ("digits-worker-1",)),
        ("process", (NONE_FOUND, ""), 1, "rank 1 was not killed: no process with RANK=1 in pod digits-worker-1", ()),
        ("process", (126, "no sh"), 1, "exec in pod digits-worker-1 failed with exit code 126: no sh", ()),
        ("auto", ExecUnavailableError("exec is forbidden"), 0, "exec is forbidden; deleting", ("digits-worker-1",)),
        ("pod", (0, ""), 0, "killed pod digits-worker-1 with rank 1", ("digits-worker-1",)),
    ],
)
def test_a_rank_is_killed_in_the_first_way_that_works(
    answer_with: Callable[[Replay], None],
    capsys: pytest.CaptureFixture[str],
    how: str,
    ends: tuple[int, str] | ExecUnavailableError,
    code: int,
    told: str,
    killed: tuple[str, ...],
) -> None:
    client = Replay(Change("ADDED", job()), ends=ends)
    answer_with(client)
    assert run(["chaos", "rank", "digits", "1", "--how", how]) == code
    captured = capsys.readouterr()
    assert told in captured.out + captured.err
    assert client.killed == killed


@pytest.mark.parametrize("output", ["json", "yaml", "name", "wide", None])
def test_the_list_has_the_form_that_is_asked_for(
    answer_with: Callable[[Replay], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str | None,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    answer_with(Replay(Change("ADDED", job())))
    assert run(["list", *(["-o", output] if output else [])]) == 0
    out = capsys.readouterr().out
    match output:
        case "json" | "yaml":
            found = json.loads(out) if output == "json" else yaml.safe_load(out)
            assert [item["metadata"]["name"] for item in found["items"]] == ["digits"]
        case "name":
            assert out == "elasticjob.elasticjob.dev/digits\n"
        case _:
            assert out.split()[0] == "NAME" and ("GOODPUT" in out) == (output == "wide")


def test_an_empty_list_says_where_else_to_look(
    answer_with: Callable[[Replay], None], capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(Replay())
    assert run(["list"]) == 0
    assert "no ElasticJobs found; -A looks in all namespaces" in capsys.readouterr().out


def test_rules_are_tried_on_the_reports_that_a_job_keeps(
    answer_with: Callable[[Replay], None], capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [
        {"time": f"2026-01-01T00:{i:02}:00Z", "step": i, "metrics": {"loss": 9.0 if i == 20 else 1.0}}
        for i in range(30)
    ]
    fired = {"rule": "High", "count": 1, "lastTime": "2026-01-01T00:20:03Z", "message": "rank 0: loss is 9, above 5"}
    found = job(progress={"step": 30, "history": {"reports": reports}}, incidents=[fired], timeline=[])
    found.raw["spec"]["health"] = {"rules": [{"name": "High", "when": {"metric": {"name": "loss", "above": 5}}}]}
    answer_with(Replay(Change("ADDED", found)))
    assert run(["rules", "test", "digits"]) == 0
    out = capsys.readouterr().out
    assert "High has fired 1 times, the last time at 2026-01-01T00:20:03Z: rank 0: loss is 9, above 5" in out
    assert "step 20" in out and "loss is 9, above 5" in out


async def test_changes_that_are_no_news_take_no_memory_of_a_live_view() -> None:
    """Whoever may write a job may change an annotation of it a hundred times a second."""
    same = [Change("MODIFIED", job(phase="Running")) for _ in range(3000)]
    watcher = Watcher(cast(Client, Replay(*same)), "digits", "Complete")
    await watcher._follow_job()
    assert len(watcher._samples) == 1


async def test_of_very_many_samples_a_live_view_keeps_some() -> None:
    changes = []
    for step in range(4000):
        progress = {"step": step, "totalSteps": 5000, "lastUpdateTime": given.GENERATION_TIME}
        changes.append(Change("MODIFIED", job(progress=progress)))
    watcher = Watcher(cast(Client, Replay(*changes)), "digits", "Complete")
    await watcher._follow_job()
    assert 500 < len(watcher._samples) <= 2000
    assert watcher._samples[-1].step == 3999
