"""Leaves processes of every kind behind in its first world, and trains on in the next one."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

out, how = Path(sys.argv[1]), sys.argv[2]
generation = os.environ["ELASTICJOB_GENERATION"]


def rest() -> None:
    time.sleep(1000)


def leave(kind: str) -> int:
    """The pid of a process of this kind that does not end with this one."""
    if kind == "child":
        return subprocess.Popen(["sleep", "1000"]).pid
    if kind == "stubborn":
        return subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; sleep 1001"], start_new_session=True).pid
    if kind == "spawned":
        process = multiprocessing.get_context("spawn").Process(target=rest)
        process.start()
        assert process.pid is not None
        return process.pid
    reads, writes = os.pipe()  # a daemon, forked twice, without an exec
    if not os.fork():
        os.setsid()
        if not os.fork():
            os.write(writes, str(os.getpid()).encode())
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            rest()
        os._exit(0)
    os.wait()
    return int(os.read(reads, 32))


def main() -> None:
    if generation == "1":
        server = socket.create_server(("127.0.0.1", int(sys.argv[3])))
        server.set_inheritable(True)
        pids = {kind: leave(kind) for kind in ("child", "stubborn", "spawned", "daemon")}
        (out / "left.part").write_text("\n".join(f"{kind} {pid}" for kind, pid in pids.items()))
        (out / "left.part").rename(out / "left")
        if how == "exits":
            os._exit(3)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        socket.create_server(("127.0.0.1", int(sys.argv[3])))  # raises while the port is in use
    (out / f"trains-{generation}").touch()
    rest()


if __name__ == "__main__":
    main()
