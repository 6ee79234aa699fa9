"""The command itself, with a real operator, a real job and a real browser: a pod is killed, the operator restarts."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.browser import CHROMIUM, started
from elasticjob_devcluster import Cluster
from operator_fixture import Jobs, OperatorProcess, light_spec, stop_process, wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        CHROMIUM is None, reason="chromium is not installed: the dashboard is not looked at in a browser"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture
def address(cluster: Cluster, namespace: str, tmp_path: Path) -> Iterator[str]:
    """`kubectl elasticjob dashboard` as a user starts it; the address that it prints."""
    written = tmp_path / "address"
    command = [
        *(sys.executable, "-m", "elasticjob_operator.cli", "--kubeconfig", str(cluster.kubeconfig), "-n", namespace),
        *("dashboard", "--no-browser"),
    ]
    with written.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield wait_for(lambda: written.read_text().strip(), "the address is printed", timeout=120)
    finally:
        process.send_signal(signal.SIGINT)
        stop_process(process)


async def test_the_page_follows_a_job_through_a_kill_and_a_restart_of_the_operator(
    cluster: Cluster, namespace: str, jobs: Jobs, operator: OperatorProcess, address: str, tmp_path: Path
) -> None:
    jobs.create("story", light_spec("--step-seconds", "0.1"))
    first = await asyncio.to_thread(jobs.await_world, "story", 2)
    async with started(tmp_path) as browser:
        await browser.open(address)
        await browser.until("document.body.innerText.includes('story')")
        await browser.open(f"{address.partition('?')[0]}jobs/{namespace}/story")
        await browser.until("document.getElementById('live').textContent === 'Live'")
        generation = first["rendezvous"]["generation"]
        assert f"generation {generation}" in await browser.value("document.getElementById('state').innerText")

        cluster.kill_pod(namespace, first["rendezvous"]["members"][1]["pod"], signal.SIGKILL)
        again = await asyncio.to_thread(jobs.await_world, "story", 2, generation)
        generation = again["rendezvous"]["generation"]
        state = "document.getElementById('state').innerText"
        await browser.until(f"{state}.includes('2 pods') && {state}.includes('generation {generation}')")
        await browser.until("document.getElementById('worlds').querySelectorAll('tbody tr').length > 1")
        await browser.until("/MemberLost|WorldChanged/.test(document.getElementById('events').innerText)")

        await browser.value("document.getElementById('log-0').click()")
        await browser.until("document.getElementById('log-state').textContent === 'Following.'")

        await asyncio.to_thread(operator.kill)
        await asyncio.to_thread(operator.start)
        await browser.value("document.getElementById('replicas').value = 3")
        await browser.value("document.getElementById('do-scale').click()")
        await asyncio.to_thread(jobs.await_world, "story", 3, generation)
        await browser.until(f"{state}.includes('3 pods')")
        assert await browser.value("document.getElementById('live').textContent") == "Live"
        assert browser.complaints == []
