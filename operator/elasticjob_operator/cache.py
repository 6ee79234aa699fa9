"""What the operator has seen of the cluster: slim records by job, kept in step by watches and by its own writes.

An own write is entered as soon as the API server has confirmed it; an older version that a watch brings later is
ignored. So a pass never acts on a state older than its own last action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elasticjob_operator import bounds, names, observe
from elasticjob_operator.observe import Job, Node, Pod

JobKey = tuple[str, str]
Raw = Mapping[str, Any]


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is certainly older; versions that are no numbers are never called old."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


class Cache:
    """Jobs, pods, nodes and child objects. `wake` is called with the key of every job that something changed for."""

    def __init__(self, wake: Callable[[JobKey], None], limits: bounds.Limits = bounds.Limits()) -> None:
        self._wake = wake
        self._limits = limits
        self.jobs: dict[JobKey, tuple[Job, str]] = {}  # with the resourceVersion
        self._pods: dict[JobKey, dict[str, Pod]] = {}  # by UID
        self._job_of: dict[str, JobKey] = {}
        self._gone: dict[str, None] = {}  # UIDs that were deleted lately: a late event must not bring them back
        self.nodes: dict[str, Node] = {}
        self.nodes_known = False
        self._children: dict[JobKey, dict[tuple[str, str], str]] = {}
        self._jobs_on_node: dict[str, set[JobKey]] = {}

    # Jobs.

    def put_job(self, raw: Raw) -> None:
        metadata = raw["metadata"]
        key = (metadata["namespace"], metadata["name"])
        version = str(metadata.get("resourceVersion", ""))
        known = self.jobs.get(key)
        if known is not None and known[0].uid == metadata["uid"]:
            if known[1] == version or is_older(version, known[1]):
                return
        elif known is not None and is_older(version, known[1]):
            return  # the predecessor of the same name
        self.jobs[key] = (observe.observe_job(raw, self._limits), version)
        self._wake(key)

    def drop_job(self, key: JobKey, uid: str) -> None:
        known = self.jobs.get(key)
        if known is not None and known[0].uid == uid:
            del self.jobs[key]
            self._wake(key)

    def apply_job(self, kind: str | None, raw: Raw) -> None:
        """An event as kopf tells it; kind None is the initial listing."""
        metadata = raw["metadata"]
        if kind == "DELETED":
            self.drop_job((metadata["namespace"], metadata["name"]), metadata["uid"])
        else:
            self.put_job(raw)

    # Pods.

    def put_pod(self, raw: Raw) -> None:
        pod = observe.observe_pod(raw)
        if pod is None or pod.uid in self._gone:
            return
        key = (raw["metadata"]["namespace"], pod.job)
        pods = self._pods.setdefault(key, {})
        known = pods.get(pod.uid)
        if known is not None and (
            known.resource_version == pod.resource_version or is_older(pod.resource_version, known.resource_version)
        ):
            return
        pods[pod.uid] = pod
        self._job_of[pod.uid] = key
        if pod.node:
            self._jobs_on_node.setdefault(pod.node, set()).add(key)
        self._wake(key)

    def drop_pod(self, namespace: str, job: str, uid: str) -> None:
        key = (namespace, job)
        pods = self._pods.get(key, {})
        self._gone[uid] = None
        self._job_of.pop(uid, None)
        while len(self._gone) > 10_000:
            del self._gone[next(iter(self._gone))]
        if pods.pop(uid, None) is not None:
            self._wake(key)
        if not pods:
            self._pods.pop(key, None)

    def apply_pod(self, kind: str, raw: Raw) -> None:
        metadata = raw["metadata"]
        if kind == "DELETED":
            job = (metadata.get("labels") or {}).get(names.LABEL_JOB, "")
            self.drop_pod(metadata["namespace"], job, metadata["uid"])
        else:
            self.put_pod(raw)

    def replace_pods(self, items: list[Raw], namespace: str = "") -> None:
        """The metadata of all that exist, in one namespace where one is given; each was entered already."""
        listed = {item["metadata"]["uid"] for item in items}
        newest = max(
            (int(v) for v in (i["metadata"].get("resourceVersion", "0") for i in items) if v.isdecimal()), default=0
        )
        for key, pods in list(self._pods.items()):
            if namespace and key[0] != namespace:
                continue
            for uid, pod in list(pods.items()):
                # One that we made after the list was taken is not missing, only newer.
                if uid not in listed and not is_older(str(newest), pod.resource_version):
                    self.drop_pod(key[0], key[1], uid)

    def pods(self, key: JobKey) -> tuple[Pod, ...]:
        return tuple(self._pods.get(key, {}).values())

    def find_pod(self, namespace: str, name: str, uid: str) -> str | None:
        """The job that this pod works for; None where it is not (or not yet) known as a worker."""
        key = self._job_of.get(uid)
        pod = self._pods.get(key, {}).get(uid) if key else None
        return key[1] if key and pod and key[0] == namespace and pod.name == name else None

    # Nodes.

    def put_node(self, raw: Raw) -> None:
        node = observe.observe_node(raw)
        if self.nodes.get(node.name) != node:
            self.nodes[node.name] = node
            self._wake_node(node.name)

    def apply_node(self, kind: str, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        if kind == "DELETED":
            self.nodes.pop(name, None)
            self._wake_node(name)
        else:
            self.put_node(raw)

    def replace_nodes(self, items: list[Raw]) -> None:
        self.nodes_known = True
        listed = {item["metadata"]["name"] for item in items}
        for name in [n for n in self.nodes if n not in listed]:
            self.nodes.pop(name)
            self._wake_node(name)

    def _wake_node(self, name: str) -> None:
        for key in list(self._jobs_on_node.get(name, ())):
            self._wake(key)

    def nodes_of(self, pods: tuple[Pod, ...]) -> Mapping[str, Node]:
        """The nodes that matter to these pods; where nodes may not be seen, all of them are called well."""
        if self.nodes_known:
            return {p.node: self.nodes[p.node] for p in pods if p.node in self.nodes}
        return {p.node: Node(p.node) for p in pods if p.node}

    # Children.

    def put_child(self, kind: str, raw: Raw) -> None:
        metadata = raw["metadata"]
        job = (metadata.get("labels") or {}).get(names.LABEL_JOB)
        owner = next((o.get("uid") for o in metadata.get("ownerReferences") or () if o.get("kind") == names.KIND), None)
        if job is None or owner is None:
            return
        key = (metadata["namespace"], job)
        digest = (metadata.get("annotations") or {}).get(names.ANNOTATION_DIGEST, "")
        known = self._children.setdefault(key, {})
        if known.get((kind, metadata["name"])) != f"{owner}/{digest}":
            known[kind, metadata["name"]] = f"{owner}/{digest}"
            self._wake(key)

    def drop_child(self, kind: str, raw: Raw) -> None:
        metadata = raw["metadata"]
        key = (metadata["namespace"], (metadata.get("labels") or {}).get(names.LABEL_JOB, ""))
        known = self._children.get(key, {})
        if known.pop((kind, metadata["name"]), None) is not None:
            self._wake(key)
        if not known:
            self._children.pop(key, None)

    def apply_child(self, kind: str, event: str, raw: Raw) -> None:
        if event == "DELETED":
            self.drop_child(kind, raw)
        else:
            self.put_child(kind, raw)

    def replace_children(self, kind: str, items: list[Raw], namespace: str = "") -> None:
        listed = {(i["metadata"]["namespace"], i["metadata"]["name"]) for i in items}
        for key, known in list(self._children.items()):
            if namespace and key[0] != namespace:
                continue
            for child_kind, name in [k for k in known if k[0] == kind]:
                if (key[0], name) not in listed:
                    known.pop((child_kind, name))
                    self._wake(key)

    def children(self, job: Job) -> frozenset[tuple[str, str, str]]:
        """(kind, name, digest) of the children that belong to this very job, not to a predecessor."""
        known = self._children.get(job.key, {})
        return frozenset(
            (kind, name, value.partition("/")[2])
            for (kind, name), value in known.items()
            if value.partition("/")[0] == job.uid
        )

    def forget(self, key: JobKey) -> None:
        self._children.pop(key, None)
