"""Each private name of torch removed: its users continue, slower or with less information, but correctly."""

from __future__ import annotations

import functools
import gc
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.agent.server import api as agent_loop
from torch.distributed.elastic.rendezvous import RendezvousParameters

from elasticjob import env
from elasticjob.agent import handler, torch_agent
from elasticjob.collectives.checked import checked
from elasticjob.collectives.pending import Pending
from elasticjob.protocol import store, wire
from elasticjob.torchcompat import (
    ddp,
    elastic_agent,
    elastic_store,
    failures,
    forking,
    groups,
    probe,
    sharding,
    versions,
    workers,
)

Without = Callable[..., None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """Take names of torch away from those who look for them."""
    find, gone = probe.find, set[str]()

    def look(path: str) -> Any:
        return None if any(path == one or path.startswith(f"{one}.") for one in gone) else find(path)

    monkeypatch.setattr(probe, "find", look)
    return lambda *paths: gone.update(paths)


@pytest.fixture
def world() -> Iterator[None]:
    """A world of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


# Process groups.


@pytest.mark.parametrize("gone", [(), (groups._COUNT,), (groups._WORLD,)], ids=["there", "renamed", "all gone"])
def test_groups_are_named_anew(without: Without, gone: tuple[str, ...]) -> None:
    torch_world = dist.distributed_c10d._world
    without(*gone)
    torch_world.group_count = 5  # as after five worlds that could not be entered
    groups.name_groups_anew()
    assert torch_world.group_count == 0
    assert not dist.is_initialized()


def test_without_the_list_of_groups_the_default_one_is_aborted(without: Without, world: None) -> None:
    other = dist.new_group([0])
    assert set(groups.find_groups()) == {dist.group.WORLD, other}
    without(groups._GROUPS)
    assert groups.find_groups() == [dist.group.WORLD]


def test_without_the_list_and_a_world_there_is_nothing_to_abort(without: Without) -> None:
    without(groups._WORLD)
    assert groups.find_groups() == []


def test_a_group_whose_backend_is_not_known_is_destroyed(without: Without, world: None) -> None:
    without(groups._BACKEND)
    groups.destroy_groups()
    assert not dist.is_initialized()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]


def test_checked_makes_a_store_of_its_own(without: Without, world: None) -> None:
    without(groups._STORE)
    with checked(timeout=5):
        dist.all_reduce(torch.ones(1))
        dist.barrier()


def test_functions_of_torch_come_back_after_an_error() -> None:
    original = dist.barrier
    with pytest.raises(ValueError, match="inside"), groups.replaced({"barrier": lambda: None}):
        assert dist.barrier is not original
        raise ValueError("inside")
    assert dist.barrier is original


# DDP and shards.


def test_a_ddp_that_cannot_skip_the_broadcast(monkeypatch: pytest.MonkeyPatch, world: None) -> None:
    monkeypatch.setattr(ddp, "CAN_SKIP_SYNC", False)
    module = torch.nn.Linear(2, 2)
    assert ddp.make_ddp(module, None, sync=False).module is module


def test_caches_of_meshes_are_found_where_their_names_are_gone(
    monkeypatch: pytest.MonkeyPatch, without: Without
) -> None:
    """A version of torch with a cache under a name that is not known here."""
    module = types.ModuleType("torch.distributed.tensor._renamed")

    @functools.lru_cache
    def plan(mesh: int) -> int:
        return mesh

    class Topology:
        build = staticmethod(functools.cache(lambda mesh: mesh))

    module.__dict__.update(plan=plan, Topology=Topology)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    caches: list[Any] = [plan, Topology.build]
    for cache in caches:
        cache(1)
    if all(map(probe.find, sharding._MEMORIES)):
        sharding.forget_meshes()
        assert [cache.cache_info().currsize for cache in caches] == [1, 1], "it knows the names, and empties only these"
        without(sharding._MEMORIES[2])
    sharding.forget_meshes()
    assert [cache.cache_info().currsize for cache in caches] == [0, 0]


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # up to torch 2.6, of every mesh of the CPU
@pytest.mark.parametrize("own_copy", [True, False])
def test_shards_are_the_same_where_rank_0_sends_them(
    monkeypatch: pytest.MonkeyPatch, world: None, own_copy: bool
) -> None:
    if not own_copy:
        monkeypatch.setattr(sharding, "_OWN_COPY", {})
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=(f"shard_{own_copy}",))
    whole = torch.arange(6.0)
    pattern = sharding.DTensor.from_local(torch.zeros(6), mesh, [sharding.Shard(0)])
    assert torch.equal(sharding.distribute_like(whole, pattern).full_tensor(), whole)


# Tensors.


def test_a_tensor_without_a_count_of_changes_can_be_sent() -> None:
    with torch.inference_mode():
        buffer = torch.zeros(2)
    assert versions.count_changes(buffer) is None
    assert Pending([], lambda: "sent", buffer, "send").wait() == "sent"


# Forking.


def test_a_torch_without_its_compiler_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, forking._COMPILER, None)  # an import of it raises ImportError
    forking.import_compiler()


@pytest.mark.parametrize(("binding", "kept"), [("nanobind", 0), ("pybind11_builtins", 1)])
def test_what_was_inherited_is_freed_only_if_a_library_counts_it(
    monkeypatch: pytest.MonkeyPatch, binding: str, kept: int
) -> None:
    metaclass = type("nb_type_0", (type,), {"__module__": binding})
    library = types.ModuleType("triton._C.libtriton.ir")
    vars(library)["location"] = metaclass("location", (), {})
    monkeypatch.setitem(sys.modules, library.__name__, library)
    gc.freeze()
    try:
        forking.thaw_what_is_counted()
        assert min(gc.get_freeze_count(), 1) == kept
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(("devices", "lost"), [(0, False), (1, True)])
def test_devices_count_as_lost_where_torch_does_not_say(
    monkeypatch: pytest.MonkeyPatch, devices: int, lost: bool
) -> None:
    monkeypatch.delattr(torch.cuda, "_is_in_bad_fork")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    assert forking.has_lost_devices() is lost


def test_devices_that_cannot_be_counted_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.delattr(torch.cuda, "_is_in_bad_fork")
    monkeypatch.setattr(torch.cuda, "device_count", fail)
    assert forking.has_lost_devices()


# torch's agent.


class Agent:
    """What torch's agent has in public."""

    def __init__(self, *pids: int) -> None:
        workers = [types.SimpleNamespace(local_rank=rank, id=pid, global_rank=rank) for rank, pid in enumerate(pids)]
        spec = types.SimpleNamespace(max_restarts=3, local_world_size=len(pids))
        self._group = types.SimpleNamespace(spec=spec, workers=workers)

    def get_worker_group(self) -> Any:
        return self._group


api: Any = agent_loop


def test_the_loop_of_torch_waits_as_it_is_told_and_keeps_its_other_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "time", time)
    told: list[float] = []
    assert elastic_agent.replace_sleep(told.append)
    assert elastic_agent.replace_sleep(told.append), "a second time, for the next handler"
    api.time.sleep(600)
    assert told == [600]
    assert api.time.monotonic() <= time.monotonic()


