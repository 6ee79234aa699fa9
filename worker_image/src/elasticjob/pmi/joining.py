"""Starts MPI in this process as a rank of the world, and ends it when all ranks have come to their end."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from elasticjob.context import network
from elasticjob.context.context import Context
from elasticjob.env import NO_PORT
from elasticjob.errors import CollectiveFailedError, ConfigurationError
from elasticjob.pmi import door, library, protocol, serve

JOIN_SECONDS = 120.0
LEAVE_SECONDS = 30.0  # for the other ranks to come to their end too
_PAUSE = 0.05
_START = "import sys; sys.path.append(sys.argv[1]); from elasticjob.pmi import serve; serve.main()"


def join(here: Context, node: int) -> Any:
    """mpi4py's MPI, whose COMM_WORLD is the world that the launcher describes; alone without one.

    Raises ConfigurationError if it cannot be, and CollectiveFailedError if the world cannot be joined in time.
    """
    if here.master_port == NO_PORT:
        raise ConfigurationError(
            "MPI cannot change its world, and a session does: use elasticjob.mpi without a Session, and load a"
            " checkpoint at the start."
        )
    interface = network.find_interface(network.read_interfaces(), here.pod_ip, here.master_address, False)
    library.prepare(os.environ, interface)
    mpi = library.load()
    if mpi.Is_initialized():
        if mpi.COMM_WORLD.size != here.world_size:
            raise ConfigurationError(
                "mpi4py has started MPI with this process alone: import elasticjob.mpi before mpi4py."
            )
        return mpi
    if here.world_size == 1:
        _start(mpi)
        atexit.register(_leave, mpi, None, os.getpid())
        return mpi
    world = _Joining(here, node)
    try:
        world.enter()
        _start(mpi)
    finally:
        library.forget(os.environ)
    if mpi.COMM_WORLD.size != here.world_size or mpi.COMM_WORLD.rank != here.rank:
        raise ConfigurationError(
            f"MPI sees {mpi.COMM_WORLD.size} ranks where the world has {here.world_size}. {library.REMEDY}."
        )
    own = mpi.COMM_WORLD.Dup()
    own.Barrier()
    world.finish_start()
    atexit.register(_leave, mpi, own, os.getpid())
    return mpi


def _start(mpi: Any) -> None:
    import mpi4py

    levels = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}
    wanted = levels.get(mpi4py.rc.thread_level, 3) if mpi4py.rc.threads else 0
    mpi.Init_thread((mpi.THREAD_SINGLE, mpi.THREAD_FUNNELED, mpi.THREAD_SERIALIZED, mpi.THREAD_MULTIPLE)[wanted])


class _Joining:
    """The way of one rank to its launcher."""

    def __init__(self, here: Context, node: int) -> None:
        self._here, self._place = here, door.Place(here.rank, node)
        self.helper: subprocess.Popen[bytes] | None = None
        self._names: tuple[str, str] | None = None  # of the pod's shared memory, at its first rank
        self._sibling: socket.socket | None = None
        self._file = -1  # that MPI has for its launcher

    def enter(self) -> None:
        """Tell MPI where its launcher is: a connection that knows who it is."""
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            raise ConfigurationError("Only torchrun and elasticjob-run keep the store that MPI's ranks meet in.")
        here, deadline = self._here, time.monotonic() + JOIN_SECONDS
        try:
            connection = self._connect(deadline)
        except (OSError, RuntimeError, ValueError) as error:
            raise CollectiveFailedError(
                f"rank {here.rank} of {here.world_size} cannot join MPI's world: {error}"
            ) from None
        self._file = connection.detach()
        values = {"PMI_FD": self._file, "PMI_RANK": here.rank, "PMI_SIZE": here.world_size}
        os.environ.update({name: str(value) for name, value in values.items()})

    def finish_start(self) -> None:
        """MPI has started in all ranks: they need neither their launcher nor the names of their shared memory."""
        _answer_at_exit(self._file)
        if self._names is not None:
            serve.clear(self._names)
        if self._sibling is not None:
            self._sibling.close()
        if self.helper is not None and self.helper.stdin is not None:
            if self._here.rank != 0:
                self.helper.stdin.close()
            threading.Thread(target=self.helper.wait, name="elasticjob-mpi", daemon=True).start()

    def _connect(self, deadline: float) -> socket.socket:
        # Imported here: torch is not needed for one process.
        from elasticjob.protocol import connecting, wire

        here = self._here
        where = wire.Store(here.master_address, here.master_port)
        store = connecting.connect(where, lambda: False, deadline, timedelta(seconds=JOIN_SECONDS))
        assert store is not None
        key = f"elasticjob/mpi/{here.generation}/{here.restarts}"
        if here.rank == 0:
            store.set(key, json.dumps(self._open()))
        while True:
            try:
                told = json.loads(store.get(key))
                self._meet_siblings(str(told["name"]), deadline)
                return self._knock(told)
            except (OSError, ValueError, KeyError):  # the value may be of a world that has ended
                if time.monotonic() > deadline or (self.helper is not None and self.helper.poll() is not None):
                    raise
                time.sleep(_PAUSE)

    def _open(self) -> dict[str, Any]:
        """At rank 0: start the launcher. What the others have to know of it."""
        here = self._here
        name, secret = f"elasticjob-{secrets.token_hex(8)}", secrets.token_hex(32)
        address = here.pod_ip or ("127.0.0.1" if here.world_size == here.local_world_size else network.own_address())
        server = {"address": address, "size": here.world_size, "name": name, "secret": secret}
        port = self._start_helper(name, {"server": server})
        return {"address": address, "port": port, "name": name, "secret": secret}

    def _start_helper(self, name: str, orders: dict[str, Any]) -> int:
        self._names = protocol.find_shared_names(name, self._place.node)
        orders["siblings"] = {"name": name, "node": self._place.node, "others": self._here.local_world_size - 1}
        command = [sys.executable, "-ISc", _START, str(Path(serve.__file__).parents[2])]
        self.helper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, start_new_session=True
        )
        assert self.helper.stdin is not None and self.helper.stdout is not None
        self.helper.stdin.write(json.dumps(orders).encode() + b"\n")
        self.helper.stdin.flush()
        return int(self.helper.stdout.readline())

    def _meet_siblings(self, name: str, deadline: float) -> None:
        """Be seen by what clears up this pod's shared memory."""
        here = self._here
        if self.helper is not None:
            return
        if here.local_rank == 0:
            self._start_helper(name, {})
            return
        if self._sibling is not None:  # of an earlier attempt
            self._sibling.close()
        self._sibling = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sibling.connect(serve.address(name, self._place.node))

    def _knock(self, told: dict[str, Any]) -> socket.socket:
        connection = socket.create_connection((str(told["address"]), int(told["port"])), serve.HANDSHAKE_SECONDS)
        try:
            drawn, mine, secret = _read_line(connection).decode("ascii", "replace"), door.draw(), str(told["secret"])
            connection.sendall(door.answer(secret, drawn, mine, self._place))
            if not door.is_server(secret, drawn, mine, self._place, _read_line(connection)):
                raise OSError("the launcher at rank 0 does not know the secret of this world")
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            connection.close()
            raise
        return connection


