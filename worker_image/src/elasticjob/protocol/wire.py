"""The messages between agent and hub, version 1, from the agent's side (`docs/protocol.md`).

Received messages are checked field by field and frozen: a message is either valid or a `WireError`. Unknown fields are
ignored, so a newer hub may send more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from elasticjob.protocol import fields
from elasticjob.protocol.preflight import Preflight, Probe, parse_probe

PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 * 1024
MAX_HUB_MESSAGE_BYTES: Final = 16 * 1024 * 1024  # an older hub lists all members: 70 KiB for a thousand
MAX_MEMBERS: Final = 1_000_000
MAX_NAME: Final = 253  # this and the next three are in bytes, of which a character of a text may have several
MAX_TEXT: Final = 4096
MAX_TRACEBACK: Final = 16384
MAX_DIAGNOSIS: Final = 40 * 1024
MAX_METRICS: Final = 32
MAX_SHARDS: Final = 2048
MAX_SIGNS: Final = 16
MAX_LINE: Final = 256
MAX_CODES: Final = 4
MAX_DEVICES: Final = 16
MAX_DEVICE: Final = 96  # bytes

STARTING: Final = "starting"
READY: Final = "ready"
RUNNING: Final = "running"
STOPPING: Final = "stopping"
LEAVING: Final = "leaving"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"

# Kinds of failures.
HANG: Final = "hang"
RESTART: Final = "restart"
HUNG: Final = "hung"  # the reason of a regroup before which all agents send their stacks

WireError = fields.WireError


@dataclass(frozen=True)
class Store:
    address: str
    port: int


@dataclass(frozen=True)
class Code:
    """A later revision of the job's code."""

    revision: int
    digest: str = ""  # of what is mounted; "": what the pod was created with


@dataclass(frozen=True)
class World:
    generation: int
    rank: int
    nprocs: tuple[int, ...]  # worker processes of each member, in rank order
    store: Store
    restarts: int = 0
    repeats: int = 0  # how many of them in a row were the same error; 0 for the first one
    before: int | None = None  # restore only checkpoints of earlier steps
    code: Code | None = None  # what the workers run; None: what the pod was created with


@dataclass(frozen=True)
class Regroup:
    generation: int
    reason: str
    checkpoint: bool = False
    grace_seconds: float = 30.0
    fresh: bool = False  # end the workers, also those that keep their memory
    code: Code | None = None  # what those run that start before the next world exists


@dataclass(frozen=True)
class Stop:
    reason: str
    ok: bool = True
    checkpoint: bool = False
    grace_seconds: float = 30.0


Directive = World | Regroup | Stop | Probe


@dataclass(frozen=True)
class Welcome:
    heartbeat_seconds: float
    timeout_seconds: float
    in_process: bool = False  # the other members run sessions
    training: bool = False  # other members are training, and will stop for a joiner
    probes: bool = False  # the hub sends `probe` to an agent whose state has a `preflight`
    peer_key: str = ""  # by which the agents of the job know each other, if this one asked for it
    reconnect_seconds: float = 0.0  # over which all agents of the hub spread their attempts after they lost it


@dataclass(frozen=True)
class Refusal:
    """The hub's `error` message: retrying does not help."""

    code: str
    message: str


@dataclass(frozen=True)
class Failure:
    """The first worker that failed in a generation, as far as known."""

    generation: int = 0
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    message: str | None = None
    traceback: str | None = None
    kind: str | None = None  # HANG: no process failed but no step is made; RESTART: its session had to begin again
    waits: bool | None = None  # in a hang: whether this rank waits for other ranks
    stalled_seconds: float | None = None  # in a hang: since the last step
    collectives: int | None = None  # in a hang: that this rank has entered

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(
            generation=self.generation,
            rank=self.rank,
            localRank=self.local_rank,
            exitCode=self.exit_code,
            signal=self.signal,
            message=self.message and fields.fit(self.message, MAX_TEXT),
            traceback=self.traceback and fields.fit_lines(self.traceback, MAX_TRACEBACK),
            kind=self.kind,
            waits=self.waits,
            stalledSeconds=self.stalled_seconds,
            collectives=self.collectives,
        )


