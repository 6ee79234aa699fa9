"""Random changes to running jobs: sizes, budgets, timeouts, suspension, invalid values, and writes of other clients.

Afterwards the job gets its first spec again. It must then train like an undisturbed job: all its pods are members, none
is an orphan, no failure was charged, and the operator hit no internal error.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from chaos.clusterfaults import settle
from chaos.lab import Stage
from chaos.specs import JUNK, Maker, read_schema
from chaos.stories import PATIENCE, QUICK
from chaos.trials import Trial
from elasticjob_devcluster import KubeError
from elasticjob_operator.api import names
from operator_fixture import MERGE, wait_for

SIZE = 2
CHANGES = 8
Change = Callable[[Stage, random.Random], None]


def make_trials(seed: int, count: int) -> list[Trial]:
    return [Trial(f"changes {number}", partial(tell, seed=number)) for number in range(seed, seed + count)]


def tell(stage: Stage, seed: int) -> None:
    """One job, and `CHANGES` changes in quick succession, not counting those that the API server rejects."""
    dice = random.Random(seed)
    first = stage.spec(*QUICK, replicas=SIZE)
    stage.jobs.create(stage.name, first)
    stage.jobs.await_world(stage.name, SIZE, timeout=PATIENCE)
    children = stage.look()["children"]
    for _ in range(CHANGES):
        change = dice.choice(_CHANGES)
        with contextlib.suppress(KubeError):  # 422, 409, or it is gone already
            change(stage, dice)
            stage.proxy.faults[change.__name__] += 1
        time.sleep(dice.choice((0.0, 0.1, 0.5, 1.5)))
    restore(stage, first)
    settle(stage, SIZE)
    wait_for(lambda: not _strangers(stage), f"no pod is left over: {_strangers(stage)}", PATIENCE)
    wait_for(lambda: stage.look()["children"] == children, f"{children}, and no others", PATIENCE)


def restore(stage: Stage, first: dict[str, Any]) -> None:
    """Restore the first spec, and nothing else."""

    def put() -> bool:
        job = stage.jobs.get(stage.name)
        try:
            stage.jobs.kube.request("PUT", f"{stage.jobs.path}/{stage.name}", {**job, "spec": first})
        except KubeError as error:
            if error.status != 409:
                raise
            return False  # the operator was faster
        return True

    wait_for(put, "the first spec is there again", PATIENCE)


def _strangers(stage: Stage) -> list[str]:
    uid = stage.jobs.get(stage.name)["metadata"]["uid"]
    path = f"/api/v1/namespaces/{stage.jobs.namespace}/pods"
    pods = stage.jobs.kube.request("GET", path)["items"]
    return [p["metadata"]["name"] for p in pods if not _is_owned(p, uid)]


def _is_owned(pod: dict[str, Any], uid: str) -> bool:
    return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


# What is done to a job.


def scale(stage: Stage, dice: random.Random) -> None:
    stage.jobs.scale(stage.name, dice.choice((0, 1, 1, 2, 3, 4, 9)))


def bounds(stage: Stage, dice: random.Random) -> None:
    low, high = sorted(dice.sample((1, 1, 2, 3, 4), 2))
    stage.jobs.patch(stage.name, {"elasticPolicy": {"minReplicas": low, "maxReplicas": high}})


def suspend(stage: Stage, dice: random.Random) -> None:
    stage.jobs.patch(stage.name, {"runPolicy": {"suspend": dice.random() < 0.5}})


def new_program(stage: Stage, dice: random.Random) -> None:
    """A change of the template, like a new image."""
    template = stage.jobs.get(stage.name)["spec"]["template"]
    container = template["spec"]["containers"][0]
    container["env"] = [*container.get("env", ()), {"name": f"X{dice.randrange(3)}", "value": str(dice.random())}]
    stage.jobs.patch(stage.name, {"template": template})


def some_field(stage: Stage, dice: random.Random) -> None:
    """A random field of the CRD with a mostly valid value, except fields that end a job for good.

    Also except the rendezvous: this job's program would fail with another one.
    """
    ends = ("template", "runPolicy", "rendezvous")
    made = {k: v for k, v in Maker(dice.randrange(2**32)).spec().items() if k not in ends}
    if made:
        name = dice.choice(sorted(made))
        stage.jobs.patch(stage.name, {name: made[name]})


def nonsense(stage: Stage, dice: random.Random) -> None:
    stage.jobs.patch(stage.name, {dice.choice(sorted(read_schema()["properties"])): dice.choice(JUNK)})


def wrong_status(stage: Stage, dice: random.Random) -> None:
    """Another client writes the operator's status fields, but not the world, which is the operator's memory."""
    status = {"replicas": dice.choice((0, 7)), "readyReplicas": 99, "phase": dice.choice(("Failed", "Pending", "x"))}
    path = f"{stage.jobs.path}/{stage.name}/status"
    stage.jobs.kube.request("PATCH", path, {"status": status}, content_type=MERGE)


def delete_a_pod(stage: Stage, dice: random.Random) -> None:
    pods = stage.jobs.pods(stage.name)
    if pods:
        path = f"/api/v1/namespaces/{stage.jobs.namespace}/pods/{dice.choice(pods)['metadata']['name']}"
        stage.jobs.kube.request("DELETE", path)


def delete_a_child(stage: Stage, dice: random.Random) -> None:
    namespace = f"namespaces/{stage.jobs.namespace}"
    policy = "policy/v1" if stage.jobs.kube.get("/apis/policy/v1") else "policy/v1beta1"
    paths = (
        f"networking.k8s.io/v1/{namespace}/networkpolicies/{names.network_policy_name(stage.name)}",
        f"{policy}/{namespace}/poddisruptionbudgets/{names.disruption_budget_name(stage.name)}",
    )
    stage.jobs.kube.request("DELETE", f"/apis/{dice.choice(paths)}")


_CHANGES: tuple[Change, ...] = (
    scale, scale, bounds, suspend, new_program, some_field, nonsense, wrong_status, delete_a_pod, delete_a_child,
)  # fmt: skip
