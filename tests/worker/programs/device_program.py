"""A session that trains on a device, or on what `worker.fake_nccl` makes of the CPU. Each committed step is a line.

Variables: BACKEND, KIND (plain, accumulate, scaler, two, gan, gan-scalers, twice, virtual, groups, connection, saves,
evaluate, growth, fsdp, hsdp, copies, virtual hsdp, hsdp loads, schedule, closure, or compiled as is the step of the
optimizer, or stranger: the session does not have the first of two optimizers, or captured: a CUDA graph records each
step of it, or late: what the second optimizer needs is waited for when the first one has stepped, see HOW; or other
device: the script has a group for another one than the model's; or comm hook: of DDP, see HOW; or hooks: each optimizer
steps when its gradient is there; or loads: a script sends parameters when a world begins, see HOW; or trail: what is
reduced behind the optimizer becomes a part of the state, see HOW and WHERE; or meets: its ranks meet between the
session and its first step), SCHEDULE (where a scheduler steps in a step: first, middle or last), HOW (what the second
optimizer needs is reduced: begun "async", or as a "functional" collective, or on a "stream" of the script's own, or in
a "graph" that is replayed, or in an "old graph", that of the first world; what a trail reduces: "parameters", "buffers"
or a "rate", or only a "log"; a hook of DDP's: "fp16", or "power" as PowerSGD, or "one power" with the same state in all
worlds), WHERE (the model is evaluated, or there is a trail: in a "step" after its optimizer, "outside" of any block,
there with a "goal" that ends the script, between two "epochs", or else in a block of its own, whose value is waited for
after it if "later"), LAST (step), KILL ("step:rank" in the first world, in the middle of the step; or
"step:rank:generation:point", with commas between several: forward, micro, backward, applied, halfway, between, message,
comparing, or entering or loading, with the number of a message instead of a step), FLIP ("step:rank:generation" after
which a bit of a parameter flips), SENDS (how the last rank sends a large message around step 12: broadcast, send or
all_to_all; or what else all ranks do there: see OTHERS), SWALLOW (an `except Exception` for each batch, or with
"backward" for each backward pass, or with "evaluation" between two steps), RAISES (the name of an exception that the
script raises at gradients that are none, and instead of the error of a backward pass; with "at:step:" before it also in
the middle of this step; with "evaluation:" at a value of an evaluation), MOMENTUM, REST (seconds after the first
optimizer has stepped, in step 12), HOLD (in the last step, until the file "told" exists), DIE_PACKING (a rank),
DIE_TELLING (a generation), NO_ROOM (a rank whose device has no room for a second copy of the state), DEVICE (the state
counts as that of a device).
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.data import DataLoader, TensorDataset

from elasticjob.collectives import messages
from elasticjob.data.batch_growth import BatchGrowth
from elasticjob.data.samplers import ElasticDistributedSampler
from elasticjob.sessions import transfer
from elasticjob.sessions.session import Session
from elasticjob.sessions.worlds import Worlds
from worker import fake_nccl
from worker.programs.sending import die_after

SAMPLES, BATCH = 960, 48
BACKEND = os.environ.get("BACKEND", fake_nccl.NAME)
KIND = os.environ.get("KIND", "plain")
LAST = int(os.environ.get("LAST", "40"))
SHARDED: dict[str, dict[str, int]] = {
    "fsdp": {},
    "hsdp": {"shards": 2},
    "hsdp loads": {"shards": 2},
    "copies": {"copy_every": 1},
    "virtual hsdp": {"shards": 2},
}
IN_TURN = ("gan", "gan-scalers")  # each optimizer has a backward pass of its own
SENDS = os.environ.get("SENDS", "")
HOW = os.environ.get("HOW", "async")
WHERE = os.environ.get("WHERE", "")
RAISES = os.environ.get("RAISES", "")
SWALLOW = os.environ.get("SWALLOW", "")
HOLD = Path(os.environ["OUT"], "told") if "HOLD" in os.environ else None
UNDER_WAY: list[Any] = []
KILLS = [one if one.count(":") == 3 else f"{one}:1:forward" for one in os.environ.get("KILL", "").split(",")]


def swallowing(what: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(Exception) if what == SWALLOW else contextlib.nullcontext()


@contextlib.contextmanager
def imitate_capture() -> Iterator[None]:
    """As while a CUDA graph records."""
    with (
        mock.patch.object(torch.cuda, "is_initialized", lambda: True),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
    ):
        yield


def end_by_signal(_: str) -> Exception:
    """As a batch system does before it takes the node."""
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(3))
    signal.raise_signal(signal.SIGUSR2)
    raise AssertionError("the handler has ended the script")


def meet() -> None:
    """Wait for all ranks: one that raises an error ends, and the world is not whole then for those that come late."""
    Path(os.environ["OUT"], f"met-{dist.get_rank()}").touch()
    while len([*Path(os.environ["OUT"]).glob("met-*")]) < dist.get_world_size():
        time.sleep(0.005)


@contextlib.contextmanager
def raising(step: int, model: torch.nn.Module) -> Iterator[None]:
    """A script that looks at what a backward pass has done, and has words of its own if it is wrong."""
    at, _, name = RAISES.rpartition(":")
    if not name or at == "evaluation":
        yield
        return
    error = end_by_signal if name == "SIGUSR2" else getattr(builtins, name, None) or getattr(torch, name)
    try:
        yield
    except Exception:
        os.write(1, b"something is wrong\n")  # in one piece, beside other ranks
        raise error("the backward pass has failed") from None
    fake_nccl.synchronize()  # as a look at a gradient does
    if at == f"at:{step}":
        meet()
    if at == f"at:{step}" or any(one.grad is None or one.grad.abs().max() > 1e6 for one in model.parameters()):
        os.write(1, b"something is wrong\n")  # in one piece, beside other ranks
        raise error("the loss has diverged")


def die_here(step: int, rank: int, generation: int, point: str) -> None:
    """Be killed at this point of the script, if a test wants that."""
    if f"{step}:{rank}:{generation}:{point}" in KILLS:
        os.kill(os.getpid(), signal.SIGKILL)


def send_large(step: int, rank: int, generation: int) -> None:
    """A message of the script's own from the last rank, which dies in the middle of it, if a test wants that."""
    size, large = dist.get_world_size(), torch.ones(16_000_000)
    if f"{step}:{rank}:{generation}:message" in KILLS:
        die_after(2e6)
    if SENDS in OTHERS:
        OTHERS[SENDS](rank, size)
    elif SENDS == "broadcast":
        dist.broadcast(large, src=size - 1)
    elif SENDS == "all_to_all":
        large = large[: large.numel() // size * size]
        dist.all_to_all_single(torch.empty_like(large), large)
    elif rank == size - 1:
        dist.send(large, 0)
    elif rank == 0:
        dist.recv(large, size - 1)


def pass_on(rank: int, size: int) -> None:
    there, here = torch.ones(600), torch.empty(600)
    to, source = (rank + 1) % size, (rank - 1) % size
    for one in dist.batch_isend_irecv([dist.P2POp(dist.isend, there, to), dist.P2POp(dist.irecv, here, source)]):
        one.wait()


def reduce_aside(*_: int) -> None:
    """On a stream of its own, for which the step waits at its end."""
    UNDER_WAY[:] = [dist.all_reduce(torch.ones(600), async_op=True) for _ in range(2)]


def reduce_in_turns(state: list[int], bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """In some passes as a whole, and in later ones in two halves; how often it was called decides."""
    state[0] += 1
    whole: torch.Tensor = bucket.buffer().div_(dist.get_world_size())
    half = whole.numel() // 2 if state[0] > 5 else whole.numel()
    first: Any = dist.all_reduce(whole[:half], async_op=True)

    def go_on(done: Any) -> torch.Tensor:
        done.value()  # raises what the collective has raised
        if half < whole.numel():
            dist.all_reduce(whole[half:])
        return whole

    return first.get_future().then(go_on)  # type: ignore[no-any-return]


reduce_in_turns.__annotations__.clear()  # torch compares them with types, and here they are texts


def reduce_in_a_group(*_: int) -> None:
    dist.all_reduce(torch.ones(600), group=dist.new_group(backend="gloo"))


def reduce_in_a_thread(*_: int) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.all_reduce, torch.ones(600)).result()


def reduce_functionally(*_: int) -> None:
    world: Any = dist.group.WORLD
    functional.all_reduce(torch.ones(600), "sum", world).sum().item()


class Passes(torch.nn.Module):
    """Counts its passes in a buffer, which DDP sends from rank 0 to the others before each pass."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.count += float(self.training)
        return inputs


class Notes:
    """Plain data of tens of megabytes, which a joiner gets with the description of the state."""

    def state_dict(self) -> dict[str, str]:
        return {"text": "many words" * 2_000_000}

    def load_state_dict(self, state: dict[str, str]) -> None:
        pass


OTHERS: dict[str, Callable[[int, int], object]] = {
    "aside": reduce_aside,
    "batch": pass_on,
    "functional": reduce_functionally,
    "group": reduce_in_a_group,
    "objects": lambda rank, size: dist.all_gather_object([None] * size, {"rank": rank}),
    "thread": reduce_in_a_thread,
}


class Script:
    """A training script as people write it."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.x = torch.randn(SAMPLES, 8)
        self.y = (self.x @ torch.randn(8, 1)).tanh()
        body, head = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh()), torch.nn.Linear(32, 1)
        self.model: Any = torch.nn.Sequential(body, head)
        self.passes = Passes()
        if KIND in ("evaluate", "trail"):
            self.model = torch.nn.Sequential(self.passes, *self.model)
        momentum = float(os.environ.get("MOMENTUM", "0.9"))
        parts = [body, head] if KIND in ("two", "late", "stranger", *IN_TURN) else [self.model]
        self.optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=momentum) for one in parts]
        options: dict[str, Any] = {"accumulate": {"micro_batch_size": 4}}.get(KIND, {})
        if "virtual" in KIND or KIND == "growth":
            options = {"virtual_ranks": 6}
        self.sampler = ElasticDistributedSampler(SAMPLES, global_batch_size=BATCH, seed=3, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7)
        extras: dict[str, Any] = {"scaler": self.scaler} if KIND == "scaler" else {}
        if KIND == "growth":
            extras["growth"] = BatchGrowth(self.optimizers[0], self.sampler, reference_batch_size=8, rule="adascale")
        if KIND == "hooks":
            parameters = list(self.model.parameters())
            self.optimizers = [torch.optim.SGD([one], lr=0.1, momentum=momentum) for one in parameters]
            extras |= {f"optimizer{number}": one for number, one in enumerate(self.optimizers[1:])}
            for parameter, optimizer in zip(parameters, self.optimizers, strict=True):
                parameter.register_post_accumulate_grad_hook(lambda _, step=optimizer.step: step())
        if "DIE_TELLING" in os.environ:
            extras["notes"] = Notes()
        if KIND in ("two", "late", *IN_TURN):
            extras["head"] = self.optimizers[1]
        if KIND == "gan-scalers":
            self.scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7) for _ in parts]
            extras |= {"scaler": self.scalers[0], "scaler_of_head": self.scalers[1]}
        given: dict[str, Any] = {"model": self.model, "optimizer": self.optimizers[-1 if KIND == "stranger" else 0]}
        if KIND in SHARDED:
            given = {"build": self.build, **SHARDED[KIND]}
        self.follower: Any = None
        if KIND == "trail":
            self.follower = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizers[0], mode="max", patience=2)
            extras["follower"] = self.follower
        if KIND == "schedule":
            rates: dict[str, Any] = {"max_lr": 0.2, "total_steps": 60}
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizers[0], **rates)
            extras["scheduler"] = self.scheduler
        self.compiled: Callable[[], object] | None = None
        self.connections: list[socket.socket] = []
        self.save: Any = None
        self.power: Any = None
        self.is_done = self.has_flipped = False
        self.factor = torch.ones(1)
        self.side = fake_nccl.ScriptStream()
        on_world = {
            "groups": self.enter,
            "connection": self.connect,
            "saves": self.enter_saving,
            "other device": self.enter_other,
            "late": self.capture,
            "comm hook": self.compress,
            "loads": self.load,
            "hsdp loads": self.load_shards,
            "meets": self.see_a_loss,
        }.get(KIND)
        self.session = Session(**given, sampler=self.sampler, backend=BACKEND, on_world=on_world, **extras)
        if KIND == "meets":
            dist.all_reduce(torch.ones(1))
        self.lines = Path(os.environ["OUT"], f"{os.getpid()}.jsonl")

    def build(self, mesh: Any) -> tuple[Any, torch.optim.Optimizer]:
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(2)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        fully_shard(self.model, mesh=mesh)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)]
        return self.model, self.optimizers[0]

    def enter(self, _: Session) -> None:
        self.group = dist.new_group() if dist.get_world_size() > 1 else None

    def enter_other(self, _: Session) -> None:
        """A group for another device than the model's, as `cpu:gloo` is beside a GPU."""
        if dist.get_world_size() > 1:
            self.group = dist.new_group(backend="cuda:gloo")

    def compress(self, session: Session) -> None:
        """A communication hook of DDP's with a state that all ranks must have alike, as PowerSGD has."""
        if HOW == "fp16":
            session.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif "power" in HOW:
            if self.power is None or HOW == "power":
                options: dict[str, Any] = {"start_powerSGD_iter": 2, "min_compression_rate": 0.1}
                self.power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=8, **options)
            session.model.register_comm_hook(self.power, powerSGD_hook.powerSGD_hook)
        else:
            session.model.register_comm_hook([0], reduce_in_turns)

    @torch.no_grad()
    def load(self, session: Session) -> None:
        """Rank 0 has a checkpoint of five steps, and sends it to the others; or "again" what it has in each world."""
        is_first = session.committed < 0
        for number, one in enumerate(self.model.parameters()):
            if is_first and session.rank == 0:
                one.add_(0.01)
            if session.world_size > 1 and (is_first or HOW == "again"):
                die_here(number, session.rank, session.generation, "loading")
                dist.broadcast(one.detach(), src=0)
        if is_first:
            session.committed = 4

    def see_a_loss(self, session: Session) -> None:
        """The first world is lost while this takes its time, outside of any collective."""
        die_here(0, session.rank, session.generation, "loading")
        while session.generation == 1 and not session._worlds.is_lost():
            time.sleep(0.005)

    @torch.no_grad()
    def load_shards(self, session: Session) -> None:
        """The first copy has a checkpoint of five steps, and sends it to the others; or "again" what it has."""
        if session.committed >= 0 and HOW != "again":
            return
        for number, one in enumerate(self.model.parameters()):
            mine = one.to_local()
            if session.rank < 2 and HOW != "again":
                mine.add_(0.01)
            die_here(number, session.rank, session.generation, "loading")
            copies = one.device_mesh.get_group(0)
            if copies.size() > 1 and mine.numel():
                dist.broadcast(mine, src=session.rank % 2, group=copies)
        if HOW != "again":
            session.committed = 4

    def capture(self, _: Session) -> None:
        """A collective in a CUDA graph, as a part of a pass."""
        if "graph" in HOW and dist.get_world_size() > 1 and (HOW == "graph" or not hasattr(self, "graph")):
            self.graph = torch.cuda.CUDAGraph()
            self.graph.capture_begin()
            dist.all_reduce(self.factor)
            self.graph.capture_end()

    def enter_saving(self, _: Session) -> None:
        """A group for saves of torch.distributed.checkpoint; one that a loss has broken is given up."""
        if self.save is not None:
            self.save.exception()
        self.save = None
        self.group = dist.new_group(backend="gloo") if dist.get_world_size() > 1 else None

    def save_beside(self) -> None:
        from torch.distributed.checkpoint.state_dict_saver import async_save

        folder = self.lines.parent / f"saved-{self.session.committed}"
        if self.save is not None:
            self.save.result()
        state = {"model": self.model.state_dict()}
        self.save = async_save(state, checkpoint_id=folder, process_group=self.group)

    def connect(self, _: Session) -> None:
        """As to a database or a service for metrics, whenever a world begins."""
        self.server = socket.create_server(("127.0.0.1", 0))
        self.connections.append(socket.create_connection(self.server.getsockname()))
        self.connections.append(self.server.accept()[0])

    def count_ended(self) -> int:
        """Of the script's own connections."""
        return sum(bool(select.select([one], [], [], 0)[0]) for one in self.connections)

    def train(self) -> None:
        loader = DataLoader(TensorDataset(self.x, self.y), batch_sampler=self.sampler)
        for epoch in range(self.sampler.epoch, 1000):
            self.sampler.set_epoch(epoch)
            for inputs, targets in self.session.batches(loader):
                fake_nccl.synchronize()  # as inputs.to(device) does
                before = self.session.committed
                with self.session.step(), swallowing("batch"):
                    self.step(inputs, targets)
                if self.session.committed > before:
                    self.write()
                    self.flip()
                    self.evaluate()
                if self.session.committed >= LAST or self.is_done:
                    return
            if KIND == "trail" and WHERE == "epochs":
                die_here(self.session.committed, self.session.rank, self.session.generation, "between")
                self.trail()

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        session = self.session
        if KIND in IN_TURN:
            self.step_in_turn(inputs, targets)
            return
        if KIND == "twice":
            self.step_twice(inputs, targets)
            return
        if KIND == "closure":
            self.optimizers[0].step(lambda: self.compute(inputs, targets))
            return
        self.schedule("first")
        loss = torch.nn.functional.mse_loss(session.model(inputs), targets)
        here = (session.committed + 1, session.rank, session.generation)
        while here[0] == LAST and HOLD is not None and not HOLD.exists():
            time.sleep(0.01)
        die_here(*here, "forward" if session.ends_step else "micro")
        if KIND == "groups" and self.group is not None:
            dist.all_reduce(loss.detach().clone(), group=self.group)
        if SENDS and session.world_size > 1 and abs(here[0] - 12) <= 2:  # before, in and after the step of a loss
            send_large(*here)
        with swallowing("backward"), raising(here[0], self.model):
            session.backward(self.scaler.scale(loss) if KIND == "scaler" else loss)
        if not session.ends_step:
            return
        die_here(*here, "backward")
        if KIND == "hooks":
            return
        if KIND == "scaler":
            if session.committed % 5 == 3:  # a step that all ranks skip
                next(self.model.parameters()).grad.fill_(float("inf"))
            self.scaler.unscale_(self.optimizers[0])  # looks for what is not finite, and nobody does after it
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
            self.scaler.step(self.optimizers[0])
            self.scaler.update()
        else:
            begun = self.begin_late() if KIND == "late" and session.world_size > 1 else lambda: None
            for number, one in enumerate(self.optimizers):
                if number == 1:
                    begun()
                self.apply(one)
                die_here(*here, "applied")
                time.sleep(float(os.environ.get("REST", "0")) if here[0] == 12 else 0)
        if KIND == "schedule":
            self.schedule("middle")
            if session.world_size > 1:
                dist.all_reduce(loss.detach().clone())
            self.schedule("last")
        if KIND == "trail" and WHERE == "step":
            self.trail()
        for one in self.optimizers:
            one.zero_grad()
        while UNDER_WAY:
            UNDER_WAY.pop().wait()
        if KIND == "evaluate" and WHERE == "step":
            die_here(*here, "between")
            self.call_model()

    def begin_late(self) -> Callable[[], None]:
        """Ask the other ranks for a factor of the gradients of the second optimizer; what is returned waits for it."""
        found, world = self.factor.fill_(1.0), cast("Any", dist.group.WORLD)
        wait: Callable[[], object] = list
        if HOW == "functional":
            found = functional.all_reduce(found, "sum", world)
        elif HOW == "stream":
            with self.side:
                dist.all_reduce(found)
            wait = self.side.join
        elif "graph" in HOW:
            wait = self.graph.replay
        else:
            under_way: Any = dist.all_reduce(found, async_op=True)
            wait = under_way.wait

        def end() -> None:
            wait()
            for one in self.optimizers[1].param_groups[0]["params"]:
                one.grad.mul_(found / self.session.world_size)

        return end

    def apply(self, optimizer: torch.optim.Optimizer) -> None:
        if KIND == "compiled" and self.compiled is None:
            self.compiled = torch.compile(optimizer.step, backend="eager")
        with imitate_capture() if KIND == "captured" else contextlib.nullcontext():
            (self.compiled or optimizer.step)()

    def compute(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """A closure of an optimizer."""
        self.optimizers[0].zero_grad()
        loss = torch.nn.functional.mse_loss(self.session.model(inputs), targets)
        die_here(self.session.committed + 1, self.session.rank, self.session.generation, "forward")
        self.session.backward(loss)
        return loss.item()

    def schedule(self, place: str) -> None:
        if KIND == "schedule" and os.environ["SCHEDULE"] == place:
            self.scheduler.step()

    def step_in_turn(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Each optimizer has a backward pass of its own, as in a GAN."""
        session = self.session
        here = (session.committed + 1, session.rank, session.generation)
        for index, (optimizer, point) in enumerate(zip(self.optimizers, ("forward", "halfway"), strict=True)):
            for one in self.optimizers:
                one.zero_grad()
            loss = torch.nn.functional.mse_loss(session.model(inputs), targets)
            die_here(*here, point)
            if KIND == "gan":
                torch.autograd.backward(loss * session.scale)
                optimizer.step()
                continue
            scaler = self.scalers[index]
            torch.autograd.backward(scaler.scale(loss * session.scale))
            if session.committed % 6 == 5 and point == "forward":  # a step of this optimizer that all ranks skip
                next(iter(optimizer.param_groups[0]["params"])).grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()

    def trail(self) -> None:
        """The largest of what the ranks have replaces it; all have the same."""
        if self.session.world_size == 1:
            return
        value = torch.ones(1)
        for one in {"parameters": self.model.parameters(), "buffers": self.model.buffers()}.get(HOW, [value]):
            dist.all_reduce(one.detach(), op=dist.ReduceOp.MAX)
        if HOW == "rate":
            fake_nccl.synchronize()  # as value.item() does
            self.follower.step(value.item())

    def step_twice(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Two passes and two calls of one optimizer in each step."""
        session = self.session
        here = (session.committed + 1, session.rank, session.generation)
        for point in ("forward", "halfway"):
            self.optimizers[0].zero_grad()
            loss = torch.nn.functional.mse_loss(session.model(inputs), targets)
            die_here(*here, point)
            with swallowing("backward"):
                (loss * session.scale).backward()  # type: ignore[no-untyped-call]
            self.optimizers[0].step()

    def evaluate(self) -> None:
        """Between two steps, with a collective of the script's own."""
        session, size = self.session, self.session.world_size
        here = (session.committed, session.rank, session.generation)
        if KIND == "saves" and session.committed % 4 == 3:
            with session.interruptible():
                self.save_beside()
                die_here(*here, "between")
        if KIND == "trail" and not WHERE:
            with session.interruptible():
                die_here(*here, "between")
                self.trail()
        if KIND != "evaluate" or WHERE == "step":
            return
        if WHERE in ("outside", "goal"):
            die_here(*here, "between")
            self.call_model()
            if WHERE == "goal" and size > 1:
                found = torch.ones(1)
                dist.all_reduce(found)
                fake_nccl.synchronize()
                self.is_done = found.item() > size
            return
        under_way: Any = None
        with session.interruptible() as block:
            die_here(*here, "between")
            found = torch.ones(1)
            with swallowing("evaluation"):
                self.call_model()
                if size > 1:
                    under_way = dist.all_reduce(found, async_op=WHERE == "later")
            if WHERE != "later":
                fake_nccl.synchronize()  # as found.item() does
            if RAISES == "evaluation:SystemExit" and found.item() != size:
                os.write(1, b"something is wrong\n")  # in one piece, beside other ranks
                sys.exit(3)
        if under_way is not None:
            under_way.wait()
            fake_nccl.synchronize()
        if getattr(block, "is_whole", True):
            with self.lines.open("a") as lines:
                lines.write(json.dumps({"found": found.item(), "size": size, "after": session.committed}) + "\n")

    @torch.no_grad()
    def flip(self) -> None:
        here = (self.session.committed, self.session.rank, self.session.generation)
        if os.environ.get("FLIP") == ":".join(map(str, here)) and not self.has_flipped:
            self.has_flipped = True
            parameter = next(self.model.parameters())
            mine = parameter.to_local() if KIND in SHARDED else parameter
            mine.view(torch.int32)[0, 0] ^= 1 << 20

    def call_model(self) -> None:
        self.model.eval()
        try:
            with torch.no_grad():
                self.session.model(self.x[:4])
        finally:
            self.model.train()

    def write(self) -> None:
        whole = [one.full_tensor() if KIND in SHARDED else one for one in self.model.parameters()]
        flat = torch.cat([one.detach().reshape(-1) for one in whole])
        row: dict[str, Any] = {
            "step": self.session.committed,
            "rank": self.session.rank,
            "generation": self.session.generation,
        }
        row |= {
            "norm": flat.double().norm().item(),
            "size": self.session.world_size,
            "t": time.time(),
            "ended": self.count_ended(),
            "scale": self.scaler.get_scale(),
            "passes": self.passes.count.item(),
            "best": getattr(self.follower, "best", 0.0),
        }
        with self.lines.open("a") as lines:
            lines.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """A thread of gloo's that waits for ever ends with the process, and not before."""
    yield
    sys.stdout.flush()
    os._exit(0)


def die_packing(rank: int) -> None:
    """This rank dies when it gathers the last of its shards, at the announced end of the first world."""
    from elasticjob.sessions.sharded import model

    gather = model.gather

    def gather_or_die(value: Any, is_kept: bool) -> Any:
        is_last = isinstance(value, torch.Tensor) and value.numel() == 1
        if is_last and dist.get_rank() == rank and os.environ["ELASTICJOB_GENERATION"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return gather(value, is_kept)

    model.gather = gather_or_die


def die_telling(generation: str) -> None:
    """The source dies in the middle of the description of its state, when it enters the world of this generation."""
    broadcast = messages.broadcast

    def broadcast_or_die(text: str, source: int, group: Any = None) -> str:
        if os.environ["ELASTICJOB_GENERATION"] == generation and dist.get_rank() == source:
            die_after(2e6)
        return broadcast(text, source, group)

    messages.broadcast = broadcast_or_die


def die_comparing() -> None:
    """Before this rank has told the others what its replica is like."""
    exchange = Worlds.exchange

    def exchange_or_die(worlds: Worlds, digest: int) -> list[int]:
        die_here(worlds._memory.committed, worlds.rank, worlds.state.generation, "comparing")
        return exchange(worlds, digest)

    Worlds.exchange = exchange_or_die  # type: ignore[method-assign, assignment]


def have_no_room(rank: int) -> None:
    """The device of this rank has no room for a second copy of the state."""
    make_room, is_full = transfer._make_room, [True]

    def make_or_fail(slot: Any, device: torch.device) -> torch.Tensor:
        if is_full and dist.get_rank() == rank and slot.device != "cpu":
            is_full.clear()
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 12.00 GiB.")
        return make_room(slot, device)

    transfer._make_room = make_or_fail


def die_entering() -> None:
    """Count the messages of a rank that enters a world, which includes the transfer of the state."""
    sent = [0, 0]  # the generation, and messages in it

    def counting(call: Any) -> Any:
        def count(*given: Any, **more: Any) -> Any:
            generation = int(os.environ["ELASTICJOB_GENERATION"])
            sent[:] = [generation, sent[1] + 1 if sent[0] == generation else 0]
            die_here(sent[1], dist.get_rank(), generation, "entering")
            return call(*given, **more)

        return count

    for name in ("broadcast", "all_gather", "isend", "irecv"):
        setattr(dist, name, counting(getattr(dist, name)))


def main() -> None:
    checks: Any = dist
    checks.set_debug_level_from_env()  # torch was imported before the variables of this process were there
    if RAISES.startswith("evaluation:") or (KIND == "trail" and not WHERE):
        signal.signal(signal.SIGURG, lambda *_: None)  # the script's own: it is not interrupted
    if "DEVICE" in os.environ:
        fake_nccl.put_state_on_device()
    if "entering" in os.environ.get("KILL", ""):
        die_entering()
    if "comparing" in os.environ.get("KILL", ""):
        die_comparing()
    if "NO_ROOM" in os.environ:
        have_no_room(int(os.environ["NO_ROOM"]))
    if "DIE_TELLING" in os.environ:
        die_telling(os.environ["DIE_TELLING"])
    if "DIE_PACKING" in os.environ:
        die_packing(int(os.environ["DIE_PACKING"]))
    if KIND not in SHARDED:
        fake_nccl.run_ahead()
    script = Script()
    with ending():
        script.train()
        script.session.close()


if __name__ == "__main__":
    main()