@dataclass(frozen=True)
class Archived:
    """One save in the archive of the job."""

    step: int | None  # None: the script reports none
    time: str  # by the clock of the pod that archived it
    bytes: int
    files: int

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(**asdict(self))


@dataclass(frozen=True)
class Archive:
    """What rank 0's agent knows of the archive of the job."""

    saves: tuple[Archived, ...] = ()  # newest first
    reason: str = ""  # of a problem, for the condition
    message: str = ""

    def dump(self) -> dict[str, Any]:
        saves = [one.dump() for one in self.saves]
        return fields.drop_none(saves=saves, reason=self.reason or None, message=self.message or None)


@dataclass(frozen=True)
class Checkpoint:
    """The last checkpoint of which other pods hold copies, as this agent knows it."""

    number: int = 0  # 0: there is none
    copies: int = 0  # other pods that hold it
    restoring: bool = False  # the agent gets it before it starts its workers in an announced world
    archive: Archive | None = None  # of a job with `spec.checkpoints.archive`
    unfit: str = ""  # a name in a save that this pod cannot have, and why
    unfinished: str = ""  # a file that is not copied: it or one beside it is always being written

    def dump(self) -> dict[str, Any]:
        archive = None if self.archive is None else self.archive.dump()
        return fields.drop_none(
            number=self.number,
            copies=self.copies,
            restoring=self.restoring,
            archive=archive,
            unfit=fields.fit(self.unfit, MAX_TEXT) if self.unfit else None,
            unfinished=fields.fit(self.unfinished, MAX_TEXT) if self.unfinished else None,
        )


@dataclass(frozen=True)
class Sign:
    """The first line of a rank in a world that a rule of the job looks for."""

    rule: str
    generation: int = 0
    rank: int = 0
    step: int | None = None  # the last one that its pod had reported
    line: str = ""

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(
            rule=fields.fit(self.rule, MAX_NAME),
            generation=self.generation,
            rank=self.rank,
            step=self.step,
            line=fields.fit(self.line, MAX_LINE),
        )


@dataclass(frozen=True)
class AgentState:
    """The complete state that an agent reports."""

    phase: str = STARTING
    generation: int = 0
    store: Store | None = None
    nproc: int = 1
    address: str | None = None
    in_process: bool = False
    step: int | None = None
    failure: Failure | None = None
    unsaved: Failure | None = None  # a worker that ended with an error while it was asked to save
    blocked: bool = False  # all workers wait (`running`), or are blocked in a collective (`stopping`)
    quiet: int = 0  # the generation in which its workers neither compute nor communicate
    beside: int = 0  # the generation in which nothing goes on but something beside their main threads
    checkpoint: Checkpoint | None = None  # of a job with `spec.checkpoints`
    preflight: Preflight | None = None  # of a job with `health.preflight: Network`
    watches: str = ""  # a digest of the expressions that it looks for in the output of its workers
    signs: tuple[Sign, ...] = ()  # what it has found in this world
    codes: tuple[str, ...] = ()  # digests of the later revisions of the code that it has
    devices: tuple[str, ...] = ()  # of its workers, by local rank, as far as they have said; "" if one has not
    shards: tuple[int, ...] = ()  # with `ready`: of a model that its workers have in memory, if others lack them

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(
            phase=self.phase,
            generation=self.generation,
            store=None if self.store is None else {"address": self.store.address, "port": self.store.port},
            nproc=self.nproc,
            address=self.address,
            inProcess=self.in_process,
            step=self.step,
            failure=None if self.failure is None else self.failure.dump(),
            unsaved=None if self.unsaved is None else self.unsaved.dump(),
            blocked=self.blocked or None,
            quiet=self.quiet or None,
            beside=self.beside or None,
            checkpoint=None if self.checkpoint is None else self.checkpoint.dump(),
            preflight=None if self.preflight is None else self.preflight.dump(),
            watches=self.watches or None,
            signs=[sign.dump() for sign in self.signs[:MAX_SIGNS]] or None,
            codes=list(self.codes[:MAX_CODES]) or None,
            devices=[fields.fit(name, MAX_DEVICE) for name in self.devices[:MAX_DEVICES]] or None,
            shards=list(self.shards[:MAX_SHARDS]) or None,
        )


