"""Finds commands that start a script without an elastic agent, and the command to use instead. Pure.

The launchers of the frameworks start processes too, but they know nothing of an ElasticJob. Each pod would train alone.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Collection, Sequence

from elasticjob_operator.api.names import RENDEZVOUS_BACKEND

_PROGRAMS = ("torchrun", "elasticjob-run")
_MODULES = ("torch.distributed.run", "torch.distributed.launch", "elasticjob.run")
_AGENTS = (*_PROGRAMS, *_MODULES)
_LAUNCHERS = ("deepspeed", "mpirun", "mpiexec", "horovodrun", "srun", "hyperpodrun", "composer", "colossalai")
_SHELLS = ("sh", "bash", "dash")
_WRAPPERS = ("env", "exec", "nice", "nohup", "tini", "dumb-init", "--")
_MOST = 4096  # characters of a shell script that are read


def find_foreign(command: Sequence[str]) -> str | None:
    """Why this command of a trainer container starts no agent, and what to write; None if it may start one.

    Only what is certain is reported: another program, a script under `python` too, may start an agent itself.
    """
    if starts_agent(command):
        return None
    words = _split(command)
    words = list(itertools.dropwhile(_is_wrapping, words))
    if not words:
        return None
    name = _program_of(words[0])
    instead = _rewrite(words)
    if name == "accelerate" and words[1:2] == ["launch"]:
        why = "accelerate launch starts a world of this pod alone"
        return f"{why}: write `{instead}`; Accelerator() reads the environment that torchrun sets"
    if name in _LAUNCHERS:
        return f"{name} starts processes of its own, which do not join the job: write `{instead}`"
    return None


def _is_wrapping(word: str) -> bool:
    return "=" in word or _program_of(word) in _WRAPPERS


def starts_agent(command: Sequence[str]) -> bool:
    """Whether this command names an elastic agent."""
    words = _split(command)
    text = "\n".join(words)
    return any(agent in text for agent in _AGENTS) or "elasticjob" in text.partition("\n")[2]


# Arguments of torchrun that take it away from the operator's rendezvous. Sizes and addresses do not.
_OVERRIDING = ("standalone", "rdzv-backend")


def find_overriding(command: Sequence[str]) -> tuple[str, ...]:
    """The arguments of torchrun in this command that choose another rendezvous than the operator's."""
    words = list(command)
    if len(words) >= 3 and _program_of(words[0]) in _SHELLS:
        words = words[2][:_MOST].replace(";", " ").split()
    start = next((number for number, word in enumerate(words) if _is_torchrun(word)), len(words))
    found = []
    for number, word in enumerate(words[start + 1 :], start + 1):
        if word.endswith((".py", ".pyz")) and not word.startswith("-"):
            break  # what follows is the script's
        argument, _, value = word.partition("=")
        value = value or "".join(words[number + 1 : number + 2])
        if argument.lstrip("-").replace("_", "-") in _OVERRIDING and argument.startswith("--"):
            found.append(argument if value != RENDEZVOUS_BACKEND else "")
    return tuple(filter(None, found))


# What other operators and schedulers tell a pod of its place, and a shell's or the kubelet's way to read it. A default
# (`${RANK:-0}`) is one's own.
_OF_OTHERS = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "PET_NODE_RANK", "PET_MASTER_ADDR"),
    *("PET_MASTER_PORT", "JOB_COMPLETION_INDEX", "VC_TASK_INDEX", "VK_TASK_INDEX", "VC_MASTER_HOSTS"),
    *("VC_WORKER_HOSTS", "SLURM_NODEID", "SLURM_NNODES"),
)
_NAMES = "|".join(_OF_OTHERS)
_READ = re.compile(rf"\$(?:\((?P<kubelet>{_NAMES})\)|{{(?P<shell>{_NAMES})}}|(?P<bare>{_NAMES})(?!\w))")


def find_unset(command: Sequence[str], known: Collection[str]) -> tuple[str, ...]:
    """The variables of other operators that this command reads and that neither it nor the container sets."""
    text = "\n".join(command)[:_MOST]
    read = dict.fromkeys(found[found.lastgroup or 0] for found in _READ.finditer(text))
    return tuple(name for name in read if name not in known and f"{name}=" not in text)


def _is_torchrun(word: str) -> bool:
    return (word.endswith(_PROGRAMS) and _program_of(word) in _PROGRAMS) or word in _MODULES


def _program_of(word: str) -> str:
    """The program that is called by its name or by its path."""
    return word.rstrip("/").rpartition("/")[2]


def _split(command: Sequence[str]) -> list[str]:
    """The words of the command; of the last line of a script that a shell is given."""
    words = list(command)
    if len(words) >= 3 and _program_of(words[0]) in _SHELLS and words[1] in ("-c", "-ec", "-lc", "-exc"):
        text = words[2][:_MOST]
        if any(agent in text for agent in _AGENTS):
            return [_AGENTS[0]]
        lines = [line for line in text.replace("&&", "\n").replace(";", "\n").splitlines() if line.strip()]
        try:
            return shlex.split(lines[-1]) if lines else []
        except ValueError:
            return []
    return words


def _rewrite(words: Sequence[str]) -> str:
    """The same script under torchrun."""
    script = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if script is None:
        return "torchrun SCRIPT"
    return shlex.join(["torchrun", *words[script:]])[:300]
