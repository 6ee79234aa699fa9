"""`elasticjob doctor`: what is wrong here, and what to do about it.

On one machine it runs the checks and small worlds of processes: two with gloo, and one for each device with NCCL.
Under a launcher (`torchrun -m elasticjob doctor`) each rank runs the checks, all ranks test the network between them,
and rank 0 prints the findings of all. As a preflight (`preflight`) it does the same before the first world of a job.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from elasticjob.context.backends import BOTH, BackendFacts, observe_backends
from elasticjob.context.context import read_context
from elasticjob.diagnose import findings as f
from elasticjob.diagnose.checks import CHECKS, PREFLIGHT_CHECKS, Check, run_checks
from elasticjob.diagnose.findings import FAIL, OK, Finding
from elasticjob.diagnose.hosted_worlds import HostedWorld
from elasticjob.errors import ElasticJobError
from elasticjob.torchcompat import threads

_SELFTEST_SECONDS = 90.0
_KNOWN_TO_AGENT = ("hub", "token")  # the agent is connected already; a hub that restarts now is no failure


def run_local_world(environ: Mapping[str, str], size: int = 2, backend: str | None = None) -> list[Finding]:
    """The self-test, in a world of processes on this machine."""
    world = HostedWorld(size)
    arguments = [backend] if backend else []
    processes = []
    try:
        for rank in range(size):
            child = {name: value for name, value in environ.items() if not name.startswith("TORCHELASTIC_")}
            child |= world.place(rank)
            child.pop("ELASTICJOB_POD_IP", None)  # this world uses loopback
            child.pop("GLOO_SOCKET_IFNAME", None)
            command = [sys.executable, "-m", "elasticjob.diagnose.selftest", *arguments]
            process = subprocess.Popen(command, env=child, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            processes.append(process)
        outputs = [process.communicate(timeout=_SELFTEST_SECONDS) for process in processes]
    except subprocess.TimeoutExpired:
        remedy = "run it again with TORCH_DISTRIBUTED_DEBUG=DETAIL; is the machine overloaded?"
        return [Finding("self-test", FAIL, f"did not end within {_SELFTEST_SECONDS:.0f} s", remedy)]
    finally:
        for process in processes:
            process.kill()
    found: list[Finding] = []
    for rank, (output, errors) in enumerate(outputs):
        lines = output.strip().splitlines()
        if processes[rank].returncode != 0 or not lines:
            last = (errors.strip().splitlines() or ["no output"])[-1]
            return [Finding("self-test", FAIL, last, "torch.distributed does not work on this machine", rank)]
        found += [Finding(**one) for one in json.loads(lines[-1])]
    return merge_ranks(found)


def merge_ranks(found: Sequence[Finding]) -> list[Finding]:
    """One finding for a check that passes on every rank; failures stay separate by rank."""
    merged = []
    for name in dict.fromkeys(finding.check for finding in found):
        same = [finding for finding in found if finding.check == name]
        bad = [finding for finding in same if finding.status != OK]
        if bad:
            merged += bad
            continue
        ranks = {finding.rank for finding in same}
        detail = same[0].detail if len(ranks) == 1 else f"{len(ranks)} ranks; {same[0].detail}"
        merged.append(replace(same[0], rank=None, detail=detail))
    return merged


def examine(environ: Mapping[str, str], quick: bool = False, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """All findings that one machine can make on its own."""
    found = run_checks(environ, checks)
    if not quick and f.worst_status(found) != FAIL:
        for local in plan_local_worlds(observe_backends()):
            found += run_local_world(environ, local.size, local.backend)
    return merge_worlds(found)


@dataclass(frozen=True)
class LocalWorld:
    """A world of processes on this machine, for the self-test."""

    backend: str
    size: int


def plan_local_worlds(facts: BackendFacts) -> list[LocalWorld]:
    """The worlds that show whether the backends work here: one rank for each device with NCCL, and two with gloo.

    NCCL joins no two ranks on one device, so a machine with one device has a world of one, in which the device and its
    streams are used. Gloo moves no messages between two ranks in the memory of a device: its world is on the CPU.
    """
    worlds = [LocalWorld("gloo", 2)] if facts.gloo else []
    if facts.cuda_devices and facts.nccl:
        worlds.append(LocalWorld(BOTH if facts.gloo else "nccl", facts.cuda_devices))
    return worlds


def merge_worlds(found: Sequence[Finding]) -> list[Finding]:
    """One finding for a check that has passed in several worlds: the last one, which is nearest to the training."""
    merged: dict[tuple[str, int | None, str], Finding] = {}
    for one in found:
        key = (one.check, one.rank, one.status if one.status != OK else "")
        merged.pop(key, None)
        merged[key] = one
    return list(merged.values())


def examine_job(environ: Mapping[str, str], timeout: float = 60.0) -> list[Finding]:
    """On every rank of a world: the checks of this machine, and the network between all. Every rank gets
    all findings.
    """
    from elasticjob.collectives import messages
    from elasticjob.context.setup import init
    from elasticjob.diagnose.selftest import run_selftest

    here = read_context(environ)
    found = [replace(finding, rank=here.rank) for finding in run_checks(environ)]
    try:
        world = init(timeout=timeout)
    except ElasticJobError as error:
        return [*found, Finding("world", FAIL, str(error), "start all ranks; read the checks above", here.rank)]
    found += run_selftest(world)
    try:
        rows = messages.all_gather_json([asdict(finding) for finding in found])
        everyone = [[Finding(**row) for row in some] for some in rows]
    except RuntimeError as error:
        everyone = [found, [Finding("world", FAIL, str(error).splitlines()[0], "look at the other ranks", here.rank)]]
    world.close()
    return [finding for some in everyone for finding in some]


def preflight(level: str, environ: Mapping[str, str], seconds: float = 180.0) -> list[Finding]:
    """The checks before the first world: none for `Off`, this node for `Node`, also the self-test for `Network`.

    A check that has not ended after `seconds`, such as one of a device that does not answer, is a failure.
    """
    if level == "Off":
        return []
    found: list[Finding] = []

    def run() -> None:
        found.extend(examine(environ, quick=level == "Node", checks=PREFLIGHT_CHECKS))

    thread = threads.Thread(run, name="elasticjob-preflight")
    thread.start()
    thread.join(seconds)
    if not thread.is_alive():
        return found
    remedy = "look at the node's devices and disks, or raise health.preflightTimeoutSeconds"
    return [Finding("time limit", FAIL, f"the checks did not end within {seconds:g} s", remedy)]


def find_problem(found: Sequence[Finding]) -> str | None:
    """Why an agent that is connected to its hub must not become a member, in one line; None if it may."""
    for finding in found:
        if finding.status == FAIL and finding.check not in _KNOWN_TO_AGENT:
            return " ".join(f"{finding.check}: {finding.detail} -- {finding.remedy}".split())
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Exit code 1 if any check failed."""
    parser = argparse.ArgumentParser(prog="elasticjob doctor", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="without the self-test in a world of two processes")
    options = parser.parse_args(arguments)
    launched = bool(os.environ.get("RANK")) and bool(os.environ.get("WORLD_SIZE"))
    if launched:
        found = merge_ranks(examine_job(os.environ))
        if os.environ["RANK"] != "0":
            return f.find_exit_code(found)
    else:
        found = examine(os.environ, options.quick)
    sys.stdout.write((json.dumps(f.to_json(found)) if options.json else f.render_table(found)) + "\n")
    sys.stdout.flush()
    return f.find_exit_code(found)
