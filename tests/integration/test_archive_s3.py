"""A whole job whose archive is a store that speaks S3: its keys expire and change, all its pods go and come back."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.test_archive import await_start, make_spec, read_events
from operator_fixture import MERGE, Jobs, wait_for
from stores_fixture import BUCKET, MISSING, PYTHON, find_packages, serve_s3

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(580),
    pytest.mark.skipif(not PYTHON.exists(), reason=MISSING),
]

SECRET = "archive-keys"


def write_secret(jobs: Jobs, keys: Mapping[str, str], *, is_new: bool) -> None:
    """As a user does, or what rotates keys."""
    path = f"/api/v1/namespaces/{jobs.namespace}/secrets"
    data = {"data": {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}}
    if is_new:
        jobs.kube.request("POST", path, {"metadata": {"name": SECRET}, **data})
    else:
        jobs.kube.request("PATCH", f"{path}/{SECRET}", data, content_type=MERGE)


def make_s3_spec(folder: Path) -> dict[str, Any]:
    """The image of the trainer has `elasticjob[s3]`."""
    spec = make_spec(folder, to=f"s3://{BUCKET}/training/team-a", credentialsSecret=SECRET)
    container = spec["template"]["spec"]["containers"][0]
    container.setdefault("env", []).append({"name": "PYTHONPATH", "value": str(find_packages())})
    return spec


def test_a_job_goes_on_while_its_keys_are_changed_and_after_all_its_pods(jobs: Jobs, tmp_path: Path) -> None:
    with serve_s3() as store:
        write_secret(jobs, store.change_keys("digits"), is_new=True)
        jobs.create("digits", make_s3_spec(tmp_path))
        jobs.await_condition("digits", "CheckpointArchived", timeout=240)
        url = jobs.status("digits")["archive"]["url"]
        assert url.startswith(f"s3://{BUCKET}/training/team-a/{jobs.namespace}/digits/")

        def find_newest() -> int:
            return max((step_of(files) for files in store.find_saves(url)), default=-1)

        wait_for(lambda: find_newest() >= 10, "some steps are archived", 120, 0.5)
        keys = store.change_keys("digits")  # those of the pods are refused from now on
        told = wait_for(lambda: find_refusal(jobs), "it is told", 120, 0.5)
        assert "credentialsSecret" in told["message"]
        refused_at, generation = find_newest(), jobs.status("digits")["rendezvous"]["generation"]

        def has_trained() -> bool:
            return any(one["step"] >= refused_at + 20 for one in read_events(jobs, "digits", "step"))

        wait_for(has_trained, "training goes on", 120, 0.5)
        write_secret(jobs, keys, is_new=False)
        jobs.await_condition("digits", "CheckpointArchived", timeout=180)
        wait_for(lambda: find_newest() > refused_at, "and is archived with the new keys", 120, 0.5)
        assert jobs.status("digits")["rendezvous"]["generation"] == generation, "no pod has started anew"
        jobs.patch("digits", {"runPolicy": {"suspend": True}})
        jobs.await_condition("digits", "Suspended", timeout=120)
        last = find_newest()
        jobs.patch("digits", {"runPolicy": {"suspend": False}, "replicas": 3})
        jobs.await_world("digits", 3, above=generation, timeout=240)
        assert await_start(jobs, "digits")["step"] == last > refused_at, "at another size, from the same step"


def step_of(files: list[str]) -> int:
    """The step that the script has written into the name of the newest file."""
    return max(int(path.removeprefix("step-").removesuffix(".pt")) for path in files)


def find_refusal(jobs: Jobs) -> dict[str, Any] | None:
    found = jobs.condition("digits", "CheckpointArchived")
    return found if (found.get("status"), found.get("reason")) == ("False", "StoreRefused") else None
