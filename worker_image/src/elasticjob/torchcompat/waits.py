"""Three functions of torch's in which a script waits for other ranks, as a session wants them.

gloo has no abort. Shutting down the connections of a group ends its collectives, but not one that has received a part
of a message: gloo forgets that somebody waits for the rest, until the timeout of the group. So the thread that waits is
let go instead, and the group stays as it is, with the thread of gloo's that is stuck in it, until that timeout.

The error of a pass of the model or of a collective may be caught by the script, which then goes on without what the
others would have sent. So the session hears of it here.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from elasticjob.errors import WorldLostError
from elasticjob.torchcompat import groups, probe
from elasticjob.torchcompat.probe import Probe

_CLASS = "torch._C._distributed_c10d.Work"
_WAIT = f"{_CLASS}.wait"
_KIND = f"{_CLASS}._get_op_type"
_FUNCTIONAL = "torch.distributed._functional_collectives.wait_tensor"
_COLLECTIVES = ("BROADCAST", "ALLREDUCE", "REDUCE", "ALLGATHER", "GATHER", "SCATTER", "ALLTOALL", "BARRIER")
_MESSAGES = ("SEND", "RECV", "RECVANYSOURCE")
_LOOK_SECONDS = 0.5
_PATIENCE_SECONDS = 1.0  # most collectives end by themselves when their connections do, and with a better message

Note = Callable[[Exception], None]
Look = Callable[[], None]


class World:
    """The groups of gloo that end together."""

    def __init__(self, has_others: bool = False) -> None:
        """`has_others`: the script's collectives may be of other backends, and a wait for those is none of ours."""
        self.has_others = has_others
        self.is_over = threading.Event()  # nobody waits in them any more
        self.given_up: list[Callable[[], bool]] = []  # waits that gloo's threads are stuck in: whether one has ended

    @property
    def is_stuck(self) -> bool:
        """Whether a thread of gloo's waited in one of them when it was left."""
        return bool(self.given_up)


class _Here(threading.local):
    is_gloo = False


_here = _Here()
_world: World | None = None
_kept: list[tuple[World, list[Any]]] = []  # worlds that were left stuck, and their groups
_note: weakref.WeakMethod[Note] | None = None
_look: weakref.WeakMethod[Look] | None = None
_begun = 0
_is_installed = False


def wait_for(world: World | None) -> None:
    """From now on, whoever waits for a collective does so until this world is over."""
    global _world  # noqa: PLW0603 - torch's functions are those of the process
    _install()
    _world = world


@contextlib.contextmanager
def in_group(group: Any) -> Iterator[None]:
    """What this thread waits for in this block are collectives of this group."""
    before, _here.is_gloo = _here.is_gloo, groups.is_gloo(group)
    try:
        yield
    finally:
        _here.is_gloo = before


def tell(note: Note, look: Look) -> None:
    """From now on, call `note` with each error of a model's pass or of a collective of gloo's.

    And `look` where somebody begins to wait for a collective. Both are methods.
    """
    global _note, _look
    _install()
    _note, _look = weakref.WeakMethod(note), weakref.WeakMethod(look)


def keep(world: World, stuck: list[Any]) -> None:
    """Do not free these groups of this world, not even at the end of the process, until `take_ended` returns them: that
    would wait for the thread that is stuck in one of them.
    """
    for group in stuck:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    _kept.append((world, list(stuck)))


def take_ended() -> list[Any]:
    """The groups that were kept, and in which gloo has given up too, after their timeout: for the caller to free."""
    ended = [one for one in _kept if all(has_ended() for has_ended in one[0].given_up)]
    _kept[:] = [one for one in _kept if one not in ended]
    groups_of_ended = [group for _, stuck in ended for group in stuck]
    for group in groups_of_ended:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(group))
    return groups_of_ended


