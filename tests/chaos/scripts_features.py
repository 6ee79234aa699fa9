"""What people write into training scripts, as lines that can be combined: the features of the generator in `scripts`.

A feature adds lines to the parts of a script (`Lines`), and says what it cannot be combined with. Everything computes
in float64 unless it is about another type, so that worlds of other sizes differ by far less than a mistake does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

RESTART, SESSION = FORMS = ("restart", "session")
DDP, VIRTUAL, FSDP = ("ddp", "virtual", "fsdp")


@dataclass
class Lines:
    """The parts of a script that features add to, in the order in which they are executed."""

    engine: str
    chance: random.Random
    layers: list[str] = field(default_factory=list)  # of Net.__init__
    forward: list[str] = field(default_factory=list)  # of Net.forward: they change h
    groups: str = "net.parameters()"  # what the first optimizer trains
    optimizers: dict[str, str] = field(default_factory=dict)  # by name, an expression
    extras: dict[str, str] = field(default_factory=dict)  # other objects with a state, by name
    prepare: list[str] = field(default_factory=list)  # once, before training
    start: list[str] = field(default_factory=list)  # once, in a world
    before: list[str] = field(default_factory=list)  # between the gradients and the optimizers
    turns: set[str] = field(default_factory=set)  # optimizers that step by themselves
    zeros: str = ""  # arguments of zero_grad
    zeroes_first: bool = False  # and not after the optimizers
    scaler: bool = False
    spikes: bool = False  # some losses are infinite
    slow: bool = False  # a pass takes its time, so that most losses break a step
    after: list[str] = field(default_factory=list)  # after the optimizers
    inside: list[str] = field(default_factory=list)  # collectives of a step
    epoch: list[str] = field(default_factory=list)  # between two epochs
    inputs: list[str] = field(default_factory=list)  # in `compute`, before the forward pass
    losses: list[str] = field(default_factory=list)  # in `compute`, after it: they change loss
    between: bool = False  # in a session behind the loop over batches, and not in its last turn
    data: str = "Points()"
    loader: str = ""  # further arguments of the DataLoader
    sampler: str = ""  # further arguments of the sampler
    sampler_class: str = "ElasticDistributedSampler"
    loader_class: str = "DataLoader"
    steps: str = "sampler.steps(loader)"  # in a script that is restarted: the batches, and what part each is
    left: list[str] = field(default_factory=list)  # in a script that is restarted, after its loop
    ddp: dict[str, str] = field(default_factory=dict)
    wrap: str = "net"
    world: str = "world = elasticjob.init(threads=1)"  # of a script that is restarted
    twice: bool = False  # two backward passes in each turn
    regroup: list[str] = field(default_factory=list)  # before a state is loaded, of which the step is `step`
    gather: list[str] = field(default_factory=list)  # on all ranks, before rank 0 reads the state of the optimizer
    collect: Sequence[str] = ("state = whole(collect())",)  # at the end, on each rank
    mesh: str = "(world.world_size,)"
    closure: bool = False  # the optimizer computes the gradients by itself, and several times
    closure_returns: str = "loss"  # in a session; a restarted script returns the mean over all ranks
    checkpoint: str = "elastic"
    checkpoint_options: str = ""
    guard: bool = False  # exceptions of a batch are caught
    copies: str = ""  # arguments of a session of a sharded model
    abrupt: bool = True  # a process that has ended well leaves its memory to the kernel
    tolerance: float = 1e-7


@dataclass(frozen=True)
class Feature:
    """One habit: what it adds, and with what it is drawn."""

    name: str
    says: str
    add: Callable[[Lines], None]
    engines: tuple[str, ...] = (DDP, VIRTUAL, FSDP)
    forms: Sequence[str] = (RESTART, SESSION)
    without: tuple[str, ...] = ()  # features with which it is not combined


def _model(layer: Sequence[str], forward: Sequence[str], unused: bool = False) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.layers += layer
        lines.forward += forward
        if unused:
            lines.ddp["find_unused_parameters"] = "True"

    return add


def _normalise(lines: Lines) -> None:
    lines.layers.append("self.norm = nn.BatchNorm1d(8)")
    lines.forward.append("h = self.norm(h)")
    lines.sampler += ", drop_last=True"


MODELS = (
    Feature(
        "shared parameters",
        "one module under two names",
        _model(
            ("self.same = nn.Linear(8, 8)", "self.again = self.same"), ("h = torch.tanh(self.again(self.same(h)))",)
        ),
    ),
    Feature(
        "frozen parameters",
        "`requires_grad_(False)`",
        _model(("self.frozen = nn.Linear(8, 8).requires_grad_(False)",), ("h = h + 0.1 * self.frozen(h)",)),
    ),
    Feature(
        "unused parameters",
        "trainable, and in no forward pass",
        _model(("self.unused = nn.Linear(3, 3)",), (), unused=True),
    ),
    Feature(
        "late parameters",
        "used from some step on",
        _model(("self.late = nn.Linear(8, 8)",), ("if self.at >= LATE:", "    h = h + self.late(h)"), unused=True),
        without=("static graph", "compiled model", "updated buffers"),
    ),
    Feature(
        "alternating parameters",
        "used in every third step",
        _model(("self.third = nn.Linear(8, 8)",), ("if self.at % 3 == 0:", "    h = h + self.third(h)"), unused=True),
        without=("static graph", "compiled model"),
    ),
    Feature(
        "batch norm",
        "statistics of a batch in buffers; with virtual ranks, and `drop_last`",
        _normalise,
        engines=(VIRTUAL,),
        without=("accumulated gradients",),  # it needs two samples
    ),
    Feature(
        "dropout",
        "random numbers in the forward pass",
        _model(("self.drop = nn.Dropout(0.2)",), ("h = self.drop(h)",)),
        engines=(VIRTUAL,),
    ),
    Feature(
        "complex parameters",
        "complex128",
        _model(
            ("self.phase = nn.Parameter(torch.randn(8, dtype=torch.complex128))",),
            ("h = h + 0.1 * (h * self.phase).abs()",),
        ),
        engines=(DDP, VIRTUAL),
        without=("GradScaler",),
    ),
    Feature(
        "half precision",
        "bfloat16 parameters beside float64",
        _model(
            ("self.coarse = nn.Linear(8, 8).to(torch.bfloat16)",),
            ("h = h + 0.1 * self.coarse(h.to(torch.bfloat16)).to(h.dtype)",),
        ),
        engines=(VIRTUAL,),
        without=("SGD, fused",),  # of torch 2.13 it fills its momentum with what is in the memory
    ),
    Feature(
        "scalar parameters",
        "of no dimension, and an empty one",
        _model(
            ("self.gain = nn.Parameter(torch.tensor(1.0))", "self.empty = nn.Parameter(torch.empty(0))"),
            ("h = h * self.gain + self.empty.sum()",),
        ),
        engines=(DDP, VIRTUAL),
    ),
    Feature(
        "updated buffers",
        "a counter of passes, a moving mean, one that is not saved",
        _model(
            (
                "self.register_buffer('steps', torch.tensor(0))",
                "self.register_buffer('table', torch.arange(8.0), persistent=False)",
            ),
            ("h = h + 0.01 * self.table", "if self.training:", "    self.steps.fill_(self.at + 1)"),
        ),
    ),
)


def _two(lines: Lines) -> None:
    lines.layers.append("self.critic = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))")
    lines.forward.append("h = h + self.critic(h)")
    lines.groups = "[p for n, p in net.named_parameters() if not n.startswith('critic')]"
    lines.optimizers["critic"] = "torch.optim.RMSprop(net.critic.parameters(), lr=0.003, momentum=0.5)"


TWO = Feature("two optimizers", "each with parameters of its own", _two, engines=(DDP, VIRTUAL))


def _optimizer(text: str) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.optimizers = {"": f"torch.optim.{text.replace('PARAMS', lines.groups)}", **lines.optimizers}

    return add


def _muon(lines: Lines) -> None:
    _optimizer("Muon([p for p in PARAMS if p.dim() == 2 and p.is_floating_point()], lr=0.005)")(lines)
    lines.optimizers["others"] = (
        f"torch.optim.AdamW([p for p in {lines.groups} if p.dim() != 2 or not p.is_floating_point()], lr=0.01)"
    )


def _plain(
    name: str, text: str, engines: tuple[str, ...] = (DDP, VIRTUAL, FSDP), without: tuple[str, ...] = ()
) -> Feature:
    return Feature(
        name, f"`{text.replace('PARAMS, ', '').partition('(')[2][:-1]}`", _optimizer(text), engines, without=without
    )


_REAL = ("complex parameters",)  # what torch's optimizer itself cannot train
# Its fused SGD wants that all gradients come and go together.
_ALWAYS = (*_REAL, "late parameters", "alternating parameters", "half precision")
# When a script restores them, torch casts the numbers in their state to the type of each parameter.
_COARSE = ("half precision", "autocast")
# `set_optimizer_state_dict` of torch drops what an optimizer keeps of frozen parameters, as this one from its start.
_FROZEN_LOST = ("torch's distributed checkpoint", "torch's asynchronous checkpoint")
OPTIMIZERS: tuple[Feature, ...] = (
    _plain("SGD", "SGD(PARAMS, lr=0.05)"),
    _plain("SGD with momentum", "SGD(PARAMS, lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)"),
    _plain("SGD, fused", "SGD(PARAMS, lr=0.02, momentum=0.9, fused=True)", (DDP, VIRTUAL), without=_ALWAYS),
    _plain("Adam", "Adam(PARAMS, lr=0.01)"),
    _plain("Adam, amsgrad", "Adam(PARAMS, lr=0.01, amsgrad=True, foreach=True)"),
    _plain("Adam, rate in a tensor", "Adam(PARAMS, lr=torch.tensor(0.01), foreach=False)", (DDP, VIRTUAL)),
    _plain("AdamW", "AdamW(PARAMS, lr=0.01, weight_decay=0.1)"),
    _plain("AdamW, fused", "AdamW(PARAMS, lr=0.01, fused=True)", (DDP, VIRTUAL), without=_REAL),
    _plain("Adamax", "Adamax(PARAMS, lr=0.01)"),
    _plain("NAdam", "NAdam(PARAMS, lr=0.01)", without=_COARSE),
    _plain("RAdam", "RAdam(PARAMS, lr=0.01)"),
    _plain("Adagrad", "Adagrad(PARAMS, lr=0.05)", (DDP, VIRTUAL), without=_FROZEN_LOST),
    _plain("Adadelta", "Adadelta(PARAMS, lr=1.0)"),
    # With its own eps, rounding counts where a gradient is 0.
    _plain(
        "Adafactor",
        "Adafactor(PARAMS, lr=0.02, eps=(1e-8, 1e-3))",
        (DDP, VIRTUAL),
        without=(*_REAL, "scalar parameters"),
    ),
    _plain("ASGD", "ASGD(PARAMS, lr=0.02, t0=5)", without=_COARSE),
    _plain("RMSprop", "RMSprop(PARAMS, lr=0.003, momentum=0.5, centered=True)"),
    _plain("Rprop", "Rprop(PARAMS, lr=0.003)", (VIRTUAL,)),
    Feature(
        "Muon",
        "for matrices, and AdamW for the rest",
        _muon,
        (VIRTUAL,),
        without=("two optimizers",),
    ),
)


def _schedule(text: str, call: str = "scheduler.step()") -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.extras["scheduler"] = text if text.startswith("SWALR") else f"lr.{text}"
        lines.after.append(call)

    return add


def _per(name: str, text: str, call: str = "scheduler.step()") -> Feature:
    return Feature(name, "in each step", _schedule(text, call))


_EPOCH = "if sampler.is_over(): scheduler.step()"


def _lbfgs(lines: Lines) -> None:
    _optimizer("LBFGS(PARAMS, lr=0.05, max_iter=2, history_size=3)")(lines)
    lines.closure, lines.tolerance = True, 1e-5
    lines.closure_returns = "mean_loss(loss)"  # by which it decides how often it calls the closure
    lines.prepare.append(_MEAN_LOSS)


_MEAN_LOSS = """
def mean_loss(loss):
    mean = loss.detach() * session.scale / session.world_size
    dist.all_reduce(mean)
    return mean
