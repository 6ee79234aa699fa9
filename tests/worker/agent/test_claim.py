"""The place of a pod's agent: one process holds it, and the kernel frees it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from elasticjob.agent import claim

pytestmark = pytest.mark.timeout(60)

HOLD = """
import os, sys, time
from elasticjob.agent import claim
place = claim.claim(sys.argv[1])
if not os.fork():  # a worker that does not end with its agent
    print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def uid() -> str:
    return str(uuid.uuid4())


def test_a_second_agent_of_a_pod_is_told_the_remedy(uid: str) -> None:
    place = claim.claim(uid)
    assert place is not None
    with place, pytest.raises(claim.TakenError, match="torchrun --standalone --nnodes=1 --max-restarts=0 SCRIPT"):
        claim.claim(uid, patience=0.0)


def test_a_place_is_free_when_the_agent_has_ended_its_part(uid: str) -> None:
    for _ in range(2):
        place = claim.claim(uid, patience=0.0)
        assert place is not None
        place.close()


def test_pods_that_share_a_network_have_a_place_each(uid: str) -> None:
    first, second = claim.claim(uid, patience=0.0), claim.claim(f"{uid}-other", patience=0.0)
    assert first is not None
    assert second is not None
    first.close()
    second.close()


@pytest.mark.parametrize("nothing", ["", "longer than a name can be" * 10])
def test_nobody_is_refused_where_the_place_cannot_be_told(nothing: str) -> None:
    assert claim.claim(nothing, patience=0.0) is None
    assert claim.claim(nothing, patience=0.0) is None


def test_a_killed_agent_holds_its_place_no_longer_than_it_lives(uid: str) -> None:
    """Also if a worker of it still runs, and if nobody has waited for it yet."""
    command = [sys.executable, "-c", HOLD, uid]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "held\n"
            with pytest.raises(claim.TakenError):
                claim.claim(uid, patience=0.0)
            agent.kill()
            place = claim.claim(uid)
            assert place is not None
            place.close()
        finally:
            os.killpg(agent.pid, signal.SIGKILL)
