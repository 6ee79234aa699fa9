"""The calculations of the benchmarks: pure functions, exact values."""

from __future__ import annotations

import logging
import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import controlplane, goodput, harness, peers, start, timeline
from benchmarks.scripts.agent_swarm import job_of
from benchmarks.system import parse_requests
from elasticjob_operator.start_times import StartTimes


def make_step(t: float, rank: int, world: int, step: int, pid: int = 1, count: int = 0) -> timeline.Step:
    return timeline.Step(t, node=rank, pid=pid, rank=rank, world=world, step=step, count=count)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([1.0, 3.0, 2.0], {"min": 1.0, "median": 2.0, "max": 3.0}, id="numbers"),
        pytest.param([1.0, None, 2.0], {"min": 1.0, "median": 2.0, "max": None}, id="one of three never"),
        pytest.param([None, None, 2.0], {"min": 2.0, "median": None, "max": None}, id="two of three never"),
        pytest.param([1.0, None], {"min": 1.0, "median": None, "max": None}, id="one of two never"),
        pytest.param([], {"min": None, "median": None, "max": None}, id="nothing measured"),
        pytest.param([0.0123456], {"min": 0.01235, "median": 0.01235, "max": 0.01235}, id="four digits"),
    ],
)
def test_samples_are_summarised(samples: list[float | None], expected: dict[str, float | None]) -> None:
    assert harness.summarise(samples) == expected


def test_a_line_has_exactly_the_documented_keys_in_their_order() -> None:
    line = harness.Result("rescale", "start", [1.0], "torchrun", [4.0]).line({"machine": "a machine"})
    assert list(line) == ["benchmark", "case", "seconds", "repeats", "peer", "peerValue", "ratio", "machine"]
    assert line["ratio"] == 0.25
    rate = harness.Result("controlplane", "pods created a second", [1.0], "Jobs", [None], "rate").line({})
    assert list(rate)[2] == "rate"
    assert rate["ratio"] is None, "a peer that never did it has no ratio"


def test_a_world_is_there_when_every_rank_has_made_its_first_step() -> None:
    old = [make_step(t / 10, rank, 3, t) for t in range(10) for rank in range(3)]
    half = [make_step(2.0, 0, 2, 0, pid=7)]
    assert timeline.find_world([*old, *half], 2, after=1.0) is None
    world = timeline.find_world([*old, *half, make_step(2.2, 1, 2, 0, pid=8)], 2, after=1.0)
    assert world is not None
    assert (world.began, world.complete, world.node_of(1)) == (2.0, 2.2, 1)
    assert timeline.find_pause([*old, *half], world) == pytest.approx(2.2 - 0.9)


def test_a_world_of_before_the_event_does_not_count() -> None:
    steps = [make_step(1.0, 0, 1, 0)]
    assert timeline.find_world(steps, 1, after=1.0) is None


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param([(3.0, 7, 5), (3.1, 7, 6)], 2, id="trains on in its old world"),
        pytest.param([(3.0, 7, 5), (3.1, 7, 0), (3.2, 7, 1)], 1, id="one step, then the same process in a new world"),
        pytest.param([(3.1, 8, 0), (3.2, 8, 1)], 0, id="a new process"),
        pytest.param([], 0, id="silent"),
    ],
)
def test_steps_in_an_old_world_are_told_from_those_in_a_new_one(
    made: list[tuple[float, int, int]], expected: int
) -> None:
    world = timeline.Formed({0: make_step(1.0, 0, 2, 0, pid=6), 1: make_step(1.0, 1, 2, 0, pid=7)})
    steps = [make_step(t, 1, 2, step, pid=pid) for t, pid, step in [(1.0, 7, 0), (1.1, 7, 1), *made]]
    assert len(timeline.find_stale(steps, world, node=1, after=2.0)) == expected


def test_phases_add_up_to_the_whole_time() -> None:
    world = timeline.Formed({0: make_step(14.0, 0, 1, 0, pid=5)})
    marks = [timeline.Mark(11.5, 0, 5, "script"), timeline.Mark(13.0, 0, 5, "imported")]
    seen = {"told": 10.1, "stopped": 10.4, "world": 10.5}
    phases = timeline.find_phases(10.0, world, marks, seen)
    assert phases["detect"] == pytest.approx(0.1)
    assert phases["spawn"] == pytest.approx(1.0)
    assert phases["connect"] == 0.0
    assert sum(phases.values()) == pytest.approx(4.0)
    blind = timeline.find_phases(10.0, world, marks, {})
    assert blind["rendezvous"] == pytest.approx(1.5)
    assert sum(blind.values()) == pytest.approx(4.0)


@pytest.mark.parametrize(
    "text", ["", "a warning of some library", "{", '{"t": 1}', '{"t": 1, "mark": "x", "pid": "no number"}', "[1, 2]"]
)
def test_other_output_is_no_line_of_the_script(text: str) -> None:
    assert timeline.parse_line(0, text) is None


def test_the_longest_gap_counts_from_the_event() -> None:
    steps = [make_step(t, 0, 1, 0) for t in (0.5, 1.0, 4.0, 4.5)]
    assert timeline.find_longest_gap(steps, 0.0, 5.0) == 3.0
    assert timeline.find_longest_gap([], 0.0, 5.0) == 5.0


