"""Kubeflow's PyTorchJob (`kubeflow.org/v1`). Master and Worker become one set of equal pods; any pod can be rank 0."""

from __future__ import annotations

from elasticjob_operator import numerals
from elasticjob_operator.convert import launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source


def fill(draft: Draft) -> None:
    source = draft.source
    roles = source.part("pytorchReplicaSpecs")
    master, worker = roles.take("Master"), roles.take("Worker")
    roles.drop_other_roles(". Make it a job of its own")
    if not master and not worker:
        raise ConversionError("spec.pytorchReplicaSpecs: is required: give a Worker or a Master")
    elastic = source.part("elasticPolicy") if "elasticPolicy" in source.values else None
    role = "Worker" if worker else "Master"
    chosen = Source(worker or master, f"spec.pytorchReplicaSpecs.{role}", draft)
    replicas = _count(chosen)
    if worker and master:
        replicas += _count(Source(master, "spec.pytorchReplicaSpecs.Master", draft))
        _compare_roles(draft, master, worker)
    nproc = source.take("nprocPerNode")
    if nproc is not None:
        draft.spec["nprocPerNode"] = nproc if (number := numerals.read_count(nproc)) is None else number
    pods.take_template(draft, chosen.take("template"), f"{chosen.path}.template", "pytorch")
    low, high = _fill_elastic(draft, elastic) if elastic is not None else (None, None)
    launcher.take_arguments(draft, f"{chosen.path}.template.spec.containers[pytorch]")
    pods.take_bounds(draft, low, high, replicas, f"{chosen.path}.replicas")
    pods.add_restart_rules(draft, chosen.take("restartPolicy"), f"{chosen.path}.restartPolicy")
    chosen.finish()
    pods.take_run_policy(draft, source.part("runPolicy"))
    source.finish()


def _count(role: Source) -> int:
    count = role.take_number("replicas")
    return 1 if count is None else count


def _compare_roles(draft: Draft, master: dict[str, object], worker: dict[str, object]) -> None:
    if master.get("template") != worker.get("template"):
        draft.warn(
            "spec.pytorchReplicaSpecs.Master.template",
            "differs from the Worker's and was dropped: all pods are made from one template, and rank 0 is any of them",
        )


def _fill_elastic(draft: Draft, policy: Source) -> tuple[int | None, int | None]:
    low, high = policy.take_number("minReplicas"), policy.take_number("maxReplicas")
    restarts = policy.take_number("maxRestarts")
    if restarts is not None:
        draft.elastic["maxRestarts"] = restarts
    nproc = policy.take_number("nProcPerNode")
    if nproc is not None:
        draft.spec["nprocPerNode"] = nproc
    backend, host, port = policy.take("rdzvBackend"), policy.take("rdzvHost"), policy.take("rdzvPort")
    conf = policy.take("rdzvConf")
    if backend in ("etcd", "etcd-v2"):
        draft.rendezvous["backend"] = "etcd-v2"
        draft.rendezvous["endpoint"] = f"{host or 'etcd'}:{port or 2379}"
        draft.rendezvous["conf"] = {c["key"]: str(c["value"]) for c in conf or []} or None
        policy.warn("rdzvBackend", "kept as etcd-v2: remove spec.rendezvous for membership by the operator")
    else:
        given = {"rdzvBackend": backend, "rdzvHost": host, "rdzvPort": port}
        for key in (k for k, value in given.items() if value):
            policy.warn(key, "was dropped: the operator is the rendezvous, and no pod holds its state")
        for entry in conf or []:
            policy.warn(f"rdzvConf[{entry.get('key')}]", "was dropped: the operator's rendezvous has no such setting")
    metrics = policy.take("metrics")
    if metrics and high is None:
        policy.warn("metrics", "was dropped: it needs maxReplicas")
    elif metrics:
        draft.elastic["metrics"] = metrics
    policy.drop(
        {
            "rdzvId": "was dropped: every generation has an id of its own",
            "standalone": "was dropped: the operator brings the membership",
        }
    )
    policy.finish()
    return low, high
