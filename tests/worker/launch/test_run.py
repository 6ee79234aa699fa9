"""Both launchers and their workers. Most of it also applies to an unmodified `torchrun`."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from elasticjob.launch import fork_server, process
from elasticjob.peers import probe
from elasticjob.torchcompat import forking
from worker.fake_hub import FakeHub
from worker.fake_pods import BIN, STEPS, Pod, Pods, Steps
from worker.peers.gang import wait_for

pytestmark = pytest.mark.timeout(240)
PROGRAMS = Path(__file__).parents[1] / "programs"
OURS = "elasticjob-run"
LAUNCHERS = (OURS, "torchrun")
OFTEN_OURS = (OURS, pytest.param("torchrun", marks=pytest.mark.long))  # of what both do by the same code


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_failure_is_reported_with_its_traceback_and_restarted_warm(hub: FakeHub, pods: Pods, launcher: str) -> None:
    program = str(PROGRAMS / "ej_fail.py")
    members = [pods.start(f"pod-{i}", program, "--x", launcher=launcher) for i in range(2)]
    assert [pod.wait(120) for pod in members] == [0, 0]
    failure = next(failure for failure in hub.failures() if "ValueError" in failure.get("message", ""))
    assert failure["exitCode"] == 1
    assert failure["rank"] == 1
    assert failure["traceback"].rstrip().endswith("ValueError: the first world is meant to fail")
    assert "standby" not in failure["traceback"], "the traceback is the script's own"
    stopped = [failure for failure in hub.failures() if "signal" in failure and "traceback" not in failure]
    assert not stopped, "who was stopped has not failed"
    assert all("finished after 1 restarts" in pod.log for pod in members)
    assert f"argv ['--x'] name __main__ file {program}" in members[0].log


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        pytest.param(["train.py"], {}, True, id="a script"),
        pytest.param(["--nproc-per-node=2", "train.py"], {}, True, id="two workers"),
        pytest.param(["--no-python", "./train"], {}, False, id="no interpreter of ours"),
        pytest.param(["train.py"], {"PET_NO_PYTHON": "1"}, False, id="the same by variable"),
        pytest.param(["--standalone", "train.py"], {}, False, id="torchrun itself"),
        pytest.param(["train.py"], {"ELASTICJOB_HUB_URL": ""}, False, id="no hub"),
        pytest.param(["train.py"], {"ELASTICJOB_WARM_START": "0"}, False, id="turned off"),
    ],
)
def test_when_a_standby_is_forked(arguments: list[str], environ: dict[str, str], expected: bool) -> None:
    assert fork_server.is_wanted(arguments, {"ELASTICJOB_HUB_URL": "ws://hub:1", **environ}) is expected


@pytest.mark.parametrize(
    ("command", "options"),
    [
        pytest.param(["python", "train.py"], [], id="none"),
        pytest.param(["python", "-u", "/bin/torchrun", "-O"], [], id="those of the script are its own"),
        pytest.param(["python", "-m", "elasticjob.run", "-O"], [], id="a module"),
        pytest.param(["python", "-c", "-O"], [], id="a command"),
        pytest.param(["python", "-O", "-m", "elasticjob.run"], ["-O"], id="optimized"),
        pytest.param(["python", "-uX", "dev", "-Wignore", "x"], ["-uX", "dev", "-Wignore"], id="with values"),
        pytest.param(["python", "-W", "error", "-um", "x"], ["-W", "error"], id="together"),
        pytest.param(["python", "--check-hash-based-pycs", "never"], ["--check-hash-based-pycs", "never"], id="long"),
        pytest.param(["python"], [], id="no script"),
    ],
)  # fmt: skip
def test_the_options_of_an_interpreter(command: list[str], options: list[str]) -> None:
    assert process.find_options(command) == options


@pytest.mark.parametrize("launcher", OFTEN_OURS)
def test_a_failed_preflight_is_reported_and_ends_the_pod(hub: FakeHub, pods: Pods, launcher: str) -> None:
    env: dict[str, str | None] = {"ELASTICJOB_PREFLIGHT": "Node", "GLOO_SOCKET_IFNAME": "nowhere0"}
    pod = pods.start("pod-0", str(STEPS), "--out", "out", launcher=launcher, env=env)
    assert pod.wait(120) == 1
    assert hub.phases("pod-0")[-1] == "failed"
    assert "ready" not in hub.phases("pod-0")
    (failure,) = hub.failures()
    assert failure["message"].startswith("preflight: interface: GLOO_SOCKET_IFNAME=nowhere0 does not exist here")
    assert "-- unset it or correct it" in failure["message"]
    said = [line for line in pod.log.splitlines() if "nowhere0" in line]
    assert said == [f"elasticjob: error: {failure['message']}"]
    assert "Traceback" not in pod.log


# With Network, this hub is that of an older operator, which has no probes.
@pytest.mark.parametrize("level", ["Node", pytest.param("Network", marks=pytest.mark.long)])
def test_a_good_preflight_is_silent(hub: FakeHub, pods: Pods, tmp_path: Path, level: str) -> None:
    hub.set_size(1)
    env: dict[str, str | None] = {"ELASTICJOB_PREFLIGHT": level}
    command = [str(STEPS), "--out", str(tmp_path / "out"), "--steps", "2"]
    assert pods.start("pod-0", *command, launcher="elasticjob-run", env=env).wait(120) == 0
    assert hub.phases("pod-0")[:3] == ["starting", "ready", "running"]


@pytest.fixture
def measured_pod() -> Iterator[dict[str, Any]]:
    """Another pod, as the hub names it."""
    responder = probe.Responder("127.0.0.1", lambda: "secret")
    yield {"uid": "u2", "address": "127.0.0.1", "port": responder.port}
    responder.close()


def test_the_links_are_measured_before_the_pod_joins(
    hub: FakeHub, pods: Pods, tmp_path: Path, measured_pod: dict[str, Any]
) -> None:
    hub.set_size(1)
    hub.probe = lambda check: {"passed": True} if check["links"] else {"peers": [measured_pod]}
    command = [str(STEPS), "--out", str(tmp_path / "out"), "--steps", "2"]
    env: dict[str, str | None] = {"ELASTICJOB_PREFLIGHT": "Network"}
    assert pods.start("pod-0", *command, launcher="elasticjob-run", env=env).wait(120) == 0
    said = [message["state"] for message in hub.messages("state")]
    assert [state["phase"] for state in said[:4]] == ["starting", "starting", "starting", "ready"]
    checks = [state["preflight"] for state in said[:3]]
    assert [(len(check["links"]), check["over"]) for check in checks] == [(0, False), (1, False), (1, True)]
    (link,) = checks[1]["links"]
    assert link["uid"] == "u2" and link["bytesPerSecond"] > 0 and "problem" not in link


def test_a_pod_whose_network_is_at_fault_gives_up(hub: FakeHub, pods: Pods) -> None:
    hub.probe = lambda check: {"passed": False, "reason": "1.0 MiB/s between a and b, 90.0 MiB/s elsewhere"}
    pod = pods.start("pod-0", str(STEPS), launcher="elasticjob-run", env={"ELASTICJOB_PREFLIGHT": "Network"})
    assert pod.wait(120) == 1
    (failure,) = hub.failures()
    assert failure["message"] == "preflight: network: 1.0 MiB/s between a and b, 90.0 MiB/s elsewhere"
    assert "ready" not in hub.phases("pod-0") and "Traceback" not in pod.log


def test_an_unknown_preflight_level_is_one_clear_error(pods: Pods) -> None:
    pod = pods.start("pod-0", str(STEPS), launcher="elasticjob-run", env={"ELASTICJOB_PREFLIGHT": "Always"})
    assert pod.wait(60) == 1
    assert "ELASTICJOB_PREFLIGHT='Always' is unknown. Use Off, Node, Network." in pod.log
    assert "Traceback" not in pod.log


@pytest.mark.parametrize("launcher", OFTEN_OURS)
def test_the_workers_die_with_their_agent(hub: FakeHub, pods: Pods, tmp_path: Path, launcher: str) -> None:
    hub.set_size(1)
    pod = pods.start("pod-0", str(STEPS), "--out", str(tmp_path / "out"), launcher=launcher)
    world = hub.wait_for_world(1)
    Steps(tmp_path / "out").wait_for_world(1, world.generation)
    workers = pod.workers()
    pod.process.kill()
    pod.process.wait(30)
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert gone


def test_the_checkpoint_signal_comes_before_an_announced_change(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    command = [str(PROGRAMS / "ej_save.py"), str(tmp_path), "-1"]
    for i in range(2):
        pods.start(f"pod-{i}", *command, launcher="elasticjob-run")
    world = hub.wait_for_world(2)
    hub.wait_for(lambda: hub.messages("progress"), what="progress")
    hub.set_size(1)
    hub.remove(world.pods[1])
    hub.wait_for_world(1, newer_than=world.generation)
    saved = {int(file.read_text()) for file in tmp_path.glob(f"saved-{world.generation}-*")}
    assert len(list(tmp_path.glob(f"saved-{world.generation}-*"))) == 2, "every rank saved"
    assert len(saved) == 1, "at the same step"
    report = hub.messages("progress")[-1]
    assert report["totalSteps"] == 100_000
    assert "loss" in report["metrics"]


def test_a_hang_is_diagnosed_and_restarted(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    """Every agent says where its rank is: the one that sleeps, and the one that waits for it."""
    command = [str(PROGRAMS / "ej_save.py"), str(tmp_path), "60"]
    env: dict[str, str | None] = {"ELASTICJOB_HANG_TIMEOUT_SECONDS": "5"}
    for i in range(2):
        pods.start(f"pod-{i}", *command, launcher="elasticjob-run", env=env)
    world = hub.wait_for_world(2)
    hub.wait_for_world(2, newer_than=world.generation, timeout=120)
    text = "".join(message["text"] for message in hub.messages("diagnosis"))
    assert "ej_save.py" in text, "the stacks show where"
    found = {failure["rank"]: failure for failure in hub.failures() if failure.get("kind") == "hang"}
    assert {rank: failure["waits"] for rank, failure in found.items()} == {0: False, 1: True}
    assert re.fullmatch(r"no step for \d+ s after step \d+, at ej_save.py:26 in <module>", found[0]["message"])
    assert found[0]["stalledSeconds"] > 4
    assert "distributed_c10d.py" in found[1]["traceback"].splitlines()[0], "the innermost call comes first"


def test_without_a_hub_it_is_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "out"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "ELASTICJOB_"))}
    subprocess.run(
        [
            str(BIN / "elasticjob-run"),
            *("--standalone", "--nproc-per-node", "2", str(STEPS), "--out", str(out)),
            *("--steps", "3"),
        ],
        check=True,
        timeout=120,
        env=env | {"OMP_NUM_THREADS": "1"},
    )
    assert {line["world"] for line in Steps(out).read()} == {2}


def test_it_warns_nobody_and_starts_nothing_on_import() -> None:
    code = (
        "import threading, elasticjob.rendezvous, elasticjob.channel.control, elasticjob.channel.signals, sys;"
        "assert threading.active_count() == 1; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("code", "most"),
    [
        pytest.param("import elasticjob", 45, id="the library"),
        pytest.param("from elasticjob import run; run.main(['--help'])", 200, id="elasticjob-run --help"),
    ],
)
def test_what_must_be_quick_imports_the_standard_library_alone(code: str, most: int) -> None:
    """Counts, not seconds: 30 and 120 modules when this was written, and torch alone has more than a thousand."""
    counting = f"import sys; before = set(sys.modules); {code}; print(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", counting], check=True, timeout=60, capture_output=True, text=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert {name.partition(".")[0] for name in loaded} <= sys.stdlib_module_names | {"elasticjob"}
    assert len(loaded) <= most
    if code == "import elasticjob":
        assert [name for name in loaded if name.startswith("elasticjob")] == ["elasticjob"]
    else:
        assert "torchrun --help" in done.stdout


def test_the_agent_collects_garbage_after_its_imports() -> None:
    code = (
        "import gc; before = gc.get_threshold(); from elasticjob import launcher, run;"
        "launcher.main = lambda *_: print(gc.get_threshold() == before, gc.get_freeze_count() > 100_000);"
        "run.main(['train.py'])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=100, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"]


def test_sigterm_twice_means_now(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    hub.set_size(1)
    pod = pods.start("pod-0", str(STEPS), "--out", str(tmp_path / "out"), launcher="elasticjob-run")
    world = hub.wait_for_world(1)
    Steps(tmp_path / "out").wait_for_world(1, world.generation)
    pod.terminate()
    hub.wait_for(lambda: "leaving" in hub.phases("pod-0"))
    workers = pod.workers()
    pod.terminate()
    # Python drops its handlers while it exits: then the second signal ends what was ending.
    assert pod.wait() in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert not psutil.wait_procs(workers, timeout=30)[1]


def test_a_pod_leaves_in_order_while_its_workers_are_being_started(hub: FakeHub, pods: Pods, tmp_path: Path) -> None:
    """torch sets its own handler of SIGTERM just before, which raises an exception wherever the agent is."""
    arguments = (str(STEPS), "--out", str(tmp_path / "out"))
    pods.warm = False  # what is forked has another folder for temporary files
    pod = pods.start("pod-0", *arguments, launcher="elasticjob-run", env={"TMPDIR": str(tmp_path)})
    hub.wait_for(lambda: hub.phases("pod-0")[-1:] == ["ready"])
    standby, agent = find_standby(pod), psutil.Process(pod.process.pid)
    standby.suspend()
    hub.set_size(1)
    wait_for(lambda: any(tmp_path.glob("torchelastic_*/*/attempt_0/0")), "torch has begun to start the worker")
    wait_for(lambda: [agent.status() for _ in range(3)] == ["sleeping"] * 3, "it waits for the standby")
    pod.terminate()
    try:
        hub.wait_for(lambda: "leaving" in hub.phases("pod-0"))
    finally:
        standby.resume()
    assert pod.wait() == 0
    assert "Traceback" not in pod.log


def find_standby(pod: Pod) -> psutil.Process:
    """The oldest child of the agent: the workers were forked from it later."""
    return min(pod.workers(), key=lambda process: process.pid)


@pytest.mark.parametrize("launcher", OFTEN_OURS)
def test_without_its_standby_it_starts_workers_cold(hub: FakeHub, pods: Pods, tmp_path: Path, launcher: str) -> None:
    out = tmp_path / "out"
    members = [pods.start(f"pod-{i}", str(STEPS), "--out", str(out), launcher=launcher) for i in range(2)]
    world = hub.wait_for_world(2)
    Steps(out).wait_for_world(2, world.generation)
    standbys = [find_standby(pod) for pod in members]
    workers = [worker for pod in members for worker in pod.workers() if worker not in standbys]
    for standby in standbys:
        standby.kill()
    assert not psutil.wait_procs(standbys, timeout=30)[1]
    assert len(workers) == 2
    assert all(worker.is_running() for worker in workers), "the workers outlive it"
    hub.set_size(1)
    hub.remove(world.pods[1])
    smaller = hub.wait_for_world(1, newer_than=world.generation)
    Steps(out).wait_for_world(1, smaller.generation)
    assert "from now on workers start cold" in next(p for p in members if p.name == smaller.pods[0]).log


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_orphans_of_a_worker_do_not_stay_as_zombies(hub: FakeHub, pods: Pods, tmp_path: Path, launcher: str) -> None:
    hub.set_size(1)
    pod = pods.start("pod-0", str(PROGRAMS / "ej_orphan.py"), str(tmp_path / "pid"), launcher=launcher)
    hub.wait_for((tmp_path / "pid").exists, what="the worker left a child")
    orphan = psutil.Process(int((tmp_path / "pid").read_text()))
    hub.wait_for(lambda: orphan.ppid() == pod.process.pid, what="the agent adopted it")
    orphan.kill()
    hub.wait_for(lambda: not orphan.is_running(), what="its exit code was taken")


def test_orphans_are_taken_care_of_without_a_standby_too() -> None:
    """Workers that had to start cold leave orphans as well, and the agent still adopts them."""
    code = """
