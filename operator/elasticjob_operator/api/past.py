"""The part of the status that is about the past: goodput, lost time, worlds, failures and faulty nodes."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from elasticjob_operator.api.base import StatusModel


class FailureStatus(StatusModel):
    """The last failure; it outlives the failed pod."""

    time: str | None = None
    pod: str | None = None
    node: str | None = None
    generation: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    message: str | None = None
    traceback: str | None = Field(default=None, description="The traceback. The middle of a long one is omitted.")
    log_tail: str | None = Field(default=None, description="Last lines of the log, without the traceback.")


class LostSeconds(StatusModel):
    """The lost time by category; together they are `goodput.lostSeconds`."""

    start: float = Field(default=0, description="Until the first world trained.")
    rescale: float = Field(default=0, description="Announced changes of the world.")
    restart: float = Field(default=0, description="From a failure or a lost member until the next world trained.")
    checkpoint: float = Field(default=0, description="Steps that waited for a save by elasticjob.Checkpointer.")
    stall: float = Field(default=0, description="Worlds that hung, from their last step.")
    repeated_steps: float = Field(default=0, description="Steps that a later world had to make again.")


class WorldStatus(StatusModel):
    """One world of the timeline."""

    generation: int
    time: str = Field(default="", description="When it was formed.")
    size: int = Field(default=0, description="Its pods.")
    cause: str | None = Field(default=None, description="Why it was formed.")
    revision: int | None = Field(default=None, description="The revision of its code; absent for the first one.")
    who: str | None = Field(default=None, description="The rank that failed, or the pods that left or joined.")
    lost_seconds: float | None = Field(
        default=None, description="Seconds without a step before it trained; absent if it never did."
    )
    first_step: int | None = Field(default=None, description="The first step that it reported.")
    state_bytes: int | None = Field(
        default=None,
        description="The most bytes of training state that one rank of a session received from others when the world"
        " was entered. Reported by scripts that call elasticjob.report.",
    )
    state_seconds: float | None = Field(default=None, description="Seconds that this transfer took, of the lost ones.")


class Measured(StrEnum):
    """The moment from which a world counts as training."""

    FORMATION = "Formation"
    STEPS = "Steps"


class GoodputStatus(StatusModel):
    training_seconds: float = Field(default=0, description="Seconds during which a world trained.")
    lost_seconds: float = Field(default=0, description="Seconds since the first world during which none trained.")
    measured: Measured = Field(
        default=Measured.FORMATION,
        description="The moment from which a world counts as training. Steps: from its first reported step, "
        "until its last one"
        " if it hung. Formation: from when it was formed, because the script reports no steps; time in which it loads,"
        " waits or hangs then counts as training.",
    )
    step_generation: int = Field(default=0, description="The last generation in which a step was reported.")
    last_recovery_seconds: float | None = Field(
        default=None, description="From the last failure or announced change until the next world trained."
    )
    rescales: int = Field(default=0, description="Worlds formed after the first one.")
    training: bool = Field(default=False, description="Whether a world is training now, as far as that is measured.")
    since: str | None = Field(default=None, description="From when on the time is not added to the sums yet.")
    faults: int = Field(default=0, description="Failures and lost members after which a world trained again.")
    mean_recovery_seconds: float | None = Field(
        default=None, description="Mean time from such a fault until the next world trained."
    )
    mean_seconds_between_faults: float | None = Field(default=None, description="Training time for each fault.")
    step: int | None = Field(default=None, description="The last step of the world before.")
    step_seconds: float | None = Field(default=None, description="Of each of its steps.")
    checkpoint_seconds: float | None = Field(
        default=None, description="Time that the present processes have waited for saves, as last reported."
    )


class DiagnosisStatus(StatusModel):
    """The last hang, in short; `kubectl elasticjob diagnose` shows the stacks of all ranks."""

    kind: str = Field(default="", description="RankHung, or WorldHung if no rank is known to hold up the others.")
    rank: int | None = Field(default=None, description="The rank that holds up the others, if it is known.")
    pod: str | None = None
    node: str | None = None
    generation: int = 0
    time: str | None = None
    summary: str = Field(default="", description="Where this rank is, and for how long.")


class StragglerStatus(StatusModel):
    """A member that needs longer for a step than the others, which wait for it."""

    rank: int = Field(default=0, description="The slowest rank of the pod.")
    pod: str = ""
    uid: str = Field(default="", description="Of the pod.")
    node: str | None = None
    own_seconds: float = Field(default=0, description="Its time for a step, without waiting for other ranks (median).")
    others_seconds: float = Field(default=0, description="The same of the other members (median).")
    since: str | None = Field(default=None, description="When it was found.")
    replace_time: str | None = Field(default=None, description="When its replacement was begun.")

    @property
    def slowdown(self) -> float:
        """How many times as slow as the others it is."""
        return self.own_seconds / max(self.others_seconds, 1e-9)


class BestValue(StatusModel):
    size: int = Field(description="Pods of the world.")
    value: float


class IncidentStatus(StatusModel):
    """What a rule of health.rules has found."""

    rule: str
    count: int = Field(default=0, description="Incidents so far.")
    acted: int = Field(default=0, description="How often the rule has restarted or replaced.")
    last_action: str | None = Field(default=None, description="What was done about the last one.")
    since: str | None = Field(default=None, description="When it began; absent if it is over.")
    last_time: str | None = Field(default=None, description="When the last one began.")
    generation: int = Field(default=0, description="The world in which that was.")
    step: int | None = Field(default=None, description="The first step that showed it, as far as steps were reported.")
    rank: int | None = None
    pod: str | None = None
    node: str | None = None
    device: str | None = Field(default=None, description="That the rank has, if it is one of CUDA or ROCm.")
    message: str = ""
    best: list[BestValue] = Field(
        default_factory=list, description="Of a rule with fallsPercent: the best value by number of pods."
    )
    metric: str | None = Field(default=None, description="Whose best values these are.")


class PreflightStatus(StatusModel):
    """What the check of the network measured at a node; see health.preflight."""

    node: str
    passed: bool = True
    round_trip_seconds: float | None = Field(default=None, description="The shortest one to another node.")
    bytes_per_second: int | None = Field(default=None, description="To and from the other node with the best link.")
    message: str | None = Field(default=None, description="Why it has not passed.")
    time: str | None = None


class NodeFault(StatusModel):
    node: str
    count: int
    last_time: str
