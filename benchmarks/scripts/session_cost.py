"""What a session costs a step, and what many changes of its world leave behind.

    python benchmarks/scripts/session_cost.py steps [--kind ddp|fsdp|hsdp] [--ranks 2] [--layers 1 --frozen 0] [--parts]
    PYTHONPATH=tests python benchmarks/scripts/session_cost.py steps --nccl --rest-ms 20 [--optimizers 2 --trail]
    python benchmarks/scripts/session_cost.py regroups --regroups 1000 [--kind ...] [--lost-every 5]

`steps`: the ranks train two equal models in turns of some steps, one in a session and one plainly, with the same
process group, so that the noise of the machine meets both. One JSON line: per side, in microseconds, the median time of
a step, of the CPU time of its main thread, and of that of all threads of a rank (of turns); and the ratio of the two
steps. `--parts` also says where the session spends the time, by timers that themselves take some. With `--nccl` they
train over the model of NCCL that the tests have, so that the session waits for its device; `--rest-ms` is what the
kernels of a step would take, and `--trail` reduces a value behind the optimizers, which a session waits for once more.

`regroups`: the world ends again and again, by announcement or, each so many times, by a loss of which the ranks are
told; one JSON line for each hundredth, with the threads, open files, sockets and resident memory of a rank.

This process is the agent of all ranks. `hsdp` is two copies of the model.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import queue
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WIDTH, BATCH, SAMPLES, TURN = 64, 32, 32_000, 100


# --- the agent ----------------------------------------------------------------------------------------------


class Agent:
    """What an agent is for a session: worlds, and the messages that end them."""

    def __init__(self, ranks: int, arguments: list[str]) -> None:
        from elasticjob.channel import control

        self.ranks, self.generation = ranks, 0
        self._idle: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._server = control.Server(self._hear)
        self._stores: list[Any] = []
        self._make_store()
        base = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ELASTICJOB_GENERATION": "1"}
        base |= {"ELASTICJOB_CONTROL": str(self._server.path), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._port)}
        self.processes = []
        for rank in range(ranks):
            env = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            out = subprocess.PIPE if rank == 0 else None
            command = [sys.executable, __file__, *arguments, "--train"]
            self.processes.append(subprocess.Popen(command, env=env, stdout=out, text=True))

    def _make_store(self) -> None:
        from elasticjob.protocol import store

        self.generation += 1
        made, where = store.listen("127.0.0.1")
        self._stores, self._port = [*self._stores[-1:], made], where.port  # the last one may still be in use

    def _hear(self, peer: Any, message: dict[str, Any] | None) -> None:
        if message is not None and message.get("type") == "idle":
            self._idle.put(peer.local_rank)

    def regroup(self, announced: bool) -> None:
        """End the world, and begin the next one with the same ranks."""
        peers = self._server.peers("session")
        for peer in peers:
            peer.send({"type": "regroup", "generation": self.generation, "announced": announced})
        for _ in range(self.ranks):
            self._idle.get(timeout=60)
        self._make_store()
        for peer in peers:
            place: dict[str, Any] = {
                "generation": self.generation,
                "rank": peer.local_rank,
                "world_size": self.ranks,
                "restarts": 0,
            }
            place |= {"address": "127.0.0.1", "port": self._port, "group_rank": 0, "group_world_size": 1}
            peer.send({"type": "world", **place})

    def lines(self) -> Iterator[dict[str, Any]]:
        """What rank 0 prints."""
        out = self.processes[0].stdout
        assert out is not None
        for line in out:
            yield json.loads(line)

    def close(self) -> int:
        """The highest exit code; ranks that have not ended are killed."""
        codes = []
        for process in self.processes:
            try:
                codes.append(abs(process.wait(30)))
            except subprocess.TimeoutExpired:
                process.kill()
                codes.append(1)
        self._server.close()
        return max(codes)


def run(args: argparse.Namespace) -> int:
    agent = Agent(args.ranks, sys.argv[1:])
    try:
        for line in agent.lines():
            if "trained" in line:  # in this world
                if line["trained"] <= args.regroups:
                    agent.regroup(args.lost_every == 0 or line["trained"] % args.lost_every != 0)
            else:
                print(json.dumps(line), flush=True)
    except BaseException:
        for process in agent.processes:
            process.kill()
        raise
    finally:
        code = agent.close()
    return code


# --- a rank -------------------------------------------------------------------------------------------------


def build_layers(mesh: Any = None, count: int = 1, frozen: int = 0) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for number in range(count):
        layers += [torch.nn.Linear(WIDTH, WIDTH).requires_grad_(number >= frozen), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))
    if mesh is not None:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def find_backend(args: argparse.Namespace) -> str | None:
    if not args.nccl:
        return None
    found: str = importlib.import_module("worker.fake_nccl").NAME
    return found


def divide(model: Any, optimizer: Any, count: int) -> list[Any]:
    """So many optimizers, of one part of the model each."""
    if count == 1:
        return [optimizer]
    parameters = list(model.parameters())
    return [type(optimizer)(parameters[number::count]) for number in range(count)]


def make_session(args: argparse.Namespace, sampler: Any) -> tuple[Any, list[Any]]:
    """And its further optimizers."""
    from elasticjob.sessions.session import Session

    kind, ranks = args.kind, args.ranks
    if kind == "ddp":
        model, optimizer = build_layers(count=args.layers, frozen=args.frozen)
        first, *others = divide(model, optimizer, args.optimizers)
        more = {f"optimizer{number}": one for number, one in enumerate(others)}
        return Session(model=model, optimizer=first, sampler=sampler, backend=find_backend(args), **more), others
    shards = ranks // 2 if kind == "hsdp" else None
    return Session(build=build_layers, shards=shards, sampler=sampler, backend=find_backend(args)), []


def make_plain(args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """A model in the same process group, and its optimizers."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    kind, ranks = args.kind, args.ranks
    if kind == "ddp":
        model, optimizer = build_layers(count=args.layers, frozen=args.frozen)
        return torch.nn.parallel.DistributedDataParallel(model), divide(model, optimizer, args.optimizers)
    shape, names = ((ranks,), ("shard",)) if kind == "fsdp" else ((2, ranks // 2), ("replicate", "shard"))
    model, optimizer = build_layers(init_device_mesh("cpu", shape, mesh_dim_names=names))
    return model, [optimizer]


class Parts:
    """The time that some calls of a session take."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def watch(self, owner: Any, name: str) -> None:
        call, found = getattr(owner, name), self.times.setdefault(f"{owner.__name__.lower()}.{name}", [])

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                found.append(time.perf_counter() - began)

        setattr(owner, name, timed)

    def watch_session(self) -> None:
        from elasticjob.sessions import memory, session, worlds

        for owner, names in (
            (session.Session, ("_begin_apply",)),
            (memory.Memory, ("keep_place", "note_committed")),
            (worlds.Worlds, ("end_step",)),
        ):
            for name in names:
                self.watch(owner, name)


def measure_steps(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

    import elasticjob

    torch.set_num_threads(1)
    parts = Parts()
    if args.parts:
        parts.watch_session()
    data = TensorDataset(torch.randn(SAMPLES, WIDTH), torch.randn(SAMPLES, 1))
    sampler = elasticjob.ElasticDistributedSampler(data, global_batch_size=BATCH * args.ranks)
    session, others = make_session(args, sampler)
    loader = DataLoader(data, batch_sampler=sampler)
    plain_sampler: Any = DistributedSampler(data)
    plain_loader = DataLoader(data, batch_sampler=BatchSampler(plain_sampler, BATCH, drop_last=False))
    model, optimizers = make_plain(args)
    compute = torch.nn.functional.mse_loss

    def session_batches() -> Iterator[Any]:
        for epoch in range(10**6):
            sampler.set_epoch(epoch)
            yield from session.batches(loader)

    def plain_batches() -> Iterator[Any]:
        for epoch in range(10**6):
            plain_sampler.set_epoch(epoch)
            yield from plain_loader

    def trail() -> None:
        if args.trail:
            dist.all_reduce(torch.ones(1))

    def session_step(batches: Iterator[Any]) -> None:
        x, y = next(batches)
        with session.step():
            loss = compute(session.model(x), y)
            time.sleep(args.rest_ms / 1000)
            session.backward(loss)
            if session.ends_step:
                for one in [session.optimizer, *others]:
                    one.step()
                    one.zero_grad()
                trail()
        if args.report:
            elasticjob.report(step=session.committed, loss=loss)

    def plain_step(batches: Iterator[Any]) -> None:
        x, y = next(batches)
        loss = compute(model(x), y)
        time.sleep(args.rest_ms / 1000)
        loss.backward()  # type: ignore[no-untyped-call]
        for one in optimizers:
            one.step()
            one.zero_grad()
        trail()

    sides: dict[str, tuple[Callable[[Iterator[Any]], None], Iterator[Any]]] = {
        "session": (session_step, session_batches()),
        "plain": (plain_step, plain_batches()),
    }
    found: dict[str, dict[str, list[float]]] = {name: {"Step": [], "Main": [], "Cpu": []} for name in sides}
    for turn in range(max(2, args.steps // TURN) + 1):
        for name, (step, batches) in sides.items():
            dist.barrier()
            began = time.process_time()
            for _ in range(TURN):
                at, cpu = time.perf_counter(), time.thread_time()
                step(batches)
                found[name]["Main"].append(time.thread_time() - cpu)
                found[name]["Step"].append(time.perf_counter() - at)
            found[name]["Cpu"].append((time.process_time() - began) / TURN)
        if not turn:  # the first one warms up
            for one in (*parts.times.values(), *(values for side in found.values() for values in side.values())):
                one.clear()
    if session.rank == 0:
        line: dict[str, Any] = {"kind": args.kind, "ranks": args.ranks, "steps": len(found["plain"]["Step"])}
        for what in ("Step", "Main", "Cpu"):
            ours, theirs = (1e6 * statistics.median(found[name][what]) for name in ("session", "plain"))
            line |= {f"plain{what}Us": round(theirs, 1), f"session{what}Us": round(ours, 1)}
            line |= {f"more{what}Us": round(ours - theirs, 1)}
        line["ratio"] = round(line["sessionStepUs"] / line["plainStepUs"], 4)
        if args.parts:
            line["partsUs"] = {name: round(1e6 * statistics.median(one), 1) for name, one in parts.times.items() if one}
        print(json.dumps(line), flush=True)
    # Freed after its group, DDP would be the last to hold it, and wait with the GIL for gloo's threads, which need it.
    model = None
    session.close()


def look(regroups: int, seconds: float) -> dict[str, Any]:
    """What this process has, once old groups are collected, what ends in threads of their own has ended, and the thread
    of meetings has connected to the world's store, a second after its begin.
    """
    counts, same, ends = count(), 0, time.monotonic() + 20
    while same < 30 and time.monotonic() < ends:
        time.sleep(0.05)
        gc.collect()
        before, counts = counts, count()
        same = same + 1 if counts == before else 0
    return {"regroups": regroups, **counts, "rssMiB": read_rss(), "msEach": round(1000 * seconds, 1)}


def count() -> dict[str, int]:
    """The threads, files and sockets of this process."""
    files = []
    for name in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the list
            files.append(str(name.readlink()))
    return {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "files": len(files),
        "sockets": sum(name.startswith("socket:") for name in files),
    }


def read_rss() -> float:
    """The memory of this process, in MiB."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return round(int(line.split()[1]) / 1024, 1)


def regroup_often(args: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # what is there now is not looked at each time
    session, _ = make_session(args, None)
    if args.kind == "fsdp" and args.lost_every:
        raise SystemExit("a loss ends a session whose shards have no copies: --lost-every 0, or --kind hsdp")
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
    at, began, told = 0, time.monotonic(), 0
    while True:
        with session.step():
            loss = torch.nn.functional.mse_loss(session.model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            session.optimizer.step()
            session.optimizer.zero_grad()
        done = session.regroups - 1
        if session.rank == 0 and session.regroups > told and session.committed >= 0:
            told = session.regroups
            if (done % args.look_every == 0 and done != at) or done in (0, args.regroups):
                print(json.dumps(look(done, (time.monotonic() - began) / max(1, done - at))), flush=True)
                at, began = done, time.monotonic()
            print(json.dumps({"trained": told}), flush=True)
        if done >= args.regroups:
            break
    session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("steps", "regroups"))
    parser.add_argument("--kind", choices=("ddp", "fsdp", "hsdp"), default="ddp")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--layers", type=int, default=1, help="of DDP's model, besides the last one; each has two parameters"
    )
    parser.add_argument("--frozen", type=int, default=0, help="so many of them are frozen")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--nccl", action="store_true", help="over the model of NCCL in tests/worker")
    parser.add_argument("--rest-ms", type=float, default=0.0, help="milliseconds that each step rests beside it")
    parser.add_argument("--optimizers", type=int, default=1, help="of DDP's model")
    parser.add_argument("--trail", action="store_true", help="a collective behind the optimizers of each step")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--report", action="store_true", help="the session's script also calls elasticjob.report")
    parser.add_argument("--regroups", type=int, default=1000)
    parser.add_argument("--look-every", type=int, default=100)
    parser.add_argument("--lost-every", type=int, default=5, help="0: every change is announced")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.train:
        raise SystemExit(run(args))
    if args.what == "steps":
        measure_steps(args)
    else:
        regroup_often(args)


if __name__ == "__main__":
    main()
