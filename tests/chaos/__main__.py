"""`make chaos`: everything, long. One JSON line a suite; exit code 1 where anything was wrong.

python -m chaos [--seed N] [--only SUITE] [--mesh 2x2] [--stories a,b] [--minutes M] [--soak-minutes M]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from chaos import (
    apifaults,
    certificates,
    changes,
    clusterfaults,
    clustersessions,
    curve,
    devices,
    fuzz,
    health,
    manifests,
    memory,
    meshes,
    mutants,
    scripts,
    sessions,
    soak,
    tenants,
)
from chaos.crashes import all_crashes, find_endings
from chaos.lab import Zygote, make_lane
from chaos.stories import STORIES
from chaos.trials import Report, Trial, run_trials
from elasticjob_devcluster import Cluster, NodeSpec
from model.explore import explore
from model.regroup_model import Rules, decide
from model.replay import compare
from operator_fixture import install_crd

ON_CLUSTER = ("crash", "api", "cluster", "certificates", "changes", "clustersessions", "health", "fuzz", "soak")
SUITES = (
    "model", "mutants", "sessions", "sharded", "curve", "devices", "scripts", "memory", "tenants", "manifests",
    *ON_CLUSTER,
)  # fmt: skip
BY_NAME = ("lightning",)  # run only if they are named: they need the environment of `make frameworks`


def run_model(seed: int) -> Report:
    """Two and three agents with two faults in every order; the code must decide like the model on every view."""
    report, began = Report("model", seed), time.monotonic()
    pairs, threes = Rules(wanted=2, fault_budget=2), Rules(wanted=3, fault_budget=2)
    cases = ((2, False, pairs), (2, True, pairs), (3, False, threes._replace(min=2, eager=True)), (3, True, threes))
    for agents, late, rules in cases:
        found = explore(agents, rules, late=late)
        print(f"{'WRONG' if found.violations else 'ok':5} {agents} agents, {rules}: {found.states} states", flush=True)
        report.histories += found.states
        report.faults += rules.fault_budget
        report.violations += found.violations
        report.violations += [w for v in found.views if (w := compare(v, decide(v, rules)))]
    report.seconds = time.monotonic() - began
    print(report.line(), flush=True)
    return report


def run_mutants(seed: int, directory: Path) -> Report:
    report, began = Report("mutants", seed), time.monotonic()
    for mutant in mutants.MUTANTS:
        wrong = mutants.kill(mutant, directory)
        report.histories += 1
        report.faults += 1
        report.violations += [wrong] if wrong else []
        print(f"{'WRONG' if wrong else 'ok':5} {mutant.name}", flush=True)
    report.seconds = time.monotonic() - began
    print("\n".join([*report.violations, report.line()]), flush=True)
    return report


def run_on_cluster(args: argparse.Namespace, suites: list[str], directory: Path) -> list[Report]:
    cluster = Cluster.start(nodes=tuple(NodeSpec(f"node-{i}", gpus=2) for i in range(3)))
    zygote, reports = Zygote(), []
    try:
        install_crd(cluster)
        lanes = [make_lane(cluster, zygote, directory) for _ in range(args.lanes)]
        if "crash" in suites or "api" in suites:
            endings, undisturbed = find_endings(lanes, args.stories.split(","))
            reports.append(undisturbed)
            if "crash" in suites:
                reports.append(run_trials("crash", args.seed, lanes, all_crashes(endings)))
            if "api" in suites:
                reports.append(run_trials("api", args.seed, lanes, apifaults.long_trials(endings, args.seed)))
        if "cluster" in suites:
            trials = [Trial(story.__name__, story) for story in clusterfaults.STORIES]
            reports.append(run_trials("cluster", args.seed, lanes[:1], trials))
        if "certificates" in suites:
            reports.append(certificates.run(cluster, args.seed, directory))
        if "changes" in suites:
            reports.append(run_trials("changes", args.seed, lanes, changes.make_trials(args.seed, args.changes)))
        if "clustersessions" in suites:
            trials = clustersessions.make_trials(args.seed, args.session_histories // 5)
            reports.append(run_trials("clustersessions", args.seed, lanes[:1], trials))
        if "health" in suites:
            score = health.Score()
            # On few cores with --lanes 1: a rank that waits for a core is as slow as one with a fault.
            trials = health.make_trials(args.seed, args.health_faults, score, args.health_kinds)
            cluster.add_node(health.FREE)
            reports.append(run_trials("health", args.seed, lanes, trials, score.more))
            cluster.remove_node(health.FREE.name)
        if "fuzz" in suites:
            reports.append(fuzz.run(lanes[0], args.seed, 300))
        if "soak" in suites:
            reports.append(
                soak.run(cluster, lanes[0], args.seed, args.soak_minutes * 60, args.soak_jobs, args.soak_workers)
            )
    finally:
        zygote.close()
        cluster.stop()
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=(*SUITES, *BY_NAME), action="append")
    parser.add_argument("--stories", default=",".join(STORIES))
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--session-histories", type=int, default=100)
    parser.add_argument("--mesh", type=meshes.read_mesh, help="sessions: of copies x shards, such as 2x2")
    parser.add_argument("--curve-histories", type=int, default=200)
    parser.add_argument("--curve-agent-histories", type=int, default=30, help="more, in which agents make the changes")
    parser.add_argument("--scripts", type=int, default=500, help="training scripts that are drawn")
    parser.add_argument("--from", type=int, default=0, dest="scripts_from", help="the first of them that is run")
    parser.add_argument("--scripts-minutes", type=float, help="begin none of them after so long")
    parser.add_argument("--device-histories", type=int, default=200, help="of losses over a model of NCCL")
    parser.add_argument("--memory-histories", type=int, default=200, help="of checkpoints that peers hold")
    parser.add_argument("--archive", action="store_true", help="memory: with an archive behind the peers")
    parser.add_argument("--health-faults", type=int, default=50, help="of ranks and nodes, to be located")
    parser.add_argument("--health-kinds", nargs="+", choices=health.KINDS, default=health.KINDS, help="only these")
    parser.add_argument("--changes", type=int, default=100, help="jobs that are changed at random")
    parser.add_argument("--manifests", type=int, default=2000, help="jobs as people write them")
    parser.add_argument("--side-by-side", type=int, help="of these jobs, or scripts, at a time")
    parser.add_argument("--minutes", type=float, default=60.0, help="of hostile tenants")
    parser.add_argument("--soak-minutes", type=float, default=20.0)
    parser.add_argument("--soak-jobs", type=int, default=200)
    parser.add_argument("--soak-workers", type=int, default=5)
    args = parser.parse_args()
    suites = list(args.only or SUITES)
    if "scripts" in suites and not 0 <= args.scripts_from < args.scripts:
        parser.error(f"--from {args.scripts_from} must be less than --scripts {args.scripts}, and not negative.")
    print(json.dumps({"seed": args.seed, "suites": suites}), flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        directory = Path(name)
        reports = [run_model(args.seed)] if "model" in suites else []
        reports += [run_mutants(args.seed, directory)] if "mutants" in suites else []
        if "sessions" in suites and args.mesh is None:
            reports.append(sessions.run(args.seed, args.session_histories, 6, directory))
        elif "sessions" in suites:
            reports.append(meshes.run(args.seed, args.session_histories, 6, args.mesh, directory))
        if "sharded" in suites:
            reports.append(sessions.run(args.seed, args.session_histories, 6, directory, sessions.SHARDED))
        if "lightning" in suites:
            reports.append(sessions.run(args.seed, args.session_histories, 6, directory, sessions.LIGHTNING))
        if "curve" in suites:
            reports.append(curve.run(args.seed, args.curve_histories, args.curve_agent_histories, directory))
        if "scripts" in suites:
            side_by_side, minutes = scripts.choose_side_by_side(args.side_by_side), args.scripts_minutes
            first = args.scripts_from
            reports.append(
                scripts.run(args.seed, args.scripts, side_by_side=side_by_side, first=first, minutes=minutes)
            )
        if "devices" in suites:
            reports.append(devices.run(args.seed, args.device_histories, directory))
        if "memory" in suites:
            reports.append(memory.run(args.seed, args.memory_histories, 10, directory, has_archive=args.archive))
        if "tenants" in suites:
            reports.append(tenants.run(tenants.Plan(args.seed, hostile_seconds=args.minutes * 60), directory))
        if "manifests" in suites:
            side_by_side = args.side_by_side or manifests.SIDE_BY_SIDE
            reports.append(manifests.run(args.seed, args.manifests, directory, side_by_side=side_by_side))
        if set(ON_CLUSTER) & set(suites):
            reports += run_on_cluster(args, suites, directory)
    print("\n".join(r.line() for r in reports))
    return 1 if any(r.violations for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
