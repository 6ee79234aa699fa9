"""The channel between an agent and the workers of its pod: JSON lines over a Unix socket.

The agent listens in a folder that only its user can enter, and passes the path as ELASTICJOB_CONTROL. A worker connects
when the script first uses a feature that needs the agent, and sends its identity and what it supports (`wants`). A
script that uses no such feature never connects, and the agent sends it no signals. Both launchers host the agent's end,
so this also works with plain `torchrun`.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import logging
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from elasticjob import env
from elasticjob.channel import completion, stacks
from elasticjob.torchcompat import threads

logger = logging.getLogger("elasticjob")

CHECKPOINT: Final = "checkpoint"  # handles SIGUSR1 and answers `saved`
STACKS: Final = "stacks"  # dumps its stacks on SIGUSR2
LOOK: Final = "look"  # says which collectives it has entered
DEVICE: Final = "device"  # says how far its step has come on a device
CORRUPT: Final = "corrupt"  # a message: the state of this session has become wrong
RESTART: Final = "restart"  # a message: this session has to begin again, which is no failure of its script
SESSION: Final = "session"  # keeps its memory over a regroup

_PREFIX: Final = "elasticjob-agent-"
_MAX_ADDRESS: Final = 104  # bytes, of the systems that have the shortest

Message = dict[str, Any]


class Peer:
    """One worker, as the agent sees it."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.local_rank = 0
        self.generation = 0
        self.wants: frozenset[str] = frozenset()
        self._sending = threading.Lock()

    def introduce(self, hello: Message) -> None:
        self.local_rank = int(hello.get("localRank", 0))
        self.generation = int(hello.get("generation", 0))
        self.wants = frozenset(str(want) for want in hello.get("wants", ()))

    def send(self, message: Message) -> bool:
        """Send a message; return whether it was written. False means that the worker has disconnected."""
        try:
            with self._sending:
                self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """The address of a socket: its path, or the same place by way of its open folder where that is too long for one."""
    if len(os.fsencode(path)) < _MAX_ADDRESS:
        yield path
        return
    place, name = os.path.split(path)
    folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


