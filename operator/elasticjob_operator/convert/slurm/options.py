"""The `#SBATCH` options of a batch script: size, resources, name, time limit. Each other one becomes a warning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.convert import commands
from elasticjob_operator.convert.draft import ConversionError, Draft

_LONG: Final = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "n": "ntasks",
    "o": "output", "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_FLAGS: Final = {
    "exclusive", "requeue", "no-requeue", "hold", "oversubscribe", "overcommit", "contiguous", "no-kill", "wait",
    "spread-job", "verbose", "quiet", "parsable", "reboot", "overlap", "unbuffered", "exact", "label", "pty",
    "kill-on-bad-exit",
}  # fmt: skip
_SHORT_FLAGS: Final = {"H": "hold", "s": "oversubscribe", "O": "overcommit", "k": "no-kill", "v": "verbose",
                       "u": "unbuffered", "l": "label", "K": "kill-on-bad-exit", "W": "wait", "Q": "quiet"}  # fmt: skip
_MEMORY: Final = re.compile(r"([0-9]+)([KMGT]?)B?$", re.IGNORECASE)
_TIME: Final = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?$")
_REMEDIES: Final = {
    "partition": "use nodeSelector in the template, or a Kueue queue",
    "account": "use a namespace or a Kueue queue",
    "qos": "use priorityClassName in the template",
    "output": "read the logs with `kubectl elasticjob logs`",
    "error": "read the logs with `kubectl elasticjob logs`",
    "signal": "workers receive SIGTERM before an announced change, see docs/elastic-scripts.md",
    "array": "make a job for each index",
    "dependency": "start the job when the other one is complete",
    "constraint": "use nodeSelector in the template",
    "nodelist": "use nodeSelector in the template",
    "exclude": "use affinity in the template",
    "exclusive": "request the resources of a whole node",
    "mail-type": "watch the job's events",
    "mail-user": "watch the job's events",
    "export": "set env in the template",
    "reservation": "use a Kueue queue",
    "container-mounts": "mount volumes in the template",
    "container-name": "put the image into the template",
}
_WITHOUT_MEANING: Final = {"requeue", "no-requeue", "parsable", "quiet", "verbose", "label", "unbuffered", "wait",
                           "kill-on-bad-exit", "overlap", "exact", "pty"}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """What the options say of the size. Numbers are per node."""

    low: int | None
    nodes: int
    tasks: int
    gpus: int


def read_options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Options by their long name, and the words after them. For `#SBATCH` lines and for srun."""
    found: dict[str, str] = {}
    i = 0
    while i < len(words) and words[i].startswith("-") and words[i] != "--":
        word = words[i]
        i += 1
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            takes = not equals and name not in _FLAGS
        else:
            flag = word[1:2] in _SHORT_FLAGS
            name, value = (_SHORT_FLAGS if flag else _LONG).get(word[1:2], word[1:2]), word[2:].removeprefix("=")
            takes = not value and not flag
        if takes and i < len(words):
            value = words[i]
            i += 1
        found[name] = value
    return found, words[i + 1 :] if i < len(words) and words[i] == "--" else words[i:]


def read_line(line: str, number: int) -> dict[str, str]:
    """The options of one `#SBATCH` line."""
    try:
        words = commands.read_words(line.removeprefix("#SBATCH"))
    except ValueError as error:
        raise ConversionError(f"line {number}: cannot be read: {error}") from None
    if words[:1] in (["hetjob"], ["packjob"]):
        raise ConversionError(f"line {number}: {words[0]}: has no counterpart: make a job of each part")
    found, rest = read_options(words)
    if rest:
        raise ConversionError(f"line {number}: {rest[0]!r} is not an option of sbatch")
    return found


