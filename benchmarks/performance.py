"""The tables of docs/performance.md, each by the name of its block. Pure data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.scoreboard.page import Goal as BoardGoal
from benchmarks.tables import Column, Goal, Row, Table

_AGENTS: Final = (100, 1000, 5000, 10_000)
_MOST: Final = f"{_AGENTS[-1]:,}"
_CONTROLPLANE: Final = "python -m benchmarks.controlplane --fleet 1000x10 --keep"
_SESSIONS: Final = "python -m benchmarks.sessions --keep"
_ROUND: Final = "lose a member and form the next world"
_SNAPSHOT: Final = Goal(0.002, at="training waits")  # 2 % of a step of 100 ms
_STEP: Final = Goal(5e-5, "more", at="more than plain")

_HUB: Final = Table(
    "hub",
    "python -m benchmarks.hub --agents 100 1000 5000 10000 --repeats 1 --keep",
    [Column(f"{agents:,}", f"{agents} agents, TLS: {{}}", "both") for agents in _AGENTS],
    [
        Row("connect, to the last welcome", "connect, until the last welcome"),
        Row("connect, CPU"),
        Row("form a world, to the last agent", "form a world, until the last agent", Goal(1.0, at=_MOST)),
        Row("form a world, CPU"),
        Row(f"{_ROUND}, to the last agent", f"{_ROUND}, until the last agent"),
        Row(f"{_ROUND}, CPU"),
        Row("heartbeats, CPU per second", "heartbeats, share of a core", Goal(0.1, at=_MOST), is_share=True),
        Row("memory of an agent"),
        Row("memory of an agent after two worlds", "", Goal(60 * 1024, at=_MOST)),
        Row("the hub restarts, until all agents are back", "", Goal(5.0, at=_MOST)),
        Row("the hub restarts, most attempts a second"),
    ],
)
_CHURN: Final = Table(
    "hub-churn",
    "python -m benchmarks.hub --churn 300 --keep",
    [Column("measured", "*: {}")],
    [
        Row("a regroup, median", "a regroup of the large world, median"),
        Row("a regroup, 99 %", "a regroup of the large world, 99 %", Goal(1.0)),
        Row("a regroup, longest", "a regroup of the large world, longest"),
        Row("regroups", "regroups of the large world"),
        Row("a regroup of ten, median"),
        Row("a regroup of ten, 99 %", "", Goal(1.0)),
        Row("CPU of the hub per second", "the hub, share of a core", is_share=True),
        Row("CPU of the agents' side per second", "the agents' side, share of a core", is_share=True),
    ],
    others=True,
)
_SHAPES: Final = Table(
    "controlplane",
    _CONTROLPLANE,
    [
        Column(f"{jobs:,} x {pods:,}", f"{jobs} x {pods}: {{}}", "both")
        for jobs, pods in ((1, 8), (1, 100), (100, 5), (1000, 1), (1, 1000))
    ],
    [
        Row("create to all pods exist", "until all pods exist", Goal(1.0, "ratio")),
        Row("pods created a second"),
        Row("one pod lost to replaced", "until a lost pod is replaced"),
        Row("delete to all pods gone", "until all pods of deleted jobs are gone", Goal(1.0, "ratio")),
        Row("controller CPU", "CPU of the controller, the whole life"),
        Row("writes in a job's life", "writes in the life of a job"),
        Row("controller memory", "memory of the controller"),
    ],
)
_FLEET: Final = Table(
    "controlplane",
    _CONTROLPLANE,
    [Column("measured", "* at rest: {}")],
    [
        Row("operator memory after making them", "", Goal(150 * 2**20)),
        Row("operator memory after a start", "", Goal(150 * 2**20)),
        Row("operator CPU per second", "the operator at rest, share of a core", Goal(0.01), is_share=True),
    ],
    others=True,
)
_FLEET_START: Final = Table(
    "controlplane",
    _CONTROLPLANE,
    [
        Column("elapsed", "* x *: start until {}"),
        Column("CPU of the operator", "* x *: start until {}, CPU"),
        Column("CPU of API server and etcd", "* x *: start until {}, CPU of API server and etcd"),
    ],
    [
        Row("imports"),
        Row("connected"),
        Row("jobs"),
        Row("pods and all other objects"),
        Row("leads"),
        Row("first pass", "", Goal(3.0, at="elapsed")),
        Row("every job", "every job had a pass", Goal(4.0, at="elapsed")),
    ],
)
_FLEET_LISTS: Final = Table(
    "controlplane",
    _CONTROLPLANE,
    [
        Column("size", "* x *: list of {} without an operator, size"),
        Column("pages", "* x *: list of {} without an operator, pages"),
        Column("elapsed", "* x *: list of {} without an operator"),
        Column("CPU of API server and etcd", "* x *: list of {} without an operator, CPU of API server and etcd"),
    ],
    others=True,
)
_COLLECTIVES: Final = Table(
    "collectives",
    "python -m benchmarks.collectives --keep",
    [
        Column("gloo", "{}, 2 ranks [gloo]"),
        Column("TCP ring", "{}, 2 ranks [gloo]", "peer"),
        Column("gloo / TCP ring", "{}, 2 ranks [gloo]", "ratio"),
        Column("ElasticJob", "{}, 2 ranks [elasticjob]"),
        Column("ElasticJob / torch", "{}, 2 ranks [elasticjob]", "ratio"),
    ],
    [
        *(Row(f"all_reduce {size}") for size in ("1 KiB", "256 KiB", "16 MiB", "256 MiB")),
        *(Row(f"all_gather {size}") for size in ("256 KiB", "256 MiB")),
        Row("all_gather_new 256 MiB", "all_gather without `out=` 256 MiB"),
        Row("reduce_scatter 256 MiB"),
        Row("broadcast 256 MiB"),
    ],
)
_RUNTIME: Final = Table(
    "runtime",
    "python -m benchmarks.runtime --keep",
    [
        Column("ElasticJob"),
        Column("peer", show="name"),
        Column("of the peer", show="peer"),
        Column("ratio", show="ratio"),
    ],
    [
        Row("import torch; import elasticjob"),
        Row(
            "import torch; import elasticjob; elasticjob.init, elasticjob.report, elasticjob.all_reduce",
            "the same, and the library's functions",
        ),
    ],
    others=True,
)
_STEPS: Final = Table(
    "sessions",
    _SESSIONS,
    [
        Column("a step in a session", "{}: a step"),
        Column("plain", "{}: a step", "peer"),
        Column("more than plain", "{}: a step", "more"),
        Column("more CPU of the main thread", "{}: a step, CPU of the main thread", "more"),
        Column("more CPU of all threads", "{}: a step, CPU of all threads", "more"),
    ],
    [Row("DDP, 2 ranks", "", _STEP)],
    others=True,
)
_REGROUPS: Final = Table(
    "sessions",
    _SESSIONS,
    [
        Column("threads", "{}: threads of a rank"),
        Column("open files", "{}: open files of a rank"),
        Column("sockets", "{}: sockets of a rank"),
        Column("memory", "{}: memory of a rank"),
        Column("a regroup", "{}: a regroup and a step"),
    ],
    others=True,
)
_SNAPSHOTS: Final = Table(
    "snapshots",
    "python -m benchmarks.snapshots --keep",
    [
        Column("training waits", "{}: training waits"),
        Column("until complete", "{}: until complete"),
        Column("plain copy", "{}: until complete", "peer"),
        Column("`torch.save` to `/dev/shm`", "{}: training waits", "peer"),
    ],
    [Row(f"{size} MiB", "", _SNAPSHOT) for size in (10, 100, 500)],
)
_DEMO: Final = Table(
    "demo",
    "python -m benchmarks.demo --keep",
    [Column("`make demo`", "digits: {}"), Column("`make demo-session`", "digits-session: {}")],
    [
        Row("start", "from `apply` to the first step", Goal(3.0)),
        Row("scale-up, to the first step", "from `scale` to the first step of the larger world", Goal(2.0)),
        Row("scale-up, pause", "pause of the others meanwhile"),
        Row("worker-0-killed", "SIGKILL of the pod of rank 0, until training continues"),
        Row("scale-down, pause", "pause of a scale-down"),
        Row("operator-restarted", "the operator is killed and, a second later, started, until it is back"),
        Row("steps repeated at most"),
    ],
)
_DEMO_START: Final = Table(
    "demo",
    "python -m benchmarks.demo --keep",
    [
        Column("`make demo`: start", "digits: start, {}"),
        Column("scale-up", "digits: scale-up, {}"),
        Column("`make demo-session`: start", "digits-session: start, {}"),
        Column("scale-up", "digits-session: scale-up, {}"),
    ],
    [
        Row("pod", "the pod is created and its process starts"),
        Row("torch", "torch and the agent are imported"),
        Row("optimizers", "what optimizers need is imported"),
        Row("imports", "the script's imports"),
        Row("world", "the world is formed and the script starts"),
        Row("firstStep", "the first step of every rank"),
    ],
)
_COMMANDS: Final = Table(
    "commands",
    "python -m benchmarks.commands --keep",
    [
        Column("elapsed"),
        Column("CPU of the command", "{}, CPU"),
        Column("compared with", show="name"),
        Column("elapsed there", show="peer"),
        Column("CPU of API server and etcd", "{}, CPU of API server and etcd"),
    ],
    [
        Row("elasticjob-run --help"),
        Row("kubectl elasticjob --help"),
        Row("kubectl elasticjob list, 1000 jobs", "`kubectl elasticjob list`, 1,000 jobs"),
    ],
)
_INSTRUCTIONS: Final = Table(
    "instructions",
    "python -m benchmarks.instructions --keep",
    [Column("instructions")],
    others=True,
)

TABLES: Final[Mapping[str, Table]] = {
    "controlplane": _SHAPES,
    "fleet": _FLEET,
    "fleet start": _FLEET_START,
    "fleet lists": _FLEET_LISTS,
    "hub": _HUB,
    "hub churn": _CHURN,
    "collectives": _COLLECTIVES,
    "runtime": _RUNTIME,
    "sessions": _STEPS,
    "session regroups": _REGROUPS,
    "snapshots": _SNAPSHOTS,
    "demo": _DEMO,
    "demo phases": _DEMO_START,
    "commands": _COMMANDS,
    "instructions": _INSTRUCTIONS,
}


_SESSION, _MEMORY, _TORCHRUN, _RUN = (
    f"ElasticJob: {name}"
    for name in ("session", "elasticjob-run, snapshots in memory", "torchrun", "elasticjob-run, warm")
)
_ANNOUNCED = ("grow 2 to 3: pause", "shrink 3 to 2, announced: pause", "SIGTERM: pause")
_KILLS = ("SIGKILL follower: pause", "SIGKILL rank 0: pause", "SIGKILL outside a collective: pause")
_RARE, _OFTEN = ("goodput, one kill in 60 s",), ("goodput, one kill in 20 s",)
_EVENT_GOALS: Final = (
    BoardGoal(("start 2 below max: recovery",), (_SESSION, _TORCHRUN, _RUN), 3.0),
    BoardGoal((*_ANNOUNCED, *_KILLS), (_TORCHRUN, _RUN), 0.7),
    BoardGoal(_ANNOUNCED, (_SESSION,), 0.5),
    BoardGoal(_KILLS, (_SESSION,), 0.1),
)
_GOODPUT_GOALS: Final = (
    BoardGoal(_RARE, (_SESSION,), 0.99),
    BoardGoal(_RARE, (_MEMORY,), 0.985),
    BoardGoal(_RARE, (_TORCHRUN, _RUN), 0.975),
    BoardGoal(_OFTEN, (_SESSION,), 0.985),
    BoardGoal(_OFTEN, (_MEMORY,), 0.965),
    BoardGoal(_OFTEN, (_TORCHRUN, _RUN), 0.94),
)


@dataclass(frozen=True)
class BoardTable:
    """A run of the scoreboard: the command that makes its file, and whether it is shown as one table, with goals."""

    command: str
    as_matrix: bool = False
    goals: Sequence[BoardGoal] = ()


_SCOREBOARD: Final = "python -m benchmarks.scoreboard"
_EVENTS: Final = (
    "--only events --repeats 2 --budget 3300"
    " --systems session run torchrun external torchft nvrx dlrover lmresiliency defaults ray"
)
_GOODPUT: Final = "--only goodput --minutes 10 --systems session memory torchrun run external"
BOARDS: Final[Mapping[str, BoardTable]] = {
    "scoreboard": BoardTable(f"{_SCOREBOARD} --quick --keep"),
    "scoreboard-events": BoardTable(f"{_SCOREBOARD} {_EVENTS} --keep", as_matrix=True, goals=_EVENT_GOALS),
    "scoreboard-goodput": BoardTable(f"{_SCOREBOARD} {_GOODPUT} --keep", as_matrix=True, goals=_GOODPUT_GOALS),
}