"""
LBFGS = Feature(
    "LBFGS",
    "`step(closure)`, with the mean loss over all ranks; it is in no checkpoint of torch's own functions",
    _lbfgs,
    (DDP,),
    without=(
        *_REAL,
        "accumulated gradients",
        "two optimizers",
        "static graph",
        "late parameters",
        "alternating parameters",
        "unused parameters",
        "updated buffers",
    ),
)
OPTIMIZERS = (*OPTIMIZERS, LBFGS)
SCHEDULERS = (
    _per("StepLR", "StepLR(optimizer, 7, 0.7)"),
    _per("MultiStepLR", "MultiStepLR(optimizer, [5, 14], 0.5)"),
    _per("ConstantLR", "ConstantLR(optimizer, 0.3, 9)"),
    _per("LinearLR", "LinearLR(optimizer, 0.1, 1.0, 12)"),
    _per("ExponentialLR", "ExponentialLR(optimizer, 0.98)"),
    _per("PolynomialLR", "PolynomialLR(optimizer, 100, 2.0)"),
    _per("CosineAnnealingLR", "CosineAnnealingLR(optimizer, 20)"),
    _per("CosineAnnealingWarmRestarts", "CosineAnnealingWarmRestarts(optimizer, 6, 2)"),
    _per("LambdaLR", "LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))"),
    _per("MultiplicativeLR", "MultiplicativeLR(optimizer, lambda step: 0.97)"),
    _per("CyclicLR", "CyclicLR(optimizer, 0.001, 0.02, 5, cycle_momentum=False)"),
    _per("OneCycleLR", "OneCycleLR(optimizer, 0.02, total_steps=200, cycle_momentum=False)"),
    _per("SWALR", "SWALR(optimizer, swa_lr=0.005, anneal_epochs=8)"),
    _per(
        "SequentialLR",
        "SequentialLR(optimizer, [lr.LinearLR(optimizer, 0.1, 1.0, 5), lr.CosineAnnealingLR(optimizer, 20)], [5])",
    ),
    _per("ChainedScheduler", "ChainedScheduler([lr.ConstantLR(optimizer, 0.5, 6), lr.ExponentialLR(optimizer, 0.98)])"),
    _per("ReduceLROnPlateau", "ReduceLROnPlateau(optimizer, patience=2)", "scheduler.step(mean_over_ranks(loss))"),
    Feature(
        "a scheduler of epochs",
        "`StepLR` stepped where the sampler is over",
        _schedule("StepLR(optimizer, 1, 0.8)", _EPOCH),
    ),
)


def _ema(lines: Lines) -> None:
    lines.extras["ema"] = "AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))"
    lines.after.append("ema.update_parameters(net)")


def _streams(lines: Lines) -> None:
    lines.extras["streams"] = "Streams()"
    lines.after.append("streams.draw()")


def _scaler(lines: Lines) -> None:
    lines.extras["scaler"] = "torch.amp.GradScaler('cpu', init_scale=2.0**10, growth_interval=4)"
    lines.scaler = lines.spikes = True


AROUND = (
    Feature("averaged weights", "AveragedModel, an EMA in each step", _ema, (DDP, VIRTUAL)),
    Feature("GradScaler", "on the CPU; it skips steps", _scaler, (DDP, VIRTUAL), without=("LBFGS",)),
    Feature(
        "random numbers",
        "of Python, NumPy and a generator of torch, saved as an object of the script's, drawn in each step",
        _streams,
    ),
    Feature(
        "clipped norm",
        "`clip_grad_norm_`",
        lambda lines: lines.before.append("nn.utils.clip_grad_norm_(net.parameters(), 0.5)"),
        without=("LBFGS",),
    ),
    Feature(
        "clipped values",
        "`clip_grad_value_`",
        lambda lines: lines.before.append("nn.utils.clip_grad_value_(net.parameters(), 0.2)"),
        (DDP, VIRTUAL),
        without=("complex parameters", "LBFGS"),
    ),
)


def _accumulate(lines: Lines) -> None:
    lines.sampler += f", micro_batch_size={lines.chance.choice((1, 2, 3))}"


def _loader(text: str) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.loader = f", {text}"

    return add


def _evaluate(lines: Lines) -> None:
    lines.epoch.append("evaluate(model)")
    lines.between = lines.chance.random() < 0.5


DATA = (
    Feature("accumulated gradients", "`micro_batch_size` below a rank's share", _accumulate),
    Feature("loader workers", "`num_workers=2`", _loader("num_workers=2")),
    Feature("persistent workers", "`persistent_workers=True`", _loader("num_workers=1, persistent_workers=True")),
    Feature("prefetching", "`prefetch_factor=4`", _loader("num_workers=1, prefetch_factor=4")),
    Feature("evaluation", "a second sampler, and a sum over all ranks after each epoch", _evaluate),
)


def _ddp(**options: str) -> Callable[[Lines], None]:
    return lambda lines: lines.ddp.update(options)


WRAPS: tuple[Feature, ...] = (
    Feature("buffers of each rank", "`broadcast_buffers=False`", _ddp(broadcast_buffers="False"), (DDP,)),
    Feature("gradients in buckets", "`gradient_as_bucket_view=True`", _ddp(gradient_as_bucket_view="True"), (DDP,)),
    Feature("small buckets", "`bucket_cap_mb=1`", _ddp(bucket_cap_mb="1"), (DDP,)),
    Feature(
        "static graph",
        "`static_graph=True`",
        _ddp(static_graph="True"),
        (DDP,),
        without=("late parameters", "alternating parameters", "unused parameters"),
    ),
)


def _compile(lines: Lines) -> None:
    lines.wrap = "torch.compile(net, backend='aot_eager')"


def _hybrid(lines: Lines) -> None:
    shape = lines.chance.choice(("{1: (1, 1), 2: (2, 1), 3: (1, 3)}", "{1: (1, 1), 2: (1, 2), 3: (3, 1)}"))
    lines.mesh = f"{shape}[world.world_size], mesh_dim_names=('replicas', 'shards')"
    lines.copies = ", shards=1" if "(1, 3)" in shape else ", shards=2"


COMPILE = Feature(
    "compiled model", "`torch.compile`", _compile, (DDP,), without=("late parameters", "alternating parameters")
)
WRAPS = (
    *WRAPS,
    Feature("hybrid sharding", "`fully_shard` with a mesh of two dimensions, `shards=` in a session", _hybrid, (FSDP,)),
)


def _checkpoint(kind: str, options: str = "") -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.checkpoint, lines.checkpoint_options = kind, options

    return add


# What torch's own functions for the state of an optimizer cannot restore, or a script has to save by itself.
_LAZY = (
    "unused parameters", "late parameters", "alternating parameters", "two optimizers", "Muon", "LBFGS"
)  # fmt: skip
CHECKPOINTS = (
    Feature("Checkpointer", "`elasticjob.Checkpointer`", _checkpoint("elastic")),
    Feature(
        "Checkpointer that waits",
        "`asynchronous=False`",
        _checkpoint("elastic", ", asynchronous=False, keep=2"),
    ),
    Feature("torch.save", "rank 0 writes a file and renames it", _checkpoint("plain"), (DDP, VIRTUAL)),
    Feature(
        "torch's distributed checkpoint",
        "`dcp.save`, and a file that names the last one",
        _checkpoint("dcp"),
        without=_LAZY,
    ),
)


def _subgroup(lines: Lines) -> None:
    lines.start.append("pair = dist.new_group(list(range(min(2, dist.get_world_size()))))")
    lines.inside.append("if dist.get_rank() < 2: dist.all_reduce(torch.ones(1), group=pair)")


def _handler(lines: Lines) -> None:
    lines.prepare.append("signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))")
    lines.prepare.append("signal.signal(signal.SIGUSR2, signal.SIG_IGN)")


def _subprocess(lines: Lines) -> None:
    session = lines.chance.choice(("", ", start_new_session=True"))
    lines.prepare.append(f"subprocess.Popen(['sleep', '300']{session})")
    lines.epoch.append("subprocess.run(['true'], check=True)")


def _guard(lines: Lines) -> None:
    lines.guard = True


HABITS = (
    Feature(
        "subgroups",
        "`new_group`, and a collective in it in each step",
        _subgroup,
    ),
    Feature("barriers", "`dist.barrier()` in each step", lambda lines: lines.inside.append("dist.barrier()")),
    Feature("signal handlers", "of SIGTERM and SIGUSR2", _handler),
    Feature("subprocesses", "one that lives on, also in a session of its own, and short ones", _subprocess),
    Feature("caught exceptions", "`except` around each batch", _guard),
)


# --- what was found in scripts of others, and is drawn after all of the above, so that seeds keep their meaning ----

_SOMETIMES = ("unused parameters", "late parameters", "alternating parameters")
_PASS = """
class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return torch.tanh(h) / 2

    @staticmethod
    def backward(ctx, gradient):
        (h,) = ctx.saved_tensors
        return gradient * (1 - torch.tanh(h) ** 2) / 2
