"""What a disturbed run of a script must have in common with an undisturbed one. Pure but for what reads files."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# In a pod's TMPDIR, and how many of each: an agent of torch's keeps error files of its workers in the first one, the
# first optimizer of a process makes the second, and a process with locks or queues that a signal ends leaves the third.
# A plain torchrun leaves all of them.
EXPLAINED = {"torchelastic_": 1, "torchinductor_": 1, "pymp-": None}
# A file of torch's own save, which nobody removes if its process is killed: torch only renames it.
_OF_TORCH = re.compile(r"saved/(dcp-\d+)/\.metadata\.tmp")


@dataclass(frozen=True)
class Suspend:
    """All pods were told to save, and stopped."""

    made: int  # steps that could still be saved when they were told
    generation: int  # of their world


@dataclass
class Run:
    """What a run has left behind."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    finals: dict[int, Any] = field(default_factory=dict)  # the last world's state, by rank
    files: list[str] = field(default_factory=list)  # below the folder of checkpoints
    newest: str = ""  # what the script says there of its newest save, if it does
    left: list[str] = field(default_factory=list)  # processes and temporary files
    suspends: list[Suspend] = field(default_factory=list)
    error: str | None = None


def count_made(lines: Sequence[Mapping[str, Any]], running: int | None) -> int:
    """How many steps a suspend could still save. Pure.

    `running`: the generation of a world that has what it has made in no other place than its memory; None for a
    session, whose ranks keep theirs over changes. A world that has not made a step yet has those of its last save only.
    """
    return max((one["step"] for one in lines if "seen" in one and running in (None, one["generation"])), default=0)


def find_unexplained(names: Sequence[str]) -> list[str]:
    """Those of one pod's temporary files that neither torch nor Python leaves by itself. Pure."""
    found: dict[str, int] = defaultdict(int)
    left = []
    for name in names:
        kind = next((one for one in EXPLAINED if name.startswith(one)), "")
        found[kind] += 1
        most = EXPLAINED.get(kind, 0)
        if most is not None and found[kind] > most:
            left.append(name)
    return left


def read_finals(folder: Path, first: bool = False) -> dict[int, Any]:
    """The states that the ranks of the last world have written, or of the first one that came to the end."""
    found: dict[int, dict[int, Any]] = defaultdict(dict)
    for path in folder.glob("final-*.pt"):
        generation, rank = (int(part) for part in path.stem.split("-")[1:])
        found[generation][rank] = torch.load(path, weights_only=False)
    return found[(min if first else max)(found)] if found else {}


def compare(run: Run, reference: Run, steps: int, tolerance: float) -> list[str]:
    """The differences that no rounding explains; empty if there are none."""
    if run.error is not None:
        return [run.error]
    wrong = list(_compare_samples(run.lines, reference.lines, steps))
    wrong += _compare_evaluations(run.lines, reference.lines, tolerance)
    if not run.finals:
        return [*wrong, "no rank has come to its end"]
    expected = reference.finals[min(reference.finals)]
    for rank, state in sorted(run.finals.items()):
        differences = list(find_differences(state, expected, tolerance))
        wrong += [f"rank {rank} ends with {one}" for one in differences[:4]]
    wrong += [f"{name} is left" for name in (*run.left, *find_unfinished(run))]
    return wrong


def find_unfinished(run: Run) -> list[str]:
    """The files of saves that have not come to their end, beyond those of torch's that the end of a world explains.

    Each such end may explain one, and none that of the save from which the script would go on.
    """
    found = [name for name in run.files if ".tmp" in name]
    matches = {name: match[1] for name in found if (match := _OF_TORCH.fullmatch(name))}
    torn = [name for name, folder in matches.items() if folder != run.newest]
    worlds = {line["generation"] for line in run.lines if "generation" in line}
    explained = torn[: max(0, len(worlds) - 1)]
    return [name for name in found if name not in explained]


def read_newest(saved: Path) -> str:
    """What the file `latest` says, which a script with torch's distributed checkpoints writes after each."""
    latest = saved / "latest"
    return latest.read_text() if latest.is_file() and not latest.is_symlink() else ""


