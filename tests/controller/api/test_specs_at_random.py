"""Random specs and templates for the parsers: errors name the field, and nothing raises."""

from __future__ import annotations

import pytest

from chaos.specs import Maker
from elasticjob_operator.apply import manifests
from elasticjob_operator.model import observe
from elasticjob_operator.plan.plan import NewPod


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_written_is_understood_or_refused(seed: int) -> None:
    maker, refused = Maker(seed, junk=0.1), 0
    metadata = {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1", "generation": 1}
    for _ in range(500):
        raw = {
            "apiVersion": "elasticjob.dev/v1alpha1",
            "kind": "ElasticJob",
            "metadata": metadata,
            "spec": maker.spec(),
        }
        job = observe.observe_job(raw)
        if job.spec is None:
            assert all(problem.field for problem in job.problems)
            refused += 1
            continue
        observe.resolve_nproc(job.spec)
        manifests.build_pod(job, job.spec, NewPod(0, ()), manifests.Settings(hub_url="ws://hub"))
    assert 20 < refused < 500