"""
_ADAPTER = """
class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(2, 8) * 0.1), nn.Parameter(torch.randn(8, 2) * 0.1)

    def forward(self, weight):
        return weight.detach() + self.b @ self.a
"""


def _autograd(lines: Lines) -> None:
    lines.prepare.append(_PASS)
    lines.forward.append("h = h + Halved.apply(h)")


def _adapt(lines: Lines) -> None:
    lines.prepare.append(_ADAPTER)
    lines.layers += (
        "self.adapted = nn.Linear(8, 8)",
        "parametrize.register_parametrization(self.adapted, 'weight', Adapter())",
        "self.adapted.parametrizations.weight.original.requires_grad_(False)",
    )
    lines.forward.append("h = h + 0.1 * self.adapted(h)")


LAYERS = (
    Feature(
        "activation checkpointing",
        "`torch.utils.checkpoint`, which repeats a part of the forward pass",
        _model(
            ("self.again_made = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))",),
            ("h = h + checkpoint_passes(self.again_made, h, use_reentrant=False)",),
        ),
    ),
    Feature(
        "tied weights",
        "a parameter of two modules",
        _model(
            ("self.tied, self.other = nn.Linear(8, 8), nn.Linear(8, 8)", "self.other.weight = self.tied.weight"),
            ("h = self.other(torch.tanh(self.tied(h)))",),
        ),
    ),
    Feature(
        "weight norm",
        "`parametrizations.weight_norm`",
        _model(("self.scaled = parametrizations.weight_norm(nn.Linear(8, 8))",), ("h = h + 0.1 * self.scaled(h)",)),
    ),
    Feature(
        "spectral norm",
        "its buffers change in each pass; with one pass a step on each rank",
        _model(("self.normed = parametrizations.spectral_norm(nn.Linear(8, 8))",), ("h = h + 0.1 * self.normed(h)",)),
        engines=(DDP,),
        without=("accumulated gradients", "LBFGS", "two passes", "gradient penalty", "rate finder"),
    ),
    Feature("adapters of low rank", "a parametrization of a frozen weight", _adapt),
    Feature("custom gradients", "`torch.autograd.Function`", _autograd, without=("gradient penalty",)),
    Feature(
        "functional transforms",
        "`torch.func`: `vmap` over `functional_call`",
        _model(
            ("self.each = nn.Linear(8, 8)",),
            (
                "weights = dict(self.each.named_parameters())",
                "h = h + 0.1 * torch.func.vmap(lambda one: torch.func.functional_call(self.each, weights, (one,)))(h)",
            ),
        ),
    ),
    Feature(
        "hooks",
        "forward hooks of modules, and hooks of gradients",
        _model(
            (
                "self.into.register_forward_hook(lambda module, args, out: out * 0.9)",
                "self.into.weight.register_hook(lambda gradient: gradient * 0.5)",
            ),
            (),
        ),
        engines=(DDP, VIRTUAL),
    ),
    Feature(
        "recurrent layers",
        "an LSTM",
        _model(
            ("self.recurrent = nn.LSTM(8, 8, batch_first=True)",),
            ("h = h + self.recurrent(h.unsqueeze(1))[0].squeeze(1)",),
        ),
        engines=(DDP, VIRTUAL),
    ),
    Feature(
        "attention",
        "a `TransformerEncoderLayer`",
        _model(
            # The gradient of the bias of keys is 0 but for rounding, which some optimizers make as large as any other.
            ("self.attention = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, bias=False)",),
            ("h = self.attention(h.view(-1, 2, 4).repeat(1, 1, 2)).mean(1)",),
        ),
    ),
    Feature(
        "lazy modules",
        "`LazyLinear`, made by a first pass",
        _model(("self.lazy = nn.LazyLinear(8)", "self.lazy(torch.zeros(1, 8))"), ("h = h + 0.1 * self.lazy(h)",)),
    ),
    Feature(
        "lists of parameters",
        "`ParameterDict`, `ParameterList`, `ModuleDict`",
        _model(
            (
                "self.named = nn.ParameterDict({'a': torch.ones(8), 'b': torch.zeros(8)})",
                "self.listed = nn.ParameterList([torch.ones(8), torch.ones(8)])",
                "self.modules_of = nn.ModuleDict({'one': nn.Linear(8, 8)})",
            ),
            (
                "h = h * self.named['a'] + self.named['b'] * self.listed[0] + self.listed[1]",
                "h = h + 0.1 * self.modules_of['one'](h)",
            ),
        ),
    ),
    Feature(
        "autocast",
        "of a float32 part to bfloat16",
        _model(
            ("self.mixed = nn.Linear(8, 8).float()",),
            (
                "with torch.autocast('cpu', dtype=torch.bfloat16):",
                "    h = h + 0.1 * self.mixed(h.float()).double()",
            ),
        ),
        engines=(VIRTUAL,),
    ),
)


def _loss(*lines_of: str, inputs: Sequence[str] = (), prepare: Sequence[str] = ()) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.losses += lines_of
        lines.inputs += inputs
        lines.prepare += prepare

    return add


def _group(lines: Lines) -> None:
    named = "net.named_parameters()"
    lines.groups = (
        f"[{{'params': [p for n, p in {named} if n.endswith('bias')], 'weight_decay': 0.0}}, "
        f"{{'params': [p for n, p in {named} if not n.endswith('bias')], 'lr': 0.004}}]"
    )


GROUPED = Feature(
    "groups of parameters",
    "with rates and decays of their own",
    _group,
    without=("two optimizers", "Muon", "LBFGS", "Adam, rate in a tensor", "Rprop"),
)


def _swa(lines: Lines) -> None:
    lines.extras["swa"] = "AveragedModel(net, use_buffers=True)"
    lines.after.append("if net.at >= STEPS * 3 // 8: swa.update_parameters(net)")


LOSSES = (
    Feature(
        "a teacher",
        "a second, frozen model that is in no checkpoint",
        _loss(
            "loss = loss + 0.1 * (found - teacher(x, item).squeeze(1).detach()).square().mean()",
            prepare=("teacher = Net().eval()",),
        ),
        engines=(DDP, VIRTUAL),
        without=("updated buffers", *_SOMETIMES),
    ),
    Feature(
        "penalty of the weights",
        "a sum over the parameters in the loss",
        _loss("loss = loss + 1e-3 * sum(p.square().sum() for p in net.parameters())"),
        engines=(DDP, VIRTUAL),
        without=(*_SOMETIMES, "static graph", "half precision"),
    ),
    Feature(
        "gradient penalty",
        "a gradient of the gradient with respect to the input",
        _loss(
            "(slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)",
            "loss = loss + 0.01 * slope.square().mean()",
            inputs=("x = x.detach().requires_grad_()",),
        ),
        engines=(DDP, VIRTUAL),
        without=(
            *_SOMETIMES,
            "static graph",
            "activation checkpointing",
            "custom gradients",
            "attention",  # torch has no second derivative of it
        ),
    ),
    Feature(
        "two passes",
        "a model that is called twice in each step",
        _loss("loss = loss + 0.1 * (found - model(-x, item).squeeze(1)).square().mean()"),
        engines=(DDP, VIRTUAL),
        without=(*_SOMETIMES, "static graph", "updated buffers", "spectral norm", "batch norm", "dropout"),
    ),
    Feature(
        "curriculum",
        "inputs that depend on the epoch",
        _loss(inputs=("x = x * (1 + 0.1 * sampler.epoch)",)),
    ),
    Feature(
        "gradients changed by hand",
        "`p.grad` is centred before the optimizer steps",
        lambda lines: lines.before.append(
            "for p in net.parameters(): p.grad is None or p.dim() < 2 or p.grad.sub_(p.grad.mean(1, keepdim=True) / 2)"
        ),
        engines=(DDP, VIRTUAL),
        without=("LBFGS",),
    ),
    Feature(
        "clamped weights",
        "parameters that the script changes after the optimizer",
        lambda lines: lines.after.append(
            "with torch.no_grad(): [p.clamp_(-0.6, 0.6) for p in net.parameters() if not p.is_complex()]"
        ),
        engines=(DDP, VIRTUAL),
    ),
    Feature(
        "rates set by hand",
        "`group['lr']` is computed from the step",
        lambda lines: lines.before.append(
            "for group in optimizer.param_groups: group['lr'] = 0.02 / (1 + 0.05 * net.at)"
        ),
        without=(*(one.name for one in SCHEDULERS), "LBFGS"),
    ),
    Feature("stochastic weight averaging", "AveragedModel from some step on, with buffers", _swa, (DDP, VIRTUAL)),
)


def _data(text: str) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.data = text

    return add


def _option(text: str) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.loader += f", {text}"

    return add


LOADERS = (
    Feature(
        "joined datasets",
        "`ConcatDataset` of two `Subset`s",
        _data("ConcatDataset([Subset(Points(), range(20)), Subset(Points(), range(20, 50))])"),
        without=("caught exceptions",),
    ),
    Feature(
        "functions of a loader",
        "`collate_fn`, `worker_init_fn` and `generator`",
        _option(
            "collate_fn=lambda batch: default_collate(list(batch)), generator=torch.Generator().manual_seed(3), "
            "worker_init_fn=lambda worker: random.seed(worker)"
        ),
    ),
)


def _find_rate(lines: Lines) -> None:
    lines.start.append("""\
