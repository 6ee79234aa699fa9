"""Tests of one file that wait more than they compute, side by side: each in a namespace of its own of one cluster.

    @together
    def test_a_claim_that_nothing_provisions_is_named(jobs: Jobs) -> None: ...

All tests of the file that are marked so run when the first of them is set up, `AT_ONCE` of them at a time (a name of
the file; 8 if it has none), and have ended when it is called: the others have the cluster for themselves. Each then
passes, fails or is skipped as its run did. One that is called again, as with `--reruns`, runs again. If a fixture
behind them has parameters, they run for each of these, one set after the other.

What is a test's own is made for it: `tmp_path`, and what `MAKERS` has. All else that it takes lasts for the file or
longer. None of them may stop the operator or break a node.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO, cast

import pytest

from devcluster_fixture import new_namespace
from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, OperatorProcess, delete_jobs, judge_log

AT_ONCE: Final = 8

Test = Callable[..., None]
Maker = Callable[..., contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def make_jobs(cluster: Cluster, namespace: str, lasting_operator: OperatorProcess) -> Iterator[Jobs]:
    jobs = Jobs(cluster, namespace)
    try:
        yield jobs
    finally:
        delete_jobs(jobs)


# By the name that a test has for it, like a fixture; what a maker takes is made for it, or shared. Others add theirs.
MAKERS: Final[dict[str, Maker]] = {"namespace": new_namespace, "jobs": make_jobs}


def together(test: Test) -> Test:
    """Mark a test: it runs beside the others of its file that are marked."""

    @functools.wraps(test)
    def tell(*_: object, request: pytest.FixtureRequest, stories: Stories, **__: object) -> None:
        stories.tell(request.node.nodeid)

    own = ["self"] if "self" in inspect.signature(test).parameters else []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wanted = [inspect.Parameter(name, kind) for name in (*own, "request", "stories", *find_shared(test))]
    tell.__signature__ = inspect.Signature(wanted)  # type: ignore[attr-defined] # what pytest looks for
    tell.story = test  # type: ignore[attr-defined]
    return tell


def find_shared(test: Test) -> list[str]:
    """What a test shares with others, of all that it takes and of what that takes in turn."""
    found: dict[str, None] = {}
    names = list(inspect.signature(test).parameters)
    while names:
        name = names.pop(0)
        if name in MAKERS:
            names += inspect.signature(MAKERS[name]).parameters
        elif name not in ("self", "tmp_path"):
            found[name] = None
    return list(found)


@dataclass
class Story:
    """One of the tests, and how it went."""

    test: Test
    shared: dict[str, Any]
    make_path: Callable[[], Path]
    problem: BaseException | None = None
    was_told: bool = False
    said: str = ""

    def run(self) -> None:
        """Never raises: what the test raised is kept, also if that is a skip."""
        self.problem = None
        try:
            with contextlib.ExitStack() as ends:
                made: dict[str, Any] = {**self.shared, "tmp_path": self.make_path()}

                def make(name: str) -> Any:
                    if name not in made:
                        maker = MAKERS[name]
                        made[name] = ends.enter_context(maker(*map(make, inspect.signature(maker).parameters)))
                    return made[name]

                self.test(**{name: make(name) for name in inspect.signature(self.test).parameters})
        except BaseException as error:
            self.problem = error


class Apart:
    """A stream that keeps apart what each story prints."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._own = stream, threading.local()

    @contextlib.contextmanager
    def keep(self, story: Story) -> Iterator[None]:
        said: list[str] = []
        self._own.said = said
        try:
            yield
        finally:
            story.said = "".join(said)
            del self._own.said

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("a text is written")  # as any such stream does: whoever tries it finds out what it is
        if not hasattr(self._own, "said"):
            return self._stream.write(text)
        self._own.said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Stories:
    def __init__(self, operator: OperatorProcess | None) -> None:
        self.all: dict[str, Story] = {}
        self._operator = operator

    def run(self, at_once: int) -> None:
        places, printed = threading.Semaphore(at_once), Apart(sys.stdout)

        def take(story: Story) -> None:
            with places, printed.keep(story):
                story.run()

        threads = [threading.Thread(target=take, args=(story,), daemon=True) for story in self.all.values()]
        with contextlib.redirect_stdout(cast(TextIO, printed)):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def tell(self, nodeid: str) -> None:
        """Pass or fail as this story did, and print what it has."""
        story = self.all[nodeid]
        if story.was_told:
            story.run()
        else:
            print(story.said)
        story.was_told = True
        if self._operator is not None:
            judge_log(self._operator.log)
        if story.problem is not None:
            raise story.problem


def find_parameters(item: pytest.Function) -> dict[str, object]:
    """Those of the fixtures behind a marked test, which last for several tests."""
    given: dict[str, object] = item.callspec.params if hasattr(item, "callspec") else {}
    own = inspect.signature(item.function.story).parameters
    return {name: value for name, value in given.items() if name not in own}


def find_tests(request: pytest.FixtureRequest) -> Iterator[tuple[pytest.Function, Test]]:
    """The marked tests of this file that will run with the same parameters behind them."""
    is_long = request.config.getoption("--long")
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or item.path != request.path or not hasattr(item.function, "story"):
            continue
        if find_parameters(item) == find_parameters(request.node) and (
            is_long or item.get_closest_marker("long") is None
        ):
            test = item.function.story
            yield item, test if item.cls is None else functools.partial(test, item.cls())


TOLD: Final = pytest.StashKey[dict[str, Stories]]()


@pytest.fixture
def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stories:
    module = request.node.getparent(pytest.Module)
    told: dict[str, Stories] = module.stash.setdefault(TOLD, {})
    behind = repr(find_parameters(request.node))
    if behind not in told:
        told[behind] = tell_all(request, tmp_path_factory)
    return told[behind]


def tell_all(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stories:
    tests = list(find_tests(request))
    is_operated = any("lasting_operator" in find_shared(test) for _, test in tests)
    operator: OperatorProcess | None = request.getfixturevalue("lasting_operator") if is_operated else None
    if operator is not None and not operator.is_running():
        operator.start()
    made = Stories(operator)
    tmp_path_factory.getbasetemp()  # made at the first call: two threads would make two
    for item, test in tests:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        shared = {}
        for name in find_shared(test):
            made_by = item._fixtureinfo.name2fixturedefs.get(name, ())
            if name not in given and any(one.scope == "function" for one in made_by):
                raise TypeError(f"{item.nodeid} shares {name}, which is made for each test: add its maker to MAKERS")
            shared[name] = given[name] if name in given else request.getfixturevalue(name)
        make_path = functools.partial(tmp_path_factory.mktemp, re.sub(r"\W+", "-", item.name)[:40])
        made.all[item.nodeid] = Story(test, shared, make_path)
    made.run(getattr(request.module, "AT_ONCE", AT_ONCE))
    return made
