"""Processes that work side by side through one list of orders, forked from one that has made their imports."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, NoReturn

from elasticjob.launch.process import die_with_parent

Order = dict[str, Any]
Answer = dict[str, Any]
Open = Callable[[ExitStack], Callable[[Order], Answer]]


class StreamFailedError(Exception):
    """A process has ended before it answered: what it worked on is not judged."""


class _Stream:
    """One of the processes."""

    def __init__(self, make: Open, earlier: Sequence[_Stream]) -> None:
        """`earlier`: others that this process has the channels of."""
        self._channel, theirs = socket.socketpair()
        self._answers: IO[str] = self._channel.makefile("r")
        self._has_ended = False
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            die_with_parent(parent)
            for one in (*earlier, self):
                one.hang_up()
            _serve(theirs, make)
        theirs.close()

    def fileno(self) -> int:
        return self._channel.fileno()

    def order(self, one: Order) -> None:
        self._channel.sendall(json.dumps(one).encode() + b"\n")

    def read(self) -> Answer:
        text = self._answers.readline()
        if not text:
            status = os.waitpid(self.pid, 0)[1]
            self._has_ended = True
            raise StreamFailedError(f"process {self.pid} has ended with {status:#x}; see above")
        answer: Answer = json.loads(text)
        return answer

    def hang_up(self) -> None:
        self._answers.close()
        self._channel.close()

    def close(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End it, at once after an error: nobody reads what it works on."""
        self.hang_up()
        if self._has_ended:
            return
        if kind is not None:
            os.kill(self.pid, signal.SIGKILL)  # and what it has started dies with it
        os.waitpid(self.pid, 0)


def _serve(channel: socket.socket, make: Open) -> NoReturn:
    """In a stream: answer orders until there are no more. What `make` forks may leave by an exception of its own."""
    own, code = os.getpid(), 1
    orders = channel.makefile("r")
    for opened in (orders, channel):
        os.register_at_fork(after_in_child=opened.close)
    try:
        with ExitStack() as stack:
            work = make(stack)
            for line in orders:
                channel.sendall(json.dumps(work(json.loads(line))).encode() + b"\n")
        code = 0
    except BaseException:
        if os.getpid() != own:
            raise
        traceback.print_exc()
    finally:
        if os.getpid() == own:
            os._exit(code)  # what the parent has registered is its own
    raise AssertionError("unreachable")


def work_through(orders: Iterator[Order], count: int, make: Open) -> Iterator[Answer]:
    """The answers to all orders, as they come, of at most `count` processes; each of them works with what `make` makes.

    An order is drawn when a process is free for it. Call it where no other threads run, and nothing is to be cleaned up
    by processes that `make` forks, which leave through here by SystemExit.
    """
    streams: list[_Stream] = []  # outside of what a process that leaves would clean up
    for _ in range(count):
        streams.append(_Stream(make, streams))
    with ExitStack() as stack, selectors.DefaultSelector() as busy:
        for stream in streams:
            stack.push(stream.close)
            order = next(orders, None)
            if order is not None:
                stream.order(order)
                busy.register(stream, selectors.EVENT_READ, stream)
        while busy.get_map():
            for key, _ in busy.select():
                stream = key.data
                answer = stream.read()
                order = next(orders, None)
                if order is None:
                    busy.unregister(stream)
                else:
                    stream.order(order)
                yield answer