probe = copy.deepcopy(net)
tried = torch.optim.SGD(probe.parameters(), lr=1e-3)
for _ in range(3):
    probe(torch.ones(2, 6), None).sum().abs().backward()
    tried.step()
    tried.zero_grad()
""")


_SEND = """\
token = torch.zeros(1)
if dist.get_world_size() > 1:
    following, previous = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()
    sent = dist.isend(torch.tensor([float(dist.get_rank())]), following)
    dist.recv(token, previous)
    sent.wait()
    assert token == previous"""


def _inside(text: str) -> Callable[[Lines], None]:
    return lambda lines: lines.inside.append(text)


MESSAGES = (
    Feature(
        "objects of all ranks",
        "`all_gather_object`, and `gather_object` to rank 0, in each step",
        _inside(
            "told = [None] * dist.get_world_size(); dist.all_gather_object(told, {'rank': dist.get_rank()}); "
            "dist.gather_object(told, [None] * len(told) if dist.get_rank() == 0 else None)"
        ),
    ),
    Feature(
        "decisions of rank 0",
        "such as an early stop, in a broadcast or a list of objects",
        _inside(
            "stop = torch.tensor([float(dist.get_rank() == 0)]); dist.broadcast(stop, 0); "
            "words = [f'step {net.at}']; dist.broadcast_object_list(words, src=0); assert stop and words"
        ),
    ),
    Feature("sends and receives", "in a ring, in each step", _inside(_SEND)),
    Feature("monitored barriers", "`dist.monitored_barrier()` in each step", _inside("dist.monitored_barrier()")),
    Feature(
        "a seed for each rank",
        "`torch.manual_seed(rank)`",
        lambda lines: lines.start.append("torch.manual_seed(dist.get_rank())"),
    ),
    Feature(
        "hooks of DDP",
        "`register_comm_hook`",
        lambda lines: lines.start.append("model.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)"),
        (DDP,),
        without=("complex parameters",),
    ),
    Feature(
        "rate finder",
        "steps of a copy of the model before the first one",
        _find_rate,
        (DDP, VIRTUAL),
    ),
)


def _prepare(*texts: str, epoch: str = "") -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.prepare += texts
        lines.epoch += [epoch] if epoch else []

    return add


PROCESS = (
    Feature(
        "helper threads",
        "a daemon, and a pool of threads",
        _prepare(
            "threading.Thread(target=lambda: [time.sleep(0.05) for _ in iter(int, 1)], daemon=True).start()",
            "threads = concurrent.futures.ThreadPoolExecutor(2)",
            epoch="threads.submit(abs, -1).result()",
        ),
    ),
    Feature(
        "helper processes",
        "`multiprocessing.Pool`",
        _prepare("pool = multiprocessing.get_context('fork').Pool(1)", epoch="pool.map(abs, [-1])"),
    ),
    Feature("functions at exit", "`atexit`", _prepare("atexit.register(log.write, ended=True)")),
    Feature(
        "logs of each rank",
        "`logging` to a file, and standard output to another one",
        _prepare(
            "logging.basicConfig(filename=OUT / f'log-{os.getenv(\"RANK\")}', level=logging.INFO, force=True)",
            "sys.stdout = open(OUT / f'said-{os.getpid()}', 'a', buffering=1)",
            "logging.info('begins'); print('begins', end='\\r')",
        ),
    ),
    Feature("default device", "`torch.set_default_device('cpu')`", _prepare("torch.set_default_device('cpu')")),
    Feature(
        "checks of torch",
        "`set_detect_anomaly`, `use_deterministic_algorithms`",
        _prepare("torch.autograd.set_detect_anomaly(True)", "torch.use_deterministic_algorithms(True)"),
        without=("GradScaler",),
    ),
    Feature(
        "no garbage collection",
        "`gc.disable()`, and `gc.collect()` after each epoch",
        _prepare("gc.disable()", epoch="gc.collect()"),
    ),
    Feature("another directory", "`os.chdir`", _prepare("os.chdir(OUT)")),
    Feature(
        "fault handlers",
        "`faulthandler`, an alarm and a timer",
        _prepare(
            "faulthandler.enable(); faulthandler.register(signal.SIGUSR1)",
            "signal.signal(signal.SIGALRM, lambda *_: None); signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)",
            "atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)",
        ),
    ),
    Feature(
        "arguments", "`argparse`, with unknown ones left", _prepare("argparse.ArgumentParser().parse_known_args()")
    ),
)

NEWEST = Feature(
    "the newest file",
    "`torch.save` into a file of each step; rank 0 looks for the newest and tells the others",
    _checkpoint("newest"),
    (DDP, VIRTUAL),
)

# --- more habits, drawn after all of the above -----------------------------------------------------------------------

_PASSES = (*_SOMETIMES, "static graph", "LBFGS")
_TELL = """
def tell(module, args, out):
    if module.training and dist.is_initialized() and dist.get_world_size() > 1:
        norm = out.detach().norm()
        dist.all_reduce(norm, op=dist.ReduceOp.MAX)
        assert norm >= out.detach().norm()
