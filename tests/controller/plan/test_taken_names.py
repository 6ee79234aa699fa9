"""Names of the job's objects that another object has: reported, and that object is neither written nor deleted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from controller.api_fixture import answering
from controller.builders import NOW, make_job
from elasticjob_operator.api import names, wire
from elasticjob_operator.api.names import JobKey
from elasticjob_operator.apply.apply import Applier
from elasticjob_operator.apply.manifests import Settings
from elasticjob_operator.kube.cache import Cache
from elasticjob_operator.plan.plan import Child, Kind, Plan

CHILDREN = {
    Kind.SERVICE: (),
    Kind.NETWORK_POLICY: (),
    Kind.DISRUPTION_BUDGET: (("minAvailable", 1),),
    Kind.CONFIG_MAP: (("ca.crt", "PEM"),),
    Kind.POD_GROUP: (("flavour", "volcano"), ("minMember", 2)),
    Kind.AUTOSCALER: (("metrics", []),),
}


class Silent:
    def direct(self, job: JobKey, directives: Mapping[str, wire.Directive]) -> None:
        """No agent is connected."""


@pytest.mark.parametrize("owner", ["", "another-job"], ids=["nobody's", "of another job"])
@pytest.mark.parametrize("kind", list(Kind))
async def test_a_taken_name_is_left_alone(kind: Kind, owner: str, tmp_path: Path) -> None:
    """It may wear all our labels, which can be copied at leisure."""
    asked: list[str] = []
    reference = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": "digits",
        "uid": owner,
        "controller": True,
    }
    metadata: dict[str, Any] = {"name": "x", "namespace": "default", "uid": "theirs", "resourceVersion": "3"}
    metadata["labels"] = {names.LABEL_APP: names.LABEL_APP_VALUE, names.LABEL_JOB: "digits"}
    if owner:
        metadata["ownerReferences"] = [reference]

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.method)
        if request.method == "POST":
            taken = {"kind": "Status", "reason": "AlreadyExists", "message": "it already exists"}
            return web.json_response(taken, status=409)
        return web.json_response({"metadata": metadata, "spec": {}})

    async with answering(answer, tmp_path) as api:
        api.leadership.lend(math.inf)
        cache = Cache(lambda key: None)
        job = make_job()
        applier = Applier(api, cache, Silent(), Settings(hub_url=""), "me")
        outcome = await applier.apply(job, "5", Plan(job.status, ensure=(Child(kind, "x", CHILDREN[kind]),)), NOW)
        taken = f"a {kind} named x exists, but does not belong to this job: delete it or rename the job"
        if kind is Kind.AUTOSCALER:
            assert outcome.problem == ("AutoscalerRefused", f"elasticPolicy.metrics has no effect: {taken}")
        else:
            assert outcome.problem is not None
            reason, message = outcome.problem
            assert reason == "NameTaken" and message.startswith(taken)
            assert ("spec.network.policy: false" in message) == (kind is Kind.NETWORK_POLICY)
        assert outcome.is_blocking is (kind in (Kind.NETWORK_POLICY, Kind.CONFIG_MAP, Kind.POD_GROUP))
        assert asked == ["POST", "GET"]
        assert not cache.children(job)
