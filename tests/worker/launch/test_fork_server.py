"""Children that another process forked, as the agent sees them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elasticjob.launch.fork_server import Child

pytestmark = pytest.mark.timeout(60)
FILES = 1100  # more than select() can look at


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * FILES:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * FILES), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(FILES)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_its_end_is_awaited_with_many_open_files(many_files: None) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input(); exit(7)"], stdin=subprocess.PIPE)
    child = Child(process.pid)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    assert process.stdin is not None
    process.stdin.close()
    assert child.wait(30) == 1, "there is no input"
    process.returncode = child.returncode  # it is reaped