@dataclass(frozen=True)
class Progress:
    """The progress of the script; the latest report counts."""

    generation: int = 0
    rank: int = 0
    step: int | None = None
    total_steps: int | None = None
    step_seconds: float | None = None
    checkpoint_seconds: float | None = None  # that its steps have waited for saves, since the process started
    own_seconds: float | None = None  # of a step of this pod's slowest rank, without waiting for other ranks
    slowest_rank: int | None = None
    batch_size: int | None = None  # samples of a step of the optimizer, if the script lets the batch grow; then also:
    batch_seconds: float | None = None  # of a step of the optimizer
    noise_scale: float | None = None  # in samples: the batch in whose gradient the noise is as strong as the signal
    state_bytes: int | None = None  # the most that one rank of a session received when this world was entered
    state_seconds: float | None = None  # what that took
    samples_per_second: float | None = None  # of all ranks, if the script counts them; as the next
    tokens_per_second: float | None = None
    mfu: float | None = None  # model FLOPs utilization: a share
    checkpoint_ages: dict[str, float] = field(default_factory=dict)  # of the last finished ones, in seconds, by tier
    metrics: dict[str, float] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)  # metrics that are NaN or infinite
    not_finite_at: dict[str, int] = field(default_factory=dict)  # at which rank of the pod, if not at `rank`

    def dump(self) -> dict[str, Any]:
        return fields.drop_none(
            generation=self.generation,
            rank=self.rank,
            step=self.step,
            totalSteps=self.total_steps,
            stepSeconds=self.step_seconds,
            checkpointSeconds=self.checkpoint_seconds,
            ownSeconds=self.own_seconds,
            slowestRank=self.slowest_rank,
            batchSize=self.batch_size,
            batchSeconds=self.batch_seconds,
            noiseScale=self.noise_scale,
            stateBytes=self.state_bytes,
            stateSeconds=self.state_seconds,
            samplesPerSecond=self.samples_per_second,
            tokensPerSecond=self.tokens_per_second,
            mfu=self.mfu,
            checkpointAges=self.checkpoint_ages or None,
            metrics={fields.fit(name, MAX_NAME): value for name, value in list(self.metrics.items())[:MAX_METRICS]},
            notFinite=[fields.fit(name, MAX_NAME) for name in self.not_finite[:MAX_METRICS]] or None,
            notFiniteAt={fields.fit(name, MAX_NAME): r for name, r in list(self.not_finite_at.items())[:MAX_METRICS]}
            or None,
        )


def hello(agent: str, runtime: dict[str, str], state: AgentState, *, peers: bool = False) -> str:
    """`peers`: ask for the key by which the agents of the job know each other."""
    return _encode("hello", agent=agent, runtime=runtime, sizes=True, peers=peers, state=state.dump())


def state(value: AgentState) -> str:
    return _encode("state", state=value.dump())


def progress(value: Progress) -> str:
    return _encode("progress", **value.dump())


def diagnosis(generation: int, kind: str, text: str) -> str:
    return _encode("diagnosis", generation=generation, kind=kind, text=fields.fit(text, MAX_DIAGNOSIS))


def _encode(type_: str, **values: Any) -> str:
    return json.dumps(fields.clean({"v": PROTOCOL_VERSION, "type": type_, **values}), ensure_ascii=False)


