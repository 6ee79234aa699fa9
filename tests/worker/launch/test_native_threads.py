"""A library with threads of native code, as those of data frames and of remote calls have: no start of a worker hangs.

Such a thread is not there in a fork, and a lock that it held is never released. The library here is a stand-in for
them; `tests/frameworks/test_native_threads.py` has the real ones.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler of C: apt-get install gcc"),
]
RESTARTS = 20

# Its thread works under a lock, which it holds nearly always. Who asks it waits for its answer, however long.
POOL = """
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered = PTHREAD_COND_INITIALIZER;
static long upto, sum;
static int asked, started;

static void *work(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        if (asked) {
            sum = upto * (upto + 1) / 2;
            asked = 0;
            pthread_cond_broadcast(&answered);
        }
        usleep(2000);
        pthread_mutex_unlock(&lock);
        usleep(50);
    }
    return unused;
}

long add_up(long n) {
    pthread_t thread;
    if (!started) {
        started = 1;
        pthread_create(&thread, 0, work, 0);
    }
    pthread_mutex_lock(&lock);
    upto = n;
    asked = 1;
    while (asked) pthread_cond_wait(&answered, &lock);
    pthread_mutex_unlock(&lock);
    return sum;
}
"""
LIBRARY = """
import ctypes
from pathlib import Path

add_up = ctypes.CDLL(str(Path(__file__).with_name("libpool.so"))).add_up
AT_IMPORT = add_up(4)  # so its thread runs from now on
"""
OWN = "import pool\nTABLE = [pool.add_up(n) for n in range(5)]\n"
SCRIPT = """
import json
{imports}
import os, time
from pathlib import Path
import torch, torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    generation = int(os.environ["ELASTICJOB_GENERATION"])
    assert pool.AT_IMPORT == 10 and pool.add_up(generation) == generation * (generation + 1) // 2
    assert {check}
    Path(f"trains-{{generation}}").touch()
    while True:
        dist.all_reduce(torch.ones(1))
        pool.add_up(10)
        time.sleep(0.01)

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("elasticjob-run", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("imports", "check"),
    [
        pytest.param("import pool", "True", id="in the script"),
        pytest.param("import own, pool", "own.TABLE == [0, 1, 3, 6, 10]", id="in a module of its own"),
    ],
)
def test_twenty_starts_beside_threads_of_native_code(
    hub: FakeHub, pods: Pods, tmp_path: Path, imports: str, check: str, launcher: str
) -> None:
    (site := tmp_path / "libraries").mkdir()
    (site / "pool.c").write_text(POOL)
    build = ["cc", "-shared", "-fPIC", "-pthread", "-o", str(site / "libpool.so"), str(site / "pool.c")]
    subprocess.run(build, check=True, timeout=60)
    (site / "pool.py").write_text(LIBRARY)
    (script := tmp_path / "script").mkdir()
    (script / "own.py").write_text(OWN)
    (script / "train.py").write_text(SCRIPT.format(imports=imports, check=check))
    hub.set_size(1)
    pod = pods.start("pod-0", str(script / "train.py"), launcher=launcher, env={"PYTHONPATH": str(site)})
    for generation in range(1, RESTARTS + 2):
        hub.wait_for(
            lambda n=generation: any(tmp_path.rglob(f"trains-{n}")),  # type: ignore[misc]
            what=f"start {generation} gets to its first step\n{pod.log[-3000:]}",
        )
        if generation <= RESTARTS:
            hub.order_regroup("pod-0", generation)
            hub.call(lambda: setattr(hub.world, "over", True))
    assert not hub.failures()
    assert "the workers make some of their imports themselves: " in pod.log, "it was started warm"
