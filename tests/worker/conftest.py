"""Fixtures of the tests that run agents: a hub for a world of two, pods that use it, and the output of
their scripts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from side_by_side import MAKERS
from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps


@contextlib.contextmanager
def make_hub() -> Iterator[FakeHub]:
    with FakeHub(size=2) as hub:
        yield hub


@contextlib.contextmanager
def make_pods(hub: FakeHub, tmp_path: Path) -> Iterator[Pods]:
    with Pods(tmp_path, hub.url) as pods:
        try:
            yield pods
        finally:
            for pod in pods.pods.values():  # shown if the test fails
                print(f"{pod.name} ended with {pod.process.poll()}, and said:\n{pod.log[-3000:]}")


@contextlib.contextmanager
def make_steps(tmp_path: Path) -> Iterator[Steps]:
    yield Steps(tmp_path / "out")


MAKERS.update(hub=make_hub, pods=make_pods, steps=make_steps)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with make_hub() as hub:
        yield hub


@pytest.fixture
def pods(hub: FakeHub, tmp_path: Path) -> Iterator[Pods]:
    with make_pods(hub, tmp_path) as pods:
        yield pods


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "out")