def test_a_loop_that_does_not_sleep_as_expected_is_left_alone(without: Without) -> None:
    without("torch.distributed.elastic.agent.server.api.SimpleElasticAgent._invoke_run")
    assert not elastic_agent.replace_sleep(lambda seconds: None)
    assert api.time is time


def test_restarts_are_left_to_an_agent_that_counts_elsewhere() -> None:
    agent: Any = Agent(1)
    elastic_agent.set_restarts(agent, 7)
    assert agent.get_worker_group().spec.max_restarts == 3, "what it counts down from elsewhere stays"
    agent._remaining_restarts = 3
    elastic_agent.set_restarts(agent, 7)
    spec = agent.get_worker_group().spec
    assert spec.max_restarts - agent._remaining_restarts == 7


def test_without_the_agents_processes_their_pids_are_known() -> None:
    agent: Any = Agent(11, 12)
    assert elastic_agent.find_pids(agent) == {0: 11, 1: 12}
    assert elastic_agent.find_processes(agent) == {}
    assert not torch_agent.has_workers(agent)
    torch_agent.terminate(agent)
    torch_agent.kill(agent)
    assert torch_agent.find_failure(agent, 1, 0) is None


def test_without_torchs_notes_a_failure_is_seen_in_the_exit_codes() -> None:
    agent: Any = Agent(11, 12)
    processes = [types.SimpleNamespace(pid=pid, poll=lambda code=code: code) for pid, code in ((11, 0), (12, 3))]
    handlers = {rank: types.SimpleNamespace(proc=process) for rank, process in enumerate(processes)}
    agent._pcontext = types.SimpleNamespace(subprocess_handlers=handlers)
    found = torch_agent.find_failure(agent, 1, 4)
    assert found is not None
    assert (found.rank, found.local_rank, found.exit_code) == (5, 1, 3)


