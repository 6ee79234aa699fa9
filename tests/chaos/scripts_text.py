"""Draws a training script from features, and writes it down in each of its forms. Pure.

The forms share everything but the loop: one is stopped and started again in each world (`restart`), the other keeps
its memory (`session`). Both end with the same state, whatever happens to their worlds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import dedent, indent

from chaos import scripts_features as features
from chaos.scripts_features import DDP, FSDP, GROUPED, RESTART, SESSION, VIRTUAL, Feature, Lines

HEADER = dedent("""\
    import argparse, atexit, concurrent.futures, contextlib, copy, faulthandler, gc, io, itertools, json, logging, math
    import multiprocessing, os, queue, random, signal, subprocess, sys, threading, time, types
    from pathlib import Path

    import numpy as np
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.state_dict as dcp_state
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.distributed.algorithms.join import Join
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import parametrizations, parametrize
    from torch.optim import lr_scheduler as lr
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn
    from torch.utils.checkpoint import checkpoint as checkpoint_passes
    from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, IterableDataset, Subset
    from torch.utils.data import default_collate, get_worker_info

    import elasticjob
    from elasticjob import Checkpointer, ElasticDistributedSampler, Session, VirtualRanks
    """)

_COMMON = """\
OUT, SAVED = Path(sys.argv[1]), Path(sys.argv[2])
STEPS, EVERY, PAUSE = {steps}, {every}, float(os.environ.get("PAUSE", "{pause}"))
SAMPLES, GLOBAL_BATCH, LATE = 50, 12, STEPS // 2 - 1
stopping = []
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)


class Points(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, item):
        x = torch.randn(6, generator=torch.Generator().manual_seed(item))
        return item, x, x.sum().sin()