def _answer_at_exit(file: int) -> None:
    """Put what MPI will be told last in place of its connection to the launcher, which may be gone then.

    MPICH says goodbye in an exit handler, long after MPI_Finalize, and crashes where nobody answers. MPI_Abort asks the
    launcher to end the process, and returns.
    """
    near, far = socket.socketpair()
    far.sendall(protocol.GOODBYE)
    os.dup2(near.fileno(), file, inheritable=False)
    near.close()
    number = far.detach()  # open until the process has ended
    threading.Thread(target=_await_abort, args=(number,), name="elasticjob-mpi-abort", daemon=True).start()


def _await_abort(file: int) -> None:
    said = b""
    while (data := os.read(file, 4096)) and len(said) < protocol.LINE:
        said += data
        code = protocol.find_abort(said)
        if code is not None:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(code)


def _read_line(connection: socket.socket) -> bytes:
    """A line without its end, byte by byte: what follows is MPI's."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) > door.LINE:
            raise OSError("the launcher at rank 0 has closed the connection")
        line += byte
    return line[:-1]


def _leave(mpi: Any, own: Any, pid: int) -> None:
    """End MPI when all ranks have come to their end. After a failure of one, nobody waits for it in MPI_Finalize."""
    if os.getpid() == pid and not mpi.Is_finalized() and not _has_failed() and _do_all_leave(mpi, own):
        mpi.Finalize()


def _do_all_leave(mpi: Any, own: Any) -> bool:
    if own is None:
        return True
    deadline, pause = time.monotonic() + LEAVE_SECONDS, 0.0005
    try:
        request = own.Ibarrier()
        while not request.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE)
        own.Free()
    except mpi.Exception:
        return False
    return True


def _has_failed() -> bool:
    from elasticjob.torchcompat import threads

    return bool(threads.find_end())