def test_kills_are_one_in_each_interval_and_repeat_with_the_seed() -> None:
    kills = goodput.plan_kills(random.Random(7), seconds=600, every=60)
    assert kills == goodput.plan_kills(random.Random(7), seconds=600, every=60)
    moved = goodput.plan_kills(random.Random(7), seconds=600, every=60, shift=0.5)
    assert all(abs(abs(m[0] - k[0]) - 30) < 1e-6 and m[1] == k[1] for m, k in zip(moved, kills, strict=True))
    assert [int(at // 60) for at, _ in kills] == list(range(10))
    assert {worker for _, worker in kills} <= set(range(goodput.WORKERS))


def test_a_count_that_falls_back_to_the_checkpoint_is_in_the_plot() -> None:
    steps = [make_step(10 + t / 10, 0, 1, t, count=t) for t in range(8)] + [make_step(10.8, 0, 1, 0, count=3)]
    at, count = goodput.find_points(steps, begin=10.0)[-1]
    assert (round(at, 3), count) == (0.8, 3)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        pytest.param([1, 2, 3], 0, id="nothing is repeated"),
        pytest.param([1, 2, 3, 4, 3, 4, 5], 2, id="back to the checkpoint after two"),
        pytest.param([9, 10, 1, 2, 1], 12, id="twice, once to the beginning"),
        pytest.param([1, 4], 0, id="rank 0 missed what the others did"),
        pytest.param([], 0, id="nothing was done"),
    ],
)
def test_steps_are_repeated_when_the_count_falls_back(counts: list[int], expected: int) -> None:
    steps = [make_step(float(t), 0, 1, t, count=count) for t, count in enumerate(counts)]
    others = [make_step(float(t), 1, 2, t, count=1) for t in range(3)]
    assert goodput.count_repeated([*others, *steps]) == expected


def test_the_pace_does_not_see_the_gaps() -> None:
    steps = [make_step(t / 10, 0, 1, t) for t in range(20)] + [make_step(60 + t / 10, 0, 1, t) for t in range(20)]
    assert goodput.find_pace(steps) == pytest.approx(0.1)
    assert goodput.find_pace([]) == 0.0


def test_the_api_servers_counters_are_read() -> None:
    text = """# TYPE apiserver_request_total counter
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="200",resource="elasticjobs",subresource="status",verb="PATCH"} 2
apiserver_request_total{code="200",resource="leases",subresource="",verb="PUT"} 9
"""
    counts = parse_requests(text)
    assert counts["POST", "pods"] == 4
    assert dict(controlplane.only_writes(counts)) == {("POST", "pods"): 4, ("PATCH", "elasticjobs/status"): 2}


def test_a_peer_is_there_only_in_its_pinned_version(tmp_path: Path) -> None:
    pins = peers.parse_pins(peers.PINS.read_text())
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    assert peers.find_missing(["torchft-nightly", "dlrover"], tmp_path) == ["torchft-nightly", "dlrover"]
    (site / f"torchft_nightly-{pins['torchft-nightly']}.dist-info").mkdir(parents=True)
    (site / "dlrover-0.0.1.dist-info").mkdir()
    assert peers.find_missing(["torchft-nightly", "dlrover"], tmp_path) == ["dlrover"]


def test_the_pins_of_the_peers_do_not_contradict_those_of_the_project() -> None:
    ours, theirs = (peers.parse_pins(path.read_text()) for path in (peers.CONSTRAINTS, peers.PINS))
    assert not set(ours) & set(theirs)


def test_the_phases_of_a_start_are_read_as_the_operator_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    seconds = iter((0.5, 1.25, 2.0, 3.0))
    times = StartTimes(lambda: next(seconds), lambda: 0.25)
    with caplog.at_level(logging.INFO):
        times.end("pods and all other objects")
        times.lead(["a", "b"])
        for job in ("a", "b"):
            times.count_pass(job)
    log = "".join(f"22:00:00.000 INFO    {line}\n22:00:00.000 INFO    t/a: 0 s (CPU 7 s)\n" for line in caplog.messages)
    assert {name: (one.seconds, one.cpu) for name, one in start.read_phases(log).items()} == {
        "pods and all other objects": (0.5, 0.25),
        "leads": (1.25, 0.25),
        "first pass": (2.0, 0.25),
        "every job": (3.0, 0.25),
    }


@pytest.mark.parametrize("metadata_first", [True, False], ids=["typed", "custom"])
def test_a_list_is_read_to_its_last_page(metadata_first: bool) -> None:
    asked = []

    def get(path: str) -> bytes:
        asked.append(path)
        rest = {1: ',"continue":"AB"', 2: ',"continue":"CD"'}.get(len(asked), "")
        parts = [f'"metadata":{{"x":1{rest}}}', f'"items":["{"x" * 10_000}"]']
        return ("{" + ",".join(parts if metadata_first else parts[::-1]) + "}").encode()

    pages = list(start.read_pages(get, "/pods", "&a=b"))
    assert len(pages) == 3
    assert asked == [f"/pods?limit=500&a=b{token}" for token in ("", "&continue=AB", "&continue=CD")]


def test_one_world_is_large_and_the_others_have_ten_agents() -> None:
    sizes = Counter(job_of(number, 100) for number in range(125))
    assert sizes == {"bench-0": 100, "bench-1": 10, "bench-2": 10, "bench-3": 5}
