"""DLRover's ElasticJob (`elastic.iml.github.io/v1alpha1`).

Its size is in the command, usually in a shell line: `dlrover-run --nnodes=1:$NODE_NUM`. DLRover's master sets
`NODE_NUM` to the number of worker replicas.
"""

from __future__ import annotations

import re
from typing import Any, Final

from elasticjob_operator import numerals
from elasticjob_operator.convert import launcher, pods
from elasticjob_operator.convert.draft import ConversionError, Draft, Source

_LAUNCHERS: Final = ("dlrover-run",)
_NNODES: Final = re.compile(r"--nnodes[= ](?:([0-9]{1,9}):)?(\$\{?NODE_NUM\}?|\$\(NODE_NUM\)|[0-9]{1,9})(?=\s|$)")
_SHELL_NPROC: Final = re.compile(r"--nproc[-_]per[-_]node[= ]([0-9]{1,9}|auto|gpu|cpu)(?=\s|$)")
_SHELL_RESTARTS: Final = re.compile(r"--max[-_]restarts[= ]([0-9]{1,9})(?=\s|$)")
_EXTRAS: Final = re.compile(
    r"--(?:network-check|comm-perf-test|node_unit|auto-config|auto-tunning|exclude-straggler)\S*"
)


def fill(draft: Draft) -> None:
    source = draft.source
    roles = source.part("replicaSpecs")
    name = next((k for k in ("worker", "Worker") if k in roles.values), "worker")
    worker = roles.part(name)
    if not worker.values:
        raise ConversionError("spec.replicaSpecs.worker: is required")
    roles.drop_other_roles(" and no master")
    replicas = worker.take_number("replicas")
    pods.take_template(draft, worker.take("template"), f"{worker.path}.template", "main")
    _take_shell(draft, worker, replicas)
    launcher.take_arguments(draft, f"{worker.path}.template.spec.containers[]", _LAUNCHERS)
    low, high = worker.take_number("minReplicas"), worker.take_number("maxReplicas")
    pods.take_bounds(draft, low, high, replicas, f"{worker.path}.replicas")
    _fill_restarts(draft, worker)
    priority = worker.take("priority")
    if priority:
        worker.warn("priority", "has no counterpart: set priorityClassName in the template")
    worker.finish()
    _fill_job(draft, source)
    source.finish()


def _fill_restarts(draft: Draft, worker: Source) -> None:
    pods.add_restart_rules(draft, worker.take("restartPolicy"), f"{worker.path}.restartPolicy")
    count = worker.take_number("restartCount")
    if count is not None:
        draft.elastic.setdefault("maxRestarts", count)
        worker.warn("restartCount", "counted each pod: maxRestarts counts the whole job, and lost pods are free")
    timeout = worker.take("restartTimeout")
    if timeout:
        worker.warn("restartTimeout", "has no counterpart: see elasticPolicy.faultyPodTimeoutSeconds")
    worker.drop({"autoScale": "was dropped: use a HorizontalPodAutoscaler on the ElasticJob"})


def _fill_job(draft: Draft, source: Source) -> None:
    strategy = source.take("distributionStrategy")
    if strategy not in (None, "AllreduceStrategy", "allreduce", "CustomStrategy"):
        source.warn("distributionStrategy", f"{strategy} has no counterpart: an ElasticJob trains with all-reduce")
    if source.take("suspend"):
        draft.run["suspend"] = True
    source.take("brainService")
    source.drop(
        {
            "optimizeMode": "was dropped: there is no service that optimises resources",
            "envs": "has no counterpart: set env in the template",
            "resourceLimits": "has no counterpart: set a ResourceQuota in the namespace",
        }
    )
    if source.take("enableDynamicSharding"):
        source.warn("enableDynamicSharding", "was dropped: use elasticjob's sampler in the script")
    if source.take("enableElasticScheduling"):
        source.warn("enableElasticScheduling", "was dropped: scale by hand or with a HorizontalPodAutoscaler")


def _take_shell(draft: Draft, worker: Source, replicas: int | None) -> None:
    """DLRover's published examples run a shell line: remove the launcher's membership arguments from it."""
    container = pods.trainer_of(draft)
    for key in ("command", "args"):
        words = container.get(key)
        if isinstance(words, list):
            container[key] = [_take_from_line(draft, worker, str(w), replicas) for w in words]


def _take_from_line(draft: Draft, worker: Source, line: str, replicas: int | None) -> str:
    where = "template.spec.containers[]"
    if not any(name in line for name in (*_LAUNCHERS, "torchrun", "nnodes", "nproc")):
        return line
    sizes = _NNODES.search(line)
    if sizes:
        most = numerals.read_count(sizes[2])
        high = replicas if most is None else most
        low = numerals.read_count(sizes[1]) if sizes[1] else high
        _keep(draft.elastic, {"minReplicas": low, "maxReplicas": high})
    nproc = _SHELL_NPROC.search(line)
    if nproc:
        draft.spec["nprocPerNode"] = nproc[1] if (number := numerals.read_count(nproc[1])) is None else number
    restarts = _SHELL_RESTARTS.search(line)
    if restarts is not None:
        draft.elastic["maxRestarts"] = numerals.read_count(restarts[1])
    for extra in _EXTRAS.findall(line):
        hint = ": see health.preflight" if "check" in extra or "perf" in extra else ""
        worker.warn(where, f"{extra} was dropped{hint}")
    for pattern in (_NNODES, _SHELL_NPROC, _SHELL_RESTARTS, _EXTRAS):
        line = re.sub(rf"(?:{pattern.pattern})[ \t]*", "", line)
    for name in _LAUNCHERS:
        if line != name and re.search(rf"(?<![\w-]){name}(?![\w-])", line):
            worker.warn(where, f"{name} became torchrun: the operator brings the membership")
            line = re.sub(rf"(?<![\w-]){name}(?![\w-])", "torchrun", line)
    return line


def _keep(values: dict[str, Any], more: dict[str, int | None]) -> None:
    for key, value in more.items():
        if value is not None:
            values.setdefault(key, value)
