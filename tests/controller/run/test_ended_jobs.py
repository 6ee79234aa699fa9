"""What stands in the way of an ended or suspended job's pods is told, though the job wants nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.run.test_held_pods import KEEPER, NOW, Watched, make_held, make_job
from elasticjob_operator.times import format_time

pytestmark = pytest.mark.timeout(60)

DENIED = 'admission webhook "keep.example.com" denied the request: ask the owner first'
ENDED = {
    "phase": "Complete",
    "startTime": format_time(NOW - 500),
    "completionTime": format_time(NOW - 100),
    "conditions": [
        {"type": "Complete", "status": "True", "reason": "Completed", "lastTransitionTime": format_time(NOW - 100)}
    ],
}


@dataclass
class Refusing(Watched):
    """An API server that refuses deletions with this status, while it is not 0."""

    status: int = 403

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            self.stored["status"] = self.stored.get("status", {}) | (await request.json()).get("status", {})
            metadata = self.stored["metadata"]
            self.stored["metadata"] = metadata | {"resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
            return web.json_response(self.stored)
        if request.method == "DELETE" and self.status:
            body = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": DENIED}
            return web.json_response({**body, "code": self.status}, status=self.status)
        if request.method == "DELETE" or request.path.endswith("/events"):
            return web.json_response({"kind": "Status", "status": "Success"})
        return await super().answer(request)


def make_running(index: int) -> dict[str, Any]:
    pod = make_held(index, NOW)
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"):
        del pod["metadata"][name]
    return {**pod, "status": {"phase": "Running"}}


def watch(pod: dict[str, Any], *, is_ended: bool) -> Refusing:
    job = make_job() | {"status": ENDED} if is_ended else make_job(runPolicy={"suspend": True})
    return Refusing(job, {pod["metadata"]["name"]: pod})


CASES = pytest.mark.parametrize("is_ended", [True, False], ids=["ended", "suspended"])


@CASES
async def test_a_deletion_that_is_refused_is_told(tmp_path: Path, is_ended: bool) -> None:
    watched = watch(make_running(0), is_ended=is_ended)
    async with watched.running(tmp_path):
        for _ in range(3):
            await watched.step()
        assert watched.warning["reason"] == "DeleteForbidden"
        assert DENIED in watched.warning["message"]
        assert watched.warning["observedGeneration"] == 1
        watched.status = 0
        for _ in range(3):
            await watched.step()
        assert watched.warning["status"] == "False", "it is over"
    if is_ended:
        assert watched.stored["status"]["phase"] == "Complete"


@CASES
async def test_a_pod_that_a_finalizer_keeps_is_told(tmp_path: Path, is_ended: bool) -> None:
    async with watch(make_held(0, NOW - 60), is_ended=is_ended).running(tmp_path) as watched:
        await watched.step()
        assert (watched.warning["status"], watched.warning["reason"]) == ("True", "PodHeld")
        assert KEEPER in watched.warning["message"]
