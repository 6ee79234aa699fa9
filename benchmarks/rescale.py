"""The duration of a change of the world: torchrun, torchft and DLRover in their best known settings against ElasticJob.

Every case starts a small gloo job on this host, lets it train, triggers one event, and waits for the first step of the
new world on every rank. `event` is the time since the event, `pause` the time without training. Peer and ours
alternate. With `--goodput` workers are killed at random for minutes instead, and the completed work that was kept is
counted. torchft and DLRover take part once `python -m benchmarks.peers install` was run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import cases, goodput, harness, launchers, peers, plots
from benchmarks.launchers import dlrover, local, torchft, torchrun
from benchmarks.processes import install_clean_up

Make = Callable[[], launchers.Launcher]
PEERS: dict[str, Make] = {
    "defaults": torchrun.defaults,
    "tuned": torchrun.tuned,
    "external": torchrun.external,
    "torchft": torchft.tuned,
    "torchft-defaults": torchft.defaults,
    "dlrover": dlrover.tuned,
    "dlrover-defaults": dlrover.defaults,
}
DEFAULT_PEERS = ("defaults", "tuned", "external", "torchft", "dlrover")
PACKAGES = {
    "torchft": "torchft-nightly",
    "torchft-defaults": "torchft-nightly",
    "dlrover": "dlrover",
    "dlrover-defaults": "dlrover",
}  # of .work/peers
OURS: dict[str, Make] = {
    "torchrun": local.torchrun,
    "run": local.elasticjob_run,
    "cold": local.elasticjob_run_cold,
    "session": local.session,
}
SLOW = frozenset({"defaults", "dlrover-defaults"})  # half a minute or more per event, so one repeat
QUICK = ("start 2 below max", "SIGKILL follower")
EVERY_CASE = (*cases.CASES, cases.COORDINATOR, cases.FENCE)

Outcomes = dict[tuple[str, str], list[cases.Outcome]]  # (case, launcher) -> one per repeat


def find_makers(through: str) -> dict[str, Make]:
    """Our launchers, with the hub alone or with the whole operator on a devcluster."""
    if through == "hub":
        return OURS
    from benchmarks.launchers import cluster

    return cluster.LAUNCHERS


def find_peers(wanted: Sequence[str]) -> dict[str, Make]:
    """The installed peers; reports the missing ones, with the remedy."""
    missing = set(peers.find_missing(sorted({PACKAGES[name] for name in wanted if name in PACKAGES})))
    if missing:
        harness.say(f"left out, not installed: {', '.join(sorted(missing))}. To have them: {peers.COMMAND}")
    return {name: PEERS[name] for name in wanted if PACKAGES.get(name) not in missing}


def is_torchft(name: str) -> bool:
    return PACKAGES.get(name) == "torchft-nightly"


def are_comparable(mine: str, peer: str) -> bool:
    """torchft needs a script written for it, so it is compared only with our session."""
    return mine == "session" or not is_torchft(peer)


def measure(options: harness.Options, against: dict[str, Make], ours: dict[str, Make]) -> Outcomes:
    """Rounds of all cases; within a case, ours and the peers alternate."""
    found: Outcomes = defaultdict(list)
    chosen = [case for case in EVERY_CASE if case.name in (options.extra.case or [case.name])]
    if options.quick and not options.extra.case:
        chosen = [case for case in chosen if case.name in QUICK]
    for repeat in range(options.repeats):
        for case in chosen:
            for name, make in {**ours, **against}.items():
                if (repeat and name in SLOW) or (case.name in torchft.SKIPPED and is_torchft(name)):
                    continue
                if not options.has_time():
                    harness.say("the time is over: what follows is left out (--budget)")
                    return found
                found[case.name, name].append(perform(case, make, repeat))
    return found


def perform(case: cases.Case, make: Make, repeat: int) -> cases.Outcome:
    launcher = make()
    with tempfile.TemporaryDirectory(prefix="elasticjob-bench-") as directory:
        outcome = cases.perform(case, launcher, Path(directory))
    took = "never" if outcome.recovery is None else f"{outcome.recovery:.2f} s"
    pause = "" if outcome.pause is None else f", pause {outcome.pause:.2f} s"
    harness.say(f"[{repeat + 1}] {case.name} | {launcher.name}: {took}{pause} {outcome.note}")
    return outcome


def compare(found: Outcomes, against: dict[str, Make], ours: dict[str, Make]) -> list[harness.Result]:
    """One line for each case, each of ours and each measured peer."""
    results = []
    for case in EVERY_CASE:
        for mine, make in ours.items():
            for peer, make_peer in against.items():
                left, right = found.get((case.name, mine), []), found.get((case.name, peer), [])
                if not left or not right or not are_comparable(mine, peer):
                    continue
                notes = sorted({outcome.note for outcome in right if outcome.note})
                name = make_peer().name + (f" ({'; '.join(notes)})" if notes else "")
                label = f"{case.name} [{make().name}]"
                mine_took = [outcome.recovery for outcome in left]
                peer_took = [outcome.recovery for outcome in right]
                results.append(harness.Result("rescale", f"{label}: event", mine_took, name, peer_took))
                if case.pause_counts and case.act is not None:
                    mine_took = [outcome.pause for outcome in left]
                    peer_took = [outcome.pause for outcome in right]
                    results.append(harness.Result("rescale", f"{label}: pause", mine_took, name, peer_took))
    return results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--through", choices=("hub", "cluster"), default="hub", help="what ours runs behind")
    parser.add_argument(
        "--ours", nargs="*", help="which of ours (default: torchrun and run; session too, beside torchft)"
    )
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=tuple(PEERS),
        help=f"which peers (default: {' '.join(DEFAULT_PEERS)}; quick: external)",
    )
    parser.add_argument("--case", action="append", help="only this case; may be repeated")
    parser.add_argument("--goodput", action="store_true", help="kill workers at random and count the work kept")
    parser.add_argument("--minutes", type=float, default=10.0, help="length of a goodput series")
    parser.add_argument("--kill-every", type=float, nargs="*", default=[60.0, 20.0], help="seconds between two kills")
    parser.add_argument("--seed", type=int, help="of the kills (default: printed)")


def main(argv: Sequence[str] | None = None) -> None:
    install_clean_up()
    options = harness.parse_options(
        "rescale", __doc__ or "", argv, budgets=(45, 2400), repeats=(1, 3), add_arguments=add_arguments
    )
    wanted = (
        options.extra.peers if options.extra.peers is not None else ["external"] if options.quick else DEFAULT_PEERS
    )
    chosen_peers = find_peers(wanted)
    available = find_makers(options.extra.through)
    beside = ["session"] if "session" in available and any(map(is_torchft, chosen_peers)) else []
    chosen = options.extra.ours if options.extra.ours is not None else ["torchrun", "run", *beside]
    unknown = sorted(set(chosen) - set(available))
    if unknown:
        raise SystemExit(f"--ours: {', '.join(unknown)} is not one of {', '.join(available)}")
    ours = {name: available[name] for name in chosen}
    if options.extra.goodput:
        goodput.main(options, chosen_peers, ours)
        return
    found = measure(options, chosen_peers, ours)
    harness.Report("rescale", options.out).add_all(compare(found, chosen_peers, ours))
    names = {name: make().name for name, make in {**ours, **chosen_peers}.items()}
    plots.draw_phases(options.out / "rescale.png", found, names)


if __name__ == "__main__":
    main()
