"""Every compared system in each of its settings: one `Contestant` each. To add one, see docs/performance.md.

Seconds are rough and only plan the time of a run: a cell that would not fit any more is not begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from benchmarks import cases, launchers
from benchmarks.launchers import cluster, dlrover, lmresiliency, local, nvrx, ray_train, torchft, torchrun

Make = Callable[[], launchers.Launcher]


@dataclass(frozen=True)
class Contestant:
    """One system in one of its settings.

    `script` is `own` if it runs a script written for it. `package` names what `benchmarks.peers` installs for it; None
    if it runs in the project's own environment. `on_cluster` makes the same behind the whole operator. `lacks` gives
    the reason for everything that it cannot take part in: the name of a case, `goodput`, or `bytes`.
    """

    name: str
    make: Make
    settings: Literal["defaults", "best"]
    script: Literal["unmodified", "own"] = "unmodified"
    package: str | None = None
    ours: bool = False
    on_cluster: Make | None = None
    start_seconds: float = 3.0
    event_seconds: float = 1.0
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_slow(self) -> bool:
        """Half a minute or more per event: measured once."""
        return self.start_seconds + self.event_seconds >= 30


IN_A_NODE = {
    "coordinator lost": "its store is in the agent of a node: see SIGKILL rank 0",
    "bytes": "its store is in the agent of a node, whose own share cannot be counted",
}
AS_RUN = dict.fromkeys(
    (*(case.name for case in cases.EVERY), "bytes"),
    "it starts as elasticjob-run does: what differs is the work that is kept",
)
CONTESTANTS = (
    Contestant("torchrun", local.torchrun, "best", ours=True, on_cluster=cluster.torchrun),
    Contestant("run", local.elasticjob_run, "best", ours=True, on_cluster=cluster.elasticjob_run),
    Contestant("memory", local.elasticjob_run_memory, "best", "own", ours=True, lacks=AS_RUN),
    Contestant("session", local.session, "best", "own", ours=True, on_cluster=cluster.session),
    Contestant("cold", local.elasticjob_run_cold, "best", ours=True),
    Contestant("defaults", torchrun.defaults, "defaults", start_seconds=35, event_seconds=40, lacks=IN_A_NODE),
    Contestant("tuned", torchrun.tuned, "best", start_seconds=4, event_seconds=6, lacks=IN_A_NODE),
    Contestant("external", torchrun.external, "best", start_seconds=4, event_seconds=6),
    Contestant(
        *("torchft", torchft.tuned, "best", "own", "torchft-nightly"),
        start_seconds=4,
        event_seconds=3,
        lacks=torchft.LACKS,
    ),
    Contestant(
        *("torchft-defaults", torchft.defaults, "defaults", "own", "torchft-nightly"),
        start_seconds=4,
        event_seconds=6,
        lacks=torchft.LACKS,
    ),
    Contestant("dlrover", dlrover.tuned, "best", package="dlrover", start_seconds=12, event_seconds=12),
    Contestant("dlrover-defaults", dlrover.defaults, "defaults", package="dlrover", start_seconds=65, event_seconds=75),
    Contestant(
        *("nvrx", nvrx.tuned, "best", "own", "nvidia-resiliency-ext"),
        start_seconds=4,
        event_seconds=3,
        lacks=nvrx.LACKS,
    ),
    Contestant(
        *("nvrx-defaults", nvrx.defaults, "defaults", "own", "nvidia-resiliency-ext"),
        start_seconds=4,
        event_seconds=35,
        lacks=nvrx.LACKS,
    ),
    Contestant(
        *("ray", ray_train.tuned, "best", "own", "ray"),
        start_seconds=25,
        event_seconds=20,
        lacks=ray_train.LACKS,
    ),
    Contestant(
        *("ray-defaults", ray_train.defaults, "defaults", "own", "ray"),
        start_seconds=25,
        event_seconds=75,
        lacks=ray_train.LACKS,
    ),
    Contestant(
        *("lmresiliency", lmresiliency.tuned, "best"),
        package="lm-resiliency",
        start_seconds=5,
        lacks=lmresiliency.LACKS,
    ),
    Contestant(
        *("lmresiliency-defaults", lmresiliency.defaults, "defaults"),
        package="lm-resiliency",
        start_seconds=10,
        lacks=lmresiliency.LACKS,
    ),
)
