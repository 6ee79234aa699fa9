"""What tests rely on when they pause a pod."""

from __future__ import annotations

from pathlib import Path

from worker.fake_pods import Pods, Steps, thread_states

# Like an agent on a busy machine: its main thread waits for the processor, while another one runs.
PROGRAM = """
import os, subprocess, sys, threading, time
subprocess.Popen([sys.executable, "-c", "while True: pass"])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


def test_no_thread_of_a_paused_pod_runs(tmp_path: Path, steps: Steps) -> None:
    with Pods(tmp_path, hub_url=None, warm=False) as pods:
        pod = pods.start("pod-0", "-c", PROGRAM, launcher="python")
        steps.wait(lambda _: "ready" in pod.log)
        for _ in range(5):
            pod.pause()
            states = [state for process in pod.tree() for state in thread_states(process.pid)]
            assert states == ["T"] * 3, "two of the first process, one of its child"
            pod.resume()
