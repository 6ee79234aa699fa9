"""TorchElastic's ElasticJob (`elastic.pytorch.org/v1alpha1`), whose rendezvous is an etcd that the user runs."""

from __future__ import annotations

from elasticjob_operator.convert import launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source


def fill(draft: Draft) -> None:
    source = draft.source
    roles = source.part("replicaSpecs")
    worker = roles.part("Worker")
    if not worker.values:
        raise ConversionError("spec.replicaSpecs.Worker: is required")
    roles.drop_other_roles()
    pods.take_template(draft, worker.take("template"), f"{worker.path}.template", "elasticjob-worker")
    _add_command(draft, worker)
    launcher.take_arguments(draft, f"{worker.path}.template.spec.containers[]")
    pods.take_bounds(
        draft,
        source.take_number("minReplicas"),
        source.take_number("maxReplicas"),
        worker.take_number("replicas"),
        f"{worker.path}.replicas",
    )
    pods.add_restart_rules(draft, worker.take("restartPolicy"), f"{worker.path}.restartPolicy")
    worker.finish()
    if source.take("rdzvEndpoint"):
        source.warn("rdzvEndpoint", "was dropped: the operator is the rendezvous, the etcd is not needed any more")
    _fill_run(draft, source)
    source.finish()


def _add_command(draft: Draft, worker: Source) -> None:
    """Add torchrun if there is no command: the entry point of such images is the launcher, and `args` are its
    arguments.
    """
    container = pods.trainer_of(draft)
    if container.get("args") and not container.get("command"):
        container["command"] = ["torchrun"]
        worker.warn(
            "template.spec.containers[].command",
            "torchrun was added before the args: the image's own entry point was the launcher",
        )


def _fill_run(draft: Draft, source: Source) -> None:
    """In this API, the fields of kubeflow/common's RunPolicy are in the spec itself."""
    run = source.part("runPolicy")
    run.values = {**source.values, **run.values}
    for key in ("cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
        source.take(key)
    draft.run["cleanPodPolicy"] = run.take("cleanPodPolicy")
    draft.run["ttlSecondsAfterFinished"] = run.take_number("ttlSecondsAfterFinished")
    draft.run["activeDeadlineSeconds"] = run.take_number("activeDeadlineSeconds")
    limit = run.take_number("backoffLimit")
    if limit is not None and draft.elastic.get("maxRestarts") is None:
        draft.elastic |= {"maxRestarts": limit, "restartWindowSeconds": 0}