"""


def _hook_that_talks(lines: Lines) -> None:
    lines.prepare.insert(0, _TELL)  # before a model is made
    lines.layers.append("self.out.register_forward_hook(tell)")


def _twice(lines: Lines) -> None:
    lines.twice = True


_VALIDATE = """
def validate():
    net.eval()
    with torch.no_grad():
        item, x, y = default_collate([Points()[number] for number in range(20)])
        value = float((net(x, item).squeeze(1) - y).square().mean())
    net.train()
    return value
"""


def _validated(lines: Lines) -> None:
    lines.prepare.append(_VALIDATE)
    _schedule("ReduceLROnPlateau(optimizer, patience=0)", "if sampler.is_over(): scheduler.step(validate())")(lines)


VALIDATED = Feature(
    "ReduceLROnPlateau of a validation",
    "stepped where the sampler is over, by what a pass over other data gives",
    _validated,
    (DDP, VIRTUAL),
    without=(*(one.name for one in SCHEDULERS), "rates set by hand", "LBFGS"),
)


def _added(lines: Lines) -> None:
    lines.layers.append("self.added = nn.Linear(8, 8)")
    lines.forward.append("h = h + 0.1 * self.added(h)")
    lines.groups = "[p for n, p in net.named_parameters() if not n.startswith('added')]"
    add = "optimizer.add_param_group({'params': list(net.added.parameters()), 'lr': 0.003})"
    lines.before.append(f"if net.at >= LATE and len(optimizer.param_groups) < 2: {add}")
    lines.regroup.append(f"if step > LATE: {add}")
    lines.after.append("net.zero_grad()")  # those that no optimizer has yet


ADDED = Feature(
    "groups that are added later",
    "`add_param_group` in some step, and before such a state is loaded",
    _added,
    (DDP,),
    without=(
        "two optimizers",
        "Muon",
        "LBFGS",
        "Adam, rate in a tensor",
        "Rprop",
        "groups of parameters",
        "GradScaler",
        *(one.name for one in SCHEDULERS),
        "Checkpointer",
        "Checkpointer that waits",
        "torch's distributed checkpoint",
    ),
)


def _zero(lines: Lines) -> None:
    lines.optimizers[""] = f"ZeroRedundancyOptimizer({lines.groups}, torch.optim.AdamW, lr=0.01)"
    lines.gather.append("optimizer.consolidate_state_dict(to=0)")
    lines.collect = [
        "state = {}",
        "for one in range(dist.get_world_size()):",
        "    optimizer.consolidate_state_dict(to=one)  # which drops those that others have got",
        "    state = whole(collect()) if one == rank else state",
    ]


ZERO = Feature(
    "ZeroRedundancyOptimizer",
    "its state divided over the ranks, and gathered where it is saved",
    _zero,
    (DDP,),
    (RESTART,),  # it needs a process group when it is made
    without=(
        "two optimizers",
        "Muon",
        "LBFGS",
        "groups of parameters",
        "groups that are added later",
        *_SOMETIMES,
        *_REAL,
        "GradScaler",
        "Checkpointer",
        "Checkpointer that waits",
        "torch's distributed checkpoint",
    ),
)

_METHODS = ("env://", "tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
_BY_HAND = """\
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"METHOD", rank=rank, world_size=size)
world = types.SimpleNamespace(rank=rank, world_size=size, generation=int(os.getenv("ELASTICJOB_GENERATION", "0")))"""

BY_HAND = Feature(
    "a process group by hand",
    "`init_process_group` with what torchrun has put into the environment, as `env://` or `tcp://`",
    lambda lines: setattr(lines, "world", _BY_HAND.replace("METHOD", lines.chance.choice(_METHODS))),
    (DDP, VIRTUAL),
    (RESTART,),
)
_FORKED = """
class Forked(Points):
    def __getitem__(self, item):
        if item % 5:
            return super().__getitem__(item)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, str(item).encode())
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            item = int(file.read())
        os.waitpid(child, 0)
        return super().__getitem__(item)
"""
_AHEAD = """
class Ahead(DataLoader):
    def __iter__(self):
        ready = queue.Queue(3)
        batches = super().__iter__()  # which draws a number, and so not beside a pass

        def read():
            for batch in batches:
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=read, daemon=True).start()
        return iter(ready.get, None)
"""
_OWN_SAMPLER = """
class OwnSampler(ElasticDistributedSampler):
    def set_epoch(self, epoch):
        self.begun = [*getattr(self, "begun", []), epoch]
        super().set_epoch(epoch)

    def __iter__(self):
        for indices in super().__iter__():
            yield list(indices)
"""


def _forked(lines: Lines) -> None:
    lines.prepare.append(_FORKED)
    lines.data = "Forked()"


def _ahead(lines: Lines) -> None:
    lines.prepare.append(_AHEAD)
    lines.loader_class = "Ahead"


def _own_sampler(lines: Lines) -> None:
    lines.prepare.append(_OWN_SAMPLER)
    lines.sampler_class = "OwnSampler"


SOURCES = (
    Feature(
        "datasets that fork",
        "`os.fork` for each fifth sample",
        _forked,
        without=("caught exceptions", "joined datasets"),
    ),
    Feature("a loader with a thread", "a `DataLoader` whose batches a thread reads ahead", _ahead),
    Feature("a sampler of its own", "a subclass of `ElasticDistributedSampler`", _own_sampler),
)

_SAVE_AT_EXIT = """
def save_at_exit():
    if globals().get("net") is not None:
        torch.save({name: one.detach().clone() for name, one in net.named_parameters()}, OUT / f"exit-{os.getpid()}")


