"""The loop of `session_loop.py` with NVIDIA's in-process restart: a wrapped function that survivors call again.

It writes the same lines. Each restart begins a new world; `count` stays in memory. `NVRX_TUNED=1` replaces the default
intervals of one second, and the timeout of 30 s for a missing rank.
"""

# No `from __future__ import annotations`: the wrapper looks for a parameter annotated with its own class, not its name.
import time

STARTED = time.time()

import os  # noqa: E402
from datetime import timedelta  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from lines import Lines, parse_arguments  # noqa: E402
from nvidia_resiliency_ext import inprocess  # type: ignore[import-not-found]  # noqa: E402
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # noqa: E402

IMPORTED = time.time()
INTERVALS = ("monitor_thread_interval", "monitor_process_interval", "heartbeat_interval", "progress_watchdog_interval")
TUNED = {name: timedelta(milliseconds=100) for name in INTERVALS} | {
    "heartbeat_timeout": timedelta(seconds=1),
    "last_call_wait": timedelta(0),
}


class Abort(inprocess.abort.Abort):  # type: ignore[misc]
    """The library's own looks for a CUDA backend of each group."""

    def __call__(self, state: object) -> object:
        if dist.is_initialized():
            dist.destroy_process_group()
        return state


def main() -> None:
    args = parse_arguments(__doc__)
    torch.set_num_threads(1)
    write = Lines(args.out).write
    write(t=STARTED, mark="script")
    write(t=IMPORTED, mark="imported")
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    base = TCPStore(host, port, is_master=os.environ["RANK"] == "0", wait_for_workers=False)
    numbers, done = torch.ones(args.size), [0]

    @inprocess.Wrapper(abort=Abort(), **(TUNED if os.environ.get("NVRX_TUNED") else {}))  # type: ignore[untyped-decorator]
    def train(call: inprocess.CallWrapper | None = None) -> None:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        assert call is not None
        store = PrefixStore(str(call.iteration), base)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        write(t=time.time(), mark="connected")
        step = 0
        while True:
            dist.all_reduce(numbers)
            numbers.div_(world)
            done[0] += 1
            write(t=time.time(), step=step, count=done[0], rank=rank, world=world)
            step += 1
            time.sleep(args.step_seconds)

    train()


if __name__ == "__main__":
    main()
