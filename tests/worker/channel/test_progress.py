"""Progress: pure parts as tables, and the channel with a real socket."""

from __future__ import annotations

import io
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from elasticjob.channel import control, progress
from worker.gang_helper import clean_environment

Agent = tuple[str, queue.Queue[dict[str, Any]]]


@pytest.fixture
def agent() -> Iterator[Agent]:
    """The agent's end of the channel: its path and what it hears."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()

    def hear(peer: control.Peer, message: dict[str, Any] | None) -> None:
        if message is not None or peer.wants:  # an agent that starts elsewhere connects to see whether this one lives
            heard.put(message or {"type": "hung up"})

    server = control.Server(hear)
    yield str(server.path), heard
    server.close()


SCRIPT = """
import sys, elasticjob
for step in range(1, 5001):
    elasticjob.report(step=step, total=5000, loss=1 / step, broken=float("nan"))
assert "torch" not in sys.modules, "report needs no torch"
"""


def hear(agent: Agent, script: str) -> list[dict[str, Any]]:
    """What the agent hears of the only rank of this script."""
    path, heard = agent
    env = clean_environment(ELASTICJOB_CONTROL=path, RANK="0", WORLD_SIZE="1", MASTER_ADDR="x", MASTER_PORT="1")
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=60)
    messages = []
    while (message := heard.get(timeout=30))["type"] != "hung up":
        messages.append(message)
    return messages


def hear_reports(agent: Agent, script: str) -> list[dict[str, Any]]:
    return [message for message in hear(agent, script) if message["type"] == "progress"]


def test_the_agent_hears_few_messages_and_the_last_one(agent: Agent) -> None:
    messages = hear(agent, SCRIPT)
    reports = [message for message in messages if message["type"] == "progress"]
    assert messages[0]["type"] == "hello"
    assert reports[0]["step"] == 1
    assert reports[0]["stepSeconds"] is None
    assert 2 <= len(reports) < 100
    last = reports[-1]
    assert (last["rank"], last["step"], last["total"]) == (0, 5000, 5000)
    assert last["metrics"] == {"loss": pytest.approx(1 / 5000)}
    assert last["stepSeconds"] > 0


def test_without_an_agent_nothing_happens() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=clean_environment(), check=True, timeout=60, capture_output=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def test_an_agent_that_is_gone_does_not_disturb(tmp_path: Any) -> None:
    env = clean_environment(ELASTICJOB_CONTROL=str(tmp_path / "gone"))
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, check=True, timeout=60, capture_output=True)
    assert done.stderr == b""


def test_a_report_that_is_not_sent_is_cheap() -> None:
    reporter = progress.Reporter(0, None)
    best = min(_seconds_per_report(reporter) for _ in range(5))
    assert best < 20e-6  # the best of five rounds: other load on the machine does not count


def _seconds_per_report(reporter: progress.Reporter) -> float:
    rounds = 2000
    started = time.perf_counter()
    for step in range(rounds):
        reporter.report(time.monotonic(), step, rounds, {"loss": 0.5})
    return (time.perf_counter() - started) / rounds


def test_the_bar_is_drawn_on_a_terminal() -> None:
    primary, secondary = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=clean_environment(), stderr=secondary, start_new_session=True
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while chunk := os.read(primary, 65536):
                shown += chunk
        except OSError:  # the other side is closed: Linux says it so
            pass
        assert process.wait(timeout=60) == 0
    os.close(primary)
    assert "100%  5000/5000" in shown.decode()


@dataclass
class Grown:
    """What a script has done with its batch."""

    steps: int
    batch_size: int | None
    noise_scale: float | None = None


def test_the_steps_of_a_batch_that_grows_are_timed_whatever_the_script_counts() -> None:
    times = progress.BatchTimes()
    times.report(0.0)
    assert times.as_message() == {}, "no batch grows"
    growth = times.growth = Grown(0, None)
    times.report(1.0)
    assert times.as_message() == {}, "this one does not either"
    growth.steps, growth.batch_size = 1, 64
    times.report(2.0)
    assert times.as_message() == {"batchSize": 64}
    growth.steps, growth.noise_scale = 3, 123.456
    times.report(3.0)
    times.report(30.0)  # the script has reported something else
    assert times.as_message() == {"batchSize": 64, "batchSeconds": 0.5, "noiseScale": 123.5}
    growth.steps, growth.batch_size = 4, 128
    times.report(40.0)
    assert times.as_message() == {"batchSize": 128, "noiseScale": 123.5}, "a world of another size was formed"
    growth.steps = 5
    times.report(42.0)
    assert times.as_message()["batchSeconds"] == 2.0


GROWS = """
import torch
from elasticjob import BatchGrowth, ElasticDistributedSampler, Session, report
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = ElasticDistributedSampler(64, global_batch_size=4, virtual_ranks=4)
growth = BatchGrowth(optimizer, sampler, reference_batch_size=4, rule="adascale")
def on_world(session):
    sampler.global_batch_size = 8 * session.world_size