atexit.register(save_at_exit)
"""
_AGAIN = """
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])
"""
_COMMANDS = """
commands = argparse.ArgumentParser()
commands.add_subparsers(dest="command", required=True).add_parser("train").add_argument("folders", nargs="+")
assert commands.parse_args(["train", *sys.argv[1:]]).command == "train"
"""
TRAITS = (
    Feature("savers at exit", "a file that a function at exit writes", _prepare(_SAVE_AT_EXIT), (DDP, VIRTUAL)),
    Feature("commands", "`argparse` with subcommands", _prepare(_COMMANDS)),
    Feature(
        "bytes in the output",
        "which are no text, also half a line",
        _prepare(
            "sys.stdout.buffer.write(bytes(range(256)) * 9); sys.stdout.flush(); os.write(2, b'\\xff\\xfe\\r 50 %')",
            epoch="os.write(1, b'\\xe2\\x82')",
        ),
    ),
    Feature("streams of the CPU", "`torch.cpu.stream`", _inside("with torch.cpu.stream(torch.cpu.Stream()): pass")),
)
AGAIN = Feature(
    "executes itself again",
    "`os.execv` with a variable that says so",
    lambda lines: lines.prepare.insert(0, _AGAIN),
)
HOOKED = Feature(
    "hooks that communicate",
    "a collective in a forward hook",
    _hook_that_talks,
)
TWICE = Feature(
    "two backward passes",
    "in each turn, the first one in `no_sync()`",
    _twice,
    (DDP,),
    without=(*_PASSES, "spectral norm", "gradient penalty", "two passes"),
)

LINKED = Feature(
    "a link to the newest", "`torch.save`, and `latest` linked to it", _checkpoint("linked"), (DDP, VIRTUAL)
)
ARRAYS = Feature(
    "arrays and a description",
    "tensors as bytes behind a header of JSON, and the rest beside them",
    _checkpoint("arrays"),
    (DDP, VIRTUAL),
)
ASYNC = Feature(
    "torch's asynchronous checkpoint",
    "`dcp.async_save`, and the file that names the last one when it is complete",
    _checkpoint("async"),
    without=_LAZY,
)

# --- what tutorials do: contrastive learning, policies, noise ---------------------------------------------------------

_ONCE = (  # what needs one pass of each step on each rank
    "accumulated gradients",
    "LBFGS",
    "two passes",
    "two backward passes",
    "gradient penalty",
    "rate finder",
    "compiled model",
)
_MOVES = (  # with a counter of changes, with other memory, and without either
    "mine.lerp_(leader, 0.1)",
    "mine.data = mine.data * 0.9 + leader.data * 0.1",
    "mine.data.mul_(0.9).add_(leader.data, alpha=0.1)",
)


def _follow(lines: Lines) -> None:
    lines.slow = True
    lines.layers.append("self.follower = copy.deepcopy(self.into).requires_grad_(False)")
    lines.forward += (
        "if self.training:",
        "    with torch.no_grad():",
        "        for mine, leader in zip(self.follower.parameters(), self.into.parameters(), strict=True):",
        f"            {lines.chance.choice(_MOVES)}",
        "h = h + 0.3 * torch.tanh(self.follower(x))",
    )


def _follow_later(lines: Lines) -> None:
    _follow(lines)
    lines.forward[-5:-1] = [
        "if self.training and self.at >= STEPS * 7 // 24:",
        "    for mine, leader in zip(self.follower.parameters(), self.into.parameters(), strict=True):",
        "        mine.data.mul_(0.9).add_(leader.data, alpha=0.1)",
    ]


_QUEUE = """
def in_order(rows, item):
    if dist.is_initialized() and dist.get_world_size() > 1:
        mine = torch.cat([item[:, None].double(), rows], 1)
        padded = torch.full((GLOBAL_BATCH, mine.shape[1]), -1.0)
        padded[: len(mine)] = mine
        every = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(every, padded)
        found = torch.cat(every)
        found = found[found[:, 0] >= 0]
    else:
        found = torch.cat([item[:, None].double(), rows], 1)
    return found[found[:, 0].argsort()][:, 1:]
"""


def _queue(lines: Lines) -> None:
    lines.slow = True
    lines.sampler += ", drop_last=True"  # a rank without a sample of its own would queue one that counts for nothing
    lines.prepare.insert(0, _QUEUE)
    lines.layers += (
        "self.register_buffer('queue', torch.randn(18, 8))",
        "self.register_buffer('place', torch.zeros(1, dtype=torch.long))",
    )
    lines.forward += (
        "known = self.queue.clone()",
        "if self.training:",
        "    with torch.no_grad():",
        "        rows = in_order(h.detach(), item)",
        "        self.queue[(self.place + torch.arange(len(rows))) % len(self.queue)] = rows",
        "        self.place += len(rows)",
        "h = h + 0.3 * torch.softmax(h @ known.T, 1) @ known",
    )


_NOISE = """
class Noise:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(13)

    def draw(self):
        return 0.1 * torch.randn(6, generator=self.generator)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])
"""


def _noise(lines: Lines) -> None:
    lines.slow = True
    lines.prepare.append(_NOISE)
    lines.extras["noise"] = "Noise()"
    lines.inputs.append("x = x + noise.draw()")


def _policy(lines: Lines) -> None:
    lines.slow = True
    lines.extras["policy"] = "copy.deepcopy(net)"
    lines.inputs.append("if net.at % 4 == 0: policy.load_state_dict(net.state_dict())")
    lines.losses += (
        "with torch.no_grad(): before = policy(x, item).squeeze(1)",
        "ratio = (0.1 * (found - before)).exp()",
        "loss = loss - 0.1 * torch.min(ratio * y, ratio.clamp(0.99, 1.01) * y).mean()",
    )


def _close(lines: Lines) -> None:
    lines.slow = lines.closure = True


FOLLOWER = Feature(
    "followers",
    "frozen parameters that a training pass moves towards others, in three ways",
    _follow,
    (DDP,),
    without=(*_ONCE, "a teacher"),
)
QUEUE = Feature(
    "queues",
    "a buffer with what the last passes of all ranks have made; with `drop_last`",
    _queue,
    (DDP,),
    without=(*_ONCE, "a teacher", "static graph", "half precision"),
)
NOISE = Feature(
    "noise",
    "of a generator in an object of the script's, drawn before the pass",
    _noise,
    (DDP,),
    without=_ONCE,
)
POLICY = Feature(
    "old policies",
    "a copy of the model that is renewed in every fourth step, before the pass, and a clipped ratio to it",
    _policy,
    (DDP,),
    without=(*_ONCE, "updated buffers", "spectral norm", "followers", "queues", *_SOMETIMES),
)
CLOSURES = Feature(
    "closures",
    "`step(closure)` of any optimizer: the closure makes and clips the gradients",
    _close,
    (DDP,),
    without=(
        "accumulated gradients",
        "LBFGS",
        "two optimizers",
        "Muon",
        "GradScaler",
        "two backward passes",
        "groups that are added later",
        "ZeroRedundancyOptimizer",
        "ReduceLROnPlateau",
    ),
)
LATER = Feature(
    "late followers",
    "frozen parameters that training passes move towards others from some step on, through `.data`",
    _follow_later,
    (DDP,),
    without=(*_ONCE, "a teacher", "followers", "old policies", "adversaries in turn"),
)
TUTORIALS = (FOLLOWER, QUEUE, NOISE, POLICY, CLOSURES)

# --- what repositories of others do, drawn last of all ----------------------------------------------------------------


def _turns(lines: Lines) -> None:
    lines.slow = True
    lines.ddp["find_unused_parameters"] = "True"
    lines.layers += ("self.judge = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))", "self.judges = False")
    lines.forward += ("if self.judges:", "    return self.judge(h.detach())", "h = h + 0.1 * self.judge(h)")
    lines.groups = "[p for n, p in net.named_parameters() if not n.startswith('judge')]"
    lines.optimizers["judge"] = "torch.optim.Adam(net.judge.parameters(), lr=0.01)"
    lines.turns.add("judge")
    lines.inputs += ("global last", "last, net.judges = (x, item, y), False")
    lines.after += (
        "net.zero_grad()",
        "net.judges = True",
        "judged = (model(*last[:2]).squeeze(1) - last[2]).square().mean()",
        "session.backward(judged) if 'session' in globals() else (judged * micro.scale).backward()",
        "optimizers['judge'].step()",
        "net.zero_grad()",
        "net.judges = False",  # an evaluation may be the first pass of a process
    )


def _attack(lines: Lines) -> None:
    lines.slow = True
    lines.inputs += (
        "global intact",
        "intact = net.into.weight.data.clone()",
        "net.into.weight.data.add_(0.05 * intact.sign())",
    )
    put_back = ("net.into.weight.data = intact", "net.into.weight.data.copy_(intact)")
    lines.before.insert(0, lines.chance.choice(put_back))


_SHADOW = """
def try_averages():
    kept = {name: one.data.clone() for name, one in net.named_parameters()}
    for one in net.parameters():
        one.data.mul_(0.9)
    for _ in range(4):
        time.sleep(PAUSE)
        evaluate(model)
    for name, one in net.named_parameters():
        one.data.copy_(kept[name])