def take_sizes(options: dict[str, str]) -> Sizes:
    """Take the options of size away."""
    low, high = _take_range(options)
    per_node = _take_number(options, "ntasks-per-node")
    total = _take_number(options, "ntasks")
    nodes = high if high is not None else max(1, -(-(total or 1) // (per_node or total or 1)))
    tasks = per_node or max(1, (total or nodes) // nodes)
    gpus = _take_gpus(options, nodes, tasks)
    return Sizes(low if low != high else None, nodes, tasks, gpus)


def take_resources(draft: Draft, options: dict[str, str], sizes: Sizes) -> dict[str, Any]:
    """The container's resources."""
    each = _take_number(options, "cpus-per-task")
    cpus = each * sizes.tasks if each else None
    memory = _take_memory(draft, options, "mem", 1)
    memory = memory or _take_memory(draft, options, "mem-per-cpu", cpus or sizes.tasks)
    memory = memory or _take_memory(draft, options, "mem-per-gpu", sizes.gpus or 1)
    requests = {"cpu": str(cpus) if cpus else None, "memory": memory}
    limits = {"nvidia.com/gpu": sizes.gpus or None}
    parts: dict[str, dict[str, Any]] = {"requests": requests, "limits": limits}
    given = {part: {k: v for k, v in values.items() if v is not None} for part, values in parts.items()}
    return {part: values for part, values in given.items() if values}


MOST_DEADLINE_SECONDS: Final = 2**31 - 1


def take_time(draft: Draft, options: dict[str, str]) -> None:
    text = options.pop("time", "")
    if not text or text.upper() in ("0", "UNLIMITED", "INFINITE"):
        return
    match = _TIME.match(text)
    if match is None:
        raise ConversionError(f"#SBATCH --time={text}: must be minutes, [hours:]minutes:seconds or days-hours")
    days, *numbers = (numerals.read_count(part) for part in match.groups())
    parts = [part for part in numbers if part is not None]
    if days is None:  # minutes, minutes:seconds, hours:minutes:seconds
        hours, minutes, seconds = (0, *parts, 0) if len(parts) == 1 else (0, *parts) if len(parts) == 2 else parts
    else:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    deadline = ((days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds
    if deadline > MOST_DEADLINE_SECONDS:
        raise ConversionError(f"#SBATCH --time={text}: must be less than 68 years; leave it out for no limit")
    draft.run["activeDeadlineSeconds"] = deadline
    draft.warn("#SBATCH --time", "became runPolicy.activeDeadlineSeconds: remove it if the job may run longer")


def finish(draft: Draft, options: dict[str, str], command: str = "#SBATCH") -> None:
    """A warning for each option that is left."""
    for name, value in options.items():
        if name not in _WITHOUT_MEANING:
            text = f"{command} {'--' if len(name) > 1 else '-'}{name}"
            draft.warn(text, f"{value} was dropped: {_REMEDIES.get(name, 'it has no counterpart')}".lstrip())


def _take_number(options: dict[str, str], name: str) -> int | None:
    text = options.pop(name, None)
    if text is None:
        return None
    number = numerals.read_count(text, 10**6 - 1, least=1)
    if number is None:
        raise ConversionError(f"#SBATCH --{name}={text[:64]}: must be a number above 0 and below a million")
    return number


def _take_range(options: dict[str, str]) -> tuple[int | None, int | None]:
    text = options.pop("nodes", None)
    if text is None:
        return None, None
    low, high = (
        numerals.read_count(part, 10**6 - 1) for part in (text if "-" in text else f"{text}-{text}").split("-", 1)
    )
    if low is None or high is None or not 1 <= low <= high:
        raise ConversionError(f"#SBATCH --nodes={text}: must be a number, or a range like 2-8")
    return low, high


def _take_gpus(options: dict[str, str], nodes: int, tasks: int) -> int:
    """GPUs of a node."""
    found = 0
    for name, factor, parts in (("gpus-per-node", 1, 1), ("gpus", 1, nodes), ("gpus-per-task", tasks, 1)):
        text = options.pop(name, "")
        found = found or _read_gpus(text, name) * factor // parts
    for resource in options.pop("gres", "").split(","):
        kind, colon, count = resource.partition(":")
        if kind == "gpu":
            found = found or (_read_gpus(count, "gres") if colon else 1)
        elif kind:
            options["gres"] = resource  # which `finish` names
    return found


def _read_gpus(text: str, name: str) -> int:
    """`4`, `a100:4`, or a type alone."""
    if not text:
        return 0
    count = text.rpartition(":")[2].partition("(")[0]
    number = numerals.read_count(count, 9999)
    if number is None:
        if ":" in text or "," in text:
            raise ConversionError(f"#SBATCH --{name}={text}: must be a number of GPUs, or type:number")
        return 1
    return number


def _take_memory(draft: Draft, options: dict[str, str], name: str, factor: int) -> str | None:
    text = options.pop(name, None)
    if text is None:
        return None
    match = _MEMORY.match(text)
    number = numerals.read_count(match and match[1], 10**9 - 1)
    if match is None or number is None:
        raise ConversionError(f"#SBATCH --{name}={text}: must be a number with K, M, G or T")
    if number == 0:
        draft.warn(f"#SBATCH --{name}", "0 was dropped: it asked for all memory of the node; set a number in resources")
        return None
    return f"{number * factor}{(match[2] or 'M').upper()}i"
