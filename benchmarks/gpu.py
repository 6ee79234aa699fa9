"""The table of what was seen on a GPU, from the files that `make gpu` writes. Pure but for `add`.

`python -m benchmarks.gpu FILE` keeps a run's file among the results; then `make generate` writes the tables anew.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NOTHING = "No run on a device has been recorded yet: sessions over NCCL are unproven."
NOT_TRIED = (
    "Not tried: several devices in a node with NVLink or shared memory between them, nodes with InfiniBand or EFA, "
    "MIG, bandwidths of NCCL, hours of training."
)
Run = Mapping[str, Any]
Values = Mapping[str, Any]


def _seconds(*names: str) -> Callable[[Values], str]:
    """These lists of seconds, each with the least and the most."""

    def say(values: Values) -> str:
        found = []
        for name in names:
            numbers = [one for one in values.get(name) or () if one is not None]
            label = " ".join(re.findall(r"[A-Z]?[a-z]+", name.removeprefix("seconds"))).lower()
            if numbers:
                span = f"{min(numbers):.2f}" + (f"–{max(numbers):.2f}" if len(numbers) > 1 else "")
                found.append(f"{label} {span} s")
        return ", ".join(found)

    return say


def _pods(values: Values, *names: str) -> str:
    if "notRun" in values:
        return str(values["notRun"])
    found = [f"{' '.join(re.findall('[A-Z]?[a-z]+', name)).lower()} {values[name]} s" for name in names]
    return ", ".join(found)


def _regroups(values: Values) -> str:
    looks = values.get("looks") or []
    told = _seconds("secondsAnnounced", "secondsLost")(values)
    if len(looks) < 4:
        return told
    third = len(looks) // 3
    early, late = looks[2 : 2 + third], looks[-third:]  # the very first world is measured before it has trained
    least = {
        name: [min(one[name] for one in part) for part in (early, late)] for name in ("threads", "files", "rssMib")
    }
    kept = ", ".join(f"{name.removesuffix('Mib')} {before} → {after}" for name, (before, after) in least.items())
    free = [max(one["freeMib"] for one in part) for part in (early, late)]
    return f"{told}; the least of early and late worlds: {kept} MiB, memory of the device {free[0] - free[1]:+} MiB"


def _snapshots(values: Values) -> str:
    return (
        f"{values['gibibytes']} GiB: {values['laterGBs']} GB/s; the first one in a step holds it up for "
        f"{values['stallMsOfFirst']:.0f} ms, later ones for {values['stallMsOfLater']:.0f} ms"
    )


def _fence(values: Values) -> str:
    found = []
    for case, label in (("device", "bound by the device"), ("launches", "bound by its launches")):
        if case in values:
            shares = values[case]["shares"]
            beside = "" if "ddp" in shares else " of DDP"  # an earlier form
            found.append(
                f"{label}, {values[case]['milliseconds']['plain']:.1f} ms{beside}: with a wait for the device "
                f"{shares['waits']:+.1%}, in a session {shares['session']:+.1%} (plain again {shares['again']:+.1%})"
            )
    return "; ".join(found)


def _hang(values: Values) -> str:
    return f"seen after {values.get('secondsUntilBlocked')} s"


def _doctor(values: Values) -> str:
    took = ", ".join(f"{level} {values[level]['seconds']} s" for level in ("Node", "Network") if level in values)
    return f"{took}; {values.get('mibLeftInAgent')} MiB stay"


def _watchdog(values: Values) -> str:
    modes = [
        (mode, values[f"mode{mode}"]) for mode in ("1", "2", "3", "0", "0 with desync debug") if f"mode{mode}" in values
    ]
    return ", ".join(f"mode {mode}: {'ended' if one['code'] else 'alive'}" for mode, one in modes)


def _fork(values: Values) -> str:
    return ", ".join(f"{one['seconds']} s" for name in ("child", "launched") if (one := values.get(name)))


ROWS: dict[str, tuple[str, Callable[[Values], str]]] = {
    "session-killed": (
        "session of 3 ranks, one is killed or paused in a step, three times: the right parameters, to 1e-9",
        _seconds("secondsUntilNextStep", "secondsOfJoin"),
    ),
    "session-virtual-killed": (
        "the same with virtual ranks: the bits of one undisturbed process",
        _seconds("secondsUntilNextStep"),
    ),
    "session-scaler-killed": (
        "the same with accumulation, a GradScaler and clipping",
        _seconds("secondsUntilNextStep"),
    ),
    "vision": (
        "a CNN (batch norm, dropout, autocast, averages, workers, checkpoints), kills, and a restart: the same bits",
        _seconds("secondsUntilNextStep", "secondsOfJoin"),
    ),
    "gan": (
        "two models and optimizers, a GradScaler that skips, a part that is trained later; kills: the same bits",
        _seconds("secondsUntilNextStep"),
    ),
    "compiled": (
        "a transformer under `torch.compile` and DDP with accumulation, one rank is killed: to 1e-9",
        lambda values: f"{values.get('backend', '')}; {_seconds('secondsUntilNextStep', 'secondsOfJoin')(values)}",
    ),
    "late-graph": (
        "two optimizers, and the replay of a CUDA graph reduces what the second one needs; kills: to 1e-9",
        _seconds("secondsUntilNextStep"),
    ),
    "late-functional": ("the same with a functional collective", _seconds("secondsUntilNextStep")),
    "late-stream": ("the same in a stream of the script's own", _seconds("secondsUntilNextStep")),
    "trail": (
        "behind the optimizers rank 0 sends a buffer, and a scheduler follows a reduced value; kills: to 1e-9",
        _seconds("secondsUntilNextStep"),
    ),
    "power": (
        "gradients compressed by PowerSGD, in a hook of DDP's; kills: the same bits on all ranks",
        _seconds("secondsUntilNextStep"),
    ),
    "capturable": (
        "Adam whose numbers are on the device (capturable, a rate in a tensor), in its own stream; kills: to 1e-7",
        _seconds("secondsUntilNextStep"),
    ),
    "agents-session": (
        "three whole pods, their agents and a hub: a worker and a pod are killed, one joins, one is paused: to 1e-9",
        lambda values: _pods(values, "workerKilled", "podKilled", "podJoined", "pausedSeen", "pausedGivenUp"),
    ),
    "agents-restart": (
        "the same of a script that is restarted from its checkpoints, by forks of a warm process",
        lambda values: _pods(values, "podKilled", "podJoined"),
    ),
    "growth": (
        "from 2 to 3 ranks and back, announced: no step is lost or repeated",
        _seconds("secondsOfGrowth", "secondsOfShrinking"),
    ),
    "join-source-dies": (
        "2 ranks train, 2 join, the source of the state dies while it sends it: from the survivor's state",
        lambda values: _seconds("until next step")(
            {"until next step": [one["seconds"] for one in values.get("rounds") or ()]}
        ),
    ),
    "loss-in-creation": (
        "a rank dies while communicators are made: the others are free within seconds",
        lambda values: _seconds("until free")({"until free": [one["idle"] for one in values.get("losses") or ()]}),
    ),
    "regroups": ("worlds one after the other: memory, threads and files stay flat", _regroups),
    "fsdp-killed": (
        "FSDP2 over 3 ranks with copies of shards, one is killed",
        lambda values: (
            f"until next step {values['secondsUntilNextStep']:.2f} s, {values['lostSteps']} steps are repeated"
            if "lostSteps" in values
            else ""
        ),
    ),
    "fence": ("a session's step of one rank beside a plain loop", _fence),
    "snapshots": ("snapshots in shared memory, in every tenth step", _snapshots),
    "hang": ("a rank is paused: its peers' wait is seen, and all go on after it", _hang),
    "hang-elsewhere": ("the same in an evaluation, of which only torch's recorder tells", _hang),
    "doctor": ("the preflight of a pod with one device passes, and leaves nothing on it", _doctor),
    "warm-fork": ("a forked worker uses the device", _fork),
    "contract-death": (
        "NCCL, as the tests model it: after an abort the value is wrong, and nobody raises",
        lambda values: f"3.0 is right, read was {', '.join(map(str, values.get('valuesAfterAbort') or ()))}",
    ),
    "contract-two-communicators": (
        "two stuck communicators: aborted in threads they end, one after the other they block",
        lambda values: _seconds("in threads")({"in threads": [one[1] for one in values.get("parallel") or ()]}),
    ),
    "contract-streams": (
        "a stuck collective: what waits for it, and the values of all collectives",
        lambda values: f"completed while it is stuck: {values.get('completedWhileStuck')}",
    ),
    "contract-worlds": (
        "20 worlds of plain torch one after the other: what each leaves in the memory of the host",
        lambda values: ", ".join(
            f"by {how}: {values[key]:+} MiB" for how in ("abort", "destroy") if (key := f"{how}MibPerWorld") in values
        ),
    ),
    "contract-watchdog": ("torch's watchdog, by TORCH_NCCL_ASYNC_ERROR_HANDLING", _watchdog),
}
SESSIONS = (
    "session-killed",
    "session-virtual-killed",
    "session-scaler-killed",
    "vision",
    "gan",
    "compiled",
    "late-graph",
    "late-functional",
    "late-stream",
    "trail",
    "power",
    "capturable",
    "growth",
    "join-source-dies",
)


def describe(run: Run) -> str:
    facts = run["facts"]
    driver = (facts.get("nvidiaSmi") or {}).get("driver_version", "unknown")
    return (
        f"{facts.get('card')}, driver {driver}, torch {facts.get('torch')}, NCCL {facts.get('nccl')}, "
        f"{run['date'][:10]}"
    )


def render(runs: Sequence[Run], names: Iterable[str] = ROWS) -> str:
    """What was seen on the device of the newest run, as a table: of each check its newest run there that has measured
    something.
    """
    seen = sorted((run for run in runs if not run["dry"]), key=lambda run: str(run["date"]), reverse=True)
    if not seen:
        return NOTHING
    same = [run for run in seen if describe(run) == describe(seen[0])]
    checks: dict[str, Mapping[str, Any]] = {}
    for one in (check for run in same for check in run["checks"] if "skipped" not in check):
        if not checks.get(one["check"], {}).get("measured"):
            checks[one["check"]] = one
    lines = [
        f"Seen on {describe(seen[0])}. The ranks share the device and speak over sockets, as nodes without InfiniBand "
        "do.",
        "",
        "| what is checked | holds | measured |",
        "|---|---|---|",
    ]
    lines += [render_row(*ROWS[name], checks.get(name)) for name in names]
    return "\n".join([*lines, "", NOT_TRIED])


def render_row(label: str, say: Callable[[Values], str], found: Mapping[str, Any] | None) -> str:
    if found is None or "skipped" in found:
        return f"| {label} | not run | |"
    try:
        measured = say(found["measured"])
    except (KeyError, TypeError, ValueError):  # it ended before it had measured that
        measured = ""
    failures = [one.partition(": found")[0] for one in found["failures"]]
    holds = "yes" if not failures else "**no**: " + _escape(failures[0])
    missed = [one["limit"] for one in found.get("goals") or () if not one["met"]]
    if missed:
        holds += f"; **goal of {missed[0]} missed**"
    return f"| {label} | {holds} | {_escape(measured)} |"


def _escape(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")[:300]


def read_runs() -> list[Run]:
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob("gpu-*.json"))]


def find_name(run: Run) -> str:
    """The file of a run among the results: the card and the time."""
    card = re.sub(r"[^a-z0-9]+", "-", str(run["facts"].get("card", "unknown")).lower()).strip("-")
    return f"gpu-{card}-{run['date'][:16].replace(':', '').replace('T', '-')}.json"


def without_output(run: Run) -> dict[str, Any]:
    """A run without what its processes printed, which names the files of one machine. Pure."""
    checks = [{name: value for name, value in check.items() if name != "output"} for check in run["checks"]]
    return {**run, "checks": checks}


def add(file: Path) -> Path:
    run = json.loads(file.read_text())
    if run["dry"]:
        raise SystemExit(f"{file} is of a dry run, without a device.")
    kept = RESULTS / find_name(run)
    kept.write_text(json.dumps(without_output(run), indent=1) + "\n")
    return kept


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(add(Path(name)))
