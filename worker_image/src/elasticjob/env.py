"""The configuration of the pod: every `ELASTICJOB_*` variable that the agent reads, parsed once and frozen.

The names are the operator's (`names.py` there); the runtime has its own copy because it must not import the operator.
The agent takes its settings only from `load`; workers, scripts and the doctor read the variables they need where they
use them. A missing or invalid variable raises `SettingsError`, which names it and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

NAME: Final = "ELASTICJOB_NAME"
NAMESPACE: Final = "ELASTICJOB_NAMESPACE"
UID: Final = "ELASTICJOB_UID"
POD_NAME: Final = "ELASTICJOB_POD_NAME"
POD_UID: Final = "ELASTICJOB_POD_UID"
POD_IP: Final = "ELASTICJOB_POD_IP"
NODE_NAME: Final = "ELASTICJOB_NODE_NAME"
INDEX: Final = "ELASTICJOB_REPLICA_INDEX"
HUB_URL: Final = "ELASTICJOB_HUB_URL"
TOKEN_FILE: Final = "ELASTICJOB_TOKEN_FILE"  # noqa: S105 - the name of a variable
CA_FILE: Final = "ELASTICJOB_CA_FILE"
GRACE_SECONDS: Final = "ELASTICJOB_GRACEFUL_SHUTDOWN_SECONDS"
STRAGGLER_SECONDS: Final = "ELASTICJOB_STRAGGLER_SECONDS"
COMPARE_EVERY_STEPS: Final = "ELASTICJOB_COMPARE_EVERY_STEPS"
HANG_TIMEOUT: Final = "ELASTICJOB_HANG_TIMEOUT_SECONDS"
LOG_RULES: Final = "ELASTICJOB_LOG_RULES"  # JSON: what to look for in the output of the workers
TERMINATION_LOG: Final = "ELASTICJOB_TERMINATION_LOG"  # the file whose end the kubelet tells
PREFLIGHT: Final = "ELASTICJOB_PREFLIGHT"
PREFLIGHT_SECONDS: Final = "ELASTICJOB_PREFLIGHT_TIMEOUT_SECONDS"
CHECKPOINTS: Final = "ELASTICJOB_CHECKPOINTS"  # the directory whose files other pods hold copies of
CHECKPOINT_COPIES: Final = "ELASTICJOB_CHECKPOINT_COPIES"  # the folder for copies of other pods' files
CHECKPOINT_REPLICAS: Final = "ELASTICJOB_CHECKPOINT_REPLICAS"
CHECKPOINT_BYTES: Final = "ELASTICJOB_CHECKPOINT_BYTES"  # the limit of both together
ARCHIVE: Final = "ELASTICJOB_ARCHIVE"  # the URL of this job's folder in a store that outlives all pods
ARCHIVE_SECONDS: Final = "ELASTICJOB_ARCHIVE_EVERY_SECONDS"
ARCHIVE_KEEP: Final = "ELASTICJOB_ARCHIVE_KEEP"
ARCHIVE_CREDENTIALS: Final = "ELASTICJOB_ARCHIVE_CREDENTIALS"  # the folder of a mounted Secret
ARCHIVE_FROM: Final = "ELASTICJOB_ARCHIVE_FROM"  # the URL of another job's folder, to begin from
ARCHIVE_FROM_STEP: Final = "ELASTICJOB_ARCHIVE_FROM_STEP"
CHECKPOINT_RATE: Final = "ELASTICJOB_CHECKPOINT_MIB_PER_SECOND"  # optional, set by the author of the job

# Set by the agent for its workers.
GENERATION: Final = "ELASTICJOB_GENERATION"
TRACEPARENT: Final = "TRACEPARENT"  # from the operator where jobs are traced, else whatever the author of the job wrote
REPEATS: Final = "ELASTICJOB_REPEATED_FAILURES"  # with the same error, without progress; from two on
RESTORE_BEFORE: Final = "ELASTICJOB_RESTORE_BEFORE"  # a step: only checkpoints of earlier ones are restored
CODE_REVISION: Final = "ELASTICJOB_CODE_REVISION"  # of the code that they run; 0: what the pod was created with
CONTROL: Final = "ELASTICJOB_CONTROL"
RUN_ID: Final = "ELASTICJOB_RUN_ID"  # what its workers have as TORCHELASTIC_RUN_ID
MEMORY: Final = "ELASTICJOB_MEMORY"  # the agent's folder in shared memory, for snapshots

# Set by `elasticjob verify`: the folder in which workers record losses and digests.
TRACE: Final = "ELASTICJOB_TRACE"

# Optional, set by the author of the job: 1 starts the workers before there is a world, 0 disables sessions. Without it,
# the agent learns from the script and from the hub whether the script uses an `elasticjob.Session`.
IN_PROCESS: Final = "ELASTICJOB_IN_PROCESS"

# The MASTER_PORT of a worker that starts before there is a world: torch rejects it at once.
NO_PORT: Final = 65536

CODE_PATH: Final = "/opt/elasticjob/code"  # what was sent with the job
UPDATES_PATH: Final = "/opt/elasticjob/updates"  # a folder for each of two later revisions of it

BACKEND: Final = "elasticjob"
AGENT_PATH: Final = "/v1/agent"

PREFLIGHT_LEVELS: Final = ("Off", "Node", "Network")

_REMEDY: Final = "The operator sets it in the trainer container; outside of an ElasticJob use `torchrun --standalone`."


class SettingsError(ValueError):
    """A variable is missing or invalid. The message names it and the remedy."""


@dataclass(frozen=True)
class Archive:
    """The store that outlives all pods (`spec.checkpoints.archive`)."""

    url: str
    job: str = ""  # UID
    every_seconds: float = 600.0
    keep: int = 3
    credentials: Path | None = None
    origin: tuple[str, int | None] | None = None  # URL and step of another job's save
    bytes_per_second: float = 100.0 * 2**20


@dataclass(frozen=True)
class Checkpoints:
    """A checkpoint directory that survives without a volume (`spec.checkpoints`)."""

    path: Path
    copies: Path  # of other pods' files
    replicas: int = 1  # other pods that hold each file
    limit_bytes: int | None = None  # of both folders together
    node: str = ""
    bytes_per_second: float = 100.0 * 2**20  # for copies while the script trains
    archive: Archive | None = None


@dataclass(frozen=True)
class Settings:
    """The settings of the agent in its pod."""

    hub_url: str  # ws://host:port or wss://host:port, without a path
    token_file: Path
    pod_ip: str
    ca_file: Path | None = None
    job: str = ""
    namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    grace_seconds: float = 30.0
    hang_timeout: float | None = None  # seconds; None: derive it from the step time; 0: off
    preflight: str = "Off"
    preflight_seconds: float = 180.0  # its limit
    in_process: bool | None = None  # None: determined by the script and the hub
    checkpoints: Checkpoints | None = None
    termination_log: Path | None = None
    log_rules: str = ""  # JSON

    @property
    def endpoint(self) -> str:
        return self.hub_url.rstrip("/") + AGENT_PATH


def _require(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set. {_REMEDY}")
    return value


def _number(environ: Mapping[str, str], name: str, default: float, unit: str = "seconds") -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or not math.isfinite(value):
        raise SettingsError(f"{name}={text!r} is not a number of {unit}. Set it to a number, 0 or more.")
    return value


def _hub_url(environ: Mapping[str, str]) -> str:
    url = _require(environ, HUB_URL)
    parts = urlsplit(url)
    try:
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if parts.scheme not in ("ws", "wss") or not parts.hostname or not port_is_fine:
        raise SettingsError(f"{HUB_URL}={url!r} is not a hub address. Use ws://HOST:PORT or wss://HOST:PORT.")
    return url


def _ca_file(environ: Mapping[str, str], hub_url: str) -> Path | None:
    if not hub_url.startswith("wss://"):
        return None
    text = environ.get(CA_FILE, "").strip()
    if not text:
        return None  # the hub has a certificate of a public authority
    if not Path(text).is_file():
        raise SettingsError(f"{CA_FILE}={text!r} is no file. Mount the hub's CA certificate there.")
    return Path(text)


def _preflight(environ: Mapping[str, str]) -> str:
    level = environ.get(PREFLIGHT, "").strip() or "Off"
    if level not in PREFLIGHT_LEVELS:
        raise SettingsError(f"{PREFLIGHT}={level!r} is unknown. Use {', '.join(PREFLIGHT_LEVELS)}.")
    return level


def _checkpoints(environ: Mapping[str, str]) -> Checkpoints | None:
    path = environ.get(CHECKPOINTS, "").strip()
    if not path:
        return None
    rate = max(_number(environ, CHECKPOINT_RATE, 100.0, "MiB a second"), 0.001) * 2**20
    limit = _number(environ, CHECKPOINT_BYTES, 0.0, "bytes")
    return Checkpoints(
        path=Path(path),
        copies=Path(_require(environ, CHECKPOINT_COPIES)),
        replicas=int(_number(environ, CHECKPOINT_REPLICAS, 1.0, "pods")),
        limit_bytes=int(limit) or None,
        node=environ.get(NODE_NAME, ""),
        bytes_per_second=rate,
        archive=_archive(environ, rate),
    )


def _archive(environ: Mapping[str, str], rate: float) -> Archive | None:
    url = environ.get(ARCHIVE, "").strip()
    if not url:
        return None
    credentials, origin = environ.get(ARCHIVE_CREDENTIALS, ""), environ.get(ARCHIVE_FROM, "").strip()
    step = _number(environ, ARCHIVE_FROM_STEP, -1.0, "steps")
    return Archive(
        url=url,
        job=environ.get(UID, ""),
        every_seconds=_number(environ, ARCHIVE_SECONDS, 600.0),
        keep=max(1, int(_number(environ, ARCHIVE_KEEP, 3.0, "saves"))),
        credentials=Path(credentials) if credentials else None,
        origin=(origin, int(step) if step >= 0 else None) if origin else None,
        bytes_per_second=rate,
    )


def has_hub(environ: Mapping[str, str]) -> bool:
    """Whether the operator, or a compatible program, started this process."""
    return bool(environ.get(HUB_URL, "").strip())


def is_of_agent(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to the agent's workers, and not to a launcher that one of them has started."""
    run = environ.get(RUN_ID, "")
    return not run or environ.get("TORCHELASTIC_RUN_ID", run) == run


