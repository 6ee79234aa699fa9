"""Set-up: the interpretation of the environment as a table, and `init()` with real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from elasticjob.channel.place import Place
from elasticjob.context import setup
from elasticjob.context.context import Context, pass_over, read_context
from elasticjob.context.network import find_interface, own_address, read_interfaces, set_interface
from elasticjob.errors import CollectiveFailedError, ConfigurationError
from elasticjob.launch.preload import OWN_VARIABLES
from worker.gang_helper import PROGRAMS, Member, clean_environment, run_alone, run_gang

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(scope="module")
def gang() -> list[Member]:
    return run_gang(PROGRAMS / "init_program.py", 2, env={"GLOO_SOCKET_IFNAME": ""})


def test_a_launched_process_knows_its_place(gang: list[Member]) -> None:
    assert [member.results["world"] for member in gang] == [
        [0, 2, 0, "gloo", "cpu", False],
        [1, 2, 1, "gloo", "cpu", False],
    ]
    assert gang[0].results["interface"] == ["lo", "lo"]
    assert gang[0].results["reason"] == "no CUDA device"
    assert [member.results["subgroup"] for member in gang] == [None, 1]
    assert "distinct and from 0 to 1" in gang[0].results["wrong subgroup"]
    assert gang[0].results["again"] is True
    assert gang[0].results["closed"] is True


def test_an_elastic_agent_is_recognised(gang: list[Member]) -> None:
    assert gang[0].results["elastic"] == [True, True, 7, 2]


def test_checked_turns_the_checks_of_torch_on(gang: list[Member]) -> None:
    assert gang[0].results["torch check"] is True


def test_without_a_launcher_it_is_a_world_of_one(gang: list[Member]) -> None:
    assert gang[0].results["alone"] == [0, 1, False, 1.0]


def test_torch_xla_that_sees_one_process_is_told_once(gang: list[Member]) -> None:
    (told,), unknown = gang[0].results["beside torch_xla"]
    assert told.startswith("torch_xla sees one process, and the world has 2: its collectives do nothing")
    assert unknown == []
    assert gang[1].results["beside torch_xla"] == [[], []]


# A build for CUDA has NCCL on a machine without a device, too.
NCCL_CHECK = "torch.cuda.is_available() is false" if dist.is_nccl_available() else "is_nccl_available() is false"


@pytest.mark.parametrize(
    ("backend", "word"),
    [("nccl", NCCL_CHECK), ("mpi", "is_mpi_available() is false"), ("nonsense", "use auto")],
)
def test_a_backend_that_is_not_there_is_explained(gang: list[Member], backend: str, word: str) -> None:
    if backend not in gang[0].results:
        pytest.skip(f"this torch has {backend}")
    assert word in gang[0].results[backend]


def test_a_world_that_does_not_come_is_one_error_soon(gang: list[Member]) -> None:
    message, seconds = gang[0].results["nobody"]
    assert "could not join the world at 127.0.0.1:1" in message
    assert "elasticjob doctor" in message
    assert seconds < 30


@pytest.mark.parametrize("error", [RuntimeError, ConnectionError, TimeoutError, dist.DistNetworkError])
def test_a_network_that_fails_the_joining_of_a_world_is_no_mistake_of_the_script(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose script the runtime refuses twice has failed."""

    def fail(*_: object, **__: object) -> None:
        raise error("the client socket has timed out\nmore")

    monkeypatch.setattr(dist, "init_process_group", fail)
    with pytest.raises(
        CollectiveFailedError, match=r"could not join the world at .*: the client socket has timed out -"
    ):
        setup._join(read_context(LAUNCHED), "gloo", 1.0)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, Context(), id="plain python"),
        pytest.param({"ELASTICJOB_POD_IP": "10.1.1.1"}, Context(pod_ip="10.1.1.1"), id="plain python in a pod"),
        pytest.param(
            LAUNCHED,
            Context(rank=1, world_size=4, master_address="10.0.0.1", master_port=29500, launched=True),
            id="a launcher that is not elastic",
        ),
        pytest.param(
            LAUNCHED
            | {
                "LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "2",
                "TORCHELASTIC_RUN_ID": "x",
                "TORCHELASTIC_RESTART_COUNT": "3",
            },
            Context(1, 1, 4, 2, 3, 3, "10.0.0.1", 29500, launched=True, elastic=True),
            id="torchrun",
        ),
        pytest.param(
            LAUNCHED | {"TORCHELASTIC_RUN_ID": "x", "ELASTICJOB_GENERATION": "9", "ELASTICJOB_NAME": "digits"},
            Context(
                rank=1,
                world_size=4,
                generation=9,
                master_address="10.0.0.1",
                master_port=29500,
                launched=True,
                elastic=True,
                job="digits",
            ),
            id="an ElasticJob",
        ),
    ],
)
def test_read_context(env: dict[str, str], expected: Context) -> None:
    assert read_context(env) == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "one"}, "RANK='one' is not a number"),
        ({"RANK": "4"}, "RANK=4 does not fit WORLD_SIZE=4"),
        ({"RANK": "-1"}, "RANK=-1 is below 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0 is below 1"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is not a port"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR not set"),
        ({"WORLD_SIZE": "", "MASTER_PORT": ""}, "WORLD_SIZE, MASTER_PORT not set"),
        ({"ELASTICJOB_GENERATION": "x"}, "ELASTICJOB_GENERATION='x'"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE=0"),
        ({"TORCHELASTIC_RESTART_COUNT": "1.5"}, "TORCHELASTIC_RESTART_COUNT='1.5'"),
    ],
)
def test_a_broken_variable_is_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_context(LAUNCHED | change)


