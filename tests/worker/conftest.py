"""Fixtures of the tests that run agents: a hub for a world of two, pods that use it, and the output of
their scripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.fake_hub import FakeHub
from worker.fake_pods import Pods, Steps


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub(size=2) as hub:
        yield hub


@pytest.fixture
def pods(hub: FakeHub, tmp_path: Path) -> Iterator[Pods]:
    with Pods(tmp_path, hub.url) as pods:
        yield pods
        for pod in pods.pods.values():  # shown if the test fails
            print(f"{pod.name} ended with {pod.process.poll()}, and said:\n{pod.log[-3000:]}")


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path / "out")
