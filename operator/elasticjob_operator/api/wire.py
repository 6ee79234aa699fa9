"""The messages between agents and the hub, version 1. `docs/protocol.md` describes them for implementers.

Both sides always send their *complete* state, never a difference: a message may be lost with its connection, repeated
or overtaken, and the latest one is still correct. Every received message is validated here and frozen. Size limits are
part of the models, so that a message is either understood or refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, TypeAdapter

PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 * 1024
PATH: Final = "/v1/agent"
HANG: Final = "hang"  # kinds of failures
RESTART: Final = "restart"
HUNG: Final = "hung"  # the reason of a regroup before which every agent reports the stacks of its workers


class Wire(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # a newer peer may send more fields, which must not break an older one
        alias_generator=lambda name: "".join(
            part if i == 0 else part.capitalize() for i, part in enumerate(name.split("_"))
        ),
        populate_by_name=True,
        defer_build=True,  # the command line imports them, and uses none
    )

    def dump(self) -> dict[str, Any]:
        """The JSON object to send."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


Text = Annotated[str, Field(max_length=4096)]
Short = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Port = Annotated[int, Field(ge=1, le=65535)]
Address = Annotated[str, Field(min_length=1, max_length=253)]
ExitCode = Annotated[int, Field(ge=-(2**31), le=2**31)]


def _know(value: object) -> object:
    """What a script measures may be anything, also NaN: what no decision can use is as if it had not been measured."""
    return None if isinstance(value, (int, float)) and not value <= MOST_MEASURED else value


MOST_MEASURED: Final = 2**53
MOST_METRICS: Final = 32  # of a script
Measured = Annotated[Annotated[float, Field(ge=0, le=MOST_MEASURED)] | None, BeforeValidator(_know)]


class AgentPhase(StrEnum):
    """What an agent is currently doing."""

    STARTING = "starting"  # connected, but not ready for a world: in the preflight, or torch has not asked for one yet
    READY = "ready"  # waiting for a world; its store is listening
    RUNNING = "running"  # its workers are running in `generation`
    STOPPING = "stopping"  # its workers are being stopped or are saving a checkpoint
    LEAVING = "leaving"  # terminating (SIGTERM): keeps training until there is a world without it
    SUCCEEDED = "succeeded"  # its workers succeeded in `generation`
    FAILED = "failed"  # it has given up; `failure` has the cause


IN_WORLD: Final = frozenset({AgentPhase.RUNNING, AgentPhase.LEAVING})  # its workers are training
BUSY: Final = IN_WORLD | {AgentPhase.STOPPING}  # its workers are training or being stopped


class Store(Wire):
    """The address at which the TCPStore of a generation listens."""

    address: Address
    port: Port


class Failure(Wire):
    """The first failure of a worker process in a generation."""

    generation: Count = 0
    rank: Count | None = None
    local_rank: Count | None = None
    exit_code: ExitCode | None = None
    signal: Short | None = None
    message: Text | None = None
    traceback: Annotated[str, Field(max_length=16384)] | None = None
    kind: Short | None = None  # HANG: no process failed, but no step is completed; RESTART: a session began again
    waits: bool | None = None  # in a hang: whether this rank is blocked in a collective
    stalled_seconds: float | None = Field(default=None, ge=0, le=2**31)  # in a hang: since the last step
    collectives: Count | None = None  # in a hang: that this rank has entered


class Archived(Wire):
    """One save in the archive of a job."""

    step: Count | None = None
    time: Short = ""  # by the clock of the pod that archived it
    bytes: Count = 0
    files: Count = 0


class Archive(Wire):
    """What rank 0's agent knows of the archive of the job."""

    saves: Annotated[tuple[Archived, ...], Field(max_length=64), FailFast()] = ()  # newest first
    reason: Short | None = None  # of a problem
    message: Text | None = None


class Checkpoint(Wire):
    """The last checkpoint of which other pods hold copies, as an agent knows it."""

    number: Count = 0  # 0: there is none
    copies: Count = 0  # other pods that hold it
    restoring: bool = False  # the agent gets it before it starts its workers in the announced world
    archive: Archive | None = None  # of a job with spec.checkpoints.archive; an older agent leaves it out
    unfit: Text | None = None  # a name in a save that this pod cannot have, and why
    unfinished: Text | None = None  # a file that is not copied: it or one beside it is always being written


class Link(Wire):
    """What an agent has measured between its pod and another one; without numbers if there is a problem."""

    uid: Short  # of the other pod
    seconds: float | None = Field(default=None, ge=0, le=2**31)  # a round trip
    bytes_per_second: float | None = Field(default=None, ge=0, le=2**53)  # both directions together
    clock_seconds: float | None = Field(default=None, ge=-(2**53), le=2**53)  # by which the other clock is ahead
    problem: Annotated[str, Field(max_length=256)] | None = None