def _samples(lines: Sequence[Mapping[str, Any]]) -> dict[int, tuple[int, int, list[int]]]:
    """By step, as its last world made it: the size of that world, how many ranks wrote a line, and their samples."""
    found: dict[int, dict[int, dict[int, Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if "seen" in line:
            found[line["step"]][line["generation"]][line["rank"]] = line
    made = {}
    for step, worlds in found.items():
        ranks = worlds[max(worlds)]
        size = next(iter(ranks.values()))["world"]
        made[step] = size, len(ranks), sorted(item for line in ranks.values() for item in line["seen"])
    return made


def _compare_samples(
    lines: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], steps: int
) -> Iterator[str]:
    own, other = _samples(lines), _samples(expected)
    for step in range(1, steps + 1):
        if step not in own:
            yield f"step {step} was never made"
            continue
        size, ranks, seen = own[step]
        wanted = other[step][2]
        if ranks == size and seen != wanted:
            yield f"step {step} has seen {seen}, and should {wanted}"
        if len(set(seen)) != len(seen) or not set(seen) <= set(wanted):
            yield f"step {step} has seen {seen}, of {wanted}"


def _compare_evaluations(
    lines: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]], tolerance: float
) -> Iterator[str]:
    known = {line["at"]: line["found"] for line in expected if "found" in line}
    for line in lines:
        if "found" in line:
            (mean, count), (right, number) = line["found"], known[line["at"]]
            if count != number or not math.isclose(mean, right, rel_tol=1e3 * tolerance):
                yield f"the evaluation after step {line['at']} found {mean} of {count} samples, not {right} of {number}"


def check_suspends(run: Run, steps: int, every: int, is_told: bool, tolerance: float) -> Iterator[str]:
    """What suspends have cost, and whether training went on from the state in which they had left it.

    `is_told`: the script saves when it is told to, so no step is lost that was made before. Others lose what they have
    made since their last save, which may not have been complete: less than twice `every` steps.
    """
    made = {(line["step"], line["generation"]): line for line in run.lines if "seen" in line and line["rank"] == 0}
    for suspend in run.suspends:
        if (steps, suspend.generation) in made:
            continue  # it came to its end before it was told
        restored = [line for line in run.lines if line.get("restored") is not None and line["rank"] == 0]
        after = min(
            (line for line in restored if line["generation"] > suspend.generation),
            key=lambda line: int(line["generation"]),
            default=None,
        )
        if after is None:
            yield f"nobody went on after the suspend at step {suspend.made}"
            continue
        step, least = after["restored"], suspend.made if is_told else suspend.made - 2 * every + 1
        if step < least:
            yield f"the suspend at step {suspend.made} cost all steps after {step}"
        worlds = [world for number, world in made if number == step and world < after["generation"]]
        before = made.get((step, max(worlds, default=0)))
        if before is not None and before["world"] == after["world"]:
            for difference in find_differences(after["state"], before["state"], tolerance, "/weights"):
                yield f"after the suspend at step {suspend.made}, step {step} has {difference}"


def find_differences(own: Any, expected: Any, tolerance: float, path: str = "") -> Iterator[str]:
    """Where two nested states differ by more than rounding."""
    if isinstance(own, Mapping) and isinstance(expected, Mapping):
        for key in sorted({*own, *expected}, key=str):
            if key not in own or key not in expected:
                yield f"{'no' if key in expected else 'a further'} {path}/{key}"
            else:
                yield from find_differences(own[key], expected[key], tolerance, f"{path}/{key}")
    elif isinstance(own, (list, tuple)) and isinstance(expected, (list, tuple)):
        if len(own) != len(expected):
            yield f"{path} of the length {len(own)}, not {len(expected)}"
        for index, (one, other) in enumerate(zip(own, expected, strict=False)):
            yield from find_differences(one, other, tolerance, f"{path}/{index}")
    elif isinstance(own, torch.Tensor) and isinstance(expected, torch.Tensor):
        yield from _compare_tensors(own, expected, tolerance, path)
    elif isinstance(own, float) and isinstance(expected, float):
        if not math.isclose(own, expected, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{path} {own}, not {expected}"
    elif isinstance(own, torch.Tensor) or isinstance(expected, torch.Tensor):
        # A number may have become a tensor without a dimension, or the other way round.
        if not torch.allclose(
            torch.as_tensor(own, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64)
        ):
            yield f"{path} {own}, not {expected}"
    elif isinstance(own, (str, int, bool, type(None))) and own != expected:
        yield f"{path} {own!r}, not {expected!r}"


def _compare_tensors(own: torch.Tensor, expected: torch.Tensor, tolerance: float, path: str) -> Iterator[str]:
    if own.shape != expected.shape or own.dtype != expected.dtype:
        yield f"{path} of {own.dtype}{list(own.shape)}, not {expected.dtype}{list(expected.shape)}"
        return
    one, other = own.to_dense() if own.is_sparse else own, expected.to_dense() if expected.is_sparse else expected
    if not torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
        yield f"{path} off by {float((one - other).abs().max()):.3g}"