import os, sys, time
from elasticjob.launch import fork_server, process
from elasticjob.peers import probe
server = fork_server.ForkServer()
server.fork()
server.close()
between = os.fork()
if not between:
    if not os.fork():
        while os.getppid() != int(sys.argv[1]):
            time.sleep(0.01)
    os._exit(0)
os.waitpid(between, 0)
while True:
    server.reap()
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    time.sleep(0.01)
"""
    launch = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], str(os.getpid())])"
    done = subprocess.run([sys.executable, "-c", launch, code], check=False, timeout=60, capture_output=True, text=True)
    assert "ChildProcessError: [Errno 10] No child processes" in done.stderr, "no child is left"


def test_a_standby_whose_agent_has_ended_ends_silently() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        command = [sys.executable, "-m", "elasticjob.launch.standby", str(theirs.fileno())]
        done = subprocess.run(
            command, check=False, timeout=100, capture_output=True, text=True, pass_fds=[theirs.fileno()]
        )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("devices", "lost"), [(0, False), (2, True)])
def test_a_look_for_devices_costs_the_standby_only_where_there_are_some(
    monkeypatch: pytest.MonkeyPatch, devices: int, lost: bool
) -> None:
    """torchrun of torch 2.15 looks for devices before it makes the handler."""
    assert not forking.has_lost_devices()
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert forking.has_lost_devices() is lost
