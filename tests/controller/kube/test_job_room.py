"""What the specs of all jobs keep in memory has a limit, of which one namespace gets half."""

from __future__ import annotations

from typing import Any

import pytest

from elasticjob_operator.kube.cache import Cache

pytestmark = pytest.mark.timeout(100)
MIB = 2**20
LARGE = 2 * MIB  # a job of the largest template takes more (measured: 3 MiB)


def make_job(name: str, namespace: str = "greedy", *, dense: int = 600, version: int = 5, **more: Any) -> Any:
    """A job of a template with so many objects, which take twenty times the bytes of their text."""
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": str(version)}
    pod: dict[str, Any] = {"containers": [{"name": "node", "image": "train:1", "command": ["torchrun"]}]}
    if dense:
        pod["affinity"] = {"podAffinity": [{f"{name}-{n}": {}} for n in range(dense)]}
    spec = {"replicas": 1, "template": {"spec": pod}, **more.pop("spec", {})}
    return {"metadata": {**metadata, "generation": version}, "spec": spec, **more}


def test_the_jobs_of_one_namespace_keep_half_of_the_room_at_most() -> None:
    cache = Cache(lambda key: None)
    for n in range(40):
        cache.put_job(make_job(f"j{n}", dense=9_900))
    kept = [key for key, (job, _) in cache.jobs.items() if job.spec is not None]
    assert 5 < len(kept) <= 48 * MIB // LARGE
    cache.put_job(make_job("usual", "other", dense=0))
    cache.put_job(make_job("usual", dense=0))
    cache.put_job(make_job("large", "other", dense=9_900))
    for key in (("other", "usual"), ("greedy", "usual"), ("other", "large")):
        assert cache.jobs[key][0].spec is not None, key