class Preflight(Wire):
    """The check of the network before the agent's first world."""

    port: Port  # where it answers probes
    links: Annotated[tuple[Link, ...], Field(max_length=64), FailFast()] = ()
    over: bool = False  # it has passed, or its time is up


class Sign(Wire):
    """The first line of a rank in a world that a rule of the job looks for."""

    rule: Short
    generation: Count = 0
    rank: Count = 0
    step: Count | None = None  # the last one that its pod had reported
    line: Annotated[str, Field(max_length=256)] = ""


class AgentState(Wire):
    """The complete state of an agent, sent in `hello` and after every change."""

    phase: AgentPhase
    generation: Count = 0  # the generation that it runs, last ran or gave up; it enters only newer ones
    store: Store | None = None  # with `ready`: the store it would host as rank 0
    nproc: Annotated[int, Field(ge=1, le=1024)] = 1  # local world size
    address: Short | None = None  # the address for its peers; default: the pod's IP
    in_process: bool = False  # its workers keep their memory across a regroup
    step: Count | None = None  # the last committed step, if the script reports steps
    failure: Failure | None = None  # why it left `generation`, if a worker failed
    unsaved: Failure | None = None  # a worker of `generation` that ended with an error while it was asked to save
    blocked: bool = False  # all its workers wait (`running`), or are blocked in a collective (`stopping`)
    quiet: Count = 0  # the generation in which its workers neither compute nor communicate, for longer than ever
    beside: Count = 0  # the generation in which, for as long, nothing goes on but something beside their main threads
    checkpoint: Checkpoint | None = None  # of a job with spec.checkpoints
    preflight: Preflight | None = None  # of a job with health.preflight: Network
    watches: Short | None = None  # a digest of the expressions that it looks for in the output of its workers
    signs: Annotated[tuple[Sign, ...], Field(max_length=16), FailFast()] = ()  # what it has found in this world
    # Digests of the later revisions of the code that it can start workers with.
    codes: Annotated[tuple[Short, ...], Field(max_length=4), FailFast()] = ()
    # The devices of its workers, by local rank, as far as they have said; "" if one has not.
    devices: Annotated[tuple[Annotated[str, Field(max_length=96)], ...], Field(max_length=16), FailFast()] = ()
    # With `ready`: the shards of a model that its workers have in memory, if other members lack them.
    shards: Annotated[tuple[Count, ...], Field(max_length=2048), FailFast()] = ()


class Hello(Wire):
    v: Literal[1] = 1
    type: Literal["hello"] = "hello"
    agent: Short  # unique per agent process: a restarted container is another agent
    runtime: dict[Short, Short] = Field(default_factory=dict, max_length=16)  # versions
    sizes: bool = False  # it understands a `world` message with `sizes` in place of `members`
    peers: bool = False  # it asks for the key by which the agents of the job know each other
    state: AgentState


class State(Wire):
    v: Literal[1] = 1
    type: Literal["state"] = "state"
    state: AgentState


class Progress(Wire):
    """The progress that the script reports. The latest message counts; the agent sends at most one a second."""

    v: Literal[1] = 1
    type: Literal["progress"] = "progress"
    generation: Count = 0
    rank: Count = 0
    step: Count | None = None
    total_steps: Count | None = None
    step_seconds: Measured = None
    checkpoint_seconds: float | None = Field(default=None, ge=0, le=2**31)  # that its steps have waited for saves
    # The median, over the last minute, of what its slowest local rank needs for a step without waiting for other ranks.
    own_seconds: float | None = Field(default=None, gt=0, le=2**31)
    slowest_rank: Count | None = None
    batch_size: Count | None = None  # samples of a step of the optimizer, if the script lets the batch grow; then also:
    batch_seconds: Measured = None  # of a step of the optimizer
    noise_scale: Measured = None  # the batch, in samples, whose gradient is noise by half
    state_bytes: Count | None = None  # the most that one rank of a session received when this world was entered
    state_seconds: float | None = Field(default=None, ge=0, le=2**31)  # what that took
    samples_per_second: Measured = None  # of all ranks, if the script counts them; as the next
    tokens_per_second: Measured = None
    mfu: Measured = None  # model FLOPs utilization, if the script gives what it takes
    # Of the last finished checkpoints, by tier: seconds since their state was taken.
    checkpoint_ages: Annotated[dict[Short, Measured], Field(max_length=8)] | None = None
    metrics: dict[Short, float] = Field(default_factory=dict, max_length=MOST_METRICS)
    not_finite: list[Short] = Field(default_factory=list, max_length=MOST_METRICS)  # metrics that are NaN or infinite
    # At which rank of the pod, if that is another one than `rank`.
    not_finite_at: dict[Short, Count] = Field(default_factory=dict, max_length=MOST_METRICS)


