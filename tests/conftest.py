"""Fixtures that every test folder shares."""

from __future__ import annotations

import hypothesis
import pytest

from devcluster_fixture import audited, cluster, cluster_factory, namespace
from operator_fixture import jobs, lasting_operator, operator, operator_factory
from slowest_first import place_of

__all__ = [
    "audited",
    "cluster",
    "cluster_factory",
    "jobs",
    "lasting_operator",
    "namespace",
    "operator",
    "operator_factory",
]

# The normal run tries the same few examples every time; `--hypothesis-profile=long` tries thousands of new ones.
hypothesis.settings.register_profile(
    "default", max_examples=40, stateful_step_count=15, derandomize=True, deadline=None
)
hypothesis.settings.register_profile(
    "long", max_examples=10_000, deadline=None, stateful_step_count=15, print_blob=True
)
hypothesis.settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place_of(item.nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("long") and not item.config.getoption("--long"):
        pytest.skip("long, and a shorter test covers the same code: `make test-long`")