def _install() -> None:
    global _is_installed  # noqa: PLW0603
    if _is_installed:
        return
    _is_installed = True
    torch.autograd.backward = telling(torch.autograd.backward)
    if (work := probe.find(_CLASS)) is not None and WAITS.holds():
        work.wait = counting(telling(_giving_up(work.wait)))
    if FUNCTIONAL.holds():
        module, _, name = _FUNCTIONAL.rpartition(".")
        setattr(probe.find(module), name, _untraced(probe.find(_FUNCTIONAL)))


def _untraced(wait: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The wait of a functional collective, which calls no method of Python's; a compiler sees the function itself."""
    heard = counting(telling(wait))

    @functools.wraps(wait)
    def wait_or_trace(tensor: Any) -> Any:
        return wait(tensor) if torch.compiler.is_compiling() else heard(tensor)

    return wait_or_trace


def telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, of whose errors the session hears."""

    @functools.wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        try:
            return function(*given, **more)
        except Exception as error:
            if _note is not None and (note := _note()) is not None:
                note(error)
            raise

    return call


def counting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose calls are counted."""

    @functools.wraps(function)
    def call(*given: Any, **more: Any) -> Any:
        global _begun  # noqa: PLW0603
        _begun += 1
        if _look is not None and (look := _look()) is not None:
            look()
        return function(*given, **more)

    return call


def count() -> int:
    """How often this process has begun to wait for a collective: until then, nothing waits for its values."""
    return _begun


def _giving_up(function: Callable[..., Any]) -> Callable[..., Any]:
    kinds = probe.find("torch._C._distributed_c10d.OpType")
    ways: dict[int, Callable[..., Any]] = {
        int(getattr(kinds, name)): way
        for names, way in ((_COLLECTIVES, _wait_in_parts), (_MESSAGES, _wait_beside))
        for name in names
        if hasattr(kinds, name)
    }

    @functools.wraps(function)
    def wait(work: Any, *given: Any, **more: Any) -> Any:
        world = _world
        if world is None or (world.has_others and not _here.is_gloo) or given or more or work.is_completed():
            return function(work, *given, **more)
        way = ways.get(int(work._get_op_type()))  # what torch composes of several calls is waited for as ever
        if way is None:
            return function(work)
        return way(lambda *seconds: function(work, *seconds), work, world)

    return wait


def _wait_in_parts(wait: Callable[..., Any], work: Any, world: World) -> Any:
    """In this thread, for a collective that a thread of gloo's does: a limit of the wait changes nothing in it."""
    while True:
        was_over = world.is_over.is_set()
        try:
            return wait(datetime.timedelta(seconds=_PATIENCE_SECONDS if was_over else _LOOK_SECONDS))
        except RuntimeError:
            if work.is_completed():
                return wait()  # how it has ended
            if was_over:
                world.given_up.append(work.is_completed)
                _give_up()


def _wait_beside(wait: Callable[..., Any], _: Any, world: World) -> Any:
    """In another thread, for a message from one rank to another: gloo ends the group at the limit of such a wait."""
    found: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            found.append(wait())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="elasticjob-message", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            was_over = world.is_over.is_set()
            thread.join(_PATIENCE_SECONDS if was_over else _LOOK_SECONDS)
            if was_over and thread.is_alive():
                _give_up()
    finally:  # a signal may end this, too
        if thread.is_alive():
            world.given_up.append(lambda: not thread.is_alive())
    if errors:
        raise errors.pop()  # one that this frame keeps would keep the frame
    return found[0]


def _give_up() -> NoReturn:
    raise WorldLostError("a member was lost in the middle of a message")


WAITS = Probe(
    "a rank is freed that has received a part of a message when its sender was lost",
    (_WAIT, _KIND),
    "it keeps waiting, and its agent ends it after the grace period",
    probe.has_all(_WAIT, _KIND),
)
FUNCTIONAL = Probe(
    "a step is taken back of which one optimizer has applied its part when a functional collective fails",
    (_FUNCTIONAL,),
    "with gloo the rank gets the state from another one, or goes back to the last checkpoint",
    probe.has_all(_FUNCTIONAL),
)
PROBES = (WAITS, FUNCTIONAL)