def test_where_main_of_torchrun_is_elsewhere_nothing_is_forked() -> None:
    def main() -> bool:  # of a file that is not torch's
        return elastic_agent.is_forkable_torchrun()

    assert not main()


def test_without_the_keys_sessions_are_restarted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, without: Without
) -> None:
    token = tmp_path / "token"
    token.touch()
    for name, value in ((env.HUB_URL, "ws://127.0.0.1:1"), (env.TOKEN_FILE, str(token)), (env.POD_IP, "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(env.CONTROL, "")
    monkeypatch.setenv(env.IN_PROCESS, "1")
    params = RendezvousParameters("elasticjob", "", "job", 1, 1)
    for gone, kept in (((), True), ((f"{elastic_store._API}.SimpleElasticAgent",), False)):
        without(*gone)
        made = handler.open_handler(params)
        assert made.executor.settings.in_process is kept
        made.shutdown()
    assert os.environ[env.IN_PROCESS] == "0", "the workers inherit it"


def test_an_unknown_key_goes_to_the_store_that_all_share() -> None:
    inner, where = store.listen("127.0.0.1")
    world = wire.World(1, 0, (1,), where, 0)
    view = store.GenerationStore(inner, world, lambda ended, seconds: None)
    view.multi_set(["renamed/ranks/0"], ["[4, 8, 4, 8]"])
    assert view.get("renamed/ranks/0") == b"[4, 8, 4, 8]"
    view.set("renamed/info/0", "of rank 0")
    assert view.multi_get(["renamed/info/0"]) == [b"of rank 0"]
    view.set_timeout(timedelta(seconds=5))
    view.wait(["renamed/info/0"])


# Starting workers.


def test_where_torch_starts_its_workers_otherwise_it_starts_them_itself(without: Without) -> None:
    without(workers._HANDLER)
    assert not workers.replace_start(lambda *_: pytest.fail("called"))


FORKED = """
import subprocess, sys
from elasticjob.launch import fork_server
from elasticjob.torchcompat import workers, probe
server = fork_server.ForkServer()
server.fork()
find = probe.find
probe.find = lambda path: None if path == workers._FACTORY else find(path)
fork_server.serve_torch(server, lambda: None)
assert not server.is_forked
child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
import os
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
server.reap()
print(child.wait())
"""


def test_the_exit_code_of_a_worker_that_torch_started_is_torchs() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, timeout=100, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "workers start cold" in done.stderr


def test_torchs_handlers_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    api = probe.find(workers._FACTORY.rpartition(".")[0])
    monkeypatch.setattr(api, "get_subprocess_handler", api.get_subprocess_handler)
    started: list[tuple[str, ...]] = []

    def start(command: tuple[str, ...], environ: Any, stdout: Any, stderr: Any) -> str:
        started.append(command)
        return "a process"

    assert workers.replace_start(start)
    numa = [None] if probe.takes(workers._HANDLER, "numa_options") else []
    made: Any = api.get_subprocess_handler("python", ("train.py",), {}, "", "", 0, *numa)
    assert (made.proc, started) == ("a process", [("python", "train.py")])


# What an error means.


def test_gloos_errors_without_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures.can_be_recognized()
    monkeypatch.setattr(failures, "_OF_GLOO", re.compile("another mark"))
    assert not failures.can_be_recognized()


def test_the_fork_server_is_loaded_before_torch() -> None:
    code = "import sys; import elasticjob.launch.fork_server; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "False\n"