def is_in_process(environ: Mapping[str, str]) -> bool | None:
    """Whether the workers keep their memory between worlds; None if the author did not set it."""
    text = environ.get(IN_PROCESS, "").strip().lower()
    if not text:
        return None
    if text in ("0", "false", "no"):
        return False
    if text in ("1", "true", "yes"):
        return True
    raise SettingsError(f"{IN_PROCESS}={text!r} is neither 1 nor 0.")


def enter_span(environ: MutableMapping[str, str], generation: int) -> None:
    """Name the span of this world as the parent of the worker's. The trace of a job has the job's UID."""
    trace = environ.get(UID, "").replace("-", "")
    if trace and environ.get(TRACEPARENT, "").startswith(f"00-{trace}-"):
        environ[TRACEPARENT] = f"00-{trace}-{generation:016x}-01"


def load(environ: Mapping[str, str], local_addr: str | None = None) -> Settings:
    """Read the settings. `local_addr` is torchrun's `--local-addr`, which overrides the pod's address."""
    hub_url = _hub_url(environ)
    token_file = Path(_require(environ, TOKEN_FILE))
    if not token_file.is_file():
        raise SettingsError(
            f"{TOKEN_FILE}={str(token_file)!r} is no file. Mount the projected service-account token there."
        )
    hang = environ.get(HANG_TIMEOUT, "auto").strip() or "auto"
    return Settings(
        hub_url=hub_url,
        token_file=token_file,
        pod_ip=local_addr or _require(environ, POD_IP),
        ca_file=_ca_file(environ, hub_url),
        job=environ.get(NAME, ""),
        namespace=environ.get(NAMESPACE, ""),
        pod_name=environ.get(POD_NAME, ""),
        pod_uid=environ.get(POD_UID, ""),
        grace_seconds=_number(environ, GRACE_SECONDS, 30.0),
        hang_timeout=None if hang == "auto" else _number(environ, HANG_TIMEOUT, 0.0),
        preflight=_preflight(environ),
        preflight_seconds=_number(environ, PREFLIGHT_SECONDS, 180.0),
        in_process=is_in_process(environ),
        checkpoints=_checkpoints(environ),
        log_rules=environ.get(LOG_RULES, ""),
        termination_log=Path(told) if (told := environ.get(TERMINATION_LOG, "").strip()) else None,
    )
