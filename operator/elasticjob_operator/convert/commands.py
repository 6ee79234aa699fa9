"""Commands of the sources that do not start with torchrun: a line of a shell, `mpirun -np 8 python train.py`, `python`.

They become the same script under torchrun. What stands between the launcher and the script is taken or becomes a
warning; the script's own arguments are kept.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from elasticjob_operator.convert.draft import ConversionError, Draft

_SHELLS: Final = ("sh", "bash", "dash", "zsh")
_PYTHON: Final = re.compile(r"python[\d.]*$")
_TORCH_MODULES: Final = ("torch.distributed.run", "torch.distributed.launch", "torchelastic.distributed.launch")
_MPI: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun")
_SCRIPT_LAUNCHERS: Final = ("deepspeed", "accelerate")  # they take a script, not a command
_WRAPPERS: Final = ("exec", "nohup", "env", "time")
_MOST: Final = 65_536  # characters of a line: to read its words takes as long as its square
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
# mpirun's options with one value, and with two; all others have none.
_ONE: Final = {
    "np", "n", "c", "N", "ppn", "npernode", "npersocket", "map-by", "bind-to", "rank-by", "H", "host", "hosts",
    "hostfile", "machinefile", "f", "x", "wdir", "wd", "prefix", "output-filename", "timeout", "iface", "p", "ssh-port",
    "min-np", "max-np", "min-num-proc", "max-num-proc", "host-discovery-script", "slots-per-host", "start-timeout",
    "network-interfaces", "launcher",
}  # fmt: skip
_TWO: Final = {"mca", "gmca", "prtemca", "pmixmca", "omca", "env", "genv"}
_SIZES: Final = {"np", "n", "c", "N", "ppn", "npernode", "min-np", "max-np", "min-num-proc", "max-num-proc",
                 "slots-per-host"}  # fmt: skip


def read_words(line: str) -> list[str]:
    """The words and operators of a shell line, without its comment. Raises ValueError."""
    if len(line) > _MOST:
        raise ValueError(f"a line of more than {_MOST} characters")
    try:
        words = list(_make_lexer(line))
    except ValueError:
        words = list(_make_lexer(_COMMENT.sub("", line)))  # the comment may have an apostrophe
    start = next((number for number, word in enumerate(words) if word.startswith("#")), None)
    return words[:start]


def _make_lexer(line: str) -> shlex.shlex:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters, lexer.whitespace_split = "", True  # its own comments begin inside of words, too
    return lexer


def split_line(line: str) -> list[str] | None:
    """The words of a shell line; None if it has more than one command, or cannot be read."""
    joined = line.replace("\\\n", " ").strip()
    try:
        words = read_words(joined)
    except ValueError:
        return None
    if "\n" in joined or any(word and set(word) <= set("();<>|&") for word in words):
        return None
    return words


def unwrap(words: Sequence[str]) -> list[str] | None:
    """The words of the command itself, without the shell around it; None if the shell has more than one command."""
    if len(words) >= 3 and PurePosixPath(words[0]).name in _SHELLS and re.fullmatch(r"-[a-z]*c", words[1]):
        return split_line(words[2])
    return list(words)


def to_torchrun(draft: Draft, words: Sequence[str], path: str, passed: Mapping[str, str] | None = None) -> list[str]:
    """The command under torchrun. `passed` are the variables that `mpirun -x NAME` takes from the launcher.

    Raises ConversionError for a command that is not a Python script.
    """
    rest = take_assignments(draft, words)
    while rest and _name(rest) in _MPI:
        rest = take_assignments(draft, _take_mpi_options(draft, rest, path, passed or {}))
    if not rest:
        raise ConversionError(f"{path}: has no command: give the one that starts the script")
    name = _name(rest)
    if name == "torchrun" or (_PYTHON.match(name) and any(module in rest for module in _TORCH_MODULES)):
        return rest
    if name in _SCRIPT_LAUNCHERS:
        return _under_torchrun(draft, rest, path)
    script = _find_script(rest)
    if script is None:
        raise ConversionError(f"{path}: {name} is not a Python script: an ElasticJob starts scripts with torchrun")
    return ["torchrun", *script]


def take_assignments(draft: Draft, words: Sequence[str]) -> list[str]:
    """Move `NAME=value` before the command to the draft's variables."""
    rest = list(words)
    while rest and (rest[0] in _WRAPPERS or _ASSIGNMENT.match(rest[0])):
        name, equals, value = rest.pop(0).partition("=")
        if equals:
            add_variable(draft, name, value)
    return rest


