from __future__ import annotations
import itertools, os, signal, time, functools
from pathlib import Path
import pytest
from integration.test_updates import *  # noqa
from integration import test_updates as T
from operator_fixture import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]

TIMED = (
    T.EACH_STEP.replace(
        "print(step, revision, generation, kind, file=file)",
        "print(step, revision, generation, kind, time.time(), time.process_time(), file=file)",
    )
    .replace("directory = Path(sys.argv[1])", "directory = Path(sys.argv[1])\nT0 = time.time(), time.process_time()")
    .replace(
        '    note("start")',
        '    if world.is_first:\n        with (directory / "starts").open("a") as file:\n            print(os.environ["ELASTICJOB_GENERATION"], *T0, time.time(), time.process_time(), file=file)\n    note("start")',
    )
)


def test_look(cluster, jobs, tmp_path):
    project = T.Project(cluster, jobs, tmp_path, "often")
    project.write(train=TIMED, version="NUMBER = 1\n")
    project.submit()
    jobs.await_world("often", 2, timeout=120)
    wait_for(lambda: project.step() > 20, "it trains", timeout=120)
    for number in range(1, 4):
        project.write(version=f"NUMBER = 1  # {number}\n")
        assert project.update() == 0
        project.in_force(number)
        time.sleep(2.3 + 0.3 * number)
        generation = jobs.status("often")["rendezvous"]["generation"]
        os.kill(int((project.output / f"pid-{number % 2}").read_text()), signal.SIGKILL)
        jobs.await_world("often", 2, above=generation, timeout=120)
        wait_for(lambda: lines(project)[-1][2] > generation, "steps", timeout=60)
        time.sleep(2.3 + 0.3 * number)
    timeline = {w["generation"]: w for w in jobs.status("often")["timeline"]}
    found = lines(project)
    for a, b in itertools.pairwise(found):
        if b[2] != a[2]:
            w = timeline[b[2]]
            after = next(c for c in found if c[2] == b[2] and c[3] == "saved")
            start = next(
                l.split() for l in (project.output / "starts").read_text().splitlines() if l.split()[0] == str(b[2])
            )
            t = [float(x) for x in start[1:]]
            print(
                f"MEASURED {w['cause']:8} gap {after[4] - a[4]:.2f} status {w.get('lostSeconds')} last-step->script {t[0] - a[4]:.2f} script->init+restore {t[2] - t[0]:.2f} cpu at script {t[1]:.2f} at step {after[5]:.2f} first step {after[4] - t[2]:.2f}"
            )


def lines(project):
    text = (project.output / "steps").read_text().rpartition("\n")[0].splitlines()
    return [(int(a), int(b), int(c), d, float(e), float(f)) for a, b, c, d, e, f in (l.split() for l in text)]