"""


def _shadow(lines: Lines) -> None:
    lines.prepare.insert(0, _SHADOW)
    lines.epoch.append("try_averages()")


_LABELS = """
class Labels:
    def __init__(self):
        random.seed(17)
        np.random.seed(17)

    def draw(self):
        return 0.1 * random.gauss(0, 1) + 0.1 * float(np.random.rand())

    def state_dict(self):
        kind, keys, *rest = np.random.get_state()
        return {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest]}

    def load_state_dict(self, state):
        version, keys, gauss = state["python"]
        random.setstate((version, tuple(keys), gauss))
        np.random.set_state(state["numpy"])
"""


def _labels(lines: Lines) -> None:
    lines.slow = True
    lines.prepare.append(_LABELS)
    lines.extras["labels"] = "Labels()"
    lines.inputs.append("y = y + labels.draw()")


TURNS = Feature(
    "adversaries in turn",
    "a part of the model with an optimizer of its own, which has a backward pass and a step after the other one's",
    _turns,
    (DDP,),
    without=(
        *_ONCE,
        *_SOMETIMES,
        "two optimizers",
        "Muon",
        "GradScaler",
        "static graph",
        "groups of parameters",
        "groups that are added later",
        "ZeroRedundancyOptimizer",
        "torch's distributed checkpoint",
        "torch's asynchronous checkpoint",
        "closures",
        "queues",
        "noise",
        "followers",
        "spectral norm",
        "updated buffers",
    ),
)
ATTACK = Feature(
    "attacked weights",
    "a weight that is changed through `.data` for the passes of a step, and put back before the optimizer",
    _attack,
    (DDP,),
    without=(*_ONCE, "closures"),
)
SHADOW = Feature(
    "evaluation of other weights",
    "averages are copied into the model for an evaluation, and its own weights back, without `finally`",
    _shadow,
    (DDP,),
    without=("evaluation",),
)
LABELS = Feature(
    "noise of the process",
    "Python's and NumPy's global random numbers, drawn before the pass and saved as an object of the script's",
    _labels,
    (DDP,),
    without=(*_ONCE, "random numbers", "noise"),
)
REPOSITORIES = (
    TURNS,
    ATTACK,
    SHADOW,
    LABELS,
    Feature(
        "gradients kept as zeros",
        "`zero_grad(set_to_none=False)`",
        lambda lines: setattr(lines, "zeros", "set_to_none=False"),
        (DDP, VIRTUAL),
        without=(*_SOMETIMES, "adversaries in turn", "groups that are added later", "LBFGS", "closures"),
    ),
    Feature(
        "hooks of backward passes",
        "`register_full_backward_hook`, which changes a gradient",
        _model(("self.out.register_full_backward_hook(lambda module, given, out: (given[0] * 0.5,))",), ()),
        (DDP, VIRTUAL),
        without=("gradient penalty", "compiled model"),
    ),
    Feature(
        "frozen statistics",
        "a `BatchNorm1d` that is kept in `eval()` while its weights are trained",
        _model(
            ("self.still = nn.BatchNorm1d(8)", "self.still.running_mean.fill_(0.1)"),
            ("self.still.eval()", "h = h + 0.1 * self.still(h)"),
        ),
        (DDP, VIRTUAL),
    ),
    Feature(
        "reentrant checkpointing",
        "`checkpoint(..., use_reentrant=True)`",
        _model(
            ("self.deep = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))",),
            ("h = h + checkpoint_passes(self.deep, h, use_reentrant=True)",),
        ),
        (VIRTUAL,),
        without=("gradient penalty",),
    ),
)

# --- data that is not divided by our sampler, drawn after all of the above --------------------------------------------

_BY_HAND_STEPS = """
class Place:
    def __init__(self, data, global_batch_size, **_):
        self.data, self.epoch, self.done = data, 0, 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]

    def set_epoch(self, epoch):
        pass

    def is_over(self):
        return False

    def read(self, number):
        first = GLOBAL_BATCH * number + dist.get_rank()
        items = range(first, GLOBAL_BATCH * (number + 1), dist.get_world_size())
        return default_collate([self.data[item % SAMPLES] for item in items])


def find_steps(loader):
    for item, x, y in loader:
        part = types.SimpleNamespace(samples=len(item), batch=GLOBAL_BATCH, scale=1.0, ends_step=True)
        part.sync = lambda _: contextlib.nullcontext()
        yield part, (item, x, y)
"""
_STREAMED = """
class Stream(IterableDataset):
    def __init__(self, place):
        self.place = place

    def __iter__(self):
        worker = get_worker_info()
        first, each = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(self.place.read, itertools.count(self.place.done + first, each))


class Reader:
    def __init__(self, data, batch_sampler, **options):
        self.place = batch_sampler
        self.loader = DataLoader(Stream(batch_sampler), batch_size=None, **options)

    def __iter__(self):
        for batch in self.loader:
            self.place.done += 1
            yield batch
"""
_STATEFUL = """
class Stateful(Place):
    def __iter__(self):
        while True:
            self.done += 1
            yield self.read(self.done - 1)


def Reader(data, batch_sampler, **_):
    return batch_sampler
"""
_DIVIDED = """
class Divided(DistributedSampler):
    def __init__(self, data, global_batch_size, **_):
        super().__init__(data, drop_last=True)
        self.done, self.share = 0, global_batch_size // self.num_replicas

    def __iter__(self):
        return iter(list(super().__iter__())[self.done * self.share :])

    def state_dict(self):
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state):
        self.epoch, self.done = state["epoch"], state["done"]

    def set_epoch(self, epoch):
        self.epoch, self.done = epoch, 0

    def is_over(self):
        return self.done == SAMPLES // GLOBAL_BATCH


class Reader:
    def __init__(self, data, batch_sampler, **options):
        self.place = batch_sampler
        self.loader = DataLoader(
            data, sampler=batch_sampler, batch_size=batch_sampler.share, drop_last=True, **options
        )

    def __iter__(self):
        for batch in self.loader:
            self.place.done += 1
            yield batch