def add_variable(draft: Draft, name: str, value: str) -> None:
    """Set a variable of the trainer. What its container sets already takes precedence."""
    draft.variables.setdefault(name, value)


def set_command(draft: Draft, container: dict[str, Any], words: Sequence[str]) -> None:
    """Make this the command of the trainer's container, with the variables that were found before."""
    container.pop("args", None)
    container["command"] = list(words)
    env = container.get("env") or []
    known = {entry.get("name") for entry in env if isinstance(entry, dict)} if isinstance(env, list) else set()
    more = [{"name": name, "value": value} for name, value in draft.variables.items() if name not in known]
    if more and isinstance(env, list):
        container["env"] = [*env, *more]


def _name(words: Sequence[str]) -> str:
    return PurePosixPath(words[0]).name


def _take_mpi_options(draft: Draft, words: list[str], path: str, passed: Mapping[str, str]) -> list[str]:
    """What follows the options of mpirun or horovodrun."""
    launcher, rest = _name(words), words[1:]
    draft.warn(
        path,
        f"{launcher} became torchrun: the script needs torch.distributed instead of mpi4py, or"
        " `import elasticjob.compat.horovod as hvd` instead of `import horovod.torch as hvd`",
    )
    while rest and rest[0].startswith("-"):
        option, equals, _ = rest[0].partition("=")
        option = option.lstrip("-")
        width = 1 if equals else 3 if option in _TWO else 2 if option in _ONE else 1
        taken, rest = rest[:width], rest[width:]
        if option == "x" and len(taken) == 2:
            _pass_variable(draft, taken[1], path, passed)
        elif option in ("env", "genv") and len(taken) == 3:
            add_variable(draft, taken[1], taken[2])
        else:
            where = ": spec.elasticPolicy and spec.nprocPerNode decide it" if option in _SIZES else ""
            draft.warn(path, f"{' '.join(taken)} was dropped{where}")
    return rest


def _pass_variable(draft: Draft, text: str, path: str, passed: Mapping[str, str]) -> None:
    name, equals, value = text.partition("=")
    if equals or name in passed:
        add_variable(draft, name, value if equals else passed[name])
    else:
        draft.warn(path, f"-x {name} was dropped: set the variable in the template if the worker needs it")


def _under_torchrun(draft: Draft, words: list[str], path: str) -> list[str]:
    """`deepspeed --num_gpus 8 train.py` and `accelerate launch --num_processes 8 train.py`."""
    module = next((i for i, word in enumerate(words) if word in ("-m", "--module")), None)
    script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    start = script if module is None or (script is not None and script < module) else module
    if start is None or start + 1 > len(words):
        raise ConversionError(f"{path}: {words[0]} names no script: give a file that ends in .py, or -m and a module")
    dropped = [word for word in words[1:start] if word != "launch"]
    options = f"; {' '.join(dropped)} was dropped" if dropped else ""
    draft.warn(path, f"{_name(words)} became torchrun: see docs/frameworks.md{options}")
    return [
        "torchrun",
        *(("-m",) if words[start] == "--module" else ()),
        *words[start + (words[start] == "--module") :],
    ]


def _find_script(words: list[str]) -> list[str] | None:
    """`train.py --x` of `python -u train.py --x`; None if this is another program."""
    rest = words[1:] if _PYTHON.match(_name(words)) else words
    if rest is words:
        return words if words[0].endswith(".py") else None
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2 if rest[0] in ("-W", "-X") else 1 :]
    return None if not rest or rest[0] in ("-c", "-") or rest == ["-m"] else rest