class Diagnosis(Wire):
    """A hang report with the stacks of the local ranks. It is logged, never stored in the API."""

    v: Literal[1] = 1
    type: Literal["diagnosis"] = "diagnosis"
    generation: Count = 0
    kind: Short = "hang"
    text: Annotated[str, Field(max_length=48 * 1024)] = ""


AgentMessage = Annotated[Hello | State | Progress | Diagnosis, Field(discriminator="type")]
AGENT_MESSAGE: TypeAdapter[Hello | State | Progress | Diagnosis] = TypeAdapter(
    AgentMessage, config=ConfigDict(defer_build=True)
)


class Member(Wire):
    pod: Short
    rank: Count  # group rank: the position of the pod in the world
    address: Short | None = None
    nproc: int = 1


class Code(Wire):
    """A later revision of the job's code, of which the agent has files."""

    revision: Count
    digest: Short = ""  # of what is mounted; "" for what the pod was created with


class World(Wire):
    """The receiver is in generation `generation` with this rank: start the workers, or send the world to the sessions.

    An agent needs the number of processes of each rank, not the names of the members. One that supports it gets
    `sizes`: pairs (members, processes of each), in the order of ranks. For a thousand equal members that is 10 bytes,
    not 70 KB.
    """

    action: Literal["world"] = "world"
    generation: Count
    rank: Count
    members: tuple[Member, ...] = ()
    sizes: tuple[tuple[Count, Count], ...] | None = None
    store: Store
    restarts: Count = 0  # worker-caused restarts so far
    repeats: Count | None = None  # how many of them in a row were the same error at the same place, from two on
    before: Count | None = None  # restore only checkpoints of earlier steps
    code: Code | None = None  # what the workers run; None: what the pod was created with


class Regroup(Wire):
    """Generation `generation` and all earlier ones are over: stop the workers and become ready.

    An agent that is already ready publishes `ready` again with this generation, to confirm that it will not enter it.

    `checkpoint` is true for an announced change, where all members are alive: signal the script and give it
    `grace_seconds`. It is false after a loss, where nothing can be saved: stop at once.
    """

    action: Literal["regroup"] = "regroup"
    generation: Count
    reason: Short
    checkpoint: bool = False
    grace_seconds: float = 30.0
    fresh: bool | None = None  # end the workers, also those that keep their memory
    code: Code | None = None  # what those run that start before the next world exists


class Stop(Wire):
    """Stop the workers and exit. `ok` is false if the job has failed."""

    action: Literal["stop"] = "stop"
    reason: Short
    ok: bool = True
    checkpoint: bool = False
    grace_seconds: float = 30.0


class Peer(Wire):
    """A pod of the job that answers probes."""

    uid: Short
    address: Short
    port: Port


class Probe(Wire):
    """To an agent in its preflight: measure the links to these pods, each once, and report them.

    `passed` is left out while results of this agent or of others are missing. With false, the agent gives up with
    `reason`; with true, it becomes ready.
    """

    action: Literal["probe"] = "probe"
    peers: tuple[Peer, ...] = ()
    passed: bool | None = None
    reason: Text = ""


Directive = World | Regroup | Stop | Probe


class Welcome(Wire):
    v: Literal[1] = 1
    type: Literal["welcome"] = "welcome"
    heartbeat_seconds: float  # the agent sends a WebSocket ping this often
    timeout_seconds: float  # after this much silence the hub considers the connection lost
    in_process: bool = False  # the other members' workers keep their memory: start the script before a world exists
    training: bool = False  # a world is training and must stop for a joiner: finish all imports before becoming ready
    probes: bool = True  # this hub sends `probe` to an agent whose state has a `preflight`
    peer_key: Short | None = None  # for an agent that asked for it: secret, the same for all agents of the job
    reconnect_seconds: float = 0.0  # all agents spread their attempts over this time when they have lost the hub


class DirectiveMessage(Wire):
    v: Literal[1] = 1
    type: Literal["directive"] = "directive"
    directive: Annotated[Directive, Field(discriminator="action")]


class Error(Wire):
    """Sent once before the hub closes a connection for a reason that a retry does not resolve."""

    v: Literal[1] = 1
    type: Literal["error"] = "error"
    code: Short  # unauthorized | unknown-pod | version | malformed | too-large | rate | replaced
    message: Text


HubMessage = Annotated[Welcome | DirectiveMessage | Error, Field(discriminator="type")]
HUB_MESSAGE: TypeAdapter[Welcome | DirectiveMessage | Error] = TypeAdapter(
    HubMessage, config=ConfigDict(defer_build=True)
)