"""


def _read(text: str, sampler: str) -> Callable[[Lines], None]:
    def add(lines: Lines) -> None:
        lines.prepare += (_BY_HAND_STEPS, text)
        lines.sampler_class, lines.loader_class, lines.steps = sampler, "Reader", "find_steps(loader)"

    return add


def _join(lines: Lines) -> None:
    lines.start.append("joined = Join([model]); joined.__enter__()")
    lines.left.append("joined.__exit__(None, None, None)")


_OURS = ("accumulated gradients", "a loader with a thread", "a sampler of its own")
_ENDLESS = (*_OURS, "evaluation", "functions of a loader", "joined datasets", "evaluation of other weights")
STREAM = Feature(
    "streams",
    "an endless `IterableDataset`, also with workers; an object with its position is the session's sampler",
    _read(_STREAMED, "Place"),
    (DDP, FSDP),
    without=(*_ENDLESS, "persistent workers"),  # whose copies of the dataset stay in the world that they began in
)
STATEFUL = Feature(
    "stateful loaders",
    "an object that gives batches and has a `state_dict`",
    _read(_STATEFUL, "Stateful"),
    (DDP, FSDP),
    without=(*_ENDLESS, "loader workers", "persistent workers", "prefetching"),
)
DIVIDED = Feature(
    "DistributedSampler",
    "torch's, which a script makes in each world and lets leave out what was done",
    _read(_DIVIDED, "Divided"),
    (DDP, FSDP),
    (RESTART,),  # it divides the data over the ranks of the world in which it is made
    without=_OURS,
)
JOIN = Feature(
    "Join",
    "torch's, around the loop",
    _join,
    (DDP,),
    (RESTART,),
    without=(*_ONCE, "evaluation", "evaluation of other weights", "hooks of DDP", "adversaries in turn", "closures"),
)

# --- what most loops have, drawn after all of the above ---------------------------------------------------------------


def _scaler_off(lines: Lines) -> None:
    lines.extras["scaler"] = "torch.amp.GradScaler('cpu', enabled=False)"
    lines.scaler = True


_SINK = "for group in optimizer.param_groups: group['lr'] *= 0.97"


def _sink(lines: Lines) -> None:
    lines.slow = True
    lines.inputs.append(_SINK)


def _seed(lines: Lines) -> None:
    lines.inputs += (
        "torch.manual_seed(net.at); random.seed(net.at); np.random.seed(net.at)",
        "x = x + 0.01 * (torch.randn(6) + random.random() + float(np.random.rand()))",
    )


_COUNTED = """
class Counted:
    def __init__(self):
        self.steps = 0

    def note(self, *_):
        self.steps += 1

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def halve(one, *_):
    for group in one.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


def watch(one):
    if not hasattr(one, "is_watched"):
        one.is_watched = True
        one.register_step_pre_hook(halve)
        one.register_step_post_hook(counted.note)
"""


def _hook_optimizer(lines: Lines) -> None:
    lines.prepare.append(_COUNTED)
    lines.extras["counted"] = "Counted()"
    lines.start.append("watch(optimizer)")


_INFER = """
def infer():
    net.eval()
    with torch.inference_mode():
        model(torch.ones(2, 6), torch.arange(2))
    net.train()
"""
_CHATTER = """
def chatter():
    while not quiet.wait(0.02):
        print("alive:", len(threading.enumerate()), "threads", flush=True)
        logging.getLogger("chatter").warning("still alive")


quiet = threading.Event()
threading.Thread(target=chatter, daemon=True).start()
atexit.register(quiet.set)
"""
_LATER_WAIT = """\
total, those = torch.ones(1), [torch.zeros(2) for _ in range(dist.get_world_size())]
works = [dist.all_reduce(total, async_op=True), dist.all_gather(those, torch.ones(2), async_op=True)]
for work in works:
    work.wait()
assert total == len(those) == sum(float(one[0]) for one in those)"""
_JUDGED = (
    "judged = [None] * dist.get_world_size(); dist.all_gather_object(judged, dist.get_rank()); "
    "assert judged == list(range(len(judged)))"
)

SCALER_OFF = Feature(
    "a GradScaler that is off", "`enabled=False`", _scaler_off, (DDP, VIRTUAL), without=("LBFGS", "GradScaler")
)
OFFLOADED = Feature(
    "offloaded activations",
    "`torch.autograd.graph.save_on_cpu`",
    _model(
        ("self.offloaded = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))",),
        ("with torch.autograd.graph.save_on_cpu():", "    h = h + 0.1 * self.offloaded(h)"),
    ),
    without=("gradient penalty",),
)
SINKING = Feature(
    "rates that sink",
    "`group['lr']` is multiplied in each step, before the pass",
    _sink,
    (DDP, FSDP),
    without=(
        *_ONCE,
        *(one.name for one in SCHEDULERS),
        "ReduceLROnPlateau of a validation",
        "rates set by hand",
        "closures",
    ),
)
HABITUAL = (
    SINKING,
    Feature(
        "seeds of each step",
        "the generators of torch, Python and NumPy are seeded with its number, and drawn from",
        _seed,
        (DDP, FSDP),
        without=("random numbers", "noise of the process"),
    ),
    Feature(
        "hooks of optimizers",
        "of its `step`, before (changes gradients) and after (counts)",
        _hook_optimizer,
        without=("ZeroRedundancyOptimizer",),
    ),
)
INFERENCE = Feature(
    "inference mode",
    "a pass in `torch.inference_mode()` after each epoch",
    _prepare(_INFER, epoch="infer()"),
    (DDP, VIRTUAL),
)
TOGETHER = (
    Feature("collectives that are waited for later", "`async_op=True`", _inside(_LATER_WAIT)),
    Feature(
        "objects of an evaluation",
        "`all_gather_object` after each epoch",
        lambda lines: lines.epoch.append(_JUDGED),
    ),
)
ALONE = (
    Feature(
        "handlers that exit",
        "`sys.exit(0)` at SIGTERM",
        _prepare("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"),
        without=("signal handlers",),
    ),
    Feature("a thread that talks", "to standard output and a log, all the time", _prepare(_CHATTER)),
)
EVERYDAY = (SCALER_OFF, OFFLOADED, *HABITUAL, INFERENCE, *TOGETHER, *ALONE)
MODELS_SAVED = Feature(
    "whole models",
    "`torch.save` of the model itself",
    _checkpoint("models"),
    (DDP, VIRTUAL),
    without=(  # what Python or torch cannot pickle
        "hooks",
        "hooks of backward passes",
        "weight norm",
        "spectral norm",
        "adapters of low rank",
        "compiled model",
    ),
)
LENIENT = Feature(
    "lenient loading", "`load_state_dict(strict=False)`, with a key too many", _checkpoint("lenient"), (DDP, VIRTUAL)
)


def _zero_first(lines: Lines) -> None:
    lines.zeroes_first = True
    lines.inputs.insert(0, "for one in optimizers.values(): one.zero_grad()")


FIRST = Feature(
    "gradients dropped first",
    "`zero_grad()` before the pass, so that they are there between two steps",
    _zero_first,
    (DDP, FSDP),
    without=(
        *_ONCE,
        "adversaries in turn",
        "closures",
        "gradients kept as zeros",
        "groups that are added later",
        "two backward passes",
    ),
)

GROUPS = {
    "parameters and buffers": MODELS,
    "layers": (*LAYERS, FOLLOWER, LATER, QUEUE, *REPOSITORIES[-2:], OFFLOADED),
    "optimizers": (*OPTIMIZERS, TWO, GROUPED, ADDED, ZERO),
    "schedulers": (*SCHEDULERS, VALIDATED),
    "around the step": (*AROUND, SCALER_OFF),
    "losses and gradients": (*LOSSES, TWICE, NOISE, POLICY, CLOSURES, *REPOSITORIES[:-2], *HABITUAL, FIRST),
    "data": (*DATA, *LOADERS, *SOURCES, STREAM, STATEFUL, DIVIDED, INFERENCE),
    "options of DDP, and compilation": (*WRAPS, COMPILE),
    "checkpoints": (*CHECKPOINTS, NEWEST, LINKED, ARRAYS, ASYNC, MODELS_SAVED, LENIENT),
    "habits": HABITS,
    "between ranks": (*MESSAGES, HOOKED, BY_HAND, JOIN, *TOGETHER),
    "in a process": (*PROCESS, *TRAITS, AGAIN, *ALONE),
}
FEATURES = tuple(one for group in GROUPS.values() for one in group)
_ENGINES = {DDP: "DDP", VIRTUAL: "virtual ranks", FSDP: "FSDP2"}


def find_session_engines(one: Feature) -> tuple[str, ...]:
    """With what a session has this feature. A scheduler is bound to an optimizer, and a sharded one to its world."""
    if SESSION not in one.forms:
        return ()
    return tuple(engine for engine in one.engines if engine != FSDP or one not in SCHEDULERS)


def describe() -> str:
    """The features as a table of the documentation."""
    rows = ["| in a script | | in restarts with | in sessions with |", "|---|---|---|---|"]
    for name, group in GROUPS.items():
        for column in dict.fromkeys(map(_find_column, group)):
            those = "; ".join(f"{one.name} ({one.says})" for one in group if _find_column(one) == column)
            cells = (", ".join(_ENGINES[engine] for engine in engines) or "–" for engines in column)
            rows.append(f"| {name} | {those} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _find_column(one: Feature) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return one.engines, find_session_engines(one)
