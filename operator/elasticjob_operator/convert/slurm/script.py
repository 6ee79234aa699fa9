"""The command of a batch script that starts the training, and the variables that it uses.

The script is not run. Lines that set variables to plain values become variables of the container; each other line is
left out with a warning that shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from elasticjob_operator.convert import commands, launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, as_name
from elasticjob_operator.convert.slurm import options as sbatch

_SBATCH: Final = re.compile(r"^#SBATCH\b", re.MULTILINE)
_COMPUTED: Final = re.compile(r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`")  # what a shell replaces by output
_OUTPUT: Final = "${COMMAND_OUTPUT}"
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_SILENT: Final = {"set", "echo", "date", "hostname", "wait", "exit", "nvidia-smi", "true", ":", "printenv"}
_LAUNCHERS: Final = {"torchrun", "deepspeed", "accelerate", "horovodrun", "mpirun", "mpiexec"}
_MOST: Final = 1_000_000  # characters
_MOST_OF_LINE: Final = 16_384  # to read the words of one takes as long as its square
_SHOWN: Final = 100


@dataclass
class _Script:
    """What the lines say."""

    options: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # also what is not exported
    length: int = 0  # characters of all values that any of these has had
    folder: str | None = None
    starts: list[tuple[int, int, list[str]]] = field(default_factory=list)  # how sure, line, words


def read_script(text: str) -> dict[str, Any] | None:
    """The document of a batch script; None if the text is something else."""
    if not (text.startswith("#!") or _SBATCH.search(text[:_MOST])):
        return None
    if len(text) > _MOST:
        raise ConversionError(f"the batch script has more than {_MOST} characters")
    return {"apiVersion": "slurm/v1", "kind": "BatchScript", "script": text}


def fill(draft: Draft) -> None:
    """From a document of `read_script`."""
    script = _read_lines(draft, str(draft.document.get("script") or ""))
    draft.document = {"kind": "BatchScript", "metadata": {"name": as_name(script.options.pop("job-name", ""), "slurm")}}
    sizes = sbatch.take_sizes(script.options)
    line, chosen = _choose(script)
    container: dict[str, Any] = {"name": "trainer", "image": pods.PLACEHOLDER_IMAGE}
    known = script.known | _known_to_slurm(sizes)
    words = _take_step(draft, _replace(chosen, known), container, sizes, line)
    container["resources"] = sbatch.take_resources(draft, script.options, sizes)
    folder = script.options.pop("chdir", None) or script.folder
    if folder and "$" not in folder:
        container.setdefault("workingDir", folder)
    draft.variables |= {name: value for name, value in script.exported.items() if "$" not in value}
    commands.set_command(draft, container, commands.to_torchrun(draft, words, f"line {line}"))
    if container["image"] == pods.PLACEHOLDER_IMAGE:
        draft.warn("image", f"is not in the script: put an image with its software instead of {pods.PLACEHOLDER_IMAGE}")
    pods.take_template(
        draft, {"spec": {"containers": [{k: v for k, v in container.items() if v}]}}, "script", "trainer"
    )
    launcher.take_arguments(draft, f"line {line}")
    for word in pods.trainer_of(draft)["command"]:
        if "$" in word:
            draft.warn(f"line {line}", f"{word} stays as it is, since its value is not in the script: write the value")
    high = sizes.nodes if sizes.low else None
    pods.take_bounds(draft, sizes.low, high, sizes.nodes, "#SBATCH --nodes")
    if sizes.nodes > 1 and not draft.elastic.get("minReplicas"):
        draft.warn(
            "#SBATCH --nodes", f"is not elastic: to make it so, set elasticPolicy.minReplicas below {sizes.nodes}"
        )
    sbatch.take_time(draft, script.options)
    sbatch.finish(draft, script.options)


def _known_to_slurm(sizes: sbatch.Sizes) -> dict[str, str]:
    """The variables of Slurm that have one value in every world. The number of nodes has not."""
    gpus = {"SLURM_GPUS_ON_NODE": str(sizes.gpus), "SLURM_GPUS_PER_NODE": str(sizes.gpus)} if sizes.gpus else {}
    return {"SLURM_NTASKS_PER_NODE": str(sizes.tasks), **gpus}


def _read_lines(draft: Draft, text: str) -> _Script:
    script = _Script()
    begun = False
    for number, line in _join(text):
        if len(line) > _MOST_OF_LINE:
            raise ConversionError(f"line {number}: has more than {_MOST_OF_LINE} characters: put them into a file")
        if _SBATCH.match(line):
            if begun:
                draft.warn(
                    f"line {number}", f"{line[:_SHOWN]} was left out: Slurm ignores options after a command, too"
                )
            else:
                script.options |= sbatch.read_line(line, number)
        elif not line.startswith("#"):
            begun = True
            _read_commands(draft, script, number, line)
    return script


def _join(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a line that ends with a backslash goes on in the next one."""
    parts: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start if parts else number
        joined = line.rstrip().endswith("\\") and not line.startswith("#")
        parts.append(line.rstrip()[:-1] if joined else line)
        if not joined:
            if whole := " ".join(parts).strip():
                yield start, whole
            parts = []
    if whole := " ".join(parts).strip():
        yield start, whole


