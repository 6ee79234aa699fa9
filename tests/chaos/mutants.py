"""The operator, broken by hand: each mistake is one replaced text in a copy of the package, and has to be noticed.

A mutant is run against the cheapest suite that can notice it. A text that is not found any more is an error: the list
follows the code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("tests/model", "-k", "code_does")
ACCOUNTING = ("tests/chaos/test_chaos_accounting.py",)
TABLE = ("tests/controller/test_membership.py",)
LEADERSHIP = ("tests/controller/test_leadership.py",)
OPERATE = ("tests/controller/test_operate.py",)
SIMULATION = ("tests/controller", "-k", "simulation")
WATCH = ("tests/controller/test_watch.py",)
CACHE = ("tests/controller/test_cache.py",)
DOORS = ("tests/controller/test_hub_doors.py",)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    module: str
    old: str
    new: str
    suite: tuple[str, ...] = SIMULATION
    quick: bool = False


MUTANTS = (
    Mutant("no fencing", "directives.py", "if w.pod.uid not in inside and", "if False and", MODEL, quick=True),
    Mutant("form without all stopped", "membership.py", "    if not pending:\n", "    if True:\n", MODEL, quick=True),
    Mutant("grow while members start", "membership.py", "(Standing.SUSPECT, Standing.STARTING)", "()", MODEL),
    Mutant("no doubt about the silent", "membership.py", "if doubtful and not ended:", "if False:", TABLE, True),
    Mutant("ranks that do not stick", "membership.py", "[*survivors, *newcomers.find_newcomers(situation, judged)]",
           "[*newcomers.find_newcomers(situation, judged), *survivors]", MODEL),
    Mutant("a generation twice", "membership.py", "generation=situation.world.generation + 1",
           "generation=max(1, situation.world.generation)", SIMULATION),
    Mutant("a suspect is lost at once", "standing.py", "until = agent.since + settings.reconnect",
           "until = agent.since", MODEL),
    Mutant("no grace after a restart", "standing.py", "until = situation.hub_started + settings.restart_grace",
           "until = situation.hub_started", MODEL),
    Mutant("forget the budget", "account.py", "status.restarts.user > spec.elastic_policy.max_restarts", "False"),
    Mutant("forget which pods are accounted for", "account.py", "pod.uid not in status.restarts.counted", "True",
           ACCOUNTING, quick=True),
    Mutant("who has not started has stopped", "proof.py", "Standing.STARTING, Standing.STOPPING", "Standing.STOPPING",
           MODEL, quick=True),
    Mutant("whoever is connected is out", "proof.py", "    state = worker.agent.state\n",
           "    state = worker.agent.state\n    if worker.agent.connected:\n        return True\n", TABLE),
    Mutant("announce is forgotten", "plan.py", "announces=decision.world is not None", "announces=False"),
    Mutant("whoever asks may write", "kube.py", "        if left <= 0:\n", "        if False:\n", LEADERSHIP,
           quick=True),
    Mutant("in doubt go on writing", "lease.py", "self._leadership.end()  # it may be another's by now", "pass",
           LEADERSHIP),
    Mutant("a longer Lease is cut short", "lease.py", "max(timing.duration, granted)", "timing.duration",
           LEADERSHIP),
    Mutant("a follower may start the loop", "controller.py", "            raise RuntimeError(\"only the leader",
           "            str(\"only the leader", OPERATE),
    Mutant("one object ends its watch", "intake.py", "except Exception as error:", "except EOFError as error:",
           ("tests/controller/test_watch.py",)),
    Mutant("a failing watch stays away", "supervise.py", "        except Exception as error:\n            failures",
           "        except EOFError as error:\n            failures", ("tests/controller/test_supervise.py",)),
    Mutant("a follower may delete", "kube.py", "if method in READS or", 'if method in (*READS, "DELETE") or',
           ("tests/controller/test_leadership.py", "-k", "without_the_right")),
    Mutant("a Lease that is gone is free", "lease.py", "            self._lease = {}\n            return\n",
           "            self._lease, self._seen = {}, Sighting()\n            return\n",
           ("tests/controller/test_leadership.py", "-k", "gave_back")),
    Mutant("an event of any size is kept", "lines.py", "if self._size <= self._longest:", "if True:",
           ("tests/controller/test_lines.py",), quick=True),
    Mutant("what is left out is not counted", "intake.py", "        self._count(kind, trouble)\n", "", WATCH),
    Mutant("waits for a hello are not counted", "seats.py", "if not self.pending.enter(identity.namespace):",
           "if not self.pending.enter(identity.namespace) and False:", DOORS),
    Mutant("a pod waits for many hellos", "seats.py",
           "        self._abandon_pending(seat)\n        if not seat.placed", "        if not seat.placed", DOORS),
    Mutant("who comes again may say as much again", "seats.py", "now, seat.messages)",
           "now, limits.Bucket(settings.message_burst, now))", ("tests/controller/test_hub_limits.py",)),
    Mutant("a trainer that ended beside a sidecar runs on", "containers.py", "    if ended is not None:\n",
           "    if ended is not None and phase is not PodPhase.RUNNING:\n", ("tests/controller/test_observe.py",),
           quick=True),
    Mutant("a preflight is charged to the program", "faults.py",
           "        blame=Blame.INFRASTRUCTURE,\n        fatal=False", "        blame=Blame.USER,\n        fatal=False",
           ("tests/controller/test_simulation_backoff.py", "-k", "preflight")),
    Mutant("free restarts are not waited for", "setbacks.py", "return min(MAX_SECONDS, 2.0 ** min(failures - 1, 16))",
           "return min(0.0, MAX_SECONDS, 2.0)", ("tests/controller/test_simulation_backoff.py",)),
    # Ownership and limits.
    Mutant("any owner is a controller", "ownership.py", 'if reference.get("controller") and', "if", CACHE, quick=True),
    Mutant("labels need not name the job's UID", "ownership.py",
           "(labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)) != (job, uid)",
           "labels.get(names.LABEL_JOB) != job", CACHE),
    Mutant("agents of a deleted namesake come in", "cache.py", "and job[0].uid == pod.job_uid else None", "else None",
           CACHE),
    Mutant("pods of any name are workers", "ownership.py",
           ' or metadata.get("name") != names.pod_name(job, int(index))', "", CACHE),
    Mutant("what is refused is tried a thousand times", "slowstart.py", "and not errors and", "and",
           ("tests/controller/test_slowstart.py",), quick=True),
    Mutant("a spec may be of any depth", "bounds.py", "MOST_DEPTH = 64", "MOST_DEPTH = 64_000",
           ("tests/controller/test_reading.py",), quick=True),
    Mutant("a status of another version is refused", "reading.py",
           "    rest = {name: value for name, value in raw.items() if name not in wrong}\n",
           "    rest = dict(raw)\n", ("tests/controller/test_reading.py",)),
    Mutant("restarts are not counted", "metrics.py", "self.restarts.labels(cause).inc(count)", "pass",
           ("tests/controller/test_metrics.py",)),
)  # fmt: skip


def kill(mutant: Mutant, directory: Path) -> str:
    """ "" where the suite noticed the mistake, else what is wrong."""
    copy = directory / mutant.name.replace(" ", "-")
    shutil.copytree(ROOT / "operator", copy)
    file = copy / "elasticjob_operator" / mutant.module
    text = file.read_text()
    if text.count(mutant.old) < 1:
        return f"{mutant.name}: the text to replace is not in {mutant.module} any more"
    file.write_text(text.replace(mutant.old, mutant.new))
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.suite],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(copy)}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if result.returncode == 1:
        return ""
    return f"{mutant.name}: survived ({result.returncode}): {result.stdout[-300:]}"
