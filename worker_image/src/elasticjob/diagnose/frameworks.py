"""What the doctor says of training frameworks: the launcher, the script's adapter, and versions. Imports none of them.

It reads the commands of this container's processes: run it in the pod, with `kubectl exec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from elasticjob import env
from elasticjob.diagnose.findings import OK, SKIP, WARN, Finding
from elasticjob.integrations import versions
from elasticjob.torchcompat import xla

_AGENTS: Final = ("torchrun", "elasticjob-run")
_AGENT_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "elasticjob.run")
_FOREIGN: Final = ("deepspeed", "mpirun", "mpiexec", "horovodrun", "srun", "accelerate", "accelerate-launch")
_MOST: Final = 200_000  # characters of a script that are read


@dataclass(frozen=True)
class Process:
    """A process of this container: its command, and the folder that relative paths begin in."""

    command: tuple[str, ...]
    folder: str = "/"


def read_processes(root: Path = Path("/proc")) -> list[Process]:
    """The processes that this one may see, by their number."""
    found = []
    places = root.iterdir() if root.is_dir() else ()
    for place in sorted((p for p in places if p.name.isdigit()), key=lambda p: int(p.name)):
        try:
            words = (place / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
            folder = str((place / "cwd").readlink())
        except OSError:
            continue  # it has ended, or belongs to somebody else
        if words != [""]:
            found.append(Process(tuple(words), folder))
    return found


def find_launcher(processes: Iterable[Process]) -> tuple[str | None, Process | None]:
    """The name of the first launcher, and its process. One that the script itself starts does not count."""
    for process in processes:
        words = _skip_python(process.command)
        if not words:
            continue
        name = PurePosixPath(words[0]).name
        if name in _AGENTS or words[0] in _AGENT_MODULES:
            return name, process
        if name in _FOREIGN and not (name == "accelerate" and words[1:2] != ["launch"]):
            return ("accelerate launch" if name.startswith("accelerate") else name), process
    return None, None


def _skip_python(command: Sequence[str]) -> list[str]:
    """`torchrun train.py` of `python -u /usr/bin/torchrun train.py`; `python -m torch.distributed.run` is like it."""
    words = list(command)
    if re.match(r"python[\d.]*$", PurePosixPath(words[0]).name):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] != "-m":
            words = words[1:]
        words = words[1:] if words[:1] == ["-m"] else words
    return words


def find_script(process: Process) -> str | None:
    """The first word after the launcher that names a Python file, as an absolute path."""
    script = next((word for word in _skip_python(process.command)[1:] if word.endswith(".py")), None)
    return None if script is None else str(Path(process.folder) / script)


def judge_launcher(processes: Iterable[Process]) -> Finding:
    """Whether an elastic agent starts the script."""
    name, process = find_launcher(processes)
    if name is None or process is None:
        remedy = "start the script with torchrun; run the doctor in the trainer container"
        return Finding("launcher", WARN, "no process of this container is torchrun or elasticjob-run", remedy)
    if name in _AGENTS or name in _AGENT_MODULES:
        return Finding("launcher", OK, name)
    script = next((word for word in process.command if word.endswith(".py")), "SCRIPT")
    words = process.command[process.command.index(script) :] if script in process.command else (script,)
    remedy = f"write `torchrun {' '.join(words)[:200]}`: see docs/frameworks.md"
    return Finding("launcher", WARN, f"{name} starts processes of its own, which do not join the job", remedy)


def find_imports(text: str) -> set[str]:
    """The top-level modules that a script imports."""
    lines = re.findall(r"^\s*(?:from|import)\s+([\w.]+)", text[:_MOST], re.MULTILINE)
    return {line.partition(".")[0] for line in lines}


def judge_script(script: str, text: str) -> Finding | None:
    """Whether a script that uses a framework lacks its adapter; None if it does not."""
    used = find_imports(text)
    if "elasticjob" in used:
        return None
    # In the order of STACKS: a Trainer of transformers uses accelerate below, and one adapter is enough.
    stack = next((stack for stack in versions.STACKS if used & set(stack.modules)), None)
    if stack is None:
        return None
    detail = (
        f"{script} uses {stack.package} without its adapter, so an announced change repeats the steps since the "
        "last checkpoint"
    )
    return Finding("frameworks", WARN, detail, f"{stack.use}, from {stack.adapter}")


def judge_xla(script: str, text: str, environ: Mapping[str, str]) -> Finding | None:
    """Whether a script trains with torch_xla where its collectives do nothing; None if it does not."""
    is_alone = environ.get("WORLD_SIZE") == "1"
    if is_alone or xla.MODULE not in find_imports(text) or environ.get(xla.DEVICE, "").upper() != "CPU":
        return None
    detail = (
        f"{script} uses torch_xla with {xla.DEVICE}=CPU, where it sees one process whatever the world has: its "
        "collectives do nothing, without an error"
    )
    return Finding("frameworks", WARN, detail, xla.REMEDY)


def judge_versions(read: Callable[[str], str | None]) -> tuple[list[str], list[str]]:
    """The installed frameworks, and those that are too old for their adapters."""
    found = {stack: version for stack in versions.STACKS if (version := read(stack.package)) is not None}
    problems = [problem for stack, version in found.items() if (problem := versions.find_problem(stack, version))]
    return [f"{stack.package} {version}" for stack, version in found.items()], problems


def check_launcher(environ: Mapping[str, str]) -> Finding:
    """Which launcher runs in this pod."""
    if not environ.get(env.HUB_URL):
        return Finding("launcher", SKIP, "not in an ElasticJob's pod")
    return judge_launcher(read_processes())


def check_frameworks(environ: Mapping[str, str]) -> Finding:
    """The versions of the frameworks, and whether the script uses the adapter of its framework."""
    installed, problems = judge_versions(versions.read_version)
    if problems:
        return Finding("frameworks", WARN, "; ".join(problems), "upgrade it in the image, or do without its adapter")
    process = find_launcher(read_processes())[1]
    script = None if process is None else find_script(process)
    try:
        text = "" if script is None else Path(script).read_text(errors="replace")
    except OSError:
        text = ""
    return (
        judge_xla(str(script), text, environ)
        or judge_script(str(script), text)
        or Finding("frameworks", OK, ", ".join(installed) or "none with an adapter is installed")
    )
