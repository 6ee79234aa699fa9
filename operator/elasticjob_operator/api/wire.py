"""The messages between agents and hub, version 1. Described for implementers in `docs/protocol.md`.

Both sides always say their *whole* state, never a change to it: a message may be lost with its connection,
repeated or overtaken, and the latest one is still the truth. Everything that arrives is validated here and
frozen; limits on sizes are part of the model, so that a message is either understood or refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 64 * 1024
PATH: Final = "/v1/agent"
HANG: Final = "hang"  # a kind of failure
HUNG: Final = "hung"  # the reason of a regroup before which every agent says where its workers are


class _Wire(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",  # a newer peer may say more; what it says must not break an older one
        alias_generator=lambda name: "".join(
            part if i == 0 else part.capitalize() for i, part in enumerate(name.split("_"))
        ),
        populate_by_name=True,
    )

    def dump(self) -> dict[str, Any]:
        """The JSON object to send."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


Text = Annotated[str, Field(max_length=4096)]
Short = Annotated[str, Field(max_length=253)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Port = Annotated[int, Field(ge=1, le=65535)]


class AgentPhase(StrEnum):
    """What an agent is doing now."""

    STARTING = "starting"  # connected, not ready for a world: preflight, or its script has not asked yet
    READY = "ready"  # waits for a world; its store is listening
    RUNNING = "running"  # its workers run in `generation`
    STOPPING = "stopping"  # its workers are being stopped or are checkpointing
    LEAVING = "leaving"  # asked to go (SIGTERM): wants a world without itself, keeps training until then
    SUCCEEDED = "succeeded"  # its workers ended well in `generation`
    FAILED = "failed"  # it gives up; `failure` says why


IN_WORLD: Final = frozenset({AgentPhase.RUNNING, AgentPhase.LEAVING})  # its workers train
BUSY: Final = IN_WORLD | {AgentPhase.STOPPING}  # it has workers, which train or are on their way out


class Store(_Wire):
    """Where the TCPStore of a generation listens."""

    address: Short
    port: Port


class Failure(_Wire):
    """The first failure of a worker process in a generation."""

    generation: Count = 0
    rank: int | None = Field(default=None, ge=0)
    local_rank: int | None = Field(default=None, ge=0)
    exit_code: int | None = None
    signal: Short | None = None
    message: Text | None = None
    traceback: Annotated[str, Field(max_length=16384)] | None = None
    kind: Short | None = None  # HANG, where nothing failed and nothing goes on
    waits: bool | None = None  # in a hang: whether this rank waits for others
    stalled_seconds: float | None = Field(default=None, ge=0, le=2**31)  # in a hang: since the last step


class AgentState(_Wire):
    """The whole state of an agent, sent in `hello` and whenever it changes."""

    phase: AgentPhase
    generation: Count = 0  # the one it runs, last ran or gave up; it enters only newer ones
    store: Store | None = None  # with `ready`: the store it would host as rank 0
    nproc: Annotated[int, Field(ge=1, le=1024)] = 1  # local world size
    address: Short | None = None  # where peers reach it; default: the pod's IP
    in_process: bool = False  # its workers keep their memory over a regroup
    step: Count | None = None  # last committed step, where the script reports one
    failure: Failure | None = None  # why it left `generation`, where a worker failed


class Hello(_Wire):
    v: Literal[1] = 1
    type: Literal["hello"] = "hello"
    agent: Short  # one value per agent process: a restarted container is another agent
    runtime: dict[Short, Short] = Field(default_factory=dict, max_length=16)  # versions
    sizes: bool = False  # it understands a world that says `sizes` in place of `members`
    state: AgentState


class State(_Wire):
    v: Literal[1] = 1
    type: Literal["state"] = "state"
    state: AgentState


class Progress(_Wire):
    """What the script reports; the latest one counts, throttled by the agent to one a second."""

    v: Literal[1] = 1
    type: Literal["progress"] = "progress"
    generation: Count = 0
    rank: Count = 0
    step: Count | None = None
    total_steps: Count | None = None
    step_seconds: float | None = Field(default=None, ge=0)
    metrics: dict[Short, float] = Field(default_factory=dict, max_length=32)


class Diagnosis(_Wire):
    """A hang report: stacks of the local ranks. Logged, never stored in the API."""

    v: Literal[1] = 1
    type: Literal["diagnosis"] = "diagnosis"
    generation: Count = 0
    kind: Short = "hang"
    text: Annotated[str, Field(max_length=48 * 1024)] = ""


AgentMessage = Annotated[Hello | State | Progress | Diagnosis, Field(discriminator="type")]
AGENT_MESSAGE: TypeAdapter[Hello | State | Progress | Diagnosis] = TypeAdapter(AgentMessage)


class Member(_Wire):
    pod: Short
    rank: Count  # group rank: the position of the pod in the world
    address: Short | None = None
    nproc: int = 1


class World(_Wire):
    """You are in generation `generation` with this rank: start (or re-form) your workers.

    An agent needs to know how many processes each rank has, not who they are. One that says so hears `sizes`: (members,
    processes of each), in the order of ranks. For a thousand members that is 10 bytes where their names are 70 KB.
    """

    action: Literal["world"] = "world"
    generation: Count
    rank: Count
    members: tuple[Member, ...] = ()
    sizes: tuple[tuple[Count, Count], ...] | None = None
    store: Store
    restarts: Count = 0  # worker-caused restarts so far


class Regroup(_Wire):
    """Generation `generation` and all before it are over: stop the workers and become ready.

    An agent that is ready already says so again with this generation: it will not enter it any more.

    `checkpoint` is true for an announced change, where every member is alive: signal the script, give it
    `grace_seconds`. It is false after a loss: nothing can be saved, stop at once.
    """

    action: Literal["regroup"] = "regroup"
    generation: Count
    reason: Short
    checkpoint: bool = False
    grace_seconds: float = 30.0


class Stop(_Wire):
    """Leave: stop the workers and exit. `ok` is true where that is no failure of the job."""

    action: Literal["stop"] = "stop"
    reason: Short
    ok: bool = True
    checkpoint: bool = False
    grace_seconds: float = 30.0


Directive = World | Regroup | Stop


class Welcome(_Wire):
    v: Literal[1] = 1
    type: Literal["welcome"] = "welcome"
    heartbeat_seconds: float  # the agent sends a WebSocket ping this often
    timeout_seconds: float  # silence after which the hub calls it lost
    in_process: bool = False  # the workers of the others keep their memory: start the script before there is a world
    training: bool = False  # others are in a world and stop for a joiner: prepare before you are ready


class DirectiveMessage(_Wire):
    v: Literal[1] = 1
    type: Literal["directive"] = "directive"
    directive: Annotated[Directive, Field(discriminator="action")]


class Error(_Wire):
    """Said once before the hub closes a connection for a reason that trying again does not mend."""

    v: Literal[1] = 1
    type: Literal["error"] = "error"
    code: Short  # unauthorized | unknown-pod | version | malformed | too-large | rate | replaced
    message: Text


HubMessage = Annotated[Welcome | DirectiveMessage | Error, Field(discriminator="type")]
HUB_MESSAGE: TypeAdapter[Welcome | DirectiveMessage | Error] = TypeAdapter(HubMessage)