def _read_commands(draft: Draft, script: _Script, number: int, line: str) -> None:
    try:
        words = commands.read_words(_COMPUTED.sub(_OUTPUT, line))
    except ValueError:
        words = [line]
    segments = list(_split(words))
    for segment, rest in segments:
        if not segment or PurePosixPath(segment[0]).name in _SILENT:
            continue
        sure = _find_sureness(segment)
        if sure:
            script.starts.append((sure, number, segment))
            if rest:
                draft.warn(
                    f"line {number}", f"{' '.join(rest)[:_SHOWN]} was left out: the output goes to the pod's log"
                )
        elif not _take_setting(script, segment):
            remedy = ": the image has the software" if segment[0] in ("module", "source", "conda", "ml", ".") else ""
            shown = line if len(segments) == 1 else " ".join(segment)
            draft.warn(f"line {number}", f"{shown[:_SHOWN]} was left out{remedy}")


def _split(words: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Each command of a line, and what follows it: redirections, a pipe, `&`."""
    command: list[str] = []
    rest: list[str] = []
    for word in (*words, ";"):
        if word in ("&&", "||", ";"):
            yield command, rest
            command, rest = [], []
        elif rest or (word and set(word) <= set("<>|&")):
            if not rest and command and command[-1].isdigit() and ">" in word:
                command.pop()  # 2>&1
            rest.append(word)
        else:
            command.append(word)


def _find_sureness(words: list[str]) -> int:
    """3: a launcher of torch or of a framework; 2: Python under srun; 1: Python; 0: something else."""
    text = " ".join(words)
    if "torch.distributed." in text or any(f" {name} " in f" {text} " for name in _LAUNCHERS) or "/torchrun " in text:
        return 3
    python = any(re.match(r"python[\d.]*$", PurePosixPath(word).name) for word in words)
    return 0 if not python else 2 if words[0] == "srun" else 1


def _take_setting(script: _Script, words: list[str]) -> bool:
    """Variables with plain values, and the folder. False: something else."""
    exports = words[0] == "export"
    if words[0] == "cd" and len(words) == 2:
        (script.folder,) = _replace(words[1:], script.known)
        return "$" not in script.folder
    given = words[1:] if exports else words
    found = [_ASSIGNED.match(word) for word in given]
    if not found or not all(found):
        return False
    written = {match[1]: match[2] for match in found if match}
    values = dict(zip(written, _replace([*written.values()], script.known), strict=True))
    if any(set(value) & set("$()") for value in values.values()):
        return False
    script.length += sum(map(len, values.values()))
    if script.length > _MOST:
        raise ConversionError(f"the script has more than {_MOST} characters with the values of its variables")
    script.known |= values
    if exports:
        script.exported |= values
    return True


def _replace(texts: list[str], known: dict[str, str]) -> list[str]:
    """The parts of a line, with the values of variables: each may name one many times, which names others."""

    def find(match: re.Match[str]) -> str:
        return known.get(match[1] or match[2], match[0])

    if sum(len(text) + sum(len(find(match)) for match in _VARIABLE.finditer(text)) for text in texts) > _MOST_OF_LINE:
        raise ConversionError(
            f"{' '.join(texts)[:_SHOWN]}: has more than {_MOST_OF_LINE} characters with the values of its variables: "
            "put them into a file"
        )
    return [_VARIABLE.sub(find, text) for text in texts]


def _choose(script: _Script) -> tuple[int, list[str]]:
    most = max((sure for sure, _, _ in script.starts), default=0)
    found = [(number, words) for sure, number, words in script.starts if sure == most]
    if not found:
        raise ConversionError("the script has no command that starts a training: for example `srun torchrun train.py`")
    if len(found) > 1:
        lines = ", ".join(str(number) for number, _ in found)
        raise ConversionError(f"lines {lines}: each starts a training: make a script of each")
    return found[0]


def _take_step(draft: Draft, words: list[str], container: dict[str, Any], sizes: sbatch.Sizes, line: int) -> list[str]:
    """The command behind srun, its options, a container runtime and a shell."""
    words = commands.take_assignments(draft, words)
    if words and words[0] == "srun":
        step, words = sbatch.read_options(words[1:])
        for name in ("nodes", "ntasks", "ntasks-per-node", "nodelist", "cpus-per-task", "gres", "gpus-per-node"):
            step.pop(name, None)  # the size of the job counts
        image = step.pop("container-image", "")
        if image and "$" not in image:
            container["image"] = image.removeprefix("docker://").replace("#", "/")
        folder = step.pop("container-workdir", "")
        if folder and "$" not in folder:
            container["workingDir"] = folder
        sbatch.finish(draft, step, "srun")
        if sizes.tasks > 1 and not any(name in " ".join(words) for name in (*_LAUNCHERS, "torch.distributed.")):
            draft.spec["nprocPerNode"] = sizes.tasks
            draft.warn(f"line {line}", "the script reads RANK and WORLD_SIZE, which torchrun sets, not SLURM_PROCID")
    plain = commands.unwrap(words)
    if plain is None:
        raise ConversionError(f"line {line}: the shell has more than one command: leave only the one that trains")
    start = next((i for i, word in enumerate(plain) if _starts(word)), 0)
    if start:
        draft.warn(f"line {line}", f"{' '.join(plain[:start])[:_SHOWN]} was left out: the image has the software")
    return plain[start:]


def _starts(word: str) -> bool:
    name = PurePosixPath(word).name
    return name in _LAUNCHERS or re.match(r"python[\d.]*$", name) is not None