def remove_stale(where: Path) -> None:
    """Remove the folders of killed agents. A pid is not enough: a shared folder may serve several pid namespaces."""
    for path in where.glob(f"{_PREFIX}*/control"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # somebody's socket may take nobody
            try:
                if path.is_socket():
                    with _address(str(path)) as address:
                        probe.connect(address)
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:
                continue  # unreadable, so in use or owned by another user


class Server:
    """The agent's end. `on_message` is called in the peer's reader thread; a message of None means that it
    disconnected.
    """

    def __init__(self, on_message: Callable[[Peer, Message | None], None]) -> None:
        self._on_message = on_message
        self._peers: list[Peer] = []
        self._lock = threading.Lock()
        remove_stale(Path(tempfile.gettempdir()))
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # mode 0700
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.path = self.folder / "control"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _address(f"{self.path}.new") as address:
            self._listener.bind(address)
        self._listener.listen(64)
        # Created by rename, so a path that exists but refuses connections means that the agent is dead.
        Path(f"{self.path}.new").rename(self.path)
        threading.Thread(target=self._accept, name="elasticjob-control", daemon=True).start()

    def peers(self, want: str | None = None) -> list[Peer]:
        with self._lock:
            return [peer for peer in self._peers if want is None or want in peer.wants]

    def close(self) -> None:
        """Hang up on all peers, and end the thread that waits for new ones."""
        _hang_up(self._listener)  # its shutdown wakes the thread; closing alone would not
        for peer in self.peers():
            _hang_up(peer.connection)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            peer = Peer(connection, _peer_pid(connection))
            threading.Thread(target=self._read, args=(peer,), name="elasticjob-peer", daemon=True).start()

    def _read(self, peer: Peer) -> None:
        with self._lock:
            self._peers.append(peer)
        try:
            for message in read_lines(peer.connection):
                if message.get("type") == "hello":
                    peer.introduce(message)
                self._on_message(peer, message)
        finally:
            with self._lock:
                self._peers.remove(peer)
            _hang_up(peer.connection)
            self._on_message(peer, None)


class Client:
    """The worker's end: announces what this process supports and receives the agent's messages."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _address(path) as address:
            self._connection.connect(address)
        self._unsent: collections.deque[bytes] = collections.deque()
        self._sending = threading.Lock()
        self._wants: set[str] = set()
        self._listeners: list[Callable[[Message], None]] = []
        self.folder = Path(path).parent
        self.closed = threading.Event()
        threading.Thread(target=self._read, name="elasticjob-control", daemon=True).start()

    def want(self, *names: str) -> None:
        """Announce to the agent what this worker supports."""
        self._wants.update(names)
        wants = sorted(self._wants)
        self.send(
            {
                "type": "hello",
                "localRank": int(os.environ.get("LOCAL_RANK", "0")),
                "generation": int(os.environ.get(env.GENERATION, "0")),
                "wants": wants,
            }
        )

    def listen(self, listener: Callable[[Message], None]) -> None:
        """Call `listener` for every message, in the reader thread."""
        self._listeners.append(listener)

    def send(self, message: Message) -> bool:
        """Send a message, after those that are being sent; False if the agent has disconnected.

        Never waits for another thread, nor for the code that a signal handler interrupts: whoever is sending goes on
        with this one.
        """
        self._unsent.append(json.dumps(message).encode() + b"\n")
        try:
            while self._unsent and self._sending.acquire(blocking=False):
                try:
                    while self._unsent:
                        self._connection.sendall(self._unsent.popleft())
                finally:
                    self._sending.release()
        except OSError:
            self._unsent.clear()
            return False
        return True

    def _read(self) -> None:
        for message in read_lines(self._connection):
            for listener in list(self._listeners):
                listener(message)
        self.closed.set()


_client: Client | None = None
_client_lock = threading.RLock()  # a signal handler may interrupt `connect`, and report


def connect() -> Client | None:
    """This process's end of the channel, opened on first use; None if no ElasticJob agent started the process.

    Another launcher that a script starts, such as `torchrun --standalone`, leaves the channel to processes of its own.
    """
    global _client  # noqa: PLW0603 - one channel per process
    with _client_lock:
        path = os.environ.get(env.CONTROL)
        if _client is None and path and env.is_of_agent(os.environ):
            try:
                _client = Client(path)
                _client.listen(_answer_look)
                _client.want(LOOK, *([STACKS] if stacks.offer(_client.folder) else []))
            except OSError as error:
                logger.debug("no control channel: %s", error)
        return _client


def _answer_look(message: Message) -> None:
    """In the reader thread, so that it works while the main thread waits in a collective."""
    if message.get("type") != LOOK or _client is None:
        return
    is_detailed = bool(message.get("detailed"))
    told: Message = {"type": LOOK, "collectives": None, "last": "", "signal": stacks.is_offered()}
    if "torch.distributed.distributed_c10d" in sys.modules:  # this thread does not import torch for a script
        from elasticjob.torchcompat import groups, queues

        with threads.calling():
            told["collectives"] = groups.count_collectives()
            completed = queues.find() if completion.steps.is_used else None
            told["last"] = groups.find_last_collective() if is_detailed else ""
        told["step"] = completion.steps.tell(told["collectives"], completed)
    if is_detailed:
        told["threads"] = stacks.describe_other_threads()
    if message.get("stack"):
        told["stack"] = stacks.describe_main_thread()
    _client.send(told)


def read_lines(connection: socket.socket) -> Any:
    """Yield the JSON objects that arrive until the peer disconnects or sends invalid data."""
    try:
        with connection.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message
    except (OSError, ValueError):
        return


def _peer_pid(connection: socket.socket) -> int:
    """The peer's process ID, as reported by the kernel."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[0])


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the peer has already closed
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