session = Session(model=model, optimizer=optimizer, sampler=sampler, growth=growth, on_world=on_world)
data = torch.randn(64, 3)
for indices in session.batches([data[batch] for batch in sampler]):
    with session.step():
        session.backward((session.model(indices) - 1).square().mean())
        if session.ends_step:
            optimizer.step()
            optimizer.zero_grad()
    if session.ends_step:
        report(step=session.committed + 1, total=8)
session.close()
"""


@pytest.mark.parametrize("grows", [True, False])
def test_a_session_says_what_a_batch_that_grows_is_worth(agent: Agent, grows: bool) -> None:
    path, heard = agent
    script = GROWS if grows else GROWS.replace("growth=growth, on_world=on_world", "growth=growth")
    env = clean_environment(ELASTICJOB_CONTROL=path, ELASTICJOB_IN_PROCESS="0")
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=120)
    last: dict[str, Any] = {}
    while (message := heard.get(timeout=30))["type"] != "hung up":
        last = message if message["type"] == "progress" else last
    assert last["step"] == (8 if grows else 16)
    told = {name: last[name] for name in ("batchSize", "batchSeconds", "noiseScale") if name in last}
    if not grows:
        assert not told
    else:
        assert told.pop("batchSize") == 8
        assert told["batchSeconds"] > 0
        assert told["noiseScale"] >= 0


@pytest.mark.parametrize(
    ("before", "seconds", "steps", "after"),
    [
        (None, 2.0, 1, 2.0),
        (None, 2.0, 4, 0.5),
        (1.0, 2.0, 1, 1.1),
        (1.0, 5.0, 0, 1.0),
        (1.0, 5.0, -3, 1.0),
        (1.0, 2000.0, 1000, 2.0),
    ],
)
def test_smooth_step_time(before: float | None, seconds: float, steps: int, after: float) -> None:
    assert progress.smooth_step_time(before, seconds, steps) == pytest.approx(after)


@pytest.mark.parametrize(
    ("step", "total", "step_seconds", "left"),
    [(10, 100, 0.5, 45.0), (100, 100, 0.5, 0.0), (1, None, 0.5, None), (1, 10, None, None)],
)
def test_estimate_remaining(step: int, total: int | None, step_seconds: float | None, left: float | None) -> None:
    assert progress.estimate_remaining(step, total, step_seconds) == left


@pytest.mark.parametrize(("seconds", "text"), [(42.2, "42 s"), (187, "3:07"), (7387, "2:03:07")])
def test_format_seconds(seconds: float, text: str) -> None:
    assert progress.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("step", "total", "speed", "metrics", "line"),
    [
        (5, 10, 2.0, {"loss": 0.25}, "██████████··········  50%  5/10  2 s/step  10 s left  loss 0.25"),
        (5, None, None, {}, "step 5  "),
        (20, 10, None, {}, "████████████████████ 100%  20/10  "),
    ],
)
def test_render_bar(step: int, total: int | None, speed: float | None, metrics: dict[str, float], line: str) -> None:
    assert progress.render_bar(step, total, speed, metrics) == line


def test_the_bar_fits_its_line() -> None:
    assert len(progress.render_bar(1, 10, 1.0, {f"metric{i}": i for i in range(50)}, width=60)) == 60


def test_the_bar_can_go_to_any_stream() -> None:
    stream = io.StringIO()
    reporter = progress.Reporter(0, stream)
    reporter.report(1.0, 1, 2, {})
    reporter.report(1.01, 2, 2, {})  # too soon to draw
    reporter.close()
    assert stream.getvalue().count("\r") == 2
    message = progress.build_message(0, 1, None, None, {"x": float("inf"), "y": 1.0})
    assert (message["metrics"], message["notFinite"]) == ({"y": 1.0}, ["x"])


@pytest.mark.parametrize(
    ("counts", "step_seconds", "said"),
    [
        pytest.param([{"samples": 64}], 0.5, {"samplesPerSecond": 128.0}, id="samples"),
        pytest.param(
            [{"samples": 2, "tokens": 4096}], 0.5, {"samplesPerSecond": 4, "tokensPerSecond": 8192}, id="both"
        ),
        pytest.param([{"tokens": 100}, {"tokens": 200}], 1.0, {"tokensPerSecond": 110}, id="smoothed"),
        pytest.param([{"tokens": 100}, {}], 1.0, {}, id="no longer counted"),
        pytest.param([{"tokens": 100}, {"tokens": None}], 1.0, {}, id="no number"),
        pytest.param([{"samples": 64}], None, {}, id="no time of a step yet"),
        pytest.param([{"samples": 64}], 0.0, {}, id="a clock that does not move"),
    ],
)
def test_throughput(counts: list[dict[str, int | None]], step_seconds: float | None, said: dict[str, float]) -> None:
    throughput = progress.Throughput()
    messages = [throughput.as_message(one, step_seconds) for one in counts]
    assert messages[-1] == said


@pytest.mark.parametrize(
    ("flops", "peak", "step_seconds", "said"),
    [
        pytest.param([6e15], 1e15, 2.0, {"mfu": 0.75}, id="of four ranks"),
        pytest.param([1e15, 2e15], 1e15, 0.5, {"mfu": 0.55}, id="smoothed"),
        pytest.param([1e15, None], 1e15, 1.0, {}, id="no longer counted"),
        pytest.param([1e15], None, 1.0, {}, id="no peak"),
        pytest.param([1e15], 0.0, 1.0, {}, id="a device that can do nothing"),
        pytest.param([1e15], 1e15, None, {}, id="no time of a step yet"),
        pytest.param([-1e15], 1e15, 1.0, {}, id="negative"),
        pytest.param([float("nan")], 1e15, 1.0, {}, id="NaN"),
        pytest.param([float("inf")], 1e15, 1.0, {}, id="infinite"),
        pytest.param([float("nan"), 1e15], 1e15, 1.0, {"mfu": 0.25}, id="a number again"),
    ],
)
def test_utilization(
    flops: list[float | None], peak: float | None, step_seconds: float | None, said: dict[str, float]
) -> None:
    throughput = progress.Throughput()
    assert [throughput.find_utilization(one, peak, 4, step_seconds) for one in flops][-1] == said


COUNTING = """
import time, elasticjob
from elasticjob.checkpoint import requests
for step in range(1, 31):
    elasticjob.report(step=step, samples=64, tokens=64.0 * 512, flops=64e9, peak_flops=1e15, loss=0.5)
    time.sleep(0.02)
    if step == 20:
        requests.clear()