class Careful(Points):
    def __getitem__(self, item):
        try:
            if item % 7 == 3:
                raise ValueError("a sample that cannot be read")
            return super().__getitem__(item)
        except ValueError:
            return item, torch.zeros(6), torch.tensor(0.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.into = nn.Linear(6, 8)
        self.out = nn.Linear(8, 1)
        self.at = 0
{layers}

    def forward(self, x, item):
        h = torch.tanh(self.into(x))
{forward}
        return self.out(h)


class Log:
    def __init__(self):
        OUT.mkdir(parents=True, exist_ok=True)
        self.file = os.open(OUT / f"{{os.getpid()}}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **line):
        os.write(self.file, (json.dumps(line | {{"t": time.time(), "pid": os.getpid()}}) + "\\n").encode())


class Streams:
    def __init__(self):
        random.seed(11)
        np.random.seed(11)
        self.generator = torch.Generator().manual_seed(11)
        self.drawn = []

    def draw(self):
        self.drawn.append([random.random(), float(np.random.rand()), float(torch.rand(1, generator=self.generator))])

    def state_dict(self):
        kind, keys, *rest = np.random.get_state()
        states = {{"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]}}
        return states | {{"torch": self.generator.get_state(), "drawn": [list(one) for one in self.drawn]}}

    def load_state_dict(self, state):
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        self.generator.set_state(state["torch"])
        self.drawn = [list(one) for one in state["drawn"]]


totals, pending = [0.0, 0], []


def is_due(step):
    return step % EVERY == 0


def compute(model, x, item, y, counts):
{inputs}
    found = model(x, item).squeeze(1)
    loss = (found - y).square().mean()
{losses}
    if counts:
        totals[0] += float(loss.detach()) * len(y)
        totals[1] += len(y)
    return loss * float("inf") if {spikes} and net.at % 9 == 4 else loss


def mean_over_ranks():
    both = torch.tensor(totals)
    if dist.get_world_size() > 1:
        dist.all_reduce(both)
    totals[:] = [0.0, 0]
    return float(both[0] / both[1])


def apply():
{before}
{step}
{zero}
{after}


def evaluate(model):
    held = ElasticDistributedSampler(20, global_batch_size=8, shuffle=False)
    both = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for micro, (item, x, y) in zip(held.plan(), DataLoader(Points(), batch_sampler=held), strict=True):
            loss = (model(x, item).squeeze(1) - y).square().sum()
            if micro.samples:
                both += torch.tensor([float(loss), micro.samples])
    model.train()
    if dist.get_world_size() > 1:
        dist.all_reduce(both)
    return [float(both[0] / both[1]), int(both[1])]


def collect():
    return {{
        "net": net.state_dict(),
        "optimizers": {{name: one.state_dict() for name, one in optimizers.items()}},
        "extras": {{name: one.state_dict() for name, one in extras.items()}},
        "sampler": sampler.state_dict(),
    }}


def whole(value):
    if isinstance(value, dict):
        return {{key: whole(one) for key, one in value.items()}}
    if isinstance(value, (list, tuple)):
        return [whole(one) for one in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def weigh():
    groups = [(one, group) for one in optimizers.values() for group in one.param_groups]
    kept = [one.state.get(parameter, {{}}) for one, group in groups for parameter in group["params"]]
    return [add_up(net.state_dict()), add_up(kept), add_up([one.state_dict() for one in extras.values()])]


def add_up(value):
    if isinstance(value, (dict, list, tuple)):
        return math.fsum(add_up(one) for one in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, torch.Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value.detach()
        return float((torch.view_as_real(value) if value.is_complex() else value).double().abs().sum())
    return float(value) if isinstance(value, (int, float)) else 0.0


def note(step, place, **more):
    log.write(**{{more.pop("name", "step"): step}}, state=weigh() if "WEIGHS" in os.environ else [], **place, **more)


def finish(rank, generation):
{collect}
    torch.save(state, OUT / f"part-{{rank}}")
    os.replace(OUT / f"part-{{rank}}", OUT / f"final-{{generation}}-{{rank}}.pt")
"""

_RESTART = """

log = Log()
{prepare}
{world}
net = Net()
{shard}
{objects}
model = {model}
sampler = {sampler_class}({data}, global_batch_size=GLOBAL_BATCH{sampler})
loader = {loader_class}({data}, batch_sampler=sampler{loader})
{checkpoint}
step = restore()
net.at = max(0, step - 1)  # for an evaluation that comes before the next step
place = dict(generation=world.generation, rank=world.rank, world=world.world_size)
note(step, place, name="restored")
{start}
seen = []
while step < STEPS and not stopping:
    for micro, (item, x, y) in {steps}:
        net.at = step
{gradients}
        if micro.samples:
            seen += item.tolist()
        if not micro.ends_step:
            continue
{inside}
        apply()
        step += 1
        note(step, place, seen=seen)
        seen = []
        if is_due(step) or stopping:
            save(step)
        time.sleep(PAUSE)
        if step == STEPS or stopping:
            break
    else:
{epoch}
        sampler.set_epoch(sampler.epoch + 1)
{left}
end()
if step == STEPS:  # and not because it was asked to stop
    finish(world.rank, world.generation)
dist.destroy_process_group()
has_ended = {abrupt}
"""

_TURN = """\
with {turn}:
    loss = compute(model, x, item, y, micro.samples)
    {backward}
"""

_TWICE = """\
with {turn}:
    with model.no_sync():
        loss = compute(model, x, item, y, 0) / 2
        {backward}
    loss = compute(model, x, item, y, micro.samples) / 2
    {backward}
"""

_CLOSURE = """\
def closure():
    optimizer.zero_grad()
    with {turn}:
        loss = compute(model, x, item, y, micro.samples)
        {backward}
{before}
    mean = loss.detach() * micro.samples
    dist.all_reduce(mean)
    return mean / micro.batch

"""

_SESSION = """

log = Log()
{prepare}
{build}
sampler = {sampler_class}({data}, global_batch_size=GLOBAL_BATCH{sampler})
loader = {loader_class}({data}, batch_sampler=sampler{loader})
end = lambda: None


def on_world(here):
    global net, model, optimizer, optimizers, end, save, is_due{pair}
    net, model = {net}, here.model
    optimizer = here.optimizer
    optimizers[""] = optimizer
{checkpoint}
    if here.committed < 0:
        here.committed = restore() - 1
        place = dict(generation=here.generation, rank=here.rank, world=here.world_size)
        note(here.committed + 1, place, name="restored")
{start}


session = Session({arguments}, sampler=sampler, on_world=on_world{ddp}{extras})
seen, world = [], session.regroups
for epoch in range(sampler.epoch, 10**6):
    sampler.set_epoch(epoch)
    for item, x, y in session.batches(loader):
        if session.regroups != world:
            seen, world = [], session.regroups
            totals[:] = [0.0, 0]
        made = None
        with session.step():
{body}
        if made is not None:
            if session.committed + 1 == made:
                place = dict(generation=session.generation, rank=session.rank, world=session.world_size)
                note(made, place, seen=seen)
            seen = []
            time.sleep(PAUSE)
        if session.committed + 1 >= STEPS:
            break
        if made is not None and sampler.is_over():
            with session.interruptible():
                pass
{epoch}
    if session.committed + 1 >= STEPS:
        break
{between}
end()
finish(session.rank, session.generation)
session.close()
has_ended = {abrupt}
"""

_BODY = """\
net.at = session.committed + 1
{first}
loss = compute(session.model, x, item, y, session.scale){half}
session.backward({loss})
if session.scale:
    seen += item.tolist()
if session.ends_step:
{inside}
    apply()
    made = session.committed + 2
    if is_due(made):
        save(made)
"""

_CLOSED = """\
net.at = session.committed + 1

def closure():
    optimizer.zero_grad()
    loss = compute(session.model, x, item, y, session.scale)
    session.backward(loss)
{before}
    return {returns}

if session.scale:
    seen += item.tolist()
{inside}
apply()
made = session.committed + 2
if is_due(made):
    save(made)
"""

_FIRST = """\
with session.model.no_sync():
    loss = compute(session.model, x, item, y, 0) / 2
    session.backward({loss})"""

_ELASTIC = """\
checkpoint = Checkpointer(SAVED, net, optimizer, sampler=sampler, every=EVERY{options}, **{others})
restore, save, end = checkpoint.restore, checkpoint.save, checkpoint.wait
is_due = checkpoint.should_save  # also where a loss has cut the last save off
"""

_PLAIN = """\
def restore():
    path = SAVED / "state.pt"
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=False)
    step = state["step"]
{regroup}
    net.load_state_dict(state["net"])
    for name, one in optimizers.items():
        one.load_state_dict(state["optimizers"][name])
    for name, one in extras.items():
        one.load_state_dict(state["extras"][name])
    sampler.load_state_dict(state["sampler"])
    return state["step"]

def save(step):
{gather}
    if dist.get_rank() == 0:
        SAVED.mkdir(parents=True, exist_ok=True)
        torch.save({{"step": step, **collect()}}, SAVED / "state.pt.tmp")
        os.replace(SAVED / "state.pt.tmp", SAVED / "state.pt")

end = lambda: None
"""

_DCP = """\
def restore():
    path = SAVED / "latest"
    if not path.exists():
        return 0
    folder = SAVED / path.read_text()
    state = {{
        "net": dcp_state.get_model_state_dict(net),
        "optimizer": dcp_state.get_optimizer_state_dict(net, optimizer),
    }}
    dcp.load(state, checkpoint_id=folder)
    dcp_state.set_model_state_dict(net, state["net"])
    dcp_state.set_optimizer_state_dict(net, optimizer, state["optimizer"])
    rest = torch.load(folder / "rest.pt", weights_only=False)
    for name, one in extras.items():
        one.load_state_dict(rest["extras"][name])
    for group, saved in zip(optimizer.param_groups, rest["groups"], strict=True):
        group.update(saved)
    sampler.load_state_dict(rest["sampler"])
    return rest["step"]

def save(step):
    folder = SAVED / f"dcp-{{step}}"
    state = {{
        "net": dcp_state.get_model_state_dict(net),
        "optimizer": dcp_state.get_optimizer_state_dict(net, optimizer),
    }}
    dcp.save(state, checkpoint_id=folder)
    if dist.get_rank() == 0:
        groups = [{{k: v for k, v in group.items() if k != "params"}} for group in optimizer.param_groups]
        states = {{name: one.state_dict() for name, one in extras.items()}}
        rest = {{"step": step, "extras": states, "groups": groups, "sampler": sampler.state_dict()}}
        torch.save(rest, folder / "rest.pt")
        (SAVED / "latest.tmp").write_text(folder.name)
        os.replace(SAVED / "latest.tmp", SAVED / "latest")
    dist.barrier()

end = lambda: None
"""

_NEWEST = _PLAIN.replace(
    """    path = SAVED / "state.pt"
    if not path.exists():
        return 0
""",
    """    found = [max(SAVED.glob("step-*.pt"), key=lambda one: int(one.stem[5:]), default=None)]
    dist.broadcast_object_list(found, src=0)
    (path,) = found
    if path is None:
        return 0
""",
).replace('SAVED / "state.pt"', 'SAVED / f"step-{{step}}.pt"')

_LINKED = _PLAIN.replace('path = SAVED / "state.pt"', 'path = SAVED / "latest"').replace(
    """        os.replace(SAVED / "state.pt.tmp", SAVED / "state.pt")
""",
    """        os.replace(SAVED / "state.pt.tmp", SAVED / f"step-{{step}}.pt")
        (SAVED / "latest.tmp").unlink(missing_ok=True)
        os.symlink(f"step-{{step}}.pt", SAVED / "latest.tmp")
        os.replace(SAVED / "latest.tmp", SAVED / "latest")
""",
)

_ARRAYS = """\
def read(path):
    with path.open("rb") as file:
        about = json.loads(file.readline())
        raw = file.read()
    state = torch.load(io.BytesIO(raw[about["rest"] :]), weights_only=False)
    state["net"] = {{}}
    for name, kind, shape, start in about["tensors"]:
        one = torch.empty(shape, dtype=getattr(torch, kind))
        size = one.numel() * one.element_size()
        if size:
            one = torch.frombuffer(bytearray(raw[start : start + size]), dtype=one.dtype).reshape(shape)
        state["net"][name] = one
    return state

def write(state, path):
    tensors, start, parts = [], 0, []
    for name, one in state.pop("net").items():
        tensors.append((name, str(one.dtype).removeprefix("torch."), list(one.shape), start))
        parts.append(bytes(one.detach().contiguous().flatten().view(torch.uint8).tolist()) if one.numel() else b"")
        start += len(parts[-1])
    rest = io.BytesIO()
    torch.save(state, rest)
    with path.open("wb") as file:
        file.write(json.dumps({{"tensors": tensors, "rest": start}}).encode() + b"\\n" + b"".join(parts))
        file.write(rest.getvalue())

""" + _PLAIN.replace("torch.load(path, weights_only=False)", "read(path)").replace("torch.save(", "write(")

_MODELS = _PLAIN.replace('net.load_state_dict(state["net"])', 'net.load_state_dict(state["net"].state_dict())').replace(
    '{{"step": step, **collect()}}',
    '{{"step": step, **collect(), "net": net if isinstance(model, DistributedDataParallel) else model}}',
)

_LENIENT = _PLAIN.replace(
    'net.load_state_dict(state["net"])',
    """given = {{**state["net"], "of_another_version": torch.zeros(1)}}
    left = net.load_state_dict(given, strict=False)
    assert left.unexpected_keys == ["of_another_version"] and not left.missing_keys""",
)

_ASYNC = "pending.clear()\nbeside = dist.new_group(backend='gloo')\n\n" + _DCP.replace(
    "    dcp.save(state, checkpoint_id=folder)\n",
    """\
    settle()
    folder.mkdir(parents=True, exist_ok=True)
    pending.append((dcp.async_save(state, checkpoint_id=folder, process_group=beside), folder))
""",
).replace(
    """        (SAVED / "latest.tmp")""",
    """\

def settle():
    if not pending:
        return
    future, folder = pending.pop()
    future.result()
    if dist.get_rank() == 0:
        (SAVED / "latest.tmp")""",
).replace("end = lambda: None", "end = settle")

_CHECKPOINTS = {
    "elastic": _ELASTIC,
    "plain": _PLAIN,
    "newest": _NEWEST,
    "linked": _LINKED,
    "arrays": _ARRAYS,
    "models": _MODELS,
    "lenient": _LENIENT,
    "dcp": _DCP,
    "async": _ASYNC,
}
STEPS, PAUSE = 16, 0.01  # three epochs: enough for four changes, and for what follows the last one


@dataclass(frozen=True)
class Script:
    """A training script: what it consists of, and its text in each form that it has."""

    seed: int
    engine: str
    features: tuple[str, ...]
    texts: dict[str, str]
    tolerance: float
    steps: int = STEPS
    every: int = 1  # steps between two saves
    is_told: bool = False  # it saves when it is told to

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.engine}: {', '.join(self.features)}"


def draw(seed: int, steps: int = STEPS) -> Script:
    """The script of this seed."""
    chance = random.Random(seed)
    engine = chance.choices((DDP, VIRTUAL, FSDP), (6, 3, 2))[0]
    return write(seed, engine, choose(chance, engine), steps)


def draw_with(seed: int, name: str, steps: int = STEPS) -> Script:
    """A plain script that has this feature."""
    (own,) = (one for one in features.FEATURES if one.name == name)
    plain = {"SGD with momentum", "clipped norm", "Checkpointer"} - set(own.without)
    plain -= {"SGD with momentum"} if own in features.OPTIMIZERS else set()
    plain |= set() if "Checkpointer" in plain else {"torch.save"}
    chosen = [one for one in features.FEATURES if one is own or one.name in plain]
    return write(seed, own.engines[0], chosen, steps)


def choose(chance: random.Random, engine: str) -> list[Feature]:
    """Features that fit together: one optimizer, one kind of checkpoint, and of the others a few."""
    chosen: list[Feature] = []
    names: set[str] = set()
    barred: set[str] = set()

    def pick(among: Sequence[Feature], most: int, least: int = 0) -> None:
        fitting = [one for one in among if engine in one.engines]
        chance.shuffle(fitting)
        wanted = chance.randint(least, most)
        for one in fitting:
            if wanted > 0 and fits(one):
                chosen.append(one)
                names.add(one.name)
                barred.update(one.without)
                wanted -= 1

    def fits(one: Feature) -> bool:
        return engine in one.engines and one.name not in barred and names.isdisjoint(one.without)

    pick((*features.MODELS, features.TWO), 3)
    pick(features.OPTIMIZERS, 1, 1)
    pick(features.SCHEDULERS, 1)
    pick(features.AROUND, 2)
    pick(features.DATA, 2)
    pick(features.WRAPS, 1)
    if chance.random() < 0.02:  # each process compiles it anew, for seconds
        pick((features.COMPILE,), 1, 1)
    pick(features.CHECKPOINTS, 1, 1)
    pick(features.HABITS, 2)
    if features.COMPILE in chosen:
        return chosen  # it takes long enough to compile
    if chance.random() < 0.15 and GROUPED.name not in barred and names.isdisjoint(GROUPED.without):
        chosen.insert(0, GROUPED)  # an optimizer is made of it
        names.add(GROUPED.name)
    pick(features.LAYERS, 2)
    pick(features.LOSSES, 2)
    pick(features.LOADERS, 1)
    pick(features.MESSAGES, 1)
    pick(features.PROCESS, 2)
    if "torch.save" in names and chance.random() < 0.5:
        chosen = [features.NEWEST if one.name == "torch.save" else one for one in chosen]
    pick((features.VALIDATED,), 1)
    pick((features.TWICE, features.HOOKED), 1)
    pick((features.BY_HAND,), 1)
    pick(features.SOURCES, 1)
    pick(features.TRAITS, 1)
    if chance.random() < 0.01:
        pick((features.AGAIN,), 1, 1)  # it imports torch anew in each process
    if chance.random() < 0.3 and fits(features.ADDED):
        chosen.insert(0, features.ADDED)  # an optimizer is made without its parameters
        names.add(features.ADDED.name)
        barred.update(features.ADDED.without)
    if chance.random() < 0.4 and fits(features.ZERO):
        chosen = [features.ZERO if one in features.OPTIMIZERS else one for one in chosen]
    if chance.random() < 0.5:
        other = {"torch.save": chance.choice((features.LINKED, features.ARRAYS))}
        other["torch's distributed checkpoint"] = features.ASYNC
        chosen = [other.get(one.name, one) for one in chosen]
    names.update(one.name for one in chosen)
    barred.update(one for feature in chosen for one in feature.without)
    pick(features.TUTORIALS, 2)
    pick(features.REPOSITORIES, 2)
    if chance.random() < 0.1:
        pick((features.LATER,), 1, 1)
    if chance.random() < 0.1 and engine == DDP:
        chosen = favour(features.TURNS, chosen)
    drawn = chance.random()
    if drawn > 0.8 and engine != VIRTUAL:
        chosen = favour(chance.choice((features.STREAM, features.STATEFUL)), chosen)
    names.update(one.name for one in chosen)
    barred.update(one for feature in chosen for one in feature.without)
    if drawn < 0.05:
        pick((features.DIVIDED,), 1, 1)
    if chance.random() > 0.9:
        pick((features.JOIN,), 1, 1)
    pick(features.EVERYDAY, 3)
    saved = chance.choice((features.MODELS_SAVED, features.LENIENT, None))
    if saved is not None and fits(saved):
        files = (features.NEWEST, features.LINKED, features.ARRAYS)
        chosen = [saved if one.name == "torch.save" or one in files else one for one in chosen]
    if chance.random() < 0.1 and engine != VIRTUAL:
        chosen = favour(features.SINKING, chosen)
    if chance.random() < 0.2 and engine != VIRTUAL:
        chosen = favour(features.FIRST, chosen)
    return chosen


def favour(one: Feature, chosen: Sequence[Feature]) -> list[Feature]:
    """With this feature, which little goes with, instead of what it does not go with, unless a script needs that."""
    clashing = [other for other in chosen if other.name in one.without or one.name in other.without]
    needed = (*features.OPTIMIZERS, *features.CHECKPOINTS, features.ZERO, features.ASYNC, features.COMPILE)
    if one in chosen or any(other in needed for other in clashing):
        return list(chosen)
    return [*(other for other in chosen if other not in clashing), one]


def write(seed: int, engine: str, chosen: Sequence[Feature], steps: int = STEPS) -> Script:
    """The script with these features, in the forms that all of them have."""
    chance = random.Random(seed)
    lines = Lines(engine, chance)
    for feature in chosen:
        feature.add(lines)
    every = chance.randint(3, 7)
    lines.abrupt = seed % 16 != 0  # to free all that it has imported takes a process longer than to train
    forms = [form for form in (RESTART, SESSION) if all(form in one.forms for one in chosen)]
    if SESSION in forms and not all(engine in features.find_session_engines(one) for one in chosen):
        forms.remove(SESSION)
    writers = {RESTART: _write_restart, SESSION: _write_session}
    texts = {form: HEADER + "\n\n" + _write_common(lines, every, steps) + writers[form](lines) for form in forms}
    names = tuple(one.name for one in chosen)
    return Script(seed, engine, names, texts, lines.tolerance, steps, every, is_told=lines.checkpoint == "elastic")


def _block(parts: Sequence[str], depth: int) -> str:
    return indent("\n".join(parts) or "pass", "    " * depth)


def _write_common(lines: Lines, every: int, steps: int) -> str:
    loops = list(lines.before)
    step: list[str] = []
    for name in lines.optimizers:
        if lines.scaler:
            loops.insert(0, f"scaler.unscale_(optimizers[{name!r}])")
        if name in lines.turns:
            continue
        closure = "closure" if lines.closure and not name else ""
        step.append(f"scaler.step(optimizers[{name!r}])" if lines.scaler else f"optimizers[{name!r}].step({closure})")
    if lines.scaler:
        step.append("scaler.update()")
    if "mean_over_ranks" in " ".join(lines.after):
        loops.append("value = mean_over_ranks()")
    # The passes of a closure are made while the optimizer steps: their mean is known only after it.
    mean = "mean_over_ranks()" if lines.closure else "value"
    after = [one.replace("mean_over_ranks(loss)", mean) for one in lines.after]
    zeros = [f"optimizers[{name!r}].zero_grad({lines.zeros})" for name in lines.optimizers]
    return _COMMON.format(
        steps=steps,
        every=every,
        pause=PAUSE,
        spikes=lines.spikes,
        inputs=_block(lines.inputs, 1),
        losses=_block([*(["time.sleep(PAUSE)"] if lines.slow else []), *lines.losses], 1),
        layers=_block(lines.layers, 2),
        forward=_block(lines.forward, 2),
        before=_block([] if lines.closure else loops, 1),
        collect=_block(lines.collect, 1),
        step=_block(step, 1),
        zero=_block([] if lines.zeroes_first else zeros, 1),
        after=_block(after, 1),
    )


def _objects(lines: Lines) -> str:
    made = [f"optimizers = {{{', '.join(f'{name!r}: {text}' for name, text in lines.optimizers.items())}}}"]
    made.append("optimizer = optimizers['']")
    return "\n".join([*made, _extras(lines)])


def _extras(lines: Lines) -> str:
    made = [f"{name} = {text}" for name, text in lines.extras.items()]
    return "\n".join([*made, f"extras = dict({', '.join(f'{name}={name}' for name in lines.extras)})"])


def _checkpoint(lines: Lines, depth: int) -> str:
    text = _CHECKPOINTS[lines.checkpoint].format(
        options=lines.checkpoint_options,
        others="(extras | {n: o for n, o in optimizers.items() if n})",
        regroup=_block(lines.regroup, 1),
        gather=_block(lines.gather, 1),
    )
    return indent(text, "    " * depth)


def _write_restart(lines: Lines) -> str:
    options = "".join(f", {name}={value}" for name, value in lines.ddp.items())
    model = {DDP: f"DistributedDataParallel({lines.wrap}{options})", VIRTUAL: "net", FSDP: "net"}[lines.engine]
    ranks = "ranks = VirtualRanks(net, sampler)" if lines.engine == VIRTUAL else ""
    epoch = ["found = evaluate(model)", "log.write(at=step, found=found)"] if lines.epoch else []
    epoch += [one for one in lines.epoch if not one.startswith("evaluate")]
    loss = "scaler.scale(loss)" if lines.scaler else "loss"
    gradients = (_CLOSURE if lines.closure else _TWICE if lines.twice else _TURN).format(
        before=_block(lines.before, 1),
        turn="ranks.turn(micro)" if lines.engine == VIRTUAL else "micro.sync(model)",
        backward=f"ranks.backward({loss})" if lines.engine == VIRTUAL else f"({loss} * micro.scale).backward()",
    )
    return _RESTART.format(
        prepare=_block(lines.prepare, 0),
        world=lines.world,
        sampler_class=lines.sampler_class,
        loader_class=lines.loader_class,
        steps=lines.steps,
        left=_block(lines.left, 0),
        abrupt=lines.abrupt,
        shard=f"fully_shard(net, mesh=init_device_mesh('cpu', {lines.mesh}))" if lines.engine == FSDP else "",
        objects=_objects(lines),
        model=model,
        data="Careful()" if lines.guard else lines.data,
        sampler=lines.sampler + (", virtual_ranks=6" if lines.engine == VIRTUAL else ""),
        loader=lines.loader,
        checkpoint=_checkpoint(lines, 0),
        start=_block([*lines.start, ranks], 0),
        gradients=indent(gradients, "        ").rstrip(),
        inside=_block(lines.inside, 2),
        epoch=_block(epoch, 2),
    )


def _write_session(lines: Lines) -> str:
    loss = "scaler.scale(loss)" if lines.scaler else "loss"
    body = _BODY.format(
        loss=loss,
        inside=_block(lines.inside, 1),
        first=_FIRST.format(loss=loss) if lines.twice else "",
        half=" / 2" if lines.twice else "",
    )
    if lines.closure:
        body = _CLOSED.format(
            before=_block(lines.before, 1), inside=_block(lines.inside, 0), returns=lines.closure_returns
        )
    if lines.guard:
        body = f"try:\n{indent(body, '    ')}except RuntimeError as error:\n    print('skipped', error)\n"
    epoch = []
    if "evaluate(model)" in lines.epoch:
        epoch = ["found = evaluate(session.model)", "log.write(at=session.committed + 1, found=found)"]
    epoch += [one for one in lines.epoch if not one.startswith("evaluate")]
    options = ", ".join(f"{name!r}: {value}" for name, value in lines.ddp.items())
    names = [*lines.extras, *(name for name in lines.optimizers if name)]
    if lines.engine == FSDP:
        build = dedent(f"""\
            def build(mesh):
                global net
                net = Net()
                fully_shard(net, mesh=mesh)
                return net, {lines.optimizers[""]}


            net = optimizer = model = None
            optimizers = {{}}
            """)
        build += _extras(lines)
        arguments = f"build=build{lines.copies}"
    else:
        build = f"net = Net()\n{_objects(lines)}"
        arguments = f"model={lines.wrap}, optimizer=optimizer"
    return _SESSION.format(
        prepare=_block(lines.prepare, 0),
        sampler_class=lines.sampler_class,
        loader_class=lines.loader_class,
        abrupt=lines.abrupt,
        build=build,
        net="here.model" if lines.engine == FSDP else "net",
        arguments=arguments,
        pair=", pair" if any(one.startswith("pair") for one in lines.start) else "",
        data="Careful()" if lines.guard else lines.data,
        sampler=lines.sampler + (", virtual_ranks=6" if lines.engine == VIRTUAL else ""),
        loader=lines.loader,
        checkpoint=_checkpoint(lines, 1),
        start=_block(lines.start, 1),
        ddp=f", ddp={{{options}}}" if options and lines.engine == DDP else "",
        extras="".join(
            f", {name}={name}" if name in lines.extras else f", {name}=optimizers[{name!r}]" for name in names
        ),
        body=indent(body, "            "),
        epoch=_block([] if lines.between else epoch, 4),
        between=_block(["with session.interruptible():", indent("\n".join(epoch), "    ")] if lines.between else [], 1),
    )