def parse(text: str | bytes) -> Welcome | Directive | Refusal:
    """Parse a message from the hub. Raises `WireError` if it is invalid."""
    try:
        message = json.loads(text)
    except ValueError as broken:
        raise WireError(f"the hub sent no JSON: {broken}") from None
    if not isinstance(message, dict) or message.get("v") != PROTOCOL_VERSION:
        raise WireError("the hub speaks another version; use a runtime of the operator's version")
    kind = message.get("type")
    if kind == "welcome":
        heartbeat, timeout = (fields.read_number(message, name) for name in ("heartbeatSeconds", "timeoutSeconds"))
        in_process, training, probes = (message.get(name) is True for name in ("inProcess", "training", "probes"))
        reconnect = fields.read_number(message, "reconnectSeconds", 0.0)
        return Welcome(heartbeat, timeout, in_process, training, probes, str(message.get("peerKey", "")), reconnect)
    if kind == "error":
        return Refusal(fields.read_text(message, "code"), fields.read_text(message, "message"))
    if kind == "directive":
        directive = message.get("directive")
        if isinstance(directive, dict):
            return _parse_directive(directive)
    raise WireError(f"the hub sent a message of unknown type {kind!r}")


def _parse_directive(value: dict[str, Any]) -> Directive:
    action = value.get("action")
    if action == "world":
        return _parse_world(value)
    if action == "probe":
        return parse_probe(value)
    checkpoint = value.get("checkpoint", False) is True
    grace = fields.read_number(value, "graceSeconds", 30.0)
    if action == "regroup":
        generation, reason = fields.read_count(value, "generation"), fields.read_text(value, "reason")
        fresh, code = value.get("fresh") is True, _parse_code(value.get("code"))
        return Regroup(generation, reason, checkpoint, grace, fresh, code)
    if action == "stop":
        return Stop(fields.read_text(value, "reason"), value.get("ok", True) is True, checkpoint, grace)
    raise WireError(f"the hub sent a directive with unknown action {action!r}")


def _parse_world(value: dict[str, Any]) -> World:
    raw_store, rank = value.get("store"), fields.read_count(value, "rank")
    nprocs = _parse_sizes(value["sizes"]) if "sizes" in value else _parse_members(value.get("members"))
    if rank >= len(nprocs):
        raise WireError("the rank is not in the world")
    if not isinstance(raw_store, dict):
        raise WireError("a world needs a store")
    store = Store(fields.read_text(raw_store, "address"), fields.read_count(raw_store, "port"))
    generation, restarts = fields.read_count(value, "generation"), fields.read_count(value, "restarts", 0)
    repeats = fields.read_count(value, "repeats", 0)
    before = fields.read_count(value, "before") if "before" in value else None
    return World(generation, rank, nprocs, store, restarts, repeats, before, _parse_code(value.get("code")))


def _parse_code(value: Any) -> Code | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError("code is no object")
    return Code(fields.read_count(value, "revision"), fields.read_text({"digest": "", **value}, "digest"))


def _parse_sizes(value: Any) -> tuple[int, ...]:
    """[[members, processes of each], ...]: the compact form, from a hub that knows that this agent supports it."""
    nprocs: list[int] = []
    for run in value if isinstance(value, list) else [None]:
        if not isinstance(run, list) or len(run) != 2 or not all(isinstance(n, int) and n > 0 for n in run):
            raise WireError("the sizes of a world are pairs of numbers")
        if len(nprocs) + run[0] > MAX_MEMBERS:
            raise WireError("a world has too many members")
        nprocs += [run[1]] * run[0]
    return tuple(nprocs)


def _parse_members(value: Any) -> tuple[int, ...]:
    """One object for each member: the form that every hub of this protocol version can send."""
    if not isinstance(value, list) or not all(isinstance(raw, dict) for raw in value):
        raise WireError("a world needs members")
    found = sorted((fields.read_count(raw, "rank"), fields.read_count(raw, "nproc", 1)) for raw in value)
    if [rank for rank, _ in found] != list(range(len(found))):
        raise WireError("the ranks of a world do not count from 0")
    return tuple(nproc for _, nproc in found)