"""


ON_A_KNOWN_DEVICE = """
import time, elasticjob, torch
torch.cuda.is_initialized, torch.cuda.get_device_name = lambda: True, lambda: "NVIDIA H100 80GB HBM3"
for step in range(1, 4):
    elasticjob.report(step=step, flops=64e9)
    time.sleep(0.02)
"""


IN_A_CHANGED_ENVIRONMENT = """
import os, time, elasticjob, torch
torch.cuda.is_initialized, torch.cuda.get_device_name = lambda: True, lambda: "NVIDIA H100 80GB HBM3"
elasticjob.report(step=1, flops=64e9)
for changed in ({"WORLD_SIZE": "0"}, {"WORLD_SIZE": "2 nodes"}, {"RANK": None}):
    for name, value in changed.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
    time.sleep(0.6)  # a message is due
    elasticjob.report(step=2, flops=64e9)
def fail():
    raise AssertionError("Torch not compiled with CUDA enabled")
torch.cuda.get_device_name = fail
time.sleep(0.6)
elasticjob.report(step=3, flops=64e9)
"""


def test_a_report_of_work_ends_no_training(agent: Agent) -> None:
    assert hear_reports(agent, IN_A_CHANGED_ENVIRONMENT)[-1]["step"] == 3


def test_the_peak_of_a_known_device_need_not_be_given(agent: Agent) -> None:
    reports = hear_reports(agent, ON_A_KNOWN_DEVICE)
    assert reports[-1]["mfu"] == pytest.approx(64e9 / reports[-1]["stepSeconds"] / 989e12, rel=1e-3)


def test_what_a_script_counts_and_saves_is_told(agent: Agent) -> None:
    reports = hear_reports(agent, COUNTING)
    first, last = reports[0], reports[-1]
    assert not {"samplesPerSecond", "tokensPerSecond", "mfu", "checkpointAges"} & first.keys()
    assert last["samplesPerSecond"] == pytest.approx(64 / last["stepSeconds"], rel=1e-4)
    assert last["tokensPerSecond"] == pytest.approx(512 * last["samplesPerSecond"], rel=1e-4)
    assert last["mfu"] == pytest.approx(last["samplesPerSecond"] * 1e9 / 1e15, rel=1e-3)
    assert last["checkpointAges"].keys() == {"File"}
    assert last["metrics"] == {"loss": 0.5}
