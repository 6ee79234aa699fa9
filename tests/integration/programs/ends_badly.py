"""Two ranks reduce numbers until one of them ends in the way that the first argument names."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

import elasticjob

MODE = sys.argv[1]
END_AT = {"quiet": 80, "early": 0, "beside": 0, "disk": 80, "page": 80}.get(MODE, 20)


def come_to_an_end() -> None:
    print(f"rank {rank} of {size} comes to its end", flush=True)
    if MODE == "exit":
        sys.exit(3)
    if MODE == "well":
        sys.exit(0)
    if MODE == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if MODE in ("disk", "page"):
        wait_in_state_d()
    time.sleep(10_000)


def wait_in_state_d() -> None:
    """As a read from a dead NFS server ("disk"), or a page of a mapped file ("page": nobody else gets the GIL).

    `vfork` waits so until its child has another program, and this one opens a pipe that nobody writes to.
    """
    os.mkfifo(pipe := f"{tempfile.mkdtemp()}/pipe")
    if MODE == "page":
        os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, pipe, os.O_RDONLY, 0)])
    libc = ctypes.CDLL(None)
    actions = ctypes.create_string_buffer(256)
    libc.posix_spawn_file_actions_init(actions)
    libc.posix_spawn_file_actions_addopen(actions, 9, pipe.encode(), os.O_RDONLY, 0)
    arguments = (ctypes.c_char_p * 2)(b"true", None)
    libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, arguments, None)


def work_a_little() -> None:
    while True:
        began = time.thread_time()
        while time.thread_time() - began < 0.06:
            pass
        time.sleep(0.94)


idle = threading.Event().wait
threading.Thread(target=work_a_little if MODE == "beside" else idle, name="loader", daemon=True).start()
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    if MODE == "hang":
        elasticjob.report(step=step)
    time.sleep(0.1)
    if step == END_AT and rank == size - 1 > 0:
        come_to_an_end()
