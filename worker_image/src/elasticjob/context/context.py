"""This process's rank and world, read from the environment that a launcher sets.

Pure: takes a mapping, returns a frozen value. Every variable has a single-process default, so the same script runs with
plain `python train.py`. An invalid value is an error that names the variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from elasticjob.env import NAME, NO_PORT, POD_IP, REPEATS, RESTORE_BEFORE, UID
from elasticjob.errors import ConfigurationError

Found = TypeVar("Found")


@dataclass(frozen=True)
class Context:
    """This process's position in its world, as the launcher describes it."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    generation: int = 0
    restarts: int = 0
    master_address: str = "127.0.0.1"
    master_port: int = 0
    launched: bool = False  # a launcher set RANK and WORLD_SIZE
    elastic: bool = False  # the launcher was an elastic agent
    job: str = ""
    uid: str = ""  # of the job: the same in all worlds and after every restart; another one if the job is created again
    pod_ip: str = ""
    repeats: int = 0  # restarts in a row because of the same error at the same place; 0 for the first one
    before: int | None = None  # checkpoints from this step on are not to be restored; None: any may be


def read_integer(env: Mapping[str, str], name: str, default: int, least: int = 0) -> int:
    """The integer in a variable; `default` if it is absent or empty. Raises ConfigurationError, which names it."""
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a number. Unset it, or let the launcher set it.") from None
    if value < least:
        raise ConfigurationError(f"{name}={value} is below {least}. Unset it, or let the launcher set it.")
    return value


def read_context(env: Mapping[str, str]) -> Context:
    """Read the variables of torchrun, elasticjob-run or any other launcher that follows `env://`.

    Without a launcher, it describes a world of one process. Raises ConfigurationError for a missing or invalid
    variable.
    """
    launched = bool(env.get("RANK")) or bool(env.get("WORLD_SIZE"))
    if not launched:
        return Context(job=env.get(NAME, ""), uid=env.get(UID, ""), pod_ip=env.get(POD_IP, ""))
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise ConfigurationError(
            f"{', '.join(missing)} not set, but other variables of a launcher are. "
            "Start the script with torchrun or elasticjob-run, or unset RANK and WORLD_SIZE to run alone."
        )
    world_size = read_integer(env, "WORLD_SIZE", 1, least=1)
    rank = read_integer(env, "RANK", 0)
    if rank >= world_size:
        raise ConfigurationError(f"RANK={rank} does not fit WORLD_SIZE={world_size}: ranks start at 0.")
    port = read_integer(env, "MASTER_PORT", 0)
    if port > NO_PORT:
        raise ConfigurationError(f"MASTER_PORT={port} is not a port: it must be below 65536.")
    restarts = read_integer(env, "TORCHELASTIC_RESTART_COUNT", 0)
    return Context(
        rank=rank,
        local_rank=read_integer(env, "LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=read_integer(env, "LOCAL_WORLD_SIZE", 1, least=1),
        generation=read_integer(env, "ELASTICJOB_GENERATION", restarts),
        restarts=restarts,
        repeats=read_integer(env, REPEATS, 0),
        before=read_integer(env, RESTORE_BEFORE, 0) if env.get(RESTORE_BEFORE) else None,
        master_address=env["MASTER_ADDR"],
        master_port=port,
        launched=True,
        elastic="TORCHELASTIC_RUN_ID" in env,  # as torch.distributed.is_torchelastic_launched() does
        job=env.get(NAME, ""),
        uid=env.get(UID, ""),
        pod_ip=env.get(POD_IP, ""),
    )


def current() -> Context:
    """The context of this process. Raises ConfigurationError for a missing or invalid variable."""
    return read_context(os.environ)


def pass_over(
    newest_first: Sequence[Found],
    repeats: int,
    before: int | None = None,
    step_of: Callable[[Found], int | None] = lambda one: None,
) -> Sequence[Found]:
    """The checkpoints to start from, after so many failures in a row with the same error at the same place. Pure.

    The newest one may be the cause, so from the second failure on it is left out, and one more with each further
    failure. So are those that a rule of the job calls sick: of step `before` and later, and of an unknown step. The
    oldest one never is.
    """
    fit = [one for one in newest_first if before is None or ((step := step_of(one)) is not None and step < before)]
    fit = fit or [*newest_first[-1:]]
    return fit[max(0, min(repeats - 1, len(fit) - 1)) :]


def choose_start(newest_first: Sequence[Found], step_of: Callable[[Found], int | None]) -> Found | None:
    """The checkpoint that this process starts from; None if there is none."""
    here = current()
    return next(iter(pass_over(newest_first, here.repeats, here.before, step_of)), None)