@pytest.mark.parametrize(
    ("pod_ip", "master", "local", "name"),
    [
        ("10.0.0.5", "10.0.0.1", False, "eth0"),
        ("10.9.9.9", "10.0.0.1", False, None),
        ("", "127.0.0.1", True, "lo"),
        ("", "localhost", True, "lo"),
        ("", "10.0.0.1", False, None),
        ("", "127.0.0.1", False, None),
    ],
)
def test_find_interface(pod_ip: str, master: str, local: bool, name: str | None) -> None:
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.5", "eth1": "192.168.0.5"}
    assert find_interface(interfaces, pod_ip, master, local) == name


def test_set_interface_leaves_the_users_choice() -> None:
    mine = {"GLOO_SOCKET_IFNAME": "eth7"}
    assert set_interface(mine, "eth0") == "eth7"
    empty: dict[str, str] = {}
    assert set_interface(empty, "eth0") == "eth0"
    assert empty == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert set_interface({}, None) == ""


def test_the_machine_has_a_loopback_interface() -> None:
    assert "127.0.0.1" in read_interfaces().values()
    assert own_address({"ELASTICJOB_POD_IP": "10.1.2.3"}) == "10.1.2.3"
    assert own_address({})


def test_importing_starts_nothing_writes_nothing_and_does_not_load_torch(tmp_path: object) -> None:
    script = """
import os, sys, threading, signal, atexit
before = (set(os.listdir(".")), dict(os.environ), signal.getsignal(signal.SIGUSR1), len(os.listdir("/proc/self/fd")))
import elasticjob
assert "torch" not in sys.modules
dir(elasticjob); elasticjob.ElasticJobError
after = (set(os.listdir(".")), dict(os.environ), signal.getsignal(signal.SIGUSR1), len(os.listdir("/proc/self/fd")))
assert before == after and threading.active_count() == 1 and "torch" not in sys.modules
assert all(hasattr(elasticjob, name) for name in elasticjob.__all__)
try:
    elasticjob.nothing
except AttributeError:
    print("fine", end="")
import torch.distributed as dist
assert not dist.is_initialized() and threading.active_count() == 1
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=str(tmp_path),
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine", "")


@pytest.mark.parametrize(
    ("repeats", "left"),
    [(0, [40, 30, 20]), (1, [40, 30, 20]), (2, [30, 20]), (3, [20]), (4, [20]), (99, [20])],
)
def test_the_newest_checkpoints_are_passed_over_where_the_same_error_repeats(repeats: int, left: list[int]) -> None:
    assert list(pass_over([40, 30, 20], repeats)) == left
    assert list(pass_over([], repeats)) == []


@pytest.mark.parametrize(
    ("before", "repeats", "left"),
    [
        (None, 0, [40, 30, 20]),
        (41, 0, [40, 30, 20]),
        (40, 0, [30, 20]),
        (40, 2, [20]),
        (40, 9, [20]),
        (20, 0, [20]),
        (0, 5, [20]),
    ],
)
def test_checkpoints_from_where_training_was_sick_are_passed_over(
    before: int | None, repeats: int, left: list[int]
) -> None:
    assert list(pass_over([40, 30, 20], repeats, before, lambda step: step)) == left
    assert list(pass_over([], repeats, before, lambda step: step)) == []
    unknown = [20] if before is not None else [40, 30, 20]
    assert list(pass_over([40, 30, 20], 0, before)) == unknown, "of those without a step, it is not known"


def test_imports_ahead_take_no_variable_that_each_start_sets_anew() -> None:
    """A module that reads one while it is imported must be imported by each worker."""
    place = Place(generation=3, rank=1, world_size=4, address="10.0.0.1", port=29500, repeats=2)
    assert set(place.as_environ()) <= OWN_VARIABLES


LEAVING = """
import os
import torch
import torch.distributed as dist
import elasticjob
from worker.programs.saying import say

before = len(os.listdir("/proc/self/task"))
with elasticjob.init():
    dist.all_reduce(torch.ones(1))
    model = {model}
say("threads", len(os.listdir("/proc/self/task")) - before)
say("model", type(model).__name__)
"""


def test_a_world_that_is_left_keeps_no_thread_that_may_wait_for_the_interpreter_when_it_has_ended() -> None:
    """C++ would end the process by SIGABRT."""
    assert run_alone(LEAVING.format(model="None")).results["threads"] == 0


def test_the_groups_of_a_model_that_is_still_there_are_kept() -> None:
    """It is the last that has them otherwise, and frees them in a deadlock."""
    model = "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))"
    results = run_alone(LEAVING.format(model=model)).results
    assert results["threads"] > 0 and results["model"] == "DistributedDataParallel"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("where", ["block", "subgroup", "exit"])
def test_a_bug_beside_a_pending_collective_ends_the_rank_before_the_others_come(where: str, tmp_path: Path) -> None:
    """They learn of it by that, and else would wait for each other until the timeout of the group."""
    ranks = run_gang(PROGRAMS / "pending_program.py", 2, where, str(tmp_path / "lock"), may_die=[0, 1])
    assert ranks[1].results["has ended"] is True
    assert "ValueError: a bug" in ranks[0].stderr
